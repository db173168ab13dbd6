/* A C library that cancels threads makes the calls that wait by one instruction of its own, and its
   handler looks whether that has been interrupted: glibc from 2.41 on and musl do so. The same
   here, with arguments that are out, by SIGUSR1 and siglongjmp. */
#include "common.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#define ROUNDS 10

/* In the order of syscall(2). As the C library's it ends with a return right behind the call. */
long bridge(long number, long a, long b, long c, long d, long e, long f);
__asm__(".text\n"
        ".globl bridge, bridge_start, bridge_end\n"
        ".type bridge, @function\n"
        "bridge:\n"
        ".cfi_startproc\n"
        "bridge_start:\n"
        "mov %rdi, %rax\n"
        "mov %rsi, %rdi\n"
        "mov %rdx, %rsi\n"
        "mov %rcx, %rdx\n"
        "mov %r8, %r10\n"
        "mov %r9, %r8\n"
        "mov 8(%rsp), %r9\n"
        "syscall\n"
        "bridge_end:\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size bridge, .-bridge\n");
extern char bridge_start[], bridge_end[];

static __thread sigjmp_buf left;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    char *at = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)signal;
    (void)info;
    if (at >= bridge_start && at < bridge_end)
        siglongjmp(left, 1);
}

struct waits {
    const char *name;
    long arguments[7];
};

static void *wait_for_ever(void *argument)
{
    long *a = ((struct waits *)argument)->arguments;
    if (sigsetjmp(left, 1) != 0)
        return &left;
    bridge(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    return NULL;
}

/* A signal that comes before the thread waits is followed by another. */
static void leaves(struct waits *waits)
{
    int times = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        void *result = NULL;
        struct timespec end;
        evict_all();
        pthread_create(&thread, NULL, wait_for_ever, waits);
        for (int n = 0; n < 10; n++) {
            usleep(5000);
            pthread_kill(thread, SIGUSR1);
            clock_gettime(CLOCK_REALTIME, &end);
            end.tv_sec++;
            if (pthread_timedjoin_np(thread, &result, &end) == 0)
                break;
        }
        times += result != NULL;
        if (!result)
            break;
    }
    check(times == ROUNDS, "%s: a signal finds it in the program's own call", waits->name);
}

/* What was waited for comes, and the call goes on. */
static void ends_well(int *ends, struct pollfd *poll, char *buffer)
{
    int wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        poll->fd = ends[0];
        poll->revents = 0;
        memset(buffer, 0, PAGE);
        evict_all();
        wrong += write(ends[1], "some", 4) != 4;
        wrong += bridge(SYS_poll, (long)poll, 1, -1, 0, 0, 0) != 1 || poll->revents != POLLIN;
        evict_all();
        wrong += bridge(SYS_read, ends[0], (long)buffer, 100, 0, 0, 0) != 4;
        wrong += strcmp(buffer, "some") != 0;
        wrong += bridge(SYS_read, -1, (long)buffer, 100, 0, 0, 0) != -EBADF;
    }
    check(wrong == 0, "%d calls go on there: %d wrong", ROUNDS, wrong);
}

int main(void)
{
    struct all {
        char gap[PAGE];
        struct pollfd poll;
        char gap2[PAGE];
        struct msghdr message;
        struct iovec part;
        char gap3[PAGE];
        int word, status;
        char buffer[PAGE];
    } *all = malloc(sizeof *all);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    int ends[2], pair[2];
    if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        die("pipe");
    sigaction(SIGUSR1, &action, NULL);
    memset(all, 0, sizeof *all);
    all->poll = (struct pollfd){.fd = ends[0], .events = POLLIN};
    all->part = (struct iovec){all->buffer, 100};
    all->message = (struct msghdr){.msg_iov = &all->part, .msg_iovlen = 1};
    pid_t pid = fork_flushed();
    if (pid == 0)
        for (;;)
            pause();
    struct waits waits[] = {
        {"read", {SYS_read, ends[0], (long)all->buffer, 100}},
        {"recvmsg", {SYS_recvmsg, pair[0], (long)&all->message, 0}},
        {"wait4", {SYS_wait4, pid, (long)&all->status, 0, 0}},
        {"futex", {SYS_futex, (long)&all->word, 128, 0, 0}},
    };
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        leaves(&waits[i]);
    kill(pid, SIGKILL);
    reap(pid);
    /* Who waits still would take what comes. */
    if (!failures)
        ends_well(ends, &all->poll, all->buffer);
    return finish();
}
