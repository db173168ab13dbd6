/* A process that gives up its rights and forks afterwards: what was evicted before and after is
   whole on both sides. */
#include "common.h"
#include <grp.h>
#include <sys/prctl.h>

#define PAGES ((size_t)16000)
#define NOBODY 65534

static char *memory;

static int verdict(size_t bad)
{
    return bad ? 1 : 0;
}

/* Looks at everything, writes everything anew, and looks again. */
static size_t bad_and_rewritten(uint64_t seed, uint64_t next)
{
    size_t bad = bad_pages(memory, PAGES, seed);
    fill(memory, PAGES, next);
    return bad + bad_pages(memory, PAGES, next);
}

/* A child and a grandchild of a process without rights. */
static void generations(uint64_t seed, const char *how)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        size_t bad = bad_and_rewritten(seed, seed + 1 * PAGES);
        pid_t grandchild = fork_flushed();
        if (grandchild == 0)
            _exit(verdict(bad_and_rewritten(seed + 1 * PAGES, seed + 2 * PAGES)));
        bad += bad_and_rewritten(seed + 1 * PAGES, seed + 3 * PAGES);
        _exit(verdict(bad) + 2 * reap(grandchild));
    }
    size_t bad = bad_and_rewritten(seed, seed + 4 * PAGES);
    check(bad == 0, "the parent's pages, %s", how);
    check(reap(pid) == 0, "those of its child and grandchild, %s", how);
    check(bad_pages(memory, PAGES, seed + 4 * PAGES) == 0, "and the parent's again, %s", how);
}

/* Several children at a time, many one after the other. */
static void many_children(uint64_t seed)
{
    int status = 0;
    for (int round = 0; round < 4; round++) {
        pid_t pids[3];
        for (int i = 0; i < 3; i++) {
            pids[i] = fork_flushed();
            if (pids[i] == 0) {
                size_t first = (size_t)i * (PAGES / 4);
                size_t bad = bad_pages(memory + first * PAGE, PAGES / 4, seed + first);
                fill(memory + first * PAGE, PAGES / 4, seed + 9 * PAGES);
                _exit(verdict(bad + bad_pages(memory + first * PAGE, PAGES / 4, seed + 9 * PAGES)));
            }
        }
        for (int i = 0; i < 3; i++)
            status |= reap(pids[i]);
    }
    check(status == 0, "twelve children");
    check(bad_pages(memory, PAGES, seed) == 0, "and the parent after them");
}

/* A signal for each look at the clock, or for each system call: where that can be had memory works
   with it, and where not it fails as on a machine without. */
static void signals_for_everything(void)
{
    static char selector;
    int refused = prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0;
    check(!refused || errno == EINVAL, "no clock");
    fill(memory, PAGES, 3);
    size_t bad = bad_pages(memory, PAGES, 3);
    prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0);
    refused = prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector) != 0;
    check(!refused || errno == EINVAL, "no system calls");
    if (!refused)
        prctl(59, 0, 0, 0, 0);
    check(bad + bad_pages(memory, PAGES, 3) == 0, "memory meanwhile");
}

int main(void)
{
    memory = map_pages(PAGES);
    signals_for_everything();
    fill(memory, PAGES, 0);
    if (geteuid() == 0) {
        /* The working directory may lie where only root gets to; the root directory is
           everybody's. */
        if (chdir("/") != 0 || setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
            setresuid(NOBODY, NOBODY, NOBODY) != 0)
            die("setresuid");
    } else {
        printf("     only root can become another user: this part is left out\n");
    }
    generations(0, "without rights");
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    generations(4 * PAGES, "and not dumpable");
    many_children(8 * PAGES);
    return finish();
}
