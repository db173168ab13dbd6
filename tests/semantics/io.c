/* System calls that read from evicted memory and write to it: files, pipes, sockets. */
#include "common.h"
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PAGES ((size_t)1024)
#define BYTES (PAGES * PAGE)

static char *source, *sink;
static char path[] = "semantics-io-XXXXXX";

/* Both buffers hold known content and are out of memory. */
static void prepare(uint64_t seed)
{
    fill(source, PAGES, seed);
    fill(sink, PAGES, seed + 1000000);
    push_out(source, BYTES);
    push_out(sink, BYTES);
}

/* A vector, itself in the heap, that cuts `bytes` bytes into pieces of odd sizes. */
static struct iovec *pieces(char *memory, size_t bytes, int *count)
{
    static const size_t sizes[] = {1, 4095, 4097, 65539, 8, 12288, 100001, 3};
    struct iovec *vector = malloc(1024 * sizeof *vector);
    int n = 0;
    for (size_t at = 0; at < bytes; n++) {
        size_t size = n == 1023 ? bytes - at : sizes[n % 8];
        if (size > bytes - at)
            size = bytes - at;
        vector[n].iov_base = memory + at;
        vector[n].iov_len = size;
        at += size;
    }
    *count = n;
    return vector;
}

static void files(int file)
{
    prepare(1);
    check(lseek(file, 0, SEEK_SET) == 0 && write(file, source, BYTES) == (ssize_t)BYTES,
          "write to a file");
    evict_all();
    check(lseek(file, 0, SEEK_SET) == 0 && read(file, sink, BYTES) == (ssize_t)BYTES,
          "read from a file");
    check(bad_pages(sink, PAGES, 1) == 0, "what was written is what was read");

    prepare(2);
    check(pwrite(file, source, BYTES, 12345) == (ssize_t)BYTES, "pwrite");
    check(pread(file, sink, BYTES, 12345) == (ssize_t)BYTES && bad_pages(sink, PAGES, 2) == 0,
          "pread");

    int count;
    prepare(3);
    struct iovec *vector = pieces(source, BYTES, &count);
    evict_all();
    check(lseek(file, 0, SEEK_SET) == 0 && writev(file, vector, count) == (ssize_t)BYTES,
          "writev of %d pieces", count);
    free(vector);
    vector = pieces(sink, BYTES, &count);
    evict_all();
    check(lseek(file, 0, SEEK_SET) == 0 && readv(file, vector, count) == (ssize_t)BYTES,
          "readv of %d pieces", count);
    check(bad_pages(sink, PAGES, 3) == 0, "writev and readv carry the content");
    prepare(4);
    check(pwritev(file, vector, count, 7) == (ssize_t)BYTES && bad_pages(sink, PAGES, 1000004) == 0,
          "pwritev");
    fill(sink, PAGES, 0);
    evict_all();
    check(preadv(file, vector, count, 7) == (ssize_t)BYTES && bad_pages(sink, PAGES, 1000004) == 0,
          "preadv");
    free(vector);

    /* Small and unaligned, from and to many pages. */
    prepare(5);
    int wrong = 0;
    for (size_t at = 2000; at + 5000 < BYTES; at += 40961)
        wrong += pwrite(file, source + at, 4500, (off_t)at) != 4500 ||
                 pread(file, sink + at, 4500, (off_t)at) != 4500 ||
                 memcmp(sink + at, source + at, 4500) != 0;
    check(wrong == 0, "small reads and writes across pages: %d wrong", wrong);

    /* A read that ends before the buffer does leaves the rest alone. */
    prepare(6);
    check(ftruncate(file, 10 * 4096 + 100) == 0 && pread(file, sink, BYTES, 0) == 10 * 4096 + 100,
          "a short read");
    check(bad_pages(sink + 11 * PAGE, PAGES - 11, 1000006 + 11) == 0,
          "the rest of the buffer stays");
}

/* The other end of a pipe or socket. */
struct end {
    int fd;
    char *memory;
    ssize_t moved;
};

static void *read_all(void *argument)
{
    struct end *e = argument;
    for (ssize_t n = 1; n > 0 && e->moved < (ssize_t)BYTES; e->moved += n > 0 ? n : 0)
        n = read(e->fd, e->memory + e->moved, BYTES - (size_t)e->moved);
    return NULL;
}

static void stream(int from, int to, uint64_t seed, const char *name)
{
    pthread_t reader;
    struct end end = {from, sink, 0};
    ssize_t sent = 0;
    prepare(seed);
    pthread_create(&reader, NULL, read_all, &end);
    while (sent < (ssize_t)BYTES) {
        ssize_t n = write(to, source + sent, BYTES - (size_t)sent);
        if (n <= 0)
            die("write");
        sent += n;
    }
    pthread_join(reader, NULL);
    check(end.moved == (ssize_t)BYTES && bad_pages(sink, PAGES, seed) == 0,
          "%s from evicted to evicted memory", name);
}

