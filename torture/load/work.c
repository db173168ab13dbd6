/*
 * What a worker does: regions of pages of known content, each thread with its own, and the system
 * calls that change them.
 */
#include "load.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Times that a worker does something before it ends by itself, and another takes its place. */
#define LIFE 3000

const char *load_program, *load_table;

/* ---- Regions ---- */

static void check(const struct region *r, size_t page)
{
    size_t i = bad_word(r->at + page * PAGE, r->tags[page]);
    if (i < WORDS) {
        uint64_t found = ((uint64_t *)(r->at + page * PAGE))[i];
        wrong("page %zu of %zu %s, word %zu: found %#llx, not %#llx", page, r->pages,
              PLACE_NAMES[r->place], i, (unsigned long long)found,
              (unsigned long long)page_word(r->tags[page], i));
    }
    if (r->access & PROT_EXEC && r->tags[page] & RUNS) {
        uint32_t (*function)(void);
        memcpy(&function, &(char *){r->at + page * PAGE}, sizeof function);
        if (function() != answer(r->tags[page]))
            wrong("page %zu of %zu is executed, and another answers", page, r->pages);
    }
}

static void check_run(const struct region *r, size_t from, size_t count)
{
    for (size_t page = from; page < from + count; page++)
        check(r, page);
}

static void renew(struct worker *w, struct region *r, size_t page)
{
    r->tags[page] = ++w->next_tag | (r->place == CODE ? RUNS : 0);
    fill_page(r->at + page * PAGE, r->tags[page]);
}

/* One of its regions, and a run of pages in it. The first region is always there. */
static struct region *some(struct worker *w, size_t *from, size_t *count, size_t most)
{
    struct region *r;
    do
        r = &w->regions[draw(w, REGIONS)];
    while (!r->at);
    *from = draw(w, r->pages);
    *count = 1 + draw(w, least(most, r->pages - *from));
    return r;
}

/* ---- What is done ---- */

static void touch(struct worker *w)
{
    size_t from, count;
    struct region *r = some(w, &from, &count, 64);
    check_run(r, from, count);
    if (draw(w, 2))
        for (size_t page = from; page < from + count; page++)
            renew(w, r, page);
}

static void map(struct worker *w)
{
    struct region *r = &w->regions[1 + draw(w, REGIONS - 1)];
    enum place place = some_place(w);
    size_t pages = 1 + draw(w, most_pages(w, place));
    if (r->at && draw(w, 3) == 0) {
        check_run(r, 0, r->pages);
        drop_region(w, r);
    } else if (!r->at && w->pages + pages <= w->most) {
        make_region(w, r, place, pages);
        for (size_t page = 0; page < r->pages; page += 1 + draw(w, 3))
            renew(w, r, page);
    }
}

/* How many pages a region gets; none where it may not be moved. */
static size_t new_size(struct worker *w, const struct region *r)
{
    size_t pages = 1 + draw(w, 2 * r->pages);
    switch (r->place) {
    case BLOCK: /* it is malloc's */
    case DOWNWARDS: return 0;
    case CHOSEN:
    case COPIED: pages = least(pages, most_pages(w, r->place)); break;
    case DATA_END: pages = least(pages, r->pages); break;
    default: break;
    }
    return w->pages - r->pages + pages > w->most ? r->pages : pages;
}

