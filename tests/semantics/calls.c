/* Functions of the C library that hand memory to the kernel, with memory that is out: results,
   errors, and every way in which such a call can end. */
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>

#define BYTES ((size_t)5000)

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);

static char *out, *in;

/* Known content in both, out of memory. */
static void prepare(uint64_t seed)
{
    stamp(out, 4 * PAGE, seed);
    stamp(in, 4 * PAGE, seed + 1000);
    push_out(out, 4 * PAGE);
    push_out(in, 4 * PAGE);
}

/* Whether so many bytes arrived and the rest is as it was. */
static int arrived(size_t bytes, uint64_t seed)
{
    static char before[4 * PAGE];
    stamp(before, sizeof before, seed + 1000);
    return stamped(in, bytes, seed) &&
           memcmp(in + bytes, before + bytes, sizeof before - bytes) == 0;
}

static void files(void)
{
    char name[] = "calls-XXXXXX";
    int fd = mkstemp(name);
    prepare(1);
    check(write(fd, out, BYTES) == (ssize_t)BYTES && lseek(fd, 0, SEEK_SET) == 0, "write");
    check(read(fd, in, 3 * PAGE) == (ssize_t)BYTES && arrived(BYTES, 1),
          "read, less than was asked for");
    check(read(fd, in, PAGE) == 0, "read at the end");
    prepare(2);
    check(pwrite(fd, out, BYTES, 77) == (ssize_t)BYTES &&
              pread(fd, in, BYTES, 77) == (ssize_t)BYTES && arrived(BYTES, 2),
          "pwrite, pread");
    prepare(3);
    check(pwrite64(fd, out, BYTES, 9) == (ssize_t)BYTES &&
              pread64(fd, in, BYTES, 9) == (ssize_t)BYTES && arrived(BYTES, 3),
          "pwrite64, pread64");
    prepare(4);
    struct iovec from[3] = {{out, 10}, {out + 10, 0}, {out + 10, BYTES - 10}},
                 to[2] = {{in, 4000}, {in + 4000, BYTES - 4000}};
    check(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, from, 3) == (ssize_t)BYTES, "writev");
    check(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, to, 2) == (ssize_t)BYTES && arrived(BYTES, 4),
          "readv");
    prepare(5);
    check(pwritev(fd, from, 3, 1) == (ssize_t)BYTES && preadv(fd, to, 2, 1) == (ssize_t)BYTES &&
              arrived(BYTES, 5),
          "pwritev, preadv");
    prepare(5);
    check(pwritev2(fd, from, 3, 1, RWF_DSYNC) == (ssize_t)BYTES &&
              preadv2(fd, to, 2, 1, RWF_HIPRI) == (ssize_t)BYTES && arrived(BYTES, 5),
          "pwritev2, preadv2");
    check(preadv2(fd, to, 2, 0, 1 << 30) == -1 && errno == EOPNOTSUPP, "flags that there are not");
    volatile int none = -1;
    check(readv(fd, to, none) == -1 && errno == EINVAL && preadv(fd, to, 2, -1) == -1 &&
              errno == EINVAL,
          "numbers that cannot be");
    prepare(6);
    check(pwrite(fd, out, BYTES, 0) == (ssize_t)BYTES &&
              __pread64_chk(fd, in, BYTES, 0, BYTES) == (ssize_t)BYTES && arrived(BYTES, 6),
          "pread64, checked");
    prepare(6);
    check(lseek(fd, 0, SEEK_SET) == 0 && __read_chk(fd, in, BYTES, 4 * PAGE) == (ssize_t)BYTES &&
              arrived(BYTES, 6),
          "read, checked");
    fflush(stdout);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        close(2);
        __read_chk(fd, in, BYTES, BYTES - 1);
        _exit(0);
    }
    check(reap(pid) == 128 + SIGABRT, "a read that is longer than its buffer ends the program");
    check(read(-1, in, 10) == -1 && errno == EBADF && write(fd, out, 0) == 0,
          "an error, and nothing");
    close(fd);

    /* Streams, whose buffer is on the heap. */
    prepare(7);
    FILE *file = fopen(name, "w+");
    int wrong = 0;
    for (int i = 0; i < 3000; i++)
        wrong += fprintf(file, "line %d\n", i) < 7;
    evict_all();
    wrong += fwrite(out, 1, 4 * PAGE, file) != 4 * PAGE || fflush(file) != 0;
    rewind(file);
    evict_all();
    char *line = NULL;
    size_t room = 0;
    for (int i = 0; i < 3000; i++) {
        char expected[30];
        snprintf(expected, sizeof expected, "line %d\n", i);
        wrong += getline(&line, &room, file) < 0 || strcmp(line, expected) != 0;
    }
    wrong += fread(in, 1, 4 * PAGE, file) != 4 * PAGE || !stamped(in, 4 * PAGE, 7) ||
             fgetc(file) != EOF || ferror(file);
    free(line);
    check(wrong == 0, "a stream: %d wrong", wrong);
    file = freopen(name, "r", file);
    errno = 0;
    check(fputc('x', file) == EOF && ferror(file), "a stream that is not for writing");
    fclose(file);
    file = fopen("/dev/full", "w");
    wrong = fwrite(out, 1, 3 * PAGE, file) == 3 * PAGE && fflush(file) == 0;
    check(!wrong && errno == ENOSPC && ferror(file), "a stream to a device that is full");
    fclose(file);
    unlink(name);
}

