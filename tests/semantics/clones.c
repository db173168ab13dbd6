/* Children of clone(2) and clone3(2): with and without the memory, a parent, descriptors and a
   signal of their own. */
#include "common.h"
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>

#define STACK (64 * PAGE)
#define PAGES 2000
#define COUNT 48

static char *memory;
static volatile int shared;
static int *told;
static int pipe_ends[2];

/* What a child does, by its argument. */
enum work { RETURN, EXIT, TOUCH, ALLOCATE, CALL, EXECUTE, END_THREAD };

static int child(void *argument)
{
    enum work work = (enum work)(intptr_t)argument;
    *told = getpid();
    shared = 7;
    switch (work) {
    case RETURN:
        return 5;
    case EXIT:
        _exit(5);
    case TOUCH:
        /* Pages that are out, also some of this stack. */
        for (int i = 0; i < 3; i++)
            if (bad_pages(memory, PAGES, 1))
                _exit(1);
        return 5;
    case ALLOCATE: {
        int wrong = 0;
        char *blocks[100];
        for (int i = 0; i < 100; i++)
            stamp(blocks[i] = malloc(1000 * i + 1), 1000 * i + 1, i);
        for (int i = 0; i < 100; i++) {
            wrong += !stamped(blocks[i], 1000 * i + 1, i);
            free(blocks[i]);
        }
        return wrong ? 1 : 5;
    }
    case CALL: {
        /* To the kernel and back, with buffers that may be out. */
        int ends[2];
        if (pipe(ends) || write(ends[1], memory, 3 * PAGE) != 3 * PAGE ||
            read(ends[0], memory + PAGES * PAGE, 3 * PAGE) != 3 * PAGE)
            return 1;
        close(ends[0]);
        close(ends[1]);
        return memcmp(memory, memory + PAGES * PAGE, 3 * PAGE) ? 2 : 5;
    }
    case EXECUTE: {
        char *arguments[] = {strcpy(memory + (PAGES + 10) * PAGE, "sh"),
                             strcpy(memory + (PAGES + 11) * PAGE, "-c"),
                             strcpy(memory + (PAGES + 12) * PAGE, "exit 5"), NULL};
        execv("/bin/sh", arguments);
        return 1;
    }
    case END_THREAD:
        syscall(SYS_exit, 5);
    }
    return 1;
}

static void one(const char *what, int flags, enum work work, char *stack)
{
    shared = *told = 0;
    memset(stack, 0, STACK);
    fflush(stdout);
    pid_t pid = clone(child, stack + STACK, flags, (void *)(intptr_t)work);
    int status = 0, waits = (flags & 0xff) == SIGCHLD ? 0 : __WALL;
    pid_t reaped = waitpid(pid, &status, waits);
    check(pid > 0 && reaped == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5,
          "%s, work %d: status %x", what, work, status);
    check(*told == pid && shared == (flags & CLONE_VM ? 7 : 0), "%s, work %d: memory and number",
          what, work);
}

static void handler(int signal)
{
    (void)signal;
}

static int idle(void *argument)
{
    (void)argument;
    return bad_pages(memory, PAGES, 1) ? 1 : 0;
}

static int makes_sibling(void *argument)
{
    char *stack = argument;
    pid_t sibling = clone(child, stack + STACK, CLONE_PARENT | SIGCHLD, (void *)(intptr_t)ALLOCATE);
    if (write(pipe_ends[1], &sibling, sizeof sibling) != sizeof sibling)
        return 1;
    return sibling > 0 ? 0 : 1;
}

static pid_t clone3(struct clone_args *arguments, size_t size)
{
    fflush(stdout);
    return syscall(SYS_clone3, arguments, size);
}

