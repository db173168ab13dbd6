/* Signals whose handlers touch evicted memory, at a high rate, while the program they interrupt
   faults as well. */
#include "common.h"
#include <sys/time.h>
#include <time.h>

#define PAGES ((size_t)6000)
#define HANDLER_PAGES ((size_t)6000)
#define SIGNALS 400

static char *memory, *of_handler;
static atomic_int hits, depth;
static volatile sig_atomic_t wrong_stack;
static stack_t other_stack;

/* Counts in one page and looks at another that nobody writes: two faults when both are out. A
   handler that takes longer than the interval would keep the program from going on, and nest for
   ever: hence the two bounds. */
static void count(int signal)
{
    static const struct itimerval off;
    (void)signal;
    if (depth++ < 8) {
        uint64_t n = (uint64_t)hits++, page = mix(n) % HANDLER_PAGES, other = mix(n + 99) % 64;
        atomic_fetch_add((_Atomic uint64_t *)(of_handler + page * PAGE), 1);
        if (!page_is(memory + other * PAGE, 1 + other))
            _exit(97);
        if (n >= 4 * SIGNALS)
            setitimer(ITIMER_REAL, &off, NULL);
    }
    depth--;
}

static uint64_t counted(void)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < HANDLER_PAGES; i++)
        sum += *(uint64_t *)(of_handler + i * PAGE);
    return sum;
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(signal, &action, NULL);
}

/* Every quarter of a millisecond until the handler ran often enough; the program goes through its
   pages meanwhile. */
static void at_a_high_rate(int flags, const char *where)
{
    struct itimerval rate = {{0, 250}, {0, 250}}, off = {{0, 0}, {0, 0}};
    size_t bad = 0;
    hits = 0;
    memset(of_handler, 0, HANDLER_PAGES * PAGE);
    pressure(40);
    handle(SIGALRM, count, flags);
    setitimer(ITIMER_REAL, &rate, NULL);
    uint64_t seed = 1 + PAGES;
    fill(memory + 64 * PAGE, PAGES - 64, seed);
    for (int pass = 0; hits < SIGNALS || pass < 3; pass++) {
        bad += bad_pages(memory + 64 * PAGE, PAGES - 64, seed);
        fill(memory + 64 * PAGE, PAGES - 64, ++seed);
    }
    setitimer(ITIMER_REAL, &off, NULL);
    check(bad == 0, "timer signals, handler on %s: the program's pages are right", where);
    check(counted() == (uint64_t)hits, "and so are the handler's");
}

/* The signal is aimed at several threads that fault. */
static void *walk(void *argument)
{
    size_t *bad = argument;
    char *mine = map_pages(2000);
    fill(mine, 2000, 9);
    for (int pass = 0; hits < SIGNALS || pass < 2; pass++)
        *bad += bad_pages(mine, 2000, 9);
    munmap(mine, 2000 * PAGE);
    return NULL;
}

static atomic_ulong shots;

static void shot(int signal)
{
    (void)signal;
    size_t page = mix(atomic_fetch_add(&shots, 1)) % HANDLER_PAGES;
    atomic_fetch_add((_Atomic uint64_t *)(of_handler + page * PAGE), 1);
}

static void at_threads(void)
{
    pthread_t threads[4];
    size_t bad[4] = {0};
    memset(of_handler, 0, HANDLER_PAGES * PAGE);
    handle(SIGUSR1, shot, SA_RESTART);
    hits = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, walk, &bad[i]);
    for (int i = 0; i < SIGNALS * 2; i++) {
        pthread_kill(threads[i % 4], SIGUSR1);
        usleep(200);
    }
    hits = SIGNALS;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    check(bad[0] + bad[1] + bad[2] + bad[3] == 0, "signals at four threads: their pages are right");
    check(counted() == shots && shots > 0, "and so are the handler's");
}

static void on_other_stack(int signal)
{
    char here;
    count(signal);
    wrong_stack |= &here < (char *)other_stack.ss_sp ||
                   &here >= (char *)other_stack.ss_sp + other_stack.ss_size;
}

static void alternate_stack(void)
{
    /* From malloc, and evicted when the first signal comes. */
    other_stack.ss_size = 16 * 4096;
    other_stack.ss_sp = malloc(other_stack.ss_size);
    memset(other_stack.ss_sp, 0xaa, other_stack.ss_size);
    check(sigaltstack(&other_stack, NULL) == 0, "an alternate stack from malloc");
    struct itimerval once = {{0, 0}, {0, 1000}};
    hits = 0;
    memset(of_handler, 0, HANDLER_PAGES * PAGE);
    for (int i = 1; i <= 20; i++) {
        handle(SIGALRM, on_other_stack, SA_ONSTACK);
        pressure(24);
        setitimer(ITIMER_REAL, &once, NULL);
        while (hits < i)
            usleep(100);
    }
    check(counted() == 20 && !wrong_stack, "handlers run on it while it is evicted");
    /* A fault of the program itself, handled there. */
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = fault_handler;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    int caught = 0;
    for (int i = 0; i < 5; i++) {
        pressure(24);
        int signal = sigsetjmp(fault_return, 1);
        if (signal == 0)
            *(volatile char *)64 = 1;
        caught += signal == SIGSEGV;
    }
    check(caught == 5, "so does a handler of SIGSEGV");
    handle(SIGSEGV, SIG_DFL, 0);
    other_stack.ss_flags = SS_DISABLE;
    check(sigaltstack(&other_stack, NULL) == 0, "and it can be given back");
    free(other_stack.ss_sp);
}

