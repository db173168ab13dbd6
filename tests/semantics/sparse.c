/*
 * Touches a page here and a page there, 2 MiB apart: what is kept of them is to be as sparse as
 * they are, so that all of it comes down to a budget. It is not one of the programs that are
 * compared.
 *
 * usage: sparse BUDGET PAGES, the first in MiB
 */
#include "common.h"

#define APART (2 * MIB)

/* A page of each 2 MiB, any. */
static uint64_t *word_of(char *memory, size_t i)
{
    return (uint64_t *)(memory + i * APART + mix(i) % (APART / PAGE) * PAGE);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage");
    size_t budget = strtoul(argv[1], NULL, 10) << 10, pages = strtoul(argv[2], NULL, 10);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(NULL, pages * APART, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    size_t bad = 0, now = 0, most = budget + budget / 50 + 1024;
    for (size_t i = 0; i < pages; i++)
        *word_of(memory, i) = mix(i);
    for (size_t i = 0; i < pages; i++)
        bad += *word_of(memory, i) != mix(i);
    check(bad == 0, "pages keep their content");
    for (int round = 0; round < 100 && (now = in_memory()) > most; round++)
        usleep(50000);
    check(now <= most, "all of it is within the budget: %zu KiB of %zu", now, budget);
    return finish();
}
