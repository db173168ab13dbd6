/* MAP_GROWSDOWN in the middle of other memory: it grows as far as there is nothing, and other
   things may be put there. */
#include "common.h"

#define PAGES ((size_t)1200)
/* The mapping at its beginning, and as far as it is made to grow. */
#define TOP ((size_t)1190)
#define GROWN ((size_t)500)
/* Below it lies other memory; the kernel keeps a distance of 256 pages to that. */
#define BOTTOM ((size_t)8)

static char *memory;

static char *make(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN;
    char *stack = (char *)mmap(memory + TOP * PAGE, (PAGES - TOP) * PAGE, PROT_READ | PROT_WRITE,
                               flags, -1, 0);
    check(stack == memory + TOP * PAGE, "a mapping that grows down");
    return stack;
}

static void grow(void)
{
    for (size_t i = PAGES; i-- > GROWN;)
        fill_page(memory + i * PAGE, 100 + i);
    pressure(32);
    check(bad_pages(memory + GROWN * PAGE, PAGES - GROWN, 100 + GROWN) == 0,
          "it grows and keeps what is written");
    check(fault_of(memory + 100 * PAGE, 1) == SIGSEGV, "not up to what lies below it");
    check(bad_pages(memory, BOTTOM, 7) == 0, "which is as it was");
    int pipes[2];
    char page[4096];
    if (pipe(pipes) != 0)
        die("pipe");
    check(write(pipes[1], memory + GROWN * PAGE, PAGE) == (ssize_t)PAGE,
          "write(2) from where it has grown to");
    check(read(pipes[0], page, PAGE) == (ssize_t)PAGE && page_is(page, 100 + GROWN),
          "what was written");
    check(write(pipes[1], memory + 100 * PAGE, PAGE) == -1 && errno == EFAULT,
          "write(2) from the hole: %s", strerror(errno));
    close(pipes[0]);
    close(pipes[1]);
}

static void children(void)
{
    pid_t pid = fork_flushed();
    if (pid == 0) {
        failures = 0;
        check(bad_pages(memory + GROWN * PAGE, PAGES - GROWN, 100 + GROWN) == 0,
              "a child has what is written");
        for (size_t i = GROWN; i-- > GROWN - 20;)
            fill_page(memory + i * PAGE, 100 + i);
        pressure(32);
        check(bad_pages(memory + (GROWN - 20) * PAGE, 20, 80 + GROWN) == 0, "and it grows there");
        fflush(stdout);
        _exit(failures != 0);
    }
    check(reap(pid) == 0, "the child");
}

static void others(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *at = memory + 20 * PAGE;
    check(mmap(at, 4 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at,
          "MAP_FIXED_NOREPLACE into the hole");
    fill(at, 4, 50);
    pressure(32);
    check(bad_pages(at, 4, 50) == 0, "which is like any other memory");
    check(mmap(at, PAGE, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == EEXIST, "once more: %s",
          strerror(errno));
    at = memory + (GROWN + 3) * PAGE;
    check(mmap(at, PAGE, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == EEXIST,
          "over what has grown: %s", strerror(errno));
}

static void reuse(void)
{
    check(munmap(memory + BOTTOM * PAGE, (PAGES - BOTTOM) * PAGE) == 0, "munmap of all of it");
    check(fault_of(memory + GROWN * PAGE, 0) == SIGSEGV &&
              fault_of(memory + TOP * PAGE, 0) == SIGSEGV,
          "it is gone");
    check(fault_of(memory + (TOP - 1) * PAGE, 1) == SIGSEGV, "and grows no more");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *at = memory + BOTTOM * PAGE;
    check(mmap(at, (PAGES - BOTTOM) * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at,
          "other memory in its place");
    fill(at, PAGES - BOTTOM, 3);
    pressure(32);
    check(bad_pages(at, PAGES - BOTTOM, 3) == 0, "which is like any other");
    munmap(at, (PAGES - BOTTOM) * PAGE);
}

static size_t deep(size_t pages)
{
    volatile char page[4096];
    memset((void *)(uintptr_t)page, (int)pages, sizeof page);
    size_t below = pages > 0 ? deep(pages - 1) : 0;
    return below + (unsigned char)page[pages % 4096];
}

static void *runs(void *unused)
{
    (void)unused;
    return (void *)deep(200);
}

/* A thread on a stack of which the upper end is mapped only. */
static void threads(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    check(pthread_attr_setstack(&attributes, memory + GROWN * PAGE, (PAGES - GROWN) * PAGE) == 0,
          "the stack of a thread");
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, &attributes, runs, NULL) != 0)
        die("pthread_create");
    pthread_join(thread, &result);
    size_t expected = 0;
    for (size_t i = 0; i <= 200; i++)
        expected += (unsigned char)i;
    check((size_t)result == expected, "it grows as the thread needs it");
    pthread_attr_destroy(&attributes);
    check(munmap(memory + TOP * PAGE, (PAGES - TOP) * PAGE) == 0, "munmap of where it began");
    munmap(memory + BOTTOM * PAGE, (TOP - BOTTOM) * PAGE);
}

int main(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    if (limit.rlim_cur < 6 * MIB) {
        printf("SKIP: stacks may have less than 6 MiB here\n");
        return 0;
    }
    memory = map_pages(PAGES);
    fill(memory, BOTTOM, 7);
    munmap(memory + BOTTOM * PAGE, (PAGES - BOTTOM) * PAGE);
    if (make() != MAP_FAILED) {
        grow();
        children();
        others();
        reuse();
    }
    make();
    threads();
    /* Given back before it has grown. */
    char *stack = make();
    munmap(stack, (PAGES - TOP) * PAGE);
    char *at = memory + BOTTOM * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    check(mmap(at, (PAGES - BOTTOM) * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at,
          "memory down to what lies below");
    fill(at, PAGES - BOTTOM, 5);
    pressure(32);
    check(bad_pages(at, PAGES - BOTTOM, 5) == 0 && bad_pages(memory, BOTTOM, 7) == 0, "all of it");
    return finish();
}
