/*
 * System calls by instructions of the program's own: mappings, signal handlers, masks, signal
 * stacks, threads and children, with the C library beside them.
 */
#include "own_calls.h"
#include <sched.h>

#define MAP_PLAIN (MAP_PRIVATE | MAP_ANONYMOUS)
#define BYTES (64 * MIB)

static char *map(size_t len, int prot)
{
    return (char *)CALL(SYS_mmap, 0, len, prot, MAP_PLAIN, -1, 0);
}

/* 1. Mappings of several times the budget: written, read, moved, protected, given back. */
static void mappings(void)
{
    char *block = map(BYTES, PROT_READ | PROT_WRITE);
    check((unsigned long)block < -4096ul, "mmap");
    for (size_t at = 0; at < BYTES; at += PAGE)
        *(uint64_t *)(block + at) = at * 7 + 1;
    uint64_t wrong = 0;
    for (size_t at = 0; at < BYTES; at += PAGE)
        wrong += *(uint64_t *)(block + at) != at * 7 + 1;
    check(wrong == 0, "64 MiB are as they were written");
    check(CALL(SYS_madvise, block, MIB, MADV_DONTNEED, 0, 0, 0) == 0, "madvise");
    check(block[0] == 0 && block[PAGE] == 0 && *(uint64_t *)(block + MIB) == MIB * 7 + 1,
          "what is dropped is zero");
    char *moved = (char *)CALL(SYS_mremap, block, BYTES, BYTES + MIB, MREMAP_MAYMOVE, 0, 0);
    check(*(uint64_t *)(moved + 2 * MIB) == 2 * MIB * 7 + 1, "mremap");
    check(CALL(SYS_mprotect, moved, PAGE, PROT_NONE, 0, 0, 0) == 0, "mprotect");
    check(CALL(SYS_munmap, moved, BYTES + MIB, 0, 0, 0, 0) == 0, "munmap");
    check(CALL(SYS_mmap, 0, 0, PROT_READ, MAP_PLAIN, -1, 0) == -EINVAL, "mmap of nothing");
    /* A reservation that is filled piece by piece. */
    char *reserved = map(BYTES, PROT_NONE);
    char *piece = (char *)CALL(SYS_mmap, reserved + MIB, MIB, PROT_READ | PROT_WRITE,
                               MAP_PLAIN | MAP_FIXED, -1, 0);
    check(piece == reserved + MIB, "a piece of a reservation");
    memset(piece, 3, MIB);
    check(CALL(SYS_munmap, reserved, BYTES, 0, 0, 0, 0) == 0, "all of it is given back");
}

/* 2. Handlers, on a signal stack in managed memory. */
static volatile sig_atomic_t handled;
static char *volatile on_stack;
static char *volatile bad;

static void on_fault(int signal UNUSED, siginfo_t *info, void *context UNUSED)
{
    char here;
    on_stack = &here;
    handled += info->si_addr == bad;
    CALL(SYS_mprotect, bad, PAGE, PROT_READ | PROT_WRITE, 0, 0, 0);
}

static void on_user(int signal, siginfo_t *info UNUSED, void *context UNUSED)
{
    handled += signal;
}

static void handlers(void)
{
    size_t size = 64 << 10;
    char *memory = map(size, PROT_READ | PROT_WRITE);
    stack_t stack = {.ss_sp = memory, .ss_size = size};
    stack_t before;
    check(CALL(SYS_sigaltstack, &stack, &before, 0, 0, 0, 0) == 0 &&
              before.ss_flags == SS_DISABLE,
          "sigaltstack");
    check(CALL(SYS_sigaltstack, 0, &before, 0, 0, 0, 0) == 0 && before.ss_sp == memory &&
              before.ss_size == size,
          "it is read back");
    struct kernel_action action = {on_fault, SA_SIGINFO | SA_ONSTACK | OWN_RESTORER, own_restorer,
                                   0};
    struct kernel_action old;
    check(CALL(SYS_rt_sigaction, SIGSEGV, &action, &old, 8, 0, 0) == 0 && !old.handler,
          "rt_sigaction");
    bad = map(PAGE, PROT_NONE);
    *bad = 1;
    check(handled == 1 && on_stack >= memory && on_stack < memory + size,
          "a fault is handled on the signal stack");
    check(CALL(SYS_rt_sigaction, SIGSEGV, 0, &old, 8, 0, 0) == 0 && old.handler == on_fault &&
              old.flags == action.flags && old.restorer == own_restorer,
          "the action is read back");
    action.handler = on_user;
    handled = 0;
    for (int signal = 1; signal < 65; signal++) {
        if (signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33)
            CALL(SYS_rt_sigaction, signal, &action, 0, 8, 0, 0);
    }
    int sum = 0;
    int sent[] = {SIGUSR1, SIGBUS, SIGSYS, SIGSEGV, SIGURG};
    for (int n = 0; n < 5; n++) {
        sum += sent[n];
        raise(sent[n]);
    }
    check(handled == sum, "all signals are handled");
    uint64_t all = ~0ul, found = 0;
    check(CALL(SYS_rt_sigprocmask, SIG_SETMASK, &all, &found, 8, 0, 0) == 0 && found == 0,
          "rt_sigprocmask");
    handled = 0;
    raise(SIGBUS);
    raise(SIGUSR1);
    check(handled == 0, "nothing comes while it is blocked");
    uint64_t none = 0;
    CALL(SYS_rt_sigprocmask, SIG_SETMASK, &none, &found, 8, 0, 0);
    check(handled == SIGBUS + SIGUSR1, "and then it does");
    check((found | 1ul << (SIGKILL - 1) | 1ul << (SIGSTOP - 1)) == ~0ul, "the mask is read back");
    stack.ss_flags = SS_DISABLE;
    CALL(SYS_sigaltstack, &stack, 0, 0, 0, 0, 0);
}