static void paths(void)
{
    char *directory = strdup("calls-directory"), *one = strdup("calls-directory/one"),
         *two = strdup("calls-directory/two");
    struct all {
        char gap[PAGE];
        struct stat stat;
        char gap2[PAGE];
        struct statx statx;
        char gap3[PAGE];
        char text[100];
    } *all = malloc(sizeof *all);
    memset(all, 1, sizeof *all);
    evict_all();
    check(mkdir(directory, 0700) == 0 && stat(directory, &all->stat) == 0 &&
              S_ISDIR(all->stat.st_mode),
          "mkdir, stat");
    evict_all();
    int fd = open(one, O_RDWR | O_CREAT | O_EXCL, 0640);
    check(fd >= 0 && write(fd, one, 5) == 5 && close(fd) == 0, "open");
    evict_all();
    check(open(one, O_RDWR | O_CREAT | O_EXCL, 0640) == -1 && errno == EEXIST,
          "open of what is there");
    check(lstat(one, &all->stat) == 0 && all->stat.st_size == 5 &&
              (all->stat.st_mode & 0777) == 0640,
          "lstat");
    evict_all();
    check(access(one, R_OK) == 0 && access(two, R_OK) == -1 && errno == ENOENT, "access");
    check(rename(one, two) == 0 && stat(one, &all->stat) == -1 && errno == ENOENT, "rename");
    evict_all();
    check(symlink(two, one) == 0 && readlink(one, all->text, 100) == (ssize_t)strlen(two) &&
              memcmp(all->text, two, strlen(two)) == 0,
          "symlink, readlink");
    evict_all();
    check(fstatat(AT_FDCWD, two, &all->stat, 0) == 0 && all->stat.st_size == 5, "fstatat");
    check(statx(AT_FDCWD, two, 0, STATX_SIZE, &all->statx) == 0 && all->statx.stx_size == 5,
          "statx");
    evict_all();
    fd = openat(AT_FDCWD, two, O_RDONLY);
    evict_all();
    check(fd >= 0 && fstat(fd, &all->stat) == 0 && all->stat.st_size == 5 && close(fd) == 0,
          "openat, fstat");
    fd = creat(two, 0600);
    check(fd >= 0 && close(fd) == 0 && stat(two, &all->stat) == 0 && all->stat.st_size == 0,
          "creat");
    evict_all();
    check(unlink(one) == 0 && unlinkat(AT_FDCWD, two, 0) == 0 && unlink(two) == -1 &&
              errno == ENOENT,
          "unlink, unlinkat");
    /* As long as it can be, and longer; one that ends where its memory does; one without end. */
    char *longest = malloc(5000);
    memset(longest, '/', 5000);
    longest[4095] = 0;
    evict_all();
    int rests = stat(longest, &all->stat) == 0;
    longest[4095] = '/';
    longest[4999] = 0;
    check(rests && stat(longest, &all->stat) == -1 && errno == ENAMETOOLONG,
          "the longest path, and a longer one");
    char *edge = map_pages(2);
    mprotect(edge + PAGE, PAGE, PROT_NONE);
    strcpy(edge + PAGE - 2, "/");
    evict_all();
    check(stat(edge + PAGE - 2, &all->stat) == 0, "a path at the end of memory");
    edge[PAGE - 1] = '/';
    evict_all();
    check(stat(edge + PAGE - 2, &all->stat) == -1 && errno == EFAULT, "a path without end");
    munmap(edge, 2 * PAGE);
    rmdir(directory);
    free(longest);
    free(directory);
    free(one);
    free(two);
    free(all);
}

