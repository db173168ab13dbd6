/* A program that uses direct I/O forks while it has more than its budget: its pages are shared with
   its child, clean or not, and leave by moving only. */
#include "common.h"

enum { PAGES = 8192 };

/* Looks at all pages, and has a child look meanwhile. */
static void look(char *memory, uint64_t seed, const char *what)
{
    pid_t child = fork();
    if (child < 0)
        die("fork");
    size_t bad = bad_pages(memory, PAGES, seed);
    if (child == 0)
        _exit(bad != 0);
    int status;
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    check(bad == 0, "%s: the parent sees what it wrote", what);
    check(status == 0, "%s: the child sees it too", what);
}

int main(void)
{
    char name[] = "fork_direct.XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name))
        die(name);
    /* Some filesystems refuse; then this is about forks alone. */
    fcntl(file, F_SETFL, O_DIRECT);
    char *memory = map_pages(PAGES);
    fill(memory, PAGES, 1);
    look(memory, 1, "written");
    /* What has been read back and not written is clean. */
    check(bad_pages(memory, PAGES, 1) == 0, "read");
    look(memory, 1, "read");
    fill(memory, PAGES, 2);
    look(memory, 2, "written again");
    return finish();
}
