/*
 * Where regions lie: every kind of memory that an engine manages, each in its way, or leaves to the
 * kernel between what it manages. What a program may do with each is the same natively.
 */
#include "load.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Most pages of a region that is small: the kernel keeps it, beside the budget of pages. */
#define FEW ((size_t)64)
/* With how many pages a mapping that grows down begins, and what it must not come close to. */
#define FIRST_DOWN ((size_t)8)
#define GUARD_GAP ((size_t)256)
#define THREADS_MOST 16
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

const char *const PLACE_NAMES[PLACES] = {
    "somewhere", "beside others", "of a reservation", "of /dev/zero", "of code", "of the heap",
    "of an array", "before the end of data", "at a chosen address", "of a file", "growing down",
};

/* Each thread has a part of it. What lies behind it begins where the last page of the program's
   data ends, so the regions lie at the ends of their parts. */
static _Alignas(4096) char array[(size_t)64 << 20];
static char *data_ends[THREADS_MOST], *downwards[THREADS_MOST];

static void *map_at(void *at, size_t pages, int access, int flags, int file)
{
    void *mapped = mmap(at, pages * PAGE, access, flags, file, 0);
    if (mapped == MAP_FAILED)
        die("mmap");
    return mapped;
}

static void unmap(char *at, size_t pages)
{
    if (pages && munmap(at, pages * PAGE))
        die("munmap");
}

/* ---- One of a thread's own ---- */

static size_t data_pages(const struct plan *plan)
{
    return least(plan->pages / 32 + 1, 512);
}

/* It grows into free addresses, so that no other thread may map something there meanwhile. */
static char *grow_down(void)
{
    size_t room = GUARD_GAP + FEW;
    char *at = map_at(NULL, room, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1);
    char *end = at + room * PAGE;
    unmap(at, room);
    map_at(end - FIRST_DOWN * PAGE, FIRST_DOWN, READ_WRITE,
           ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1);
    for (char *page = end - PAGE; page >= end - FEW * PAGE; page -= PAGE)
        fill_page(page, 0);
    return end - FEW * PAGE;
}

/* While the worker has one thread: what it would not be safe to get later. */
void begin_places(const struct plan *plan, int threads)
{
    size_t bytes = data_pages(plan) * PAGE;
    uintptr_t end = (uintptr_t)sbrk(0);
    if (sbrk(-end & (PAGE - 1)) == (void *)-1)
        die("sbrk");
    /* That of the first thread is the last, and so can be given back. */
    for (int i = threads; i-- > 0; data_ends[i] = sbrk(0))
        if (sbrk(bytes) == (void *)-1)
            die("sbrk");
    /* It parts its neighbours, so that they do not leave together: not in every worker. */
    for (int i = 0; i < threads && plan->seed & 1; i++)
        downwards[i] = grow_down();
}

/* What the thread has from the beginning on. */
void find_places(struct worker *w)
{
    w->array_end = array + sizeof array / THREADS_MOST * (THREADS_MOST - w->plan->number);
    w->data_end = data_ends[w->plan->number];
    make_region(w, &w->regions[1], ARRAY, most_pages(w, ARRAY));
    if (downwards[w->plan->number])
        make_region(w, &w->regions[2], DOWNWARDS, FEW);
}

/* ---- Regions ---- */

/* Of these a thread has one at most. */
static int is_single(enum place place)
{
    return place == ARRAY || place == DATA_END || place == CHOSEN || place == COPIED ||
           place == DOWNWARDS;
}

enum place some_place(struct worker *w)
{
    enum place place = draw(w, PLACES);
    if (place == DATA_END && w->data_is_gone)
        return ANYWHERE;
    for (struct region *r = w->regions; r < w->regions + REGIONS && is_single(place); r++)
        if (r->at && r->place == place)
            return ANYWHERE;
    return place;
}

/* How many pages a region there may have. */
size_t most_pages(const struct worker *w, enum place place)
{
    switch (place) {
    case ARRAY:
        /* A page stays mapped before it, into which the region before that does not grow. */
        return least(w->most / 4 + 1, sizeof array / THREADS_MOST / PAGE - 1);
    case BLOCK: return w->most / 8 + 1;
    case DATA_END: return data_pages(w->plan);
    case CHOSEN:
    case COPIED:
    case DOWNWARDS: return FEW;
    default: return w->most / 2 + 1;
    }
}

/* Not behind those that may get larger or be mapped anew there. */
static void *map_beside(struct worker *w, size_t pages)
{
    struct region *r;
    do
        r = &w->regions[draw(w, REGIONS)];
    while (!r->at || r->place == ARRAY || r->place == DATA_END);
    return map_at(r->at + r->pages * PAGE, pages, READ_WRITE, ANONYMOUS, -1);
}

static void *map_committed(struct worker *w, size_t pages)
{
    size_t before = draw(w, 8), after = draw(w, 8);
    int kind = ANONYMOUS | MAP_NORESERVE;
    char *at = map_at(NULL, before + pages + after, PROT_NONE, kind, -1) + before * PAGE;
    if (draw(w, 2))
        map_at(at, pages, READ_WRITE, ANONYMOUS | MAP_FIXED, -1);
    else if (mprotect(at, pages * PAGE, READ_WRITE))
        die("mprotect");
    unmap(at - before * PAGE, before);
    unmap(at + pages * PAGE, after);
    return at;
}

static void *map_zero(size_t pages)
{
    int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
    if (file < 0)
        die("/dev/zero");
    void *at = map_at(NULL, pages, READ_WRITE, MAP_PRIVATE, file);
    close(file);
    return at;
}

