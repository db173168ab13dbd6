/*
 * Has memory that overspill manages, and memory that it does not. Together they are to come down to
 * a budget. It is not one of the programs that are compared.
 *
 * usage: unmanaged BUDGET SHARED HEAP, each in MiB
 */
#include "common.h"
#include <sys/mman.h>

int main(int argc, char **argv)
{
    if (argc != 4)
        die("usage");
    size_t budget = strtoul(argv[1], NULL, 10) << 10, shared = strtoul(argv[2], NULL, 10) * MIB;
    size_t pages = strtoul(argv[3], NULL, 10) * (MIB / PAGE);
    char *memory = map_pages(pages);
    fill(memory, pages, 1);
    char *others = mmap(NULL, shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (others == MAP_FAILED)
        die("mmap");
    memset(others, 1, shared);
    size_t now = 0, most = budget + budget / 50 + 1024;
    for (int round = 0; round < 100 && (now = in_memory()) > most; round++) {
        check(bad_pages(memory, pages / 8, 1) == 0, "pages keep their content");
        usleep(50000);
    }
    check(now <= most, "all of it is within the budget: %zu KiB of %zu", now, budget);
    check(bad_pages(memory, pages, 1) == 0, "pages keep their content");
    return finish();
}
