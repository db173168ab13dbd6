/* mremap(2): memory that grows, shrinks and moves, evicted or not, and what happens where it
   was. */
#include "common.h"

#define PAGES ((size_t)4096)

/* Memory of `pages` pages with as many free pages after it. */
static char *with_room(size_t pages)
{
    char *p = map_pages(2 * pages);
    if (munmap(p + pages * PAGE, pages * PAGE) != 0)
        die("munmap");
    return p;
}

static void grow_in_place(int evict)
{
    char *p = with_room(PAGES);
    fill(p, PAGES, 1);
    if (evict)
        pressure(40);
    char *q = mremap(p, PAGES * PAGE, (PAGES + 1000) * PAGE, 0);
    check(q == p, "memory with room behind it grows where it is");
    if (q == MAP_FAILED)
        q = p;
    else
        check(nonzero(q + PAGES * PAGE, 1000 * PAGE) == 0, "the new part is zeros");
    check(bad_pages(p, PAGES, 1) == 0, "the old part is kept");
    if (q != MAP_FAILED)
        fill(p + PAGES * PAGE, 1000, 1 + PAGES);
    pressure(40);
    check(bad_pages(p, PAGES + 1000, 1) == 0, "all of it keeps what is written");
    munmap(p, (PAGES + 1000) * PAGE);

    p = map_pages(16);
    fill(p, 16, 2);
    char *fence = mmap(p + 16 * PAGE, PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    q = mremap(p, 16 * PAGE, 17 * PAGE, 0);
    check(q == MAP_FAILED && errno == ENOMEM,
          "memory without room cannot grow where it is: ENOMEM");
    check(bad_pages(p, 16, 2) == 0, "and stays as it was");
    munmap(p, 16 * PAGE);
    if (fence != MAP_FAILED)
        munmap(fence, PAGE);
}

static void grow_and_move(int evict)
{
    size_t pages = 512;
    char *p = map_pages(pages);
    fill(p, pages, 10);
    for (; pages < 16 * 1024; pages *= 2) {
        if (evict)
            push_out(p, pages * PAGE);
        char *q = mremap(p, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
        if (q == MAP_FAILED)
            die("mremap");
        size_t bad = bad_pages(q, pages, 10), stale = nonzero(q + pages * PAGE, pages * PAGE);
        check(bad == 0 && stale == 0, "from %zu pages to twice as many: %zu bad, %zu not zero",
              pages, bad, stale);
        p = q;
        fill(p + pages * PAGE, pages, 10 + pages);
    }
    char *q = mremap(p, pages * PAGE, 100 * PAGE, 0);
    check(q == p && bad_pages(p, 100, 10) == 0, "it shrinks where it is");
    check(fault_of(p + 100 * PAGE, 0) == SIGSEGV && fault_of(p + (pages - 1) * PAGE, 1) == SIGSEGV,
          "what was cut off is gone");
    munmap(p, 100 * PAGE);
}

static void fixed(int evict)
{
    char *p = map_pages(PAGES), *target = map_pages(2 * PAGES);
    fill(p, PAGES, 20);
    fill(target, 2 * PAGES, 21000);
    if (evict) {
        push_out(p, PAGES * PAGE);
        push_out(target, 2 * PAGES * PAGE);
    }
    char *to = target + 500 * PAGE;
    check(mremap(p, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to,
          "FIXED moves to the given place");
    check(bad_pages(to, PAGES, 20) == 0, "with its content");
    check(bad_pages(target, 500, 21000) == 0 &&
              bad_pages(to + PAGES * PAGE, PAGES - 500, 21000 + 500 + PAGES) == 0,
          "what lies beside it stays");
    check(fault_of(p, 0) == SIGSEGV && fault_of(p + (PAGES - 1) * PAGE, 1) == SIGSEGV,
          "nothing is left where it was");
    pressure(40);
    check(bad_pages(to, PAGES, 20) == 0, "it keeps its content there");
    fill(to, PAGES, 22);
    pressure(40);
    check(bad_pages(to, PAGES, 22) == 0, "and what is written then");
    munmap(target, 2 * PAGES * PAGE);

    /* A part from the middle, grown on the way, to a place where nothing is. */
    p = map_pages(PAGES);
    fill(p, PAGES, 30);
    target = map_pages(2 * PAGES);
    munmap(target, 2 * PAGES * PAGE);
    if (evict)
        push_out(p, PAGES * PAGE);
    char *q =
        mremap(p + 1000 * PAGE, 700 * PAGE, 900 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    check(q == target && bad_pages(q, 700, 1030) == 0 && nonzero(q + 700 * PAGE, 200 * PAGE) == 0,
          "a part from the middle moves and grows");
    check(bad_pages(p, 1000, 30) == 0 && bad_pages(p + 1700 * PAGE, PAGES - 1700, 1730) == 0,
          "the parts around it stay");
    check(fault_of(p + 1000 * PAGE, 1) == SIGSEGV && fault_of(p + 1699 * PAGE, 0) == SIGSEGV,
          "and between them there is a hole");
    char *filled = mmap(p + 1000 * PAGE, 700 * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    check(filled == p + 1000 * PAGE && nonzero(filled, 700 * PAGE) == 0,
          "which new memory of zeros fills");
    munmap(q, 900 * PAGE);
    munmap(p, PAGES * PAGE);
}

static void dontunmap(void)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 40);
    pressure(40);
    char *q = mremap(p, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    check(q != MAP_FAILED && q != p, "DONTUNMAP moves");
    check(bad_pages(q, PAGES, 40) == 0, "the content moves along");
    check(nonzero(p, PAGES * PAGE) == 0, "and zeros stay behind");
    fill(p, PAGES, 41);
    pressure(40);
    check(bad_pages(p, PAGES, 41) == 0 && bad_pages(q, PAGES, 40) == 0,
          "both are memory of their own");
    munmap(p, PAGES * PAGE);
    munmap(q, PAGES * PAGE);
}

#define REFUSED(call, error) ((call) == MAP_FAILED && errno == (error))

static void errors(void)
{
    char *p = map_pages(64);
    fill(p, 64, 50);
    pressure(40);
    check(REFUSED(mremap(p + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EINVAL),
          "an address inside a page: EINVAL");
    check(REFUSED(mremap(p, 64 * PAGE, 0, MREMAP_MAYMOVE), EINVAL), "to no size: EINVAL");
    check(REFUSED(mremap(p, 0, PAGE, MREMAP_MAYMOVE), EINVAL), "a copy of private memory: EINVAL");
    check(REFUSED(mremap(p, 32 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 16 * PAGE),
                  EINVAL),
          "onto itself: EINVAL");
    check(REFUSED(mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_FIXED, p + 32 * PAGE), EINVAL),
          "FIXED without MAYMOVE: EINVAL");
    check(REFUSED(mremap(p, 8 * PAGE, 8 * PAGE, 64), EINVAL), "a flag that there is not: EINVAL");
    munmap(p + 32 * PAGE, PAGE);
    check(REFUSED(mremap(p + 30 * PAGE, 8 * PAGE, 9 * PAGE, MREMAP_MAYMOVE), EFAULT),
          "over a hole: EFAULT");
    check(REFUSED(mremap(p + 32 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT),
          "of nothing: EFAULT");
    check(bad_pages(p, 32, 50) == 0 && bad_pages(p + 33 * PAGE, 31, 83) == 0,
          "none of which does anything");
    munmap(p, 64 * PAGE);
}

/* Six pages in three mappings: the third page may only be read, and behind it is a hole of one. */
static char *three(int flags, uint64_t seed)
{
    char *p =
        mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    fill(p, 6, seed);
    if (mprotect(p + 2 * PAGE, PAGE, PROT_READ) != 0 || munmap(p + 3 * PAGE, PAGE) != 0)
        die("mprotect");
    return p;
}

/* Several mappings at once, which move as they are to an address that is given (Linux 6.17). */
static void several(void)
{
    /* Not of the kind that is managed: here the kernel answers. */
    char *stack = three(MAP_STACK, 1),
         *there = mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (mremap(stack, 6 * PAGE, 6 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) != there) {
        printf("left out: several mappings at once\n");
        return;
    }
    for (int keep = 0; keep < 2; keep++) {
        char *p = three(0, 60), *q = map_pages(6);
        fill(q, 6, 70);
        pressure(40);
        check(mremap(p, 6 * PAGE, 6 * PAGE,
                     MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0), q) == q,
              "three mappings move");
        check(bad_pages(q, 3, 60) == 0 && bad_pages(q + 4 * PAGE, 2, 64) == 0,
              "with their content");
        check(fault_of(q + PAGE, 1) == 0 && fault_of(q + 2 * PAGE, 1) == SIGSEGV &&
                  fault_of(q + 4 * PAGE, 1) == 0,
              "each as it was");
        check(page_is(q + 3 * PAGE, 73), "where there was a hole, what was there stays");
        check(keep ? nonzero(p, 3 * PAGE) == 0 && nonzero(p + 4 * PAGE, 2 * PAGE) == 0
                   : fault_of(p, 0) == SIGSEGV && fault_of(p + 5 * PAGE, 0) == SIGSEGV,
              "what stays behind");
        fill(q, 2, 80);
        pressure(40);
        check(bad_pages(q, 2, 80) == 0 && page_is(q + 5 * PAGE, 65), "they are memory as before");
        munmap(p, 6 * PAGE);
        munmap(q, 6 * PAGE);
    }
    char *p = three(0, 90), *q = map_pages(8);
    check(REFUSED(mremap(p, 6 * PAGE, 7 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q), EFAULT),
          "to more: EFAULT");
    check(REFUSED(mremap(p, 6 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q), EFAULT),
          "to less that is several: EFAULT");
    check(
        REFUSED(mremap(p + 3 * PAGE, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q), EFAULT),
        "with a hole first: EFAULT");
    check(bad_pages(p, 3, 90) == 0 && bad_pages(p + 4 * PAGE, 2, 94) == 0,
          "none of which does anything");
    check(mremap(p, 6 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q,
          "to less that is one");
    check(bad_pages(q, 2, 90) == 0 && fault_of(p, 0) == SIGSEGV &&
              fault_of(p + 5 * PAGE, 0) == SIGSEGV,
          "moves that, and the rest goes");
    munmap(q, 8 * PAGE);
}

/* A file that is mapped in the middle of other memory moves as well, and leaves a hole. */
static void files(void)
{
    FILE *file = tmpfile();
    char page[4096];
    for (uint64_t i = 0; i < 8; i++) {
        fill_page(page, 70 + i);
        fwrite(page, PAGE, 1, file);
    }
    fflush(file);
    char *p = map_pages(64);
    fill(p, 64, 900);
    char *f =
        (char *)mmap(p + 8 * PAGE, 4 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(file), 0);
    check(f == p + 8 * PAGE && bad_pages(f, 4, 70) == 0, "a file");
    f = (char *)mremap(f, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 32 * PAGE);
    check(f == p + 32 * PAGE && bad_pages(f, 8, 70) == 0, "which moves and grows");
    check(fault_of(p + 8 * PAGE, 0) == SIGSEGV, "the hole that it leaves");
    f = (char *)mremap(f, 8 * PAGE, 2 * PAGE, 0);
    check(f == p + 32 * PAGE && bad_pages(f, 2, 70) == 0 && fault_of(f + 2 * PAGE, 0) == SIGSEGV,
          "which shrinks");
    f = (char *)mremap(f, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    check(f != MAP_FAILED && bad_pages(f, 4, 70) == 0, "which grows elsewhere");
    char *filled = map_pages(64);
    fill(filled, 64, 0);
    pressure(40);
    check(bad_pages(p, 8, 900) == 0 && bad_pages(p + 12 * PAGE, 20, 912) == 0,
          "what lies beside it");
    check(bad_pages(filled, 64, 0) == 0 && bad_pages(f, 4, 70) == 0, "and is mapped in its place");
    /* Behind the end of the file. */
    if (ftruncate(fileno(file), 2 * (off_t)PAGE) != 0)
        die("ftruncate");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        (void)*(volatile char *)(f + 3 * PAGE);
        _exit(0);
    }
    check(reap(pid) == 128 + SIGBUS, "behind the end of the file: SIGBUS");
    /* Where the program has made room it is put, and grows. */
    char *room = map_pages(8);
    munmap(room, 8 * PAGE);
    char *in = mmap(room, 2 * PAGE, PROT_READ, MAP_SHARED, fileno(file), 0);
    check(in == room && bad_pages(in, 2, 70) == 0, "a file where there is room");
    check(mremap(in, 2 * PAGE, 6 * PAGE, 0) == in && bad_pages(in, 2, 70) == 0,
          "which grows where it is");
    char *next = map_pages(1);
    check(next + PAGE <= in || next >= in + 6 * PAGE, "other memory lies beside it");
    check(munmap(in, 6 * PAGE) == 0 && fault_of(in + 5 * PAGE, 0) == SIGSEGV, "and is given back");
    munmap(next, PAGE);
    munmap(filled, 64 * PAGE);
    munmap(f, 4 * PAGE);
    munmap(p, 64 * PAGE);
    fclose(file);
}

int main(void)
{
    for (int evict = 0; evict < 2; evict++) {
        printf("     %s pages\n", evict ? "evicted" : "resident");
        grow_in_place(evict);
        grow_and_move(evict);
        fixed(evict);
    }
    dontunmap();
    files();
    errors();
    several();
    return finish();
}
