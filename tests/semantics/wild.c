/*
 * Calls that are handed pointers to nothing fail as they do without overspill, with EFAULT mostly,
 * and the program goes on: each by its function and by its number. Left out are functions of the C
 * library's that read or write there themselves: these end the program. And a program's own faults
 * are its own.
 */
#include "common.h"
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

static const char *kind;
/* Whether there is nothing at all. */
static int nothing;
static int pairs[2], zero, null, epoll;
static aio_context_t context;
static char *plain;

/* Prints what a call has returned, to be compared. */
static void say(const char *what, long result)
{
    int error = errno;
    printf("     %s, %s: %ld %s\n", what, kind, result, result == -1 ? strerror(error) : "");
    fflush(stdout);
    errno = 0;
}

#define SAY(call) (errno = 0, say(#call, (long)(call)))

static int status_of(pid_t pid)
{
    return pid < 0 ? -1 : reap(pid);
}

/* Masks and other things that are read. */
static void masks(void *p)
{
    struct timespec none = {0, 0};
    struct epoll_event event;
    struct pollfd poll_fd = {pairs[0], 0, 0};
    SAY(sigsuspend(p));
    SAY(ppoll(&poll_fd, 1, &none, p));
    SAY(pselect(0, NULL, NULL, NULL, &none, p));
    SAY(epoll_pwait(epoll, &event, 1, 0, p));
    SAY(epoll_pwait2(epoll, &event, 1, &none, p));
    SAY(epoll_pwait2(epoll, &event, 1, p, NULL));
    SAY(epoll_pwait(-1, &event, 1, 0, p));
    SAY(syscall(SYS_rt_sigsuspend, p, 8));
    SAY(syscall(SYS_ppoll, &poll_fd, 1, &none, p, 8));
    SAY(syscall(SYS_ppoll, &poll_fd, 1, p, NULL, 8));
    SAY(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &none, p));
    SAY(syscall(SYS_epoll_pwait, epoll, &event, 1, 0, p, (size_t)8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, p, NULL, 8));
    SAY(syscall(SYS_rt_sigprocmask, 77, p, NULL, 8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, p, NULL, 9));
    SAY(syscall(SYS_rt_sigaction, SIGUSR1, p, NULL, 8));
    SAY(syscall(SYS_rt_sigtimedwait, p, NULL, &none, 8));
    SAY(setcontext((ucontext_t *)((char *)p - offsetof(ucontext_t, uc_sigmask))));
    SAY(sigaltstack(p, NULL));
    SAY(syscall(SYS_sigaltstack, p, NULL));
    SAY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SAY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, p, 0, 0));
    SAY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, p));
    struct sock_fprog filter = {4, p};
    SAY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0));
    SAY(syscall(SYS_clone3, p, sizeof(struct clone_args)));
    struct clone_args arguments = {
        .flags = CLONE_PIDFD, .exit_signal = SIGCHLD, .pidfd = (uintptr_t)p};
    if (nothing)
        SAY(syscall(SYS_clone3, &arguments, sizeof arguments));
}

