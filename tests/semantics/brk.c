/*
 * The end of the data (brk and sbrk) as an allocator of a program's own uses it: what it gives is
 * memory like any other, follows what was given before, and is zero when it comes again.
 */
#include "common.h"
#include <sys/syscall.h>

#define BYTES (48 * MIB)
#define PAGES (BYTES / PAGE - 1)

static char *start, *first;

static void given(void)
{
    start = sbrk(0);
    if (start == (void *)-1)
        die("sbrk");
    check(sbrk((intptr_t)BYTES) == start, "it begins where the data ended");
    check(nonzero(start, BYTES) == 0, "it is zero");
    first = start + (PAGE - (uintptr_t)start % PAGE) % PAGE;
    fill(first, PAGES, 1);
    check(bad_pages(first, PAGES, 1) == 0, "and keeps what is written there");
}

static void grown_in_steps(void)
{
    size_t wrong = 0;
    for (int n = 0; n < 1000; n++) {
        char *piece = sbrk(1000);
        wrong += piece != start + BYTES + (size_t)n * 1000 || nonzero(piece, 1000) != 0;
        memset(piece, n, 1000);
    }
    check(wrong == 0, "each piece follows the one before");
    for (int n = 0; n < 1000; n++)
        for (int at = 0; at < 1000; at++)
            wrong += start[BYTES + (size_t)n * 1000 + (size_t)at] != (char)n;
    check(wrong == 0, "and all are kept");
}

static void handed_to_calls(void)
{
    FILE *file = tmpfile();
    if (!file)
        die("tmpfile");
    check(pwrite(fileno(file), first, PAGES * PAGE, 0) == (ssize_t)(PAGES * PAGE), "write");
    memset(first, 0, PAGES * PAGE);
    check(pread(fileno(file), first, PAGES * PAGE, 0) == (ssize_t)(PAGES * PAGE), "read");
    check(bad_pages(first, PAGES, 1) == 0, "what came back is right");
    fclose(file);
}

static void in_a_child(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        int bad = bad_pages(first, PAGES, 1) != 0 || sbrk((intptr_t)MIB) == (void *)-1;
        fill(first, 1000, 9);
        _exit(bad || bad_pages(first, 1000, 9) != 0);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child has it");
    check(bad_pages(first, PAGES, 1) == 0, "and its parent what it had");
}

static void shrunk(void)
{
    check(brk(first + MIB + 100) == 0 && sbrk(0) == first + MIB + 100, "it shrinks");
    check(bad_pages(first, MIB / PAGE, 1) == 0, "what is left is there");
    check(sbrk((intptr_t)MIB) == first + MIB + 100, "it grows again");
    check(nonzero(first + MIB + PAGE, MIB - PAGE) == 0, "with zeros");
    check(sbrk(-(intptr_t)MIB) == first + 2 * MIB + 100 && sbrk(0) == first + MIB + 100,
          "and shrinks by so much");
}

static void around_mappings(void)
{
    char *end, *other;
    if (sbrk((intptr_t)(PAGE - (uintptr_t)sbrk(0) % PAGE)) == (void *)-1)
        die("sbrk");
    end = sbrk((intptr_t)(8 * PAGE));
    fill(end, 8, 3);
    check(munmap(end + PAGE, PAGE) == 0 && munmap(end + 3 * PAGE, 2 * PAGE) == 0, "holes in it");
    check(sbrk(-(intptr_t)(8 * PAGE)) == end + 8 * PAGE && sbrk(0) == end, "it shrinks over them");
    check(sbrk((intptr_t)(8 * PAGE)) == end && nonzero(end, 8 * PAGE) == 0, "and grows again");
    other = mmap(end + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(other == end + 2 * PAGE && sbrk(-(intptr_t)(8 * PAGE)) == end + 8 * PAGE,
          "and over shared memory");
    check(sbrk((intptr_t)(8 * PAGE)) == end && nonzero(end, 8 * PAGE) == 0, "which is gone");
    other = mmap(end + 10 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    fill(other, 2, 4);
    errno = 0;
    check(other == end + 10 * PAGE && sbrk((intptr_t)(8 * PAGE)) == (void *)-1 && errno == ENOMEM,
          "it does not grow over that");
    check(bad_pages(other, 2, 4) == 0 && sbrk(0) == end + 8 * PAGE, "and both are as they were");
}

static void refused(void)
{
    char *end = sbrk(0);
    struct rlimit limit, less;
    errno = 0;
    check(sbrk(INTPTR_MAX) == (void *)-1 && errno == ENOMEM, "too much");
    if (getrlimit(RLIMIT_DATA, &limit) != 0)
        die("getrlimit");
    less = limit;
    less.rlim_cur = 64 * MIB;
    errno = 0;
    check(setrlimit(RLIMIT_DATA, &less) == 0 && sbrk(128 * (intptr_t)MIB) == (void *)-1
              && errno == ENOMEM && setrlimit(RLIMIT_DATA, &limit) == 0,
          "more than the limit of data");
    check(sbrk(0) == end, "all that changes nothing");
}

static void by_number(void)
{
    char *end = sbrk(0);
    check(syscall(SYS_brk, 0) == (long)end, "the end by number");
    check(syscall(SYS_brk, end + MIB) == (long)(end + MIB), "it moves by number");
    check(syscall(SYS_brk, 1) == (long)(end + MIB), "or stays");
}

int main(void)
{
    /* What the C library needs for this comes before. */
    check(1, "begun");
    given();
    grown_in_steps();
    handed_to_calls();
    in_a_child();
    shrunk();
    refused();
    by_number();
    around_mappings();
    return finish();
}
