/* Programs that close descriptors which they did not open, or use them all up: their memory must
   not suffer. */
#include "common.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>

#define PAGES ((size_t)2048)

static char *memory;

/* Evicted memory is whole, is written anew and is whole again. */
static void memory_works(const char *after)
{
    static uint64_t seed;
    size_t bad = bad_pages(memory, PAGES, seed);
    seed += PAGES;
    fill(memory, PAGES, seed);
    pressure(32);
    bad += bad_pages(memory, PAGES, seed);
    check(bad == 0, "memory after %s: %zu bad pages", after, bad);
}

static int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    if (!dir)
        die("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    /* Less `.`, `..` and the directory itself. */
    return n - 3;
}

static void closing(void)
{
    /* Whoever starts the tests may leave some open; under overspill they are as many. */
    printf("     a program starts with %d descriptors\n", open_descriptors());
    printf("     the first that it opens is number %d\n", open("/dev/null", O_RDONLY));
    closefrom(3);
    memory_works("closefrom(3)");
    check(close_range(3, ~0U, 0) == 0, "close_range");
    memory_works("close_range(3, ~0, 0)");
    int closed = 0;
    for (int fd = 3; fd < 5000; fd++)
        closed += close(fd) == 0;
    check(closed == 0, "%d of 5000 numbers were open", closed);
    memory_works("closing each number");
    int found = 0;
    for (int fd = 3; fd < 5000; fd++) {
        struct stat status;
        found += fcntl(fd, F_GETFD) >= 0 || fstat(fd, &status) == 0 || dup(fd) >= 0;
    }
    check(found == 0, "none is open by fcntl, fstat or dup: %d", found);
    /* As high as the limit allows, but not above what it usually is. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int high = limit.rlim_cur < 1024 ? (int)limit.rlim_cur : 1024, wrong = 0;
    for (int fd = 3; fd < high; fd++)
        wrong += dup2(0, fd) != fd;
    check(wrong == 0, "dup2 over each number");
    memory_works("dup2 over each number");
    closefrom(3);
    check(open_descriptors() == 3, "%d descriptors are left", open_descriptors());
}

static void in_a_child(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        failures = 0;
        closefrom(3);
        memory_works("closefrom in a child");
        int ends[2];
        check(pipe(ends) == 0 && ends[0] == 3 && ends[1] == 4,
              "a pipe has the lowest numbers in a child");
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    check(reap(pid) == 0, "a child that closes all");
}

/* Nobody but the program holds its descriptors: a pipe ends when the program closes its other end,
   in a process that inherited it as well. */
static void ends_of_pipes(void)
{
    int ends[2];
    char byte = 0;
    if (pipe(ends) != 0)
        die("pipe");
    memory_works("opening a pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        close(ends[1]);
        fill(memory, 16, 77);
        ssize_t first = read(ends[0], &byte, 1), second = read(ends[0], &byte, 1);
        _exit(first == 1 && second == 0 ? 0 : 1);
    }
    close(ends[0]);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    close(ends[1]);
    check(reap(pid) == 0, "a child reads to the end of a pipe");

    signal(SIGPIPE, SIG_IGN);
    if (pipe(ends) != 0)
        die("pipe");
    pid = fork_flushed();
    if (pid == 0) {
        close(ends[0]);
        close(ends[1]);
        pause();
    }
    close(ends[0]);
    /* The child may need a moment to close its copy. */
    ssize_t written = 1;
    for (int i = 0; written == 1 && i < 1000; i++) {
        written = write(ends[1], "x", 1);
        usleep(5000);
    }
    check(written == -1 && errno == EPIPE, "a pipe that nobody reads: EPIPE");
    close(ends[1]);
    kill(pid, SIGKILL);
    reap(pid);

    char name[] = "semantics-fd-XXXXXX";
    int file = mkstemp(name);
    flock(file, LOCK_EX);
    pid = fork_flushed();
    if (pid == 0) {
        fill(memory, 16, 78);
        pause();
    }
    flock(file, LOCK_UN);
    close(file);
    file = open(name, O_RDWR);
    check(flock(file, LOCK_EX | LOCK_NB) == 0, "a lock that was given back can be had again");
    kill(pid, SIGKILL);
    reap(pid);
    close(file);
    unlink(name);
}

/* Not one descriptor is left, neither for the program nor for its children. */
static void none_left(void)
{
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = 40;
    setrlimit(RLIMIT_NOFILE, &few);
    int n = 0;
    while (open("/dev/null", O_RDONLY) >= 0)
        n++;
    check(errno == EMFILE && n == 37, "%d files can be opened with a limit of 40", n);
    memory_works("opening all that the limit allows");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        failures = 0;
        memory_works("a fork without a descriptor left");
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    check(reap(pid) == 0, "a child without a descriptor left");
    memory_works("that child");
    closefrom(3);
    few.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &few);
    memory_works("a limit of 3");
    setrlimit(RLIMIT_NOFILE, &before);
}

int main(void)
{
    memory = map_pages(PAGES);
    fill(memory, PAGES, 0);
    pressure(32);
    closing();
    in_a_child();
    ends_of_pipes();
    none_left();
    check(open_descriptors() == 3, "%d descriptors at the end", open_descriptors());
    /* As daemons do: not even the standard ones. */
    fflush(stdout);
    int saved = dup(1);
    close(0);
    close(1);
    close(2);
    memory_works("closing the standard descriptors");
    dup2(saved, 1);
    return finish();
}