/* Vectors and what they name. */
static void vectors(void *p)
{
    char text[64] = "text";
    struct iovec good = {text, 4}, bad = {p, 16}, managed[2] = {{plain, 16}, {p, 16}};
    struct iovec part = {p, 16};
    struct msghdr message = {.msg_iov = p, .msg_iovlen = 1},
                  named = {.msg_iov = &bad, .msg_iovlen = 1};
    struct msghdr address = {.msg_name = p, .msg_namelen = 16, .msg_iov = &good, .msg_iovlen = 1};
    struct msghdr control = {
        .msg_control = p, .msg_controllen = 32, .msg_iov = &good, .msg_iovlen = 1};
    struct mmsghdr many = {named, 0};
    SAY(readv(zero, p, 1));
    SAY(writev(pairs[0], p, 1));
    SAY(preadv(zero, p, 1, 0));
    SAY(pwritev(null, p, 1, 0));
    SAY(preadv2(zero, p, 1, 0, 0));
    SAY(pwritev2(null, p, 1, 0, 0));
    SAY(readv(zero, p, 1025));
    SAY(readv(zero, &bad, 1));
    SAY(writev(pairs[0], &bad, 1));
    SAY(readv(-1, p, 1));
    SAY(vmsplice(pairs[0], p, 1, 0));
    SAY(process_vm_readv(getpid(), p, 1, &good, 1, 0));
    SAY(process_vm_readv(getpid(), &good, 1, p, 1, 0));
    SAY(process_vm_readv(getpid(), &bad, 1, &good, 1, 0));
    SAY(process_vm_writev(getpid(), p, 1, &good, 1, 0));
    SAY(process_vm_writev(getpid(), &good, 1, p, 1, 0));
    SAY(process_vm_writev(getpid(), managed + 1, 1, &part, 1, 0));
    SAY(sendmsg(pairs[0], p, 0));
    SAY(recvmsg(pairs[1], p, MSG_DONTWAIT));
    SAY(sendmsg(pairs[0], &message, 0));
    SAY(sendmsg(pairs[0], &named, 0));
    SAY(sendmsg(pairs[0], &address, 0));
    SAY(sendmsg(pairs[0], &control, 0));
    SAY(sendmmsg(pairs[0], p, 1, 0));
    SAY(sendmmsg(pairs[0], &many, 1, 0));
    SAY(recvmmsg(pairs[1], p, 1, MSG_DONTWAIT, NULL));
    SAY(syscall(SYS_readv, zero, p, 1));
    SAY(syscall(SYS_writev, pairs[0], p, 1));
    SAY(syscall(SYS_sendmsg, pairs[0], p, 0));
    SAY(syscall(SYS_sendmmsg, pairs[0], p, 1, 0));
    SAY(syscall(SYS_recvmsg, pairs[1], p, MSG_DONTWAIT));
    SAY(syscall(SYS_process_vm_readv, getpid(), p, 1, &good, 1, 0));
    SAY(syscall(SYS_vmsplice, pairs[0], p, 1, 0));
    if (context) {
        struct iocb block, *blocks = p;
        SAY(syscall(SYS_io_submit, context, 1, p));
        SAY(syscall(SYS_io_submit, context, 1, &blocks));
        memset(&block, 0, sizeof block);
        block.aio_lio_opcode = IOCB_CMD_PREADV;
        block.aio_fildes = zero;
        block.aio_buf = (uintptr_t)p;
        block.aio_nbytes = 1;
        blocks = &block;
        SAY(syscall(SYS_io_submit, context, 1, &blocks));
    }
    /* A managed buffer among them. */
    memcpy(plain, &bad, sizeof bad);
    SAY(writev(pairs[0], (struct iovec *)plain, 1));
    memcpy(plain, &message, sizeof message);
    SAY(sendmsg(pairs[0], (struct msghdr *)plain, 0));
    SAY(accept(pairs[0], (struct sockaddr *)plain, p));
    SAY(getsockname(pairs[0], (struct sockaddr *)plain, p));
    SAY(getsockopt(pairs[0], SOL_SOCKET, SO_TYPE, plain, p));
    SAY(recvfrom(pairs[1], plain, 16, MSG_DONTWAIT, (struct sockaddr *)(plain + 64), p));
}

/* What is written. */
static void outputs(void *p)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    SAY(sigprocmask(SIG_BLOCK, NULL, p));
    SAY(sigprocmask(SIG_BLOCK, &one, p));
    SAY(sigprocmask(SIG_UNBLOCK, &one, NULL));
    SAY(pthread_sigmask(SIG_SETMASK, NULL, p));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, p, 8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &one, p, 8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &one, NULL, 8));
    SAY(sigpending(p));
    SAY(syscall(SYS_rt_sigpending, p, 8));
    SAY(syscall(SYS_rt_sigaction, SIGUSR1, NULL, p, 8));
    SAY(sigaltstack(NULL, p));
    SAY(poll(p, 1, 0));
    struct timeval at_once = {0, 0};
    SAY(select(1, p, NULL, NULL, &at_once));
    SAY(epoll_wait(epoll, p, 1, 0));
    SAY(getrandom(p, 16, 0));
    SAY(read(zero, p, 16));
    if (nothing)
        SAY(recv(pairs[1], p, 16, MSG_DONTWAIT));
    SAY(pipe(p));
    SAY(stat("/", p));
    SAY(wait4(-1, p, WNOHANG, NULL));
    SAY(syscall(SYS_mincore, plain, PAGE, p));
    SAY(getrlimit(RLIMIT_CORE, p));
}

/* What programs are executed with. */
static void executes(void *p)
{
    char *arguments[] = {"true", p, NULL}, *good[] = {"true", NULL};
    SAY(execve("/bin/true", p, environ));
    SAY(execve("/bin/true", good, p));
    SAY(execv("/bin/true", p));
    SAY(execvp("true", p));
    SAY(execvpe("true", good, p));
    SAY(execle("/bin/true", "true", NULL, p));
    SAY(fexecve(null, p, environ));
    SAY(syscall(SYS_execve, "/bin/true", p, environ));
    SAY(syscall(SYS_execveat, AT_FDCWD, "/bin/true", good, p, 0));
    pid_t pid = 0;
    SAY(posix_spawn(&pid, "/bin/true", NULL, NULL, good, p));
    if (nothing) {
        SAY(execve("/bin/true", arguments, environ));
        SAY(execve(p, good, environ));
        SAY(execl("/bin/true", "true", (char *)p, NULL));
        SAY(execlp("true", "true", (char *)p, NULL));
        SAY(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ));
        SAY(posix_spawn(&pid, p, NULL, NULL, good, environ));
        SAY(system(p) == 127 << 8);
    }
    char **before = environ;
    environ = p;
    SAY(posix_spawn(&pid, "/bin/true", NULL, NULL, good, before) || status_of(pid));
    environ = before;
    /* In the child of a vfork. */
    pid = vfork();
    if (pid == 0) {
        execve("/bin/true", p, environ);
        _exit(errno == EFAULT ? 7 : 8);
    }
    SAY(status_of(pid));
}

