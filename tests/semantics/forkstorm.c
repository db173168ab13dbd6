/* Many forks, one after the other and several at a time, while threads rewrite evicted memory. */
#include "common.h"

#define PAGES ((size_t)9000)
#define WRITER_PAGES ((size_t)600)
#define WRITERS 2
#define FORKERS 3
#define FORKS 20

static char *memory;
static atomic_int stop, bad_writers;

static void *rewrite(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument << 32;
    char *pages = map_pages(WRITER_PAGES);
    fill(pages, WRITER_PAGES, seed);
    while (!stop) {
        char *block = malloc(50000);
        stamp(block, 50000, seed);
        bad_writers += bad_pages(pages, WRITER_PAGES, seed) != 0;
        fill(pages, WRITER_PAGES, ++seed);
        bad_writers += !stamped(block, 50000, seed - 1);
        free(block);
    }
    munmap(pages, WRITER_PAGES * PAGE);
    return NULL;
}

/* A child that reads some of what its parent has, writes some of it, and allocates. */
static int child(unsigned number)
{
    size_t first = mix(number) % (PAGES - 500);
    char *part = memory + first * PAGE, *block = malloc(300000);
    size_t bad = bad_pages(part, 500, first);
    stamp(block, 300000, number);
    fill(part, 500, 77);
    bad += bad_pages(part, 500, 77) + !stamped(block, 300000, number);
    free(block);
    return bad ? 1 : 0;
}

static void *fork_often(void *argument)
{
    int status = 0;
    for (unsigned i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0)
            _exit(child((unsigned)(uintptr_t)argument * FORKS + i));
        status |= reap(pid);
    }
    return (void *)(uintptr_t)status;
}

/* Children that all live at the same time. */
static void herd(void)
{
    enum { HERD = 12 };
    pid_t pids[HERD];
    int status = 0, go[2];
    char byte;
    if (pipe(go) != 0)
        die("pipe");
    fflush(stdout);
    for (unsigned i = 0; i < HERD; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            die("fork");
        if (pids[i] == 0) {
            close(go[1]);
            /* All of them begin when the last is there. */
            if (read(go[0], &byte, 1) != 0)
                _exit(2);
            _exit(child(1000 + i));
        }
    }
    close(go[0]);
    close(go[1]);
    for (unsigned i = 0; i < HERD; i++)
        status |= reap(pids[i]);
    check(status == 0, "%d children at a time", HERD);
    check(bad_pages(memory, PAGES, 0) == 0, "and their parent");
}

int main(void)
{
    pthread_t writers[WRITERS], forkers[FORKERS];
    memory = map_pages(PAGES);
    fill(memory, PAGES, 0);
    herd();
    check(fork_often((void *)9) == NULL, "%d forks in a row", FORKS);
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&writers[i], NULL, rewrite, (void *)(uintptr_t)(i + 1));
    fflush(stdout);
    for (int i = 0; i < FORKERS; i++)
        pthread_create(&forkers[i], NULL, fork_often, (void *)(uintptr_t)i);
    int status = 0;
    for (int i = 0; i < FORKERS; i++) {
        void *result;
        pthread_join(forkers[i], &result);
        status |= (int)(uintptr_t)result;
    }
    stop = 1;
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    check(status == 0, "%d forks by each of %d threads", FORKS, FORKERS);
    check(bad_writers == 0, "threads that write meanwhile");
    check(bad_pages(memory, PAGES, 0) == 0, "memory that nobody writes");
    return finish();
}
