/*
 * Programs executed with arguments on the heap, whose pages are out: by each function, in a child
 * of vfork too, and in one that asks to be traced, whose parent waits for the program and nothing
 * else.
 */
#include "common.h"
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;
static char **arguments, **variables;
static char *path, *name;
/* The pages that all of this lies in. */
static char *pages[16];
static int pages_count;

static char *on_heap(const char *text)
{
    char *page = heap_pages(1);
    strcpy(page, text);
    pages[pages_count++] = page;
    return page;
}

static void prepare(void)
{
    arguments = (char **)on_heap("");
    arguments[0] = on_heap("sh");
    arguments[1] = on_heap("-c");
    arguments[2] = on_heap("test \"$WORD\" = there && exit 5");
    arguments[3] = NULL;
    variables = (char **)on_heap("");
    variables[0] = on_heap("WORD=there");
    variables[1] = on_heap("PATH=/nowhere:/bin:/usr/bin");
    variables[2] = NULL;
    path = on_heap("/bin/sh");
    name = on_heap("sh");
}

enum how { EXECVE, EXECV, EXECVP, EXECVPE, EXECL, EXECLP, EXECLE, FEXECVE, BY_NUMBER, WAYS };
static const char *const names[] = {"execve", "execv",  "execvp",  "execvpe",  "execl",
                                    "execlp", "execle", "fexecve", "by number"};

static int file;

__attribute__((noinline)) static void run(enum how how)
{
    switch (how) {
    case EXECVE: execve(path, arguments, variables); break;
    case EXECV: execv(path, arguments); break;
    case EXECVP: execvp(name, arguments); break;
    case EXECVPE: execvpe(name, arguments, variables); break;
    case EXECL: execl(path, arguments[0], arguments[1], arguments[2], (char *)NULL); break;
    case EXECLP: execlp(name, arguments[0], arguments[1], arguments[2], (char *)NULL); break;
    case EXECLE:
        execle(path, arguments[0], arguments[1], arguments[2], (char *)NULL, variables);
        break;
    case FEXECVE: fexecve(file, arguments, variables); break;
    default: syscall(SYS_execve, path, arguments, variables);
    }
}

static void each(int shared, int traced)
{
    for (enum how how = 0; how < WAYS; how++) {
        for (int i = 0; i < pages_count; i++)
            push_out(pages[i], PAGE);
        fflush(stdout);
        pid_t pid = shared ? vfork() : fork();
        if (pid == 0) {
            if (traced)
                ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            run(how);
            _exit(99);
        }
        int status = 0, right = 1;
        if (traced) {
            right = waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) &&
                    WSTOPSIG(status) == SIGTRAP;
            ptrace(PTRACE_DETACH, pid, NULL, NULL);
        }
        int left = reap(pid);
        check(right && left == 5, "%s, %s%s: %d", names[how], shared ? "vfork" : "fork",
              traced ? ", traced" : "", left);
    }
}

static void failures_too(void)
{
    char *script = on_heap("./script"), *missing = on_heap("no-such-program");
    FILE *out = fopen("script", "w");
    fputs("exit 6\n", out);
    fclose(out);
    chmod("script", 0755);
    pressure(40);
    errno = 0;
    check(execvp(missing, arguments) == -1 && errno == ENOENT, "what is nowhere: %s",
          strerror(errno));
    pressure(40);
    check(execve(script, arguments, variables) == -1 && errno == ENOEXEC, "what is no program: %s",
          strerror(errno));
    char *forbidden = (char *)mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(execve(forbidden, arguments, variables) == -1 && errno == EFAULT,
          "a path that cannot be read: %s", strerror(errno));
    char *bad[] = {arguments[0], forbidden, NULL};
    check(execv(path, bad) == -1 && errno == EFAULT, "an argument that cannot be read: %s",
          strerror(errno));
    pid_t pid = fork_flushed();
    if (pid == 0) {
        execvp(script, arguments);
        _exit(99);
    }
    check(reap(pid) == 6, "a script without a first line");
    check(strcmp(getenv("WORD"), "there") == 0, "the environment is what it was");
    unlink("script");
}

int main(void)
{
    setenv("WORD", "there", 1);
    file = open("/bin/sh", O_RDONLY);
    prepare();
    /* The environment of those that take the program's own. */
    environ = variables;
    each(0, 0);
    each(1, 0);
    each(1, 1);
    failures_too();
    return finish();
}
