/*
 * Locks some memory before it is written, or has it left out of core dumps, writes more than fits,
 * and looks at all of it. It is not one of the programs that are compared.
 *
 * usage: locked MIB LOCKED [undumped]
 *
 * Locks LOCKED MiB, whose pages hold what follows from numbers from MIB on. With `undumped` they
 * are left out of core dumps instead, in a child of a fork as well. Says "begun" when all is
 * written, and reads after SIGTERM.
 */
#include "common.h"

/* MADV_DONTDUMP in ways that a program comes to it. */
static void leave_out(char *memory, size_t pages)
{
    size_t half = pages / 2;
    if (madvise(memory, half * PAGE, MADV_DONTDUMP) != 0)
        die("madvise");
    /* It is a part of what is locked, and then no more. */
    if (mlock(memory, 16 * PAGE) != 0 || munlock(memory, 16 * PAGE) != 0)
        die("mlock");
    /* Pages that have nothing yet, between protections, and moved to another place. */
    if (madvise(memory + half * PAGE, (pages - half) * PAGE, MADV_DONTDUMP) != 0 ||
        mprotect(memory, PAGE, PROT_NONE) != 0 ||
        mprotect(memory, PAGE, PROT_READ | PROT_WRITE) != 0)
        die("mprotect");
}

int main(int argc, char **argv)
{
    int undumped = argc == 4 && strcmp(argv[3], "undumped") == 0;
    if (argc != 3 && !undumped)
        return 2;
    size_t pages = strtoul(argv[1], NULL, 10) * (MIB / PAGE);
    size_t kept = strtoul(argv[2], NULL, 10) * (MIB / PAGE);
    char *locked = map_pages(kept), *memory = map_pages(pages);
    if (undumped) {
        leave_out(locked, kept);
        locked = mremap(locked, kept * PAGE, kept * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                        map_pages(kept));
        if (locked == MAP_FAILED)
            die("mremap");
    } else if (mlock(locked, kept * PAGE) != 0) {
        die("mlock");
    }
    fill(locked, kept, pages);
    pid_t child = undumped ? fork() : 0;
    if (undumped && child == 0) {
        /* Its copies of both are in the way of the rest. */
        fill(memory, pages, 0);
        _exit(bad_pages(locked, kept, pages) != 0);
    }
    if (undumped && reap(child) != 0)
        die("the child");
    fill(memory, pages, 0);
    wait_for_term();
    size_t bad = bad_pages(locked, kept, pages) + bad_pages(memory, pages, 0);
    if (bad != 0)
        printf("%zu bad pages\n", bad);
    else
        printf("all ok\n");
    return bad != 0;
}
