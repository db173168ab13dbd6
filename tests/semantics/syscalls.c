/* System calls whose arguments and results are structures in evicted memory, and locks that live
   there. */
#include "common.h"
#include <dirent.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>

#define AREA ((size_t)64)

static char *area;

/* Memory that is out, each time somewhere else in the area. */
static void *out_there(void)
{
    static size_t turn;
    size_t page = turn++ % (AREA - 16);
    if (page == 0) {
        memset(area, 0xa5, AREA * PAGE);
        evict_all();
    }
    return area + page * PAGE + 2040;
}

static void *copied(const void *data, size_t bytes)
{
    void *p = malloc(bytes < PAGE ? PAGE : bytes);
    memcpy(p, data, bytes);
    return p;
}

static void *text(const char *s)
{
    return copied(s, strlen(s) + 1);
}

static void names_and_times(void)
{
    struct utsname *u = out_there();
    check(uname(u) == 0 && strcmp(u->sysname, "Linux") == 0, "uname");
    struct timespec *now = out_there();
    check(clock_gettime(CLOCK_REALTIME, now) == 0 && now->tv_sec > 1600000000, "clock_gettime");
    check(syscall(SYS_clock_gettime, CLOCK_REALTIME, out_there()) == 0,
          "clock_gettime as a system call");
    check(clock_getres(CLOCK_MONOTONIC, out_there()) == 0 && times(out_there()) != (clock_t)-1,
          "clock_getres, times");
    struct timespec *nap = out_there();
    *nap = (struct timespec){0, 1000};
    check(nanosleep(nap, out_there()) == 0, "nanosleep");
    struct rlimit *limit = out_there();
    check(getrlimit(RLIMIT_NOFILE, limit) == 0 && limit->rlim_cur > 0, "getrlimit");
    struct rusage *usage = out_there();
    check(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0, "getrusage");
    unsigned char *random = out_there();
    memset(random, 0, 4096);
    check(syscall(SYS_getrandom, random, 4096, 0) == 4096 && nonzero(random, 4096) > 3800,
          "getrandom");
    cpu_set_t *cpus = out_there();
    check(sched_getaffinity(0, sizeof *cpus, cpus) == 0, "sched_getaffinity");
}

static void files(void)
{
    char *name = text("semantics-dir"), *file = text("semantics-dir/file"),
         *link = text("semantics-dir/link");
    char *other = text("semantics-dir/other");
    evict_all();
    check(mkdir(name, 0700) == 0, "mkdir of a name that is evicted");
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    check(fd >= 0, "open");
    char *data = text("content");
    evict_all();
    check(write(fd, data, 7) == 7 && symlink(file, link) == 0 && rename(file, other) == 0 &&
              rename(other, file) == 0,
          "write, symlink, rename");
    struct stat *status = out_there();
    check(stat(file, status) == 0 && status->st_size == 7, "stat");
    check(fstat(fd, status = out_there()) == 0 && status->st_size == 7, "fstat");
    check(lstat(link, status = out_there()) == 0 && S_ISLNK(status->st_mode), "lstat");
    char *target = out_there();
    check(readlink(link, target, 100) == 18 && memcmp(target, "semantics-dir/file", 18) == 0,
          "readlink");
    DIR *dir = opendir(name);
    int entries = 0;
    evict_all();
    while (readdir(dir))
        entries++;
    closedir(dir);
    check(entries == 4, "readdir finds %d entries", entries);
    char *cwd = getcwd(NULL, 0), *real = realpath(name, NULL);
    check(cwd && real && strncmp(cwd, real, strlen(cwd)) == 0 &&
              strcmp(real + strlen(cwd), "/semantics-dir") == 0,
          "getcwd, realpath");
    char *again = out_there();
    check(getcwd(again, PATH_MAX) == again && strcmp(again, cwd) == 0, "getcwd");
    free(cwd);
    free(real);
    struct flock *lock = out_there();
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    check(fcntl(fd, F_SETLK, lock) == 0, "fcntl with a lock");
    close(fd);
    evict_all();
    check(unlink(file) == 0 && unlink(link) == 0 && rmdir(name) == 0, "unlink, rmdir");
    check(open(file, O_RDONLY) == -1 && errno == ENOENT, "open of what is gone: ENOENT");
    free(name);
    free(file);
    free(link);
    free(other);
    free(data);
}

static void waiting(void)
{
    int ends[2], *available;
    if (pipe(ends) != 0 || write(ends[1], "12345", 5) != 5)
        die("pipe");
    struct pollfd *polled = out_there();
    *polled = (struct pollfd){ends[0], POLLIN, 0};
    check(poll(polled, 1, 0) == 1 && polled->revents == POLLIN, "poll");
    fd_set *set = out_there();
    struct timeval *wait = out_there();
    FD_ZERO(set);
    FD_SET(ends[0], set);
    *wait = (struct timeval){0, 0};
    check(select(ends[0] + 1, set, NULL, NULL, wait) == 1 && FD_ISSET(ends[0], set), "select");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event *event = out_there();
    *event = (struct epoll_event){.events = EPOLLIN, .data = {.u64 = 77}};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], event) == 0, "epoll_ctl");
    struct epoll_event *events = out_there();
    check(epoll_wait(epoll, events, 20, 0) == 1 && events->data.u64 == 77, "epoll_wait");
    available = out_there();
    check(ioctl(ends[0], FIONREAD, available) == 0 && *available == 5, "ioctl FIONREAD");
    close(epoll);
    close(ends[0]);
    close(ends[1]);
}