/* Resizes and moves, also onto addresses that were something else. */
static void remap(struct worker *w)
{
    size_t from, count;
    struct region *r = some(w, &from, &count, 1);
    size_t pages = new_size(w, r);
    if (pages == 0)
        return;
    int how = MREMAP_MAYMOVE;
    void *onto = NULL;
    if (draw(w, 2)) {
        int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        onto = mmap(NULL, pages * PAGE, draw(w, 2) ? PROT_NONE : PROT_READ | PROT_WRITE, kind, -1,
                    0);
        if (onto == MAP_FAILED)
            die("mmap");
        how |= MREMAP_FIXED;
    }
    char *at = mremap(r->at, r->pages * PAGE, pages * PAGE, how, onto);
    if (at == MAP_FAILED && errno == EFAULT)
        return; /* of several mappings: those that were advised differ. `onto` may be gone. */
    if (at == MAP_FAILED)
        die("mremap");
    uint64_t *tags = calloc(pages, sizeof *tags);
    if (!tags)
        die("calloc");
    for (size_t page = 0; page < pages; page++)
        tags[page] = page < r->pages ? r->tags[page] : dropped_tag(r, page);
    free(r->tags);
    w->pages += pages - r->pages;
    note_moved(w, r, at);
    r->pages = pages;
    r->tags = tags;
    check(r, draw(w, pages));
    check(r, pages - 1);
}

static void advise(struct worker *w)
{
    static const int KEEP[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_HUGEPAGE,
                               MADV_NOHUGEPAGE, MADV_RANDOM, MADV_NORMAL, MADV_DONTDUMP,
                               MADV_DODUMP};
    size_t from, count;
    struct region *r = some(w, &from, &count, 64);
    char *at = r->at + from * PAGE;
    switch (draw(w, 3)) {
    case 0:
        if (madvise(at, count * PAGE, MADV_DONTNEED))
            die("MADV_DONTNEED");
        for (size_t page = from; page < from + count; page++)
            r->tags[page] = dropped_tag(r, page);
        break;
    case 1:
        if (r->place == COPIED)
            break; /* of a file there is none */
        /* Each page has what it had, or zeros, until it is written. */
        if (madvise(at, count * PAGE, MADV_FREE))
            die("MADV_FREE");
        for (size_t page = from; page < from + count; page++) {
            if (bad_word(r->at + page * PAGE, 0) < WORDS)
                check(r, page);
            renew(w, r, page);
        }
        break;
    default:
        /* A kernel without huge pages refuses these. */
        (void)madvise(at, count * PAGE, KEEP[draw(w, sizeof KEEP / sizeof *KEEP)]);
    }
    check_run(r, from, count);
}

static void protect(struct worker *w)
{
    size_t from, count;
    struct region *r = some(w, &from, &count, 32);
    char *at = r->at + from * PAGE;
    int access = draw(w, 2) ? PROT_READ : PROT_NONE;
    int before = r->access;
    r->access = access;
    if (mprotect(at, count * PAGE, access))
        die("mprotect");
    if (access == PROT_READ)
        check_run(r, from, count);
    else
        usleep(draw(w, 2000));
    r->access = before;
    if (mprotect(at, count * PAGE, r->access))
        die("mprotect");
    check_run(r, from, count);
    renew(w, r, from);
}

static void lock(struct worker *w)
{
    size_t from, count;
    struct region *r = some(w, &from, &count, 4);
    /* RLIMIT_MEMLOCK is small. */
    if (mlock(r->at + from * PAGE, count * PAGE) && errno != ENOMEM && errno != EPERM)
        die("mlock");
    check_run(r, from, count);
    renew(w, r, from);
    munlock(r->at + from * PAGE, count * PAGE);
}

/* A call has moved less than it was to: it came to a lost page, as a touch tells, or is wrong. */
static void fell_short(const char *what, const char *memory, size_t bytes, ssize_t moved)
{
    if (moved >= 0) {
        errno = 0;
        for (size_t at = 0; at < bytes; at += PAGE)
            *(const volatile char *)(memory + at);
    }
    die(what);
}

/* Pages go through a file and a pipe and come back. With `flags` O_DIRECT the device reads and
   writes them itself. */
