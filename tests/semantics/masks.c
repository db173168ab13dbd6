/* Masks that hold SIGBUS and SIGSYS: they read back as they were set, are inherited, saved and
   restored, and mean what they mean; and signal stacks that are left by jumps. Memory is evicted in
   between. */
/* What it executes asks the kernel, which knows the masks of a process without an engine. */
#define STAY_SMALL
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { MEMORY_PAGES = 64 };
static char *memory;
/* The stack of signals, where there is one. */
static stack_t other;
static const int signals[] = {SIGBUS, SIGSYS, SIGUSR1};

/* What comes back after it was out that should not. */
static size_t evicted(void)
{
    push_out(memory, MEMORY_PAGES * PAGE);
    push_out(other.ss_sp, other.ss_size);
    return bad_pages(memory, MEMORY_PAGES, 1);
}

static sigset_t set_of(int count)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < count; i++)
        sigaddset(&set, signals[i]);
    return set;
}

/* Which of SIGBUS, SIGSYS, SIGUSR1 a set has, as digits. */
static int members(const sigset_t *set)
{
    return sigismember(set, SIGBUS) * 100 + sigismember(set, SIGSYS) * 10 +
           sigismember(set, SIGUSR1);
}

static int blocked(void)
{
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    return members(&now);
}

static void nothing(int signal)
{
    (void)signal;
}

static volatile sig_atomic_t in_context, in_handler, hits;

static void look(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    in_context = members(&((ucontext_t *)context)->uc_sigmask);
    in_handler = blocked();
    hits++;
}

static void change(int signal, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    (void)signal;
    (void)info;
    sigaddset(&uc->uc_sigmask, SIGBUS);
    sigdelset(&uc->uc_sigmask, SIGSYS);
    if (!page_is(memory, 1))
        _exit(96);
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags, int mask)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    action.sa_mask = set_of(mask);
    sigaction(signal, &action, NULL);
}

static void *in_thread(void *argument)
{
    *(int *)argument = blocked();
    return NULL;
}

static void read_back(void)
{
    sigset_t three = set_of(3), two = set_of(2), none = set_of(0), old;
    check(blocked() == 0, "a program starts with none of them blocked");
    sigprocmask(SIG_BLOCK, &three, &old);
    check(members(&old) == 0 && blocked() == 111, "blocked, they are reported");
    pressure(24);
    check(evicted() == 0, "and evicted memory comes back");
    sigprocmask(SIG_UNBLOCK, &two, &old);
    check(members(&old) == 111 && blocked() == 1, "two unblocked");
    pthread_sigmask(SIG_SETMASK, &two, &old);
    check(members(&old) == 1 && blocked() == 110, "by pthread_sigmask");
    errno = 0;
    check(sigprocmask(77, &none, &old) == -1 && errno == EINVAL && blocked() == 110,
          "a mistake changes nothing");
    check(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &three, &old, 8) == 0 && members(&old) == 110 &&
              blocked() == 111,
          "by number");

    pthread_t thread;
    int found = -1;
    pthread_create(&thread, NULL, in_thread, &found);
    pthread_join(thread, NULL);
    check(found == 111, "a thread inherits them");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    check(pthread_attr_setsigmask_np(&attributes, &two) == 0, "attributes of a thread");
    pthread_create(&thread, &attributes, in_thread, &found);
    pthread_join(thread, NULL);
    check(found == 110 && blocked() == 111, "say what it starts with");
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(evicted() == 0 ? blocked() : 1);
    check(reap(pid) == 111, "a child of fork has them blocked");
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static ucontext_t here, there;

