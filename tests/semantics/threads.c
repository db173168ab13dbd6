/* Threads: many of them, their stacks, their own storage, and what they leave when they end. */
#include "common.h"

#define THREADS 500
#define ALIVE 50
#define BLOCK_PAGES ((size_t)60)

static void *leave_a_block(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    char *block = seed % 2 ? heap_pages(BLOCK_PAGES) : map_pages(BLOCK_PAGES);
    fill(block, BLOCK_PAGES, seed * 1000);
    return block;
}

/* What a thread has written outlives it, evicted or not, and others free it. */
static void created_and_joined(void)
{
    static char *blocks[THREADS];
    size_t bad = 0;
    for (int first = 0; first < THREADS; first += ALIVE) {
        pthread_t threads[ALIVE];
        for (int i = 0; i < ALIVE; i++)
            if ((errno = pthread_create(&threads[i], NULL, leave_a_block,
                                        (void *)(uintptr_t)(first + i))) != 0)
                die("pthread_create");
        for (int i = 0; i < ALIVE; i++)
            pthread_join(threads[i], (void **)&blocks[first + i]);
    }
    for (int i = 0; i < THREADS; i++) {
        bad += bad_pages(blocks[i], BLOCK_PAGES, (uint64_t)i * 1000);
        if (i % 2)
            free(blocks[i]);
        else
            munmap(blocks[i], BLOCK_PAGES * PAGE);
    }
    check(bad == 0, "%d threads: what they leave is whole", THREADS);
}

/* Fills stack frames on the way down and looks at them on the way up, with pressure in between. */
static __attribute__((noinline)) size_t descend(int depth, uint64_t seed)
{
    char frame[4 * 4096];
    stamp(frame, sizeof frame, seed + (uint64_t)depth);
    size_t bad = 0;
    if (depth > 0)
        bad = descend(depth - 1, seed);
    else
        pressure(24);
    return bad + !stamped(frame, sizeof frame, seed + (uint64_t)depth);
}

static void *use_stack(void *argument)
{
    size_t bad = 0;
    for (int i = 0; i < 3; i++)
        bad += descend(20, (uint64_t)(uintptr_t)argument * 100 + (uint64_t)i);
    return (void *)bad;
}

static void own_stacks(void)
{
    enum { N = 6 };
    const size_t pages = 128;
    char *stacks[N];
    pthread_t threads[N];
    size_t bad = 0;
    for (int i = 0; i < N; i++) {
        pthread_attr_t attributes;
        stacks[i] = i % 2 ? heap_pages(pages) : map_pages(pages);
        memset(stacks[i], 0xcc, pages * PAGE);
        pthread_attr_init(&attributes);
        if (pthread_attr_setstack(&attributes, stacks[i], pages * PAGE) != 0)
            die("pthread_attr_setstack");
        if (i == N / 2)
            pressure(40);
        if ((errno = pthread_create(&threads[i], &attributes, use_stack, (void *)(uintptr_t)i)) !=
            0)
            die("pthread_create");
        pthread_attr_destroy(&attributes);
    }
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (size_t)result;
        if (i % 2)
            free(stacks[i]);
        else
            munmap(stacks[i], pages * PAGE);
    }
    check(bad == 0, "stacks of the program's own, under pressure");
}

static __thread char storage[3 * 4096] = "initial";
static __thread uint64_t counter = 41;
static pthread_key_t key;
static atomic_int destroyed;

static void destroy(void *value)
{
    if (stamped(value, 100000, 5))
        destroyed++;
    free(value);
}

static void *use_storage(void *argument)
{
    size_t bad = strcmp(storage, "initial") != 0 || counter != 41;
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    stamp(storage, sizeof storage, seed);
    counter += seed;
    char *value = malloc(100000);
    stamp(value, 100000, 5);
    pthread_setspecific(key, value);
    pressure(16);
    bad += !stamped(storage, sizeof storage, seed) || counter != 41 + seed ||
           pthread_getspecific(key) != value;
    errno = (int)seed;
    pressure(8);
    bad += errno != (int)seed;
    return (void *)bad;
}

static void own_storage(void)
{
    enum { N = 12 };
    pthread_t threads[N];
    size_t bad = 0;
    pthread_key_create(&key, destroy);
    for (int i = 0; i < N; i++)
        pthread_create(&threads[i], NULL, use_storage, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (size_t)result;
    }
    check(bad == 0 && destroyed == N, "storage of each thread: %d values destroyed", destroyed);
    pthread_key_delete(key);
}

static atomic_int stop;

static void *busy(void *argument)
{
    size_t bad = 0;
    uint64_t seed = (uint64_t)(uintptr_t)argument * 100000;
    char *p = map_pages(2000);
    while (!stop) {
        fill(p, 2000, ++seed);
        bad += bad_pages(p, 2000, seed);
    }
    munmap(p, 2000 * PAGE);
    return (void *)bad;
}

/* glibc changes the ids of every thread it knows, by a signal to each. */
static void credentials(void)
{
    pthread_t threads[4];
    size_t bad = 0;
    int wrong = 0;
    uid_t r, e, s;
    gid_t gr, ge, gs;
    getresuid(&r, &e, &s);
    getresgid(&gr, &ge, &gs);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, busy, (void *)(uintptr_t)i);
    for (int i = 0; i < 15; i++) {
        wrong += setresuid(r, e, s) != 0 || setresgid(gr, ge, gs) != 0;
        usleep(1000);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (size_t)result;
    }
    check(wrong == 0 && bad == 0, "setresuid and setresgid while threads run");
}

static void *wait_forever(void *argument)
{
    (void)argument;
    char *p = heap_pages(100);
    pthread_cleanup_push(free, p);
    for (uint64_t seed = 0;; seed++) {
        fill(p, 100, seed);
        if (bad_pages(p, 100, seed))
            _exit(97);
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void *leave_at_once(void *argument)
{
    pthread_exit(argument);
}

static void endings(void)
{
    pthread_t threads[20];
    int cancelled = 0, left = 0;
    for (int i = 0; i < 20; i++)
        pthread_create(&threads[i], NULL, i % 2 ? wait_forever : leave_at_once, &stop);
    pressure(40);
    for (int i = 0; i < 20; i++) {
        void *result = NULL;
        if (i % 2)
            pthread_cancel(threads[i]);
        pthread_join(threads[i], &result);
        cancelled += result == PTHREAD_CANCELED;
        left += result == &stop;
    }
    check(cancelled == 10 && left == 10, "%d threads cancelled, %d ended by themselves", cancelled,
          left);
    /* The first thread may end before the others: the process ends with the last. */
    pid_t pid = fork_flushed();
    if (pid == 0) {
        pthread_t last;
        stop = 1;
        pthread_create(&last, NULL, busy, NULL);
        pthread_detach(last);
        pthread_exit(NULL);
    }
    check(reap(pid) == 0, "a process whose first thread ends first");
}

int main(void)
{
    created_and_joined();
    own_stacks();
    own_storage();
    credentials();
    endings();
    return finish();
}
