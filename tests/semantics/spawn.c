/* New programs from a process whose memory is evicted: each way to start one, and each way for it
   to end. */
#include "common.h"
#include <dlfcn.h>
#include <spawn.h>

#define PAGES ((size_t)8192)
#define ARGUMENTS 150
#define ARGUMENT_BYTES 5000

extern char **environ;
static char *own;

/* What main() does as a started program: `own heavy`, `own sum ARGUMENTS...` or `own end HOW`. */
static int started(int argc, char **argv)
{
    if (strcmp(argv[1], "heavy") == 0) {
        char *p = map_pages(PAGES);
        fill(p, PAGES, 7);
        pressure(40);
        return bad_pages(p, PAGES, 7) ? 1 : 42;
    }
    if (strcmp(argv[1], "sum") == 0) {
        uint64_t sum = 0;
        for (int i = 2; i < argc; i++)
            sum = checksum(argv[i], strlen(argv[i]), sum);
        const char *seen = getenv("SEMANTICS");
        printf("     started with %d arguments, %016llx, SEMANTICS=%s\n", argc,
               (unsigned long long)sum, seen ? seen : "(unset)");
        fflush(stdout);
        return 3;
    }
    switch (argv[2][0]) {
    case 'e': return 7;
    case 'a': abort();
    case 'k': kill(getpid(), SIGKILL); break;
    case 's': *(volatile char *)8 = 1; break;
    case 't': raise(SIGTERM); break;
    }
    return 99;
}

static pid_t by_fork(char **argv)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        execv(own, argv);
        _exit(98);
    }
    return pid;
}

static pid_t by_vfork(char **argv)
{
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        execv(own, argv);
        _exit(98);
    }
    return pid;
}

static pid_t by_spawn(char **argv)
{
    pid_t pid = -1;
    fflush(stdout);
    if ((errno = posix_spawn(&pid, own, NULL, NULL, argv, environ)) != 0)
        die("posix_spawn");
    return pid;
}

static pid_t by_spawnp(char **argv)
{
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    fflush(stdout);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, 9, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attributes, &none);
    if ((errno = posix_spawnp(&pid, own, &actions, &attributes, argv, environ)) != 0)
        die("posix_spawnp");
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return pid;
}

/* glibc has it from 2.39 on. */
static pid_t by_descriptor(char **argv)
{
    int (*spawn)(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                 char *const *, char *const *);
    int descriptor = -1, pid = -1;
    char line[100];
    *(void **)&spawn = dlsym(RTLD_DEFAULT, "pidfd_spawn");
    fflush(stdout);
    errno = spawn ? spawn(&descriptor, own, NULL, NULL, argv, environ) : ENOSYS;
    if (errno == ENOSYS)
        return by_spawn(argv);
    if (errno != 0)
        die("pidfd_spawn");
    snprintf(line, sizeof line, "/proc/self/fdinfo/%d", descriptor);
    FILE *about = fopen(line, "r");
    while (about && fgets(line, sizeof line, about))
        sscanf(line, "Pid: %d", &pid);
    fclose(about);
    close(descriptor);
    return pid;
}

static const struct way {
    const char *name;
    pid_t (*start)(char **argv);
} ways[] = {{"fork and exec", by_fork},
            {"vfork and exec", by_vfork},
            {"posix_spawn", by_spawn},
            {"posix_spawnp", by_spawnp},
            {"pidfd_spawn", by_descriptor}};
#define WAYS (sizeof ways / sizeof *ways)

static void endings(void)
{
    static const struct {
        const char *how;
        int status;
    } ends[] = {{"exit", 7},
                {"abort", 128 + SIGABRT},
                {"kill", 128 + SIGKILL},
                {"segv", 128 + SIGSEGV},
                {"term", 128 + SIGTERM}};
    for (size_t w = 0; w < WAYS; w++)
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            char *argv[] = {own, (char *)"end", (char *)ends[i].how, NULL};
            int status = reap(ways[w].start(argv));
            check(status == ends[i].status, "%s, %s: status %d", ways[w].name, ends[i].how, status);
        }
    /* The same ends without an exec between. */
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            char *argv[] = {own, (char *)"end", (char *)ends[i].how, NULL};
            _exit(started(3, argv));
        }
        int status = reap(pid);
        check(status == ends[i].status, "fork, %s: status %d", ends[i].how, status);
    }
}

