/*
 * What the programs about limits of resources share: what is told of a limit, and memory.
 */
#ifndef LIMITED_H
#define LIMITED_H

#include "common.h"
#include <sys/syscall.h>

/* Whether a soft limit is told by a function and by number. */
static int is_told(int resource, rlim_t now)
{
    struct rlimit limit, by_number;
    return getrlimit(resource, &limit) == 0
           && syscall(SYS_prlimit64, 0, resource, NULL, &by_number) == 0
           && limit.rlim_cur == now && by_number.rlim_cur == now
           && limit.rlim_max == by_number.rlim_max;
}

/* Blocks, a mapping of so many bytes, and what brk gives. */
static int has_memory(size_t mapped)
{
    const size_t touched = 32 * MIB;
    char *block = malloc(touched), *small = malloc(100);
    char *mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *end = sbrk(PAGE);
    if (!block || !small || mapping == MAP_FAILED || end == (char *)-1)
        return 0;
    memset(block, 1, touched);
    memset(mapping, 2, touched);
    small[0] = end[0] = 3;
    int right = block[MIB] == 1 && mapping[MIB] == 2 && small[0] == end[0];
    free(block);
    free(small);
    munmap(mapping, mapped);
    return right;
}

/* Whether a thread says "yes". */
static int thread_says_yes(void *(*thread)(void *))
{
    void *said = NULL;
    pthread_t id;
    return pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, &said) == 0 && said;
}

#endif
