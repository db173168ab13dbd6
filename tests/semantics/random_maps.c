/*
 * Random calls on mappings that overlap in part, against a model that knows every byte.
 *
 * A range of 32 MiB, twice the budget, is mapped, protected, guarded, moved, discarded,
 * written and unmapped in pieces. Beside it lie a copy of what it holds and a record of how each
 * page is mapped, neither of them in managed memory. What a call returns, what may be accessed, and
 * what a page holds must be what the model says. First by one thread, with forks; then by two, a
 * half of the range each.
 *
 * Without arguments it runs the seeds of the suite; `random_maps SEED OPERATIONS` runs one for as
 * long as one likes.
 */
#include "common.h"

#define PAGES ((size_t)8192)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
/* Locked at most: half of the smallest budget, which a fork halves. */
#define LOCKED_MAX 200
#define FILE_PAGES 64
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

/* How a page is mapped. */
struct page {
    unsigned char mapped, prot, locked, wipe, file, guard;
};

static char *base;
static struct page pages[PAGES];
static char copy[PAGES * 4096] __attribute__((aligned(4096)));
static char file_content[FILE_PAGES * 4096] __attribute__((aligned(4096)));
static int file, has_guards;

/* One thread's part of the range. */
struct part {
    uint64_t seed, random;
    size_t first, count, locked;
    int alone, operations;
    int operation;
    const char *doing;
};

static uint64_t next(struct part *t)
{
    t->random += 0x9e3779b97f4a7c15u;
    return mix(t->random);
}

static size_t below(struct part *t, size_t n)
{
    return (next(t) >> 11) % n;
}

static char *at(size_t page)
{
    return base + page * PAGE;
}

/* The first difference ends the program: what follows would only repeat it. */
__attribute__((format(printf, 2, 3))) static void must(int right, const char *what, ...)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (right)
        return;
    int error = errno;
    pthread_mutex_lock(&once);
    va_list args;
    va_start(args, what);
    printf("WRONG ");
    vprintf(what, args);
    printf(" (errno %d)\n", error);
    va_end(args);
    fflush(stdout);
    _exit(1);
}

#define HERE(t) (t)->doing, (unsigned long long)(t)->seed, (t)->operation
#define PLACE "%s, seed %llu, operation %d: "

/* ---- Ranges ---- */

struct range {
    size_t start, len;
};

/* Mostly a few pages, sometimes thousands; some begin or end on a multiple of 512. */
static struct range pick(struct part *t)
{
    static const size_t most[] = {4, 4, 40, 40, 40, 700, 700, 3000};
    struct range r = {t->first + below(t, t->count), 1 + below(t, most[below(t, 8)])};
    if (below(t, 4) == 0)
        r.start &= ~(size_t)511;
    if (below(t, 6) == 0)
        r.len = (r.len + 511) & ~(size_t)511;
    if (r.start < t->first)
        r.start = t->first;
    if (r.len > t->first + t->count - r.start)
        r.len = t->first + t->count - r.start;
    return r;
}

static size_t end_of(struct range r)
{
    return r.start + r.len;
}

static int same_mapping(struct page a, struct page b)
{
    a.guard = b.guard;
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Cuts a range where the way its pages are mapped changes, or, without `alike`, where mapped turns
   into unmapped. */
static struct range cut(struct range r, int alike)
{
    size_t n = 1;
    while (n < r.len
           && (alike ? same_mapping(pages[r.start], pages[r.start + n])
                     : pages[r.start].mapped == pages[r.start + n].mapped))
        n++;
    r.len = n;
    return r;
}

static int is_free(struct range r)
{
    return !pages[r.start].mapped && cut(r, 0).len == r.len;
}

static size_t count_locked(struct range r)
{
    size_t n = 0;
    for (size_t i = r.start; i < end_of(r); i++)
        n += pages[i].locked;
    return n;
}

static void forget(struct part *t, struct range r)
{
    t->locked -= count_locked(r);
    memset(&pages[r.start], 0, r.len * sizeof *pages);
    memset(copy + r.start * PAGE, 0, r.len * PAGE);
}

/* ---- Looking ---- */

static int readable(size_t page)
{
    return pages[page].mapped && (pages[page].prot & PROT_READ) && !pages[page].guard;
}

static int writable(size_t page)
{
    return (pages[page].prot & PROT_WRITE) && !pages[page].guard;
}

static void look(struct part *t, struct range r)
{
    for (size_t i = r.start; i < end_of(r); i++)
        if (readable(i))
            must(memcmp(at(i), copy + i * PAGE, PAGE) == 0,
                 PLACE "page %zu (prot %d, file %d) holds something else", HERE(t), i,
                 pages[i].prot, pages[i].file);
}

/* As fault_of(), with a handler that stays: two threads are at it, and an access that should have
   worked is told too. */
static __thread volatile sig_atomic_t expected;
static __thread struct part *running;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (expected)
        siglongjmp(fault_return, signal);
    struct part *t = running;
    must(0, PLACE "signal %d at page %zd", HERE(t), signal, ((char *)info->si_addr - base) / 4096);
}