static void sockets(void)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in *address = out_there();
    socklen_t *length = out_there();
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    *length = sizeof *address;
    int *option = out_there();
    *option = 1;
    check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, option, sizeof *option) == 0,
          "setsockopt");
    check(bind(listener, (struct sockaddr *)address, sizeof *address) == 0 &&
              listen(listener, 1) == 0,
          "bind");
    evict_all();
    check(getsockname(listener, (struct sockaddr *)address, length) == 0 && address->sin_port != 0,
          "getsockname");
    int client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in *to = copied(address, sizeof *address), *from = out_there();
    evict_all();
    check(connect(client, (struct sockaddr *)to, sizeof *to) == 0, "connect");
    *length = sizeof *from;
    int server = accept(listener, (struct sockaddr *)from, length);
    check(server >= 0 && from->sin_addr.s_addr == htonl(INADDR_LOOPBACK), "accept");
    socklen_t *size = out_there();
    *size = sizeof *option;
    check(getsockopt(client, SOL_SOCKET, SO_ERROR, option, size) == 0 && *option == 0,
          "getsockopt");
    free(to);
    close(client);
    close(server);
    close(listener);
}

static void handler(int signal)
{
    (void)signal;
}

static void signals(void)
{
    struct sigaction *action = calloc(1, sizeof *action), *before = out_there();
    sigset_t *set = out_there(), *old = out_there();
    action->sa_handler = handler;
    evict_all();
    check(sigaction(SIGUSR1, action, NULL) == 0 && sigaction(SIGUSR1, NULL, before) == 0 &&
              before->sa_handler == handler,
          "sigaction");
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    check(sigprocmask(SIG_BLOCK, set, old) == 0 && sigismember(old, SIGUSR1) == 0, "sigprocmask");
    raise(SIGUSR1);
    sigset_t *pending = out_there();
    check(sigpending(pending) == 0 && sigismember(pending, SIGUSR1) == 1, "sigpending");
    siginfo_t *info = out_there();
    struct timespec *wait = out_there();
    *wait = (struct timespec){0, 0};
    check(sigtimedwait(set, info, wait) == SIGUSR1 && info->si_signo == SIGUSR1, "sigtimedwait");
    free(action);
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(9);
    int *status = out_there();
    check(waitpid(pid, status, 0) == pid && WEXITSTATUS(*status) == 9, "waitpid");
}

/* Locks in evicted memory: the kernel looks futexes up by their page, and holds on to it while
   somebody waits. */
struct shared {
    pthread_mutex_t mutex;
    char gap[PAGE];
    pthread_cond_t cond;
    char gap2[PAGE];
    sem_t semaphore;
    char gap3[PAGE];
    pthread_barrier_t barrier;
    long turn, count;
};

static void *take_turns(void *argument)
{
    struct shared *s = argument;
    pthread_barrier_wait(&s->barrier);
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&s->mutex);
        while (s->turn != 1)
            pthread_cond_wait(&s->cond, &s->mutex);
        s->turn = 0;
        s->count++;
        pthread_cond_signal(&s->cond);
        pthread_mutex_unlock(&s->mutex);
        sem_post(&s->semaphore);
    }
    return NULL;
}

static void locks(void)
{
    struct shared *s = calloc(1, sizeof *s);
    pthread_t thread;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->cond, NULL);
    sem_init(&s->semaphore, 0, 0);
    pthread_barrier_init(&s->barrier, NULL, 2);
    pthread_create(&thread, NULL, take_turns, s);
    evict_all();
    pthread_barrier_wait(&s->barrier);
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&s->mutex);
        while (s->turn != 0)
            pthread_cond_wait(&s->cond, &s->mutex);
        s->turn = 1;
        s->count++;
        pthread_cond_signal(&s->cond);
        pthread_mutex_unlock(&s->mutex);
        if (i % 20 == 0)
            pressure(24);
        sem_wait(&s->semaphore);
    }
    pthread_join(thread, NULL);
    check(s->count == 400, "mutex, condition variable and semaphore in evicted memory: %ld turns",
          s->count);
    free(s);
}

static void across_processes(void)
{
    char *p = map_pages(16), *q = map_pages(16);
    fill(p, 16, 60);
    evict_all();
    struct iovec local = {q, 16 * PAGE}, remote = {p, 16 * PAGE};
    ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    /* Containers forbid it, and then natively as well. */
    check(n == -1 || (n == 16 * 4096 && bad_pages(q, 16, 60) == 0),
          "process_vm_readv of evicted pages");
    int memory = open("/proc/self/mem", O_RDONLY);
    evict_all();
    n = pread(memory, q, 16 * PAGE, (off_t)(uintptr_t)p);
    check(n == -1 || (n == 16 * 4096 && bad_pages(q, 16, 60) == 0),
          "/proc/self/mem of evicted pages");
    close(memory);
    munmap(p, 16 * PAGE);
    munmap(q, 16 * PAGE);
}

int main(void)
{
    area = heap_pages(AREA);
    names_and_times();
    files();
    waiting();
    sockets();
    signals();
    locks();
    across_processes();
    return finish();
}