static void through_file(struct worker *w, int flags)
{
    size_t from, to, count, there;
    struct region *source = some(w, &from, &count, FILE_PAGES);
    struct region *target = some(w, &to, &there, FILE_PAGES);
    count = least(count, there);
    char name[] = "load.XXXXXX";
    int file = mkostemp(name, flags | O_CLOEXEC);
    if (file < 0 && flags)
        return; /* not every filesystem can */
    if (file < 0 || unlink(name))
        die(name);
    char *at = source->at + from * PAGE;
    size_t half = count / 2 * PAGE, all = count * PAGE;
    struct iovec parts[] = {{at, half}, {at + half, all - half}};
    ssize_t moved = pwritev(file, parts, 2, 0);
    if (moved != (ssize_t)all)
        fell_short("pwritev", at, all, moved);
    uint64_t tags[FILE_PAGES];
    memcpy(tags, source->tags + from, count * sizeof *tags);
    moved = pread(file, target->at + to * PAGE, all, 0);
    if (moved != (ssize_t)all)
        fell_short("pread", target->at + to * PAGE, all, moved);
    memcpy(target->tags + to, tags, count * sizeof *tags);
    close(file);
    check_run(target, to, count);
    check_run(source, from, count);
}

static void through_pipe(struct worker *w)
{
    size_t from, to, count;
    struct region *source = some(w, &from, &count, 1), *target = some(w, &to, &count, 1);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        die("pipe2");
    uint64_t tag = source->tags[from];
    if (write(ends[1], source->at + from * PAGE, PAGE) != (ssize_t)PAGE ||
        read(ends[0], target->at + to * PAGE, PAGE) != (ssize_t)PAGE)
        die("a pipe");
    target->tags[to] = tag;
    check(target, to);
    close(ends[0]);
    close(ends[1]);
}

static void files(struct worker *w)
{
    draw(w, 2) ? through_file(w, 0) : through_pipe(w);
}

static void direct(struct worker *w)
{
    through_file(w, O_DIRECT);
}

/* ---- Other processes ---- */

/* The child of a fork, which has a slot of its own, or does not go on. */
static pid_t fork_child(enum class doing)
{
    pid_t parent = getpid(), child = fork();
    if (child < 0 && errno != EAGAIN)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        appear();
        beat(doing);
    }
    return child;
}

/* The child has what the parent had; what one writes the other does not see. Some children are
   killed at any instruction. */
static void fork_and_look(struct worker *w)
{
    pid_t child = fork_child(FORK);
    if (child < 0)
        return;
    w->next_tag += child ? 0 : 1ull << 40;
    for (int i = 0; i < 8; i++) {
        size_t from, count;
        struct region *r = some(w, &from, &count, 32);
        check_run(r, from, count);
        for (size_t page = from; page < from + count; page++)
            renew(w, r, page);
        check_run(r, from, count);
        beat(FORK);
    }
    if (child == 0) {
        disappear();
        _exit(0);
    }
    if (w->plan->classes >> SLAY & 1 && draw(w, 2)) {
        usleep(draw(w, 3000));
        kill(child, SIGKILL);
    }
    await(child, "the child of a fork");
}

static void execute(struct worker *w)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)draw(w, 1u << 30));
    pid_t child = fork_child(EXEC);
    if (child < 0)
        return;
    if (child == 0) {
        disappear();
        execl(load_program, load_program, load_table, "leaf", seed, NULL);
        die(load_program);
    }
    await(child, "an executed program");
}

int leaf(uint64_t seed)
{
    appear();
    beat(EXEC);
    size_t pages = 1 + mix(seed) % 512;
    char *memory = malloc(pages * PAGE);
    if (!memory)
        die("malloc");
    for (size_t i = 0; i < pages; i++)
        fill_page(memory + i * PAGE, seed + i + 1);
    for (size_t i = 0; i < pages; i++)
        if (bad_word(memory + i * PAGE, seed + i + 1) < WORDS)
            wrong("page %zu of %zu of an executed program", i, pages);
    disappear();
    return 0;
}