static int faults(volatile char *address, int write)
{
    int signal = sigsetjmp(fault_return, 1);
    if (signal == 0) {
        expected = 1;
        if (write)
            *address = 1;
        else
            (void)*address;
    }
    expected = 0;
    return signal == SIGSEGV;
}

static void touch_wrongly(struct part *t, size_t i)
{
    if (!readable(i))
        must(faults(at(i) + below(t, PAGE), 0), PLACE "page %zu can be read", HERE(t), i);
    if (!writable(i))
        must(faults(at(i) + below(t, PAGE), 1), PLACE "page %zu can be written", HERE(t), i);
}

static void look_at_all(struct part *t)
{
    look(t, (struct range){t->first, t->count});
    for (int i = 0; i < 64; i++)
        touch_wrongly(t, t->first + below(t, t->count));
}

/* ---- Operations ---- */

static int any_prot(struct part *t)
{
    static const int all[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
                              PROT_READ | PROT_WRITE};
    return all[below(t, 5)];
}

static void now_mapped(struct part *t, struct range r, int prot)
{
    forget(t, r);
    for (size_t i = r.start; i < end_of(r); i++)
        pages[i] = (struct page){1, (unsigned char)prot, 0, 0, 0, 0};
}

/* Content for the first pages of a range from `seed` on; what lies behind stays. */
static void write_pages(struct part *t, struct range r)
{
    uint64_t seed = next(t);
    for (size_t i = r.start; i < end_of(r); i++)
        if (writable(i)) {
            fill_page(at(i), seed + i);
            memcpy(copy + i * PAGE, at(i), PAGE);
        }
}

static void write_bytes(struct part *t, struct range r)
{
    for (size_t i = r.start; i < end_of(r); i++)
        if (writable(i)) {
            size_t offset = below(t, PAGE), n = 1 + below(t, PAGE - offset);
            memset(at(i) + offset, (int)(i + n), n);
            memset(copy + i * PAGE + offset, (int)(i + n), n);
        }
}

static void map_fixed(struct part *t, struct range r)
{
    int prot = any_prot(t), extra = below(t, 4) ? 0 : MAP_NORESERVE;
    must(mmap(at(r.start), r.len * PAGE, prot, ANONYMOUS | MAP_FIXED | extra, -1, 0) == at(r.start),
         PLACE "page %zu + %zu", HERE(t), r.start, r.len);
    now_mapped(t, r, prot);
}

