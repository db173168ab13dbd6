/* Handlers without SA_ONSTACK that come to a coroutine, whose stack is absent below what it uses:
   they run there, with all that is interrupted above them, as a collector of garbage that looks
   through stacks expects. */
#include "common.h"
#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define STACK ((size_t)256 << 10)
#define ROUNDS 20

static ucontext_t scheduler, coroutine, others[2];
static char *stack;
static volatile sig_atomic_t calls, on_stack, found, depth, traced;
static uint64_t secret;
static sigjmp_buf back;
static int mode;

enum { PLAIN, NESTED, JUMPS, CHANGES };

static void *new_stack(void)
{
    void *new;
    if (posix_memalign(&new, PAGE, STACK) != 0)
        die("posix_memalign");
    return new;
}

static int is_on_stack(const void *address)
{
    return (const char *)address >= stack && (const char *)address < stack + STACK;
}

/* Whether a word is somewhere on the stack from here up. */
static int is_above(const void *here, uint64_t word)
{
    for (const uint64_t *at = here; at < (const uint64_t *)(stack + STACK); at++)
        if (*at == ~word)
            return 1;
    return 0;
}

__attribute__((noinline)) static void interrupted(int signal_number);

static void handler(int number, siginfo_t *info, void *context)
{
    volatile uint64_t local = (uint64_t)number;
    calls++;
    on_stack += is_on_stack((void *)&local) && is_on_stack(context) && is_on_stack(info);
    found += is_above((void *)((uintptr_t)&local & ~(uintptr_t)7), ~secret);
    if (mode == NESTED && depth < 3) {
        depth++;
        interrupted(number);
        depth--;
    }
    if (mode == CHANGES)
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_R13] ^= 0xff;
    if (mode == JUMPS)
        siglongjmp(back, 1);
    void *frames[32];
    int count = backtrace(frames, 32);
    for (int i = 0; i < count; i++)
        if ((uintptr_t)frames[i] - (uintptr_t)interrupted < 400) {
            traced++;
            break;
        }
}

/* Sends itself a signal while only a register has a word, and nothing lies below the page of the
   stack that is in use. */
__attribute__((noinline)) static void interrupted(int number)
{
    uint64_t kept = 5, changed = 7;
    long pid = getpid(), tid = gettid(), signal = number;
    double number_before = 1.25, number_after;
    __asm__ volatile("movsd %[before], %%xmm9\n\t"
                     "mov %[secret], %%r12\n\t"
                     "mov $7, %%r13\n\t"
                     "mov %%rsp, %%rsi\n\t"
                     "and $-4096, %%rsi\n\t"
                     "mov %[stack], %%rdi\n\t"
                     "sub %%rdi, %%rsi\n\t"
                     "mov %[dontneed], %%edx\n\t"
                     "mov %[madvise], %%eax\n\t"
                     "syscall\n\t"
                     "mov %[pid], %%rdi\n\t"
                     "mov %[tid], %%rsi\n\t"
                     "mov %[number], %%rdx\n\t"
                     "mov %[tgkill], %%eax\n\t"
                     "syscall\n\t"
                     "mov %%r12, %[kept]\n\t"
                     "mov %%r13, %[changed]\n\t"
                     "xor %%r12, %%r12\n\t"
                     "movsd %%xmm9, %[after]"
                     : [kept] "=m"(kept), [changed] "=m"(changed), [after] "=m"(number_after)
                     : [secret] "m"(secret), [before] "m"(number_before), [tgkill] "i"(SYS_tgkill),
                       [madvise] "i"(SYS_madvise), [dontneed] "i"(MADV_DONTNEED),
                       [stack] "m"(stack), [pid] "m"(pid), [tid] "m"(tid), [number] "m"(signal)
                     : "rax", "rcx", "rdx", "rdi", "rsi", "r11", "r12", "r13", "xmm9", "memory");
    if (kept != secret || changed != (mode == CHANGES ? 7 ^ 0xff : 7) || number_after != 1.25)
        printf("WRONG registers\n");
}

static void rounds(const char *what)
{
    calls = on_stack = found = traced = 0;
    for (volatile int i = 0; i < ROUNDS; i++) {
        /* Each time elsewhere on its page. */
        volatile char room[16 + i * 211];
        room[0] = 0;
        (void)room[0];
        if (mode != JUMPS || sigsetjmp(back, 1) == 0)
            interrupted(SIGUSR1);
    }
    check(on_stack == calls, "%s: %d calls, all on the coroutine's stack", what, calls);
    check(found == calls, "%s: what is in a register is found on it", what);
    if (mode == PLAIN)
        check(traced == calls, "%s: a backtrace leads there", what);
}

static void body(void)
{
    secret = (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
    mode = PLAIN;
    rounds("plain");
    mode = NESTED;
    rounds("nested");
    mode = CHANGES;
    rounds("changed");
    mode = JUMPS;
    rounds("left by siglongjmp");
}

/* A scheduler that a signal calls: it goes on with the other coroutine from within the handler. */
static volatile int current, switches;
static volatile uint64_t sums[2];

static void switching(int number)
{
    (void)number;
    int from = current;
    current = !current;
    switches++;
    evict_all();
    if (swapcontext(&others[from], &others[!from]) != 0)
        die("swapcontext");
}

static void preempted(int index)
{
    char locals[3 * 4096];
    for (uint64_t i = 0; i < 30; i++) {
        stamp(locals, sizeof locals, i);
        raise(SIGUSR2);
        sums[index] += (uint64_t)stamped(locals, sizeof locals, i);
    }
    current = !index;
    if (swapcontext(&others[index], sums[!index] < 30 ? &others[!index] : &scheduler) != 0)
        die("swapcontext");
}

static void prepare(ucontext_t *context, char *memory, void (*function)(void), int argument)
{
    if (getcontext(context) != 0)
        die("getcontext");
    context->uc_stack.ss_sp = memory;
    context->uc_stack.ss_size = STACK;
    context->uc_link = &scheduler;
    makecontext(context, function, 1, argument);
}

int main(void)
{
    void *first[2];
    backtrace(first, 2);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGUSR1, &action, NULL);
    stack = new_stack();
    prepare(&coroutine, stack, body, 0);
    if (swapcontext(&scheduler, &coroutine) != 0)
        die("swapcontext");

    struct sigaction preempting = {.sa_handler = switching, .sa_flags = SA_NODEFER};
    sigaction(SIGUSR2, &preempting, NULL);
    for (int i = 0; i < 2; i++)
        prepare(&others[i], new_stack(), (void (*)(void))preempted, i);
    if (swapcontext(&scheduler, &others[0]) != 0)
        die("swapcontext");
    check(sums[0] == 30 && sums[1] == 30, "two that are preempted: %d switches", switches);

    struct sigaction told;
    sigaction(SIGUSR1, NULL, &told);
    check(told.sa_sigaction == handler && !(told.sa_flags & SA_ONSTACK), "its flags are as set");
    return finish();
}
