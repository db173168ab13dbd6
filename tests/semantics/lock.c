/* mlock(2) and its relatives, mincore(2), msync(2): what they return, and that content stays. */
#include "common.h"

#define PAGES ((size_t)256)
#define BALLAST ((size_t)6000)

static void locked(char *p, const char *origin)
{
    fill(p, PAGES, 1);
    pressure(40);
    check(mlock(p, PAGES * PAGE) == 0, "mlock of evicted memory from %s", origin);
    check(bad_pages(p, PAGES, 1) == 0, "it is there");
    pressure(40);
    check(bad_pages(p, PAGES, 1) == 0, "and stays under pressure");
    fill(p, PAGES, 2);
    check(mlock(p + PAGE, PAGE) == 0, "mlock twice");
    check(munlock(p, PAGES / 2 * PAGE) == 0, "munlock of half of it");
    pressure(40);
    check(bad_pages(p, PAGES, 2) == 0, "which stays as well");
    check(munlock(p, PAGES * PAGE) == 0 && munlock(p, PAGES * PAGE) == 0, "munlock of all, twice");
    pressure(40);
    check(bad_pages(p, PAGES, 2) == 0, "unlocked memory stays");
    check(mlock2(p, PAGES * PAGE, MLOCK_ONFAULT) == 0, "mlock2 on fault");
    fill(p, PAGES, 3);
    pressure(40);
    check(bad_pages(p, PAGES, 3) == 0, "stays too");
    check(mlock(p + 100, 10) == 0 && munlock(p + 100, 10) == 0, "addresses inside a page");
    check(madvise(p + PAGE, (PAGES - 1) * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL,
          "DONTNEED of locked memory: EINVAL");
    check(bad_pages(p, PAGES, 3) == 0, "which changes nothing");
    munlock(p, PAGES * PAGE);
}

static void everything(void)
{
    /* A user who may lock little gets ENOMEM natively: the figures are compared, not judged. */
    mlockall(MCL_CURRENT); /* may fail: more than may be locked is in memory */
    char *p = map_pages(BALLAST);
    fill(p, BALLAST, 20);
    pressure(40);
    check(bad_pages(p, BALLAST, 20) == 0, "memory made later");
    check(munlockall() == 0, "munlockall");
    /* Future mappings are locked as they are made: much more than the budget. */
    int all = geteuid() == 0;
    if (all) {
        check(mlockall(MCL_FUTURE) == 0, "mlockall(MCL_FUTURE)");
        char *q = map_pages(BALLAST), *r = heap_pages(BALLAST);
        fill(q, BALLAST, 30);
        fill(r, BALLAST, 40);
        check(bad_pages(q, BALLAST, 30) == 0 && bad_pages(r, BALLAST, 40) == 0,
              "future memory, much of it");
        check(munlockall() == 0, "munlockall again");
        pressure(40);
        check(bad_pages(q, BALLAST, 30) == 0 && bad_pages(r, BALLAST, 40) == 0,
              "stays when it is unlocked");
        munmap(q, BALLAST * PAGE);
        free(r);
    }
    munmap(p, BALLAST * PAGE);
    check(mlockall(0) == -1 && errno == EINVAL, "mlockall of nothing: EINVAL");
}

static void looked_at(void)
{
    char *p = map_pages(PAGES);
    unsigned char *in_core = calloc(1, PAGES);
    fill(p, PAGES, 50);
    pressure(40);
    check(mincore(p, PAGES * PAGE, in_core) == 0, "mincore of evicted memory, into evicted memory");
    check(bad_pages(p, PAGES, 50) == 0, "changes nothing");
    check(mincore(p + 1, PAGE, in_core) == -1 && errno == EINVAL,
          "mincore of an address inside a page: EINVAL");
    for (int flags = 0; flags < 2; flags++)
        check(msync(p, PAGES * PAGE, flags ? MS_ASYNC : MS_SYNC) == 0, "msync of evicted memory");
    check(msync(p + 1, PAGE, MS_SYNC) == -1 && errno == EINVAL,
          "msync of an address inside a page: EINVAL");
    check(msync(p, PAGE, MS_SYNC | MS_ASYNC) == -1 && errno == EINVAL,
          "msync both ways at once: EINVAL");
    munmap(p + PAGE, PAGE);
    check(msync(p, 3 * PAGE, MS_SYNC) == -1 && errno == ENOMEM, "msync over a hole: ENOMEM");
    check(mlock(p, 3 * PAGE) == -1 && errno == ENOMEM, "mlock over a hole: ENOMEM");
    check(mincore(p, 3 * PAGE, in_core) == -1 && errno == ENOMEM, "mincore over a hole: ENOMEM");
    munlock(p, 3 * PAGE);
    check(page_is(p, 50) && bad_pages(p + 2 * PAGE, PAGES - 2, 52) == 0,
          "what is beside the hole stays");
    free(in_core);
    munmap(p, PAGES * PAGE);
}

static void mapped_locked(void)
{
    char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
    check(p != MAP_FAILED && nonzero(p, PAGES * PAGE) == 0, "a mapping with MAP_LOCKED");
    fill(p, PAGES, 60);
    pressure(40);
    check(bad_pages(p, PAGES, 60) == 0, "keeps its content");
    munmap(p, PAGES * PAGE);
    p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
             -1, 0);
    check(p != MAP_FAILED && nonzero(p, PAGES * PAGE) == 0, "a mapping with MAP_POPULATE");
    fill(p, PAGES, 61);
    pressure(40);
    check(bad_pages(p, PAGES, 61) == 0, "keeps its content");
    munmap(p, PAGES * PAGE);
}

/* Whether the first page of a mapping of a file is locked: it cannot be invalidated then. */
static int is_locked(void *p)
{
    return msync(p, PAGE, MS_ASYNC | MS_INVALIDATE) == -1 && errno == EBUSY;
}

/* What no engine manages is locked with the rest, and unlocked with it. */
static void files(void)
{
    char name[] = "lock.XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    if (file < 0 || ftruncate(file, (off_t)PAGE))
        die("a file");
    char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    check(!is_locked(shared), "a mapping of a file is not locked");
    check(mlock(shared, PAGE) == 0 && is_locked(shared), "mlock locks it");
    check(munlockall() == 0 && !is_locked(shared), "munlockall unlocks it");
    if (geteuid() == 0) {
        check(mlockall(MCL_CURRENT) == 0 && is_locked(shared), "mlockall locks it");
        check(munlockall() == 0 && !is_locked(shared), "munlockall unlocks it again");
    }
    munmap(shared, PAGE);
    close(file);
}

int main(void)
{
    files();
    char *p = map_pages(PAGES);
    locked(p, "mmap");
    munmap(p, PAGES * PAGE);
    p = heap_pages(PAGES);
    locked(p, "malloc");
    free(p);
    everything();
    looked_at();
    mapped_locked();
    return finish();
}
