/*
 * Constants that hold addresses, as large programs have megabytes of: the loader writes them, and
 * they are read-only afterwards. They leave memory and come back like any other, also for system
 * calls, signals and children, and where the program maps something else in their place.
 */
#include "common.h"

#define ENTRIES (3 * MIB / sizeof(void *))

static char text[ENTRIES / 4096];

/* Each run of 4,096 entries has an address of its own. */
#define FOUR(n) R(n), R(n + 1), R(n + 2), R(n + 3)
#define SIXTEEN(n) FOUR(n), FOUR(n + 4), FOUR(n + 8), FOUR(n + 12)
#define R(n) [(n) * 4096 ...(n) * 4096 + 4095] = text + (n)
static char *const table[ENTRIES] __attribute__((aligned(4096))) = {
    SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80)};

/* As the compiler does not know it. */
static char *const *volatile constants = table;

static size_t wrong(void)
{
    size_t count = 0;
    for (size_t i = 0; i < ENTRIES; i++)
        count += constants[i] != text + i / 4096;
    return count;
}

static void out(void)
{
    push_out(table, sizeof table);
}

static sigjmp_buf back;

static void jump(int signal)
{
    siglongjmp(back, signal);
}

static void read_back(void)
{
    check(wrong() == 0, "they are what the loader has written");
    out();
    check(wrong() == 0, "they come back");
}

static int written(size_t entry)
{
    signal(SIGSEGV, jump);
    if (sigsetjmp(back, 1) == 0) {
        ((char *volatile *)constants)[entry] = text + 1;
        return 1;
    }
    signal(SIGSEGV, SIG_DFL);
    return 0;
}

static void cannot_be_written(void)
{
    check(!written(ENTRIES / 2), "they cannot be written");
    out();
    check(!written(ENTRIES / 2), "nor when they are out");
    check(wrong() == 0, "and are as they were");
}

static void in_calls(void)
{
    enum { LEN = 40 * 4096 };
    const char *begin = (const char *)table + MIB;
    char *copy = malloc(LEN);
    FILE *file = tmpfile();
    if (!file || !copy)
        die("tmpfile");
    out();
    check(write(fileno(file), begin, LEN) == LEN, "written to a file");
    check(pread(fileno(file), copy, LEN, 0) == LEN && memcmp(copy, begin, LEN) == 0, "as they are");
    out();
    check(pread(fileno(file), (char *)begin, LEN, 0) == -1 && errno == EFAULT,
          "not to be read into");
    check(wrong() == 0, "nor changed by that");
    fclose(file);
    free(copy);
}

static void in_children(void)
{
    int status;
    pid_t child;
    out();
    child = fork();
    if (child == 0)
        _exit(wrong() == 0 && !written(7) ? 5 : 6);
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    check(status == 5 << 8, "a child has them");
    check(wrong() == 0, "and so has its parent");
}

static volatile sig_atomic_t seen;

static void look(int signal)
{
    (void)signal;
    seen = wrong() == 0;
}

static void in_handlers(void)
{
    signal(SIGUSR1, look);
    out();
    raise(SIGUSR1);
    check(seen, "a handler has them");
}

static void changed(void)
{
    char *page = (char *)table + 2 * MIB;
    check(mprotect(page, 64 * PAGE, PROT_READ | PROT_WRITE) == 0, "some are made writable");
    out();
    check(written(2 * MIB / sizeof(void *)), "and written");
    out();
    check(constants[2 * MIB / sizeof(void *)] == text + 1, "which is there");
    check(mprotect(page, 64 * PAGE, PROT_READ) == 0 && !written(2 * MIB / sizeof(void *)),
          "and read-only again");
    check(mmap(page, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == page && nonzero(page, 4 * PAGE) == 0,
          "something else takes the place of some");
    fill(page, 4, 9);
    out();
    check(bad_pages(page, 4, 9) == 0, "and stays");
}

int main(void)
{
    read_back();
    cannot_be_written();
    in_calls();
    in_children();
    in_handlers();
    changed();
    return finish();
}
