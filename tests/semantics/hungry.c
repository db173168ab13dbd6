/*
 * What other programs execute: it uses more memory than the budget allows, and prints its
 * environment. Settings of an outer overspill are left out, but not what the preload library adds.
 */
#include "common.h"

extern char **environ;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void)
{
    size_t count = 0, pages = 20 * MIB / PAGE;
    char **blocks = malloc(pages * sizeof *blocks);
    uint64_t sum = 0;
    for (size_t n = 0; n < pages; n++) {
        blocks[n] = malloc(PAGE - 64);
        for (size_t i = 0; i < WORDS - 8; i++)
            ((uint64_t *)blocks[n])[i] = page_word(n % 4, n, i);
    }
    for (size_t n = 0; n < pages; n++) {
        for (size_t i = 0; i < WORDS - 8; i++)
            sum = mix(sum + ((uint64_t *)blocks[n])[i]);
        free(blocks[n]);
    }
    printf("%016lx\n", sum);
    while (environ[count])
        count++;
    qsort(environ, count, sizeof *environ, by_text);
    for (size_t n = 0; n < count; n++)
        if (strncmp(environ[n], "OVERSPILL_", 10) || !strncmp(environ[n], "OVERSPILL_JOB_", 14))
            printf("%s\n", environ[n]);
    return 0;
}
