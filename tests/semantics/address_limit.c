/*
 * A limit of address space (RLIMIT_AS): the program goes on to get memory within it, and no more,
 * also in its threads, its children, and what it executes.
 */
#include "common.h"
#include <sys/syscall.h>

static const int PROT = PROT_READ | PROT_WRITE;
static const int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/* What is told by a function and by number. */
static int is_told(rlim_t now)
{
    struct rlimit limit, by_number;
    return getrlimit(RLIMIT_AS, &limit) == 0
           && syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &by_number) == 0
           && limit.rlim_cur == now && by_number.rlim_cur == now
           && limit.rlim_max == by_number.rlim_max;
}

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

/* Blocks, mappings and what brk gives; what was given back counts no more. */
static int has_memory(void)
{
    char *block = malloc(200 * MIB), *small = malloc(100);
    char *mapping = mmap(NULL, 1200 * MIB, PROT, FLAGS, -1, 0);
    char *end = sbrk(PAGE);
    if (!block || !small || mapping == MAP_FAILED || end == (char *)-1)
        return 0;
    memset(block, 1, 32 * MIB);
    memset(mapping, 2, 32 * MIB);
    small[0] = end[0] = 3;
    int right = block[MIB] == 1 && mapping[MIB] == 2 && small[0] == end[0];
    free(block);
    free(small);
    munmap(mapping, 1200 * MIB);
    return right;
}

static int is_well(void)
{
    return is_told(2048 * MIB) && is_limited() && has_memory() && is_limited();
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
    check(before != NULL && has_memory(), "there is as much as there are addresses");
    free(before);
    limit.rlim_cur = 2048 * MIB;
    check(setrlimit(RLIMIT_AS, &limit) == 0 && is_told(2048 * MIB), "a limit is set");
    check(is_limited(), "there is no more than it");
    check(has_memory(), "and as much");
    void *of_thread = NULL;
    pthread_t id;
    check(pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, &of_thread) == 0
              && of_thread,
          "also in a thread");
    check(child_ends_well(0), "in a child");
    check(child_ends_well(1), "and in what it executes");

    limit.rlim_cur = 4096 * MIB;
    limit.rlim_max = 4096 * MIB;
    check(prlimit(getpid(), RLIMIT_AS, &limit, &found) == 0 && found.rlim_cur == 2048 * MIB
              && found.rlim_max == RLIM_INFINITY && is_told(4096 * MIB),
          "another, with the hard one");
    before = malloc(3072 * MIB);
    check(before != NULL, "then there is more");
    free(before);
    limit.rlim_cur = 2048 * MIB;
    check(syscall(SYS_setrlimit, RLIMIT_AS, &limit) == 0 && is_told(2048 * MIB), "by number");
    check(is_limited() && has_memory() && child_ends_well(1), "it is one as well");
    return finish();
}