/* The parent reads and writes pages of its child, whose addresses it knows. */
static void remote(struct worker *w)
{
    size_t from, count;
    struct region *r = some(w, &from, &count, 16);
    int ready[2], done[2];
    if (pipe2(ready, O_CLOEXEC) || pipe2(done, O_CLOEXEC))
        die("pipe2");
    uint64_t tag = w->next_tag + 1;
    w->next_tag += 2 * count;
    pid_t child = fork_child(REMOTE);
    char byte = 0;
    struct iovec there = {r->at + from * PAGE, count * PAGE};
    if (child == 0) {
        close(ready[0]);
        close(done[1]);
        for (size_t i = 0; i < count; i++)
            fill_page(r->at + (from + i) * PAGE, tag + i);
        if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1)
            _exit(0);
        for (size_t i = 0; i < count; i++)
            if (bad_word(r->at + (from + i) * PAGE, tag + count + i) < WORDS)
                wrong("page %zu that another process wrote", i);
        disappear();
        _exit(0);
    }
    close(ready[1]);
    close(done[0]);
    char *here = child < 0 ? NULL : malloc(count * PAGE);
    struct iovec local = {here, count * PAGE};
    if (here && read(ready[0], &byte, 1) == 1) {
        /* Pages that are out are brought in, or the call ends before them: then it is over. */
        ssize_t got = process_vm_readv(child, &local, 1, &there, 1, 0);
        for (ssize_t i = 0; i < got / (ssize_t)PAGE; i++)
            if (bad_word(here + i * PAGE, tag + i) < WORDS)
                wrong("page %zd that was read from another process", i);
        for (size_t i = 0; i < count; i++)
            fill_page(here + i * PAGE, tag + count + i);
        if (got == (ssize_t)local.iov_len &&
            process_vm_writev(child, &local, 1, &there, 1, 0) == (ssize_t)local.iov_len)
            (void)!write(done[1], &byte, 1);
    }
    free(here);
    close(ready[0]);
    close(done[1]);
    if (child > 0)
        await(child, "the child that is written to");
    check_run(r, from, count);
}

/* ---- Threads, signals, the heap ---- */

static void *thread_work(void *seed)
{
    enum { PAGES = 24 };
    char pages[PAGES * PAGE];
    uint64_t tag = *(uint64_t *)seed;
    appear();
    beat(THREADS);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < PAGES; i++)
            fill_page(pages + i * PAGE, tag + i + round);
        sched_yield();
        for (size_t i = 0; i < PAGES; i++)
            if (bad_word(pages + i * PAGE, tag + i + round) < WORDS)
                wrong("page %zu of a thread's stack", i);
    }
    disappear();
    return NULL;
}

static void threads(struct worker *w)
{
    pthread_t thread[3];
    uint64_t seeds[3];
    int made = 0;
    for (; made < 3; made++) {
        seeds[made] = draw(w, 1ull << 40) + 1;
        if (pthread_create(&thread[made], NULL, thread_work, &seeds[made]))
            break;
    }
    while (made-- > 0)
        pthread_join(thread[made], NULL);
}

/* Pages that only a handler looks at, whatever its thread was doing. */
static char *handler_pages;
static const size_t HANDLER_PAGES = 64;

static void on_alarm(int number)
{
    static _Atomic unsigned next;
    int error = errno;
    (void)number;
    for (int i = 0; i < 4; i++) {
        size_t page = atomic_fetch_add(&next, 7) % HANDLER_PAGES;
        if (bad_word(handler_pages + page * PAGE, page + 1) < WORDS)
            wrong("page %zu in a signal handler", page);
    }
    errno = error;
}

static void begin_signals(void)
{
    handler_pages = mmap(NULL, HANDLER_PAGES * PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (handler_pages == MAP_FAILED)
        die("mmap");
    for (size_t i = 0; i < HANDLER_PAGES; i++)
        fill_page(handler_pages + i * PAGE, i + 1);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 7000}, {0, 7000}};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL))
        die("signals");
}

static void signals(struct worker *w)
{
    (void)w;
    raise(SIGALRM);
}

