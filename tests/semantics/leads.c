/*
 * Executes a program in each way that there is, with an environment of its own or none: leads WAY
 * PROGRAM. With `small` before it the process has done nothing else before; without, it has used
 * much memory, and the environment lies there.
 */
#define STAY_SMALL
#include "common.h"
#include <spawn.h>
#include <sys/syscall.h>
#include <wordexp.h>

extern char **environ;

static char *on_heap(const char *text)
{
    return strcpy(malloc(PAGE), text);
}

static int child_of(pid_t pid)
{
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int by_spawn(const char *way, char *program, char **arguments, char **variables)
{
    pid_t pid = 0;
    int failed = strcmp(way, "posix_spawn")
                     ? posix_spawnp(&pid, program, NULL, NULL, arguments, variables)
                     : posix_spawn(&pid, program, NULL, NULL, arguments, variables);
    return failed ? 97 : child_of(pid);
}

/* Those that take the environment as it is. */
static int cleared(const char *way, char *program, char **arguments)
{
    if (!strcmp(way, "kept"))
        execv(program, arguments);
    clearenv();
    if (!strcmp(way, "system"))
        return WEXITSTATUS(system(program));
    if (!strcmp(way, "popen")) {
        char line[4096];
        FILE *from = popen(program, "r");
        while (fgets(line, sizeof line, from))
            fputs(line, stdout);
        return WEXITSTATUS(pclose(from));
    }
    if (!strcmp(way, "wordexp")) {
        wordexp_t words;
        char text[4096];
        snprintf(text, sizeof text, "$(%s)", program);
        if (wordexp(text, &words, 0))
            return 96;
        for (size_t n = 0; n < words.we_wordc; n++)
            printf("%s\n", words.we_wordv[n]);
        return 0;
    }
    if (!strcmp(way, "vfork")) {
        pid_t pid = vfork();
        if (pid == 0) {
            execv(program, arguments);
            _exit(95);
        }
        return child_of(pid);
    }
    if (!strcmp(way, "execl"))
        execl(program, program, NULL);
    else if (!strcmp(way, "execlp"))
        execlp(program, program, NULL);
    else if (!strcmp(way, "execvp"))
        execvp(program, arguments);
    else
        execv(program, arguments);
    return 94;
}

int main(int count, char **words)
{
    int small = !strcmp(words[1], "small");
    char *way = words[1 + small], *program = words[2 + small];
    if (count != 3 + small)
        return 93;
    if (!small) {
        be_managed();
        for (int n = 0; n < 300; n++)
            memset(malloc(PAGE), n, PAGE);
    }
    char *arguments[] = {on_heap(program), NULL};
    char *variables[] = {on_heap("WORD=there"), on_heap("LD_PRELOAD="), on_heap("LAST=1"), NULL};
    int file = open(program, O_RDONLY | O_CLOEXEC);
    fflush(stdout);
    if (!strncmp(way, "posix_spawn", 11))
        return by_spawn(way, program, arguments, variables);
    if (!strcmp(way, "execve"))
        execve(program, arguments, variables);
    else if (!strcmp(way, "nothing"))
        execve(program, arguments, NULL);
    else if (!strcmp(way, "execvpe"))
        execvpe(program, arguments, variables);
    else if (!strcmp(way, "execle"))
        execle(program, program, NULL, variables);
    else if (!strcmp(way, "execveat"))
        execveat(AT_FDCWD, program, arguments, variables, 0);
    else if (!strcmp(way, "fexecve"))
        fexecve(file, arguments, variables);
    else if (!strcmp(way, "by number"))
        syscall(SYS_execve, program, arguments, variables);
    else if (!strcmp(way, "execveat by number"))
        syscall(SYS_execveat, file, "", arguments, variables, AT_EMPTY_PATH);
    else
        return cleared(way, program, arguments);
    return 92;
}
