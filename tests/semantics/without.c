/*
 * Threads that the C library knows nothing of: made by clone(2) with a thread pointer of the
 * program's own, on stacks in managed memory. They run no function of the C library's.
 */
#include "own_calls.h"
#include <asm/prctl.h>
#include <linux/futex.h>
#include <sched.h>

#define THREADS 16
#define BYTES (4 * MIB)
#define STACK (64 << 10)

/* What the thread pointer leads to. */
struct own {
    struct own *self;
    uint64_t number;
    char *memory;
    volatile int tid;
    volatile uint64_t wrong;
    volatile uint64_t signals;
    volatile int stop;
};

static struct own owns[THREADS];

/* (flags, stack, what it runs, thread pointer, words): the thread runs it and ends. */
long make(long flags, void *stack, void (*run)(void), void *pointer, volatile int *tid);
__asm__(".text\n"
        "make:\n"
        "\tpush %rbx\n"
        "\tmov %rdx, %rbx\n"
        "\tmov %r8, %rdx\n"
        "\tmov %r8, %r10\n"
        "\tmov %rcx, %r8\n"
        "\tmov $56, %eax\n"
        "\tsyscall\n"
        "\ttest %rax, %rax\n"
        "\tjz 1f\n"
        "\tpop %rbx\n"
        "\tret\n"
        "1:\txor %ebp, %ebp\n"
        "\tcall *%rbx\n"
        "\txor %edi, %edi\n"
        "\tmov $60, %eax\n"
        "\tsyscall\n"
        "\tud2\n");

#define NO_PROTECTOR __attribute__((optimize("no-stack-protector"), noinline))

NO_PROTECTOR static struct own *own(void)
{
    struct own *found;
    __asm__ volatile("mov %%fs:0, %0" : "=r"(found));
    return found;
}

NO_PROTECTOR static void on_signal(int signal UNUSED, siginfo_t *info UNUSED,
                                   void *context UNUSED)
{
    struct own *mine = own();
    /* Only a thread of this file has been sent one. */
    mine->signals++;
    mine->memory[mine->signals % BYTES]++;
    mine->memory[mine->signals % BYTES]--;
}

NO_PROTECTOR static void work(void)
{
    struct own *mine = own();
    struct own *by_call = 0;
    CALL(SYS_arch_prctl, ARCH_GET_FS, &by_call, 0, 0, 0, 0);
    mine->wrong += by_call != mine;
    char *memory = (char *)CALL(SYS_mmap, 0, BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mine->memory = memory;
    stack_t stack = {.ss_sp = memory + BYTES - STACK, .ss_size = STACK};
    mine->wrong += CALL(SYS_sigaltstack, &stack, 0, 0, 0, 0, 0) != 0;
    for (int round = 0; round < 4; round++) {
        for (size_t at = 0; at < BYTES - STACK; at += PAGE)
            *(uint64_t *)(memory + at) = at + mine->number + (uint64_t)round;
        for (size_t at = 0; at < BYTES - STACK; at += PAGE)
            mine->wrong += *(uint64_t *)(memory + at) != at + mine->number + (uint64_t)round;
        mine->wrong += own() != mine;
    }
    /* A call on managed memory, by a number in the code. */
    int fds[2];
    mine->wrong += CALL(SYS_pipe2, fds, 0, 0, 0, 0, 0) != 0;
    mine->wrong += CALL(SYS_write, fds[1], memory + PAGE, 8, 0, 0, 0) != 8;
    mine->wrong += CALL(SYS_read, fds[0], memory + 2 * PAGE, 8, 0, 0, 0) != 8;
    mine->wrong += *(uint64_t *)(memory + 2 * PAGE) != PAGE + mine->number + 3;
    CALL(SYS_close, fds[0], 0, 0, 0, 0, 0);
    CALL(SYS_close, fds[1], 0, 0, 0, 0, 0);
    while (!mine->signals)
        CALL(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    mine->wrong += own() != mine;
    mine->wrong += CALL(SYS_munmap, memory, BYTES - STACK, 0, 0, 0, 0) != 0;
}

/* The end of a thread is the end of its word. */
static void wait_for(struct own *one)
{
    int tid;
    while ((tid = one->tid) != 0)
        syscall(SYS_futex, &one->tid, FUTEX_WAIT, tid, NULL, NULL, 0);
}

static void round_of_threads(int round)
{
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                 CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    char *stacks = (char *)CALL(SYS_mmap, 0, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int made = 0;
    for (size_t n = 0; n < THREADS; n++) {
        owns[n] = (struct own){.self = &owns[n], .number = n + 1};
        owns[n].tid = 1;
        made += make(flags, stacks + (n + 1) * STACK - 16, work, &owns[n], &owns[n].tid) > 0;
    }
    check(made == THREADS, "round %d: threads begin", round);
    for (int n = 0; n < THREADS; n++) {
        while (!owns[n].memory)
            sched_yield();
        syscall(SYS_tgkill, getpid(), owns[n].tid, SIGURG);
    }
    uint64_t wrong = 0, signals = 0;
    for (int n = 0; n < THREADS; n++) {
        wait_for(&owns[n]);
        wrong += owns[n].wrong;
        signals += owns[n].signals;
    }
    check(wrong == 0, "round %d: their memory and their pointers are as they were", round);
    check(signals == THREADS, "round %d: each has had its signal", round);
    CALL(SYS_munmap, stacks, (size_t)THREADS * STACK, 0, 0, 0, 0);
}

int main(void)
{
    struct kernel_action action = {on_signal, SA_SIGINFO | SA_ONSTACK | SA_RESTART | OWN_RESTORER,
                                   own_restorer, 0};
    check(CALL(SYS_rt_sigaction, SIGURG, &action, 0, 8, 0, 0) == 0, "rt_sigaction");
    for (int round = 0; round < 3; round++)
        round_of_threads(round);
    fflush(stdout);
    /* The first thread takes another pointer, for a while. */
    static struct own first = {.self = &first, .number = 1};
    unsigned long before = 0;
    CALL(SYS_arch_prctl, ARCH_GET_FS, &before, 0, 0, 0, 0);
    CALL(SYS_arch_prctl, ARCH_SET_FS, &first, 0, 0, 0, 0);
    char *memory = (char *)CALL(SYS_mmap, 0, 32 * MIB, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t wrong = 0;
    for (size_t at = 0; at < 32 * MIB; at += PAGE)
        memory[at] = (char)(at >> 12);
    for (size_t at = 0; at < 32 * MIB; at += PAGE)
        wrong += memory[at] != (char)(at >> 12);
    wrong += own() != &first;
    CALL(SYS_arch_prctl, ARCH_SET_FS, before, 0, 0, 0, 0);
    check(wrong == 0, "the first thread with another pointer");
    size_t pages = 32 * MIB / PAGE;
    char *block = malloc(pages * PAGE);
    fill(block, pages, 9);
    check(bad_pages(block, pages, 9) == 0, "and with its own again, the C library's heap");
    free(block);
    return failures != 0;
}