/* The vector and what it points to lie in the heap, and are evicted when the kernel reads them. */
static void large_arguments(void)
{
    for (size_t w = 0; w < WAYS; w++) {
        char **argv = malloc((ARGUMENTS + 3) * sizeof *argv);
        argv[0] = own;
        argv[1] = strdup("sum");
        for (int i = 0; i < ARGUMENTS; i++) {
            argv[2 + i] = malloc(ARGUMENT_BYTES);
            for (int b = 0; b < ARGUMENT_BYTES - 1; b++)
                argv[2 + i][b] = (char)('a' + mix((uint64_t)(i * ARGUMENT_BYTES + b)) % 26);
            argv[2 + i][ARGUMENT_BYTES - 1] = 0;
        }
        argv[2 + ARGUMENTS] = NULL;
        pressure(40);
        int status = reap(ways[w].start(argv));
        check(status == 3, "%s with arguments from evicted memory: status %d", ways[w].name,
              status);
        for (int i = 1; i < 2 + ARGUMENTS; i++)
            free(argv[i]);
        free(argv);
    }
}

static void heavy(void)
{
    char *argv[] = {own, (char *)"heavy", NULL};
    for (size_t w = 0; w < WAYS; w++)
        check(reap(ways[w].start(argv)) == 42, "%s of a program that has a budget to itself",
              ways[w].name);
    pid_t both[2] = {by_fork(argv), by_spawn(argv)};
    int first = reap(both[0]), second = reap(both[1]);
    check(first == 42 && second == 42, "two of them at the same time");
    argv[1] = (char *)"end";
    pid_t pid = fork_flushed();
    if (pid == 0) {
        execv("/no/such/program", argv);
        int error = errno;
        _exit(error == ENOENT && bad_pages(own + PAGE, 16, 900) == 0 ? 0 : 1);
    }
    check(reap(pid) == 0, "exec of a program that there is not: ENOENT, and the process goes on");
}

static void shells(void)
{
    char line[100] = "";
    fflush(stdout);
    check(system("exit 7") == 7 << 8, "system: exit status");
    check(system("kill -KILL $$") == SIGKILL, "system: signal");
    check(system(NULL) != 0, "system: there is a shell");
    FILE *out = popen("echo from a shell; exit 5", "r");
    check(out && fgets(line, sizeof line, out) && strcmp(line, "from a shell\n") == 0,
          "popen for reading");
    check(pclose(out) == 5 << 8, "pclose: exit status");
    FILE *in = popen("cksum >popen.sum", "w");
    char *data = heap_pages(1024);
    fill(data, 1024, 70);
    pressure(40);
    check(in && fwrite(data, PAGE, 1024, in) == 1024 && pclose(in) == 0, "popen for writing");
    free(data);
    FILE *sum = fopen("popen.sum", "r");
    check(sum && fgets(line, sizeof line, sum), "what the shell got: %s", strtok(line, "\n"));
    fclose(sum);
    unlink("popen.sum");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return started(argc, argv);
    setenv("SEMANTICS", "from the parent", 1);
    char *p = map_pages(PAGES);
    fill(p, PAGES, 1);
    own = heap_pages(17);
    fill(own + PAGE, 16, 900);
    ssize_t length = readlink("/proc/self/exe", own, PAGE - 1);
    if (length <= 0)
        die("readlink");
    own[length] = 0;
    pressure(40);
    endings();
    large_arguments();
    heavy();
    shells();
    check(bad_pages(p, PAGES, 1) == 0, "the memory of the process that started them all");
    return finish();
}