static void on_context(void)
{
    printf("     a context starts with %d\n", blocked());
    sigset_t none = set_of(0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    swapcontext(&there, &here);
}

static void jumps(void)
{
    static sigjmp_buf back;
    static char stack[64 << 10];
    sigset_t three = set_of(3), none = set_of(0);
    sigprocmask(SIG_SETMASK, &three, NULL);
    if (sigsetjmp(back, 1) == 0) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        siglongjmp(back, 1);
    }
    check(blocked() == 111, "siglongjmp restores them");
    getcontext(&there);
    check(members(&there.uc_sigmask) == 111, "getcontext reports them");
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    there.uc_link = NULL;
    there.uc_sigmask = set_of(2);
    makecontext(&there, on_context, 0);
    swapcontext(&here, &there);
    check(blocked() == 111, "swapcontext restores them");
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void in_handlers(void)
{
    sigset_t two = set_of(2), none = set_of(0);
    struct sigaction action;
    sigprocmask(SIG_SETMASK, &two, NULL);
    handle(SIGUSR2, look, 0, 3);
    raise(SIGUSR2);
    check(in_context == 110 && in_handler == 111, "a handler's context and its own mask");
    sigaction(SIGUSR2, NULL, &action);
    check(action.sa_sigaction == look && (action.sa_flags & ~0x04000000) == SA_SIGINFO &&
              members(&action.sa_mask) == 111,
          "its action reads back");
    handle(SIGUSR2, change, 0, 0);
    raise(SIGUSR2);
    check(blocked() == 100, "a handler changes the mask that it returns to");
    sigprocmask(SIG_SETMASK, &none, NULL);
    check(signal(SIGUSR2, nothing) == (sighandler_t)(void *)change,
          "signal reports the handler before");
    sigaction(SIGUSR2, NULL, &action);
    check(action.sa_handler == nothing && (action.sa_flags & SA_SIGINFO) == 0, "and sets one");
    signal(SIGUSR2, SIG_DFL);
    sigaction(SIGUSR2, NULL, &action);
    check(action.sa_handler == SIG_DFL, "and takes it away");
    handle(SIGBUS, look, SA_RESETHAND, 0);
    raise(SIGBUS);
    check(in_context == 0 && in_handler == 100, "SIGBUS is blocked in its handler");
    sigaction(SIGBUS, NULL, &action);
    check(action.sa_handler == SIG_DFL, "which is called once with SA_RESETHAND");
    handle(SIGBUS, look, SA_NODEFER, 3);
    raise(SIGBUS);
    check(in_handler == 111, "and blocks what it says");
}

static void sent(void)
{
    sigset_t two = set_of(2), none = set_of(0), waiting;
    handle(SIGBUS, look, 0, 0);
    handle(SIGSYS, look, 0, 0);
    sigprocmask(SIG_SETMASK, &two, NULL);
    hits = 0;
    kill(getpid(), SIGBUS);
    raise(SIGSYS);
    pressure(24);
    size_t bad = evicted();
    sigpending(&waiting);
    check(bad == 0 && hits == 0 && members(&waiting) == 110,
          "sent while they are blocked, they wait");
    sigprocmask(SIG_SETMASK, &none, NULL);
    check(hits == 2, "until they are unblocked");
    sigpending(&waiting);
    check(members(&waiting) == 0, "and no longer");
    raise(SIGBUS);
    check(hits == 3, "others come at once");

    /* A fault of its own ends a program that has it blocked, whatever its handler. */
    char name[] = "semantics-mask-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    volatile char *beyond = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &two, NULL);
        _exit(*beyond);
    }
    check(reap(pid) == 128 + SIGBUS, "a fault while SIGBUS is blocked");
    signal(SIGBUS, SIG_DFL);
    signal(SIGSYS, SIG_DFL);
    close(file);
}

static volatile sig_atomic_t alarms;

static void alarmed(int signal)
{
    (void)signal;
    alarms++;
}

static void *ping(void *argument)
{
    (void)argument;
    for (int i = 0; i < 6; i++) {
        usleep(30000);
        kill(getpid(), SIGUSR2);
    }
    return NULL;
}

/* Calls that wait with a mask of their own. */
static void waits(void)
{
    sigset_t all, two = set_of(2), usr2;
    sigfillset(&all);
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    struct timespec nap = {0, 20000000}, most = {5, 0};
    struct epoll_event event;
    int epoll = epoll_create1(0);
    evicted();
    check(ppoll(NULL, 0, &nap, &all) == 0, "ppoll with all blocked");
    check(pselect(0, NULL, NULL, NULL, &nap, &all) == 0, "pselect with all blocked");
    check(epoll_pwait(epoll, &event, 1, 20, &all) == 0, "epoll_pwait with all blocked");
    signal(SIGUSR2, alarmed);
    pthread_t thread;
    sigaddset(&two, SIGUSR2);
    sigprocmask(SIG_SETMASK, &two, NULL);
    pthread_create(&thread, NULL, ping, NULL);
    two = set_of(2);
    int ends = 0;
    ends += ppoll(NULL, 0, &most, &two) == -1 && errno == EINTR;
    ends += pselect(0, NULL, NULL, NULL, &most, &two) == -1 && errno == EINTR;
    ends += epoll_pwait(epoll, &event, 1, 5000, &two) == -1 && errno == EINTR;
    ends += sigsuspend(&two) == -1 && errno == EINTR;
    check(ends == 4 && alarms >= 4 && blocked() == 110,
          "a signal ends each, and the mask is as before");
    pthread_join(thread, NULL);
    int found;
    struct timespec soon = {1, 0};
    sigprocmask(SIG_BLOCK, &usr2, NULL);
    kill(getpid(), SIGUSR2);
    found = sigtimedwait(&usr2, NULL, &soon);
    check(found == SIGUSR2, "sigtimedwait");
    sigemptyset(&two);
    sigprocmask(SIG_SETMASK, &two, NULL);
    close(epoll);
}

