/*
 * For programs that let a device write into their memory: a file of known content, and buffers of
 * 128 MiB (8 times the budget) whose pages each remember which page of the file they hold.
 */
#ifndef DISK_H
#define DISK_H

#include "common.h"

#define FILE_PAGES ((size_t)8192)
#define BUFFERS 4
#define BUFFER_PAGES ((size_t)8192)
#define FILE_SEED 700000

struct buffer {
    char *p;
    /* The page of the file that each page holds; -1 before the first read. */
    int *holds;
};

static struct buffer buffers[BUFFERS];
static atomic_int disk_stop;
static atomic_long disk_wrong;

/* Makes the file and opens it for direct I/O; ends the program with SKIP where that is refused. */
UNUSED static int direct_file(int *buffered)
{
    char name[] = "semantics-disk-XXXXXX";
    char *piece = heap_pages(256);
    *buffered = mkstemp(name);
    if (*buffered < 0)
        die(name);
    for (size_t page = 0; page < FILE_PAGES; page += 256) {
        fill(piece, 256, FILE_SEED + page);
        if (write(*buffered, piece, 256 * PAGE) != 256 * 4096)
            die("write");
    }
    fsync(*buffered);
    int direct = open(name, O_RDWR | O_DIRECT);
    if (direct < 0 || pread(direct, piece, PAGE, 0) != 4096) {
        printf("SKIP: direct I/O is refused here (%s)\n", strerror(errno));
        fflush(stdout);
        unlink(name);
        _exit(0);
    }
    unlink(name);
    free(piece);
    return direct;
}

UNUSED static void make_buffers(void)
{
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i].p = heap_pages(BUFFER_PAGES);
        buffers[i].holds = malloc(BUFFER_PAGES * sizeof(int));
        memset(buffers[i].holds, 0xff, BUFFER_PAGES * sizeof(int));
        memset(buffers[i].p, 0x11 * (i + 1), BUFFER_PAGES * PAGE);
    }
}

/* Notes that pages of the file were read, and looks at them. */
UNUSED static void was_read(struct buffer *b, size_t at, size_t page, size_t pages)
{
    for (size_t i = 0; i < pages; i++)
        b->holds[at + i] = (int)(page + i);
    disk_wrong += (long)bad_pages(b->p + at * PAGE, pages, FILE_SEED + page);
}

/* Pages of a buffer that do not hold what they should, those never read included. */
UNUSED static size_t bad_buffer(const struct buffer *b, int untouched)
{
    size_t bad = 0;
    for (size_t i = 0; i < BUFFER_PAGES; i++) {
        const char *page = b->p + i * PAGE;
        if (b->holds[i] >= 0)
            bad += !page_is(page, FILE_SEED + (uint64_t)b->holds[i]);
        else
            for (size_t at = 0; at < PAGE; at++)
                bad += page[at] != untouched;
    }
    return bad;
}

UNUSED static void check_buffers(const char *what)
{
    size_t bad = 0;
    for (int i = 0; i < BUFFERS; i++)
        bad += bad_buffer(&buffers[i], 0x11 * (i + 1));
    check(disk_wrong == 0, "%s: %ld pages wrong when they arrived", what, (long)disk_wrong);
    check(bad == 0, "%s: %zu pages wrong at the end", what, bad);
}

/* A thread that drives the buffers out of memory while they are read into. */
UNUSED static void *evict(void *argument)
{
    (void)argument;
    for (uint64_t n = 0; !disk_stop; n++) {
        pressure(8);
        for (int i = 0; i < 64; i++) {
            uint64_t r = mix(n * 64 + (uint64_t)i);
            /* A hint that leaves content alone, where the kernel knows it. */
            madvise(buffers[r % BUFFERS].p + (r >> 8) % (BUFFER_PAGES - 256) * PAGE, 256 * PAGE,
                    MADV_PAGEOUT);
        }
    }
    return NULL;
}

#endif
