/*
 * Goes through its memory again and again, a word a page: a working set of known size. It is not
 * one of the programs that are compared.
 *
 * usage: loops MIB TURNS
 */
#include "common.h"

int main(int argc, char **argv)
{
    size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1) * (MIB / PAGE);
    unsigned long turns = argc > 2 ? strtoul(argv[2], NULL, 10) : 1, sum = 0;
    char *p = map_pages(pages);
    for (size_t i = 0; i < pages; i++) {
        uint64_t *page = (uint64_t *)(p + i * PAGE);
        for (size_t w = 0; w < WORDS; w++)
            page[w] = mix(i + w / 16);
    }
    for (unsigned long turn = 0; turn < turns; turn++)
        for (size_t i = 0; i < pages; i++)
            sum += *(volatile uint64_t *)(p + i * PAGE);
    printf("%lu\n", sum);
    return 0;
}
