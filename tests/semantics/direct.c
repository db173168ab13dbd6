/* read(2) with O_DIRECT into the heap by several threads: the device writes to pages that look
   idle. */
#include "disk.h"

#define READS 350

static int direct, buffered;

static void *read_blocks(void *argument)
{
    struct buffer *b = argument;
    uint64_t state = (uint64_t)(b - buffers) + 1;
    for (int i = 0; i < READS; i++) {
        state = mix(state);
        size_t pages = (size_t)1 << state % 8, page = (state >> 8) % (FILE_PAGES - pages),
               at = (state >> 32) % (BUFFER_PAGES - pages);
        if (pread(direct, b->p + at * PAGE, pages * PAGE, (off_t)(page * PAGE)) !=
            (ssize_t)(pages * PAGE))
            die("pread");
        was_read(b, at, page, pages);
    }
    return NULL;
}

/* Code that may be written is memory that the kernel does not move out of the way: what a device
   writes there is not lost either. */
static void among_code(void)
{
    const size_t pages = 512;
    struct buffer *b = &buffers[0];
    /* Where there may be no such code there is nothing to be seen. */
    mprotect(b->p, pages * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (uint64_t i = 0; i < 4 * READS; i++) {
        size_t page = mix(i) % (FILE_PAGES - 64), at = mix(i + 7) % (pages - 64);
        madvise(b->p + at * PAGE, 64 * PAGE, MADV_PAGEOUT);
        if (pread(direct, b->p + at * PAGE, 64 * PAGE, (off_t)(page * PAGE)) != 64 * 4096)
            die("pread");
        was_read(b, at, page, 64);
    }
}

/* Sectors of 512 bytes: the program writes beside what the device writes, in the same page. */
static void sectors(void)
{
    char *p = heap_pages(512);
    memset(p, 7, 512 * PAGE);
    if (pread(direct, p, 512, 512) != 512) {
        printf("     (left out: this disk has no sectors of 512 bytes)\n");
        free(p);
        return;
    }
    long wrong = 0;
    char expected[PAGE];
    for (int round = 0; round < 2; round++) {
        pressure(40);
        for (size_t i = 0; i < 512; i++) {
            size_t sector = mix(i + (size_t)round) % 8;
            memset(p + i * PAGE, (int)(i & 0x7f), PAGE);
            if (pread(direct, p + i * PAGE + sector * 512, 512, (off_t)(i * PAGE + sector * 512)) !=
                512)
                die("pread");
        }
        pressure(40);
        for (size_t i = 0; i < 512; i++) {
            size_t sector = mix(i + (size_t)round) % 8;
            fill_page(expected, FILE_SEED + i);
            for (size_t at = 0; at < PAGE; at++)
                wrong += p[i * PAGE + at] != (at / 512 == sector ? expected[at] : (char)(i & 0x7f));
        }
    }
    check(wrong == 0, "sectors read beside what the program writes: %ld bytes wrong", wrong);
    free(p);
}

/* And the other way: the device reads from pages that are out. */
static void writes(void)
{
    char *p = heap_pages(2048), *q = heap_pages(2048);
    fill(p, 2048, 42);
    pressure(40);
    check(pwrite(direct, p, 2048 * PAGE, 0) == 2048 * 4096, "a direct write from evicted memory");
    pressure(40);
    check(pread(buffered, q, 2048 * PAGE, 0) == 2048 * 4096 && bad_pages(q, 2048, 42) == 0,
          "what is in the file then");
    check(bad_pages(p, 2048, 42) == 0, "and what is in memory");
    free(p);
    free(q);
}

int main(void)
{
    pthread_t readers[BUFFERS], evictor;
    direct = direct_file(&buffered);
    make_buffers();
    pthread_create(&evictor, NULL, evict, NULL);
    for (int i = 0; i < BUFFERS; i++)
        pthread_create(&readers[i], NULL, read_blocks, &buffers[i]);
    for (int i = 0; i < BUFFERS; i++)
        pthread_join(readers[i], NULL);
    among_code();
    disk_stop = 1;
    pthread_join(evictor, NULL);
    check_buffers("direct reads");
    sectors();
    writes();
    return finish();
}
