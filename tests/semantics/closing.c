/*
 * All ways to close what a program did not open, by number too; a limit of file sizes that falls
 * while swap is written; barriers between threads.
 */
#include "common.h"
#include <sys/syscall.h>

static size_t pages;
static char *memory;

static void intact(const char *after)
{
    pressure(40);
    check(bad_pages(memory, pages, 5) == 0, "memory is as it was after %s", after);
}

int main(void)
{
    pages = 24 * MIB / PAGE;
    memory = map_pages(pages);
    fill(memory, pages, 5);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        int result = (int)syscall(SYS_close_range, 3, ~0U, 0);
        intact("close_range by number");
        _exit(result != 0 || failures);
    }
    check(reap(pid) == 0, "close_range by number");
    for (int fd = 3; fd < 5000; fd++)
        syscall(SYS_close, fd);
    intact("close by number");
    int refused = 0;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = (unsigned)limit.rlim_cur; fd < limit.rlim_cur + 300; fd++)
        refused += (syscall(SYS_dup2, 1, fd) == -1 && errno == EBADF) +
                   (syscall(SYS_dup3, 1, fd, 0) == -1 && errno == EBADF);
    check(refused == 600, "dup2 and dup3 by number above the limit: %d refused", refused);
    intact("dup2 by number");

    check(syscall(SYS_membarrier, 1 << 3, 0) == -1 && errno == EPERM,
          "a barrier without registration");
    check(syscall(SYS_membarrier, 1 << 4, 0) == 0 && syscall(SYS_membarrier, 1 << 3, 0) == 0,
          "and with it");

    limit = (struct rlimit){4096, RLIM_INFINITY};
    check(setrlimit(RLIMIT_FSIZE, &limit) == 0, "a limit of file sizes");
    pressure(20);
    check(bad_pages(memory, pages, 5) == 0, "memory is as it was under it");
    return finish();
}
