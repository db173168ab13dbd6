/*
 * Needs as much memory as it is told, for tests of what happens when there is not as much. It is
 * not one of the programs that are compared.
 *
 * usage: fills MIB [FILE]
 *
 * With FILE it first takes all the room that the file system has left. With DATABASE in the
 * environment that file, with a line in it, is what it has under the number of the standard error.
 * All this is so before there is an engine.
 */
#define STAY_SMALL
#include "common.h"

static void take_all_room(const char *name)
{
    static char junk[1 << 16];
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0)
        die(name);
    for (size_t size = sizeof junk; size >= 512; size /= 2)
        while (write(file, junk, size) == (ssize_t)size)
            ;
    fsync(file);
    close(file);
}

int main(int argc, char **argv)
{
    size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1) * (MIB / PAGE);
    if (argc > 2)
        take_all_room(argv[2]);
    const char *database = getenv("DATABASE");
    if (database) {
        close(2);
        if (open(database, O_WRONLY | O_CREAT | O_TRUNC, 0600) != 2 || write(2, "data\n", 5) != 5)
            return 3;
    }
    char *p = map_pages(pages);
    printf("begun\n");
    fflush(stdout);
    for (size_t i = 0; i < pages; i++)
        for (size_t w = 0; w < WORDS; w++)
            ((uint64_t *)(void *)(p + i * PAGE))[w] = mix(i * WORDS + w);
    size_t bad = 0;
    for (size_t i = 0; i < pages; i++)
        for (size_t w = 0; w < WORDS; w++)
            bad += ((uint64_t *)(void *)(p + i * PAGE))[w] != mix(i * WORDS + w);
    check(bad == 0, "%zu pages that do not compress: %zu words wrong", pages, bad);
    return finish();
}
