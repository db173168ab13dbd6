/* mprotect(2): protection keeps content, raises SIGSEGV where it should, and carries a collector's
   write barrier. */
#include "common.h"

#define PAGES ((size_t)4096)

static void none_and_back(void)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 1);
    check(mprotect(p, PAGES * PAGE, PROT_NONE) == 0, "resident pages become inaccessible");
    pressure(40);
    check(fault_of(p, 0) == SIGSEGV && fault_of(p + 77 * PAGE, 1) == SIGSEGV,
          "an access raises SIGSEGV");
    check(mprotect(p, PAGES * PAGE, PROT_READ) == 0, "readable again");
    check(bad_pages(p, PAGES, 1) == 0, "with their content");
    pressure(40);
    check(mprotect(p, PAGES * PAGE, PROT_NONE) == 0, "evicted pages become inaccessible");
    check(fault_of(p, 0) == SIGSEGV && fault_of(p + 99 * PAGE, 1) == SIGSEGV,
          "an access raises SIGSEGV");
    check(mprotect(p, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0, "writable again");
    check(bad_pages(p, PAGES, 1) == 0, "with their content");
    /* Every third page inaccessible, the others in use. */
    for (size_t i = 0; i < 300; i += 3)
        mprotect(p + i * PAGE, PAGE, PROT_NONE);
    for (size_t i = 0; i < 300; i++)
        if (i % 3)
            fill_page(p + i * PAGE, 5000 + i);
    pressure(40);
    int wrong = 0;
    for (size_t i = 0; i < 300; i++)
        wrong += i % 3 ? !page_is(p + i * PAGE, 5000 + i) : fault_of(p + i * PAGE, 1) != SIGSEGV;
    check(wrong == 0, "neighbours of different protection: %d wrong", wrong);
    check(mprotect(p, 300 * PAGE, PROT_READ | PROT_WRITE) == 0, "one call for all of them");
    for (size_t i = 0; i < 300; i += 3)
        wrong += !page_is(p + i * PAGE, 1 + i);
    check(wrong == 0, "what was inaccessible is still there");
    munmap(p, PAGES * PAGE);
}

