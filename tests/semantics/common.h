/*
 * What the programs of the semantics suite share: pages of known content, memory pressure,
 * verdicts.
 *
 * Each program is run natively and under `overspill run --memory 16M`, and must print the same and
 * end the same way. So it prints verdicts and checksums, no times and no addresses. A verdict that
 * is wrong natively fails the test too.
 */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define WORDS (PAGE / sizeof(uint64_t))
#define UNUSED __attribute__((unused))

/* ---- Verdicts ---- */

static int failures;

/* Says whether something is as it should be. */
__attribute__((format(printf, 2, 3))) static void check(int right, const char *what, ...)
{
    va_list args;
    va_start(args, what);
    printf("%s ", right ? "ok   " : "WRONG");
    vprintf(what, args);
    printf("\n");
    va_end(args);
    /* So that a program that crashes or hangs has said how far it got. */
    fflush(stdout);
    if (!right)
        failures++;
}

/* Ends a program whose machinery (not its subject) failed. */
__attribute__((noreturn)) UNUSED static void die(const char *what)
{
    int error = errno;
    fflush(stdout);
    dprintf(2, "%s: %s\n", what, strerror(error));
    _exit(99);
}

/* Says that all is ready, and waits for SIGTERM. */
UNUSED static void wait_for_term(void)
{
    sigset_t term;
    int number;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    printf("begun\n");
    fflush(stdout);
    sigwait(&term, &number);
}

/* KiB of this process that no file holds. */
UNUSED static size_t in_memory(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    size_t all = 0, kib;
    if (!file)
        die("smaps_rollup");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Pss_Anon: %zu", &kib) == 1 || sscanf(line, "Pss_Shmem: %zu", &kib) == 1)
            all += kib;
    fclose(file);
    return all;
}

UNUSED static int finish(void)
{
    printf("%s\n", failures ? "FAILED" : "all ok");
    fflush(stdout);
    return failures ? 1 : 0;
}

/* ---- Pages of known content ---- */

/* splitmix64: distinct inputs give distinct outputs that look random. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Word i of a page. Kinds: incompressible, compressible, same-filled, mostly zero. Every kind names
   its seed. */
static inline uint64_t page_word(unsigned kind, uint64_t s, size_t i)
{
    switch (kind) {
    case 0:
        return mix(s + i);
    case 1:
        return (i & 31) ? (s & 0xffffff) + (i & 7) * 64 : mix(s + i);
    case 2:
        return s;
    default:
        return i % 61 == s % 61 ? s ^ i : 0;
    }
}

/* Fills one page with the content that belongs to `seed`. */
UNUSED static void fill_page(void *page, uint64_t seed)
{
    uint64_t *w = (uint64_t *)page, s = mix(seed);
    switch (s & 3) {
    case 0: for (size_t i = 0; i < WORDS; i++) w[i] = page_word(0, s, i); break;
    case 1: for (size_t i = 0; i < WORDS; i++) w[i] = page_word(1, s, i); break;
    case 2: for (size_t i = 0; i < WORDS; i++) w[i] = page_word(2, s, i); break;
    default: for (size_t i = 0; i < WORDS; i++) w[i] = page_word(3, s, i); break;
    }
}

/* Whether a page holds the content of `seed`. */
UNUSED static int page_is(const void *page, uint64_t seed)
{
    const uint64_t *w = (const uint64_t *)page;
    uint64_t s = mix(seed), wrong = 0;
    switch (s & 3) {
    case 0: for (size_t i = 0; i < WORDS; i++) wrong |= w[i] ^ page_word(0, s, i); break;
    case 1: for (size_t i = 0; i < WORDS; i++) wrong |= w[i] ^ page_word(1, s, i); break;
    case 2: for (size_t i = 0; i < WORDS; i++) wrong |= w[i] ^ page_word(2, s, i); break;
    default: for (size_t i = 0; i < WORDS; i++) wrong |= w[i] ^ page_word(3, s, i); break;
    }
    return wrong == 0;
}

/* Fills `pages` pages; page i gets seed + i. */
UNUSED static void fill(void *memory, size_t pages, uint64_t seed)
{
    for (size_t i = 0; i < pages; i++)
        fill_page((char *)memory + i * PAGE, seed + i);
}

/* Number of pages that do not hold what fill() put there. */
UNUSED static size_t bad_pages(const void *memory, size_t pages, uint64_t seed)
{
    size_t bad = 0;
    for (size_t i = 0; i < pages; i++)
        bad += !page_is((const char *)memory + i * PAGE, seed + i);
    return bad;
}

/* Number of bytes that are not zero. */
UNUSED static size_t nonzero(const void *memory, size_t bytes)
{
    const unsigned char *b = (const unsigned char *)memory;
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += b[i] != 0;
    return n;
}

/* The same for a block of any length and alignment, such as malloc gives: byte i is a function of
   seed and i. */