/* 3. Children. */
static void children(void)
{
    char *shared = map(8 * MIB, PROT_READ | PROT_WRITE);
    memset(shared, 5, 8 * MIB);
    fflush(stdout);
    long pid = CALL(SYS_fork, 0, 0, 0, 0, 0, 0);
    if (pid == 0) {
        int right = 1;
        for (size_t at = 0; at < 8 * MIB; at += PAGE)
            right &= shared[at] == 5;
        memset(shared, 6, 8 * MIB);
        char *more = map(32 * MIB, PROT_READ | PROT_WRITE);
        memset(more, 7, 32 * MIB);
        CALL(SYS_exit_group, right && more[5] == 7 ? 7 : 1, 0, 0, 0, 0, 0);
    }
    int status;
    check(waitpid((pid_t)pid, &status, 0) == pid && WEXITSTATUS(status) == 7, "a child by fork");
    check(shared[MIB] == 5, "its memory is its own");
    pid = CALL(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
    if (pid == 0)
        CALL(SYS_exit_group, shared[2 * MIB], 0, 0, 0, 0, 0);
    check(waitpid((pid_t)pid, &status, 0) == pid && WEXITSTATUS(status) == 5, "a child by clone");
}

/* 4. SIGBUS that is sent while calls are made. */
static volatile int is_done;
static pid_t receiver;

static void *send_sigbus(void *unused UNUSED)
{
    while (!is_done) {
        syscall(SYS_tgkill, getpid(), receiver, SIGBUS);
        usleep(20);
    }
    return NULL;
}

static void calls_under_signals(void)
{
    struct kernel_action action = {on_user, SA_SIGINFO | SA_RESTART | OWN_RESTORER, own_restorer,
                                   0};
    CALL(SYS_rt_sigaction, SIGBUS, &action, 0, 8, 0, 0);
    receiver = (pid_t)syscall(SYS_gettid);
    pthread_t sender;
    pthread_create(&sender, NULL, send_sigbus, NULL);
    char *block = map(MIB, PROT_READ | PROT_WRITE);
    int wrong = 0;
    for (int n = 0; n < 4000; n++) {
        char *page = block + n % 256 * PAGE;
        *page = 1;
        wrong += CALL(SYS_madvise, block, MIB, MADV_DONTNEED, 0, 0, 0) != 0 || *page != 0;
    }
    check(wrong == 0, "each call does what it says");
    for (int n = 0; n < 20; n++) {
        block[PAGE] = 7;
        long pid = CALL(SYS_fork, 0, 0, 0, 0, 0, 0);
        if (pid == 0) {
            char *own = map(MIB, PROT_READ | PROT_WRITE);
            memset(own, 1, MIB);
            CALL(SYS_exit_group, block[PAGE] + own[PAGE], 0, 0, 0, 0, 0);
        }
        int status;
        while (waitpid((pid_t)pid, &status, 0) < 0 && errno == EINTR)
            ;
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 8;
    }
    check(wrong == 0, "and each child");
    is_done = 1;
    pthread_join(sender, NULL);
}

/* 5. Signals that an instruction could raise, but that are sent, while calls are stopped: their
   handlers run on the signal stack of the program. */
#define SENT 4000

static char signal_stack[64 << 10];
static volatile sig_atomic_t got, elsewhere;
static atomic_int sender_done;

static void on_signal_stack(int signal)
{
    char here;
    (void)signal;
    got++;
    elsewhere += &here < signal_stack || &here >= signal_stack + sizeof signal_stack;
}

static void *send_signals(void *argument)
{
    static const int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGTRAP};
    for (int i = 0; i < SENT; i++) {
        pthread_kill(*(pthread_t *)argument, signals[i % 4]);
        usleep(20);
    }
    sender_done = 1;
    return NULL;
}

static void sent_meanwhile(void)
{
    static const int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGTRAP};
    struct sigaction action = {.sa_handler = on_signal_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack}, none = stack;
    pthread_t self = pthread_self(), sender;
    sigfillset(&action.sa_mask);
    sigaltstack(&stack, NULL);
    for (int i = 0; i < 4; i++)
        sigaction(signals[i], &action, NULL);
    pthread_create(&sender, NULL, send_signals, &self);
    while (!sender_done) {
        uint64_t set = 1 << (SIGUSR1 - 1);
        CALL(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, 8, 0, 0);
    }
    pthread_join(sender, NULL);
    check(got > SENT / 8, "signals are sent to a thread whose calls are stopped");
    check(elsewhere == 0, "and are handled on its signal stack");
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, NULL);
    for (int i = 0; i < 4; i++)
        signal(signals[i], SIG_DFL);
}

/* 6. What is changed in code leaves the mapping of it whole: profilers and debuggers go by that. */
static void mappings_of_code(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], file[256], before[256] = "";
    int again = 0, files = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        char x;
        if (sscanf(line, "%*s r-%c%*s %*s %*s %*s %255s", &x, file) != 2 || x != 'x' ||
            file[0] != '/' || strstr(file, "overspill"))
            continue;
        again += strcmp(file, before) == 0;
        files++;
        strcpy(before, file);
    }
    check(files >= 2 && again == 0, "the code of each file is one mapping");
    if (maps)
        fclose(maps);
}

int main(void)
{
    mappings();
    handlers();
    children();
    calls_under_signals();
    sent_meanwhile();
    size_t pages = 32 * MIB / PAGE;
    char *block = malloc(pages * PAGE);
    fill(block, pages, 9);
    check(bad_pages(block, pages, 9) == 0, "the C library's heap is there too");
    free(block);
    mappings_of_code();
    return failures != 0;
}
