/*
 * Many processes that come, work, fork, stop and are killed at any instruction. Each has pages of
 * known content and looks at them again and again. It is not one of the programs that are compared.
 *
 * usage: torture PROCESSES MIB SECONDS SEED, where MIB is what each has
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#define WRONG 7

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Fills, looks, has a child do the same with what it inherits, and rests now and then. */
__attribute__((noreturn)) static void work(pid_t parent, size_t pages, uint64_t seed, int depth)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    char *memory = map_pages(pages);
    fill(memory, pages, seed);
    for (uint64_t round = 0;; round++) {
        size_t from = mix(seed + round) % pages, count = pages - from;
        if (bad_pages(memory + from * PAGE, count, seed + from))
            _exit(WRONG);
        if (depth > 0 && round % 4 == 1) {
            pid_t self = getpid(), child = fork();
            if (child == 0) {
                if (bad_pages(memory, pages, seed))
                    _exit(WRONG);
                work(self, pages / 2, mix(seed), depth - 1);
            }
            int status = 0;
            usleep(mix(round) % 50000);
            if (child > 0) {
                kill(child, SIGKILL);
                waitpid(child, &status, 0);
            }
            if (WIFEXITED(status) && WEXITSTATUS(status) == WRONG)
                _exit(WRONG);
        }
        if (round % 16 == 15)
            usleep(mix(round + seed) % 300000);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage");
    pid_t self = getpid();
    int count = atoi(argv[1]), wrong = 0, odd = 0;
    size_t pages = strtoul(argv[2], NULL, 10) * (MIB / PAGE), killed = 0;
    double end = now() + atof(argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    pid_t *workers = calloc(count, sizeof *workers);
    for (uint64_t step = 0; now() < end; step++) {
        int at = mix(seed + step) % count;
        if (workers[at] > 0) {
            int status;
            switch (mix(seed - step) % 8) {
            case 0:
                kill(workers[at], SIGSTOP);
                continue;
            case 1:
            case 2:
                kill(workers[at], SIGCONT);
                continue;
            }
            kill(workers[at], SIGKILL);
            if (waitpid(workers[at], &status, 0) != workers[at])
                die("waitpid");
            wrong += WIFEXITED(status) && WEXITSTATUS(status) == WRONG;
            odd += !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            killed++;
        }
        workers[at] = fork();
        if (workers[at] == 0)
            work(self, pages / 2 + mix(step) % pages, mix(step), 2);
        if (workers[at] < 0)
            die("fork");
        usleep(mix(step) % 20000);
    }
    for (int i = 0; i < count; i++)
        if (workers[i] > 0) {
            kill(workers[i], SIGKILL);
            waitpid(workers[i], NULL, 0);
        }
    dprintf(2, "%zu killed\n", killed);
    printf("%d wrong, %d ended otherwise\n", wrong, odd);
    return wrong || odd;
}