static void sockets(void)
{
    int pair[2], datagrams[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 ||
        socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) != 0)
        die("socketpair");
    prepare(20);
    check(send(pair[0], out, BYTES, 0) == (ssize_t)BYTES, "send");
    check(recv(pair[1], in, BYTES, MSG_PEEK) == (ssize_t)BYTES && arrived(BYTES, 20),
          "recv, only a look");
    prepare(20);
    check(recv(pair[1], in, 4 * PAGE, 0) == (ssize_t)BYTES && arrived(BYTES, 20), "recv");
    check(recv(pair[1], in, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN, "nothing there");
    prepare(21);
    check(sendto(datagrams[0], out, BYTES, 0, NULL, 0) == (ssize_t)BYTES, "sendto");
    struct names {
        char gap[PAGE];
        struct sockaddr_un name;
        char gap2[PAGE];
        socklen_t len;
    } *names = malloc(sizeof *names);
    memset(names, 0, sizeof *names);
    names->len = sizeof names->name;
    evict_all();
    check(recvfrom(datagrams[1], in, 100, MSG_TRUNC, (struct sockaddr *)&names->name,
                   &names->len) == (ssize_t)BYTES &&
              arrived(100, 21),
          "recvfrom of a datagram that is too long");
    check(names->len <= 2, "an address of no length");
    prepare(22);
    check(send(datagrams[0], out, BYTES, 0) == (ssize_t)BYTES &&
              __recv_chk(datagrams[1], in, BYTES, BYTES, 0) == (ssize_t)BYTES && arrived(BYTES, 22),
          "recv, checked");
    prepare(23);
    names->len = sizeof names->name;
    check(send(datagrams[0], out, BYTES, 0) == (ssize_t)BYTES &&
              __recvfrom_chk(datagrams[1], in, 4 * PAGE, 4 * PAGE, 0,
                             (struct sockaddr *)&names->name, &names->len) == (ssize_t)BYTES &&
              arrived(BYTES, 23),
          "recvfrom, checked");
    prepare(24);
    struct iovec parts[2][2] = {{{out, 1000}, {out + 1000, 1000}},
                                {{out + 2000, 1000}, {out + 3000, 2000}}};
    struct mmsghdr list[2] = {{.msg_hdr = {.msg_iov = parts[0], .msg_iovlen = 2}},
                              {.msg_hdr = {.msg_iov = parts[1], .msg_iovlen = 2}}};
    check(sendmmsg(datagrams[0], list, 2, 0) == 2 && list[0].msg_len == 2000 &&
              list[1].msg_len == 3000,
          "sendmmsg");
    for (int i = 0; i < 4; i++)
        parts[i / 2][i % 2].iov_base = in + i * 1000;
    check(recvmmsg(datagrams[1], list, 2, 0, NULL) == 2 && list[1].msg_len == 3000 &&
              arrived(BYTES, 24),
          "recvmmsg");
    struct msghdr message = {.msg_iov = parts[0], .msg_iovlen = 2};
    prepare(25);
    parts[0][0] = (struct iovec){out, BYTES};
    parts[0][1] = (struct iovec){NULL, 0};
    check(sendmsg(pair[0], &message, 0) == (ssize_t)BYTES, "sendmsg");
    parts[0][0] = (struct iovec){in, PAGE};
    parts[0][1] = (struct iovec){in + PAGE, PAGE};
    check(recvmsg(pair[1], &message, 0) == (ssize_t)BYTES && arrived(BYTES, 25), "recvmsg");

    /* Waiting. */
    struct waits {
        char gap[PAGE];
        struct epoll_event events[20];
        char gap2[PAGE];
        struct pollfd polls[2];
        char gap3[PAGE];
        fd_set set;
        struct timeval time;
        char gap4[PAGE];
        struct timespec sleep, rest;
    } *waits = malloc(sizeof *waits);
    memset(waits, 0, sizeof *waits);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234567890};
    epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event);
    waits->polls[0] = (struct pollfd){pair[1], POLLIN, 99};
    waits->polls[1] = (struct pollfd){pair[0], POLLIN | POLLOUT, 99};
    FD_SET(pair[1], &waits->set);
    waits->time.tv_usec = 1000;
    waits->sleep.tv_nsec = 1000000;
    evict_all();
    check(epoll_wait(epoll, waits->events, 20, 0) == 0 && poll(waits->polls, 1, 1) == 0 &&
              waits->polls[0].revents == 0,
          "nothing to wait for");
    check(select(pair[1] + 1, &waits->set, NULL, NULL, &waits->time) == 0 &&
              !FD_ISSET(pair[1], &waits->set),
          "select");
    check(waits->time.tv_sec == 0 && waits->time.tv_usec == 0,
          "select tells how much time is left");
    if (write(pair[0], "x", 1) != 1)
        die("write");
    FD_SET(pair[1], &waits->set);
    evict_all();
    check(epoll_wait(epoll, waits->events, 20, -1) == 1 &&
              waits->events[0].data.u64 == 0x1234567890,
          "epoll_wait");
    check(epoll_wait(epoll, waits->events, 0, 0) == -1 && errno == EINVAL,
          "epoll_wait for no events");
    check(poll(waits->polls, 2, -1) == 2 && waits->polls[0].revents == POLLIN &&
              waits->polls[1].revents == POLLOUT,
          "poll");
    check(__poll_chk(waits->polls, 2, -1, sizeof waits->polls) == 2, "poll, checked");
    check(select(pair[1] + 1, &waits->set, NULL, NULL, NULL) == 1 && FD_ISSET(pair[1], &waits->set),
          "select");
    check(select(-1, &waits->set, NULL, NULL, NULL) == -1 && errno == EINVAL,
          "select with a number that cannot be");
    evict_all();
    check(nanosleep(&waits->sleep, &waits->rest) == 0, "nanosleep");
    prepare(26);
    check(getrandom(in, PAGE + 5, 0) == (ssize_t)(PAGE + 5) && !stamped(in, PAGE, 1026),
          "getrandom");

    int listening = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "calls-socket"};
    if (bind(listening, (struct sockaddr *)&name, sizeof name) != 0 || listen(listening, 4) != 0 ||
        connect(client, (struct sockaddr *)&name, sizeof name) != 0)
        die("connect");
    memset(names, 0, sizeof *names);
    names->len = sizeof names->name;
    evict_all();
    int accepted = accept(listening, (struct sockaddr *)&names->name, &names->len);
    check(accepted >= 0 && names->len >= 2 && names->name.sun_family == AF_UNIX, "accept");
    unlink("calls-socket");
    close(accepted);
    close(client);
    close(listening);
    close(epoll);
    close(pair[0]);
    close(pair[1]);
    close(datagrams[0]);
    close(datagrams[1]);
    free(names);
    free(waits);
}

