/*
 * Guard pages (madvise(2), MADV_GUARD_INSTALL): no access, and no mapping is cut in two. They stay
 * whatever becomes of the mapping, until they are removed or it is unmapped.
 */
#include "common.h"
#include <sys/syscall.h>
#include <sys/uio.h>

#define INSTALL 102
#define REMOVE 103
#define PAGES ((size_t)4096)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

/* ---- Which pages are guards ---- */

/* Every `stride`-th page of a range, from its first on, and how many it has. */
struct guards {
    size_t stride, pages;
};

static int is_guard(struct guards g, size_t page)
{
    return page < g.pages && page % g.stride == 0;
}

static void install(char *p, struct guards g)
{
    for (size_t i = 0; i < g.pages; i += g.stride)
        if (madvise(p + i * PAGE, PAGE, INSTALL) != 0)
            die("madvise");
}

/* Pages of a range that are guards and should not be, or the other way round. */
static size_t misplaced(char *p, size_t pages, struct guards g)
{
    size_t wrong = 0;
    for (size_t i = 0; i < pages; i++)
        wrong += (fault_of(p + i * PAGE + i % PAGE, i & 1) == SIGSEGV) != is_guard(g, i);
    return wrong;
}

/* Pages beside the guards that do not hold what fill() put there. */
static size_t lost(char *p, size_t pages, struct guards g, uint64_t seed)
{
    size_t wrong = 0;
    for (size_t i = 0; i < pages; i++)
        wrong += !is_guard(g, i) && !page_is(p + i * PAGE, seed + i);
    return wrong;
}

/* Which pages fault when they are read, a character each. */
static const char *picture(char *p, size_t pages)
{
    static char text[64];
    for (size_t i = 0; i < pages; i++)
        text[i] = fault_of(p + i * PAGE, 0) ? 'G' : '.';
    text[pages] = 0;
    return text;
}

static void looks(char *p, const char *as, const char *what)
{
    const char *now = picture(p, strlen(as));
    check(strcmp(now, as) == 0, "%s: %s", what, now);
}

/* Ten pages with content, of which the third and the last two are guards. */
#define TEN ((size_t)10)
#define SOME "..G....." "GG"
static char *ten(void)
{
    char *p = map_pages(TEN);
    fill(p, TEN, 7);
    if (madvise(p + 2 * PAGE, PAGE, INSTALL) != 0 || madvise(p + 8 * PAGE, 2 * PAGE, INSTALL) != 0)
        die("madvise");
    return p;
}

/* ---- Cases ---- */

