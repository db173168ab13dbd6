/* The interfaces of System V and BSD for signals: what they set, what they return, and that memory
   comes back in their handlers. */
#include "common.h"
#include <sys/time.h>

#define PAGES ((size_t)256)

int __sigpause(int signal_or_mask, int is_signal);

static char *memory;
static volatile sig_atomic_t calls, others;

static void first(int signal)
{
    (void)signal;
    calls++;
}

static void second(int signal)
{
    (void)signal;
    if (bad_pages(memory, PAGES, 1) == 0)
        others++;
}

static int flags_of(int signal)
{
    struct sigaction action;
    sigaction(signal, NULL, &action);
    return action.sa_flags & ~0x04000000; /* SA_RESTORER */
}

static void handlers(int number, const char *name)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = first;
    sigaction(number, &action, NULL);
    calls = others = 0;
    check(sigset(number, SIG_DFL) == first, "sigset of %s returns what sigaction has set", name);
    check(sigset(number, second) == SIG_DFL, "and the default");
    pressure(40);
    raise(number);
    check(others == 1 && calls == 0, "its handler is called, and sees memory");
    check(sigset(number, SIG_HOLD) == second, "sigset holds it");
    raise(number);
    check(others == 1, "it waits");
    check(sigset(number, first) == SIG_HOLD && calls == 1, "and comes to the next handler");
    check(sighold(number) == 0 && raise(number) == 0 && calls == 1, "sighold");
    check(sigrelse(number) == 0 && calls == 2, "sigrelse");
    check(siginterrupt(number, 0) == 0 && flags_of(number) == SA_RESTART, "siginterrupt, off");
    check(siginterrupt(number, 1) == 0 && flags_of(number) == 0, "siginterrupt, on");
    raise(number);
    check(calls == 3, "the handler has stayed");
    check(sigignore(number) == 0 && raise(number) == 0, "sigignore");
    check(signal(number, SIG_DFL) == SIG_IGN, "which signal sees");
    pressure(40);
    check(bad_pages(memory, PAGES, 1) == 0, "memory is as it was");
}

static void pauses(void)
{
    struct itimerval soon = {{0, 0}, {0, 20000}};
    sigset_t all, before, after;
    sigset(SIGALRM, second);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    for (int way = 0; way < 3; way++) {
        others = 0;
        pressure(40);
        setitimer(ITIMER_REAL, &soon, NULL);
        int result = way == 0   ? sigpause(SIGALRM)
                     : way == 1 ? __sigpause(SIGALRM, 1)
                                : __sigpause((int)~(1u << (SIGALRM - 1)), 0);
        check(result == -1 && errno == EINTR && others == 1, "sigpause, way %d", way);
    }
    sigprocmask(SIG_SETMASK, &before, &after);
    check(sigismember(&after, SIGBUS) == 1 && sigismember(&after, SIGALRM) == 1,
          "the mask is as it was");
}

static void errors(void)
{
    check(sigset(1000, SIG_DFL) == SIG_ERR && errno == EINVAL, "sigset of no signal: EINVAL");
    check(sigset(SIGKILL, SIG_DFL) == SIG_ERR && errno == EINVAL, "sigset of SIGKILL: EINVAL");
    check(sigignore(SIGKILL) == -1 && errno == EINVAL, "sigignore of SIGKILL: EINVAL");
    check(siginterrupt(1000, 1) == -1 && errno == EINVAL, "siginterrupt of no signal: EINVAL");
    check(sigpause(1000) == -1 && errno == EINVAL, "sigpause of no signal: EINVAL");
}

int main(void)
{
    memory = map_pages(PAGES);
    fill(memory, PAGES, 1);
    pressure(40);
    handlers(SIGUSR1, "SIGUSR1");
    handlers(SIGSEGV, "SIGSEGV");
    handlers(SIGBUS, "SIGBUS");
    handlers(SIGSYS, "SIGSYS");
    pauses();
    errors();
    return finish();
}
