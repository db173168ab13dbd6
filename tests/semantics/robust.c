/*
 * Robust mutexes in pages that are out when their owner ends: as a thread, and in a child.
 */
#include "common.h"

static pthread_mutex_t *mutexes[3];

static void *owner(void *unused)
{
    for (int i = 0; i < 3; i++)
        pthread_mutex_lock(mutexes[i]);
    pressure(40);
    return unused;
}

static void owner_ends(const char *where)
{
    pthread_t thread;
    pthread_create(&thread, NULL, owner, NULL);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        int result = pthread_mutex_trylock(mutexes[i]);
        check(result == EOWNERDEAD, "%s the owner of mutex %d has died: %s", where, i,
              strerror(result));
        pthread_mutex_consistent(mutexes[i]);
        check(pthread_mutex_unlock(mutexes[i]) == 0, "it can be used");
    }
}

int main(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            mutexes[i] = (pthread_mutex_t *)heap_pages(1);
            pthread_mutex_init(mutexes[i], &attributes);
        }
        owner_ends("here");
        pid_t pid = fork_flushed();
        if (pid == 0) {
            owner_ends("in a child");
            _exit(finish());
        }
        check(reap(pid) == 0, "a child that has copies of them");
        for (int i = 0; i < 3; i++) {
            check(pthread_mutex_destroy(mutexes[i]) == 0, "it is no more");
            free(mutexes[i]);
        }
    }
    return finish();
}
