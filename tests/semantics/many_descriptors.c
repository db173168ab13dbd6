/* A program that may have so many descriptors that the engine's are among its own, as in
   containers, has opened all of them, and forks. */
#include "common.h"
#include <sys/resource.h>

#define PAGES ((size_t)2048)
#define MANY 20000

static char *memory;

static void memory_is_whole(const char *where)
{
    pressure(32);
    size_t bad = bad_pages(memory, PAGES, 0);
    check(bad == 0, "memory %s: %zu bad pages", where, bad);
}

static void forks(const char *how)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        memory_is_whole("of a child");
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    check(reap(pid) == 0, "a child of a program that has %s", how);
    memory_is_whole("after that");
}

int main(int count, char **arguments)
{
    struct rlimit limit, many = {MANY, MANY};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (count == 1 && limit.rlim_max < MANY) {
        printf("SKIP: there are no %d descriptors here\n", MANY);
        return 0;
    }
    /* The program begins with this limit. */
    if (count == 1) {
        setrlimit(RLIMIT_NOFILE, &many);
        execl("/proc/self/exe", arguments[0], "begins", NULL);
        die("/proc/self/exe");
    }
    memory = map_pages(PAGES);
    fill(memory, PAGES, 0);
    pressure(32);
    while (open("/dev/null", O_RDONLY) >= 0) {
    }
    check(errno == EMFILE, "all are open");
    forks("all of its descriptors open");
    closefrom(3);
    forks("closed them");
    return finish();
}
