// Calls on mappings keep the meaning that they have on the kernel. argv[1] "managed" expects the
// heap and the anonymous mappings in one region far from the kernel's own, "passive" does not.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);      \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)
#define FAILS(call, number) (errno = 0, (call) == -1 && errno == (number))
#define FAILS_MAP(call, number) (errno = 0, (call) == MAP_FAILED && errno == (number))

static const int RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS;

int main(int argc, char **argv) {
    int managed = argc > 1 && !strcmp(argv[1], "managed");
    size_t page = 4096;

    char *a = mmap(NULL, 16 * page, RW, ANON, -1, 0);
    char *stack = mmap(NULL, page, RW, ANON | MAP_STACK, -1, 0);
    char *shared = mmap(NULL, page, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && stack != MAP_FAILED && shared != MAP_FAILED);
    // Stacks and shared memory stay with the kernel; the heap goes where the anonymous mappings go.
    if (managed) {
        uintptr_t far = 1ull << 36;
        CHECK((uintptr_t)(a - stack) > far && (uintptr_t)(stack - a) > far);
        CHECK((uintptr_t)(shared - stack) < far || (uintptr_t)(stack - shared) < far);
        char *block = malloc(100);
        CHECK((uintptr_t)(block - a) < far || (uintptr_t)(a - block) < far);
        free(block);
    }

    for (int i = 0; i < 16; i++) a[i * page] = i + 1;
    CHECK(madvise(a, 4 * page, MADV_DONTNEED) == 0);
    CHECK(a[0] == 0 && a[3 * page] == 0 && a[4 * page] == 5);
    CHECK(FAILS(madvise(a + 1, page, MADV_DONTNEED), EINVAL));
    CHECK(madvise(a, 0, MADV_DONTNEED) == 0);
    CHECK(FAILS(munmap(a + 1, page), EINVAL) && FAILS(munmap(a, 0), EINVAL));
    CHECK(FAILS(mprotect(a + 1, page, RW), EINVAL) && mprotect(a, 0, RW) == 0);
    CHECK(mprotect(a + 8 * page, page, PROT_READ) == 0 && a[8 * page] == 9);
    CHECK(mprotect(a + 8 * page, page, RW) == 0);
    a[8 * page] = 99;
    CHECK(posix_madvise(a, 16 * page, POSIX_MADV_DONTNEED) == 0 && a[8 * page] == 99);
    CHECK(posix_madvise(a + 1, page, POSIX_MADV_WILLNEED) == EINVAL);
    CHECK(FAILS_MAP(mmap(NULL, 0, RW, ANON, -1, 0), EINVAL));
    CHECK(FAILS_MAP(mmap(NULL, SIZE_MAX, RW, ANON, -1, 0), ENOMEM));
    CHECK(FAILS_MAP(mmap(a + 1, page, RW, ANON | MAP_FIXED, -1, 0), EINVAL));
    CHECK(FAILS_MAP(mmap(a, page, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0), EEXIST) || !managed);

    // A file in the middle of anonymous memory, and anonymous memory over it again.
    char path[] = "/tmp/overspill-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && write(fd, "file", 4) == 4 && ftruncate(fd, page) == 0);
    CHECK(mmap(a + 2 * page, page, RW, MAP_SHARED | MAP_FIXED, fd, 0) == a + 2 * page);
    CHECK(!memcmp(a + 2 * page, "file", 4) && a[page] == 0 && a[4 * page] == 5);
    a[2 * page] = 'F';
    CHECK(mmap(a + 2 * page, page, RW, ANON | MAP_FIXED, -1, 0) == a + 2 * page &&
          a[2 * page] == 0);
    char byte;
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'F');

    // Growing, moving, shrinking.
    char *b = mremap(a, 16 * page, 64 * page, MREMAP_MAYMOVE);
    CHECK(b != MAP_FAILED && b[8 * page] == 99 && b[15 * page] == 16 && b[63 * page] == 0);
    CHECK(mremap(b, 64 * page, 8 * page, 0) == b && b[4 * page] == 5);
    char *target = mmap(NULL, 8 * page, PROT_NONE, ANON, -1, 0);
    CHECK(mremap(b, 8 * page, 8 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target &&
          target[4 * page] == 5);
    CHECK(FAILS_MAP(mremap(target + 1, page, page, 0), EINVAL) &&
          FAILS_MAP(mremap(target, page, 0, 0), EINVAL));

    // The same through syscall(2).
    char *c = (char *)syscall(SYS_mmap, NULL, 4 * page, RW, ANON, -1, 0);
    CHECK(c != MAP_FAILED);
    c[0] = 1;
    CHECK(syscall(SYS_madvise, c, page, MADV_DONTNEED) == 0 && c[0] == 0);
    CHECK(FAILS(syscall(SYS_munmap, c + 1, page), EINVAL) && syscall(SYS_munmap, c, 4 * page) == 0);
    CHECK(syscall(SYS_getpid) == getpid());
    CHECK(FAILS(syscall(SYS_close, -1), EBADF));

    // Locks round to pages by themselves.
    CHECK(mlock(target + 5, 10) == 0 && munlock(target + 5, 10) == 0 &&
          mlock2(target, page, MLOCK_ONFAULT) == 0);
    CHECK(FAILS(mlock2(target, page, 2), EINVAL));

    // Code is not managed, and works.
    unsigned char *code = mmap(NULL, page, RW | PROT_EXEC, ANON, -1, 0);
    CHECK(code != MAP_FAILED);

    // Large blocks grow by moving pages, small ones become large and small again.
    size_t size = 1000;
    char *block = malloc(size);
    block[0] = 'x';
    while (size < (200u << 20)) {
        size_t larger = size * 3;
        block = realloc(block, larger);
        CHECK(block && block[0] == 'x');
        block[larger - 1] = 'y';
        block[size / 2] = 'z';
        size = larger;
    }
    block = realloc(block, 500);
    CHECK(block && block[0] == 'x');
    free(block);
    char *zero = calloc(1, 64 << 20);
    CHECK(zero && zero[0] == 0 && zero[(64 << 20) - 1] == 0);
    free(zero);

    CHECK(munmap(target, 8 * page) == 0 && munmap(stack, page) == 0 && munmap(shared, page) == 0);
    puts("done");
    return 0;
}