static volatile sig_atomic_t faults;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    faults++;
    printf("     a handler: %d %d\n", signal, info->si_code > 0);
    siglongjmp(fault_return, 1);
}

static void touch(void *p)
{
    if (sigsetjmp(fault_return, 1) == 0)
        *(volatile char *)p = 1;
}

/* The program's own faults, beside those of calls. */
static void own(void *p)
{
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    sigaction(SIGSEGV, NULL, &old);
    check(old.sa_handler == SIG_DFL && (faults || old.sa_flags == 0),
          "there is no handler for SIGSEGV");
    faults = 0;
    pid_t pid = fork_flushed();
    if (pid == 0) {
        SAY(readv(zero, p, 1));
        *(volatile char *)p = 1;
        _exit(1);
    }
    check(reap(pid) == 128 + SIGSEGV, "a fault ends a program");
    pid = fork_flushed();
    if (pid == 0) {
        kill(getpid(), SIGSEGV);
        _exit(1);
    }
    check(reap(pid) == 128 + SIGSEGV, "and so does a signal that is sent");
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    sigaction(SIGSEGV, &action, NULL);
    SAY(readv(zero, p, 1));
    SAY(sigprocmask(SIG_BLOCK, NULL, p));
    sigaction(SIGSEGV, NULL, &old);
    check(old.sa_sigaction == on_fault &&
              (old.sa_flags & ~0x04000000) == (int)(SA_SIGINFO | SA_RESETHAND),
          "calls do not use up a handler");
    touch(p);
    sigaction(SIGSEGV, NULL, &old);
    check(faults == 1 && old.sa_handler == SIG_DFL, "a fault does");
    check(signal(SIGSEGV, (void (*)(int))(void *)on_fault) == SIG_DFL, "signal sets it");
    check(signal(SIGSEGV, SIG_IGN) == (void (*)(int))(void *)on_fault, "and reports it");
    check(signal(SIGSEGV, SIG_DFL) == SIG_IGN, "and what is ignored");
    pid = fork_flushed();
    if (pid == 0) {
        signal(SIGSEGV, SIG_IGN);
        raise(SIGSEGV);
        *(volatile char *)p = 1;
        _exit(1);
    }
    check(reap(pid) == 128 + SIGSEGV, "a fault that is ignored ends a program");
    static char stack[64 << 10];
    stack_t own_stack = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&own_stack, NULL);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0; i < 3; i++) {
        touch(p);
        SAY(writev(pairs[0], p, 1));
    }
    check(faults == 4, "faults on a signal stack");
    own_stack.ss_flags = SS_DISABLE;
    sigaltstack(&own_stack, NULL);
    signal(SIGSEGV, SIG_DFL);
}

/* Two pages and more, the second of which is not as it should be. What is shared is not managed; it
   has a place of its own, where nobody puts anything when it is unmapped. */
static char *region(int flags, int prot)
{
    static char *next = (char *)(16UL << 32);
    char *place = flags & MAP_SHARED ? next += MIB : NULL;
    char *p = mmap(place, 4 * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    memset(p, 0, PAGE);
    mprotect(p + PAGE, PAGE, prot);
    return p;
}

static void all(const char *name, void *p)
{
    kind = name;
    nothing = strncmp(name, "at the end", 10) != 0;
    pressure(24);
    masks(p);
    vectors(p);
    outputs(p);
    executes(p);
}

int main(void)
{
    plain = map_pages(2);
    memset(plain, 0, 2 * PAGE);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pairs) != 0)
        die("socketpair");
    zero = open("/dev/zero", O_RDONLY);
    null = open("/dev/null", O_RDWR);
    epoll = epoll_create1(0);
    syscall(SYS_io_setup, 1, &context);
    char *managed = region(MAP_PRIVATE, PROT_NONE), *shared = region(MAP_SHARED, PROT_NONE);
    all("one", (void *)1);
    all("of the kernel", (void *)-4096L);
    all("no access", managed + PAGE);
    all("no access, unmanaged", shared + PAGE);
    all("at the end", managed + PAGE - 4);
    all("at the end, unmanaged", shared + PAGE - 4);
    munmap(managed + PAGE, PAGE);
    munmap(shared + PAGE, PAGE);
    all("unmapped", managed + PAGE);
    all("unmapped, unmanaged", shared + PAGE);
    nothing = 0;
    kind = "read-only";
    outputs(region(MAP_PRIVATE, PROT_READ) + PAGE);
    kind = "read-only, unmanaged";
    outputs(region(MAP_SHARED, PROT_READ) + PAGE);
    own(managed + PAGE);
    own((void *)1);
    /* What ends at the end of memory is all there. */
    sigset_t *set = (sigset_t *)(managed + PAGE - 8);
    struct timespec none = {0, 0};
    kind = "the kernel's part of a set";
    SAY(ppoll(NULL, 0, &none, set));
    SAY(pselect(0, NULL, NULL, NULL, &none, set));
    struct iovec *vector = (struct iovec *)(managed + PAGE - sizeof *vector);
    *vector = (struct iovec){managed, 16};
    SAY(readv(zero, vector, 1));
    return finish();
}
