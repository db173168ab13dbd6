/*
 * The large arrays of a program, which no call has mapped: they are memory like any other, also for
 * system calls, signals and children, and where the program maps something else in their place.
 */
#include "common.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <ucontext.h>

#define BYTES (48 * MIB)
#define PAGES (BYTES / PAGE)

/* Three times the budget, and some for other uses. */
static char array[BYTES] __attribute__((aligned(4096)));
static char other[4 * MIB] __attribute__((aligned(4096)));
static char stack[MIB] __attribute__((aligned(4096)));
static pthread_mutex_t locks[4 * MIB / sizeof(pthread_mutex_t)];
static int small = 5;

static void read_and_written(void)
{
    check(nonzero(array, BYTES) == 0, "they begin as zeros");
    fill(array, PAGES, 1);
    check(bad_pages(array, PAGES, 1) == 0, "what was written is there");
    check(small == 5 && getenv("PATH"), "and what lies beside them");
}

/* What of the variables has been in no file begins here. */
extern char __bss_start;

/* What begins in the last pages before those that can leave, and reaches into them. */
static void across_their_beginning(void)
{
    /* The compiler puts it first, so that memory that can leave begins within it. */
    static char early[192 << 10];
    enum { LEAD = 3000, LEN = 16 * 4096, BOUNDARY = 64 << 10 };
    uintptr_t in_file = ((uintptr_t)&__bss_start + PAGE - 1) / PAGE * PAGE;
    char *first = (char *)((in_file + BOUNDARY - 1) / BOUNDARY * BOUNDARY);
    if (first - LEAD < early || first + LEN > early + sizeof early)
        first = early + LEAD;
    char *at = first - LEAD, *copy = malloc(LEN), *name = first - 2;
    struct iovec pieces[2] = {{at, 100}, {at + 100, LEN - 100}};
    struct stat *status = (struct stat *)(void *)(first - 64);
    int ends[2];
    FILE *file = tmpfile();
    if (!file || pipe(ends) != 0 || fcntl(ends[1], F_SETPIPE_SZ, LEN) < LEN)
        die("pipe");
    memcpy(copy, at, LEN);
    push_out(first, LEN);
    check(write(ends[1], at, LEN) == LEN, "written to a pipe");
    push_out(first, LEN);
    check(read(ends[0], at, LEN) == LEN && memcmp(at, copy, LEN) == 0, "read from it");
    push_out(first, LEN);
    check(pwritev(fileno(file), pieces, 2, 0) == LEN, "written to a file, as a vector");
    push_out(first, LEN);
    check(preadv(fileno(file), pieces, 2, 0) == LEN && memcmp(at, copy, LEN) == 0, "and read");
    push_out(first, LEN);
    check(fstat(fileno(file), status) == 0 && status->st_size == LEN, "a structure");
    memcpy(name, "/bin", 5);
    push_out(first, LEN);
    check(access(name, F_OK) == 0, "a path");
    memcpy(at, copy, LEN);
    fclose(file);
    close(ends[0]);
    close(ends[1]);
    free(copy);
}

