/* What the files of the load share: the table, the plan, pages of known content. */
#ifndef LOAD_H
#define LOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define WORDS (PAGE / sizeof(uint64_t))
#define SLOTS 512

/* Exit statuses. */
#define WRONG 7
#define BROKEN 99

/* What is done; bits of a plan. The order is that of the names. */
enum class {
    TOUCH, MAP, MREMAP, ADVISE, PROTECT, LOCK, FILES, DIRECT, REMOTE, FORK, EXEC, SIGNALS, THREADS,
    HEAP, SLAY, BREAK, HANG, LEAK, CLASSES
};
#define CLASS_NAMES                                                                               \
    {                                                                                             \
        "touch", "map", "mremap", "advise", "protect", "lock", "files", "direct", "remote",       \
            "fork", "exec", "signals", "threads", "heap", "slay", "break", "hang", "leak"         \
    }

/* A thread of the job. */
struct slot {
    _Atomic int thread, process;
    _Atomic unsigned doing, beats;
};

/* What the job and who watches it have in common; `src/table.rs` has the same. */
struct table {
    _Atomic int stop, told, pages_may_be_lost;
    _Atomic unsigned killed, lost;
    char finding[492];
    struct slot slots[SLOTS];
};

/* What a worker does. */
struct plan {
    size_t pages;
    int threads;
    uint64_t seed;
    unsigned classes;
};

extern struct table *table;
extern const char *load_program, *load_table;

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *what, ...);
__attribute__((noreturn)) void die(const char *what);
int is_over(void);
void beat(enum class doing);
void appear(void);
void disappear(void);
void judge(int status, const char *who);
void await(pid_t child, const char *who);
__attribute__((noreturn)) void work(const struct plan *plan);
int leaf(uint64_t seed);

/* splitmix64: distinct inputs give distinct outputs that look random. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Word i of the page with that tag: incompressible, compressible, same-filled or mostly zero. Tag 0
   is a page of zeros. */
static inline uint64_t page_word(uint64_t tag, size_t i)
{
    uint64_t s = mix(tag);
    if (tag == 0)
        return 0;
    switch (s & 3) {
    case 0: return mix(s + i);
    case 1: return i & 31 ? (s & 0xffffff) + (i & 7) * 64 : mix(s + i);
    case 2: return s;
    default: return i % 61 == s % 61 ? s ^ i : 0;
    }
}

static inline void fill_page(void *page, uint64_t tag)
{
    for (size_t i = 0; i < WORDS; i++)
        ((uint64_t *)page)[i] = page_word(tag, i);
}

/* The first word of a page that is not that of its tag; WORDS if all are. */
static inline size_t bad_word(const void *page, uint64_t tag)
{
    size_t i = 0;
    while (i < WORDS && ((const uint64_t *)page)[i] == page_word(tag, i))
        i++;
    return i;
}

#endif
