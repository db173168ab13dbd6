/* Pages that are shared since a fork are one memory: parent and children have all of them in a
   budget that has room for one copy, and what each writes is its own. */
#include "common.h"

#define PAGES ((size_t)6000)
#define CHILDREN 4
#define GENERATIONS 3

static char *pages;

/* Waits until a byte comes, or nobody is left who could send one. */
static void wait_for(int pipe)
{
    char byte;
    if (read(pipe, &byte, 1) < 0)
        die("read");
}

/* Every child has the parent's data, all at the same time. */
static void all_read(void)
{
    int ready[2], go[2];
    if (pipe(ready) != 0 || pipe(go) != 0)
        die("pipe");
    pid_t pids[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        pids[i] = fork_flushed();
        if (pids[i] == 0) {
            close(go[1]);
            size_t bad = bad_pages(pages, PAGES, 1);
            if (write(ready[1], "x", 1) != 1)
                die("write");
            wait_for(go[0]);
            _exit(bad + bad_pages(pages, PAGES, 1) ? 1 : 0);
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        wait_for(ready[0]);
    check(bad_pages(pages, PAGES, 1) == 0, "the parent has its data beside its children");
    close(go[1]);
    int wrong = 0;
    for (int i = 0; i < CHILDREN; i++)
        wrong |= reap(pids[i]);
    check(wrong == 0, "and all of these have them");
    close(go[0]);
    close(ready[0]);
    close(ready[1]);
}

/* A child writes, in order and at random, and its parent does. */
static void both_write(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        fill(pages, PAGES / 4, 100000);
        for (size_t i = PAGES / 4; i < PAGES; i += 7)
            fill(pages + i * PAGE, 1, 200000 + i);
        size_t bad = bad_pages(pages, PAGES / 4, 100000);
        for (size_t i = PAGES / 4; i < PAGES; i++) {
            int written = (i - PAGES / 4) % 7 == 0;
            bad += bad_pages(pages + i * PAGE, 1, written ? 200000 + i : 1 + i);
        }
        _exit(bad ? 1 : 0);
    }
    fill(pages + PAGES / 2 * PAGE, PAGES / 4, 300000);
    check(reap(pid) == 0, "a child has what it wrote, and else what it was given");
    size_t bad = bad_pages(pages, PAGES / 2, 1);
    bad += bad_pages(pages + PAGES / 2 * PAGE, PAGES / 4, 300000);
    bad += bad_pages(pages + PAGES / 4 * 3 * PAGE, PAGES / 4, 1 + PAGES / 4 * 3);
    check(bad == 0, "and the parent the same");
    fill(pages, PAGES, 1);
}

/* What is shared is given up, moved, locked, and read into by the kernel. */
static void other_ways(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        size_t bad = 0, part = PAGES / 8;
        munmap(pages, part * PAGE);
        madvise(pages + part * PAGE, part * PAGE, MADV_DONTNEED);
        for (size_t i = 0; i < part * PAGE; i += PAGE)
            bad += pages[part * PAGE + i] != 0;
        char *moved = mremap(pages + 2 * part * PAGE, part * PAGE, 2 * part * PAGE, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED)
            die("mremap");
        bad += bad_pages(moved, part, 1 + 2 * part);
        fill(moved, part, 400000);
        bad += bad_pages(moved, part, 400000);
        if (mlock(pages + 3 * part * PAGE, 16 * PAGE) != 0)
            die("mlock");
        fill(pages + 3 * part * PAGE, 16, 500000);
        bad += bad_pages(pages + 3 * part * PAGE, 16, 500000);
        int zero = open("/dev/zero", O_RDONLY);
        for (size_t i = 0; i < part; i++)
            if (read(zero, pages + (4 * part + i) * PAGE, PAGE) != PAGE)
                die("read");
        for (size_t i = 0; i < part * PAGE; i++)
            bad += pages[4 * part * PAGE + i] != 0;
        bad += bad_pages(pages + 5 * part * PAGE, PAGES - 5 * part, 1 + 5 * part);
        _exit(bad ? 1 : 0);
    }
    check(reap(pid) == 0, "a child gives up, moves, locks and reads into what it shares");
    check(bad_pages(pages, PAGES, 1) == 0, "its parent has all of it");
}

/* Each generation writes some of what the one before it left, and all live to the end. */
static void generations(void)
{
    int status = 0, generation = 0;
    pid_t pid = 0;
    size_t part = PAGES / 8;
    while (generation < GENERATIONS && (pid = fork_flushed()) == 0) {
        fill(pages + generation * part * PAGE, part, 600000 + generation * part);
        generation++;
        pid = 0;
    }
    if (pid != 0)
        status = reap(pid);
    size_t own = generation * part;
    size_t bad = bad_pages(pages, own, 600000);
    bad += bad_pages(pages + own * PAGE, PAGES - own, 1 + own);
    if (generation > 0)
        _exit(status | (bad ? 1 : 0));
    check(status == 0 && bad == 0, "each of some generations has its own");
}

/* The parent ends first, and the child goes on with all of it. */
static void orphan(void)
{
    int result[2];
    if (pipe(result) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        pid_t parent = getpid();
        if (fork_flushed() != 0)
            _exit(0);
        while (getppid() == parent)
            usleep(1000);
        size_t bad = bad_pages(pages, PAGES, 1);
        fill(pages, PAGES, 700000);
        bad += bad_pages(pages, PAGES, 700000);
        if (write(result[1], bad ? "n" : "y", 1) != 1)
            die("write");
        _exit(0);
    }
    char byte = 0;
    close(result[1]);
    check(reap(pid) == 0, "a parent that ends first");
    check(read(result[0], &byte, 1) == 1 && byte == 'y', "and its child's data");
    close(result[0]);
}

int main(void)
{
    pages = map_pages(PAGES);
    fill(pages, PAGES, 1);
    all_read();
    if (getenv("READ_ONLY") == NULL) {
        both_write();
        other_ways();
        generations();
        orphan();
        check(bad_pages(pages, PAGES, 1) == 0, "all is there in the end");
    }
    return finish();
}