/* Each call meets pages that are out. */
static void handed_to_calls(void)
{
    int ends[2], sockets[2];
    FILE *file = tmpfile();
    if (!file || pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        die("files");
    int fd = fileno(file);
    check(pwrite(fd, array, BYTES, 0) == (ssize_t)BYTES, "write");
    memset(array, 0, BYTES);
    check(pread(fd, array, BYTES, 0) == (ssize_t)BYTES, "read");
    check(bad_pages(array, PAGES, 1) == 0, "what came back is right");
    struct iovec *pieces = (struct iovec *)(void *)(array + 7 * MIB);
    memcpy(other, pieces, PAGE);
    for (size_t n = 0; n < 16; n++)
        pieces[n] = (struct iovec){array + 16 * MIB + n * 2 * MIB, 64};
    fill(other + MIB, 1, 3);
    nonzero(array + 40 * MIB, 8 * MIB);
    check(pwritev(fd, pieces, 16, 0) == 16 * 64, "a vector, and what it points to");
    char first[64];
    check(pread(fd, first, 64, 15 * 64) == 64 && memcmp(first, array + 46 * MIB, 64) == 0,
          "its last piece");
    memcpy(pieces, other, PAGE);
    check(write(ends[1], array + 3 * MIB, 100) == 100 && read(ends[0], array + 9 * MIB, 100) == 100
              && memcmp(array + 3 * MIB, array + 9 * MIB, 100) == 0,
          "a pipe");
    fill(array + 9 * MIB, 1, 1 + 9 * MIB / PAGE);
    check(send(sockets[0], array + 5 * MIB, 3000, 0) == 3000
              && recv(sockets[1], other, 3000, MSG_WAITALL) == 3000
              && memcmp(other, array + 5 * MIB, 3000) == 0,
          "a socket");
    struct timespec *now = (struct timespec *)(void *)(other + 2 * MIB);
    check(clock_gettime(CLOCK_REALTIME, now) == 0 && now->tv_sec > 0, "the time");
    check(getcwd(other + 3 * MIB, PAGE) == other + 3 * MIB && other[3 * MIB] == '/', "a path");
    fclose(file);
    memset(other, 0, sizeof other);
    for (int n = 0; n < 2; n++)
        close(ends[n]), close(sockets[n]);
    check(bad_pages(array, PAGES, 1) == 0, "the rest has not changed");
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    char local[1000];
    memset(local, signal, sizeof local);
    handled += local[999];
}

static void signal_stack(void)
{
    stack_t ours = {.ss_sp = stack, .ss_size = sizeof stack}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    check(sigaltstack(&ours, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0, "sigaltstack");
    nonzero(array, BYTES);
    raise(SIGUSR1);
    check(handled == SIGUSR1, "a handler on a stack in an array");
    sigaltstack(&none, NULL);
}

static ucontext_t here, there;

static void aside(void)
{
    char local[64 * 1024];
    for (int round = 0; round < 3; round++) {
        memset(local, round, sizeof local);
        swapcontext(&there, &here);
        check(local[0] == round && local[sizeof local - 1] == round, "its frames are kept");
    }
}

static void coroutine(void)
{
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof stack};
    there.uc_link = &here;
    makecontext(&there, aside, 0);
    for (int round = 0; round < 4; round++) {
        swapcontext(&here, &there);
        nonzero(array, BYTES);
    }
}

static void *worker(void *first)
{
    size_t count = sizeof locks / sizeof *locks;
    for (size_t n = (size_t)first; n < count; n += 97) {
        pthread_mutex_lock(&locks[n]);
        other[n % sizeof other]++;
        pthread_mutex_unlock(&locks[n]);
    }
    return NULL;
}

static void threads_and_locks(void)
{
    pthread_t threads[4];
    for (size_t n = 0; n < sizeof locks / sizeof *locks; n++)
        pthread_mutex_init(&locks[n], NULL);
    for (size_t n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, worker, (void *)0);
    for (int n = 0; n < 4; n++)
        pthread_join(threads[n], NULL);
    long sum = 0;
    for (size_t n = 0; n < sizeof other; n++)
        sum += other[n];
    check(sum == 4 * (long)((sizeof locks / sizeof *locks + 96) / 97), "locks in an array");
    memset(other, 0, sizeof other);
}

static void child(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        size_t bad = bad_pages(array, PAGES, 1);
        fill(array, PAGES, 100000);
        bad += bad_pages(array, PAGES, 100000);
        if (bad == 0)
            execlp("sh", "sh", "-c", "exit 7", (char *)NULL);
        _exit(1);
    }
    check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7,
          "a child has what its parent had, and its own");
    check(bad_pages(array, PAGES, 1) == 0, "its parent keeps what it had");
}

/* A file in the midst of other memory moves onto a part of an array, which is memory again
   later. */
