/*
 * Memory that the C library has mapped, changed by system calls of somebody's own, whose numbers
 * come in a register: what is given back is zero afterwards, also where it had left memory.
 */
#include "own_calls.h"

#define BYTES (48 * MIB)
#define PAGES (BYTES / PAGE)

/* A call whose number no look at the code tells. */
static long by_register(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static volatile long numbers[] = {SYS_madvise,  SYS_munmap, SYS_mmap,   SYS_mremap,
                                  SYS_mprotect, SYS_mlock,  SYS_mlock2, SYS_munlock,
                                  SYS_pkey_mprotect, SYS_mseal};
enum { MADVISE, MUNMAP, MMAP, MREMAP, MPROTECT, MLOCK, MLOCK2, MUNLOCK, PKEY_MPROTECT, MSEAL };
#define BY_REGISTER(call, a, b, c, d, e, f)                                                        \
    by_register(numbers[call], (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static char *map(size_t len)
{
    char *block = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        die("mmap");
    return block;
}

/* Three times the budget, of which most has left. */
static char *filled(uint64_t seed)
{
    char *block = map(BYTES);
    fill(block, PAGES, seed);
    return block;
}

static void dropped(void)
{
    char *block = filled(1);
    check(BY_REGISTER(MADVISE, block, BYTES / 2, MADV_DONTNEED, 0, 0, 0) == 0, "MADV_DONTNEED");
    check(nonzero(block, BYTES / 2) == 0, "what was dropped is zero");
    check(bad_pages(block + BYTES / 2, PAGES / 2, 1 + PAGES / 2) == 0, "and the rest is there");
    check(BY_REGISTER(MADVISE, block, PAGE, 12345, 0, 0, 0) == -EINVAL, "an unknown advice");
    check(BY_REGISTER(MADVISE, block + 1, PAGE, MADV_DONTNEED, 0, 0, 0) == -EINVAL,
          "in the midst of a page");
    munmap(block, BYTES);
}

static void replaced(void)
{
    char *block = filled(2);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *again = (char *)BY_REGISTER(MMAP, block, BYTES / 2, PROT_READ | PROT_WRITE, flags, -1, 0);
    check(again == block && nonzero(block, BYTES / 2) == 0, "new memory over the old is zero");
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), 2 * PAGE) != 0 || pwrite(fileno(file), "file", 4, 0) != 4)
        die("tmpfile");
    char *place = block + BYTES / 2 + MIB;
    again = (char *)BY_REGISTER(MMAP, place, 2 * PAGE, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, fileno(file), 0);
    check(again == place && memcmp(place, "file", 4) == 0, "a file over the old");
    memcpy(place + PAGE, "more", 4);
    char back[4];
    check(pread(fileno(file), back, 4, (off_t)PAGE) == 4 && memcmp(back, "more", 4) == 0,
          "what is written there comes to the file");
    fclose(file);
    munmap(block, BYTES);
}