static void streams(void)
{
    int ends[2];
    if (pipe(ends) != 0)
        die("pipe");
    stream(ends[0], ends[1], 20, "a pipe");
    /* vmsplice lends the pages to the pipe: they may go out of memory meanwhile, their content may
       not. */
    prepare(21);
    struct iovec lent = {source, 8 * PAGE};
    check(vmsplice(ends[1], &lent, 1, 0) == 8 * 4096, "vmsplice");
    pressure(40);
    check(read(ends[0], sink, 8 * PAGE) == 8 * 4096 && bad_pages(sink, 8, 21) == 0,
          "what vmsplice lent arrives");
    check(bad_pages(source, PAGES, 21) == 0, "and stays");
    close(ends[0]);
    close(ends[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        die("socketpair");
    stream(ends[0], ends[1], 22, "a stream socket");
    close(ends[0]);
    close(ends[1]);
}

/* Everything that a message is made of lies in evicted memory: header, vector, control data. */
struct message {
    struct msghdr header;
    char gap[PAGE];
    struct iovec vector[2];
    char gap2[PAGE];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
};

static struct message *message(char *memory, size_t bytes)
{
    struct message *m = calloc(1, sizeof *m);
    m->vector[0] = (struct iovec){memory, 1000};
    m->vector[1] = (struct iovec){memory + 1000, bytes - 1000};
    m->header.msg_iov = m->vector;
    m->header.msg_iovlen = 2;
    m->header.msg_control = m->control.bytes;
    m->header.msg_controllen = sizeof m->control.bytes;
    return m;
}

static void messages(int file)
{
    int ends[2], received = -1;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0)
        die("socketpair");
    size_t bytes = 20 * PAGE;
    prepare(30);
    struct message *out = message(source, bytes), *in = message(sink, bytes);
    struct cmsghdr *control = CMSG_FIRSTHDR(&out->header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &file, sizeof file);
    evict_all();
    check(sendmsg(ends[0], &out->header, 0) == (ssize_t)bytes, "sendmsg");
    evict_all();
    check(recvmsg(ends[1], &in->header, 0) == (ssize_t)bytes && bad_pages(sink, 20, 30) == 0,
          "recvmsg");
    control = CMSG_FIRSTHDR(&in->header);
    if (control)
        memcpy(&received, CMSG_DATA(control), sizeof received);
    check(control && fcntl(received, F_GETFD) >= 0, "a descriptor comes along");
    close(received);
    free(out);
    free(in);
    prepare(31);
    check(send(ends[1], source, 50000, 0) == 50000 && recv(ends[0], sink, BYTES, 0) == 50000,
          "send and recv");
    check(memcmp(source, sink, 50000) == 0 && memcmp(sink + 50000, source + 50000, 1000) != 0,
          "a datagram as long as it was sent");
    close(ends[0]);
    close(ends[1]);
}

/* A long message on a stream whose pieces are in managed and in other memory by turns. */
static void mixed_message(void)
{
    enum { PARTS = 8 };
    int ends[2];
    size_t part = BYTES / PARTS;
    char *shared =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        die("socketpair");
    fill(shared, PAGES, 35);
    prepare(35);
    struct iovec *vector = malloc(PARTS * sizeof *vector);
    for (size_t i = 0; i < PARTS; i++)
        vector[i] = (struct iovec){(i % 2 ? shared : source) + i * part, part};
    struct msghdr header = {.msg_iov = vector, .msg_iovlen = PARTS};
    pthread_t reader;
    struct end end = {ends[1], sink, 0};
    pthread_create(&reader, NULL, read_all, &end);
    check(sendmsg(ends[0], &header, 0) == (ssize_t)BYTES, "sendmsg of mixed pieces");
    shutdown(ends[0], SHUT_WR);
    pthread_join(reader, NULL);
    check(end.moved == (ssize_t)BYTES && bad_pages(sink, PAGES, 35) == 0, "mixed pieces arrive");
    free(vector);
    munmap(shared, BYTES);
    close(ends[0]);
    close(ends[1]);
}

static void send_file(int file)
{
    int ends[2];
    off_t *offset = malloc(sizeof *offset);
    prepare(40);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        pwrite(file, source, BYTES, 0) != (ssize_t)BYTES)
        die("socketpair");
    pthread_t reader;
    struct end end = {ends[1], sink, 0};
    *offset = 0;
    evict_all();
    pthread_create(&reader, NULL, read_all, &end);
    while (*offset < (off_t)BYTES)
        if (sendfile(ends[0], file, offset, BYTES - (size_t)*offset) <= 0)
            die("sendfile");
    pthread_join(reader, NULL);
    check(end.moved == (ssize_t)BYTES && bad_pages(sink, PAGES, 40) == 0,
          "sendfile, with its offset in evicted memory");
    free(offset);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    int file = mkstemp(path);
    if (file < 0)
        die("mkstemp");
    unlink(path);
    for (int heap = 0; heap < 2; heap++) {
        printf("     buffers from %s\n", heap ? "malloc" : "mmap");
        source = heap ? heap_pages(PAGES) : map_pages(PAGES);
        sink = heap ? heap_pages(PAGES) : map_pages(PAGES);
        files(file);
        streams();
        messages(file);
        mixed_message();
        send_file(file);
    }
    return finish();
}
