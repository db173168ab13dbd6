/* Mutexes and condition variables in memory that is out: their calls wait and wake all the same. */
#include "common.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#define THREADS 6
#define TURNS 400

/* Each on a page of its own, so that pressure takes each out. */
struct shared {
    char gap[PAGE];
    pthread_mutex_t mutex;
    char gap2[PAGE];
    pthread_cond_t turn;
    char gap3[PAGE];
    uint64_t next, sum;
    char gap4[PAGE];
    pthread_barrier_t barrier;
    char gap5[PAGE];
    pthread_rwlock_t lock;
    char gap6[PAGE];
    atomic_int word;
};
static struct shared *shared;

struct thread {
    pthread_t id;
    uint64_t number;
};

/* In turn, each waits for the one before it. */
static void *take_turns(void *argument)
{
    struct thread *self = argument;
    for (uint64_t i = 0; i < TURNS; i++) {
        pthread_mutex_lock(&shared->mutex);
        while (shared->next != i * THREADS + self->number)
            pthread_cond_wait(&shared->turn, &shared->mutex);
        shared->next++;
        shared->sum = mix(shared->sum + self->number);
        pthread_cond_broadcast(&shared->turn);
        pthread_mutex_unlock(&shared->mutex);
    }
    pthread_barrier_wait(&shared->barrier);
    for (int i = 0; i < TURNS; i++) {
        if (i % 8 == 0) {
            pthread_rwlock_wrlock(&shared->lock);
            shared->sum++;
        } else {
            pthread_rwlock_rdlock(&shared->lock);
        }
        pthread_rwlock_unlock(&shared->lock);
        pthread_mutex_lock(&shared->mutex);
        shared->next++;
        pthread_mutex_unlock(&shared->mutex);
    }
    return NULL;
}

static long futex(int operation, int value, const struct timespec *time)
{
    return syscall(SYS_futex, &shared->word, operation, value, time, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void *wake_by_call(void *argument)
{
    (void)argument;
    usleep(30000);
    pressure(30);
    shared->word = 1;
    pressure(30);
    while (futex(FUTEX_WAKE_PRIVATE, 1, NULL) == 0)
        usleep(1000);
    return NULL;
}

/* Words on pages full of addresses, where memory is short for all of the time: to look where these
   lead would drive the word itself out. */
#define WORDS 6000
static char *words;
static atomic_int enough;

static void *drive_out(void *argument)
{
    for (size_t n = (size_t)argument; !enough; n += 1777)
        for (size_t i = 0; i < 64; i++)
            words[(n + i) % WORDS * PAGE + 8]++;
    return NULL;
}

static void beside_addresses(void)
{
    words = map_pages(WORDS);
    for (size_t i = 0; i < WORDS; i++) {
        struct timespec *time = (void *)(words + i * PAGE + 64);
        *time = (struct timespec){.tv_nsec = 1};
        char **addresses = (void *)(words + i * PAGE);
        for (size_t at = 64; at < PAGE / sizeof *addresses; at++)
            addresses[at] = words + mix(i * 512 + at) % WORDS * PAGE;
    }
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, drive_out, (void *)(i * 2000));
    long wrong = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        char *word = words + mix(i) % WORDS * PAGE, *time = words + mix(~i) % WORDS * PAGE + 64;
        wrong += syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, time, NULL, 0) != -1 ||
                 errno != EAGAIN;
    }
    enough = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    check(wrong == 0, "words beside addresses: %ld calls fail otherwise", wrong);
    munmap(words, WORDS * PAGE);
}

int main(void)
{
    static struct thread threads[THREADS];
    shared = malloc(sizeof *shared);
    memset(shared, 0, sizeof *shared);
    pthread_mutex_init(&shared->mutex, NULL);
    pthread_cond_init(&shared->turn, NULL);
    pthread_rwlock_init(&shared->lock, NULL);
    pthread_barrier_init(&shared->barrier, NULL, THREADS);
    pressure(40);
    for (uint64_t i = 0; i < THREADS; i++) {
        threads[i].number = i;
        pthread_create(&threads[i].id, NULL, take_turns, &threads[i]);
    }
    for (int i = 0; i < 6; i++)
        pressure(30);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    uint64_t expected = 0;
    for (uint64_t i = 0; i < THREADS * TURNS; i++)
        expected = mix(expected + i % THREADS);
    check(shared->sum == expected + THREADS * TURNS / 8 && shared->next == 2 * THREADS * TURNS,
          "%d threads in turn", THREADS);

    /* A time that is over, in memory that is out; nobody to wake; a word that has changed; and one
       who is woken. */
    struct timespec *soon = malloc(2 * PAGE);
    soon->tv_sec = 0;
    soon->tv_nsec = 5000000;
    pressure(40);
    check(pthread_mutex_lock(&shared->mutex) == 0 && futex(FUTEX_WAKE_PRIVATE, 1, NULL) == 0,
          "nobody to wake");
    pressure(40);
    check(futex(FUTEX_WAKE_BITSET_PRIVATE, 1, NULL) == 0 && futex(FUTEX_WAKE, 1, NULL) == 0,
          "in other ways");
    check(futex(FUTEX_WAIT_PRIVATE, 0, soon) == -1 && errno == ETIMEDOUT, "a wait with a time");
    pressure(40);
    check(futex(FUTEX_WAIT_PRIVATE, 5, NULL) == -1 && errno == EAGAIN, "a word that is another");
    pthread_t waker;
    pthread_create(&waker, NULL, wake_by_call, NULL);
    long waited = futex(FUTEX_WAIT_PRIVATE, 0, NULL);
    pthread_join(waker, NULL);
    check(waited == 0 && shared->word == 1, "one who is woken");
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec = (until.tv_nsec + 20000000) % 1000000000;
    until.tv_sec += until.tv_nsec < 20000000;
    *soon = until;
    pressure(40);
    check(pthread_cond_timedwait(&shared->turn, &shared->mutex, soon) == ETIMEDOUT,
          "a condition with a time");
    check(pthread_mutex_unlock(&shared->mutex) == 0, "and the lock is given back");
    free(soon);
    free(shared);
    beside_addresses();
    return finish();
}
