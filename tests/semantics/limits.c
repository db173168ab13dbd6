/*
 * A limit of data (RLIMIT_DATA): the program goes on to get memory within it, also in its threads,
 * its children, and what it executes.
 */
#include "common.h"
#include <sys/syscall.h>

static struct rlimit limit_now(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0)
        die("getrlimit");
    return limit;
}

/* What is told by a function and by number. */
static int is_told(rlim_t now)
{
    struct rlimit limit = limit_now(), by_number;
    return syscall(SYS_prlimit64, 0, RLIMIT_DATA, NULL, &by_number) == 0
           && limit.rlim_cur == now && by_number.rlim_cur == now
           && limit.rlim_max == by_number.rlim_max;
}

/* Blocks, mappings and what brk gives. */
static int has_memory(void)
{
    char *block = malloc(32 * MIB), *small = malloc(100);
    char *mapping = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                         0);
    char *end = sbrk(PAGE);
    if (!block || !small || mapping == MAP_FAILED || end == (char *)-1)
        return 0;
    memset(block, 1, 32 * MIB);
    memset(mapping, 2, 32 * MIB);
    small[0] = end[0] = 3;
    int right = block[MIB] == 1 && mapping[MIB] == 2 && small[0] == end[0];
    free(block);
    free(small);
    munmap(mapping, 32 * MIB);
    return right;
}

static void *thread(void *unused)
{
    (void)unused;
    return has_memory() ? "yes" : NULL;
}

static int child_ends_well(int execute)
{
    int status;
    char told[32];
    sprintf(told, "%lu", (unsigned long)limit_now().rlim_cur);
    pid_t pid = fork();
    if (pid == 0) {
        if (execute)
            execl("/proc/self/exe", "limits", told, NULL);
        _exit(has_memory() ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int count, char **arguments)
{
    if (count > 1)
        return has_memory() && is_told(strtoul(arguments[1], NULL, 10)) ? 0 : 1;

    struct rlimit limit = limit_now(), found;
    rlim_t hard = limit.rlim_max;
    limit.rlim_cur = 400 * MIB;
    check(setrlimit(RLIMIT_DATA, &limit) == 0, "a limit is set");
    found = limit_now();
    check(found.rlim_cur == 400 * MIB && found.rlim_max == hard, "and read back");
    check(has_memory(), "there is memory within it");
    void *of_thread = NULL;
    pthread_t id;
    check(pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, &of_thread) == 0
              && of_thread,
          "also in a thread");
    check(child_ends_well(0), "in a child");
    check(child_ends_well(1), "and in what it executes");
    check(mmap(NULL, 64 * 1024 * MIB, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED
              && errno == ENOMEM,
          "what exceeds it by far there is not");

    limit.rlim_cur = 300 * MIB;
    limit.rlim_max = 500 * MIB;
    check(prlimit(getpid(), RLIMIT_DATA, &limit, &found) == 0 && found.rlim_cur == 400 * MIB
              && found.rlim_max == hard,
          "another, with the hard one: the one before is told");
    check(prlimit(0, RLIMIT_DATA, NULL, &found) == 0 && found.rlim_cur == 300 * MIB
              && found.rlim_max == 500 * MIB,
          "and this one");
    check(has_memory() && child_ends_well(0) && child_ends_well(1), "there is memory");
    limit.rlim_cur = 600 * MIB;
    errno = 0;
    check(setrlimit(RLIMIT_DATA, &limit) == -1 && errno == EINVAL, "a soft one above it is wrong");

    limit.rlim_cur = limit.rlim_max = 400 * MIB;
    check(syscall(SYS_setrlimit, RLIMIT_DATA, &limit) == 0 && is_told(400 * MIB), "one by number");
    check(has_memory() && child_ends_well(0) && child_ends_well(1), "there is memory");
    return finish();
}
