/* Linux AIO into the heap: the reads go on while the program is busy with other memory. */
#include "disk.h"
#include <linux/aio_abi.h>
#include <sys/syscall.h>

#define IN_FLIGHT 16
#define BATCHES 30

static int direct, buffered;

/* What the kernel reads and writes of a batch lies in the heap too, and goes out like the rest. */
struct batch {
    struct iocb control[IN_FLIGHT];
    char gap[PAGE];
    struct iocb *pointers[IN_FLIGHT];
    char gap2[PAGE];
    struct io_event events[IN_FLIGHT];
    size_t at[IN_FLIGHT], page[IN_FLIGHT], pages[IN_FLIGHT];
};

static void *read_batches(void *argument)
{
    struct buffer *b = argument;
    struct batch *batch = calloc(1, sizeof *batch);
    aio_context_t context = 0;
    uint64_t state = (uint64_t)(b - buffers) + 100;
    if (syscall(SYS_io_setup, IN_FLIGHT, &context) != 0)
        die("io_setup");
    for (int n = 0; n < BATCHES; n++) {
        for (size_t i = 0; i < IN_FLIGHT; i++) {
            state = mix(state);
            /* Each read has a part of the buffer to itself. */
            size_t part = BUFFER_PAGES / IN_FLIGHT;
            batch->pages[i] = (size_t)1 << state % 7;
            batch->page[i] = (state >> 8) % (FILE_PAGES - batch->pages[i]);
            batch->at[i] = i * part + (state >> 32) % (part - batch->pages[i]);
            batch->control[i] = (struct iocb){
                .aio_lio_opcode = IOCB_CMD_PREAD,
                .aio_fildes = (uint32_t)direct,
                .aio_buf = (uint64_t)(uintptr_t)(b->p + batch->at[i] * PAGE),
                .aio_nbytes = batch->pages[i] * PAGE,
                .aio_offset = (int64_t)(batch->page[i] * PAGE),
                .aio_data = i,
            };
            batch->pointers[i] = &batch->control[i];
        }
        if (syscall(SYS_io_submit, context, IN_FLIGHT, batch->pointers) != IN_FLIGHT)
            die("io_submit");
        pressure(n % 4 ? 1 : 8);
        for (long done = 0; done < IN_FLIGHT;) {
            long got =
                syscall(SYS_io_getevents, context, 1, IN_FLIGHT - done, batch->events + done, NULL);
            if (got < 1)
                die("io_getevents");
            done += got;
        }
        for (int e = 0; e < IN_FLIGHT; e++) {
            size_t i = batch->events[e].data;
            if (batch->events[e].res != (int64_t)(batch->pages[i] * PAGE))
                die("a read");
            was_read(b, batch->at[i], batch->page[i], batch->pages[i]);
        }
    }
    syscall(SYS_io_destroy, context);
    free(batch);
    return NULL;
}

/* What a thread needs for a read, and where it goes: those of all threads lie in one page. */
struct small {
    struct iocb control;
    struct iocb *pointer;
    struct io_event event;
    char data[512];
};

static struct small *smalls;
static atomic_int small_wrong;

static void *read_small(void *argument)
{
    struct small *s = argument;
    aio_context_t context = 0;
    uint64_t state = (uint64_t)(s - smalls) + 1000;
    char expected[512];
    if (syscall(SYS_io_setup, 1, &context) != 0)
        die("io_setup");
    for (int n = 0; n < 300; n++) {
        state = mix(state);
        off_t from = (off_t)(state % (FILE_PAGES * PAGE / 512) * 512);
        s->control = (struct iocb){
            .aio_lio_opcode = IOCB_CMD_PREAD,
            .aio_fildes = (uint32_t)buffered,
            .aio_buf = (uint64_t)(uintptr_t)s->data,
            .aio_nbytes = 512,
            .aio_offset = from,
        };
        s->pointer = &s->control;
        madvise(smalls, PAGE, MADV_PAGEOUT);
        if (syscall(SYS_io_submit, context, 1, &s->pointer) != 1)
            die("io_submit");
        if (syscall(SYS_io_getevents, context, 1, 1, &s->event, NULL) != 1)
            die("io_getevents");
        if (pread(buffered, expected, 512, from) != 512)
            die("pread");
        small_wrong += s->event.res != 512 || memcmp(s->data, expected, 512) != 0;
    }
    syscall(SYS_io_destroy, context);
    return NULL;
}

int main(void)
{
    pthread_t readers[BUFFERS], evictor;
    aio_context_t context = 0;
    direct = direct_file(&buffered);
    if (syscall(SYS_io_setup, 1, &context) != 0) {
        printf("SKIP: there is no Linux AIO here (%s)\n", strerror(errno));
        fflush(stdout);
        return 0;
    }
    syscall(SYS_io_destroy, context);
    make_buffers();
    pthread_create(&evictor, NULL, evict, NULL);
    for (int i = 0; i < BUFFERS; i++)
        pthread_create(&readers[i], NULL, read_batches, &buffers[i]);
    for (int i = 0; i < BUFFERS; i++)
        pthread_join(readers[i], NULL);
    disk_stop = 1;
    pthread_join(evictor, NULL);
    check_buffers("asynchronous reads");
    smalls = (struct small *)map_pages(1);
    for (int i = 0; i < BUFFERS; i++)
        pthread_create(&readers[i], NULL, read_small, &smalls[i]);
    for (int i = 0; i < BUFFERS; i++)
        pthread_join(readers[i], NULL);
    check(small_wrong == 0, "%d reads into a page that others read into were short or wrong",
          (int)small_wrong);
    return finish();
}
