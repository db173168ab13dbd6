/* munmap(2) and mappings laid over others: what is gone raises SIGSEGV, what is new is new, what is
   beside stays. */
#include "common.h"

#define PAGES ((size_t)4096)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static int is_gone(char *p, size_t first, size_t pages)
{
    return fault_of(p + first * PAGE, 0) == SIGSEGV &&
           fault_of(p + (first + pages - 1) * PAGE, 1) == SIGSEGV;
}

static void parts(int evict)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 1);
    if (evict)
        pressure(40);
    check(munmap(p + 1000 * PAGE, 500 * PAGE) == 0 && is_gone(p, 1000, 500), "the middle goes");
    check(bad_pages(p, 1000, 1) == 0 && bad_pages(p + 1500 * PAGE, PAGES - 1500, 1501) == 0,
          "both sides stay");
    check(munmap(p, 10 * PAGE) == 0 && is_gone(p, 0, 10), "the beginning goes");
    check(munmap(p + (PAGES - 10) * PAGE, 10 * PAGE) == 0 && is_gone(p, PAGES - 10, 10),
          "the end goes");
    check(munmap(p + 900 * PAGE, 700 * PAGE) == 0 && is_gone(p, 900, 700),
          "pages around the hole go");
    pressure(40);
    check(bad_pages(p + 10 * PAGE, 890, 11) == 0 &&
              bad_pages(p + 1600 * PAGE, PAGES - 1610, 1601) == 0,
          "what is left stays");
    char *q = mmap(p + 1000 * PAGE, 100 * PAGE, PROT_READ | PROT_WRITE,
                   ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    check(q == p + 1000 * PAGE && nonzero(q, 100 * PAGE) == 0,
          "the hole can be used again, and is zeros");
    fill(q, 100, 50);
    pressure(40);
    check(bad_pages(q, 100, 50) == 0, "and keeps what is written");
    check(munmap(p, PAGES * PAGE) == 0 && is_gone(p, 0, PAGES) && is_gone(p, 1000, 100),
          "all of it goes in one call");
    check(munmap(p, PAGES * PAGE) == 0, "unmapping nothing is no error");
}

