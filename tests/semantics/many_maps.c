/* 20,000 small mappings: as many as there are, each keeps its own. */
#include "common.h"

#define MAPS 20000

static struct {
    char *p;
    size_t pages;
} maps[MAPS];

static void make(size_t i, uint64_t seed)
{
    maps[i].pages = 1 + mix(i) % 3;
    maps[i].p = map_pages(maps[i].pages);
    fill(maps[i].p, maps[i].pages, seed + i * 4);
}

static size_t bad_maps(size_t first, size_t stride, uint64_t seed)
{
    size_t bad = 0;
    for (size_t i = first; i < MAPS; i += stride)
        bad += bad_pages(maps[i].p, maps[i].pages, seed + i * 4) != 0;
    return bad;
}

/* Whether any two mappings share a page: sorted by address, each must end before the next
   begins. */
static int by_address(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

static size_t overlaps(void)
{
    static uintptr_t bounds[MAPS][2];
    size_t n = 0;
    for (size_t i = 0; i < MAPS; i++) {
        bounds[i][0] = (uintptr_t)maps[i].p;
        bounds[i][1] = bounds[i][0] + maps[i].pages * PAGE;
    }
    qsort(bounds, MAPS, sizeof bounds[0], by_address);
    for (size_t i = 1; i < MAPS; i++)
        n += bounds[i - 1][1] > bounds[i][0];
    return n;
}

int main(void)
{
    for (size_t i = 0; i < MAPS; i++)
        make(i, 0);
    check(overlaps() == 0, "%d mappings beside each other", MAPS);
    check(bad_maps(0, 1, 0) == 0, "each has its content");
    for (size_t i = 0; i < MAPS; i += 2)
        if (munmap(maps[i].p, maps[i].pages * PAGE) != 0)
            die("munmap");
    pressure(40);
    check(bad_maps(1, 2, 0) == 0, "half of them unmapped, the others have theirs");
    int wrong = 0;
    for (size_t i = 0; i < MAPS; i += 400)
        wrong += fault_of(maps[i].p, 0) != SIGSEGV && fault_of(maps[i].p, 1) != SIGSEGV;
    /* pressure() has come and gone, so that nothing lies in the holes. */
    check(wrong == 0, "nothing is where the others were");
    for (size_t i = 0; i < MAPS; i += 2)
        make(i, 1000000);
    check(overlaps() == 0, "as many again in the holes or elsewhere");
    pressure(40);
    check(bad_maps(1, 2, 0) == 0 && bad_maps(0, 2, 1000000) == 0, "old and new have their content");
    /* Every second one gets another protection, which splits what the kernel had merged. */
    for (size_t i = 1; i < MAPS; i += 4)
        if (mprotect(maps[i].p, maps[i].pages * PAGE, PROT_READ) != 0)
            die("mprotect");
    pressure(40);
    check(bad_maps(1, 2, 0) == 0 && bad_maps(0, 2, 1000000) == 0,
          "also with different protections");
    for (size_t i = 0; i < MAPS; i++)
        munmap(maps[i].p, maps[i].pages * PAGE);
    return finish();
}
