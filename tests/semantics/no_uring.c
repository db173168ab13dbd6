/* A program that takes io_uring where there is one, and does without it otherwise: both end
   alike. */
#include "common.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>

#define PAGES ((size_t)512)

int main(void)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    char *memory = heap_pages(PAGES), name[] = "semantics-ring-XXXXXX";
    fill(memory, PAGES, 1);
    int file = mkstemp(name), wrong = 0;
    unlink(name);
    pressure(40);
    int ring = (int)syscall(SYS_io_uring_setup, 8, &params);
    check(ring >= 0 || errno == ENOSYS || errno == EPERM,
          "a ring, or a reason that a program understands");
    check(ring < 0 || close(ring) == 0, "a ring that is closed");
    /* The way that is always there. */
    for (size_t i = 0; i < PAGES; i++)
        wrong += pwrite(file, memory + i * PAGE, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE;
    memset(memory, 0, PAGES * PAGE);
    pressure(40);
    for (size_t i = 0; i < PAGES; i++)
        wrong += pread(file, memory + i * PAGE, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE;
    check(wrong == 0 && bad_pages(memory, PAGES, 1) == 0, "what was written is read");
    return finish();
}
