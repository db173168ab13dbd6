/*
 * Every call of the C interface, its errors, threads and forks.
 *
 *   suite DIRECTORY [thread]     the directory is for swap files; pools are in that delivery
 *
 * Ends with 0 and "done"; with 77 where the kernel gives no userfaultfd; else it says what is
 * wrong.
 */
#define _GNU_SOURCE
#include "overspill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

static int delivery = OVERSPILL_DELIVERY_SIGNAL;
static const char *directory;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s (last message: %s)\n", __FILE__, __LINE__, #what,           \
                    overspill_last_message());                                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == OVERSPILL_OK)
/* A call that fails with a code, and a sentence that has this in it and says what to do. */
#define FAILS(code, part, call)                                                                    \
    do {                                                                                           \
        CHECK((call) == (code));                                                                   \
        CHECK(strstr(overspill_last_message(), part));                                             \
    } while (0)

static uint64_t mix(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    return x * 0xBF58476D1CE4E5B9u;
}

/* A word in two cannot be guessed: pages halve. */
static uint64_t word(uint64_t seed, size_t at) {
    return at % 2 ? seed : mix(seed + at);
}

static void fill(uint64_t *words, size_t count, uint64_t seed) {
    for (size_t at = 0; at < count; at++) words[at] = word(seed, at);
}

static int is_filled(const uint64_t *words, size_t count, uint64_t seed) {
    for (size_t at = 0; at < count; at++)
        if (words[at] != word(seed, at)) return 0;
    return 1;
}

static overspill_options options(size_t memory) {
    overspill_options options = OVERSPILL_OPTIONS_INIT;
    options.memory = memory;
    options.delivery = delivery;
    options.swap = directory;
    options.settings = "window=4G";
    return options;
}

static overspill_pool *open_pool(size_t memory) {
    overspill_options with = options(memory);
    overspill_pool *pool = NULL;
    OK(overspill_open(&with, &pool));
    return pool;
}

static uint64_t *map(overspill_pool *pool, size_t size) {
    void *address = NULL;
    OK(overspill_map(pool, size, &address));
    CHECK((uintptr_t)address % PAGE == 0);
    return address;
}

static uint64_t stat_of(overspill_pool *pool, const char *name) {
    uint64_t value = 0;
    OK(overspill_stats(pool, name, &value));
    return value;
}

static void opens_or_says_why(void) {
    overspill_pool *pool = NULL;
    overspill_options with = options(16 * MIB);
    FAILS(OVERSPILL_ERROR_ARGUMENT, "options is a null pointer", overspill_open(NULL, &pool));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "pool is a null pointer", overspill_open(&with, NULL));
    with.size = 3;
    FAILS(OVERSPILL_ERROR_ARGUMENT, "OVERSPILL_OPTIONS_INIT", overspill_open(&with, &pool));
    with = options(1 * MIB);
    FAILS(OVERSPILL_ERROR_BUDGET, "too small", overspill_open(&with, &pool));
    with = options(16 * MIB);
    with.delivery = 7;
    FAILS(OVERSPILL_ERROR_ARGUMENT, "delivery is 7", overspill_open(&with, &pool));
    with = options(16 * MIB);
    with.settings = "zswap.codec=lzo";
    FAILS(OVERSPILL_ERROR_SETTING, "it takes auto|lz4", overspill_open(&with, &pool));
    with.settings = "\xff";
    FAILS(OVERSPILL_ERROR_ARGUMENT, "settings is no UTF-8", overspill_open(&with, &pool));
    with = options(16 * MIB);
    with.swap = "/there/is/none";
    FAILS(OVERSPILL_ERROR_DEVICE, "does not exist", overspill_open(&with, &pool));
    with.swap = "/dev/null";
    FAILS(OVERSPILL_ERROR_DEVICE, "/dev/null", overspill_open(&with, &pool));
    with.swap = "prio=1";
    FAILS(OVERSPILL_ERROR_DEVICE, "no device is named", overspill_open(&with, &pool));
    CHECK(pool == NULL);
    OK(overspill_close(NULL));
}

