/*
 * A limit of address space (RLIMIT_AS): the program goes on to get memory within it, and no more,
 * also in its threads, its children, and what it executes.
 */
#include "limited.h"

static const int PROT = PROT_READ | PROT_WRITE;
static const int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/* Of what is mapped at once where there is room: what was given back counts no more. */
#define MAPPED (1200 * MIB)

static int fails(void *mapping)
{
    return mapping == MAP_FAILED && errno == ENOMEM;
}

/* Under a limit of 2 GiB. Volatile, as compilers know that blocks nobody uses need not be made. */
static int is_limited(void)
{
    void *volatile block = malloc(3072 * MIB);
    if (block || errno != ENOMEM || sbrk(3072 * MIB) != (void *)-1)
        return 0;
    if (!fails(mmap(NULL, 3072 * MIB, PROT, FLAGS, -1, 0)))
        return 0;
    if (!fails(mmap(NULL, 3072 * MIB, PROT_NONE, FLAGS, -1, 0)))
        return 0;
    /* Nor in parts. */
    char *part = mmap(NULL, 1024 * MIB, PROT, FLAGS, -1, 0);
    if (part == MAP_FAILED || !fails(mmap(NULL, 1536 * MIB, PROT, FLAGS, -1, 0)))
        return 0;
    memset(part, 5, 32 * MIB);
    if (!fails(mremap(part, 1024 * MIB, 2560 * MIB, MREMAP_MAYMOVE)))
        return 0;
    return part[31 * MIB] == 5 && munmap(part, 1024 * MIB) == 0;
}

static int is_well(void)
{
    return is_told(RLIMIT_AS, 2048 * MIB) && is_limited() && has_memory(MAPPED) && is_limited();
}

static void *thread(void *unused)
{
    (void)unused;
    return is_well() ? "yes" : NULL;
}

static int child_ends_well(int execute)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (execute)
            execl("/proc/self/exe", "address_limit", "again", NULL);
        _exit(is_well() ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int count, char **arguments)
{
    struct rlimit limit, found;
    (void)arguments;
    if (count > 1)
        return is_well() && child_ends_well(0) ? 0 : 1;

    check(getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY, "no limit yet");
    void *volatile before = malloc(3072 * MIB);
    check(before != NULL && has_memory(MAPPED), "there is as much as there are addresses");
    free(before);
    limit.rlim_cur = 2048 * MIB;
    check(setrlimit(RLIMIT_AS, &limit) == 0 && is_told(RLIMIT_AS, 2048 * MIB), "a limit is set");
    check(is_limited(), "there is no more than it");
    check(has_memory(MAPPED), "and as much");
    check(thread_says_yes(thread), "also in a thread");
    check(child_ends_well(0), "in a child");
    check(child_ends_well(1), "and in what it executes");

    limit.rlim_cur = 4096 * MIB;
    limit.rlim_max = 4096 * MIB;
    check(prlimit(getpid(), RLIMIT_AS, &limit, &found) == 0 && found.rlim_cur == 2048 * MIB
              && found.rlim_max == RLIM_INFINITY && is_told(RLIMIT_AS, 4096 * MIB),
          "another, with the hard one");
    before = malloc(3072 * MIB);
    check(before != NULL, "then there is more");
    free(before);
    limit.rlim_cur = 2048 * MIB;
    check(syscall(SYS_setrlimit, RLIMIT_AS, &limit) == 0 && is_told(RLIMIT_AS, 2048 * MIB),
          "by number");
    check(is_limited() && has_memory(MAPPED) && child_ends_well(1), "it is one as well");
    return finish();
}
