/*
 * A program that wants address space where it says, and gives back what lies elsewhere: it gets it,
 * maps a file there in several places, and other memory is managed as ever.
 */
#define _GNU_SOURCE
#include "common.h"

#define ROOM ((size_t)1 << 32)

static char *reserve(uintptr_t at)
{
    return mmap((void *)at, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Addresses where the program says, or NULL after so many tries. */
static char *insist(int tries)
{
    uintptr_t at = (uintptr_t)1 << 42;
    for (int i = 0; i < tries; i++, at += (uintptr_t)1 << 38) {
        char *got = reserve(at);
        if (got == (char *)at)
            return got;
        if (got != MAP_FAILED)
            munmap(got, ROOM);
    }
    return NULL;
}

/* Who tries some places, and then takes any, has managed memory: more than the budget. */
static void content(void)
{
    char *room = insist(30);
    if (!room)
        room = reserve(0);
    check(mprotect(room, 48 * MIB, PROT_READ | PROT_WRITE) == 0, "a heap");
    fill(room, 48 * MIB / PAGE, 5);
    check(bad_pages(room, 48 * MIB / PAGE, 5) == 0, "which works");
    unsigned char resident[48 * MIB / PAGE];
    size_t count = 0;
    mincore(room, 48 * MIB, resident);
    for (size_t i = 0; i < sizeof resident; i++)
        count += resident[i] & 1;
    check(!getenv("OVERSPILL_MEMORY") || count * PAGE <= 16 * MIB, "within the budget");
    munmap(room, ROOM);
}

int main(void)
{
    size_t pages = 24 * MIB / PAGE;
    char *memory = map_pages(pages);
    fill(memory, pages, 9);
    content();
    char *room = insist(200);
    check(room != NULL, "addresses that were asked for");
    int fd = memfd_create("heap", 0);
    check(ftruncate(fd, 2 * MIB) == 0, "a file");
    char *one = mmap(room + MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    char *other =
        mmap(room + (ROOM >> 1), 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    strcpy(one, "in both places");
    check(strcmp(other, one) == 0, "one file in two places");
    pressure(40);
    check(bad_pages(memory, pages, 9) == 0, "memory is as it was");
    check(munmap(room, ROOM) == 0, "given back");
    return finish();
}