static void map_noreplace(struct part *t, struct range r)
{
    if (below(t, 3))
        r = cut(r, 0);
    int prot = any_prot(t), free = is_free(r);
    char *p = mmap(at(r.start), r.len * PAGE, prot, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(free ? p == at(r.start) : p == MAP_FAILED && errno == EEXIST,
         PLACE "page %zu + %zu, free: %d, at %zd", HERE(t), r.start, r.len, free,
         p == MAP_FAILED ? (ssize_t)-1 : (p - base) / 4096);
    if (free)
        now_mapped(t, r, prot);
}

static void map_file(struct part *t, struct range r)
{
    size_t offset = below(t, FILE_PAGES);
    if (r.len > FILE_PAGES - offset)
        r.len = FILE_PAGES - offset;
    int noreplace = below(t, 2), prot = any_prot(t), free = is_free(r);
    char *p = mmap(at(r.start), r.len * PAGE, prot,
                   MAP_PRIVATE | (noreplace ? MAP_FIXED_NOREPLACE : MAP_FIXED), file,
                   (off_t)(offset * PAGE));
    int refused = noreplace && !free;
    must(refused ? p == MAP_FAILED && errno == EEXIST : p == at(r.start),
         PLACE "page %zu + %zu, noreplace: %d, free: %d", HERE(t), r.start, r.len, noreplace, free);
    if (refused)
        return;
    now_mapped(t, r, prot);
    for (size_t i = 0; i < r.len; i++)
        pages[r.start + i].file = (unsigned char)(1 + offset + i);
    memcpy(copy + r.start * PAGE, file_content + offset * PAGE, r.len * PAGE);
}

static void unmap(struct part *t, struct range r)
{
    must(munmap(at(r.start), r.len * PAGE) == 0, PLACE "page %zu + %zu", HERE(t), r.start, r.len);
    forget(t, r);
}

static void protect(struct part *t, struct range r)
{
    int prot = any_prot(t);
    /* Up to the first hole protection changes, even when the call fails. */
    size_t until = r.start;
    while (until < end_of(r) && pages[until].mapped)
        until++;
    int result = mprotect(at(r.start), r.len * PAGE, prot);
    must(until == end_of(r) ? result == 0 : result == -1 && errno == ENOMEM,
         PLACE "page %zu + %zu, mapped up to %zu", HERE(t), r.start, r.len, until);
    for (size_t i = r.start; i < until; i++)
        pages[i].prot = (unsigned char)prot;
}

static void discard(struct part *t, struct range r)
{
    int expected = 0;
    size_t i = r.start;
    for (; i < end_of(r) && !pages[i].locked; i++)
        if (!pages[i].mapped)
            expected = ENOMEM;
    if (i < end_of(r))
        expected = EINVAL;
    int result = madvise(at(r.start), r.len * PAGE, MADV_DONTNEED);
    must(expected ? result == -1 && errno == expected : result == 0,
         PLACE "page %zu + %zu, expected %d", HERE(t), r.start, r.len, expected);
    while (i-- > r.start)
        if (pages[i].file)
            memcpy(copy + i * PAGE, file_content + (size_t)(pages[i].file - 1) * PAGE, PAGE);
        else
            memset(copy + i * PAGE, 0, PAGE);
}

static void lock_some(struct part *t, struct range r)
{
    r = cut(r, 0);
    if (r.len > 30)
        r.len = 30;
    int on = below(t, 2), closed = 0;
    if (!pages[r.start].mapped) {
        must(mlock(at(r.start), r.len * PAGE) == -1 && errno == ENOMEM, PLACE "page %zu", HERE(t),
             r.start);
        return;
    }
    if (on && t->locked + r.len > LOCKED_MAX)
        return;
    for (size_t i = r.start; i < end_of(r); i++)
        closed |= pages[i].prot == PROT_NONE || pages[i].guard;
    int result = on ? mlock(at(r.start), r.len * PAGE) : munlock(at(r.start), r.len * PAGE);
    must(on && closed ? result == -1 && errno == ENOMEM : result == 0,
         PLACE "page %zu + %zu, on: %d, closed: %d", HERE(t), r.start, r.len, on, closed);
    t->locked -= count_locked(r);
    for (size_t i = r.start; i < end_of(r); i++)
        pages[i].locked = (unsigned char)on;
    t->locked += count_locked(r);
}

/* The model of a move: `from` goes, grown or cut to the length of `to`; with `keep`, zeros stay
   behind. */
static void moved(struct part *t, struct range from, struct range to, int keep)
{
    struct page how = pages[from.start];
    size_t common = from.len < to.len ? from.len : to.len;
    how.guard = 0;
    forget(t, to);
    memmove(copy + to.start * PAGE, copy + from.start * PAGE, common * PAGE);
    memcpy(&pages[to.start], &pages[from.start], common * sizeof *pages);
    for (size_t i = to.start + common; i < end_of(to); i++)
        pages[i] = how;
    if (keep) {
        memset(copy + from.start * PAGE, 0, from.len * PAGE);
        for (size_t i = from.start; i < end_of(from); i++)
            pages[i].guard = 0;
    } else {
        forget(t, from);
    }
    if (how.locked)
        t->locked += to.len;
}

/*
 * Moves pages that are mapped alike. The kernel may keep several mappings where the model sees one,
 * and then refuses: page by page it never does.
 */
static int move_to(struct part *t, struct range from, struct range to, int flags)
{
    char *p =
        mremap(at(from.start), from.len * PAGE, to.len * PAGE, flags | MREMAP_FIXED, at(to.start));
    if (p == at(to.start))
        return 1;
    must(p == MAP_FAILED && errno == EFAULT && from.len > 1, PLACE "page %zu + %zu to %zu + %zu",
         HERE(t), from.start, from.len, to.start, to.len);
    if (from.len > to.len && munmap(at(from.start + to.len), (from.len - to.len) * PAGE) != 0)
        die("munmap");
    size_t common = from.len < to.len ? from.len : to.len;
    for (size_t i = common; i-- > 0;) {
        size_t grown = i + 1 == common ? to.len - i : 1;
        p = mremap(at(from.start + i), PAGE, grown * PAGE, flags | MREMAP_FIXED, at(to.start + i));
        must(p == at(to.start + i), PLACE "page %zu alone", HERE(t), from.start + i);
    }
    return 1;
}

static void move_fixed(struct part *t, struct range from)
{
    from = cut(from, 1);
    struct range to = pick(t);
    int keep = below(t, 5) == 0;
    if (!pages[from.start].mapped || pages[from.start].file)
        return;
    if (keep || below(t, 2))
        to.len = from.len;
    if (end_of(to) > t->first + t->count || (to.start < end_of(from) && from.start < end_of(to)))
        return;
    if (pages[from.start].locked && (keep || to.len > from.len))
        return;
    move_to(t, from, to, MREMAP_MAYMOVE | (keep ? MREMAP_DONTUNMAP : 0));
    moved(t, from, to, keep);
    look(t, (struct range){to.start, to.len < 20 ? to.len : 20});
}

static void grow_in_place(struct part *t, struct range r)
{
    /* The last page before a hole, or before other memory: one mapping for sure. */
    r = cut(r, 0);
    size_t last = end_of(r) - 1, extra = 1 + below(t, 100);
    if (!pages[last].mapped || pages[last].file || pages[last].locked ||
        last + 1 + extra > t->first + t->count)
        return;
    struct range tail = {last + 1, extra};
    struct page how = pages[last];
    how.guard = 0;
    int fits = is_free(tail);
    char *p = mremap(at(last), PAGE, (1 + extra) * PAGE, 0);
    must(fits ? p == at(last) : p == MAP_FAILED && errno == ENOMEM,
         PLACE "page %zu by %zu, fits: %d", HERE(t), last, extra, fits);
    if (fits)
        for (size_t i = tail.start; i < end_of(tail); i++)
            pages[i] = how;
}

static void shrink(struct part *t, struct range r)
{
    if (!pages[r.start].mapped)
        return;
    size_t to = 1 + below(t, r.len);
    char *p = mremap(at(r.start), r.len * PAGE, to * PAGE, below(t, 2) ? MREMAP_MAYMOVE : 0);
    must(p == at(r.start), PLACE "page %zu + %zu to %zu", HERE(t), r.start, r.len, to);
    if (to < r.len)
        forget(t, (struct range){r.start + to, r.len - to});
}

/* Whether memory that the system placed lies inside the range; then where nothing was. */
static int inside(struct part *t, char *p, size_t len)
{
    if (p + len * PAGE <= base || p >= base + PAGES * PAGE)
        return 0;
    must(p >= base && p + len * PAGE <= base + PAGES * PAGE &&
             is_free((struct range){(size_t)(p - base) / PAGE, len}),
         PLACE "new memory over old, at page %zd + %zu", HERE(t), (p - base) / 4096, len);
    return 1;
}

/* Memory at a hint: there if there is room, else anywhere. It is written, looked at later, and
   brought into the range. */
static void map_anywhere(struct part *t, struct range to)
{
    struct range wish = cut(pick(t), 0);
    int hinted = (int)below(t, 2), free;
    wish.len = to.len < wish.len ? to.len : wish.len;
    to.len = wish.len;
    free = is_free(wish);
    char *p = mmap(hinted ? at(wish.start) + below(t, 2) * 100 : NULL, to.len * PAGE,
                   PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
    must(p != MAP_FAILED && (!hinted || !free || p == at(wish.start)),
         PLACE "hint %zu + %zu, free: %d, at %zd", HERE(t), wish.start, wish.len, free,
         (p - base) / 4096);
    must(nonzero(p, to.len * PAGE) == 0, PLACE "no zeros at %zd", HERE(t), (p - base) / 4096);
    uint64_t seed = next(t);
    fill(p, to.len, seed);
    if (inside(t, p, to.len)) {
        struct range there = {(size_t)(p - base) / PAGE, to.len};
        now_mapped(t, there, PROT_READ | PROT_WRITE);
        memcpy(copy + there.start * PAGE, p, there.len * PAGE);
        return;
    }
    look(t, pick(t));
    must(bad_pages(p, to.len, seed) == 0, PLACE "memory elsewhere", HERE(t));
    must(mremap(p, to.len * PAGE, to.len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(to.start)) ==
             at(to.start),
         PLACE "to page %zu + %zu", HERE(t), to.start, to.len);
    now_mapped(t, to, PROT_READ | PROT_WRITE);
    for (size_t i = to.start; i < end_of(to); i++)
        fill_page(copy + i * PAGE, seed + i - to.start);
    look(t, to);
}

/* Grows memory to wherever there is room, and brings it back. */
static void grow_anywhere(struct part *t, struct range from)
{
    from = cut(from, 1);
    struct page how = pages[from.start];
    if (!how.mapped || how.file || how.locked)
        return;
    how.guard = 0;
    size_t len = from.len + 1 + below(t, 200), tail = t->first + t->count - end_of(from);
    char *p = mremap(at(from.start), from.len * PAGE, len * PAGE, MREMAP_MAYMOVE);
    if (p == MAP_FAILED) {
        must(errno == EFAULT && from.len > 1, PLACE "page %zu + %zu to %zu", HERE(t), from.start,
             from.len, len);
        return;
    }
    if (p == at(from.start)) {
        must(tail >= len - from.len && is_free((struct range){end_of(from), len - from.len}),
             PLACE "page %zu grows over others", HERE(t), from.start);
        for (size_t i = end_of(from); i < from.start + len; i++)
            pages[i] = how;
        return;
    }
    struct range to = {0, len};
    if (inside(t, p, len)) {
        to.start = (size_t)(p - base) / PAGE;
        moved(t, from, to, 0);
        return;
    }
    /* Out of the range, as far as the model knows; then in again, cut to what it was. */
    static char kept[PAGES * 4096];
    static struct page as[PAGES];
    memcpy(as, &pages[from.start], from.len * sizeof *pages);
    memcpy(kept, copy + from.start * PAGE, from.len * PAGE);
    forget(t, from);
    look(t, pick(t));
    struct range back = {t->first + below(t, t->count - from.len), from.len};
    must(mremap(p, len * PAGE, back.len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(back.start)) ==
             at(back.start),
         PLACE "back to page %zu + %zu", HERE(t), back.start, back.len);
    forget(t, back);
    memcpy(&pages[back.start], as, back.len * sizeof *pages);
    memcpy(copy + back.start * PAGE, kept, back.len * PAGE);
    look(t, back);
}

static void wipe(struct part *t, struct range r)
{
    int on = below(t, 2);
    r = cut(r, 1);
    if (!pages[r.start].mapped || pages[r.start].file)
        return;
    must(madvise(at(r.start), r.len * PAGE, on ? MADV_WIPEONFORK : MADV_KEEPONFORK) == 0,
         PLACE "page %zu", HERE(t), r.start);
    for (size_t i = r.start; i < end_of(r); i++)
        pages[i].wipe = (unsigned char)on;
}

/* Some pages of a mapping become guards, or those that are no longer are. */
static void guard(struct part *t, struct range r)
{
    int on = below(t, 3) != 0;
    r = cut(r, 1);
    if (r.len > 20 && on)
        r.len = 1 + below(t, 20);
    if (!has_guards || !pages[r.start].mapped || pages[r.start].file)
        return;
    int result = madvise(at(r.start), r.len * PAGE, on ? GUARD_INSTALL : GUARD_REMOVE);
    int refused = on && pages[r.start].locked;
    must(refused ? result == -1 && errno == EINVAL : result == 0, PLACE "page %zu + %zu, on: %d",
         HERE(t), r.start, r.len, on);
    if (refused)
        return;
    for (size_t i = r.start; i < end_of(r); i++)
        pages[i].guard = (unsigned char)on;
    if (on)
        memset(copy + r.start * PAGE, 0, r.len * PAGE);
}

/* A child sees what its parent has, and what it writes is its own. */
static void fork_once(struct part *t)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        for (size_t i = t->first; i < t->first + t->count; i++) {
            if (pages[i].wipe) {
                memset(copy + i * PAGE, 0, PAGE);
                pages[i].guard = 0;
            }
            pages[i].locked = 0;
        }
        t->locked = 0;
        t->doing = "in a child";
        for (int i = 0; i < 20; i++) {
            struct range r = pick(t);
            look(t, r);
            write_pages(t, r);
            write_bytes(t, pick(t));
            protect(t, pick(t));
            discard(t, pick(t));
        }
        look_at_all(t);
        _exit(0);
    }
    int status = reap(pid);
    must(status == 0, PLACE "status %d", HERE(t), status);
}

