/*
 * A process with much memory that is not managed, and children that share it since they were
 * forked: it is one memory, and counts once. It is not one of the programs that are compared.
 *
 * usage: divided CHILDREN
 */
#include "common.h"

#define DATA (24 * MIB)
#define HEAP (8 * MIB)

static char *data;

/* As much on the heap, of whoever calls it. */
static void work(uint64_t seed)
{
    char *block = malloc(HEAP);
    for (int round = 0; round < 15; round++) {
        fill(block, HEAP / PAGE, seed);
        usleep(100000);
        if (bad_pages(block, HEAP / PAGE, seed) != 0)
            _exit(1);
    }
    free(block);
}

int main(int argc, char **argv)
{
    int children = argc == 2 ? atoi(argv[1]) : 0, status, right = 0;
    data = mmap(NULL, DATA, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (data == MAP_FAILED)
        die("mmap");
    fill(data, DATA / PAGE, 1);
    free(malloc(HEAP));
    for (int n = 0; n < children; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            work(100 + (uint64_t)n);
            _exit(bad_pages(data, DATA / PAGE, 1) == 0 ? 7 : 1);
        }
    }
    work(2);
    while (wait(&status) > 0)
        right += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    check(right == children, "all children have what they had");
    check(bad_pages(data, DATA / PAGE, 1) == 0, "and so has their parent");
    return failures != 0;
}
