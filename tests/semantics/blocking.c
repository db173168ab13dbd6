/* Calls that wait, with buffers that are out: interrupted, restarted, left, cancelled; and nothing
   is lost on the way. */
#include "common.h"
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#define ROUNDS 60
#define DATAGRAM 3000

static int ends[2];
static sigjmp_buf left;
static volatile sig_atomic_t handled, leaves, feeds;

static void on_alarm(int signal)
{
    (void)signal;
    handled++;
    if (feeds && write(ends[1], "fed", 4) != 4)
        _exit(96);
    if (leaves)
        siglongjmp(left, 1);
}

static void alarm_in_ms(long ms)
{
    struct itimerval soon = {{0, 0}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void interruptions(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    char *buffer = map_pages(4);
    if (pipe(ends) != 0)
        die("pipe");
    sigaction(SIGALRM, &action, NULL);
    fill(buffer, 4, 1);
    evict_all();
    alarm_in_ms(20);
    ssize_t got = read(ends[0], buffer, 4 * PAGE);
    check(got == -1 && errno == EINTR && handled == 1,
          "a read into evicted memory is interrupted: %d", errno);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    feeds = 1;
    evict_all();
    alarm_in_ms(20);
    got = read(ends[0], buffer + 100, PAGE);
    check(got == 4 && strcmp(buffer + 100, "fed") == 0, "with SA_RESTART it goes on: %zd bytes",
          got);
    feeds = 0;
    leaves = 1;
    int times = 0;
    for (int i = 0; i < 200; i++) {
        if (sigsetjmp(left, 1) == 0) {
            alarm_in_ms(1);
            got = read(ends[0], buffer, PAGE);
            check(0, "a read that should have been left: %zd", got);
        } else
            times++;
    }
    check(times == 200 && handled == 202, "%d reads are left by siglongjmp", times);
    leaves = 0;
    memset(buffer, 0, PAGE);
    if (write(ends[1], "after", 6) != 6)
        die("write");
    got = read(ends[0], buffer, PAGE);
    check(got == 6 && strcmp(buffer, "after") == 0, "and reads work afterwards");
    munmap(buffer, 4 * PAGE);
}

static void *read_for_ever(void *argument)
{
    char *buffer = argument;
    pthread_cleanup_push(free, buffer);
    while (read(ends[0], buffer, PAGE) >= 0)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancellations(void)
{
    int cancelled = 0;
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        void *result = NULL;
        pthread_create(&thread, NULL, read_for_ever, malloc(PAGE));
        usleep(5000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    check(cancelled == 10, "%d threads are cancelled in a read", cancelled);
}

/* Datagrams, each received into memory that was pushed out before: none may be lost or cut. */
static void datagrams(void)
{
    int pair[2], wrong = 0;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        die("socketpair");
    for (int n = 0; n < ROUNDS; n++) {
        char *out = map_pages(2), *in = map_pages(2), *more = malloc(40000);
        stamp(out, DATAGRAM, (uint64_t)n);
        memset(in, 1, 2 * PAGE);
        memset(more, 1, 40000);
        push_out(out, 2 * PAGE);
        /* The vectors are on the stack, what they name is not. */
        struct iovec parts[2] = {{out, 1000}, {out + 1000, DATAGRAM - 1000}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        if (sendmsg(pair[0], &message, 0) != DATAGRAM)
            wrong++;
        push_out(in, 2 * PAGE);
        push_out(more, 40000);
        struct iovec places[2] = {{in, 500}, {more + 20000, 8000}};
        message.msg_iov = places;
        ssize_t got = recvmsg(pair[1], &message, 0);
        char together[DATAGRAM];
        memcpy(together, in, 500);
        memcpy(together + 500, more + 20000, DATAGRAM - 500);
        wrong += got != DATAGRAM || !stamped(together, DATAGRAM, (uint64_t)n);
        munmap(out, 2 * PAGE);
        munmap(in, 2 * PAGE);
        free(more);
    }
    check(wrong == 0, "%d datagrams: %d wrong", ROUNDS, wrong);
    close(pair[0]);
    close(pair[1]);
}

/* Calls that take something from the kernel before they write it. */
static void consumed(void)
{
    int wrong = 0, events = eventfd(0, EFD_SEMAPHORE);
    struct all {
        char gap[PAGE];
        uint64_t count;
        char gap2[PAGE];
        int status;
        char gap3[PAGE];
        struct rusage usage;
        char gap4[PAGE];
        siginfo_t info;
        char gap5[PAGE];
        struct timespec rest, time;
    };
    for (int n = 0; n < 10; n++) {
        struct all *all = malloc(sizeof *all);
        memset(all, 1, sizeof *all);
        uint64_t one = 1;
        if (write(events, &one, 8) != 8)
            die("write");
        pid_t pid = fork_flushed();
        if (pid == 0)
            _exit(n);
        push_out(all, sizeof *all);
        wrong += read(events, &all->count, 8) != 8 || all->count != 1;
        wrong += wait4(pid, &all->status, 0, &all->usage) != pid || WEXITSTATUS(all->status) != n;
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(SIGUSR1);
        push_out(all, sizeof *all);
        wrong += sigwaitinfo(&set, &all->info) != SIGUSR1 || all->info.si_signo != SIGUSR1;
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        all->time = (struct timespec){0, 1000000};
        wrong += nanosleep(&all->time, &all->rest) != 0;
        free(all);
    }
    check(wrong == 0, "an event, a child, a signal, ten times: %d wrong", wrong);
    close(events);
}

/* More than fits in memory, and more than fits in a pipe. */
static void large(void)
{
    size_t pages = 6144;
    char *p = map_pages(pages);
    fill(p, pages, 9);
    FILE *file = tmpfile();
    int fd = fileno(file);
    ssize_t written = write(fd, p, pages * PAGE);
    check(written == (ssize_t)(pages * PAGE), "one write of %zd bytes", written);
    memset(p, 0, pages * PAGE);
    ssize_t got = pread(fd, p, pages * PAGE, 0);
    check(got == written && bad_pages(p, pages, 9) == 0, "one read of %zd bytes", got);
    fclose(file);
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        close(pipe_ends[0]);
        _exit(write(pipe_ends[1], p, pages * PAGE) == (ssize_t)(pages * PAGE) ? 0 : 1);
    }
    close(pipe_ends[1]);
    char *q = map_pages(pages);
    size_t all = 0;
    while ((got = read(pipe_ends[0], q + all, pages * PAGE - all)) > 0)
        all += (size_t)got;
    int status = reap(pid);
    check(status == 0 && all == pages * PAGE && bad_pages(q, pages, 9) == 0,
          "a child writes as much to a pipe at once");
    close(pipe_ends[0]);
    munmap(p, pages * PAGE);
    munmap(q, pages * PAGE);
}

static void names(void)
{
    char *name = strdup("root");
    evict_all();
    struct passwd *entry = getpwnam(name);
    check(entry != NULL && entry->pw_uid == 0, "getpwnam");
    char *host = strdup("127.0.0.1"), *service = strdup("80");
    struct addrinfo *result = NULL;
    evict_all();
    int error = getaddrinfo(host, service, NULL, &result);
    check(error == 0 && result != NULL, "getaddrinfo");
    freeaddrinfo(result);
    struct ifaddrs *addresses = NULL;
    check(getifaddrs(&addresses) == 0, "getifaddrs");
    freeifaddrs(addresses);
    setenv("SEMANTICS_LATE", name, 1);
    evict_all();
    char *command = strdup("test \"$SEMANTICS_LATE\" = root");
    evict_all();
    check(system(command) == 0, "system");
    FILE *pipe = popen("echo read", "r");
    char line[20] = "";
    check(pipe != NULL && fgets(line, sizeof line, pipe) != NULL && strcmp(line, "read\n") == 0 &&
              pclose(pipe) == 0,
          "popen");
    free(name);
    free(host);
    free(service);
    free(command);
}

int main(void)
{
    interruptions();
    cancellations();
    datagrams();
    consumed();
    large();
    names();
    return finish();
}
