/*
 * Blocks that were evicted are moved to and fro, while a thread reads the memory right before their
 * new place in sequence: what is brought in around its faults must not get into the way of what is
 * moved there.
 */
#include "common.h"

#define BEFORE ((size_t)16)
#define BLOCK ((size_t)256)
#define BLOCKS 48
#define ROUNDS 600

static char *before;
static atomic_int stop;

static void *read_before(void *unused)
{
    (void)unused;
    while (!stop) {
        if (madvise(before, BEFORE * PAGE, MADV_DONTNEED) != 0)
            die("madvise");
        for (size_t i = 0; i < BEFORE; i++)
            if (*(volatile char *)(before + i * PAGE) != 0)
                die("the pages before");
    }
    return NULL;
}

int main(void)
{
    pthread_t reader;
    char *blocks[BLOCKS];
    long wrong = 0;
    uint64_t state = 1;

    before = map_pages(BEFORE + BLOCK);
    char *there = before + BEFORE * PAGE;
    for (size_t b = 0; b < BLOCKS; b++) {
        blocks[b] = map_pages(BLOCK);
        for (size_t i = 0; i < BLOCK; i++)
            fill_page(blocks[b] + i * PAGE, b * BLOCK + i + 1);
    }
    if ((errno = pthread_create(&reader, NULL, read_before, NULL)) != 0)
        die("pthread_create");
    for (int round = 0; round < ROUNDS; round++) {
        size_t b = (state = mix(state)) % BLOCKS;
        if (mremap(blocks[b], BLOCK * PAGE, BLOCK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) !=
            there)
            die("mremap there");
        for (size_t i = 0; i < BLOCK; i++)
            wrong += !page_is(there + i * PAGE, b * BLOCK + i + 1);
        if (mremap(there, BLOCK * PAGE, BLOCK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, blocks[b]) !=
            blocks[b])
            die("mremap back");
    }
    stop = 1;
    pthread_join(reader, NULL);
    check(wrong == 0, "%d moves: %ld pages wrong", ROUNDS, wrong);
    return finish();
}