/* Handles and addresses that are none. */
static void what_is_no_pool_and_no_region_is_told(void) {
    overspill_pool *pool = open_pool(16 * MIB);
    overspill_pool *other = open_pool(8 * MIB);
    void *address = NULL;
    uint64_t value = 0;
    FAILS(OVERSPILL_ERROR_ARGUMENT, "pool is a null pointer", overspill_map(NULL, 1, &address));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "address is a null", overspill_map(pool, 1, NULL));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "size is 0", overspill_map(pool, 0, &address));
    FAILS(OVERSPILL_ERROR_ADDRESS_SPACE, "no addresses", overspill_map(pool, 5ul << 30, &address));
    FAILS(OVERSPILL_ERROR_ADDRESS_SPACE, "no addresses", overspill_map(pool, SIZE_MAX, &address));
    FAILS(OVERSPILL_ERROR_NO_POOL, "no such pool",
          overspill_map((overspill_pool *)&value, 1, &address));
    CHECK(address == NULL);

    char *region = (char *)map(pool, 3 * PAGE + 1);
    FAILS(OVERSPILL_ERROR_NO_REGION, "no region of the", overspill_unmap(other, region));
    FAILS(OVERSPILL_ERROR_NO_REGION, "no region", overspill_unmap(pool, region + PAGE));
    OK(overspill_unmap(pool, NULL));
    FAILS(OVERSPILL_ERROR_NO_REGION, "do not lie", overspill_prefetch(pool, region, 5 * PAGE));
    FAILS(OVERSPILL_ERROR_NO_REGION, "do not lie", overspill_prefetch(pool, &value, 8));
    FAILS(OVERSPILL_ERROR_NO_REGION, "past the end", overspill_prefetch(pool, region, SIZE_MAX));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "size is 0", overspill_prefetch(pool, region, 0));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "advice is 9", overspill_advise(pool, region, 1, 9));
    FAILS(OVERSPILL_ERROR_NO_REGION, "do not lie", overspill_hold(pool, region, 5 * PAGE));
    FAILS(OVERSPILL_ERROR_NOT_HELD, "are not held", overspill_release(pool, region, 8));
    FAILS(OVERSPILL_ERROR_BUDGET, "too small", overspill_set_memory(pool, 1));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "device is a null", overspill_swapon(pool, NULL));
    FAILS(OVERSPILL_ERROR_DEVICE, "does not exist", overspill_swapon(pool, "/there/is/none"));
    FAILS(OVERSPILL_ERROR_DEVICE, "more than one", overspill_swapon(pool, "/a,/b"));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "device is a null", overspill_swapoff(pool, NULL));
    FAILS(OVERSPILL_ERROR_DEVICE, "no swap device is called", overspill_swapoff(pool, "/none"));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "name is a null", overspill_stats(pool, NULL, &value));
    FAILS(OVERSPILL_ERROR_ARGUMENT, "value is a null", overspill_stats(pool, "pgfault", NULL));
    FAILS(OVERSPILL_ERROR_NO_COUNTER, "no counter 'x'", overspill_stats(pool, "x", &value));

    FAILS(OVERSPILL_ERROR_IN_USE, "unmap them", overspill_close(pool));
    OK(overspill_unmap(pool, region));
    FAILS(OVERSPILL_ERROR_NO_REGION, "once", overspill_unmap(pool, region));
    OK(overspill_close(pool));
    FAILS(OVERSPILL_ERROR_NO_POOL, "not closed", overspill_close(pool));
    FAILS(OVERSPILL_ERROR_NO_POOL, "no such pool", overspill_map(pool, 1, &address));
    OK(overspill_close(other));
}

static void content_stays(void) {
    const size_t size = 64 * MIB, count = size / sizeof(uint64_t);
    overspill_pool *pool = open_pool(16 * MIB);
    uint64_t *words = map(pool, size);
    CHECK(words[0] == 0 && words[count - 1] == 0);
    fill(words, count, 1);
    CHECK(is_filled(words, count, 1));
    OK(overspill_advise(pool, words, MIB, OVERSPILL_ADVICE_COLD));
    OK(overspill_advise(pool, words, MIB, OVERSPILL_ADVICE_PAGEOUT));
    OK(overspill_advise(pool, words, MIB, OVERSPILL_ADVICE_WILLNEED));
    OK(overspill_prefetch(pool, (char *)words + 5, 3 * MIB));
    uint64_t left = 0;
    OK(overspill_reclaim(pool, MIB, &left));
    CHECK(left > 0);
    OK(overspill_reclaim(pool, PAGE, NULL));
    OK(overspill_set_memory(pool, 24 * MIB));
    CHECK(stat_of(pool, "budget_bytes") == 24 * MIB);
    CHECK(is_filled(words, count, 1));
    CHECK(stat_of(pool, "pgfault") > 0 && stat_of(pool, "nr_swap_used") > 0);
    CHECK(stat_of(pool, "charged_peak_bytes") <= 24 * MIB);

    /* Everything goes from one device to the other. */
    char second[4096];
    snprintf(second, sizeof second, "%s/second:256M,label=second", directory);
    OK(overspill_swapon(pool, second));
    OK(overspill_swapoff(pool, directory));
    CHECK(is_filled(words, count, 1));
    FAILS(OVERSPILL_ERROR_NO_ROOM, "add a device", overspill_swapoff(pool, "second"));
    CHECK(is_filled(words, count, 1));
    OK(overspill_unmap(pool, words));
    OK(overspill_close(pool));
}