static void unmapped(void)
{
    char *block = filled(3);
    check(BY_REGISTER(MUNMAP, block, BYTES / 2, 0, 0, 0, 0) == 0, "munmap");
    check(write(-1, block, 1) == -1 && msync(block, PAGE, MS_ASYNC) == -1 && errno == ENOMEM,
          "nothing is mapped there");
    char *next = mmap(block, BYTES / 2, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    check(next == block && nonzero(block, BYTES / 2) == 0, "what comes there next is zero");
    munmap(block, BYTES);
}

static void moved(void)
{
    char *block = filled(4);
    char *longer = (char *)BY_REGISTER(MREMAP, block, BYTES, BYTES + MIB, MREMAP_MAYMOVE, 0, 0);
    check((unsigned long)longer < -4096ul && bad_pages(longer, PAGES, 4) == 0, "mremap");
    check(nonzero(longer + BYTES, MIB) == 0, "it has grown by zeros");
    char *target = map(MIB);
    fill(target, MIB / PAGE, 5);
    char *at = (char *)BY_REGISTER(MREMAP, longer, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target,
                                   0);
    check(at == target && bad_pages(target, MIB / PAGE, 4) == 0, "over other memory");
    munmap(target, MIB);
    munmap(longer + MIB, BYTES);
}

static sigjmp_buf out;

static void on_fault(int signal)
{
    siglongjmp(out, signal);
}

static int faults(char *at)
{
    int signal = sigsetjmp(out, 1);
    if (signal == 0)
        *(volatile char *)at = 1;
    return signal == SIGSEGV;
}

static void protected(void)
{
    char *block = filled(6);
    signal(SIGSEGV, on_fault);
    check(BY_REGISTER(MPROTECT, block, 2 * PAGE, PROT_NONE, 0, 0, 0) == 0 && faults(block),
          "mprotect takes access away");
    check(BY_REGISTER(PKEY_MPROTECT, block, PAGE, PROT_READ | PROT_WRITE, -1, 0, 0) == 0 &&
              !faults(block) && faults(block + PAGE),
          "pkey_mprotect gives it back");
    check(BY_REGISTER(MPROTECT, block, 2 * PAGE, PROT_READ | PROT_WRITE, 0, 0, 0) == 0 &&
              !faults(block + PAGE),
          "as does mprotect");
    check(BY_REGISTER(MLOCK, block, MIB, 0, 0, 0, 0) == 0 &&
              BY_REGISTER(MLOCK2, block + MIB, MIB, MLOCK_ONFAULT, 0, 0, 0) == 0 &&
              BY_REGISTER(MLOCK2, block, MIB, 77, 0, 0, 0) == -EINVAL &&
              BY_REGISTER(MUNLOCK, block, 2 * MIB, 0, 0, 0, 0) == 0,
          "mlock, mlock2 and munlock");
    char *page = map(PAGE);
    long sealed = BY_REGISTER(MSEAL, page, PAGE, 0, 0, 0, 0);
    check(sealed == -ENOSYS || (sealed == 0 && munmap(page, PAGE) == -1 && errno == EPERM),
          "mseal");
    signal(SIGSEGV, SIG_DFL);
    check(bad_pages(block + 2 * PAGE, PAGES - 2, 6 + 2) == 0, "nothing is lost");
    munmap(block, BYTES);
}

/* Threads that give back and fill again while others keep what they have. */
static void *changes(void *seed)
{
    uint64_t number = (uint64_t)seed;
    char *block = map(8 * MIB);
    size_t wrong = 0;
    for (int round = 0; round < 20; round++) {
        fill(block, 8 * MIB / PAGE, number + (uint64_t)round);
        wrong += bad_pages(block, 8 * MIB / PAGE, number + (uint64_t)round);
        BY_REGISTER(MADVISE, block, 4 * MIB, MADV_DONTNEED, 0, 0, 0);
        wrong += nonzero(block, 4 * MIB) != 0;
    }
    munmap(block, 8 * MIB);
    return (void *)wrong;
}

int main(void)
{
    dropped();
    replaced();
    unmapped();
    moved();
    protected();
    pthread_t threads[4];
    for (uintptr_t n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, changes, (void *)(100 * (n + 1)));
    size_t wrong = 0;
    for (int n = 0; n < 4; n++) {
        void *found;
        pthread_join(threads[n], &found);
        wrong += (size_t)found;
    }
    check(wrong == 0, "four threads that give back and fill again");
    char *block = filled(7);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        BY_REGISTER(MADVISE, block, BYTES, MADV_DONTNEED, 0, 0, 0);
        _exit(nonzero(block, BYTES) == 0 ? 7 : 1);
    }
    int status;
    check(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7, "a child gives back");
    check(bad_pages(block, PAGES, 7) == 0, "and its parent has what it had");
    return failures != 0;
}
