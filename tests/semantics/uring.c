/* io_uring by its system calls: reads into the heap, directly and through the page cache, and into
   registered buffers, which stay pinned for as long as they are registered. */
#include "disk.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define ENTRIES 16
#define BATCHES 40
#define FIXED_PAGES ((size_t)64)

static int direct, buffered;

struct ring {
    int fd;
    char *rings;
    size_t rings_size;
    struct io_uring_sqe *entries;
    struct io_uring_params params;
};

/* Returns 0, or why there is no ring. */
static int ring_open(struct ring *r)
{
    memset(&r->params, 0, sizeof r->params);
    r->fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &r->params);
    if (r->fd < 0)
        return errno;
    size_t sq = r->params.sq_off.array + r->params.sq_entries * sizeof(uint32_t);
    size_t cq = r->params.cq_off.cqes + r->params.cq_entries * sizeof(struct io_uring_cqe);
    r->rings_size = sq > cq ? sq : cq;
    r->rings = mmap(NULL, r->rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd,
                    IORING_OFF_SQ_RING);
    void *entries = mmap(NULL, r->params.sq_entries * sizeof(struct io_uring_sqe),
                         PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
    r->entries = entries;
    return (r->params.features & IORING_FEAT_SINGLE_MMAP) == 0 || r->rings == MAP_FAILED ||
                   entries == MAP_FAILED
               ? ENOSYS
               : 0;
}

static void ring_close(struct ring *r)
{
    munmap(r->rings, r->rings_size);
    munmap(r->entries, r->params.sq_entries * sizeof(struct io_uring_sqe));
    close(r->fd);
}

static _Atomic uint32_t *word(struct ring *r, uint32_t offset)
{
    return (_Atomic uint32_t *)(void *)(r->rings + offset);
}

static void ring_push(struct ring *r, struct io_uring_sqe entry)
{
    uint32_t tail = *word(r, r->params.sq_off.tail),
             at = tail & *word(r, r->params.sq_off.ring_mask);
    r->entries[at] = entry;
    ((uint32_t *)(void *)(r->rings + r->params.sq_off.array))[at] = at;
    atomic_store_explicit(word(r, r->params.sq_off.tail), tail + 1, memory_order_release);
}

static void ring_enter(struct ring *r, unsigned submit, unsigned wait)
{
    long done = syscall(SYS_io_uring_enter, r->fd, submit, wait, wait ? IORING_ENTER_GETEVENTS : 0,
                        NULL, 0);
    if (done != (long)submit)
        die("io_uring_enter");
}

struct completion {
    uint64_t user_data;
    int32_t res;
};

static struct completion ring_pop(struct ring *r)
{
    uint32_t head = *word(r, r->params.cq_off.head);
    while (head == atomic_load_explicit(word(r, r->params.cq_off.tail), memory_order_acquire))
        ring_enter(r, 0, 1);
    struct io_uring_cqe *all = (struct io_uring_cqe *)(void *)(r->rings + r->params.cq_off.cqes);
    const struct io_uring_cqe *entry = &all[head & *word(r, r->params.cq_off.ring_mask)];
    struct completion result = {entry->user_data, entry->res};
    atomic_store_explicit(word(r, r->params.cq_off.head), head + 1, memory_order_release);
    return result;
}

/* READ in batches, each read in a part of the buffer of its own. */
static void *read_batches(void *argument)
{
    struct buffer *b = argument;
    struct ring *ring = calloc(1, sizeof *ring);
    uint64_t state = (uint64_t)(b - buffers) + 200;
    if ((errno = ring_open(ring)) != 0)
        die("io_uring_setup");
    for (int n = 0; n < BATCHES; n++) {
        size_t at[ENTRIES], page[ENTRIES], pages[ENTRIES], part = BUFFER_PAGES / ENTRIES;
        for (size_t i = 0; i < ENTRIES; i++) {
            state = mix(state);
            pages[i] = (size_t)1 << state % 7;
            page[i] = (state >> 8) % (FILE_PAGES - pages[i]);
            at[i] = i * part + (state >> 32) % (part - pages[i]);
            ring_push(ring, (struct io_uring_sqe){
                .opcode = IORING_OP_READ,
                .fd = state >> 63 ? buffered : direct,
                .addr = (uint64_t)(uintptr_t)(b->p + at[i] * PAGE),
                .len = (uint32_t)(pages[i] * PAGE),
                .off = page[i] * PAGE,
                .user_data = i,
            });
        }
        ring_enter(ring, ENTRIES, 0);
        pressure(n % 4 ? 1 : 8);
        for (int i = 0; i < ENTRIES; i++) {
            struct completion done = ring_pop(ring);
            size_t e = done.user_data;
            if (done.res != (int)(pages[e] * PAGE)) {
                errno = done.res < 0 ? -done.res : EIO;
                die("a read");
            }
            was_read(b, at[e], page[e], pages[e]);
        }
    }
    ring_close(ring);
    free(ring);
    return NULL;
}

/* READ_FIXED and WRITE_FIXED: the pages were pinned when they were registered, with whatever they
   held then. */
