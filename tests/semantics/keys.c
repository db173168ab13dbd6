/* Protection keys: only threads that have the right to a key get at the memory that has it, and new
   memory at the same place has none. */
#include "common.h"

#define PAGES ((size_t)2048)

static void calls(char *memory)
{
    int pipes[2];
    if (pipe(pipes) != 0)
        die("pipe");
    check(write(pipes[1], memory, 4 * PAGE) == 4 * 4096, "it is written");
    check(read(pipes[0], memory + 8 * PAGE, 4 * PAGE) == 4 * 4096, "and read");
    check(bad_pages(memory + 8 * PAGE, 4, 1) == 0, "as it was");
    fill(memory + 8 * PAGE, 4, 9);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void)
{
    int key = pkey_alloc(0, 0);
    if (key < 0) {
        printf("SKIP: there are no protection keys here (%s)\n", strerror(errno));
        return 0;
    }
    char *others = map_pages(PAGES), *memory = map_pages(PAGES);
    fill(others, PAGES, 5000);
    fill(memory, PAGES, 1);
    pressure(40);
    check(pkey_mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE, key) == 0, "a key");
    check(bad_pages(memory, PAGES, 1) == 0, "memory with it");
    calls(memory);
    pkey_set(key, PKEY_DISABLE_ACCESS);
    pressure(40);
    check(fault_of(memory, 0) == SIGSEGV, "without the right to it");
    pressure(40);
    pkey_set(key, 0);
    check(bad_pages(memory, PAGES, 1) == 0, "with the right again");
    check(bad_pages(others, PAGES, 5000) == 0, "memory beside it");
    pkey_set(key, PKEY_DISABLE_ACCESS);
    munmap(memory, PAGES * PAGE);
    char *next = map_pages(PAGES);
    check(fault_of(next, 1) == 0, "new memory has no key");
    fill(next, PAGES, 1);
    pressure(40);
    check(bad_pages(next, PAGES, 1) == 0, "it is as any other");
    return finish();
}
