/*
 * What a program sees of itself that is linked statically, when it begins and later: it is the same
 * however it was put into its process.
 */
#include "common.h"
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

static int constructed;
static __thread int own = 5;
static char *const *variables;

__attribute__((constructor)) static void construct(int argc, char **argv, char **envp)
{
    constructed = argc > 0 && argv[argc] == NULL;
    variables = envp;
}

static void beginning(int argc, char **argv)
{
    char name[16] = "", file[PATH_MAX] = "";
    check(constructed && own == 5, "constructors have run, and thread-local data is there");
    for (int n = 1; n < argc; n++)
        printf("     argument %s\n", argv[n]);
    int seen = 0;
    for (char *const *variable = variables; *variable; variable++)
        seen += strncmp(*variable, "OVERSPILL_STATIC", 16) == 0;
    check(seen == 0, "its variables");
    check(prctl(PR_GET_NAME, name) == 0, "the name of the process");
    ssize_t len = readlink("/proc/self/exe", file, sizeof file - 1);
    const char *end = strrchr(file, '/');
    /* What is executed by that link is called so. */
    check(argc > 1 || (len > 0 && end && strncmp(end + 1, name, strlen(name)) == 0),
          "the file that it is of: %s", argc > 1 ? "" : name);
    check(readlink("/proc/self/exe", file, 3) == 3, "or the beginning of its name");
    const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    size_t count = getauxval(AT_PHNUM), loaded = 0;
    for (size_t n = 0; n < count; n++)
        loaded += headers[n].p_type == PT_LOAD;
    check(loaded > 0 && getauxval(AT_BASE) == 0 && getauxval(AT_ENTRY) != 0, "its headers");
    check(((uintptr_t)argv & 15) % 8 == 0 && getauxval(AT_PAGESZ) == PAGE, "its stack");
}

/* Pointers that no argument of the call shows. */
static void behind_pointers(void)
{
    int ends[2];
    char *block = map_pages(4), text[16] = "";
    if (pipe(ends) != 0)
        die("pipe");
    memcpy(block, "first ", 6);
    memcpy(block + 2 * PAGE, "second", 6);
    push_out(block, 4 * PAGE);
    struct iovec out[2] = {{block, 6}, {block + 2 * PAGE, 6}};
    check(writev(ends[1], out, 2) == 12, "writev from pages that are out");
    check(read(ends[0], text, 12) == 12 && memcmp(text, "first second", 12) == 0, "says so");
    push_out(block, 4 * PAGE);
    check(write(ends[1], "again", 5) == 5, "write");
    struct iovec in = {block + PAGE, 5};
    check(readv(ends[0], &in, 1) == 5 && memcmp(block + PAGE, "again", 5) == 0, "readv to one");
    close(ends[0]), close(ends[1]);
}

static void *worker(void *seed)
{
    size_t pages = 2 * MIB / PAGE;
    char *block = malloc(2 * MIB + PAGE);
    char *first = block + (PAGE - (uintptr_t)block % PAGE) % PAGE;
    fill(first, pages, (uint64_t)(uintptr_t)seed);
    own++;
    size_t bad = bad_pages(first, pages, (uint64_t)(uintptr_t)seed) + (own != 6);
    free(block);
    return (void *)bad;
}

static void threads(void)
{
    pthread_t ids[12];
    void *bad;
    size_t sum = 0;
    for (size_t n = 0; n < 12; n++)
        if (pthread_create(&ids[n], NULL, worker, (void *)(1000 * n)) != 0)
            die("pthread_create");
    for (int n = 0; n < 12; n++) {
        pthread_join(ids[n], &bad);
        sum += (size_t)bad;
    }
    check(sum == 0 && own == 5, "threads with memory and data of their own");
}

/* What it is executed with is managed memory, and out; who is traced stops when that has begun. */
static void traced(char **argv, char *block, size_t pages)
{
    char **words = malloc(4096), *none[] = {NULL};
    const char *given[] = {argv[0], "again", "twice"};
    for (size_t n = 0; n < 3; n++)
        words[n] = strdup(given[n]);
    words[3] = NULL;
    for (int is_traced = 0; is_traced < 2; is_traced++) {
        int status, stops = 0;
        fflush(stdout);
        check(bad_pages(block, pages, 7) == 0, "what comes between");
        pid_t pid = vfork();
        if (pid == 0) {
            if (is_traced)
                ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            execve(words[0], words, none);
            _exit(1);
        }
        while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
            stops++;
            ptrace(PTRACE_DETACH, pid, NULL, NULL);
        }
        check(status == 0 && stops == is_traced, "a child without an environment: %d stops", stops);
    }
}

static void children(char **argv)
{
    size_t pages = 24 * MIB / PAGE;
    char *block = map_pages(pages);
    fill(block, pages, 7);
    pid_t pid = fork_flushed();
    if (pid == 0)
        _exit(bad_pages(block, pages, 7) ? 1 : 42);
    check(reap(pid) == 42, "a child has its parent's memory");
    for (int again = 0; again < 2; again++) {
        pid = fork_flushed();
        if (pid == 0) {
            execl(again ? "/proc/self/exe" : argv[0], argv[0], "again", "twice", (char *)NULL);
            _exit(1);
        }
        check(reap(pid) == 0, "and executes the program again");
    }
    traced(argv, block, pages);
    check(system("exit 3") == 3 << 8, "a shell");
    check(bad_pages(block, pages, 7) == 0, "memory is as it was");
}

/* Processes that share the memory, and are no threads. */
#define SHARERS 16
#define SHARED_PAGES 512

static char *shared;

static int share(void *number)
{
    size_t own = (size_t)number * SHARED_PAGES, bad = 0;
    for (unsigned round = 0; round < 4; round++) {
        fill(shared + own * PAGE, SHARED_PAGES, own + round);
        bad += bad_pages(shared + own * PAGE, SHARED_PAGES, own + round);
    }
    _exit(bad != 0);
}

static void sharers(void)
{
    pid_t pids[SHARERS];
    int status, wrong = 0;
    char *stacks = malloc(SHARERS * 64 * 1024);
    shared = mmap(NULL, SHARERS * SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!stacks || shared == MAP_FAILED)
        die("memory");
    for (size_t n = 0; n < SHARERS; n++)
        pids[n] = clone(share, stacks + (n + 1) * 64 * 1024, CLONE_VM | SIGCHLD, (void *)n);
    for (size_t n = 0; n < SHARERS; n++)
        wrong += waitpid(pids[n], &status, 0) != pids[n] || status != 0;
    for (size_t n = 0, first = 0; n < SHARERS; n++, first += SHARED_PAGES)
        wrong += bad_pages(shared + first * PAGE, SHARED_PAGES, first + 3) != 0;
    check(wrong == 0, "processes that share the memory: %d wrong", wrong);
}

int main(int argc, char **argv)
{
    beginning(argc, argv);
    behind_pointers();
    threads();
    sharers();
    if (argc < 2)
        children(argv);
    return finish();
}