int main(void)
{
    memory = map_pages(PAGES + 100);
    fill(memory, PAGES, 1);
    told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *heap = malloc(STACK), *mapped = map_pages(STACK / PAGE + 1);
    /* The page behind the stack is a guard. */
    mprotect(mapped + STACK, PAGE, PROT_NONE);
    static const struct {
        const char *what;
        int flags;
    } kinds[] = {
        {"a copy", SIGCHLD},
        {"a copy without a signal", 0},
        {"a copy, files shared", CLONE_FILES | CLONE_FS | SIGCHLD},
        {"memory shared", CLONE_VM | SIGCHLD},
        {"memory shared, without a signal", CLONE_VM},
        {"a vfork", CLONE_VM | CLONE_VFORK | SIGCHLD},
        {"a vfork without a signal", CLONE_VM | CLONE_VFORK},
        {"all shared", CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD},
    };
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int work = RETURN; work <= END_THREAD; work++) {
            /* With the memory shared a thread's own end is a process's. */
            if (work == END_THREAD && !(kinds[kind].flags & CLONE_VM))
                continue;
            one(kinds[kind].what, kinds[kind].flags, work, work % 2 ? heap : mapped);
        }

    /* Many at once, and one after another. */
    int wrong = 0;
    pid_t pids[COUNT];
    char *stacks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        stacks[i] = malloc(STACK);
        fflush(stdout);
        pids[i] = clone(idle, stacks[i] + STACK, (i % 8 ? CLONE_VM : 0) | SIGCHLD, NULL);
    }
    for (int i = 0; i < COUNT; i++)
        wrong += reap(pids[i]) != 0;
    check(wrong == 0, "%d children at once: %d wrong", COUNT, wrong);
    wrong = 0;
    for (int i = 0; i < 500; i++)
        wrong += reap(clone(idle, heap + STACK, CLONE_VM | CLONE_SIGHAND | SIGCHLD, NULL)) != 0;
    check(wrong == 0, "500 children after each other: %d wrong", wrong);

    /* A child of the child's parent. */
    if (pipe(pipe_ends))
        die("pipe");
    pid_t sibling, maker = clone(makes_sibling, mapped + STACK, SIGCHLD, heap);
    int status;
    wrong = read(pipe_ends[0], &sibling, sizeof sibling) != sizeof sibling;
    check(!wrong && reap(maker) == 0 && waitpid(sibling, &status, 0) == sibling &&
              WEXITSTATUS(status) == 5,
          "CLONE_PARENT");

    /* A handler of the parent's in a child that shares it, whose stack is managed memory. */
    signal(SIGUSR1, handler);
    pid_t sharer = clone(idle, mapped + STACK, CLONE_VM | CLONE_SIGHAND | SIGCHLD, NULL);
    for (int i = 0; i < 100; i++)
        kill(sharer, SIGUSR1);
    check(reap(sharer) == 0, "signals for a child that shares the memory");

    /* By number. */
    fflush(stdout);
    pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 1) ? 1 : 6);
    check(pid > 0 && reap(pid) == 6, "SYS_clone");
    pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 1) ? 1 : 6);
    check(pid > 0 && reap(pid) == 6 && bad_pages(memory, PAGES, 1) == 0,
          "SYS_clone with CLONE_FILES");
    struct clone_args plain = {.exit_signal = SIGCHLD},
                      *out = (struct clone_args *)(memory + (PAGES + 20) * PAGE);
    pid = clone3(&plain, sizeof plain);
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 1) ? 1 : 6);
    check(pid > 0 && reap(pid) == 6, "SYS_clone3");
    plain.flags = CLONE_FILES;
    pid = clone3(&plain, sizeof plain);
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 1) ? 1 : 6);
    check(pid > 0 && reap(pid) == 6 && bad_pages(memory, PAGES, 1) == 0,
          "SYS_clone3 with CLONE_FILES");
    *out = (struct clone_args){.exit_signal = SIGCHLD};
    pressure(24);
    pid = clone3(out, sizeof *out);
    if (pid == 0)
        _exit(bad_pages(memory, PAGES, 1) ? 1 : 6);
    check(pid > 0 && reap(pid) == 6, "SYS_clone3 with arguments that are out");

    /* Refused. */
    char *forbidden = map_pages(1);
    mprotect(forbidden, PAGE, PROT_NONE);
    struct clone_args bad = {.flags = CLONE_SIGHAND, .exit_signal = SIGCHLD};
    check(clone3((void *)forbidden, sizeof bad) == -1 && errno == EFAULT,
          "clone3 with arguments that cannot be read");
    check(clone3((void *)8, sizeof bad) == -1 && errno == EFAULT,
          "clone3 with arguments that are not there");
    check(clone3(&bad, 0) == -1 && errno == EINVAL, "clone3 without arguments");
    check(clone3(&bad, sizeof bad) == -1 && errno == EINVAL,
          "clone3 with flags that do not go together");
    check(clone(idle, heap + STACK, CLONE_SIGHAND | SIGCHLD, NULL) == -1 && errno == EINVAL,
          "clone with such flags");
    check(clone(idle, heap + STACK, CLONE_VM | CLONE_THREAD, NULL) == -1 && errno == EINVAL,
          "clone of half a thread");
    check(clone(NULL, heap + STACK, SIGCHLD, NULL) == -1 && errno == EINVAL,
          "clone without a function");
    check(clone(idle, NULL, SIGCHLD, NULL) == -1 && errno == EINVAL, "clone without a stack");
    check(waitpid(-1, &status, __WALL) == -1 && errno == ECHILD, "no child is left");
    check(bad_pages(memory, PAGES, 1) == 0, "memory is as it was");
    return finish();
}