static void heap(struct worker *w)
{
    enum { PARTS = 16 };
    unsigned char *part[PARTS];
    size_t size[PARTS];
    for (int i = 0; i < PARTS; i++) {
        size[i] = 1 + draw(w, draw(w, 4) ? 600 : 300000);
        part[i] = malloc(size[i]);
        if (!part[i])
            die("malloc");
        memset(part[i], i + 1, size[i]);
        if (draw(w, 3) == 0) {
            size_t more = size[i] * 2;
            part[i] = realloc(part[i], more);
            if (!part[i])
                die("realloc");
        }
    }
    for (int i = 0; i < PARTS; i++) {
        for (size_t at = 0; at < size[i]; at += 61)
            if (part[i][at] != i + 1)
                wrong("byte %zu of %zu from malloc", at, size[i]);
        free(part[i]);
    }
}

/* What the torture has to find, to show that it would. */
static void break_a_page(struct worker *w)
{
    size_t from, count;
    struct region *r = draw(w, 50) ? NULL : some(w, &from, &count, 1);
    if (r)
        r->at[from * PAGE + 123] ^= 1;
}

static void hang(struct worker *w)
{
    if (draw(w, 50) == 0)
        for (;;)
            pause();
}

/* A process that outlives the job. */
static void leak(struct worker *w)
{
    static int has_leaked;
    if (has_leaked || draw(w, 50))
        return;
    has_leaked = 1;
    pid_t child = fork_child(LEAK);
    if (child == 0) {
        disappear();
        if (fork() == 0)
            for (;;)
                pause();
        _exit(0);
    }
    if (child > 0)
        await(child, "the child that leaves one behind");
}

/* ---- A worker ---- */

static void (*const DO[CLASSES])(struct worker *) = {
    touch, map, remap, advise, protect, lock, files, direct, remote, fork_and_look, execute,
    signals, threads, heap, fork_and_look, break_a_page, hang, leak,
};

/* How often each is done, beside the others: processes cost most. */
static const unsigned WEIGHTS[CLASSES] = {40, 8, 6, 10, 8, 6, 8, 6, 1, 1, 1, 4, 2, 6, 1, 4, 4, 4};

/* What a device or another process writes to no page table tells of, which changes how pages leave
   from then on, for good: that comes late, unless nothing else is done. */
static unsigned classes_now(const struct plan *plan)
{
    const unsigned past = 1u << DIRECT | 1u << REMOTE;
    int has_others = (plan->classes & ~past) != 0;
    return has_others && !table->writes_may_go_past ? plan->classes & ~past : plan->classes;
}

static enum class choose(struct worker *w)
{
    for (;;) {
        enum class class = draw(w, CLASSES);
        if (classes_now(w->plan) >> class & 1 && draw(w, 40) < WEIGHTS[class])
            return class;
    }
}

static void *live(void *plan_of_thread)
{
    struct worker w = {.plan = plan_of_thread};
    appear();
    w.random = w.plan->seed;
    w.next_tag = mix(w.random) >> 8;
    w.most = w.plan->pages;
    make_region(&w, &w.regions[0], ANYWHERE, w.most / 2 + 1);
    find_places(&w);
    for (int time = 0; time < LIFE && !is_over(); time++) {
        enum class class = choose(&w);
        beat(class);
        DO[class](&w);
    }
    for (struct region *r = w.regions; r < w.regions + REGIONS; r++)
        if (r->at) {
            beat(TOUCH);
            check_run(r, 0, r->pages);
            drop_region(&w, r);
        }
    disappear();
    return NULL;
}

void work(const struct plan *plan)
{
    struct plan of_thread[16];
    pthread_t thread[16];
    if (plan->classes >> SIGNALS & 1)
        begin_signals();
    int count = plan->threads < 16 ? plan->threads : 16, made = 1;
    for (int i = 0; i < count; i++) {
        of_thread[i] = *plan;
        of_thread[i].seed = mix(plan->seed + i);
        of_thread[i].pages = plan->pages / count;
        of_thread[i].number = i;
    }
    begin_places(&of_thread[0], count);
    while (made < count && !pthread_create(&thread[made], NULL, live, &of_thread[made]))
        made++;
    live(&of_thread[0]);
    while (--made > 0)
        pthread_join(thread[made], NULL);
    _exit(0);
}
