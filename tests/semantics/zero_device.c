/*
 * Private mappings of /dev/zero, the older form of anonymous memory: they are managed as that is,
 * also in a process that is small yet, and fail as the kernel has it.
 */
#define STAY_SMALL
#include "common.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define PAGES (24 * MIB / PAGE)
#define PIECE ((size_t)16)

static int device;

static char *map_zero(void *at, size_t pages, int flags)
{
    return mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | flags, device, 0);
}

/* Whether so much of these pages is in memory as the budget allows; natively any are. */
static int within_budget(char *memory, size_t pages)
{
    unsigned char *resident = malloc(pages);
    size_t count = 0;
    if (mincore(memory, pages * PAGE, resident) != 0)
        die("mincore");
    for (size_t i = 0; i < pages; i++)
        count += resident[i] & 1;
    free(resident);
    return !getenv("OVERSPILL_MEMORY") || count * PAGE <= 16 * MIB;
}

/* The process is small when it begins, and grows by nothing else. */
static void in_small_pieces(void)
{
    char *pieces[PAGES / PIECE];
    size_t bad = 0, resident = 0;
    for (size_t i = 0; i < PAGES / PIECE; i++) {
        pieces[i] = map_zero(NULL, PIECE, 0);
        fill(pieces[i], PIECE, i * PIECE);
    }
    for (size_t i = 0; i < PAGES / PIECE; i++) {
        unsigned char in[PIECE];
        mincore(pieces[i], PIECE * PAGE, in);
        for (size_t page = 0; page < PIECE; page++)
            resident += in[page] & 1;
    }
    check(!getenv("OVERSPILL_MEMORY") || resident * PAGE <= 16 * MIB, "small pieces: the budget");
    for (size_t i = 0; i < PAGES / PIECE; i++) {
        bad += bad_pages(pieces[i], PIECE, i * PIECE);
        munmap(pieces[i], PIECE * PAGE);
    }
    check(bad == 0, "small pieces: their content");
}

static void in_one_piece(const char *what, char *memory)
{
    check(memory != MAP_FAILED && nonzero(memory, 64 * PAGE) == 0, "%s: zeros", what);
    fill(memory, PAGES, 7);
    check(within_budget(memory, PAGES), "%s: the budget", what);
    check(bad_pages(memory, PAGES, 7) == 0, "%s: its content", what);
    check(madvise(memory, PAGE, MADV_DONTNEED) == 0 && nonzero(memory, PAGE) == 0,
          "%s: zeros again", what);
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(bad_pages(memory + PAGE, PAGES - 1, 8) != 0);
    check(reap(pid) == 0, "%s: its content in a child", what);
}

static void in_many_ways(void)
{
    char *memory = map_zero(NULL, PAGES, 0);
    in_one_piece("mmap", memory);
    char *moved = mremap(memory, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
    check(moved != MAP_FAILED && bad_pages(moved + PAGE, PAGES - 1, 8) == 0
              && nonzero(moved + PAGES * PAGE, 64 * PAGE) == 0,
          "mremap");
    munmap(moved, 2 * PAGES * PAGE);

    memory = (char *)syscall(SYS_mmap, NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE,
                             device, 16 * PAGE);
    in_one_piece("syscall, with an offset", memory);
    check(map_zero(memory, PAGES, MAP_FIXED) == memory, "MAP_FIXED");
    in_one_piece("over another", memory);
    check(map_zero(memory, PAGES, MAP_FIXED_NOREPLACE) == MAP_FAILED && errno == EEXIST,
          "MAP_FIXED_NOREPLACE: EEXIST");
    munmap(memory, PAGES * PAGE);
    check(map_zero(memory, PAGES, MAP_FIXED_NOREPLACE) == memory, "MAP_FIXED_NOREPLACE");
    munmap(memory, PAGES * PAGE);

    int reader = open("/dev/zero", O_RDONLY);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, reader, 0);
    close(reader);
    in_one_piece("a descriptor for reading, closed since", memory);
    munmap(memory, PAGES * PAGE);
}

/* Shared it is memory that a child sees change. */
static void shared(void)
{
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        strcpy(memory, "from the child");
        _exit(0);
    }
    reap(pid);
    check(strcmp(memory, "from the child") == 0, "shared with a child");
}

static int error_of(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
    errno = 0;
    return mmap(at, len, prot, flags, fd, offset) == MAP_FAILED ? errno : 0;
}

static void errors(void)
{
    int writer = open("/dev/zero", O_WRONLY), path = open("/dev/zero", O_PATH),
        null = open("/dev/null", O_RDWR), closed = dup(writer);
    close(closed);
    const int rw = PROT_READ | PROT_WRITE;
    check(error_of(NULL, MIB, rw, MAP_PRIVATE, writer, 0) == EACCES, "for writing only: EACCES");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE, path, 0) == EBADF, "a path only: EBADF");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE, closed, 0) == EBADF, "closed: EBADF");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE, null, 0) == ENODEV, "/dev/null: ENODEV");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE, device, 7) == EINVAL, "an odd offset: EINVAL");
    check(error_of(NULL, 0, rw, MAP_PRIVATE, device, 0) == EINVAL, "no length: EINVAL");
    check(error_of(NULL, MIB, rw, 0, device, 0) == EINVAL, "neither private nor shared: EINVAL");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE | MAP_HUGETLB, device, 0) == EINVAL,
          "huge pages: EINVAL");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE | MAP_GROWSDOWN, device, 0) == EINVAL,
          "growing down: EINVAL");
    check(error_of(NULL, SIZE_MAX - MIB, rw, MAP_PRIVATE, device, 0) == ENOMEM, "all: ENOMEM");
    check(syscall(SYS_mmap, NULL, MIB, rw, MAP_PRIVATE, device, -PAGE) == -1
              && errno == EOVERFLOW,
          "an offset that overflows: EOVERFLOW");
    check(error_of(NULL, MIB, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 7) == EINVAL,
          "anonymous, an odd offset: EINVAL");
    /* What is there stays where the call fails. */
    char *memory = map_pages(16);
    fill(memory, 16, 3);
    check(error_of(memory, 16 * PAGE, rw, MAP_PRIVATE | MAP_FIXED, writer, 0) == EACCES
              && bad_pages(memory, 16, 3) == 0,
          "over another, for writing only: EACCES");
    check(error_of(memory + 1, PAGE, rw, MAP_PRIVATE | MAP_FIXED, device, 0) == EINVAL
              && bad_pages(memory, 16, 3) == 0,
          "over another, at an odd address: EINVAL");
}

int main(void)
{
    struct stat status;
    device = open("/dev/zero", O_RDWR);
    if (device < 0 || fstat(device, &status) != 0 || status.st_rdev != makedev(1, 5)) {
        printf("SKIP: there is no /dev/zero\n");
        return 0;
    }
    in_small_pieces();
    in_many_ways();
    shared();
    errors();
    return finish();
}
