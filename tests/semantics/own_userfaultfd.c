/*
 * A userfaultfd of the program's own on memory that is managed: what has content keeps it, be it in
 * memory or not; what was never touched is the program's to fill. Then all that may be done with
 * such memory: system calls, protection, forks, moves, other mappings in its place.
 */
#include "common.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* What the handler puts at a page: told by its place in the region. */
#define GIVEN 0xabc000u

static char *region;
static size_t region_pages;
static int uffd = -1;
static _Atomic int missing, protected;
/* Pages to copy from, which are out more often than not. */
static char *source;

static int open_uffd(uint64_t features)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int do_register(int fd, void *at, size_t bytes, uint64_t mode)
{
    struct uffdio_register reg = {.range = {(uintptr_t)at, bytes}, .mode = mode};
    int result = ioctl(fd, UFFDIO_REGISTER, &reg);
    if (result == 0 && !(reg.ioctls & (uint64_t)1 << _UFFDIO_COPY))
        return -2;
    return result == 0 ? 0 : errno;
}

static int unregister(int fd, void *at, size_t bytes)
{
    struct uffdio_range range = {(uintptr_t)at, bytes};
    return ioctl(fd, UFFDIO_UNREGISTER, &range) == 0 ? 0 : errno;
}

static int protect(void *at, size_t bytes, int on)
{
    struct uffdio_writeprotect wp = {.range = {(uintptr_t)at, bytes},
                                     .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
    return ioctl(uffd, UFFDIO_WRITEPROTECT, &wp) == 0 ? 0 : errno;
}

/* Serves faults; what it needs of memory is on the heap, as it is in real programs. */
static void *handler(void *unused)
{
    (void)unused;
    struct uffd_msg *message = (struct uffd_msg *)malloc(sizeof *message);
    for (;;) {
        struct pollfd ready = {.fd = uffd, .events = POLLIN};
        poll(&ready, 1, -1);
        if (read(uffd, message, sizeof *message) != sizeof *message)
            continue;
        if (message->event != UFFD_EVENT_PAGEFAULT)
            continue;
        char *page = (char *)(uintptr_t)(message->arg.pagefault.address & ~(uint64_t)(PAGE - 1));
        if (message->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
            protected++;
            if (protect(page, PAGE, 0) != 0)
                die("UFFDIO_WRITEPROTECT in the handler");
            continue;
        }
        missing++;
        size_t i = (size_t)(page - region) / PAGE % 64;
        struct uffdio_copy copy = {
            .dst = (uintptr_t)page, .src = (uintptr_t)source + i * PAGE, .len = PAGE};
        if (ioctl(uffd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST)
            die("UFFDIO_COPY in the handler");
    }
    return NULL;
}

/* Pages of the region that are as they should be: filled before at multiples of `step`, else given
   by the handler. */
static size_t wrong_pages(size_t step, uint64_t seed)
{
    size_t wrong = 0;
    for (size_t i = 0; i < region_pages; i++)
        wrong += !page_is(region + i * PAGE, i % step == 0 ? seed + i : GIVEN + i % 64);
    return wrong;
}

static void refusals(void)
{
    char *pages = map_pages(4);
    fill(pages, 4, 70);
    pressure(40);
    check(do_register(uffd, pages + 1, PAGE, UFFDIO_REGISTER_MODE_MISSING) == EINVAL,
          "an address that is not aligned");
    check(do_register(uffd, pages, PAGE + 1, UFFDIO_REGISTER_MODE_MISSING) == EINVAL,
          "a length that is not");
    check(do_register(uffd, pages, 0, UFFDIO_REGISTER_MODE_MISSING) == EINVAL, "no length");
    check(do_register(uffd, pages, PAGE, 0) == EINVAL, "no mode");
    check(unregister(uffd, pages, 4 * PAGE) == 0, "UNREGISTER of what is not registered");
    check(bad_pages(pages, 4, 70) == 0, "the content is as it was");
    check(do_register(1, pages, PAGE, UFFDIO_REGISTER_MODE_MISSING) != 0,
          "a descriptor that is none");
    munmap(pages, 4 * PAGE);
    check(do_register(uffd, pages, 4 * PAGE, UFFDIO_REGISTER_MODE_MISSING) == EINVAL,
          "what is not mapped");
    /* Over a hole, which stays one. */
    pages = map_pages(12);
    fill(pages, 12, 80);
    munmap(pages + 4 * PAGE, 4 * PAGE);
    check(do_register(uffd, pages, 12 * PAGE, UFFDIO_REGISTER_MODE_MISSING) == 0,
          "a range with a hole");
    check(fault_of(pages + 5 * PAGE, 0) == SIGSEGV, "the hole");
    check(bad_pages(pages, 4, 80) + bad_pages(pages + 8 * PAGE, 4, 88) == 0, "what lies beside it");
    check(unregister(uffd, pages, 12 * PAGE) == 0, "UNREGISTER over the hole");
    munmap(pages, 12 * PAGE);
}

static void contents(void)
{
    for (size_t i = 0; i < region_pages; i += 3)
        fill_page(region + i * PAGE, 1000 + i);
    pressure(32);
    struct uffdio_register *reg = (struct uffdio_register *)malloc(sizeof *reg);
    *reg = (struct uffdio_register){.range = {(uintptr_t)region, region_pages * PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
    check(syscall(SYS_ioctl, uffd, UFFDIO_REGISTER, reg) == 0,
          "UFFDIO_REGISTER by number, its argument on the heap");
    free(reg);
    missing = 0;
    size_t wrong = wrong_pages(3, 1000);
    check(wrong == 0, "pages with content keep it, others are the handler's");
    check(missing == (int)(region_pages - (region_pages + 2) / 3), "faults for missing pages: %d",
          missing);
    pressure(32);
    missing = 0;
    wrong = wrong_pages(3, 1000);
    check(wrong == 0 && missing == 0, "they stay");
    /* Given up and asked for again. */
    check(madvise(region + 30 * PAGE, 30 * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    wrong = 0;
    for (size_t i = 30; i < 60; i++)
        wrong += !page_is(region + i * PAGE, GIVEN + i % 64);
    check(wrong == 0 && missing == 30, "afterwards they are missing: %d", missing);
    for (size_t i = 30; i < 60; i++)
        if (i % 3 == 0)
            fill_page(region + i * PAGE, 1000 + i);
}

static void protection(void)
{
    protected = 0;
    check(protect(region, 8 * PAGE, 1) == 0, "UFFDIO_WRITEPROTECT");
    /* Its neighbours leave memory meanwhile, and are protected for that. */
    pressure(32);
    check(wrong_pages(3, 1000) == 0 && protected == 0, "reads meet no protection");
    for (size_t i = 0; i < 8; i++)
        *(volatile char *)(region + i * PAGE) = *(region + i * PAGE);
    check(protected == 8, "writes do: %d", protected);
    check(mprotect(region, 8 * PAGE, PROT_READ) == 0 && fault_of(region, 1) == SIGSEGV, "mprotect");
    check(mprotect(region, 8 * PAGE, PROT_READ | PROT_WRITE) == 0 && fault_of(region, 1) == 0,
          "and back");
    fill_page(region, 1000);
}

/* Faults inside of system calls are the kernel's own, which a userfaultfd for faults of user mode
   only does not see. */
static void calls(void)
{
    int pipes[2];
    if (pipe(pipes) != 0)
        die("pipe");
    madvise(region + 64 * PAGE, 16 * PAGE, MADV_DONTNEED);
    missing = 0;
    size_t wrong = 0;
    char buffer[4096];
    for (size_t i = 64; i < 72; i++) {
        wrong += write(pipes[1], region + i * PAGE, PAGE) != (ssize_t)PAGE;
        wrong += read(pipes[0], buffer, PAGE) != (ssize_t)PAGE || !page_is(buffer, GIVEN + i % 64);
    }
    check(wrong == 0 && missing == 8, "write(2) of missing pages: %d faults", missing);
    for (size_t i = 72; i < 80; i++) {
        fill_page(buffer, i);
        wrong += write(pipes[1], buffer, PAGE) != (ssize_t)PAGE;
        wrong += read(pipes[0], region + i * PAGE, PAGE) != (ssize_t)PAGE ||
                 !page_is(region + i * PAGE, i);
    }
    check(wrong == 0 && missing == 16, "read(2) into missing pages: %d faults", missing);
    mprotect(region + 64 * PAGE, PAGE, PROT_NONE);
    check(write(pipes[1], region + 64 * PAGE, PAGE) == -1 && errno == EFAULT,
          "write(2) without access: %s", strerror(errno));
    mprotect(region + 64 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    close(pipes[0]);
    close(pipes[1]);
    for (size_t i = 64; i < 80; i++)
        fill_page(region + i * PAGE, i % 3 == 0 ? 1000 + i : GIVEN + i % 64);
}

/* Copies of many pages whose source is out. */
static void copies(void)
{
    size_t pages = 700;
    char *from = map_pages(pages), *to = map_pages(pages);
    fill(from, pages, 5000);
    check(do_register(uffd, to, pages * PAGE, UFFDIO_REGISTER_MODE_MISSING) == 0,
          "a region to copy to");
    pressure(40);
    struct uffdio_copy copy = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = pages * PAGE};
    int result = ioctl(uffd, UFFDIO_COPY, &copy);
    check(result == 0 && copy.copy == (int64_t)(pages * PAGE), "UFFDIO_COPY of %zu pages", pages);
    check(bad_pages(to, pages, 5000) == 0, "they are there");
    copy.copy = 0;
    result = ioctl(uffd, UFFDIO_COPY, &copy);
    check(result == -1 && errno == EEXIST && copy.copy == -EEXIST, "once more: %s",
          strerror(errno));
    madvise(to, 300 * PAGE, MADV_DONTNEED);
    pressure(40);
    result = ioctl(uffd, UFFDIO_COPY, &copy);
    check(result == -1 && errno == EAGAIN && copy.copy == 300 * (int64_t)PAGE,
          "up to what is there: %s", strerror(errno));
    copy.src = (uintptr_t)from + pages * PAGE;
    munmap(from + 690 * PAGE, 10 * PAGE);
    madvise(to, pages * PAGE, MADV_DONTNEED);
    copy.src = (uintptr_t)from;
    pressure(40);
    result = ioctl(uffd, UFFDIO_COPY, &copy);
    check(result == -1 && copy.copy == 690 * (int64_t)PAGE, "from a source that ends: %s",
          strerror(errno));
    check(bad_pages(to, 690, 5000) == 0, "up to there");
#ifdef UFFDIO_MOVE
    madvise(to, pages * PAGE, MADV_DONTNEED);
    pressure(40);
    struct uffdio_move move = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = 600 * PAGE};
    result = ioctl(uffd, UFFDIO_MOVE, &move);
    check(result == 0 && move.move == 600 * (int64_t)PAGE, "UFFDIO_MOVE of pages: %s",
          result ? strerror(errno) : "done");
    check(bad_pages(to, 600, 5000) == 0 && nonzero(from, 600 * PAGE) == 0, "they have moved");
#endif
    munmap(to, pages * PAGE);
    munmap(from, 690 * PAGE);
}

/* What is mapped beside memory that a program goes through in sequence, and what lies behind its
   last page, is as untouched as any. */
static void neighbours(void)
{
    size_t wrong = 0;
    for (int round = 0; round < 8; round++) {
        char *before = map_pages(40), *pages = map_pages(40);
        if (before > pages) {
            char *other = before;
            before = pages;
            pages = other;
        }
        fill(before, 40, 60);
        if (round % 2 == 1)
            pressure(32);
        fill(pages, 8, 100);
        wrong += do_register(uffd, pages, 40 * PAGE, UFFDIO_REGISTER_MODE_MISSING) != 0;
        struct uffdio_copy copy = {
            .dst = (uintptr_t)pages + 8 * PAGE, .src = (uintptr_t)before, .len = 32 * PAGE};
        wrong += ioctl(uffd, UFFDIO_COPY, &copy) != 0;
        wrong += bad_pages(pages, 8, 100) + bad_pages(pages + 8 * PAGE, 32, 60);
        munmap(before, 40 * PAGE);
        munmap(pages, 40 * PAGE);
    }
    check(wrong == 0, "what was never touched is missing, whatever lies beside it");
}

/* Many threads meet the same memory while it changes hands. */
static char *shared;
static atomic_int stop;

static void *toucher(void *argument)
{
    size_t wrong = 0;
    for (size_t n = (size_t)argument; !stop; n = n * 7 + 1)
        wrong += !page_is(shared + n % 1024 * PAGE, 9000 + n % 1024);
    return (void *)wrong;
}

static void races(void)
{
    size_t wrong = 0;
    for (int round = 0; round < 4; round++) {
        shared = map_pages(1024);
        fill(shared, 1024, 9000);
        stop = 0;
        pthread_t threads[3];
        for (size_t i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, toucher, (void *)(i + 11));
        pressure(24);
        for (int i = 0; i < 1024; i += 16)
            wrong +=
                do_register(uffd, shared + i * PAGE, 16 * PAGE, UFFDIO_REGISTER_MODE_MISSING) != 0;
        pressure(24);
        stop = 1;
        for (int i = 0; i < 3; i++) {
            void *result;
            pthread_join(threads[i], &result);
            wrong += (size_t)result;
        }
        wrong += bad_pages(shared, 1024, 9000);
        munmap(shared, 1024 * PAGE);
    }
    check(wrong == 0, "threads that use what is being registered");
}

static void forks(void)
{
    madvise(region + 90 * PAGE, 6 * PAGE, MADV_DONTNEED);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        failures = 0;
        size_t wrong = 0;
        for (size_t i = 0; i < region_pages; i++)
            if (i < 90 || i >= 96)
                wrong += !page_is(region + i * PAGE, i % 3 == 0 ? 1000 + i : GIVEN + i % 64);
        check(wrong == 0, "a child has the content");
        check(nonzero(region + 90 * PAGE, 6 * PAGE) == 0, "and zeros where there was none");
        pressure(32);
        munmap(region, region_pages * PAGE);
        char *again = (char *)mmap(region, region_pages * PAGE, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        fill(again, region_pages, 300);
        pressure(32);
        check(bad_pages(again, region_pages, 300) == 0, "and puts other memory there");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
    missing = 0;
    size_t wrong = 0;
    for (size_t i = 90; i < 96; i++)
        wrong += !page_is(region + i * PAGE, GIVEN + i % 64);
    check(wrong == 0 && missing == 6, "for the parent they are missing: %d", missing);
    for (size_t i = 90; i < 96; i += 3)
        fill_page(region + i * PAGE, 1000 + i);
}

/* Faults that are signals, for which the program has a handler. */
static int signal_uffd;
static _Atomic int signals;
static char *filled;

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    signals++;
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    struct uffdio_copy copy = {.dst = (uintptr_t)page, .src = (uintptr_t)filled, .len = PAGE};
    if (ioctl(signal_uffd, UFFDIO_COPY, &copy) != 0)
        _exit(97);
}

static void by_signal(void)
{
    signal_uffd = open_uffd(UFFD_FEATURE_SIGBUS);
    if (signal_uffd < 0)
        die("a userfaultfd with UFFD_FEATURE_SIGBUS");
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    filled = map_pages(1);
    fill_page(filled, 42);
    char *pages = map_pages(32);
    for (size_t i = 0; i < 32; i += 2)
        fill_page(pages + i * PAGE, 42);
    pressure(32);
    check(do_register(signal_uffd, pages, 32 * PAGE, UFFDIO_REGISTER_MODE_MISSING) == 0,
          "a userfaultfd of signals");
    pressure(32);
    size_t wrong = 0;
    for (size_t i = 0; i < 32; i++)
        wrong += !page_is(pages + i * PAGE, 42);
    check(wrong == 0 && signals == 16, "SIGBUS for missing pages: %d", signals);
    munmap(pages, 32 * PAGE);
    munmap(filled, PAGE);
    close(signal_uffd);
    signal(SIGBUS, SIG_DFL);
}

static void reuse(void)
{
    /* Its registration does not come along; what stays behind keeps its own. */
    char *moved = (char *)mremap(region, region_pages * PAGE, region_pages * PAGE,
                                 MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    check(moved != MAP_FAILED && moved != region, "MREMAP_DONTUNMAP");
    if (moved == MAP_FAILED)
        return;
    size_t wrong = 0;
    for (size_t i = 0; i < region_pages; i++)
        wrong += !page_is(moved + i * PAGE, i % 3 == 0 ? 1000 + i : GIVEN + i % 64);
    check(wrong == 0, "the content has moved");
    missing = 0;
    int right = page_is(region + 5 * PAGE, GIVEN + 5);
    check(right && missing == 1, "the old place is missing: %d", missing);
    char *larger =
        (char *)mremap(moved, region_pages * PAGE, 2 * region_pages * PAGE, MREMAP_MAYMOVE);
    check(larger != MAP_FAILED, "mremap to a larger place");
    wrong = 0;
    for (size_t i = 0; i < region_pages; i++)
        wrong += !page_is(larger + i * PAGE, i % 3 == 0 ? 1000 + i : GIVEN + i % 64);
    check(wrong == 0 && nonzero(larger + region_pages * PAGE, region_pages * PAGE) == 0,
          "the content has moved again");
    munmap(larger, 2 * region_pages * PAGE);
    /* Other memory in its place is like any other. */
    munmap(region + 8 * PAGE, 8 * PAGE);
    check(fault_of(region + 9 * PAGE, 0) == SIGSEGV, "munmap of a part");
    char *again = (char *)mmap(region, region_pages * PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(again == region, "mmap in its place");
    missing = 0;
    fill(again, region_pages, 400);
    pressure(32);
    check(bad_pages(again, region_pages, 400) == 0 && missing == 0, "which is nobody else's");
    check(do_register(uffd, again, region_pages * PAGE, UFFDIO_REGISTER_MODE_MISSING) == 0,
          "registered again");
    check(unregister(uffd, again, region_pages * PAGE) == 0, "and no more");
    pressure(32);
    check(bad_pages(again, region_pages, 400) == 0, "the content is as it was");
    munmap(again, region_pages * PAGE);
}

int main(void)
{
    int kernel_faults = 1;
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        kernel_faults = 0;
    else
        close(uffd);
    uffd = open_uffd(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    if (uffd < 0) {
        printf("SKIP: there is no userfaultfd here: %s\n", strerror(errno));
        return 0;
    }
    source = map_pages(64);
    fill(source, 64, GIVEN);
    /* More than an extent of the engine's, and a page. */
    region_pages = 1201;
    region = map_pages(region_pages);
    pthread_t thread;
    if (pthread_create(&thread, NULL, handler, NULL) != 0)
        die("pthread_create");
    refusals();
    contents();
    protection();
    if (kernel_faults)
        calls();
    else
        printf("left out: faults inside of system calls\n");
    copies();
    neighbours();
    races();
    forks();
    by_signal();
    reuse();
    return finish();
}
