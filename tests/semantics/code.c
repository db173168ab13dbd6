/*
 * Code in anonymous memory, as a JIT has it: pages that may be executed are managed as all others
 * are, and come back when they are called, whatever they do next: return, call the system, handle a
 * signal, fork.
 */
#include "common.h"
#include <sys/syscall.h>

#define PAGES (24 * MIB / PAGE)
#define ALL (PROT_READ | PROT_WRITE | PROT_EXEC)
#define THREADS 4

typedef uint32_t (*function)(void);
typedef long (*caller)(long a, long b, long c);

static char *map_code(int prot)
{
    char *code = mmap(NULL, PAGES * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        die("mmap");
    return code;
}

/* Where in its page the function of page i begins. That of every fourth reaches into the next page,
   which has none. */
static char *entry(char *code, size_t i)
{
    return code + i * PAGE + (i % 4 == 0 ? PAGE - 3 : mix(i) % (PAGE - 64));
}

/* mov $value, %eax; ret */
static void emit(char *at, uint32_t value)
{
    at[0] = (char)0xb8;
    memcpy(at + 1, &value, sizeof value);
    at[5] = (char)0xc3;
}

static uint32_t value_of(size_t i, uint32_t version)
{
    return (uint32_t)mix(i * 16 + version);
}

static void emit_all(char *code, uint32_t version)
{
    for (size_t i = 0; i < PAGES - 1; i++)
        if (i % 4 != 1)
            emit(entry(code, i), value_of(i, version));
}

/* How many functions of every `step`th page return something else. */
static size_t wrong_values(char *code, uint32_t version, size_t step)
{
    size_t wrong = 0;
    for (size_t i = 0; i < PAGES - 1; i += step)
        if (i % 4 != 1)
            wrong += ((function)(uintptr_t)entry(code, i))() != value_of(i, version);
    return wrong;
}

static int within_budget(char *memory)
{
    static unsigned char resident[PAGES];
    size_t count = 0;
    if (mincore(memory, PAGES * PAGE, resident) != 0)
        die("mincore");
    for (size_t i = 0; i < PAGES; i++)
        count += resident[i] & 1;
    return !getenv("OVERSPILL_MEMORY") || count * PAGE <= 16 * MIB;
}

/* Written and executed in turn, without a call in between. */
static void writable(void)
{
    char *code = map_code(ALL);
    for (uint32_t version = 0; version < 3; version++) {
        emit_all(code, version);
        check(within_budget(code), "writable code, version %u: the budget", version);
        check(wrong_values(code, version, 1) == 0, "writable code, version %u: called", version);
    }
    munmap(code, PAGES * PAGE);
}

/* Written, then executed, as most do by now. */
static void in_turn(void)
{
    char *code = map_code(PROT_READ | PROT_WRITE);
    emit_all(code, 0);
    check(mprotect(code, PAGES * PAGE, PROT_READ | PROT_EXEC) == 0, "code that may be read");
    check(wrong_values(code, 0, 1) == 0 && within_budget(code), "it is called");
    check(mprotect(code, PAGES * PAGE, PROT_EXEC) == 0, "code that may be executed only");
    pressure(40);
    check(wrong_values(code, 0, 1) == 0 && within_budget(code), "it is called");
    pressure(40);
    check(mprotect(code, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0, "data again");
    emit_all(code, 1);
    check(mprotect(code, PAGES * PAGE, ALL) == 0 && wrong_values(code, 1, 1) == 0, "code again");
    munmap(code, PAGES * PAGE);
    /* Room for code is reserved, and what is needed of it is put over that. */
    code = map_code(PROT_NONE);
    check(mmap(code, PAGES * PAGE, ALL, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == code,
          "code over a reservation");
    emit_all(code, 2);
    check(wrong_values(code, 2, 1) == 0 && within_budget(code), "it is called");
    munmap(code, PAGES * PAGE);
}

/* One thread changes functions while others call them. */
static char *shared_code;
static atomic_int stop;
static atomic_size_t strange;

static void *call_all(void *argument)
{
    (void)argument;
    while (!stop)
        for (size_t i = 2; i < PAGES - 1; i += 4) {
            uint32_t value = ((function)(uintptr_t)(shared_code + i * PAGE + 3))();
            strange += value != value_of(i, 0) && value != value_of(i, 1);
        }
    return NULL;
}

static void changing(void)
{
    pthread_t threads[THREADS];
    shared_code = map_code(ALL);
    for (size_t i = 0; i < PAGES; i++)
        emit(shared_code + i * PAGE + 3, value_of(i, 0));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call_all, NULL);
    for (uint32_t round = 1; round < 5; round++)
        for (size_t i = 0; i < PAGES; i++)
            /* The operand is aligned, so it changes at once. */
            __atomic_store_n((uint32_t *)(void *)(shared_code + i * PAGE + 4),
                             value_of(i, round % 2), __ATOMIC_SEQ_CST);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check(strange == 0, "functions that change while they are called");
    munmap(shared_code, PAGES * PAGE);
}

/* mov $number, %eax; syscall; ret: the kernel's own convention, whose first three arguments are
   those of C. */
static caller emit_call(char *at, int32_t number)
{
    at[0] = (char)0xb8;
    memcpy(at + 1, &number, sizeof number);
    memcpy(at + 5, "\x0f\x05\xc3", 3);
    return (caller)(uintptr_t)at;
}

static void system_calls(void)
{
    char *code = map_code(ALL), *data = map_pages(16);
    int pipes[2];
    if (pipe(pipes) != 0)
        die("pipe");
    /* The instruction behind the call lies on the next page. */
    caller pid = emit_call(code + PAGE - 7, SYS_getpid),
           reads = emit_call(code + 9 * PAGE, SYS_read),
           writes = emit_call(code + 19 * PAGE - 7, SYS_write);
    fill(data, 16, 5);
    evict_all();
    check(pid(0, 0, 0) == getpid(), "a call from code that was out");
    evict_all();
    check(writes(pipes[1], (long)data, 8 * PAGE) == 8 * 4096, "what is out is written");
    evict_all();
    check(reads(pipes[0], (long)code + 100 * PAGE, 8 * PAGE) == 8 * 4096
              && bad_pages(code + 100 * PAGE, 8, 5) == 0,
          "and read among code");
    close(pipes[0]);
    close(pipes[1]);
    munmap(code, PAGES * PAGE);
    munmap(data, 16 * PAGE);
}

/* A handler that counts in memory of its own. */
static void handlers(void)
{
    char *code = map_code(ALL);
    /* lock incl distance(%rip); ret */
    static const unsigned char counts[] = {0xf0, 0xff, 0x05, 0, 0, 0, 0, 0xc3};
    char *at = code + 40 * PAGE, *count = code + 42 * PAGE;
    int32_t distance = (int32_t)(count - (at + 7));
    memcpy(at, counts, sizeof counts);
    memcpy(at + 3, &distance, sizeof distance);
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = (void (*)(int))(uintptr_t)at;
    sigaction(SIGUSR1, &action, &before);
    for (int i = 0; i < 3; i++) {
        evict_all();
        raise(SIGUSR1);
    }
    check(*(uint32_t *)(void *)count == 3, "a handler that was out");
    /* Code that may not be executed is not. */
    mprotect(at, PAGE, PROT_READ | PROT_WRITE);
    evict_all();
    action.sa_handler = fault_handler;
    sigaction(SIGSEGV, &action, NULL);
    volatile int got = sigsetjmp(fault_return, 1);
    if (got == 0)
        ((function)(uintptr_t)at)();
    check(got == SIGSEGV, "data is not executed");
    signal(SIGSEGV, SIG_DFL);
    sigaction(SIGUSR1, &before, NULL);
    munmap(code, PAGES * PAGE);
}

/* sub $8, %rsp; call *%rdi; add $8, %rsp; ret: the child returns to code, too. */
static void forks(void)
{
    static const unsigned char calls[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48,
                                          0x83, 0xc4, 0x08, 0xc3};
    char *code = map_code(ALL);
    emit_all(code, 4);
    char *at = code + PAGE + 100;
    memcpy(at, calls, sizeof calls);
    evict_all();
    fflush(stdout);
    int (*forks)(pid_t (*)(void));
    memcpy(&forks, &at, sizeof at);
    pid_t pid = forks(fork);
    if (pid == 0) {
        size_t wrong = wrong_values(code, 4, 3);
        emit_all(code, 5);
        _exit(wrong != 0 || wrong_values(code, 5, 1) != 0);
    }
    check(reap(pid) == 0, "a child of code, which calls and changes it");
    check(wrong_values(code, 4, 1) == 0, "its parent's is as it was");
    munmap(code, PAGES * PAGE);
}

int main(void)
{
    char *trial = mmap(NULL, PAGE, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (trial == MAP_FAILED) {
        printf("SKIP: code cannot be written here (%s)\n", strerror(errno));
        return 0;
    }
    munmap(trial, PAGE);
    writable();
    in_turn();
    changing();
    system_calls();
    handlers();
    forks();
    return finish();
}