/* System calls on memory that is out. */
static void the_kernel_reads_and_writes_what_is_held(void) {
    const size_t size = 32 * MIB, part = 2 * MIB, count = size / sizeof(uint64_t);
    overspill_pool *pool = open_pool(16 * MIB);
    uint64_t *words = map(pool, size);
    fill(words, count, 2);
    OK(overspill_advise(pool, words, part, OVERSPILL_ADVICE_PAGEOUT));
    FILE *file = tmpfile();
    CHECK(file);
    int fd = fileno(file);
    if (delivery == OVERSPILL_DELIVERY_SIGNAL)
        CHECK(pwrite(fd, words, PAGE, 0) < 0 && errno == EFAULT);
    else
        CHECK(pwrite(fd, words, part, 0) == (ssize_t)part);
    OK(overspill_hold(pool, words, part));
    OK(overspill_hold(pool, words, part));
    CHECK(pwrite(fd, words, part, 0) == (ssize_t)part);
    OK(overspill_release(pool, words, part));
    memset(words, 0, part);
    CHECK(pread(fd, words, part, 0) == (ssize_t)part);
    CHECK(is_filled(words, count, 2));
    FAILS(OVERSPILL_ERROR_NO_MEMORY, "half of the budget",
          overspill_hold(pool, (char *)words + part, 12 * MIB));
    FAILS(OVERSPILL_ERROR_IN_USE, "release it", overspill_unmap(pool, words));
    OK(overspill_release(pool, words, part));
    FAILS(OVERSPILL_ERROR_NOT_HELD, "are not held", overspill_release(pool, words, part));
    fclose(file);
    OK(overspill_unmap(pool, words));
    OK(overspill_close(pool));
}

static void counters_have_names(void) {
    overspill_pool *pool = open_pool(8 * MIB);
    size_t count = 0;
    int faults = 0;
    for (const char *name; (name = overspill_stats_name(count)); count++) {
        stat_of(pool, name);
        faults |= strcmp(name, "pgfault") == 0;
    }
    CHECK(count > 50 && faults && overspill_stats_name(SIZE_MAX) == NULL);
    CHECK(strcmp(overspill_error_text(OVERSPILL_OK), "done") == 0);
    CHECK(strcmp(overspill_error_text(OVERSPILL_ERROR_NO_POOL), "no such pool") == 0);
    CHECK(strcmp(overspill_error_text(-1), "unknown error") == 0);
    CHECK(strchr(overspill_version(), '.'));
    OK(overspill_close(pool));
}

static overspill_pool *shared;

static void *use(void *argument) {
    const uint64_t seed = (uintptr_t)argument;
    const size_t size = 8 * MIB, count = size / sizeof(uint64_t);
    for (int round = 0; round < 4; round++) {
        uint64_t *words = map(shared, size);
        fill(words, count, seed);
        OK(overspill_hold(shared, words, 64 << 10));
        OK(overspill_advise(shared, words + count / 2, MIB, OVERSPILL_ADVICE_PAGEOUT));
        CHECK(stat_of(shared, "pgfault") > 0);
        CHECK(is_filled(words, count, seed));
        OK(overspill_release(shared, words, 64 << 10));
        OK(overspill_unmap(shared, words));
    }
    /* Each thread has its own last message. */
    FAILS(OVERSPILL_ERROR_NO_COUNTER, "no counter", overspill_stats(shared, "x", &(uint64_t){0}));
    return NULL;
}

