/* Signals by syscall(2), as Chromium has them reset between fork and execve: actions, signal stacks
   and masks of calls that wait. Memory is evicted in between. */
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

enum { MEMORY_PAGES = 64 };
static char *memory;

/* The kernel's structure. */
struct action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static void evict(void)
{
    push_out(memory, MEMORY_PAGES * PAGE);
}

static int is_right(void)
{
    return bad_pages(memory, MEMORY_PAGES, 1) == 0;
}

static volatile sig_atomic_t hits, was_right;

static void look(int signal)
{
    (void)signal;
    was_right = is_right();
    hits++;
}

/* Signals have their default actions again, as between fork and execve. */
static void reset(void)
{
    pid_t child;
    int status;
    evict();
    child = fork();
    if (child == 0) {
        struct action action;
        for (int number = 1; number < 65; number++) {
            if (number == SIGKILL || number == SIGSTOP)
                continue;
            memset(&action, 0, sizeof action);
            if (syscall(SYS_rt_sigaction, number, NULL, &action, 8) != 0)
                _exit(90);
            action.handler = SIG_DFL;
            if (syscall(SYS_rt_sigaction, number, &action, NULL, 8) != 0)
                _exit(91);
        }
        _exit(is_right() ? 5 : 92);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        die("fork");
    check(status == 5 << 8, "a child that resets all signals");
}

/* What the program has set for SIGBUS is what it reads, and what happens. */
static void actions(void)
{
    struct action action = {(void *)look, 0, NULL, 0}, before;
    struct sigaction c;
    if (sigaction(SIGUSR1, NULL, &c) != 0 || signal(SIGBUS, look) != SIG_DFL)
        die("signal");
    /* With the restorer of the C library's. */
    check(syscall(SYS_rt_sigaction, SIGBUS, NULL, &before, 8) == 0 && before.handler == look,
          "it reads the handler of SIGBUS");
    action = before;
    action.flags |= SA_RESETHAND;
    check(syscall(SYS_rt_sigaction, SIGBUS, &action, &before, 8) == 0 && before.handler == look,
          "it sets one");
    hits = 0;
    evict();
    raise(SIGBUS);
    check(hits == 1 && was_right, "which runs");
    check(sigaction(SIGBUS, NULL, &c) == 0 && c.sa_handler == SIG_DFL, "once");
    evict();
    check(is_right(), "memory is there afterwards");
    check(syscall(SYS_rt_sigaction, SIGBUS, &action, NULL, 4) == -1 && errno == EINVAL,
          "a mask of another size");
    check(syscall(SYS_rt_sigaction, SIGKILL, &action, NULL, 8) == -1 && errno == EINVAL,
          "SIGKILL has none");
    check(syscall(SYS_rt_sigaction, SIGBUS, (void *)8, NULL, 8) == -1 && errno == EFAULT,
          "a wrong pointer");
}

static void on_stack(int signal)
{
    char here;
    stack_t now;
    (void)signal;
    was_right = is_right() && syscall(SYS_sigaltstack, NULL, &now) == 0 &&
                now.ss_flags == SS_ONSTACK && &here > (char *)now.ss_sp &&
                &here < (char *)now.ss_sp + now.ss_size;
    hits++;
}

static void stacks(void)
{
    stack_t mine = {malloc(64 << 10), 0, 64 << 10}, before, none = {NULL, SS_DISABLE, 0};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stack;
    action.sa_flags = SA_ONSTACK;
    check(syscall(SYS_sigaltstack, &mine, &before) == 0 && before.ss_flags == SS_DISABLE,
          "there was no signal stack");
    check(syscall(SYS_sigaltstack, NULL, &before) == 0 && before.ss_sp == mine.ss_sp &&
              before.ss_size == mine.ss_size && before.ss_flags == 0,
          "it reads as it was set");
    sigaction(SIGUSR1, &action, NULL);
    hits = 0;
    push_out(mine.ss_sp, mine.ss_size);
    evict();
    raise(SIGUSR1);
    check(hits == 1 && was_right, "a handler runs on it");
    evict();
    check(is_right(), "memory is there with it");
    check(syscall(SYS_sigaltstack, &none, NULL) == 0, "it is given up");
    evict();
    check(is_right(), "and afterwards");
    free(mine.ss_sp);
}

/* A child interrupts calls that wait with all signals blocked but one. */
static void interrupted(const char *name, long (*wait)(uint64_t *mask))
{
    uint64_t mask = ~(1ULL << (SIGUSR1 - 1));
    sigset_t blocked, before;
    pid_t child, parent = getpid();
    long result;
    int error;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    signal(SIGUSR1, look);
    child = fork();
    if (child == 0) {
        usleep(20000);
        kill(parent, SIGUSR1);
        _exit(0);
    }
    hits = was_right = 0;
    evict();
    result = wait(&mask);
    error = errno;
    check(result == -1 && error == EINTR && hits == 1 && was_right, "%s", name);
    waitpid(child, NULL, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    evict();
    check(is_right(), "memory is there after it");
}

static const struct timespec LONG = {20, 0};

static long suspend(uint64_t *mask)
{
    return syscall(SYS_rt_sigsuspend, mask, 8);
}

static long poll_(uint64_t *mask)
{
    struct timespec time = LONG;
    return syscall(SYS_ppoll, NULL, 0, &time, mask, 8);
}

static long select_(uint64_t *mask)
{
    struct timespec time = LONG;
    struct {
        uint64_t *mask;
        size_t len;
    } set = {mask, 8};
    return syscall(SYS_pselect6, 0, NULL, NULL, NULL, &time, &set);
}

static long epoll_(uint64_t *mask)
{
    struct epoll_event event;
    int epoll = epoll_create1(0), error;
    long result = syscall(SYS_epoll_pwait, epoll, &event, 1, 20000, mask, 8);
    error = errno;
    close(epoll);
    errno = error;
    return result;
}

static long epoll2(uint64_t *mask)
{
    struct timespec time = LONG;
    struct epoll_event event;
    int epoll = epoll_create1(0), error;
    long result = syscall(SYS_epoll_pwait2, epoll, &event, 1, &time, mask, 8);
    error = errno;
    close(epoll);
    errno = error;
    return result;
}

int main(void)
{
    be_managed();
    memory = map_pages(MEMORY_PAGES);
    fill(memory, MEMORY_PAGES, 1);
    reset();
    actions();
    stacks();
    interrupted("rt_sigsuspend", suspend);
    interrupted("ppoll", poll_);
    interrupted("pselect6", select_);
    interrupted("epoll_pwait", epoll_);
    interrupted("epoll_pwait2", epoll2);
    return finish();
}
