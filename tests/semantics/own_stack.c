/* Children that are forked by a thread whose stack is managed memory; that of the first is from
   before the process has grown. */
#define STAY_SMALL
#include "common.h"

/* Forks, and the children end: the first thread of each has this stack. */
static void *fork_from(void *argument)
{
    size_t bad = 0;
    for (int way = 0; way < 9; way++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            if (way < 2)
                pressure(40);
            else
                evict_all();
            if (way % 3 == 0)
                pthread_exit(argument);
            if (way % 3 == 1)
                _exit(0);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        bad += reap(pid) != 0;
    }
    return (void *)bad;
}

static void forks_on_own_stack(void)
{
    const size_t size = 128 * PAGE;
    char *stack = heap_pages(128);
    pthread_attr_t attributes;
    pthread_t thread;
    void *bad;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, size) != 0 ||
        pthread_create(&thread, &attributes, fork_from, NULL) != 0)
        die("a thread");
    pthread_join(thread, &bad);
    check(bad == NULL, "children of a thread with a stack of the program's own");
    free(stack);
}

int main(void)
{
    forks_on_own_stack();
    pressure(40);
    forks_on_own_stack();
    return finish();
}
