/* A hole that a program makes among its mappings stays one, also in its children: nobody else puts
   anything there. */
#include "common.h"
#include <setjmp.h>

static sigjmp_buf back;

static void on_fault(int signal)
{
    siglongjmp(back, signal);
}

static int is_hole(const char *at)
{
    if (sigsetjmp(back, 1) != 0)
        return 1;
    (void)*(volatile const char *)at;
    return 0;
}

#define HOLES 200

int main(void)
{
    size_t pages = 24 * MIB / PAGE;
    char *memory = map_pages(pages), *holes[HOLES];
    fill(memory, pages, 9);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    int fd = open("/proc/self/exe", O_RDONLY);
    /* Of many sizes, so that whatever is put anywhere finds one that fits. */
    size_t sizes[HOLES];
    pressure(32);
    for (int i = 0; i < HOLES; i++) {
        sizes[i] = PAGE * (size_t)(1 + i % 40) + (i % 50 == 0 ? 80 * MIB : 0);
        holes[i] = (char *)mmap(NULL, sizes[i] + PAGE, PROT_READ, MAP_PRIVATE, fd, 0) + PAGE;
    }
    for (int i = 0; i < HOLES; i++)
        munmap(holes[i], sizes[i]);
    for (int round = 0; round < 3; round++) {
        int filled = 0;
        pid_t pid = fork_flushed();
        if (pid == 0) {
            size_t bad = bad_pages(memory, pages, 9);
            for (int i = 0; i < HOLES; i++)
                filled += !is_hole(holes[i]);
            check(bad == 0 && filled == 0, "in a child %d of %d holes are filled", filled, HOLES);
            fflush(stdout);
            _exit(failures != 0);
        }
        check(reap(pid) == 0, "the child");
    }
    int filled = 0;
    for (int i = 0; i < HOLES; i++)
        filled += !is_hole(holes[i]);
    check(filled == 0, "%d of %d holes are filled", filled, HOLES);
    check(bad_pages(memory, pages, 9) == 0, "memory is as it was");
    return finish();
}
