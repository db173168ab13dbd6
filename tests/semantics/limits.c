/*
 * A limit of data (RLIMIT_DATA): the program goes on to get memory within it, also in its threads,
 * its children, and what it executes.
 */
#include "limited.h"

static struct rlimit limit_now(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0)
        die("getrlimit");
    return limit;
}

/* Of what is mapped at once. */
#define MAPPED (32 * MIB)

static void *thread(void *unused)
{
    (void)unused;
    return has_memory(MAPPED) ? "yes" : NULL;
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
        _exit(has_memory(MAPPED) ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int count, char **arguments)
{
    if (count > 1)
        return has_memory(MAPPED) && is_told(RLIMIT_DATA, strtoul(arguments[1], NULL, 10)) ? 0 : 1;

    struct rlimit limit = limit_now(), found;
    rlim_t hard = limit.rlim_max;
    limit.rlim_cur = 400 * MIB;
    check(setrlimit(RLIMIT_DATA, &limit) == 0, "a limit is set");
    found = limit_now();
    check(found.rlim_cur == 400 * MIB && found.rlim_max == hard, "and read back");
    check(has_memory(MAPPED), "there is memory within it");
    check(thread_says_yes(thread), "also in a thread");
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
    check(has_memory(MAPPED) && child_ends_well(0) && child_ends_well(1), "there is memory");
    limit.rlim_cur = 600 * MIB;
    errno = 0;
    check(setrlimit(RLIMIT_DATA, &limit) == -1 && errno == EINVAL, "a soft one above it is wrong");

    limit.rlim_cur = limit.rlim_max = 400 * MIB;
    check(syscall(SYS_setrlimit, RLIMIT_DATA, &limit) == 0 && is_told(RLIMIT_DATA, 400 * MIB),
          "one by number");
    check(has_memory(MAPPED) && child_ends_well(0) && child_ends_well(1), "there is memory");
    return finish();
}
