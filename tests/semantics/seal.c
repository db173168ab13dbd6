/*
 * mseal(2): what is sealed cannot be unmapped, moved, replaced or protected otherwise, and what may
 * not be written there cannot be discarded. It is memory like any other for the rest.
 */
#include "common.h"
#include <sys/syscall.h>

#define SYS_SEAL 462
#define INSTALL 102
#define REMOVE 103
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define MOVED (MREMAP_MAYMOVE | MREMAP_FIXED)

static int seal(void *p, size_t len, unsigned long flags)
{
    return (int)syscall(SYS_SEAL, p, len, flags);
}

/* Whether a call failed, and why. */
#define FAILS(call, error) ((call) == -1 && errno == (error))
#define NO_MAP(call, error) ((call) == MAP_FAILED && errno == (error))

static char *some(size_t pages, int prot, uint64_t seed)
{
    char *p = map_pages(pages);
    fill(p, pages, seed);
    if (mprotect(p, pages * PAGE, prot) != 0)
        die("mprotect");
    return p;
}

/* Which pages can be written: a character each. */
static void writable(char *p, const char *as, const char *what)
{
    char now[16] = "";
    for (size_t i = 0; i < strlen(as); i++)
        now[i] = fault_of(p + i * PAGE, 1) ? '-' : 'w';
    check(strcmp(now, as) == 0, "%s: %s", what, now);
}

static void errors(void)
{
    char *p = some(8, PROT_READ | PROT_WRITE, 1);
    check(FAILS(seal(p + 1, PAGE, 0), EINVAL), "an address inside a page: EINVAL");
    check(FAILS(seal(p, PAGE, 1), EINVAL), "flags: EINVAL");
    check(FAILS(seal(p + 1, 0, 0), EINVAL) && FAILS(seal(p, 0, 1), EINVAL),
          "also without a length");
    check(FAILS(seal(p, (size_t)-1, 0), EINVAL) && FAILS(seal(p, (size_t)-8192, 0), EINVAL),
          "lengths beyond all addresses: EINVAL");
    check(seal(p, 0, 0) == 0 && mprotect(p, PAGE, PROT_READ) == 0,
          "no length: 0, and nothing is sealed");
    munmap(p + 4 * PAGE, PAGE);
    check(FAILS(seal(p + 3 * PAGE, 3 * PAGE, 0), ENOMEM), "a hole in the range: ENOMEM");
    check(FAILS(seal(p + 4 * PAGE, PAGE, 0), ENOMEM), "nothing else: ENOMEM");
    check(munmap(p + 3 * PAGE, PAGE) == 0 && munmap(p + 5 * PAGE, PAGE) == 0,
          "nothing is sealed then");
    check(seal(p + PAGE, 1, 0) == 0 && FAILS(munmap(p + PAGE, PAGE), EPERM), "a byte is a page");
    check(seal(p, 2 * PAGE, 0) == 0 && FAILS(munmap(p, PAGE), EPERM),
          "what is sealed is sealed again");
}