static void *map_heap(size_t pages)
{
    void *at = aligned_alloc(PAGE, pages * PAGE);
    if (!at)
        die("aligned_alloc");
    return memset(at, 0, pages * PAGE);
}

/* Its end stays where it is, whatever was moved away. */
static void *map_array(struct worker *w, size_t pages)
{
    size_t most = most_pages(w, ARRAY);
    if (w->array_has_hole)
        map_at(w->array_end - most * PAGE, most, READ_WRITE, ANONYMOUS | MAP_FIXED, -1);
    w->array_has_hole = 0;
    return w->array_end - pages * PAGE;
}

static void *map_data_end(struct worker *w)
{
    size_t bytes = data_pages(w->plan) * PAGE;
    if (!w->data_end) {
        if (sbrk(bytes) == (void *)-1)
            die("sbrk");
        w->data_end = sbrk(0);
    }
    return w->data_end - bytes;
}

static void *map_chosen(struct worker *w, size_t pages)
{
    void *at = (void *)(0x200000000000 + (draw(w, 1 << 16) << 24));
    at = mmap(at, pages * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED && errno != EEXIST)
        die("mmap");
    return at == MAP_FAILED ? map_at(NULL, pages, READ_WRITE, ANONYMOUS, -1) : at;
}

/* Pages of known content, and zeros behind them. It may be put amidst other memory. */
static void *map_file(struct worker *w, uint64_t tag, size_t pages)
{
    char name[] = "load.XXXXXX", content[PAGE];
    int file = mkostemp(name, O_CLOEXEC);
    if (file < 0 || unlink(name) || ftruncate(file, FEW * PAGE))
        die(name);
    for (size_t page = 0; page < FILE_PAGES; page++) {
        fill_page(content, tag + page);
        if (pwrite(file, content, PAGE, page * PAGE) != (ssize_t)PAGE)
            die("pwrite");
    }
    char *at = NULL;
    if (draw(w, 2))
        at = map_at(NULL, pages, READ_WRITE, ANONYMOUS, -1);
    at = map_at(at, pages, READ_WRITE, MAP_PRIVATE | (at ? MAP_FIXED : 0), file);
    close(file);
    return at;
}

static void *map_down(struct worker *w, size_t pages)
{
    char **grown = &downwards[w->plan->number], *at = *grown;
    *grown = NULL;
    if (at)
        return at;
    if (draw(w, 2))
        at = map_at(NULL, pages, READ_WRITE, ANONYMOUS, -1);
    return map_at(at, pages, READ_WRITE, ANONYMOUS | MAP_GROWSDOWN | (at ? MAP_FIXED : 0), -1);
}

static void *map_place(struct worker *w, const struct region *r)
{
    size_t pages = r->pages;
    switch (r->place) {
    case BESIDE: return map_beside(w, pages);
    case COMMITTED: return map_committed(w, pages);
    case ZERO: return map_zero(pages);
    case BLOCK: return map_heap(pages);
    case ARRAY: return map_array(w, pages);
    case DATA_END: return map_data_end(w);
    case CHOSEN: return map_chosen(w, pages);
    case COPIED: return map_file(w, r->file, pages);
    case DOWNWARDS: return map_down(w, pages);
    default: return map_at(NULL, pages, r->access, ANONYMOUS, -1);
    }
}

void make_region(struct worker *w, struct region *r, enum place place, size_t pages)
{
    *r = (struct region){.place = place, .access = READ_WRITE};
    r->access |= place == CODE ? PROT_EXEC : 0;
    r->pages = place == DATA_END ? data_pages(w->plan) : pages;
    if (place == COPIED) {
        r->file = w->next_tag + 1;
        w->next_tag += FILE_PAGES;
    }
    r->tags = calloc(r->pages, sizeof *r->tags);
    if (!r->tags)
        die("calloc");
    for (size_t page = 0; page < r->pages; page++)
        r->tags[page] = dropped_tag(r, page);
    char *at = map_place(w, r);
    r->at = at;
    w->pages += r->pages;
}

/* Of a page that was given up, or never written to. */
uint64_t dropped_tag(const struct region *r, size_t page)
{
    return r->file && page < FILE_PAGES ? r->file + page : 0;
}

/* Gives what brk gave back to it, or the pages only where others have got more since. */
static void drop_data_end(struct worker *w, struct region *r)
{
    size_t bytes = r->pages * PAGE;
    if (w->plan->number > 0 || draw(w, 2)) {
        if (madvise(r->at, bytes, MADV_DONTNEED))
            die("MADV_DONTNEED");
    } else if (sbrk(0) == w->data_end) {
        if (sbrk(-bytes) == (void *)-1)
            die("sbrk");
        w->data_end = NULL;
    } else {
        w->data_is_gone = 1;
    }
}

void drop_region(struct worker *w, struct region *r)
{
    switch (r->place) {
    case BLOCK: free(r->at); break;
    case DATA_END: drop_data_end(w, r); break;
    case ARRAY:
        if (!w->array_has_hole && draw(w, 2)) {
            if (madvise(r->at, r->pages * PAGE, MADV_DONTNEED))
                die("MADV_DONTNEED");
            break;
        }
        w->array_has_hole = 1;
        /* fall through */
    default: unmap(r->at, r->pages);
    }
    free(r->tags);
    w->pages -= r->pages;
    r->at = NULL;
}

/* mremap has moved a region, or has made it smaller where it is. */
void note_moved(struct worker *w, struct region *r, char *to)
{
    if (r->place == ARRAY) {
        w->array_has_hole = 1;
        r->place = to == r->at ? ARRAY : ANYWHERE;
    }
    if (r->place == DATA_END) {
        w->data_is_gone = 1;
        r->place = ANYWHERE;
    }
    r->at = to;
}
