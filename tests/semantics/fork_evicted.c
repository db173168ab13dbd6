/* fork(2) with most of the memory evicted: parent, child and grandchild each keep what is
   theirs. */
#include "common.h"

#define PAGES ((size_t)6000)
#define WRITER_PAGES ((size_t)1500)
#define WRITERS 3

/* Half of it mapped, half from the heap. */
static char *half[2];

static void fill_all(uint64_t seed)
{
    for (int i = 0; i < 2; i++)
        fill(half[i], PAGES / 2, seed + i * PAGES);
}

static size_t bad_all(uint64_t seed)
{
    return bad_pages(half[0], PAGES / 2, seed) + bad_pages(half[1], PAGES / 2, seed + PAGES);
}

/* Exit status of a process that found so many bad pages. */
static int verdict(size_t bad)
{
    return bad ? 1 : 0;
}

static void child_and_parent(void)
{
    fill_all(1);
    pressure(40);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        size_t bad = bad_all(1);
        fill_all(100000);
        _exit(verdict(bad + bad_all(100000)));
    }
    check(bad_all(1) == 0, "the parent has its data while the child runs");
    fill_all(200000);
    check(bad_all(200000) == 0, "the parent has what it wrote after the fork");
    check(reap(pid) == 0, "the child had the parent's data, then its own");
    check(bad_all(200000) == 0, "the parent's data outlive the child");
}

static void grandchild(void)
{
    pressure(40);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        fill(half[0], PAGES / 2, 300000);
        pressure(32);
        pid_t grandchild = fork_flushed();
        if (grandchild == 0) {
            size_t bad = bad_pages(half[0], PAGES / 2, 300000) +
                         bad_pages(half[1], PAGES / 2, 200000 + PAGES);
            fill_all(400000);
            _exit(verdict(bad + bad_all(400000)));
        }
        fill(half[1], PAGES / 2, 300000 + PAGES);
        size_t bad = bad_all(300000);
        _exit(verdict(bad) + 2 * reap(grandchild));
    }
    int status = reap(pid);
    check((status & 1) == 0, "a child that forks keeps its data");
    check((status & ~1) == 0, "a grandchild has the child's data, then its own");
    check(bad_all(200000) == 0, "the first of three generations keeps its data");
}

/* The child's parent is gone before the child looks. */
static void orphan(void)
{
    int result[2], gone[2];
    char byte = 0;
    if (pipe(result) != 0 || pipe(gone) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        if (fork_flushed() != 0)
            _exit(5);
        close(gone[1]);
        /* Ends when the parent, the last one to hold the other end beside the main process, is
           gone. */
        while (read(gone[0], &byte, 1) > 0)
            ;
        size_t bad = bad_all(200000);
        fill_all(500000);
        pressure(32);
        byte = bad + bad_all(500000) == 0 ? 'y' : 'n';
        if (write(result[1], &byte, 1) != 1)
            die("write");
        _exit(0);
    }
    check(reap(pid) == 5, "a parent that exits first");
    close(gone[1]);
    check(read(result[0], &byte, 1) == 1 && byte == 'y', "its child has the data all the same");
    close(gone[0]);
    close(result[0]);
    close(result[1]);
}

/* Pages that may not be accessed are evicted too, on either side of a fork each its own. */
static size_t bad_behind_protection(char *pages, uint64_t seed)
{
    if (mprotect(pages, PAGES / 4 * PAGE, PROT_READ | PROT_WRITE) != 0)
        die("mprotect");
    fill(pages, PAGES / 4, seed);
    if (mprotect(pages, PAGES / 4 * PAGE, PROT_NONE) != 0)
        die("mprotect");
    pressure(40);
    if (mprotect(pages, PAGES / 4 * PAGE, PROT_READ) != 0)
        die("mprotect");
    return bad_pages(pages, PAGES / 4, seed);
}

static void protected_pages(void)
{
    char *pages = map_pages(PAGES / 4);
    size_t bad = bad_behind_protection(pages, 600000);
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(verdict(bad_behind_protection(pages, 700000)));
    bad += bad_behind_protection(pages, 800000);
    check(bad == 0, "the parent has the pages that it may not access");
    check(reap(pid) == 0, "and the child has its own");
    munmap(pages, PAGES / 4 * PAGE);
}

/* Threads that rewrite their pages, one generation after the other, while another thread forks. */
static struct writer {
    char *pages;
    atomic_ulong generation;
} writers[WRITERS];
static atomic_int stop;

static uint64_t seed_of(size_t writer, unsigned long generation)
{
    return 1000000 * (writer + 1) + generation * WRITER_PAGES;
}

static void *rewrite(void *argument)
{
    struct writer *w = argument;
    while (!stop) {
        unsigned long next = w->generation + 1;
        fill(w->pages, WRITER_PAGES, seed_of((size_t)(w - writers), next));
        w->generation = next;
    }
    return NULL;
}

/* In a child a page holds some recent generation: the snapshot of memory is not one of a moment
   over several pages, neither natively. Only the page that a writer was about when it was copied
   may be torn. */
static size_t torn_pages(size_t writer)
{
    const struct writer *w = &writers[writer];
    size_t torn = 0;
    for (size_t i = 0; i < WRITER_PAGES; i++) {
        int found = 0;
        for (unsigned long g = w->generation > 2 ? w->generation - 2 : 0;
             !found && g <= w->generation + 2; g++)
            found = page_is(w->pages + i * PAGE, seed_of(writer, g) + i);
        torn += !found;
    }
    return torn;
}

static void *fork_often(void *argument)
{
    int *wrong = argument;
    for (int i = 0; i < 6; i++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            int bits = bad_pages(half[i % 2], PAGES / 2, 200000 + (i % 2) * PAGES) != 0;
            for (size_t w = 0; w < WRITERS; w++)
                if (torn_pages(w) > 2)
                    bits |= 2;
            void *block = malloc(1000000);
            memset(block, 7, 1000000);
            free(block);
            _exit(bits);
        }
        *wrong |= reap(pid);
    }
    return NULL;
}

static void while_others_write(void)
{
    pthread_t threads[WRITERS], forker;
    int wrong = 0;
    for (size_t i = 0; i < WRITERS; i++) {
        writers[i].pages = map_pages(WRITER_PAGES);
        fill(writers[i].pages, WRITER_PAGES, seed_of(i, 0));
        pthread_create(&threads[i], NULL, rewrite, &writers[i]);
    }
    pthread_create(&forker, NULL, fork_often, &wrong);
    pthread_join(forker, NULL);
    stop = 1;
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    check((wrong & 1) == 0, "children of a second thread have the data that nobody writes");
    check((wrong & 2) == 0, "and pages of a recent generation of those that others write");
    check((wrong & ~3) == 0, "and end as they should");
    size_t bad = 0;
    for (size_t i = 0; i < WRITERS; i++)
        bad += bad_pages(writers[i].pages, WRITER_PAGES, seed_of(i, writers[i].generation));
    check(bad == 0, "the writers' last generation is whole");
    check(bad_all(200000) == 0, "the rest is untouched");
}

int main(void)
{
    half[0] = map_pages(PAGES / 2);
    half[1] = heap_pages(PAGES / 2);
    child_and_parent();
    grandchild();
    orphan();
    protected_pages();
    while_others_write();
    return finish();
}