/* Six pages, of which the third and the fourth are sealed. */
static void refusals(const char *kind, int evict)
{
    char *p = some(6, PROT_READ | PROT_WRITE, 10), *other = some(2, PROT_READ | PROT_WRITE, 20);
    int fd = open("/proc/self/exe", O_RDONLY);
    check(seal(p + 2 * PAGE, 2 * PAGE, 0) == 0, "two of six pages are sealed, %s", kind);
    if (evict)
        pressure(40);
    check(FAILS(munmap(p, 6 * PAGE), EPERM) && FAILS(munmap(p + 2 * PAGE, PAGE), EPERM), "munmap");
    check(NO_MAP(mmap(p, 6 * PAGE, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0), EPERM),
          "mmap over them");
    check(NO_MAP(mmap(p + 3 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0), EPERM),
          "mmap of a file over them");
    check(
        NO_MAP(mmap(p + PAGE, 2 * PAGE, PROT_READ, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST),
        "mmap without replacing: EEXIST");
    check(NO_MAP(mremap(p + 2 * PAGE, PAGE, PAGE, 0), EPERM), "mremap that changes nothing");
    check(NO_MAP(mremap(p + 2 * PAGE, 2 * PAGE, PAGE, 0), EPERM), "to less");
    check(NO_MAP(mremap(p, 4 * PAGE, PAGE, 0), EPERM), "to less, where what goes is sealed");
    check(NO_MAP(mremap(p + 2 * PAGE, PAGE, 4 * PAGE, MREMAP_MAYMOVE), EPERM), "to more");
    check(NO_MAP(mremap(p + 2 * PAGE, PAGE, PAGE, MOVED, other), EPERM), "to elsewhere");
    check(NO_MAP(mremap(other, 2 * PAGE, 2 * PAGE, MOVED, p + PAGE), EPERM), "over them");
    check(bad_pages(p, 6, 10) == 0 && bad_pages(other, 2, 20) == 0, "all is as it was");
    check(FAILS(mprotect(p, 6 * PAGE, PROT_READ), EPERM), "mprotect");
    writable(p, "--wwww", "it has changed what lies before them");
    check(FAILS(mprotect(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE), EPERM),
          "mprotect that changes nothing");
    check(mprotect(p + 2 * PAGE, 0, PROT_READ) == 0, "mprotect of no length");
    check(FAILS(syscall(SYS_pkey_mprotect, p + 2 * PAGE, PAGE, PROT_READ, -1), EPERM),
          "pkey_mprotect");
    check(mprotect(p, 2 * PAGE, PROT_READ | PROT_WRITE) == 0,
          "what lies beside them may be changed");
    fill(p, 6, 30);
    pressure(40);
    check(bad_pages(p, 6, 30) == 0, "they are memory like any other");
    check(mlock(p + PAGE, 3 * PAGE) == 0 && munlock(p + PAGE, 3 * PAGE) == 0,
          "they are locked and unlocked");
    check(munmap(p, 2 * PAGE) == 0 && munmap(p + 4 * PAGE, 2 * PAGE) == 0,
          "what lies beside them is unmapped");
    check(bad_pages(p + 2 * PAGE, 2, 32) == 0, "they stay");
    check(FAILS(munmap(p, 6 * PAGE), EPERM), "between holes too");
    check(FAILS(mprotect(p + PAGE, 3 * PAGE, PROT_READ), ENOMEM), "a hole before them: ENOMEM");
    munmap(other, 2 * PAGE);
    close(fd);
}

static void advices(void)
{
    static const struct {
        int advice;
        const char *name;
    } all[] = {
        {MADV_DONTNEED, "DONTNEED"},
        {MADV_FREE, "FREE"},
        {24, "DONTNEED_LOCKED"},
        {MADV_REMOVE, "REMOVE"},
        {MADV_DONTFORK, "DONTFORK"},
        {MADV_DOFORK, "DOFORK"},
        {MADV_WIPEONFORK, "WIPEONFORK"},
        {MADV_KEEPONFORK, "KEEPONFORK"},
        {MADV_COLD, "COLD"},
        {MADV_PAGEOUT, "PAGEOUT"},
        {MADV_WILLNEED, "WILLNEED"},
        {MADV_DONTDUMP, "DONTDUMP"},
        {MADV_DODUMP, "DODUMP"},
        {MADV_POPULATE_READ, "POPULATE_READ"},
        {MADV_POPULATE_WRITE, "POPULATE_WRITE"},
        {INSTALL, "GUARD_INSTALL"},
        {REMOVE, "GUARD_REMOVE"},
    };
    char *closed = some(2, PROT_READ, 40), *open = some(2, PROT_READ | PROT_WRITE, 50);
    if (seal(closed, 2 * PAGE, 0) != 0 || seal(open, 2 * PAGE, 0) != 0)
        die("mseal");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int one = madvise(closed, PAGE, all[i].advice), why = one ? errno : 0;
        int two = madvise(open, PAGE, all[i].advice), error = two ? errno : 0;
        printf("     %s of what cannot be written: %d, errno %d; of what can be: %d, errno %d\n",
               all[i].name, one, why, two, error);
    }
    check(bad_pages(closed, 2, 40) == 0, "what cannot be written keeps its content");
    check(nonzero(open, PAGE) == 0 && page_is(open + PAGE, 51), "what can be was discarded");
    /* In the middle of others: what lies before is discarded all the same. */
    char *p = some(6, PROT_READ | PROT_WRITE, 60);
    check(mprotect(p + 2 * PAGE, PAGE, PROT_READ) == 0 && seal(p + 2 * PAGE, PAGE, 0) == 0,
          "a page is sealed");
    check(FAILS(madvise(p, 6 * PAGE, MADV_DONTNEED), EPERM), "DONTNEED over it");
    check(nonzero(p, 2 * PAGE) == 0 && bad_pages(p + 2 * PAGE, 4, 62) == 0, "ends there");
    /* Guards that were there before. */
    p = some(4, PROT_READ | PROT_WRITE, 70);
    check(madvise(p + PAGE, PAGE, INSTALL) != 0 ||
              (mprotect(p, 4 * PAGE, PROT_READ) == 0 && seal(p, 4 * PAGE, 0) == 0 &&
               fault_of(p + PAGE, 0) == SIGSEGV && madvise(p, 4 * PAGE, REMOVE) == 0 &&
               nonzero(p + PAGE, PAGE) == 0),
          "a guard is sealed, and removed");
}