static void step(struct part *t)
{
    static void (*const all[])(struct part *, struct range) = {
        write_pages,
        write_pages,
        write_pages,
        write_bytes,
        write_bytes,
        look,
        look,
        look,
        map_fixed,
        map_noreplace,
        map_noreplace,
        map_file,
        unmap,
        unmap,
        protect,
        protect,
        protect,
        discard,
        discard,
        lock_some,
        move_fixed,
        move_fixed,
        grow_in_place,
        shrink,
        wipe,
        guard,
        guard,
        /* Places of the system's choice may be those of the other thread. */
        map_anywhere,
        grow_anywhere,
    };
    static const char *const names[] = {
        "write_pages", "write_pages", "write_pages", "write_bytes",   "write_bytes",   "look",
        "look",        "look",        "map_fixed",   "map_noreplace", "map_noreplace", "map_file",
        "unmap",       "unmap",       "protect",     "protect",       "protect",       "discard",
        "discard",     "lock_some",   "move_fixed",  "move_fixed",    "grow_in_place", "shrink",
        "wipe",        "guard",       "guard",       "map_anywhere",  "grow_anywhere",
    };
    size_t which = below(t, sizeof all / sizeof *all - (t->alone ? 0 : 2));
    struct range r = pick(t);
    t->doing = names[which];
    all[which](t, r);
    touch_wrongly(t, t->first + below(t, t->count));
    /* Holes are filled, so that there is more than the budget all the time. */
    if (t->operation % 16 == 0) {
        t->doing = "fill";
        r = cut(pick(t), 0);
        if (!pages[r.start].mapped)
            map_fixed(t, r);
        write_pages(t, r);
    }
    if (t->alone && t->operation % 256 == 255) {
        t->doing = "fork";
        fork_once(t);
    }
}