/* Where the thread has none of its own the handler runs on its stack, as deep as that is, and may
   set one and take it away. */
static uintptr_t in_thread;
static atomic_int without;

static void on_threads_stack(int signal)
{
    char deep[512 << 10], own[16 << 10];
    stack_t set = {.ss_sp = own, .ss_size = sizeof own}, none = {.ss_flags = SS_DISABLE}, found;
    (void)signal;
    memset(deep, 1, sizeof deep);
    __asm__ volatile("" : : "r"(deep) : "memory");
    int set_right = sigaltstack(&set, NULL) == 0 && sigaltstack(NULL, &found) == 0 &&
                    found.ss_sp == own && sigaltstack(&none, NULL) == 0;
    without += set_right && in_thread - (uintptr_t)deep < MIB;
}

/* Left so often that all of our stack would be used up. */
static sigjmp_buf out_of_handler;

static void leave_handler(int signal)
{
    siglongjmp(out_of_handler, signal);
}

static void *without_stack(void *argument)
{
    char here;
    volatile int left = 0;
    handle(SIGALRM, leave_handler, SA_ONSTACK);
    if (sigsetjmp(out_of_handler, 1) == 0 || ++left < 500)
        raise(SIGALRM);
    in_thread = (uintptr_t)&here;
    for (int i = 0; i < 200; i++)
        raise(SIGUSR2);
    return argument;
}

static void no_alternate_stack(void)
{
    pthread_t thread;
    handle(SIGUSR2, on_threads_stack, SA_ONSTACK);
    pthread_create(&thread, NULL, without_stack, NULL);
    pthread_join(thread, NULL);
    check(without == 200, "a thread without an alternate stack handles signals on its own");
}

static void *write_late(void *argument)
{
    while (hits < 3)
        usleep(1000);
    return write(*(int *)argument, "late", 4) == 4 ? NULL : argument;
}

static void interrupted(void)
{
    int ends[2];
    char *buffer = heap_pages(1);
    pthread_t writer;
    struct itimerval rate = {{0, 2000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    if (pipe(ends) != 0)
        die("pipe");
    handle(SIGALRM, count, 0);
    hits = 0;
    pressure(40);
    setitimer(ITIMER_REAL, &rate, NULL);
    ssize_t n = read(ends[0], buffer, PAGE);
    int error = errno;
    check(n == -1 && error == EINTR, "a read that a signal interrupts: EINTR");
    setitimer(ITIMER_REAL, &off, NULL);
    /* The writer blocks the signal, so that it comes to the reader. */
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    handle(SIGALRM, count, SA_RESTART);
    hits = 0;
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    pthread_create(&writer, NULL, write_late, &ends[1]);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    setitimer(ITIMER_REAL, &rate, NULL);
    n = read(ends[0], buffer, PAGE);
    setitimer(ITIMER_REAL, &off, NULL);
    pthread_join(writer, NULL);
    check(n == 4 && memcmp(buffer, "late", 4) == 0 && hits >= 3,
          "with SA_RESTART it goes on and gets its data");
    free(buffer);
    close(ends[0]);
    close(ends[1]);

    struct timespec nap = {2, 0}, rest = {0, 0};
    handle(SIGALRM, count, 0);
    setitimer(ITIMER_REAL, &rate, NULL);
    n = nanosleep(&nap, &rest);
    error = errno;
    setitimer(ITIMER_REAL, &off, NULL);
    check(n == -1 && error == EINTR && (rest.tv_sec > 0 || rest.tv_nsec > 0),
          "a sleep that a signal interrupts: EINTR");
}

static void masks(void)
{
    sigset_t all, old, now;
    int blocked = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pressure(32);
    size_t bad = bad_pages(memory, 64, 1);
    sigprocmask(SIG_SETMASK, &old, &now);
    for (int s = 1; s < 32; s++)
        blocked += s != SIGKILL && s != SIGSTOP && sigismember(&now, s) == 1;
    check(bad == 0 && blocked == 29, "faults with all signals blocked: %d stay blocked", blocked);
    blocked = 0;
    for (int s = 1; s < 65; s++)
        blocked += sigismember(&old, s) == 1;
    check(blocked == 0, "a program starts with %d signals blocked", blocked);
}

int main(void)
{
    memory = map_pages(PAGES);
    of_handler = heap_pages(HANDLER_PAGES);
    fill(memory, 64, 1);
    masks();
    at_a_high_rate(0, "the same stack, interrupting calls");
    at_a_high_rate(SA_RESTART | SA_NODEFER, "the same stack, nested");
    at_threads();
    alternate_stack();
    no_alternate_stack();
    interrupted();
    return finish();
}