static void content(void)
{
    static const size_t strides[] = {2, 16, 600};
    char *p = map_pages(PAGES);
    for (size_t n = 0; n < sizeof strides / sizeof *strides; n++) {
        struct guards g = {strides[n], PAGES};
        fill(p, PAGES, n);
        if (n % 2)
            pressure(40);
        install(p, g);
        check(lost(p, PAGES, g, n) == 0,
              "every %zu. page is a guard: the others keep their content", g.stride);
        pressure(40);
        check(lost(p, PAGES, g, n) == 0, "and when they have been out");
        check(madvise(p + PAGE, (PAGES - 1) * PAGE, REMOVE) == 0, "remove, over guards and others");
        size_t stale = 0;
        for (size_t i = g.stride; i < PAGES; i += g.stride)
            stale += nonzero(p + i * PAGE, PAGE) != 0;
        check(stale == 0 && lost(p, PAGES, g, n) == 0,
              "%zu of the guards do not read as zeros, the others are as they were", stale);
        check(fault_of(p, 0) == SIGSEGV, "a guard beside the range stays");
        check(madvise(p, PAGE, REMOVE) == 0 && nonzero(p, PAGE) == 0, "until it goes too");
        fill(p, PAGES, 100 + n);
        pressure(40);
        check(bad_pages(p, PAGES, 100 + n) == 0, "all can be written");
    }
    struct guards g = {3, PAGES};
    install(p, g);
    check(misplaced(p, PAGES, g) == 0, "each guard faults, and no other page");
    munmap(p, PAGES * PAGE);
    p = mmap(p, PAGES * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    check(misplaced(p, PAGES, (struct guards){1, 0}) == 0,
          "none is left when the mapping was unmapped");
    install(p, g);
    check(mmap(p, PAGES * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == p
              && misplaced(p, PAGES, (struct guards){1, 0}) == 0, "nor when another was put there");
    munmap(p, PAGES * PAGE);
}

static void calls(void)
{
    char *p = ten(), byte = 1;
    int ends[2];
    if (pipe(ends) != 0)
        die("pipe");
    check(write(ends[1], p + 2 * PAGE, 1) == -1 && errno == EFAULT,
          "a system call that reads a guard: EFAULT");
    check(write(ends[1], &byte, 1) == 1 && read(ends[0], p + 2 * PAGE, 1) == -1 && errno == EFAULT,
          "one that writes there too");
    check(read(ends[0], &byte, 1) == 1, "nothing is lost");
    check(write(ends[1], p + PAGE, 2 * PAGE) == (ssize_t)PAGE,
          "one that comes upon a guard does what is before it");
    check(read(ends[0], p + PAGE, 2 * PAGE) == (ssize_t)PAGE, "also where it writes");
    looks(p, SOME, "the guards");
    check(madvise(p + 2 * PAGE, PAGE, REMOVE) == 0 &&
              write(ends[1], p + 2 * PAGE, PAGE) == (ssize_t)PAGE,
          "once removed it is read");
    close(ends[0]);
    close(ends[1]);
    munmap(p, TEN * PAGE);
}

static void survive(void)
{
    static const struct {
        int advice;
        const char *name;
    } all[] = {
        {MADV_DONTNEED, "DONTNEED"},
        {MADV_FREE, "FREE"},
        {MADV_COLD, "COLD"},
        {MADV_PAGEOUT, "PAGEOUT"},
        {MADV_WILLNEED, "WILLNEED"},
        {MADV_NOHUGEPAGE, "NOHUGEPAGE"},
        {MADV_SEQUENTIAL, "SEQUENTIAL"},
        {MADV_NORMAL, "NORMAL"},
        {MADV_DONTDUMP, "DONTDUMP"},
        {MADV_DODUMP, "DODUMP"},
        {MADV_POPULATE_READ, "POPULATE_READ"},
        {MADV_POPULATE_WRITE, "POPULATE_WRITE"},
        {MADV_DONTFORK, "DONTFORK"},
        {MADV_DOFORK, "DOFORK"},
        {INSTALL, "GUARD_INSTALL of some"},
    };
    static const int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE,
                                PROT_READ | PROT_WRITE};
    char *p = ten();
    for (size_t i = 0; i < sizeof prots / sizeof *prots; i++) {
        check(mprotect(p, TEN * PAGE, prots[i]) == 0, "mprotect to %d", prots[i]);
        looks(p, prots[i] ? SOME : "GGGGGGGGGG", "the guards");
        check(fault_of(p + PAGE, 1) == (prots[i] & PROT_WRITE ? 0 : SIGSEGV),
              "a page beside them is written");
        check(fault_of(p + 2 * PAGE, 1) == SIGSEGV, "a guard is not");
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t len = all[i].advice == INSTALL ? PAGE : TEN * PAGE;
        int result = madvise(p + (all[i].advice == INSTALL ? 2 : 0) * PAGE, len, all[i].advice),
            error = result ? errno : 0;
        printf("     %s returns %d, errno %d\n", all[i].name, result, error);
        looks(p, SOME, all[i].name);
    }
    check(mlock(p, TEN * PAGE) == -1 && errno == ENOMEM, "mlock cannot bring guards in: ENOMEM");
    looks(p, SOME, "locked");
    check(madvise(p, TEN * PAGE, 24) == 0, "DONTNEED_LOCKED");
    looks(p, SOME, "locked and discarded");
    check(madvise(p, PAGE, INSTALL) == -1 && errno == EINVAL,
          "what is locked takes no guards: EINVAL");
    check(madvise(p + 2 * PAGE, PAGE, REMOVE) == 0, "but loses them");
    looks(p, "........GG", "locked, and one removed");
    check(munlock(p, TEN * PAGE) == 0 && madvise(p + 2 * PAGE, PAGE, INSTALL) == 0, "munlock");
    check(mlockall(MCL_CURRENT) == 0 && munlockall() == 0, "mlockall passes over guards");
    looks(p, SOME, "unlocked");
    munmap(p, TEN * PAGE);
    /* Guards of memory that cannot be accessed yet. */
    p = mmap(NULL, TEN * PAGE, PROT_NONE, ANONYMOUS, -1, 0);
    check(madvise(p + 3 * PAGE, PAGE, INSTALL) == 0 &&
              madvise(p, TEN * PAGE, MADV_POPULATE_READ) == -1 && errno == EINVAL,
          "guards in memory without access");
    check(mprotect(p, TEN * PAGE, PROT_READ) == 0, "mprotect");
    looks(p, "...G......", "they are there when it may be accessed");
    check(mprotect(p, TEN * PAGE, PROT_NONE) == 0 && madvise(p, TEN * PAGE, REMOVE) == 0,
          "removed without access");
    looks(p, "GGGGGGGGGG", "that does not give any");
    check(mprotect(p, TEN * PAGE, PROT_READ | PROT_WRITE) == 0 && nonzero(p, TEN * PAGE) == 0,
          "and all reads as zeros");
    munmap(p, TEN * PAGE);
}

static void move(void)
{
    char *p = ten(), *there = mmap(NULL, 64 * PAGE, PROT_NONE, ANONYMOUS, -1, 0);
    struct guards g = {3, PAGES};
    check(mremap(p, TEN * PAGE, 14 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there,
          "mremap of a mapping with guards, to more");
    looks(there, SOME "....", "they come along");
    check(page_is(there, 7) && page_is(there + 7 * PAGE, 14) &&
              nonzero(there + 10 * PAGE, 4 * PAGE) == 0,
          "and so does the content");
    check(fault_of(p, 0) == SIGSEGV, "nothing is left behind");
    check(mremap(there, 14 * PAGE, 9 * PAGE, 0) == there, "it shrinks");
    looks(there, "..G.....G", "the guards");
    check(mremap(there, 9 * PAGE, 10 * PAGE, 0) == there || errno == ENOMEM, "grows where it is");
    looks(there, "..G.....G", "the guards");
    munmap(there + 9 * PAGE, 55 * PAGE);
    check(mremap(there, 9 * PAGE, 12 * PAGE, 0) == there, "grows where it is, behind a guard");
    looks(there, "..G.....G...", "the guards");
    p = map_pages(12);
    check(mremap(there, 12 * PAGE, 12 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED,
                 p) == p,
          "DONTUNMAP");
    looks(p, "..G.....G...", "moved");
    looks(there, "............", "what stays has none");
    check(page_is(p + PAGE, 8) && nonzero(there, 12 * PAGE) == 0, "content has moved too");
    check(mremap(p, 12 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "to less");
    looks(there, "..G", "what is left");
    munmap(there, 12 * PAGE);
    /* Many, with pages in memory and out. */
    p = map_pages(PAGES);
    fill(p, PAGES, 50);
    pressure(40);
    install(p, g);
    check(bad_pages(p + 4 * PAGE, 2, 54) == 0 && lost(p + 999 * PAGE, 300, g, 1049) == 0,
          "some are in memory");
    there = map_pages(PAGES);
    check(mremap(p, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there,
          "a mapping with many guards moves");
    check(lost(there, PAGES, g, 50) == 0, "with its content");
    check(misplaced(there, PAGES, g) == 0, "and its guards");
    check(mprotect(there, PAGES * PAGE, PROT_READ) == 0 &&
              mprotect(there, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0,
          "mprotect");
    check(misplaced(there, PAGES, g) == 0, "the guards stay");
    munmap(there, PAGES * PAGE);
}

static void at_fork(void)
{
    char *p = ten();
    pid_t pid = fork_flushed();
    if (pid == 0) {
        looks(p, SOME, "in a child");
        check(page_is(p + PAGE, 8) && madvise(p, TEN * PAGE, REMOVE) == 0 &&
                  nonzero(p + 8 * PAGE, 2 * PAGE) == 0,
              "removed there");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
    looks(p, SOME, "in the parent they stay");
    check(madvise(p, 9 * PAGE, MADV_WIPEONFORK) == 0, "WIPEONFORK");
    pid = fork_flushed();
    if (pid == 0) {
        looks(p, ".........G", "in a child that begins with zeros");
        check(nonzero(p, 9 * PAGE) == 0 && fault_of(p + 2 * PAGE, 1) == 0, "they are memory there");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
    looks(p, SOME, "in the parent they stay");
    check(madvise(p, 9 * PAGE, MADV_DONTFORK) == 0, "DONTFORK");
    pid = fork_flushed();
    if (pid == 0) {
        looks(p, "GGGGGGGGGG", "in a child that has none of it but a guard");
        check(munmap(p, TEN * PAGE) == 0, "unmapped there");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
    munmap(p, TEN * PAGE);
}

static void errors(void)
{
    char *p = map_pages(4);
    fill(p, 4, 30);
    check(madvise(p + 1, PAGE, INSTALL) == -1 && errno == EINVAL,
          "an address inside a page: EINVAL");
    check(madvise(p + 1, PAGE, REMOVE) == -1 && errno == EINVAL, "of REMOVE too");
    check(madvise(p, 0, INSTALL) == 0 && page_is(p, 30), "no length: 0, and no guard");
    check(madvise(p, 1, INSTALL) == 0, "a byte");
    looks(p, "G...", "is a page");
    munmap(p + 2 * PAGE, PAGE);
    check(madvise(p, 4 * PAGE, INSTALL) == -1 && errno == ENOMEM, "a hole in the range: ENOMEM");
    looks(p, "GGGG", "what there is becomes guards");
    check(madvise(p, 4 * PAGE, REMOVE) == -1 && errno == ENOMEM, "REMOVE over a hole: ENOMEM");
    looks(p, "..G.", "they are removed all the same");
    munmap(p, 4 * PAGE);
}

/* Many ranges at once, of the process's own memory. */
static void by_vector(void)
{
    char *p = map_pages(PAGES);
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec two[2] = {{p, PAGES / 2 * PAGE}, {p + (PAGES / 2 + 1) * PAGE, PAGE}};
    struct iovec *there = memcpy(heap_pages(1), two, sizeof two);
    fill(p, PAGES, 60);
    pressure(40);
    check(process_madvise(self, there, 2, MADV_DONTNEED, 0) == (ssize_t)((PAGES / 2 + 1) * PAGE),
          "process_madvise: DONTNEED");
    check(nonzero(p, PAGES / 2 * PAGE) == 0 && page_is(p + PAGES / 2 * PAGE, 60 + PAGES / 2) &&
              nonzero(two[1].iov_base, PAGE) == 0,
          "what was out reads as zeros too");
    there[0].iov_len = PAGE;
    check(process_madvise(self, there, 2, INSTALL, 0) == 2 * (ssize_t)PAGE,
          "GUARD_INSTALL of two ranges");
    looks(p, "G...", "the first");
    looks(p + PAGES / 2 * PAGE, ".G..", "the second");
    check(process_madvise(self, there, 2, 12345, 0) == -1 && errno == EINVAL,
          "an advice that there is not: EINVAL");
    check(process_madvise(self, there, 2, REMOVE, 1) == -1 && errno == EINVAL, "flags: EINVAL");
    check(process_madvise(-1, there, 2, REMOVE, 0) == -1 && errno == EBADF, "no process: EBADF");
    check(process_madvise(self, NULL, 2, REMOVE, 0) == -1 && errno == EFAULT, "no ranges: EFAULT");
    check(process_madvise(self, there, 0, REMOVE, 0) == 0, "none: 0");
    looks(p, "G...", "none of which does anything");
    there[1].iov_base = p + 1;
    check(process_madvise(self, there, 2, REMOVE, 0) == (ssize_t)PAGE,
          "up to a range that is wrong");
    looks(p, "....", "the first");
    there[0] = there[1];
    check(process_madvise(self, there, 2, REMOVE, 0) == -1 && errno == EINVAL,
          "if that is the first: EINVAL");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    int other = (int)syscall(SYS_pidfd_open, pid, 0);
    memcpy(there, two, sizeof two);
    check(process_madvise(other, there, 2, INSTALL, 0) == -1 && errno == EINVAL,
          "of another process: EINVAL");
    check(fault_of(p, 0) == 0, "nothing of ours");
    kill(pid, SIGKILL);
    reap(pid);
    close(other);
    close(self);
    free(there);
    munmap(p, PAGES * PAGE);
}

/* Pages between guards that come and go are read and written meanwhile; what is read ahead stops at
   guards. */
static char *shared;
static atomic_int stop;

static void *work(void *unused)
{
    (void)unused;
    size_t wrong = 0;
    for (uint64_t round = 1; !stop; round++)
        for (size_t i = 0; i < 1024; i++) {
            if (i % 8 > 4)
                continue;
            if (round > 1)
                wrong += !page_is(shared + i * PAGE, round - 1 + i);
            fill_page(shared + i * PAGE, round + i);
        }
    return (void *)wrong;
}

static void beside(void)
{
    pthread_t thread;
    void *wrong;
    size_t stale = 0;
    shared = map_pages(1024);
    char *all = map_pages(4096);
    if ((errno = pthread_create(&thread, NULL, work, NULL)) != 0)
        die("pthread_create");
    for (size_t round = 0; round < 20; round++) {
        for (size_t i = 5; i < 1024; i += 8)
            if (madvise(shared + i * PAGE, 3 * PAGE, INSTALL) != 0)
                die("madvise");
        fill(all, 4096, round);
        for (size_t i = 5; i < 1024; i += 8) {
            if (madvise(shared + i * PAGE, 3 * PAGE, REMOVE) != 0)
                die("madvise");
            stale += nonzero(shared + i * PAGE, 3 * PAGE) != 0;
            fill(shared + i * PAGE, 3, i);
        }
    }
    stop = 1;
    pthread_join(thread, &wrong);
    check(wrong == NULL && stale == 0, "%zu pages beside guards are wrong, %zu where guards were",
          (size_t)wrong, stale);
    munmap(shared, 1024 * PAGE);
    munmap(all, 4096 * PAGE);
}

int main(void)
{
    /* Not of the kind that is managed: here the kernel answers. */
    char *stack = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_STACK, -1, 0);
    if (madvise(stack, PAGE, INSTALL) != 0) {
        printf("SKIP the kernel has no guard pages\n");
        return 0;
    }
    content();
    calls();
    survive();
    move();
    at_fork();
    errors();
    by_vector();
    beside();
    return finish();
}
