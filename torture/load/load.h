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
    _Atomic int stop, told, pages_may_be_lost, writes_may_go_past;
    _Atomic unsigned killed, lost;
    _Atomic int watcher; /* the process that watches */
    char finding[484];
    struct slot slots[SLOTS];
};

/* What a worker does. */
struct plan {
    size_t pages;
    int threads, number; /* that it has, and of this one */
    uint64_t seed;
    unsigned classes;
};

#define REGIONS 12
#define FILE_PAGES 32

/* Where a region lies: an engine may manage each of these in another way, or not at all. */
enum place {
    ANYWHERE,  /* where the system likes it */
    BESIDE,    /* behind another region, if there is room */
    COMMITTED, /* in addresses that were reserved without access */
    ZERO,      /* a private mapping of /dev/zero */
    CODE,      /* executable, and executed */
    BLOCK,     /* of malloc */
    ARRAY,     /* in a large static array */
    DATA_END,  /* what brk gave */
    CHOSEN,    /* at an address of its own */
    COPIED,    /* a private mapping of a file, in a mapping of another kind or by itself */
    DOWNWARDS, /* MAP_GROWSDOWN, which has grown */
    PLACES
};

struct region {
    char *at;
    size_t pages;
    uint64_t *tags; /* of each page; 0 for zeros */
    uint64_t file;  /* the tag of the file's first page; 0 if there is none */
    enum place place;
    int access;
};

/* A thread of a worker. */
struct worker {
    const struct plan *plan;
    struct region regions[REGIONS];
    size_t pages, most; /* that it has, and may have */
    uint64_t random, next_tag;
    /* The places of which it has one: their ends, and whether they cannot be had any more. */
    char *array_end, *data_end;
    int array_has_hole, data_is_gone;
};

extern struct table *table;
extern const char *load_program, *load_table;
extern const char *const PLACE_NAMES[PLACES];

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *what, ...);
__attribute__((noreturn)) void die(const char *what);
int is_over(void);
void beat(enum class doing);
void appear(void);
void disappear(void);
void judge(int status, const char *who);
void await(pid_t child, const char *who);
__attribute__((noreturn)) void work(const struct plan *plan);
void make_region(struct worker *w, struct region *r, enum place place, size_t pages);
void drop_region(struct worker *w, struct region *r);
enum place some_place(struct worker *w);
size_t most_pages(const struct worker *w, enum place place);
void note_moved(struct worker *w, struct region *r, char *to);
uint64_t dropped_tag(const struct region *r, size_t page);
void begin_places(const struct plan *plan, int threads);
void find_places(struct worker *w);
int leaf(uint64_t seed);

/* splitmix64: distinct inputs give distinct outputs that look random. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Of the tags of pages that begin with a function, in code of x86-64: `mov $ANSWER, %eax; ret`. */
#define RUNS (1ull << 63)

/* What that function returns. */
static inline uint32_t answer(uint64_t tag)
{
    return (uint32_t)(mix(tag) >> 7);
}

/* Word i of the page with that tag: incompressible, compressible, same-filled or mostly zero. Tag 0
   is a page of zeros. */
static inline uint64_t page_word(uint64_t tag, size_t i)
{
    uint64_t s = mix(tag);
    if (tag == 0)
        return 0;
    if (tag & RUNS && i == 0)
        return 0x9090c300000000b8 | (uint64_t)answer(tag) << 8;
    switch (s & 3) {
    case 0: return mix(s + i);
    case 1: return i & 31 ? (s & 0xffffff) + (i & 7) * 64 : mix(s + i);
    case 2: return s;
    default: return i % 61 == s % 61 ? s ^ i : 0;
    }
}

static inline uint64_t draw(struct worker *w, uint64_t below)
{
    w->random = mix(w->random);
    return below ? w->random % below : 0;
}

static inline size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
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
