/* Memory that is not managed, of one kind and so much of it that it is to be told.
 *
 * usage: beyond KIND MIB [MILLISECONDS]: as long it is kept, half a second by default */
#include "common.h"

#include <alloca.h>
#include <sys/syscall.h>

#define STACK (8ul << 20)

static pthread_barrier_t all;

static void *deep(void *argument)
{
    volatile char *room = alloca(STACK / 2);

    for (size_t at = 0; at < STACK / 2; at += PAGE)
        room[at] = 7;
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    return argument;
}

static void keep(int milliseconds)
{
    usleep((useconds_t)milliseconds * 1000);
}

/* As a runtime makes system calls of its own, by a number that its code has not. */
static long directly(long which, long a, long b, long c)
{
    volatile long number = which;
    long result;
    register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
    register long file __asm__("r8") = -1;
    register long offset __asm__("r9") = 0;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(flags), "r"(file), "r"(offset)
                     : "rcx", "r11", "memory");
    return result;
}

static void *map_directly(size_t bytes)
{
    return (void *)directly(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE);
}

static void *grow_directly(size_t bytes)
{
    long end = directly(SYS_brk, 0, 0, 0);

    return directly(SYS_brk, end + (long)bytes, 0, 0) > end ? (void *)end : NULL;
}

static void stacks(size_t bytes, int milliseconds)
{
    size_t count = bytes / (STACK / 2);
    pthread_attr_t attributes;
    pthread_t *threads = calloc(count, sizeof *threads);

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_barrier_init(&all, NULL, (unsigned)count + 1);
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attributes, deep, NULL))
            die("pthread_create");
    pthread_barrier_wait(&all);
    keep(milliseconds);
    pthread_barrier_wait(&all);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage");
    size_t bytes = (size_t)atol(argv[2]) << 20;
    int milliseconds = argc > 3 ? atoi(argv[3]) : 500;
    char *at;

    if (!strcmp(argv[1], "stacks")) {
        stacks(bytes, milliseconds);
    } else {
        if (!strcmp(argv[1], "heap"))
            at = malloc(bytes);
        else if (!strcmp(argv[1], "brk"))
            at = grow_directly(bytes);
        else if (!strcmp(argv[1], "shared"))
            at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        else
            at = map_directly(bytes);
        if (at == NULL || at == (char *)-1)
            die("no memory");
        memset(at, 7, bytes);
        keep(milliseconds);
    }
    puts("kept");
    return 0;
}