static void *run_part(void *argument)
{
    struct part *t = running = argument;
    t->random = mix(t->seed * 2 + t->first);
    for (t->operation = 0; t->operation < t->operations; t->operation++)
        step(t);
    t->doing = "at the end";
    look_at_all(t);
    unmap(t, (struct range){t->first, t->count});
    return NULL;
}

static void begin_range(uint64_t seed)
{
    /* A page on either side that stays: what the system places lies inside as a whole, or
       outside. */
    char *p = mmap(NULL, (PAGES + 2) * PAGE, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    base = p + PAGE;
    if (mprotect(base, PAGES * PAGE, PROT_READ | PROT_WRITE) != 0)
        die("mprotect");
    memset(pages, 0, sizeof pages);
    for (size_t i = 0; i < PAGES; i++) {
        pages[i] = (struct page){1, PROT_READ | PROT_WRITE, 0, 0, 0, 0};
        fill_page(at(i), seed + i);
        fill_page(copy + i * PAGE, seed + i);
    }
}

static void run(uint64_t seed, int operations, int threads)
{
    begin_range(seed);
    struct part parts[2];
    pthread_t ids[2];
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct part){.seed = seed,
                                 .first = (size_t)i * (PAGES / 2),
                                 .count = PAGES / (size_t)threads,
                                 .alone = threads == 1,
                                 .operations = operations / threads};
        if (threads > 1)
            pthread_create(&ids[i], NULL, run_part, &parts[i]);
    }
    for (int i = 0; i < threads && threads > 1; i++)
        pthread_join(ids[i], NULL);
    if (threads == 1)
        run_part(&parts[0]);
    munmap(base - PAGE, (PAGES + 2) * PAGE);
    check(1, "seed %llu, %d operations by %d", (unsigned long long)seed, operations, threads);
}

int main(int argc, char **argv)
{
    char name[] = "semantics-random_maps-XXXXXX";
    file = mkstemp(name);
    fill(file_content, FILE_PAGES, 7);
    if (file < 0 || unlink(name) != 0 ||
        write(file, file_content, sizeof file_content) != (ssize_t)sizeof file_content)
        die(name);
    /* Not of the kind that is managed: here the kernel answers. */
    void *stack = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_STACK, -1, 0);
    has_guards = madvise(stack, PAGE, GUARD_INSTALL) == 0;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    if (argc > 2) {
        for (int threads = 1; threads <= 2; threads++)
            run(strtoull(argv[1], NULL, 0), atoi(argv[2]), threads);
        return finish();
    }
    for (uint64_t seed = 1; seed <= 3; seed++)
        run(seed, 1000, 1);
    run(4, 1500, 2);
    return finish();
}