static void threads_do_all_that_at_once(void) {
    pthread_t threads[6];
    shared = open_pool(16 * MIB);
    for (uintptr_t at = 0; at < 6; at++)
        CHECK(pthread_create(&threads[at], NULL, use, (void *)(at + 1)) == 0);
    for (int at = 0; at < 6; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    OK(overspill_close(shared));
}

/* Runs a child to its end; it returns how it ends. */
static void in_child(pid_t (*make)(void), void (*run)(void)) {
    errno = 4711;
    pid_t child = make();
    CHECK(child >= 0);
    CHECK(errno == 4711);
    if (child == 0) {
        run();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static overspill_pool *pools[3];
static uint64_t *regions[3];
enum { FORK_BYTES = 24 << 20, FORK_WORDS = FORK_BYTES / 8 };

static void use_in_child(void) {
    for (int at = 0; at < 3; at++) {
        CHECK(is_filled(regions[at], FORK_WORDS, (uint64_t)at));
        fill(regions[at], FORK_WORDS, 100 + (uint64_t)at);
    }
    uint64_t *words = map(pools[0], MIB);
    words[0] = 1;
    OK(overspill_unmap(pools[0], words));
    for (int at = 0; at < 3; at++) {
        CHECK(is_filled(regions[at], FORK_WORDS, 100 + (uint64_t)at));
        OK(overspill_unmap(pools[at], regions[at]));
        OK(overspill_close(pools[at]));
    }
    overspill_pool *fresh = open_pool(8 * MIB);
    OK(overspill_close(fresh));
}

static void only_says_so(void) {
    void *address = NULL;
    FAILS(OVERSPILL_ERROR_FORKED, "make it by fork", overspill_map(pools[0], 1, &address));
    FAILS(OVERSPILL_ERROR_FORKED, "make it by fork", overspill_close(pools[0]));
}

static void grandchild(void) {
    in_child(fork, use_in_child);
    CHECK(is_filled(regions[1], FORK_WORDS, 1));
}

static volatile int stop;

/* Calls and faults of another thread, during forks. */
static void *churn(void *argument) {
    const uint64_t seed = (uintptr_t)argument;
    while (!stop) {
        uint64_t *words = map(pools[0], 2 * MIB);
        fill(words, 2 * MIB / sizeof(uint64_t), seed);
        OK(overspill_prefetch(pools[0], words, MIB));
        CHECK(is_filled(words, 2 * MIB / sizeof(uint64_t), seed));
        OK(overspill_unmap(pools[0], words));
    }
    return NULL;
}

static void without_the_others_region(void) {
    for (int at = 0; at < 3; at++) CHECK(is_filled(regions[at], FORK_WORDS, (uint64_t)at));
    OK(overspill_unmap(pools[1], regions[1]));
    OK(overspill_close(pools[1]));
}

static void children_have_all_of_it(void) {
    for (int at = 0; at < 3; at++) {
        pools[at] = open_pool(16 * MIB);
        regions[at] = map(pools[at], FORK_BYTES);
        fill(regions[at], FORK_WORDS, (uint64_t)at);
    }
    in_child(fork, use_in_child);
    in_child(_Fork, only_says_so);
    in_child(fork, grandchild);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, churn, (void *)7) == 0);
    for (int round = 0; round < 5; round++) in_child(fork, without_the_others_region);
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    for (int at = 0; at < 3; at++) {
        CHECK(is_filled(regions[at], FORK_WORDS, (uint64_t)at));
        OK(overspill_unmap(pools[at], regions[at]));
        OK(overspill_close(pools[at]));
    }
}

/* More than there can be at once. */
static void pools_come_and_go(void) {
    for (int round = 0; round < 80; round++) {
        overspill_pool *pool = open_pool(4 * MIB);
        uint64_t *words = map(pool, PAGE);
        words[0] = 1;
        FAILS(OVERSPILL_ERROR_IN_USE, "unmap", overspill_close(pool));
        OK(overspill_unmap(pool, words));
        OK(overspill_close(pool));
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    directory = argv[1];
    if (argc > 2 && strcmp(argv[2], "thread") == 0) delivery = OVERSPILL_DELIVERY_THREAD;
    overspill_options first = options(8 * MIB);
    overspill_pool *pool = NULL;
    overspill_error error = overspill_open(&first, &pool);
    if (error == OVERSPILL_ERROR_NO_USERFAULTFD) {
        fprintf(stderr, "%s\n", overspill_last_message());
        return 77;
    }
    CHECK(error == OVERSPILL_OK);
    OK(overspill_close(pool));
    opens_or_says_why();
    what_is_no_pool_and_no_region_is_told();
    content_stays();
    the_kernel_reads_and_writes_what_is_held();
    counters_have_names();
    threads_do_all_that_at_once();
    children_have_all_of_it();
    pools_come_and_go();
    printf("done\n");
    return 0;
}