UNUSED static void stamp(void *memory, size_t bytes, uint64_t seed)
{
    char *at = (char *)memory;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = (i >> 3) & 7 ? seed * 0x9e3779b97f4a7c15u : mix(seed + i);
        memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

/* Whether the first `bytes` bytes of a block are as stamp() left them. */
UNUSED static int stamped(const void *memory, size_t bytes, uint64_t seed)
{
    const char *at = (const char *)memory;
    uint64_t wrong = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = (i >> 3) & 7 ? seed * 0x9e3779b97f4a7c15u : mix(seed + i);
        if (bytes - i >= 8) {
            uint64_t found;
            memcpy(&found, at + i, 8);
            wrong |= found ^ word;
        } else {
            wrong |= (uint64_t)memcmp(at + i, &word, bytes - i);
        }
    }
    return wrong == 0;
}

/* FNV-1a, to print the content of something in few characters. */
UNUSED static uint64_t checksum(const void *memory, size_t bytes, uint64_t so_far)
{
    const unsigned char *b = (const unsigned char *)memory;
    uint64_t h = so_far ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* ---- Memory ---- */

/* Private anonymous memory. */
UNUSED static char *map_pages(size_t pages)
{
    void *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    return (char *)p;
}

/* Page-aligned memory of the heap. */
UNUSED static char *heap_pages(size_t pages)
{
    void *p = NULL;
    if ((errno = posix_memalign(&p, PAGE, pages * PAGE)) != 0)
        die("posix_memalign");
    return (char *)p;
}

/* Writes `mb` MiB, so that what was touched before goes out of a budget of 16 MiB: 64 do for sure.
   What was written is looked at too: pressure that reads back wrong is a failure of its own. */
UNUSED static void pressure(unsigned mb)
{
    size_t pages = mb * (MIB / PAGE);
    char *p = map_pages(pages);
    fill(p, pages, 0x5eed0000);
    for (size_t i = 0; i < pages; i += 64)
        if (!page_is(p + i * PAGE, 0x5eed0000 + i)) {
            dprintf(2, "pressure: page %zu reads back wrong\n", i);
            _exit(98);
        }
    munmap(p, pages * PAGE);
}

/* A process that has little is not managed, and what it has then never is: before anything that is
   to be out. */
UNUSED static void be_managed(void)
{
    munmap(map_pages(8 * MIB / PAGE), 8 * MIB);
}

/* Has some memory leave, with what else lies in its first and last page, and no other: for all that
   is small, or done often. It costs what the memory is, and pressure() a quarter of a second. */
UNUSED static void push_out(const void *memory, size_t bytes)
{
    uintptr_t first = (uintptr_t)memory / PAGE * PAGE,
              end = ((uintptr_t)memory + bytes + PAGE - 1) / PAGE * PAGE;
    madvise((void *)first, end - first, MADV_PAGEOUT);
}

/* Has all private memory leave that the process may read: what pressure() does, at the cost of what
   is there. For what is done often. */
UNUSED static void evict_all(void)
{
    static char text[1 << 12];
    size_t kept = 0;
    ssize_t more;
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (maps < 0)
        die("maps");
    while ((more = read(maps, text + kept, sizeof text - 1 - kept)) > 0) {
        char *line = text, *end;
        text[kept + more] = 0;
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            unsigned long first, last, inode;
            char access[5];
            if (sscanf(line, "%lx-%lx %4s %*s %*s %lu", &first, &last, access, &inode) == 4
                && access[0] == 'r' && access[3] == 'p' && inode == 0)
                madvise((void *)first, last - first, MADV_PAGEOUT);
        }
        kept = strlen(line);
        memmove(text, line, kept);
    }
    close(maps);
}

/* ---- Processes ---- */

/* fork() with nothing left in stdout's buffer that both would print. */
UNUSED static pid_t fork_flushed(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    return pid;
}

/* Waits for a child: its exit status, or 128 + the signal that killed it, as a shell has it. */
UNUSED static int reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) != pid)
        if (errno != EINTR)
            die("waitpid");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- Accesses that may fault ---- */

static __thread sigjmp_buf fault_return;

static void fault_handler(int signal)
{
    siglongjmp(fault_return, signal);
}

/* Touches a byte and returns the signal that this raised, or 0. Only SIGSEGV is caught: where the
   kernel raises that, no other signal is right. */
UNUSED static int fault_of(volatile char *at, int write)
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = fault_handler;
    sigaction(SIGSEGV, &action, &before);
    int signal = sigsetjmp(fault_return, 1);
    if (signal == 0) {
        if (write)
            *at = 1;
        else
            (void)*at;
    }
    sigaction(SIGSEGV, &before, NULL);
    return signal;
}

/* ---- The beginning ---- */

/* Standard output gets a buffer outside of the heap: stdio's own would be evicted, and under
   `--fault signal` a system call cannot be handed evicted memory. All that the program has is
   managed, but where it says that it is to STAY_SMALL. */
__attribute__((constructor)) static void begin(void)
{
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
#ifndef STAY_SMALL
    be_managed();
#endif
}

#endif
