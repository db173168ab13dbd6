/*
 * Prints where large mappings lie: of this process, of a child of a fork, and of what that
 * executes. For tests; it is not one of the programs that are compared.
 */
#include "common.h"

static void tell(void)
{
    char *memory = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%p\n", (void *)memory);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    tell();
    if (argc > 1)
        return 0;
    if (fork() == 0) {
        tell();
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        return 1;
    }
    int status;
    wait(&status);
    return WEXITSTATUS(status);
}
