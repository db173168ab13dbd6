/*
 * Goes on reading and writing as many pages as it is told until it is told to stop, and checks
 * every page that it meets: for tests that change the budget meanwhile. It is not one of the
 * programs that are compared.
 *
 * usage: churn MIB [hard]
 *
 * A third of the pages compresses well, a third badly, a third not at all; with "hard" none
 * compresses. SIGTERM ends it, after a look at every page.
 */
#include "common.h"

static volatile sig_atomic_t over;

static void stop(int number)
{
    (void)number;
    over = 1;
}

/* What is in word `w` of page `i`, which was written `n` times before. */
static uint64_t content(size_t i, unsigned n, size_t w, int hard)
{
    uint64_t seed = (uint64_t)i << 32 | n;
    if (hard || i % 3 == 0)
        return mix(seed * WORDS + w);
    return i % 3 == 1 ? seed + (w & 7) : mix(seed + w / 4) >> 24;
}

static size_t wrong(const uint64_t *page, size_t i, unsigned n, int hard)
{
    size_t bad = 0;
    for (size_t w = 0; w < WORDS; w++)
        bad += page[w] != content(i, n, w, hard);
    return bad;
}

static void write_page(uint64_t *page, size_t i, unsigned n, int hard)
{
    for (size_t w = 0; w < WORDS; w++)
        page[w] = content(i, n, w, hard);
}

int main(int argc, char **argv)
{
    size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1) * (MIB / PAGE);
    int hard = argc > 2;
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    char *p = map_pages(pages);
    unsigned *times = calloc(pages, sizeof *times);
    if (!times)
        die("calloc");
    for (size_t i = 0; i < pages; i++)
        write_page((uint64_t *)(void *)(p + i * PAGE), i, 0, hard);
    printf("begun\n");
    fflush(stdout);

    size_t bad = 0;
    uint64_t random = 1;
    do {
        /* A run in sequence from a random place, then as many pages at random. */
        size_t from = (random = mix(random)) % pages;
        for (size_t k = 0; k < 512 && !over; k++) {
            size_t i = k < 256 ? (from + k) % pages : (random = mix(random)) % pages;
            uint64_t *page = (uint64_t *)(void *)(p + i * PAGE);
            bad += wrong(page, i, times[i], hard);
            if (k & 1)
                write_page(page, i, ++times[i], hard);
        }
    } while (!over);
    for (size_t i = 0; i < pages; i++)
        bad += wrong((uint64_t *)(void *)(p + i * PAGE), i, times[i], hard);
    check(bad == 0, "%zu words wrong", bad);
    return finish();
}
