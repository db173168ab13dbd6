/*
 * Reads memory of which some pages cannot be had any more: each access to one of them is SIGBUS,
 * for the thread that makes it alone, and all other pages are whole. It is not one of the programs
 * that are compared.
 *
 * usage: unreadable MIB [wait]
 *
 * Prints how many pages could not be read, and how many could be and were wrong. With "wait" it
 * says "begun" when all is written, and reads after SIGTERM.
 */
#include "common.h"

#define THREADS 4

static size_t pages;
static char *memory;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t reading;
static atomic_size_t unreadable[2], wrong, strange;

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)signal, (void)context;
    if (!reading)
        _exit(98);
    if (at < memory || at >= memory + pages * PAGE)
        strange++;
    siglongjmp(back, 1);
}

/* Each page by two threads, at about the same time. The stacks are not managed memory, and neither
   is this. */
static void *read_all(void *which)
{
    for (size_t i = (size_t)which / 2; i < pages; i += THREADS / 2) {
        if (sigsetjmp(back, 1)) {
            unreadable[(size_t)which % 2]++;
        } else {
            reading = 1;
            wrong += !page_is(memory + i * PAGE, i);
        }
        reading = 0;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    pthread_t threads[THREADS];
    pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 1) * (MIB / PAGE);
    if (sigaction(SIGBUS, &action, NULL) != 0)
        die("sigaction");
    memory = map_pages(pages);
    fill(memory, pages, 0);
    if (argc > 2)
        wait_for_term();
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, read_all, (void *)i) != 0)
            die("pthread_create");
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    strange += unreadable[0] != unreadable[1];
    printf("%zu unreadable, %zu wrong, %zu strange\n", (size_t)unreadable[0], (size_t)wrong,
           (size_t)strange);
    return 0;
}