static void at_fork(void)
{
    char *p = some(64, PROT_READ, 80), *gone = some(1, PROT_READ | PROT_WRITE, 1);
    if (seal(p, 64 * PAGE, 0) != 0 || seal(gone, PAGE, 0) != 0)
        die("mseal");
    pressure(40);
    check(madvise(gone, PAGE, MADV_DONTFORK) == 0, "a sealed page that a child does not get");
    for (int generation = 0; generation < 2; generation++) {
        pid_t pid = fork_flushed();
        if (pid != 0) {
            check(reap(pid) == 0, "the child");
            break;
        }
        check(bad_pages(p, 64, 80) == 0, "a child has what is sealed");
        check(FAILS(munmap(p, 64 * PAGE), EPERM) && FAILS(mprotect(p, PAGE, PROT_READ), EPERM),
              "sealed as it was");
        check(FAILS(madvise(p, PAGE, MADV_DONTNEED), EPERM), "it is not discarded");
        check(fault_of(gone, 0) == SIGSEGV && munmap(gone, PAGE) == 0,
              "what it did not get it may unmap");
        pressure(32);
        check(bad_pages(p, 64, 80) == 0, "it comes back in the child");
    }
    if (failures)
        return;
    check(FAILS(munmap(p, 64 * PAGE), EPERM) && bad_pages(p, 64, 80) == 0, "here too");
}

/* A file in the middle of anonymous memory, both sealed. */
static void with_file(void)
{
    int fd = open("/proc/self/exe", O_RDONLY);
    char *p = some(3, PROT_READ | PROT_WRITE, 90);
    check(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == p + PAGE,
          "a file is mapped between pages");
    check(seal(p, 3 * PAGE, 0) == 0, "all is sealed");
    check(FAILS(munmap(p + PAGE, PAGE), EPERM) && FAILS(munmap(p, 3 * PAGE), EPERM),
          "the file too");
    check(FAILS(mprotect(p + PAGE, PAGE, PROT_READ), EPERM), "mprotect of the file");
    check(madvise(p + PAGE, PAGE, MADV_DONTNEED) == 0, "DONTNEED of the file");
    check(NO_MAP(mmap(p + PAGE, PAGE, PROT_READ, ANONYMOUS | MAP_FIXED, -1, 0), EPERM),
          "mmap over the file");
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(
            !(FAILS(munmap(p + PAGE, PAGE), EPERM) && page_is(p, 90) && page_is(p + 2 * PAGE, 92)));
    check(reap(pid) == 0, "in a child");
    check(memcmp(p + PAGE, "\177ELF", 4) == 0 && page_is(p, 90) && page_is(p + 2 * PAGE, 92),
          "all is there");
    close(fd);
}

int main(void)
{
    /* Without a length the kernel looks at nothing. */
    if (seal(NULL, 0, 0) != 0) {
        printf("SKIP the kernel does not seal\n");
        return 0;
    }
    errors();
    refusals("in memory", 0);
    refusals("out of memory", 1);
    advices();
    at_fork();
    with_file();
    return finish();
}