static void registered(int file, const char *name)
{
    struct ring ring;
    struct iovec *vectors = calloc(ENTRIES, sizeof *vectors);
    char *area[ENTRIES];
    long wrong = 0;
    if ((errno = ring_open(&ring)) != 0)
        die("io_uring_setup");
    for (size_t i = 0; i < ENTRIES; i++) {
        area[i] = i % 2 ? heap_pages(FIXED_PAGES) : map_pages(FIXED_PAGES);
        fill(area[i], FIXED_PAGES, 800000 + i * FIXED_PAGES);
        vectors[i] = (struct iovec){area[i], FIXED_PAGES * PAGE};
    }
    /* Some are out when they are registered. */
    pressure(40);
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, vectors, ENTRIES) != 0) {
        printf("     (left out: buffers cannot be registered here: %s)\n", strerror(errno));
        goto out;
    }
    pressure(40);
    for (size_t i = 0; i < ENTRIES; i++)
        wrong += (long)bad_pages(area[i], FIXED_PAGES, 800000 + i * FIXED_PAGES);
    check(wrong == 0, "registered buffers, %s file: %ld pages wrong under pressure", name, wrong);
    for (size_t n = 0; n < 12; n++) {
        for (size_t i = 0; i < ENTRIES; i++)
            ring_push(&ring, (struct io_uring_sqe){
                .opcode = IORING_OP_READ_FIXED,
                .fd = file,
                .addr = (uint64_t)(uintptr_t)area[i],
                .len = (uint32_t)(FIXED_PAGES * PAGE),
                .off = (n * 131 + i * FIXED_PAGES) * PAGE,
                .buf_index = (uint16_t)i,
                .user_data = i,
            });
        ring_enter(&ring, ENTRIES, 0);
        pressure(n % 4 ? 4 : 32);
        for (int i = 0; i < ENTRIES; i++)
            wrong += ring_pop(&ring).res != (int)(FIXED_PAGES * PAGE);
        if (n % 3 == 0)
            pressure(32);
        for (size_t i = 0; i < ENTRIES; i++)
            wrong += (long)bad_pages(area[i], FIXED_PAGES, FILE_SEED + n * 131 + i * FIXED_PAGES);
    }
    check(wrong == 0, "reads into them: %ld pages wrong", wrong);
    /* The program writes to them, they go idle, and the device reads what was written. */
    for (size_t i = 0; i < ENTRIES; i++)
        fill(area[i], FIXED_PAGES, 900000 + i * FIXED_PAGES);
    pressure(40);
    for (size_t i = 0; i < ENTRIES; i++)
        ring_push(&ring, (struct io_uring_sqe){
            .opcode = IORING_OP_WRITE_FIXED,
            .fd = file,
            .addr = (uint64_t)(uintptr_t)area[i],
            .len = (uint32_t)(FIXED_PAGES * PAGE),
            .off = (FILE_PAGES + i * FIXED_PAGES) * PAGE,
            .buf_index = (uint16_t)i,
            .user_data = i,
        });
    ring_enter(&ring, ENTRIES, ENTRIES);
    for (int i = 0; i < ENTRIES; i++)
        wrong += ring_pop(&ring).res != (int)(FIXED_PAGES * PAGE);
    char *back = heap_pages(FIXED_PAGES);
    for (size_t i = 0; i < ENTRIES; i++) {
        if (pread(buffered, back, FIXED_PAGES * PAGE,
                  (off_t)((FILE_PAGES + i * FIXED_PAGES) * PAGE)) != (ssize_t)(FIXED_PAGES * PAGE))
            die("pread");
        wrong += (long)bad_pages(back, FIXED_PAGES, 900000 + i * FIXED_PAGES);
    }
    free(back);
    check(wrong == 0, "writes from them: %ld pages wrong", wrong);
    if (syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0) != 0)
        die("unregister");
    pressure(40);
    for (size_t i = 0; i < ENTRIES; i++)
        wrong += (long)bad_pages(area[i], FIXED_PAGES, 900000 + i * FIXED_PAGES);
    check(wrong == 0, "they stay when they are no longer registered: %ld pages wrong", wrong);
out:
    for (size_t i = 0; i < ENTRIES; i++)
        if (i % 2)
            free(area[i]);
        else
            munmap(area[i], FIXED_PAGES * PAGE);
    free(vectors);
    ring_close(&ring);
}

int main(void)
{
    pthread_t readers[BUFFERS], evictor;
    struct ring ring;
    direct = direct_file(&buffered);
    int error = ring_open(&ring);
    if (error) {
        printf("SKIP: there is no io_uring here (%s)\n", strerror(error));
        fflush(stdout);
        return 0;
    }
    ring_close(&ring);
    registered(direct, "direct");
    registered(buffered, "buffered");
    make_buffers();
    pthread_create(&evictor, NULL, evict, NULL);
    for (int i = 0; i < BUFFERS; i++)
        pthread_create(&readers[i], NULL, read_batches, &buffers[i]);
    for (int i = 0; i < BUFFERS; i++)
        pthread_join(readers[i], NULL);
    disk_stop = 1;
    pthread_join(evictor, NULL);
    check_buffers("reads by io_uring");
    return finish();
}
