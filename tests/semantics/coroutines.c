/* Coroutines (makecontext, swapcontext) whose stacks come from malloc and mmap, and are evicted
   while they wait. */
#include "common.h"
#include <ucontext.h>

#define COROUTINES 150
#define STACK_PAGES ((size_t)32)
#define ROUNDS 4

static struct coroutine {
    ucontext_t context;
    char *stack;
    int mapped, rounds, wrong;
} *coroutines;
static ucontext_t scheduler;

/* Its locals are on its stack and are still there whenever it goes on. */
static void body(int index)
{
    struct coroutine *c = &coroutines[index];
    char locals[20 * 4096];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t seed = (uint64_t)(index * 100 + round);
        stamp(locals, sizeof locals, seed);
        if (swapcontext(&c->context, &scheduler) != 0)
            die("swapcontext");
        c->wrong += !stamped(locals, sizeof locals, seed);
        c->rounds++;
    }
}

static void run(int alternate)
{
    coroutines = calloc(COROUTINES, sizeof *coroutines);
    for (int i = 0; i < COROUTINES; i++) {
        struct coroutine *c = &coroutines[i];
        c->mapped = alternate && i % 2;
        c->stack = c->mapped ? map_pages(STACK_PAGES) : malloc(STACK_PAGES * PAGE);
        memset(c->stack, 0xcc, STACK_PAGES * PAGE);
        if (getcontext(&c->context) != 0)
            die("getcontext");
        c->context.uc_stack.ss_sp = c->stack;
        c->context.uc_stack.ss_size = STACK_PAGES * PAGE;
        c->context.uc_link = &scheduler;
        makecontext(&c->context, (void (*)(void))body, 1, i);
    }
    for (int round = 0; round <= ROUNDS; round++) {
        evict_all();
        for (int i = 0; i < COROUTINES; i++)
            if (swapcontext(&scheduler, &coroutines[i].context) != 0)
                die("swapcontext");
    }
    int rounds = 0, wrong = 0;
    for (int i = 0; i < COROUTINES; i++) {
        rounds += coroutines[i].rounds;
        wrong += coroutines[i].wrong;
        if (coroutines[i].mapped)
            munmap(coroutines[i].stack, STACK_PAGES * PAGE);
        else
            free(coroutines[i].stack);
    }
    free(coroutines);
    check(wrong == 0 && rounds == COROUTINES * ROUNDS,
          "%d coroutines, stacks from malloc%s: %d rounds, %d wrong", COROUTINES,
          alternate ? " and mmap" : "", rounds, wrong);
}

int main(void)
{
    run(0);
    run(1);
    return finish();
}
