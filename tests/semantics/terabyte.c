/* A little more than a terabyte of addresses, reserved at once, of which pieces are taken and given
   back, as Haskell's runtime does: what is taken is memory as any other. */
#define STAY_SMALL
#include "common.h"

#define PIECES 44

static char *base;

/* Puts another mapping over a piece. */
static void put(size_t n, int prot, int flags)
{
    void *place = base + n * MIB;
    if (mmap(place, MIB, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0) != place)
        die("a piece");
}

static void take(size_t n) { put(n, PROT_READ | PROT_WRITE, 0); }

static int holds(size_t from, size_t to)
{
    int right = 1;
    for (size_t n = from; n < to; n++)
        right &= stamped(base + n * MIB, MIB, n);
    return right;
}

int main(void)
{
    const size_t len = ((size_t)1 << 40) + MIB;
    char *start = mmap((void *)0x4200000000, len, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        die("a terabyte");
    base = (char *)(((uintptr_t)start + MIB - 1) / MIB * MIB);
    check(madvise(start, len, MADV_DONTNEED) == 0 && madvise(start, len, MADV_DONTDUMP) == 0,
          "a terabyte is reserved");
    for (size_t n = 0; n < PIECES; n++) {
        take(n);
        madvise(base + n * MIB, MIB, MADV_WILLNEED);
        madvise(base + n * MIB, MIB, MADV_DODUMP);
        stamp(base + n * MIB, MIB, n);
    }
    check(holds(0, PIECES), "%d pieces of it hold what is written", PIECES);
    evict_all();
    check(holds(0, PIECES), "and when they have left memory");

    for (size_t n = 0; n < PIECES; n += 2)
        put(n, PROT_NONE, MAP_NORESERVE);
    int zero = 1;
    for (size_t n = 0; n < PIECES; n += 2) {
        take(n);
        zero &= base[n * MIB] == 0 && base[(n + 1) * MIB - 1] == 0;
        stamp(base + n * MIB, MIB, n);
    }
    check(zero && holds(0, PIECES), "what was given back is zero when it is taken again");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        evict_all();
        _exit(!holds(0, PIECES));
    }
    check(reap(pid) == 0, "a child has it too");
    check(munmap(start, len) == 0, "all goes");
    return finish();
}
