/* SIGBUS and SIGSYS that are sent interrupt calls as the program has asked for it (SA_RESTART). */
#include "common.h"

enum { MEMORY_PAGES = 64 };
static char *memory;
static volatile sig_atomic_t hits;
static int ends[2];
static pthread_t reader;
static _Atomic int begun;

static void count(int number)
{
    (void)number;
    hits++;
}

static void *read_one(void *error)
{
    char byte;
    begun = 1;
    ssize_t got = read(ends[0], &byte, 1);
    *(int *)error = got == 1 ? 0 : errno;
    return NULL;
}

/* The error of a read that such a signal has come to; 0 if it went on. */
static int interrupted(int number)
{
    int error = -1;
    begun = hits = 0;
    if (pthread_create(&reader, NULL, read_one, &error))
        die("pthread_create");
    while (!begun)
        usleep(1000);
    usleep(100000);
    pthread_kill(reader, number);
    usleep(100000);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    pthread_join(reader, NULL);
    /* What was not read. */
    char byte;
    if (error == EINTR && read(ends[0], &byte, 1) != 1)
        die("read");
    return error;
}

static void restarted(int number, const char *name)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, NULL);
    check(interrupted(number) == 0 && hits == 1, "%s, with SA_RESTART: the read goes on", name);
    action.sa_flags = 0;
    sigaction(number, &action, NULL);
    check(interrupted(number) == EINTR && hits == 1, "%s, without: EINTR", name);
    signal(number, count);
    check(interrupted(number) == 0 && hits == 1, "%s, by signal(): it goes on", name);
    siginterrupt(number, 1);
    check(interrupted(number) == EINTR && hits == 1, "%s, after siginterrupt(): EINTR", name);
    signal(number, SIG_IGN);
    check(interrupted(number) == 0 && hits == 0, "%s, ignored: it goes on", name);
    signal(number, SIG_DFL);
}

int main(void)
{
    be_managed();
    memory = map_pages(MEMORY_PAGES);
    fill(memory, MEMORY_PAGES, 1);
    push_out(memory, MEMORY_PAGES * PAGE);
    if (pipe(ends))
        die("pipe");
    restarted(SIGUSR1, "SIGUSR1");
    restarted(SIGBUS, "SIGBUS");
    restarted(SIGSYS, "SIGSYS");
    check(bad_pages(memory, MEMORY_PAGES, 1) == 0, "all pages are there");
    return finish();
}
