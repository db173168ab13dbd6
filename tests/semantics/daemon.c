/*
 * A process that becomes a daemon (two forks, a session of its own, no descriptors) and outlives
 * the program that was started, with evicted memory of its parent's. It leaves what it found in the
 * file `verdict`; the file `verdict-follows` tells the test to wait for that.
 */
#include "common.h"

#define PAGES ((size_t)10000)

static char *memory;
static int alive[2];

__attribute__((noreturn)) static void be_daemon(void)
{
    char byte, *text = NULL;
    size_t length = 0;
    /* If all else fails. */
    alarm(100);
    closefrom(alive[0] + 1);
    for (int fd = 0; fd < alive[0]; fd++)
        close(fd);
    /* Ends when the program, which holds the other end, has ended. */
    ssize_t n = read(alive[0], &byte, 1);
    FILE *out = open_memstream(&text, &length);
    fprintf(out, "program gone: %s\n", n == 0 ? "yes" : "no");
    fprintf(out, "bad pages of the program's: %zu\n", bad_pages(memory, PAGES, 1));
    fill(memory, PAGES, 500000);
    pressure(40);
    fprintf(out, "bad pages of its own: %zu\n", bad_pages(memory, PAGES, 500000));
    char *more = heap_pages(PAGES);
    fill(more, PAGES, 900000);
    fprintf(out, "bad pages made later: %zu %zu\n", bad_pages(memory, PAGES, 500000),
            bad_pages(more, PAGES, 900000));
    pid_t pid = fork();
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 500000) + bad_pages(more, PAGES, 900000) ? 1 : 4);
    fprintf(out, "its child: %d\n", reap(pid));
    fclose(out);
    int file = open("verdict.new", O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file >= 0 && write(file, text, length) == (ssize_t)length && close(file) == 0)
        rename("verdict.new", "verdict");
    _exit(0);
}

int main(void)
{
    memory = map_pages(PAGES);
    fill(memory, PAGES, 1);
    pressure(40);
    /* On low numbers, whatever else was inherited. */
    closefrom(3);
    if (pipe(alive) != 0)
        die("pipe");
    pid_t pid = fork_flushed();
    if (pid == 0) {
        setsid();
        if (fork() == 0)
            be_daemon();
        _exit(6);
    }
    check(reap(pid) == 6, "the process between ends");
    check(bad_pages(memory, PAGES, 1) == 0, "the program's memory while the daemon has it too");
    int file = open("verdict-follows", O_WRONLY | O_CREAT, 0600);
    check(file >= 0, "a daemon goes on");
    return finish();
}
