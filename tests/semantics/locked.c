/*
 * Locks some memory before it is written, writes more than fits, and looks at all of it. It is not
 * one of the programs that are compared.
 *
 * usage: locked MIB LOCKED
 *
 * Locks LOCKED MiB, whose pages hold what follows from numbers from MIB on. Says "begun" when all
 * is written, and reads after SIGTERM.
 */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t pages = strtoul(argv[1], NULL, 10) * (MIB / PAGE);
    size_t kept = strtoul(argv[2], NULL, 10) * (MIB / PAGE);
    char *locked = map_pages(kept), *memory = map_pages(pages);
    if (mlock(locked, kept * PAGE) != 0)
        die("mlock");
    fill(locked, kept, pages);
    fill(memory, pages, 0);
    wait_for_term();
    size_t bad = bad_pages(locked, kept, pages) + bad_pages(memory, pages, 0);
    if (bad != 0)
        printf("%zu bad pages\n", bad);
    else
        printf("all ok\n");
    return bad != 0;
}
