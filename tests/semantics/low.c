/* Mappings below 2 GiB (MAP_32BIT), which runtimes ask for whose pointers are short: they lie
   there, hold what is written, and are no less memory than others. */
/* Its first mapping is one of these. */
#define STAY_SMALL
#include "common.h"
#include <sys/syscall.h>

#define LOW (MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT)
#define PIECES 40
#define PIECE (MIB)

static char *pieces[PIECES];

static int is_low(const void *address, size_t len)
{
    return (uintptr_t)address + len <= (uintptr_t)1 << 31;
}

static char *map_low(size_t len, int prot)
{
    char *map = mmap(NULL, len, prot, LOW, -1, 0);
    if (map == MAP_FAILED)
        die("mmap");
    return map;
}

static int holds(int from, int to, int round)
{
    int right = 1;
    for (int i = from; i < to; i++)
        right &= stamped(pieces[i], PIECE, (uint64_t)(i * 100 + round));
    return right;
}

static void put(int from, int to, int round)
{
    for (int i = from; i < to; i++)
        stamp(pieces[i], PIECE, (uint64_t)(i * 100 + round));
}

int main(void)
{
    int low = 1;
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = map_low(PIECE, PROT_READ | PROT_WRITE);
        low &= is_low(pieces[i], PIECE);
    }
    check(low, "%d mappings lie below 2 GiB", PIECES);
    put(0, PIECES, 1);
    check(holds(0, PIECES, 1), "they hold what is written");
    evict_all();
    check(holds(0, PIECES, 1), "and when they have left memory");

    /* What the kernel reads and writes there. */
    int ends[2];
    if (pipe(ends) != 0)
        die("pipe");
    evict_all();
    int same = write(ends[1], pieces[3], PAGE) == (ssize_t)PAGE;
    evict_all();
    same &= read(ends[0], pieces[4] + PAGE, PAGE) == (ssize_t)PAGE;
    check(same && memcmp(pieces[3], pieces[4] + PAGE, PAGE) == 0, "through a pipe");
    same = syscall(SYS_write, ends[1], pieces[5], 100) == 100;
    evict_all();
    same &= syscall(SYS_read, ends[0], pieces[6], 100) == 100;
    check(same && memcmp(pieces[5], pieces[6], 100) == 0, "by system calls");
    put(4, 7, 1);

    /* Holes, and what comes into them. */
    for (int i = 0; i < PIECES; i += 2)
        munmap(pieces[i], PIECE);
    for (int i = 0; i < PIECES; i += 2) {
        pieces[i] = map_low(PIECE, PROT_READ | PROT_WRITE);
        low &= is_low(pieces[i], PIECE) && pieces[i][0] == 0 && pieces[i][PIECE - 1] == 0;
    }
    check(low, "new ones in the holes are zero");
    put(0, PIECES, 2);
    check(holds(0, PIECES, 2), "and hold what is written");
    check(mmap(pieces[1], PAGE, PROT_READ | PROT_WRITE, LOW | MAP_FIXED, -1, 0) == pieces[1]
              && pieces[1][0] == 0 && pieces[1][PAGE] != 0,
          "one replaces a page");
    put(1, 2, 2);
    check(madvise(pieces[2] + PAGE, PAGE, MADV_DONTNEED) == 0 && pieces[2][PAGE] == 0, "given up");
    put(2, 3, 2);
    check(mprotect(pieces[5], PIECE, PROT_READ) == 0 && holds(5, 6, 2)
              && mprotect(pieces[5], PIECE, PROT_READ | PROT_WRITE) == 0,
          "read only for a while");
    char *code = map_low(PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    static const unsigned char returns_7[] = {0xb8, 7, 0, 0, 0, 0xc3};
    memcpy(code, returns_7, sizeof returns_7);
    evict_all();
    check(is_low(code, PAGE) && ((int (*)(void))(uintptr_t)code)() == 7, "code runs there");
    char *grown = mremap(pieces[7], PIECE, 3 * PIECE, MREMAP_MAYMOVE);
    check(grown != MAP_FAILED && stamped(grown, PIECE, 702) && grown[3 * PIECE - 1] == 0, "grown");
    munmap(grown, 3 * PIECE);
    pieces[7] = map_low(PIECE, PROT_READ | PROT_WRITE);
    put(7, 8, 2);

    /* A child has its own. */
    pid_t child = fork();
    if (child == 0) {
        int right = holds(0, PIECES, 2);
        put(0, PIECES / 2, 3);
        evict_all();
        _exit(right && holds(0, PIECES / 2, 3) && holds(PIECES / 2, PIECES, 2) ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    check(status == 0 && holds(0, PIECES, 2), "a child writes to its own");
    child = fork();
    if (child == 0) {
        execlp("sh", "sh", "-c", "cat /dev/null; exit 3", (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 3, "what is executed runs");
    char *hinted = mmap((void *)0x10000000, PAGE, PROT_READ | PROT_WRITE, LOW, -1, 0);
    check(hinted == (void *)0x10000000, "a hint is followed");
    char *there = map_low(PAGE, PROT_READ | PROT_WRITE);
    munmap(there, PAGE);
    hinted = mmap(there, PAGE, PROT_READ | PROT_WRITE, LOW, -1, 0);
    check(hinted == there, "to such a place as well");
    return finish();
}
