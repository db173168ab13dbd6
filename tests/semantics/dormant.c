/* A process that grows from little to much: what it had before is as it was, and so is what it has
   set, its children's included. */
#define STAY_SMALL
#include "common.h"
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define FEW 24
#define BLOCK 9000
#define MANY (24 * MIB / PAGE)

static char *blocks[FEW];
static volatile sig_atomic_t got, on_stack;
static char *stack_of_signals;

static char *from_handler;

static void handler(int signal)
{
    char here;
    got += signal;
    /* More than a small process has, while its signal stack is in use. */
    if (from_handler == NULL) {
        from_handler = map_pages(2000);
        fill(from_handler, 2000, 9);
    }
    on_stack += &here >= stack_of_signals && &here < stack_of_signals + SIGSTKSZ;
}

static int blocks_wrong(void)
{
    int wrong = 0;
    for (int i = 0; i < FEW; i++)
        for (int at = 0; at < BLOCK; at++)
            wrong += blocks[i][at] != (char)(i + at);
    return wrong;
}

/* Grows to more than the budget, and says how many pages are wrong. */
static long grow(int seed)
{
    char *memory = map_pages(MANY);
    fill(memory, MANY, seed);
    long wrong = bad_pages(memory, MANY, seed);
    munmap(memory, MANY * PAGE);
    return wrong;
}

static void of_blocks(void)
{
    for (int i = 0; i < FEW; i++) {
        blocks[i] = malloc(BLOCK / 3);
        for (int at = 0; at < BLOCK / 3; at++)
            blocks[i][at] = i + at;
        blocks[i] = realloc(blocks[i], BLOCK);
        for (int at = BLOCK / 3; at < BLOCK; at++)
            blocks[i][at] = i + at;
    }
    check(blocks_wrong() == 0, "blocks that grow keep their content");
    char *zeros = calloc(100, 1000);
    int set = 0;
    for (int at = 0; at < 100000; at++)
        set += zeros[at] != 0;
    check(set == 0, "calloc gives zeros");
    free(zeros);
    void *aligned = memalign(4096, 100);
    check((uintptr_t)aligned % 4096 == 0 && malloc_usable_size(aligned) >= 100, "alignment");
    free(aligned);
}

/* In a child that was made while its parent was small. */
static void of_children(void)
{
    int wrong = 0;
    for (int run = 0; run < 20; run++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            blocks[0][0] = 7;
            int bad = run % 4 == 0 ? grow(run) != 0 : 0;
            blocks[0][0] = 0;
            _exit(bad || blocks_wrong() != 0);
        }
        wrong += reap(pid) != 0;
    }
    check(wrong == 0 && blocks_wrong() == 0, "children of a small process, some of which grow");
    pid_t pid = vfork();
    if (pid == 0)
        _exit(5);
    int status = 0;
    waitpid(pid, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 5, "vfork");
}

static void of_signals(const char *when)
{
    sigset_t now, pending;
    got = on_stack = 0;
    raise(SIGUSR1);
    raise(SIGUSR2);
    sigprocmask(SIG_SETMASK, NULL, &now);
    sigpending(&pending);
    check(got == SIGUSR1 && on_stack == 1, "%s: a handler runs on the stack that was set", when);
    check(sigismember(&now, SIGUSR2) && sigismember(&now, SIGBUS) && !sigismember(&now, SIGSYS)
              && sigismember(&pending, SIGUSR2),
          "%s: what is blocked is", when);
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    check(action.sa_handler == handler && action.sa_flags & SA_ONSTACK, "%s: the action is", when);
    sigaction(SIGPIPE, NULL, &action);
    check(action.sa_handler == SIG_IGN, "%s: what is ignored is", when);
    stack_t stack;
    sigaltstack(NULL, &stack);
    check(stack.ss_sp == stack_of_signals && stack.ss_flags == 0, "%s: the stack is", when);
}

static void set_signals(void)
{
    stack_of_signals = malloc(SIGSTKSZ);
    stack_t stack = {.ss_sp = stack_of_signals, .ss_size = SIGSTKSZ};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGBUS);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int main(void)
{
    of_blocks();
    set_signals();
    of_signals("small");
    of_children();
    char *early = map_pages(8);
    fill(early, 8, 3);
    mprotect(early + PAGE, PAGE, PROT_READ);
    check(grow(1) == 0, "it grows");
    of_signals("grown");
    check(blocks_wrong() == 0 && bad_pages(early, 8, 3) == 0
              && bad_pages(from_handler, 2000, 9) == 0,
          "what it had is as it was");
    char *moved = mremap(early + 2 * PAGE, 6 * PAGE, 12 * PAGE, MREMAP_MAYMOVE);
    check(moved != MAP_FAILED && bad_pages(early, 2, 3) == 0, "an early mapping grows");
    for (int i = 0; i < FEW; i += 2) {
        blocks[i] = realloc(blocks[i], 3 * BLOCK);
        blocks[i] = realloc(blocks[i], BLOCK);
    }
    check(blocks_wrong() == 0, "early blocks get another size");
    of_children();
    check(grow(2) == 0, "it grows again");
    for (int i = 0; i < FEW; i++)
        free(blocks[i]);
    return finish();
}
