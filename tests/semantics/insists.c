/*
 * A program that wants address space where it says, and gives back what lies elsewhere: it gets it, maps a file there in several places,
 * and other memory is managed as ever.
 */
#define _GNU_SOURCE
#include "common.h"

#define ROOM ((size_t)1 << 32)

int main(void)
{
    size_t pages = 24 * MIB / PAGE;
    char *memory = map_pages(pages);
    fill(memory, pages, 9);
    char *room = NULL;
    for (uintptr_t at = (uintptr_t)1 << 42; !room && at < (uintptr_t)1 << 45; at += (uintptr_t)1 << 40) {
        char *got = mmap((void *)at, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == (char *)at)
            room = got;
        else if (got != MAP_FAILED)
            munmap(got, ROOM);
    }
    check(room != NULL, "addresses that were asked for");
    int fd = memfd_create("heap", 0);
    check(ftruncate(fd, 2 * MIB) == 0, "a file");
    char *one = mmap(room + MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    char *other = mmap(room + (ROOM >> 1), 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    strcpy(one, "in both places");
    check(strcmp(other, one) == 0, "one file in two places");
    pressure(48);
    check(bad_pages(memory, pages, 9) == 0, "memory is as it was");
    check(munmap(room, ROOM) == 0, "given back");
    return finish();
}