static sigjmp_buf out;
static volatile sig_atomic_t beside;

static void jump_out(int signal)
{
    char here_now;
    beside |= &here_now < (char *)other.ss_sp || &here_now >= (char *)other.ss_sp + other.ss_size;
    if (!page_is(memory + PAGE, 2))
        _exit(95);
    siglongjmp(out, signal);
}

static void nested(int signal)
{
    char here_now;
    stack_t now;
    beside |= &here_now < (char *)other.ss_sp || &here_now >= (char *)other.ss_sp + other.ss_size;
    sigaltstack(NULL, &now);
    beside |=
        now.ss_sp != other.ss_sp || now.ss_size != other.ss_size || now.ss_flags != SS_ONSTACK;
    beside |= sigaltstack(&other, NULL) != -1 || errno != EPERM;
    if (++hits < 6) {
        size_t bad = hits & 1 ? evicted() : 0;
        raise(signal);
        beside |= bad != 0;
    }
}

static void stacks(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    other.ss_size = 1 << 18;
    other.ss_sp = malloc(other.ss_size);
    sigaltstack(&other, NULL);
    action.sa_flags = SA_ONSTACK;
    action.sa_handler = jump_out;
    sigaction(SIGUSR2, &action, NULL);
    volatile int jumped = 0;
    for (volatile int i = 0; i < 200; i++) {
        if (i % 50 == 0)
            evicted();
        if (sigsetjmp(out, 1) == 0)
            raise(SIGUSR2);
        else
            jumped++;
    }
    check(jumped == 200 && !beside, "%d jumps out of handlers on a signal stack", jumped);
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    action.sa_handler = nested;
    sigaction(SIGUSR2, &action, NULL);
    for (int i = 0; i < 20; i++) {
        hits = 0;
        raise(SIGUSR2);
    }
    check(hits == 6 && !beside, "handlers nest there");
    other.ss_flags = SS_DISABLE;
    sigaltstack(&other, NULL);
    free(other.ss_sp);
    other = (stack_t){0};
}

/* What the kernel has for a process of no other memory than its own: this program, started without
   an environment. */
static unsigned long long kernels(void)
{
    char text[4096], *at;
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t len = read(file, text, sizeof text - 1);
    text[len > 0 ? len : 0] = 0;
    at = strstr(text, "SigBlk:");
    return at ? strtoull(at + 7, NULL, 16) : ~0ULL;
}

static void executes(const char *self)
{
    sigset_t three = set_of(3), none = set_of(0);
    char *plain[] = {(char *)self, "kernel", NULL}, *again[] = {(char *)self, "mask", NULL},
         *empty[] = {NULL};
    sigprocmask(SIG_SETMASK, &three, NULL);
    for (int way = 0; way < 5; way++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            evicted();
            if (way == 0)
                execve(self, plain, empty);
            else if (way == 1)
                execve(self, again, environ);
            else if (way == 2)
                execv(self, again);
            else if (way == 3)
                execvp(self, again);
            else {
                execve("/none/such", plain, empty);
                _exit(evicted() == 0 && blocked() == 111 && errno == ENOENT ? 111 : 1);
            }
            _exit(2);
        }
        check(reap(pid) == 111, "what is executed in way %d starts with them blocked", way);
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "kernel") == 0)
        return kernels() == (1ULL << (SIGBUS - 1) | 1ULL << (SIGSYS - 1) | 1ULL << (SIGUSR1 - 1))
                   ? 111
                   : 3;
    if (count > 1)
        return blocked();
    be_managed();
    memory = map_pages(MEMORY_PAGES);
    fill(memory, MEMORY_PAGES, 1);
    read_back();
    jumps();
    in_handlers();
    sent();
    waits();
    stacks();
    executes(arguments[0]);
    return finish();
}