static void read_only(void)
{
    char *p = map_pages(PAGES);
    fill(p, PAGES, 10);
    check(mprotect(p, PAGES * PAGE, PROT_READ) == 0, "pages become read-only");
    for (int round = 0; round < 3; round++) {
        pressure(40);
        check(bad_pages(p, PAGES, 10) == 0, "they are evicted and read again");
    }
    check(fault_of(p + 5 * PAGE, 1) == SIGSEGV, "a write to a resident one raises SIGSEGV");
    pressure(40);
    check(fault_of(p + 6 * PAGE, 1) == SIGSEGV, "a write to an evicted one raises SIGSEGV");
    check(bad_pages(p, PAGES, 10) == 0, "and changes nothing");
    munmap(p, PAGES * PAGE);

    /* Read-only before the first touch: zeros. */
    p = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(nonzero(p, PAGES * PAGE) == 0 && fault_of(p, 1) == SIGSEGV,
          "memory that is read-only from the start is zeros");
    mprotect(p, PAGES * PAGE, PROT_READ | PROT_WRITE);
    check(nonzero(p, PAGES * PAGE) == 0, "also when it becomes writable");
    fill(p, PAGES, 11);
    pressure(40);
    check(bad_pages(p, PAGES, 11) == 0, "then it keeps what is written");
    munmap(p, PAGES * PAGE);
    /* Reserved first, used later, as allocators do. */
    p = mmap(NULL, 64 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    check(p != MAP_FAILED && fault_of(p, 0) == SIGSEGV, "a reservation raises SIGSEGV");
    for (size_t i = 0; i < 64; i += 4) {
        mprotect(p + i * PAGES * PAGE, 128 * PAGE, PROT_READ | PROT_WRITE);
        fill(p + i * PAGES * PAGE, 128, 20 + i);
    }
    pressure(40);
    size_t bad = 0;
    for (size_t i = 0; i < 64; i += 4)
        bad += bad_pages(p + i * PAGES * PAGE, 128, 20 + i);
    check(bad == 0, "parts of it that are used keep their content");
    check(fault_of(p + 200 * PAGE, 1) == SIGSEGV && fault_of(p + PAGES * PAGE, 0) == SIGSEGV,
          "the rest still raises SIGSEGV");
    munmap(p, 64 * PAGES * PAGE);
}

/* A collector's write barrier: the heap is read-only, the handler notes the page and lets the write
   go on. */
static char *heap;
static volatile unsigned char dirty[PAGES];
static atomic_int strangers, barrier_hits;

static void barrier(int signal, siginfo_t *info, void *context)
{
    (void)context;
    size_t page = ((size_t)((char *)info->si_addr - heap)) / PAGE;
    if (signal != SIGSEGV || page >= PAGES ||
        mprotect(heap + page * PAGE, PAGE, PROT_READ | PROT_WRITE) != 0) {
        strangers++;
        _exit(97);
    }
    dirty[page] = 1;
    barrier_hits++;
}

struct mutator {
    size_t first;
    uint64_t seed;
};

/* Writes a third of every second page, so that two threads never share one. */
static void *mutate(void *argument)
{
    struct mutator *m = argument;
    for (size_t i = m->first; i < PAGES; i += 2)
        if (mix(m->seed + i) % 3 == 0)
            fill_page(heap + i * PAGE, m->seed + i);
    return NULL;
}

static void write_barrier(void)
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = barrier;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before);
    heap = map_pages(PAGES);
    fill(heap, PAGES, 0);
    for (uint64_t cycle = 1; cycle <= 4; cycle++) {
        memset((void *)dirty, 0, sizeof dirty);
        barrier_hits = 0;
        if (mprotect(heap, PAGES * PAGE, PROT_READ) != 0)
            die("mprotect");
        if (cycle % 2 == 0)
            pressure(40);
        pthread_t threads[2];
        struct mutator mutators[2] = {{0, cycle * 1000000}, {1, cycle * 1000000}};
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, mutate, &mutators[i]);
        pressure(40);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        size_t noted = 0, missed = 0, wrong = 0;
        for (size_t i = 0; i < PAGES; i++) {
            int written = mix(cycle * 1000000 + i) % 3 == 0;
            noted += dirty[i];
            missed += written != dirty[i];
            if (written)
                wrong += !page_is(heap + i * PAGE, cycle * 1000000 + i);
        }
        check(missed == 0 && wrong == 0,
              "cycle %llu: %zu pages written, each noted once (%d faults), content right",
              (unsigned long long)cycle, noted, barrier_hits);
    }
    size_t lost = 0;
    for (size_t i = 0; i < PAGES; i++) {
        uint64_t cycle = 4;
        while (cycle > 0 && mix(cycle * 1000000 + i) % 3 != 0)
            cycle--;
        lost += !page_is(heap + i * PAGE, cycle ? cycle * 1000000 + i : i);
    }
    check(lost == 0, "every page holds the last write to it");
    sigaction(SIGSEGV, &before, NULL);
    munmap(heap, PAGES * PAGE);
}

static void errors(void)
{
    char *p = map_pages(8);
    check(mprotect(p + 1, PAGE, PROT_READ) == -1 && errno == EINVAL,
          "an address inside a page: EINVAL");
    munmap(p + 4 * PAGE, PAGE);
    check(mprotect(p, 8 * PAGE, PROT_READ) == -1 && errno == ENOMEM, "a hole in the range: ENOMEM");
    check(mprotect(p, 0, PROT_NONE) == 0, "no length: 0");
    munmap(p, 8 * PAGE);
    /* Protection of memory from malloc, as guard pages are made. */
    p = heap_pages(64);
    fill(p, 64, 30);
    check(mprotect(p + 10 * PAGE, PAGE, PROT_NONE) == 0 && fault_of(p + 10 * PAGE, 1) == SIGSEGV,
          "a guard page in memory from malloc");
    pressure(40);
    check(mprotect(p + 10 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0 && bad_pages(p, 64, 30) == 0,
          "taken back");
    free(p);
}

int main(void)
{
    none_and_back();
    read_only();
    write_barrier();
    errors();
    return finish();
}
