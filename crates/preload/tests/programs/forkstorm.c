// Threads allocate without pause while others fork: every child allocates, frees, opens streams and
// exits 0.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop;

static void churn(unsigned seed, int rounds) {
    char *blocks[64] = {0};
    for (int i = 0; i < rounds; i++) {
        seed = seed * 1103515245 + 12345;
        int at = seed >> 8 & 63;
        size_t size = 1 + (seed >> 16) % (i % 50 == 0 ? 300000 : 2000);
        free(blocks[at]);
        blocks[at] = malloc(size);
        if (!blocks[at]) abort();
        memset(blocks[at], at, size);
    }
    for (int i = 0; i < 64; i++) {
        if (blocks[i] && blocks[i][0] != i) abort();
        free(blocks[i]);
    }
}

static void *allocator(void *arg) {
    unsigned seed = (unsigned)(size_t)arg;
    while (!stop) churn(seed++, 500);
    return NULL;
}

static void *short_lived(void *arg) {
    churn((unsigned)(size_t)arg, 50);
    return NULL;
}

static void *spawner(void *arg) {
    while (!stop) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, short_lived, arg)) abort();
        pthread_join(thread, NULL);
    }
    return NULL;
}

static void *stream_user(void *arg) {
    (void)arg;
    while (!stop) {
        FILE *file = fopen("/dev/null", "w");
        if (!file) abort();
        fprintf(file, "x");
        fflush(NULL);
        fclose(file);
    }
    return NULL;
}

static void *forker(void *arg) {
    for (size_t i = 0; i < (size_t)arg; i++) {
        pid_t pid = i % 4 == 3 ? _Fork() : fork();
        if (pid < 0) abort();
        if (pid == 0) {
            if (i % 4 != 3) {
                FILE *file = fopen("/dev/null", "w");
                fprintf(file, "%p", (void *)file);
                fclose(file);
            }
            churn(i, 300);
            _exit(0);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status) {
            fprintf(stderr, "child status %x\n", status);
            _exit(1);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    size_t forks = argc > 1 ? strtoul(argv[1], 0, 0) : 100;
    pthread_t threads[7];
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, allocator, (void *)i);
    pthread_create(&threads[3], NULL, spawner, (void *)9);
    pthread_create(&threads[4], NULL, stream_user, NULL);
    pthread_create(&threads[5], NULL, forker, (void *)forks);
    pthread_create(&threads[6], NULL, forker, (void *)forks);
    pthread_join(threads[5], NULL);
    pthread_join(threads[6], NULL);
    stop = 1;
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
