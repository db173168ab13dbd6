/* madvise(2) on memory that is evicted, resident, or both: what it discards reads as zeros, what it
   hints at stays. */
#include "common.h"

#define PAGES ((size_t)4096)

/* Every `stride`-th run of `run` pages is discarded; the others stay. */
static void discard_runs(char *p, size_t stride, size_t run)
{
    for (size_t i = 0; i + run <= PAGES; i += stride)
        if (madvise(p + i * PAGE, run * PAGE, MADV_DONTNEED) != 0)
            die("madvise");
}

static void check_runs(const char *p, size_t stride, size_t run, uint64_t seed, const char *what)
{
    size_t stale = 0, lost = 0;
    for (size_t i = 0; i < PAGES; i++) {
        const char *page = p + i * PAGE;
        if (i % stride < run && i - i % stride + run <= PAGES)
            stale += nonzero(page, PAGE) != 0;
        else
            lost += !page_is(page, seed + i);
    }
    check(stale == 0 && lost == 0, "%s, %zu of %zu pages: %zu stale, %zu lost", what, run, stride,
          stale, lost);
}

static void dontneed(char *p, int evict)
{
    const char *state = evict ? "DONTNEED of evicted pages" : "DONTNEED of resident pages";
    static const size_t runs[][2] = {{2, 1}, {16, 5}, {97, 33}, {600, 512}};
    fill(p, PAGES, 1);
    if (evict)
        push_out(p, PAGES * PAGE);
    check(madvise(p, PAGES * PAGE, MADV_DONTNEED) == 0, "%s returns 0", state);
    check(nonzero(p, PAGES * PAGE) == 0, "%s reads as zeros", state);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        fill(p, PAGES, 2 + i);
        if (evict)
            push_out(p, PAGES * PAGE);
        discard_runs(p, runs[i][0], runs[i][1]);
        check_runs(p, runs[i][0], runs[i][1], 2 + i, state);
    }
    /* Some of a run resident, some out: the first half is read back before it is discarded. */
    fill(p, PAGES, 10);
    pressure(40);
    check(bad_pages(p, 64, 10) == 0, "%s: read back first", state);
    discard_runs(p, 600, 512);
    check_runs(p, 600, 512, 10, state);
    /* What was discarded takes new content. */
    fill(p, PAGES, 11);
    pressure(40);
    check(bad_pages(p, PAGES, 11) == 0, "%s: written again", state);
}

static void advise_free(char *p)
{
    size_t other = 0;
    fill(p, PAGES, 20);
    check(madvise(p, PAGES * PAGE, MADV_FREE) == 0, "FREE returns 0");
    pressure(40);
    for (size_t i = 0; i < PAGES; i++)
        other += !page_is(p + i * PAGE, 20 + i) && nonzero(p + i * PAGE, PAGE) != 0;
    check(other == 0, "after FREE a page holds what it held, or zeros: %zu others", other);
    fill(p, PAGES, 21);
    check(madvise(p, PAGES * PAGE, MADV_FREE) == 0, "FREE once more");
    fill(p, PAGES, 22);
    pressure(40);
    check(bad_pages(p, PAGES, 22) == 0, "pages written after FREE stay");
}

static void hints(char *p)
{
    static const struct { int advice; const char *name; } all[] = {
        {MADV_NORMAL, "NORMAL"}, {MADV_RANDOM, "RANDOM"}, {MADV_SEQUENTIAL, "SEQUENTIAL"},
        {MADV_WILLNEED, "WILLNEED"}, {MADV_COLD, "COLD"}, {MADV_PAGEOUT, "PAGEOUT"},
        {MADV_DONTDUMP, "DONTDUMP"}, {MADV_DODUMP, "DODUMP"},
        {MADV_HUGEPAGE, "HUGEPAGE"}, {MADV_NOHUGEPAGE, "NOHUGEPAGE"},
        {MADV_POPULATE_READ, "POPULATE_READ"}, {MADV_POPULATE_WRITE, "POPULATE_WRITE"},
    };
    fill(p, PAGES, 30);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (i % 2)
            pressure(32);
        int result = madvise(p, PAGES * PAGE, all[i].advice), error = result ? errno : 0;
        /* A kernel built without huge pages refuses those two; it does so under overspill as
           well. */
        printf("     %s returns %d, errno %d\n", all[i].name, result, error);
        check(bad_pages(p, PAGES, 30) == 0, "%s leaves the content alone", all[i].name);
    }
}

static int touch_as_child(void *argument)
{
    volatile char *p = argument;
    return *p == 0 ? 0 : 1;
}

static int in_child(int (*what)(void *), void *argument)
{
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(what(argument));
    return reap(pid);
}

static int all_zero(void *p)
{
    return nonzero(p, PAGES / 2 * PAGE) != 0;
}

static int all_kept(void *p)
{
    return bad_pages(p, PAGES / 2, 40) != 0;
}

static void at_fork(char *p)
{
    fill(p, PAGES, 40);
    pressure(40);
    check(madvise(p, PAGES / 2 * PAGE, MADV_DONTFORK) == 0, "DONTFORK returns 0");
    check(in_child(touch_as_child, p) == 128 + SIGSEGV,
          "a child has nothing where the parent said DONTFORK");
    check(bad_pages(p, PAGES, 40) == 0, "the parent keeps it");
    check(madvise(p, PAGES / 2 * PAGE, MADV_DOFORK) == 0, "DOFORK returns 0");
    check(in_child(all_kept, p) == 0, "a child has it again after DOFORK");
    pressure(40);
    check(madvise(p, PAGES / 2 * PAGE, MADV_WIPEONFORK) == 0, "WIPEONFORK returns 0");
    check(in_child(all_zero, p) == 0, "a child reads zeros where the parent said WIPEONFORK");
    check(bad_pages(p, PAGES, 40) == 0, "the parent keeps it");
    check(madvise(p, PAGES / 2 * PAGE, MADV_KEEPONFORK) == 0, "KEEPONFORK returns 0");
    check(in_child(all_kept, p) == 0, "a child has it again after KEEPONFORK");
}

static void errors(char *p)
{
    check(madvise(p + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL,
          "an address inside a page: EINVAL");
    check(madvise(p, PAGE, 12345) == -1 && errno == EINVAL, "an advice that there is not: EINVAL");
    check(madvise(p, 0, MADV_DONTNEED) == 0, "no length: 0");
    check(madvise(p, PAGE, MADV_REMOVE) == -1 && errno == EINVAL,
          "REMOVE of private memory: EINVAL");
    char *hole = map_pages(3);
    fill(hole, 3, 50);
    munmap(hole + PAGE, PAGE);
    check(madvise(hole, 3 * PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM,
          "a hole in the range: ENOMEM");
    check(nonzero(hole, PAGE) == 0 && nonzero(hole + 2 * PAGE, PAGE) == 0,
          "what there is beside the hole is discarded all the same");
    munmap(hole, 3 * PAGE);
}

int main(void)
{
    char *p = map_pages(PAGES);
    dontneed(p, 0);
    dontneed(p, 1);
    advise_free(p);
    hints(p);
    at_fork(p);
    errors(p);
    munmap(p, PAGES * PAGE);
    /* Allocators of applications advise on memory that came from malloc, too. */
    p = heap_pages(PAGES);
    dontneed(p, 1);
    free(p);
    return finish();
}
