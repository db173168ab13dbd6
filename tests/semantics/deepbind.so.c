/* What deepbind.c opens with RTLD_DEEPBIND: its malloc and free are then the C library's own. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Frees a block that another has made. */
void give_up(void *block)
{
    free(block);
}

void *make(size_t bytes)
{
    return malloc(bytes);
}

void *resize(void *block, size_t bytes)
{
    return realloc(block, bytes);
}

size_t usable(void *block)
{
    return malloc_usable_size(block);
}

/* Blocks of every function of the family, each through functions of the C library's that allocate
   for their caller. */
int all_kinds(void)
{
    int wrong = 0;
    void *blocks[] = {
        malloc(100), calloc(10, 10), memalign(64, 100),         aligned_alloc(128, 256),
        valloc(100), pvalloc(100),   strdup("a string"),        strndup("another string", 7),
        NULL,        NULL,           reallocarray(NULL, 10, 10)};
    wrong += posix_memalign(&blocks[8], 4096, 5000) != 0;
    wrong += asprintf((char **)&blocks[9], "%d", 12345) != 5;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        wrong += !blocks[i] || malloc_usable_size(blocks[i]) < 6;
        blocks[i] = realloc(blocks[i], 3000 + i * 5000);
        wrong += !blocks[i];
        memset(blocks[i], 7, 3000 + i * 5000);
        free(blocks[i]);
    }
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    wrong += !file;
    while (file && getline(&line, &room, file) > 0)
        wrong += malloc_usable_size(line) < room;
    if (file)
        fclose(file);
    free(line);
    return wrong;
}
