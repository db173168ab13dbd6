/* Words that the kernel writes or reads in its own time, in pages that are out by then: the number
   of a thread, which it clears at its end, a list of robust futexes, the area of restartable
   sequences. */
#include "common.h"
#include <linux/futex.h>
#include <sched.h>
#include <sys/rseq.h>
#include <sys/syscall.h>

#define STACK (64 * 1024)
#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)
#define NUMBERS (CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID)

/* Outside of what is managed: the tasks below have no thread pointer of their own. */
static char stack[STACK] __attribute__((aligned(64)));
static volatile int go;

static long by_number(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static int waits_and_ends(void *unused)
{
    (void)unused;
    while (!go)
        by_number(SYS_sched_yield, 0, 0, 0);
    by_number(SYS_exit, 0, 0, 0);
    return 0;
}

/* A page of its own for each word. */
static volatile int *word_of(char *pages, size_t n) { return (int *)(pages + n * PAGE + 128); }

/* Whether a word becomes so within ten seconds. */
static int becomes(volatile int *word, int value)
{
    for (int i = 0; i < 10000 && *word != value; i++)
        usleep(1000);
    return *word == value;
}

static void end_of_tasks(void)
{
    char *pages = heap_pages(4);
    const int flags[] = {THREAD | NUMBERS, CLONE_VM | CLONE_FILES | NUMBERS | SIGCHLD};
    const char *names[] = {"a thread", "a process that shares the memory"};
    for (int n = 0; n < 2; n++) {
        volatile int *parents = word_of(pages, 2 * n), *childs = word_of(pages, 2 * n + 1);
        *parents = *childs = -1;
        go = 0;
        evict_all();
        int task = clone(waits_and_ends, stack + STACK, flags[n], NULL, parents, NULL, childs);
        check(task > 0 && *parents == task && becomes(childs, task), "the number of %s", names[n]);
        evict_all();
        go = 1;
        int cleared = becomes(childs, 0);
        if (n == 1)
            cleared &= reap(task) == 0;
        check(cleared, "is cleared at its end");
    }
    free(pages);
}

/* Ends a thread that a raw call has given its word. */
static int asks_and_ends(void *word)
{
    syscall(SYS_set_tid_address, word);
    return waits_and_ends(NULL);
}

static void given_later(void)
{
    char *page = heap_pages(1);
    volatile int *word = word_of(page, 0);
    *word = 1;
    go = 0;
    clone(asks_and_ends, stack + STACK, THREAD, (void *)word, NULL, NULL, NULL);
    usleep(20000);
    evict_all();
    go = 1;
    check(becomes(word, 0), "a word that is given later is cleared");
    free(page);
}

static void *holds_and_ends(void *page)
{
    struct robust_list_head *head = page;
    struct robust_list *entry = (struct robust_list *)((char *)page + 256);
    volatile int *futex = (int *)((char *)entry + 64);
    *futex = gettid();
    entry->next = &head->list;
    head->list.next = entry;
    head->futex_offset = 64;
    head->list_op_pending = NULL;
    syscall(SYS_set_robust_list, head, sizeof *head);
    evict_all();
    return NULL;
}

static void list_of_its_own(void)
{
    char *page = heap_pages(1);
    pthread_t thread;
    pthread_create(&thread, NULL, holds_and_ends, page);
    pthread_join(thread, NULL);
    volatile int *futex = (int *)(page + 256 + 64);
    check(*futex & FUTEX_OWNER_DIED, "the owner of a futex in a list of its own has died");
    free(page);
}

static void *sequences(void *page)
{
    struct rseq *area = page;
    char *own = (char *)__builtin_thread_pointer() + __rseq_offset;
    if (__rseq_size == 0
        || syscall(SYS_rseq, own, sizeof *area, RSEQ_FLAG_UNREGISTER, RSEQ_SIG) != 0)
        return NULL;
    memset(page, 0, PAGE);
    area->cpu_id = (unsigned)RSEQ_CPU_ID_UNINITIALIZED;
    long bad = syscall(SYS_rseq, area, sizeof *area, 0, RSEQ_SIG);
    for (int i = 0; i < 20; i++) {
        evict_all();
        usleep(100);
        sched_yield();
        bad += area->cpu_id >= 4096;
    }
    bad += syscall(SYS_rseq, area, sizeof *area, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
    return (void *)bad;
}

static void sequences_of_its_own(void)
{
    char *page = heap_pages(1);
    pthread_t thread;
    void *bad;
    pthread_create(&thread, NULL, sequences, page);
    pthread_join(thread, &bad);
    check(bad == NULL, "an area of restartable sequences");
    free(page);
}

int main(void)
{
    end_of_tasks();
    given_later();
    list_of_its_own();
    sequences_of_its_own();
    return finish();
}