static void laid_over(void)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 100);
    pressure(40);
    char *at = p + 700 * PAGE;
    check(mmap(at, 300 * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at,
          "MAP_FIXED over evicted memory");
    check(nonzero(at, 300 * PAGE) == 0, "is zeros");
    check(bad_pages(p, 700, 100) == 0 && bad_pages(p + 1000 * PAGE, PAGES - 1000, 1100) == 0,
          "beside it nothing changes");
    fill(at, 300, 5000);
    check(mmap(at, 100 * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at &&
              nonzero(at, 100 * PAGE) == 0,
          "MAP_FIXED over resident memory is zeros");
    pressure(40);
    check(nonzero(at, 100 * PAGE) == 0 && bad_pages(at + 100 * PAGE, 200, 5100) == 0,
          "and stays so under pressure");
    /* How a runtime gives memory back and keeps the addresses. */
    check(mmap(at, 300 * PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at &&
              is_gone(at, 0, 300),
          "a reservation over it raises SIGSEGV");
    check(mprotect(at, 300 * PAGE, PROT_READ | PROT_WRITE) == 0 && nonzero(at, 300 * PAGE) == 0,
          "opened again it is zeros");
    fill(at, 300, 6000);
    pressure(40);
    check(bad_pages(at, 300, 6000) == 0, "and memory like any other");
    check(mmap(p, PAGE, PROT_READ, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
              errno == EEXIST,
          "NOREPLACE over memory: EEXIST");
    check(mmap(p + (PAGES - 1) * PAGE, 2 * PAGE, PROT_READ, ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
               0) == MAP_FAILED &&
              errno == EEXIST,
          "NOREPLACE over its end: EEXIST");
    check(page_is(p, 100), "which changes nothing");
    munmap(p, PAGES * PAGE);
}

static void files_over(void)
{
    /* No managed memory: system calls are handed it, which `--fault signal` does not bear. */
    static char content[64 * 4096] __attribute__((aligned(4096)));
    char name[] = "semantics-unmap-XXXXXX";
    int file = mkstemp(name);
    char *p = map_pages(PAGES);
    fill(content, 64, 900);
    if (file < 0 || unlink(name) != 0 || write(file, content, 64 * PAGE) != 64 * 4096)
        die(name);
    fill(p, PAGES, 200);
    pressure(40);
    char *at = p + 1000 * PAGE;
    check(mmap(at, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at &&
              bad_pages(at, 64, 900) == 0,
          "a shared file over evicted memory");
    fill_page(at + 3 * PAGE, 950);
    char *page = content;
    check(pread(file, page, PAGE, 3 * 4096) == 4096 && page_is(page, 950),
          "what is written there is in the file");
    check(bad_pages(p, 1000, 200) == 0 && bad_pages(at + 64 * PAGE, PAGES - 1064, 1264) == 0,
          "beside it nothing changes");
    pressure(40);
    check(bad_pages(at, 3, 900) == 0 && page_is(at + 3 * PAGE, 950), "it stays under pressure");
    check(munmap(at, 64 * PAGE) == 0 && is_gone(at, 0, 64), "it goes");
    check(mmap(at, 64 * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at &&
              nonzero(at, 64 * PAGE) == 0,
          "anonymous memory of zeros in its place");
    fill(at, 64, 300);
    pressure(40);
    check(bad_pages(at, 64, 300) == 0, "keeps its content");
    check(mmap(at, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == at &&
              page_is(at + 3 * PAGE, 950),
          "a private file over it");
    fill_page(at + 3 * PAGE, 960);
    check(pread(file, page, PAGE, 3 * 4096) == 4096 && page_is(page, 950),
          "keeps writes to itself");
    pressure(40);
    check(page_is(at + 3 * PAGE, 960), "and keeps them");
    check(munmap(p, PAGES * PAGE) == 0, "all of it goes in one call");
    close(file);
}

static void shared_over(void)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 400);
    pressure(40);
    char *at = p + 10 * PAGE;
    check(mmap(at, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == at &&
              nonzero(at, 4 * PAGE) == 0,
          "shared memory over evicted memory");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        fill_page(at, 444);
        fill_page(p, 445);
        _exit(0);
    }
    check(reap(pid) == 0 && page_is(at, 444), "what a child writes there is seen");
    check(page_is(p, 400) && bad_pages(p + 14 * PAGE, PAGES - 14, 414) == 0,
          "what it writes beside it is not");
    munmap(p, PAGES * PAGE);
}

static void errors(void)
{
    char *p = map_pages(2);
    check(munmap(p + 1, PAGE) == -1 && errno == EINVAL, "an address inside a page: EINVAL");
    check(munmap(p, 0) == -1 && errno == EINVAL, "no length: EINVAL");
    check(mmap(NULL, 0, PROT_READ, ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL,
          "a mapping of no length: EINVAL");
    check(mmap(p + 1, PAGE, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
              errno == EINVAL,
          "FIXED inside a page: EINVAL");
    check(mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL,
          "neither private nor shared: EINVAL");
    check(mmap(NULL, (size_t)1 << 62, PROT_READ, ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED &&
              errno == ENOMEM,
          "more than there are addresses: ENOMEM");
    check(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 999999, 0) == MAP_FAILED && errno == EBADF,
          "a file that is not open: EBADF");
    munmap(p, 2 * PAGE);
    /* Lengths are rounded up to pages. */
    p = mmap(NULL, 100, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
    p[4095] = 1;
    check(munmap(p, 1) == 0 && fault_of(p + 4095, 0) == SIGSEGV, "lengths are rounded up to pages");
}

int main(void)
{
    parts(0);
    parts(1);
    laid_over();
    files_over();
    shared_over();
    errors();
    return finish();
}
