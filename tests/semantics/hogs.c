/*
 * Two children: one has memory and waits, the other wants as much. How they end is printed. It is
 * not one of the programs that are compared.
 *
 * usage: hogs MIB MIB OOM_SCORE_ADJ, the last of the second
 */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

static void use(size_t mib)
{
    size_t pages = mib * (MIB / PAGE);
    char *memory = map_pages(pages);
    for (size_t i = 0; i < pages * WORDS; i++)
        ((uint64_t *)memory)[i] = mix(i);
    for (size_t i = 0; i < pages * WORDS; i++)
        if (((uint64_t *)memory)[i] != mix(i))
            die("another word");
}

static const char *end(int status)
{
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGKILL ? "killed" : "another signal";
    return WEXITSTATUS(status) == 0 ? "whole" : "wrong";
}

int main(int argc, char **argv)
{
    int filled[2], status;
    char byte = 0;
    if (argc != 4 || pipe(filled))
        die("pipe");
    pid_t first = fork();
    if (first == 0) {
        use(strtoul(argv[1], NULL, 10));
        if (write(filled[1], &byte, 1) != 1)
            die("write");
        for (;;)
            pause();
    }
    if (read(filled[0], &byte, 1) != 1)
        die("read");
    pid_t second = fork();
    if (second == 0) {
        FILE *adjusted = fopen("/proc/self/oom_score_adj", "w");
        if (!adjusted || fputs(argv[3], adjusted) < 0 || fclose(adjusted))
            die("oom_score_adj");
        use(strtoul(argv[2], NULL, 10));
        _exit(0);
    }
    if (waitpid(second, &status, 0) != second)
        die("waitpid");
    printf("the second: %s\n", end(status));
    int ended = waitpid(first, &status, WNOHANG);
    printf("the first: %s\n", ended ? end(status) : "waits");
    if (!ended && (kill(first, SIGKILL) || waitpid(first, &status, 0) != first))
        die("kill");
    return 0;
}