static void file_onto(void)
{
    int kind = MAP_PRIVATE | MAP_FIXED;
    FILE *file = tmpfile();
    char *from = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = other + 2 * MIB;
    if (!file || ftruncate(fileno(file), MIB) != 0 || pwrite(fileno(file), "file", 4, 0) != 4)
        die("tmpfile");
    check(mmap(from, MIB, PROT_READ | PROT_WRITE, kind, fileno(file), 0) == from, "a file");
    fill(to, MIB / PAGE, 9);
    check(mremap(from, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to
              && memcmp(to, "file", 4) == 0 && nonzero(to + PAGE, MIB - PAGE) == 0,
          "moved onto an array");
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(memcmp(to, "file", 4) != 0);
    check(reap(pid) == 0, "a child has it too");
    check(mmap(to, MIB, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0) == to
              && nonzero(to, MIB) == 0,
          "and memory again, of zeros");
    fclose(file);
}

static void changed(void)
{
    char *part = array + 8 * MIB, *moved;
    check(madvise(part, MIB, MADV_DONTNEED) == 0 && nonzero(part, MIB) == 0, "MADV_DONTNEED");
    check(mprotect(part, MIB, PROT_READ) == 0, "mprotect");
    int ends[2];
    check(pipe(ends) == 0 && write(ends[1], "x", 1) == 1 && read(ends[0], part, 1) == -1
              && errno == EFAULT,
          "a call cannot write what the program cannot");
    close(ends[0]), close(ends[1]);
    check(mprotect(part, MIB, PROT_READ | PROT_WRITE) == 0, "and back");
    fill(part, MIB / PAGE, 1 + 8 * MIB / PAGE);
    check(mlock(array, PAGE) == 0 && munlock(array, PAGE) == 0, "mlock");
    /* Something else in its place. */
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), MIB) != 0 || pwrite(fileno(file), "file", 4, 0) != 4)
        die("tmpfile");
    check(mmap(part, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fileno(file), 0) == part
              && memcmp(part, "file", 4) == 0,
          "a file over a part");
    fclose(file);
    check(mmap(part, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
                  == part
              && nonzero(part, MIB) == 0,
          "and memory again");
    fill(part, MIB / PAGE, 1 + 8 * MIB / PAGE);
    check(bad_pages(array, PAGES, 1) == 0, "all is there");
    moved = mremap(part, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other + MIB);
    check(moved == other + MIB && bad_pages(moved, MIB / PAGE, 1 + 8 * MIB / PAGE) == 0,
          "moved to another array");
    moved = mremap(array, 4 * MIB, 12 * MIB, MREMAP_MAYMOVE);
    check(moved != MAP_FAILED && bad_pages(moved, 4 * MIB / PAGE, 1) == 0
              && nonzero(moved + 4 * MIB, 8 * MIB) == 0,
          "moved away, where it can grow");
    check(munmap(moved, 12 * MIB) == 0 && munmap(array + 20 * MIB, 4 * MIB) == 0, "munmap");
    check(bad_pages(array + 24 * MIB, 24 * MIB / PAGE, 1 + 24 * MIB / PAGE) == 0,
          "and the rest is there");
}

/* A mapping that grows down, before the program has mapped anything else: the memory that is
   managed below it by number lies elsewhere. */
static void above_nothing(void)
{
    enum { LEN = 64 * 4096 };
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    check(mmap(at, LEN, PROT_READ | PROT_WRITE, kind | MAP_GROWSDOWN, -1, 0) == at,
          "MAP_GROWSDOWN as the first mapping");
    fill(at, LEN / PAGE, 3);
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(bad_pages(at, LEN / PAGE, 3) != 0);
    check(reap(pid) == 0, "and a child");
    check(munmap(at, LEN) == 0, "its end");
}

/* What is unmapped of an array is a hole that the program may use again, as natively: nothing else
   is placed there. */
static void hole(void)
{
    char *at = other + MIB, *elsewhere[64];
    check(munmap(at, MIB) == 0, "a hole in an array");
    for (int i = 0; i < 64; i++) {
        elsewhere[i] = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        if (elsewhere[i] == MAP_FAILED)
            die("mmap");
        check(elsewhere[i] + 16 * PAGE <= at || elsewhere[i] >= at + MIB, "mapping %d is not there",
              i);
        fill(elsewhere[i], 16, 1 + i);
    }
    check(mmap(at, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
               -1, 0) == at && nonzero(at, MIB) == 0,
          "it is mapped again");
    fill(at, MIB / PAGE, 7);
    for (int i = 0; i < 64; i++) {
        check(bad_pages(elsewhere[i], 16, 1 + i) == 0, "mapping %d keeps what it had", i);
        munmap(elsewhere[i], 16 * PAGE);
    }
    check(bad_pages(at, MIB / PAGE, 7) == 0, "and so does the array");
    memset(at, 0, MIB);
}

int main(void)
{
    above_nothing();
    read_and_written();
    hole();
    across_their_beginning();
    handed_to_calls();
    signal_stack();
    coroutine();
    threads_and_locks();
    child();
    file_onto();
    changed();
    return finish();
}
