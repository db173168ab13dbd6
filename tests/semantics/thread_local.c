/* A program with much thread-local memory: it lies on the stack of every thread, those of the
   engine included. */
#include "common.h"

#define PAGES ((size_t)2048)

static __thread char own[PAGES * 4096] __attribute__((aligned(4096)));

static void *in_thread(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    size_t zero = nonzero(own, sizeof own) == 0;
    fill(own, PAGES, seed);
    pressure(32);
    return (void *)(uintptr_t)(zero && bad_pages(own, PAGES, seed) == 0);
}

int main(void)
{
    pthread_t threads[2];
    fill(own, PAGES, 1);
    for (uintptr_t i = 0; i < 2; i++)
        if ((errno = pthread_create(&threads[i], NULL, in_thread, (void *)(i * 10000 + 10000))) !=
            0)
            die("pthread_create");
    for (int i = 0; i < 2; i++) {
        void *right;
        pthread_join(threads[i], &right);
        check(right != NULL, "a thread has its own, zeros at first");
    }
    pid_t pid = fork_flushed();
    if (pid == 0) {
        pressure(32);
        _exit(bad_pages(own, PAGES, 1) != 0);
    }
    check(reap(pid) == 0, "a child has what its parent has");
    check(bad_pages(own, PAGES, 1) == 0, "the first thread keeps its own");
    return finish();
}