/* Memory that the program may not access, in whole or in part. */
static void faults(void)
{
    int ends[2], fd = open("calls-file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (pipe(ends) != 0 || write(ends[1], "some bytes", 10) != 10)
        die("pipe");
    char *pages = map_pages(8), *gone = map_pages(2);
    fill(pages, 8, 30);
    if (pwrite(fd, pages, 8 * PAGE, 0) != (ssize_t)(8 * PAGE))
        die("pwrite");
    munmap(gone, 2 * PAGE);
    mprotect(pages + 4 * PAGE, PAGE, PROT_NONE);
    mprotect(pages + 6 * PAGE, PAGE, PROT_READ);
    pressure(40);
    check(read(ends[0], gone, 10) == -1 && errno == EFAULT, "read to where nothing is");
    check(read(ends[0], pages + 4 * PAGE, 10) == -1 && errno == EFAULT,
          "read to where nothing may be accessed");
    check(read(ends[0], pages + 6 * PAGE, 10) == -1 && errno == EFAULT,
          "read to where nothing may be written");
    check(pread(fd, pages + 3 * PAGE, 2 * PAGE, 0) == (ssize_t)PAGE,
          "pread as far as may be written");
    check(pwrite(fd, pages + 3 * PAGE, 2 * PAGE, 0) == (ssize_t)PAGE,
          "pwrite as far as may be read");
    check(pwrite(fd, pages + 6 * PAGE, PAGE, 0) == (ssize_t)PAGE && pwrite(fd, gone, 1, 0) == -1 &&
              errno == EFAULT,
          "pwrite from what may be read");
    check(stat(gone, (struct stat *)pages) == -1 && errno == EFAULT, "a path where nothing is");
    check(stat("/", (struct stat *)(pages + 6 * PAGE)) == -1 && errno == EFAULT,
          "stat to where nothing may be written");
    check(poll((struct pollfd *)gone, 1, 0) == -1 && errno == EFAULT, "poll of nothing");
    struct pollfd *again = (struct pollfd *)(pages + 5 * PAGE);
    again[0] = (struct pollfd){ends[0], POLLIN, 0};
    check(poll(again, 1, 0) == 1 && again[0].revents == POLLIN, "poll");
    mprotect(pages + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    check(pread(fd, pages + 3 * PAGE, 2 * PAGE, 2 * PAGE) == (ssize_t)(2 * PAGE) &&
              page_is(pages + 4 * PAGE, 33),
          "what may be accessed later is");
    char *back = map_pages(2);
    evict_all();
    check(read(ends[0], back, 10) == 10 && memcmp(back, "some bytes", 10) == 0,
          "and nothing was lost");
    close(fd);
    unlink("calls-file");
    munmap(back, 2 * PAGE);
    munmap(pages, 8 * PAGE);
    close(ends[0]);
    close(ends[1]);
}

static int ends[2], other[2];
static sigjmp_buf left;
static volatile sig_atomic_t handled, how;
static char *nested;
static ssize_t nested_got;

static void on_alarm(int signal)
{
    (void)signal;
    int error = errno;
    handled++;
    if (how == 1 && write(ends[1], "fed", 4) != 4)
        _exit(96);
    if (how == 2)
        siglongjmp(left, 1);
    if (how == 3) {
        /* The same call, inside of the one that it has interrupted. */
        nested_got = read(other[0], nested, PAGE);
        if (write(ends[1], nested, (size_t)nested_got) != nested_got)
            _exit(96);
    }
    errno = error;
}

static void alarm_in_ms(long ms)
{
    struct itimerval soon = {{0, 0}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

/* Again and again: on a busy machine the first may come before the call that it is to interrupt. */
static void alarm_every_ms(long ms)
{
    struct itimerval soon = {{0, ms * 1000}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void handle(int flags)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
}

/* Calls that wait: for data that do not come (0 to 4), and for anything else. */
static ssize_t wait_in(int which, char *memory)
{
    struct iovec parts[2] = {{memory, 10}, {memory + 10, PAGE}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct pollfd *polls = (struct pollfd *)memory;
    switch (which) {
    case 0: return read(ends[0], memory, PAGE);
    case 1: return recv(ends[0], memory, PAGE, 0);
    case 2: return recvfrom(ends[0], memory, PAGE, 0, NULL, NULL);
    case 3: return readv(ends[0], parts, 2);
    case 4: return recvmsg(ends[0], &message, 0);
    case 5:
        polls[0] = (struct pollfd){ends[0], POLLIN, 0};
        return poll(polls, 1, -1);
    case 6: {
        fd_set *set = (fd_set *)memory;
        memset(set, 0, sizeof *set);
        FD_SET(ends[0], set);
        return select(ends[0] + 1, set, NULL, NULL, NULL);
    }
    case 7: return epoll_wait(other[1], (struct epoll_event *)memory, 10, -1);
    default: {
        struct timespec *time = (struct timespec *)memory;
        *time = (struct timespec){100, 0};
        return nanosleep(time, time + 1);
    }
    }
}
static const char *const names[] = {"read", "recv",   "recvfrom",   "readv",    "recvmsg",
                                    "poll", "select", "epoll_wait", "nanosleep"};

static void endings(void)
{
    char *memory = map_pages(4);
    int keep[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || pipe(keep) != 0)
        die("socketpair");
    other[1] = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(other[1], EPOLL_CTL_ADD, ends[0], &event);
    for (int which = 0; which < 9; which++) {
        fill(memory, 4, 40);
        how = handled = 0;
        handle(0);
        push_out(memory, 4 * PAGE);
        alarm_every_ms(15);
        errno = 0;
        ssize_t got = wait_in(which, memory + 100 * 16);
        int error = errno;
        alarm_in_ms(0);
        check(got == -1 && error == EINTR && handled > 0, "%s is interrupted", names[which]);
        if (which < 5) {
            how = 1;
            handle(SA_RESTART);
            push_out(memory, 4 * PAGE);
            alarm_in_ms(15);
            got = wait_in(which, memory + 3000);
            check(got == 4 && memcmp(memory + 3000, "fed", 4) == 0, "%s is restarted",
                  names[which]);
        } else {
            handle(SA_RESTART);
            alarm_every_ms(15);
            got = wait_in(which, memory);
            error = errno;
            alarm_in_ms(0);
            check(got == -1 && error == EINTR, "%s is interrupted in any case", names[which]);
        }
        how = 2;
        volatile int times = 0;
        for (volatile int i = 0; i < 150; i++) {
            if (sigsetjmp(left, 1) == 0) {
                alarm_in_ms(1);
                wait_in(which, memory);
            } else
                times++;
        }
        check(times == 150, "%s is left %d times", names[which], times);
    }
    if (pipe(other) != 0)
        die("pipe");
    how = 3;
    handle(SA_RESTART);
    int wrong = 0;
    nested = memory + 2 * PAGE;
    for (int i = 0; i < 20; i++) {
        char expected[20];
        snprintf(expected, sizeof expected, "message %d", i);
        memset(memory, 0, 4 * PAGE);
        if (write(other[1], expected, 20) != 20)
            die("write");
        push_out(memory, 4 * PAGE);
        alarm_in_ms(2);
        ssize_t got = read(ends[0], memory, PAGE);
        wrong += got != 20 || nested_got != 20 || strcmp(memory, expected) != 0 ||
                 strcmp(nested, expected) != 0;
    }
    check(wrong == 0, "reads in handlers, inside of reads: %d wrong", wrong);
    munmap(memory, 4 * PAGE);
}

static _Atomic int cleaned, waiting;

static void clean(void *memory)
{
    free(memory);
    cleaned++;
}

static void *wait_for_ever(void *argument)
{
    char *memory = malloc(3 * PAGE);
    pthread_cleanup_push(clean, memory);
    waiting++;
    while (wait_in((int)(intptr_t)argument, memory) >= 0)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *get_for_ever(void *argument)
{
    char *memory = malloc(3 * PAGE);
    pthread_cleanup_push(clean, memory);
    waiting++;
    while (fgets(memory, 3 * PAGE, (FILE *)argument) != NULL)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancellations(void)
{
    FILE *stream = fdopen(dup(ends[0]), "r");
    other[1] = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(other[1], EPOLL_CTL_ADD, ends[0], &event);
    for (int which = 0; which < 10; which++) {
        int cancelled = 0;
        cleaned = waiting = 0;
        for (int i = 0; i < 10; i++) {
            pthread_t thread;
            void *result = NULL;
            if (which < 9)
                pthread_create(&thread, NULL, wait_for_ever, (void *)(intptr_t)which);
            else
                pthread_create(&thread, NULL, get_for_ever, stream);
            while (waiting <= i)
                usleep(1000);
            usleep(3000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            cancelled += result == PTHREAD_CANCELED;
        }
        check(cancelled == 10 && cleaned == 10, "%s: %d of 10 threads are cancelled in it",
              which < 9 ? names[which] : "fgets", cancelled);
    }
}

/* Threads that wait in reads while the process forks: theirs go on, and the child's own work. */
struct reader {
    pthread_t thread;
    int ends[2];
    char *memory;
    ssize_t got;
};

static void *read_one(void *argument)
{
    struct reader *reader = argument;
    waiting++;
    reader->got = read(reader->ends[0], reader->memory, PAGE);
    return NULL;
}

static void forks(void)
{
    enum { READERS = 80 };
    static struct reader readers[READERS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    waiting = 0;
    for (int i = 0; i < READERS; i++) {
        readers[i].memory = calloc(1, PAGE);
        if (pipe(readers[i].ends) != 0 ||
            pthread_create(&readers[i].thread, &small, read_one, &readers[i]) != 0)
            die("a reader");
    }
    while (waiting < READERS)
        usleep(1000);
    usleep(20000);
    int wrong = 0, pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        die("socketpair");
    for (int n = 0; n < 8; n++) {
        prepare(60);
        pid_t pid = fork_flushed();
        if (pid == 0) {
            int bad = 0;
            for (int i = 0; i < 200; i++)
                bad += write(pair[0], out, BYTES) != (ssize_t)BYTES ||
                       recv(pair[1], in, BYTES, MSG_WAITALL) != (ssize_t)BYTES ||
                       !arrived(BYTES, 60);
            _exit(bad != 0);
        }
        wrong += reap(pid) != 0;
    }
    check(wrong == 0, "children made while threads wait in reads: %d wrong", wrong);
    for (int i = 0; i < READERS; i++) {
        char text[20];
        snprintf(text, sizeof text, "reader %d", i);
        if (write(readers[i].ends[1], text, 20) != 20)
            die("write");
        pthread_join(readers[i].thread, NULL);
        wrong += readers[i].got != 20 || strcmp(readers[i].memory, text) != 0;
        close(readers[i].ends[0]);
        close(readers[i].ends[1]);
        free(readers[i].memory);
    }
    check(wrong == 0, "%d threads with small stacks get what they waited for: %d wrong", READERS,
          wrong);
}

/* Many threads, each with a socket of its own. */
static void *exchange(void *argument)
{
    int pair[2];
    intptr_t wrong = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        die("socketpair");
    for (uint64_t i = 0; i < 300; i++) {
        size_t bytes = 1 + mix(i) % 70000;
        uint64_t seed = (uint64_t)(intptr_t)argument * 1000 + i;
        char *from = malloc(bytes), *to = calloc(1, bytes);
        stamp(from, bytes & ~(size_t)7, seed);
        ssize_t sent = i % 2 ? write(pair[0], from, bytes) : send(pair[0], from, bytes, 0);
        ssize_t got = recv(pair[1], to, bytes, MSG_WAITALL);
        wrong += sent != (ssize_t)bytes || got != sent || memcmp(from, to, bytes & ~(size_t)7) != 0;
        free(from);
        free(to);
    }
    close(pair[0]);
    close(pair[1]);
    return (void *)wrong;
}

static void threads(void)
{
    pthread_t list[8];
    intptr_t wrong = 0;
    for (intptr_t i = 0; i < 8; i++)
        pthread_create(&list[i], NULL, exchange, (void *)i);
    pressure(60);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(list[i], &result);
        wrong += (intptr_t)result;
    }
    check(wrong == 0, "threads that exchange data: %d wrong", (int)wrong);
}

int main(void)
{
    out = map_pages(4);
    in = map_pages(4);
    files();
    paths();
    sockets();
    faults();
    endings();
    cancellations();
    forks();
    threads();
    return finish();
}
