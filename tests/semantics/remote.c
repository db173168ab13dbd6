/*
 * Another process writes into this one's memory by process_vm_writev, and what it writes arrives
 * slowly: while the kernel holds the pages that it writes to, they become those that are to leave
 * memory. The writer is a child of a fork, or another program.
 *
 * `remote serve FILE` and `remote write FILE` are the two sides as programs of their own, which
 * meet in a file of a page of zeros.
 */
#include "common.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#define CHUNK_PAGES ((size_t)512)
#define CHUNK (CHUNK_PAGES * PAGE)
#define CHUNKS 8
#define OLD 1000000
#define NEW 2000000
/* How often a chunk is tried. */
#define TRIES 100

/* What both sides see. */
static struct control {
    /* What is to be written to, in which process; which call of the writer's that is, from 1 on;
       that there will be no more. */
    _Atomic uintptr_t target;
    _Atomic int pid, asked, end;
    /* Calls in which the kernel waits for what is to be written, and those in which it may have
       it. */
    _Atomic int waits, may_go;
    /* Calls that are done, and what the last wrote. */
    _Atomic int done;
    _Atomic ssize_t written;
} *control;

/* The control page, in a file if it has a name. */
static void map_control(const char *name)
{
    int fd = name ? open(name, O_RDWR) : memfd_create("control", 0);
    if (fd < 0 || (!name && ftruncate(fd, (off_t)PAGE) != 0))
        die("control");
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        die("mmap of control");
    close(fd);
    control = (struct control *)p;
}

static void nap(void)
{
    struct timespec time = {.tv_nsec = 200000};
    nanosleep(&time, NULL);
}

/* ---- The writer ---- */

static uint64_t content(int call)
{
    return NEW + (uint64_t)call * CHUNK_PAGES;
}

/* Gives out what is to be written, when it may. */
static void give_out(int uffd, char *source)
{
    static char pages[CHUNK] __attribute__((aligned(4096)));
    struct uffd_msg message;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        int call = control->asked;
        control->waits = call;
        while (control->may_go != call)
            nap();
        fill(pages, CHUNK_PAGES, content(call));
        struct uffdio_copy copy = {.dst = (uintptr_t)source, .src = (uintptr_t)pages, .len = CHUNK};
        if (ioctl(uffd, UFFDIO_COPY, &copy) != 0)
            die("UFFDIO_COPY");
    }
    die("read of a userfaultfd");
}

static int open_uffd(void)
{
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) != 0)
        die("UFFDIO_API");
    return uffd;
}

/* Writes as often as it is asked to, by the C library's function or by number. */
static int write_all(int by_number)
{
    int uffd = open_uffd();
    char *source = (char *)mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                -1, 0);
    struct uffdio_register all = {.range = {(uintptr_t)source, CHUNK},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (source == MAP_FAILED || uffd < 0 || ioctl(uffd, UFFDIO_REGISTER, &all) != 0)
        die("UFFDIO_REGISTER");
    pid_t giver = fork();
    if (giver < 0)
        die("fork of the giver");
    if (giver == 0)
        give_out(uffd, source);
    while (!control->end) {
        if (control->done == control->asked) {
            nap();
            continue;
        }
        if (madvise(source, CHUNK, MADV_REMOVE) != 0)
            die("MADV_REMOVE");
        struct iovec local = {source, CHUNK}, remote = {(void *)control->target, CHUNK};
        control->written =
            by_number ? syscall(SYS_process_vm_writev, control->pid, &local, 1, &remote, 1, 0)
                      : process_vm_writev(control->pid, &local, 1, &remote, 1, 0);
        if (control->written < 0 && errno != EFAULT)
            die("process_vm_writev");
        control->done = control->asked;
    }
    kill(giver, SIGKILL);
    return reap(giver) == 128 + SIGKILL ? 0 : 1;
}

/* ---- The target ---- */

/* Has a chunk written while it is to leave memory. How many pages were written: where faults are
   signals a call ends at a page that is out. Those of them, and of the others, that are wrong are
   added up. */
static size_t chunk_written(char *at, size_t *lost)
{
    fill(at, CHUNK_PAGES, OLD);
    control->target = (uintptr_t)at;
    int call = ++control->asked;
    while (control->waits != call && control->done != call)
        nap();
    if (control->waits == call) {
        pressure(32);
        control->may_go = call;
    }
    while (control->done != call)
        nap();
    size_t pages = control->written < 0 ? 0 : (size_t)control->written / PAGE;
    *lost += bad_pages(at, pages, content(call));
    *lost += bad_pages(at + pages * PAGE, CHUNK_PAGES - pages, OLD + pages);
    return pages;
}

static void be_written(const char *by)
{
    char *p = map_pages(CHUNKS * CHUNK_PAGES);
    size_t lost = 0, chunks = 0;
    control->pid = getpid();
    for (size_t chunk = 0; chunk < CHUNKS; chunk++)
        for (int tries = 0; tries < TRIES; tries++)
            if (chunk_written(p + chunk * CHUNK, &lost) > 0) {
                chunks++;
                break;
            }
    control->end = 1;
    check(lost == 0, "pages that %s has written: %zu are wrong", by, lost);
    check(chunks == CHUNKS, "it has written to all of the memory");
    munmap(p, CHUNKS * CHUNK);
}

static void by_child(void)
{
    map_control(NULL);
    pid_t writer = fork_flushed();
    if (writer == 0)
        _exit(write_all(0));
    be_written("a child");
    check(reap(writer) == 0, "it ends");
}

static void by_program(void)
{
    char name[] = "control.XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || ftruncate(fd, (off_t)PAGE) != 0)
        die("mkstemp");
    close(fd);
    map_control(name);
    pid_t writer = fork_flushed();
    if (writer == 0) {
        execl("/proc/self/exe", "remote", "write", name, NULL);
        die("execl");
    }
    be_written("another program");
    check(reap(writer) == 0, "it ends");
    unlink(name);
}

int main(int argc, char **argv)
{
    int uffd = open_uffd();
    if (uffd < 0) {
        printf("     (left out: no userfaultfd that the kernel itself waits for)\n");
        return finish();
    }
    close(uffd);
    if (argc == 3) {
        map_control(argv[2]);
        if (strcmp(argv[1], "write") == 0)
            return write_all(1);
        be_written("a program from elsewhere");
    } else {
        by_child();
        by_program();
    }
    return finish();
}
