/* stdio with large buffers in evicted memory, across fork, and handlers of pthread_atfork that use
   the heap. */
#include "common.h"

#define LINES 200000

static FILE *temporary(const char *name)
{
    FILE *file = fopen(name, "w+");
    if (!file)
        die(name);
    return file;
}

/* Buffers that the program gives, and those that stdio takes from the heap itself. */
static void large_buffers(int given)
{
    char *buffer = given ? malloc(2 * MIB) : NULL;
    FILE *file = temporary("stdio.lines");
    check(setvbuf(file, buffer, _IOFBF, 2 * MIB) == 0, "setvbuf with %s buffer",
          given ? "a" : "its own");
    long sum = 0;
    for (int i = 0; i < LINES; i++) {
        fprintf(file, "%d %s\n", i, i % 3 ? "some text" : "another text");
        if (i % 50000 == 25000)
            evict_all();
    }
    evict_all();
    check(fflush(file) == 0 && ftell(file) == 3488891, "%ld bytes written", ftell(file));
    rewind(file);
    char line[100];
    int wrong = 0, n = 0;
    for (; fgets(line, sizeof line, file); n++) {
        sum += atol(line);
        wrong += atol(line) != n ||
                 strcmp(strchr(line, ' '), n % 3 ? " some text\n" : " another text\n") != 0;
        if (n % 50000 == 25000)
            evict_all();
    }
    check(n == LINES && wrong == 0, "%d lines read, sum %ld, %d wrong", n, sum, wrong);
    check(fseek(file, 1234567, SEEK_SET) == 0 && fgetc(file) != EOF && ungetc('x', file) == 'x' &&
              fgetc(file) == 'x',
          "fseek, ungetc");
    fclose(file);
    free(buffer);

    file = temporary("stdio.blocks");
    char *blocks = heap_pages(2048);
    fill(blocks, 2048, 5);
    evict_all();
    check(fwrite(blocks, PAGE, 2048, file) == 2048, "fwrite of evicted memory");
    rewind(file);
    memset(blocks, 0, 2048 * PAGE);
    evict_all();
    check(fread(blocks, 1000, 8389, file) == 8388 && memcmp(blocks, blocks, 1) == 0,
          "fread into evicted memory");
    check(bad_pages(blocks, 2047, 5) == 0, "carries the content");
    fclose(file);
    free(blocks);
    unlink("stdio.lines");
    unlink("stdio.blocks");
}

static uint64_t content_of(const char *name, long *length)
{
    FILE *file = fopen(name, "r");
    char *text = NULL;
    size_t room = 0;
    uint64_t sum = 0;
    ssize_t n;
    *length = 0;
    while (file && (n = getline(&text, &room, file)) > 0) {
        sum = checksum(text, (size_t)n, sum);
        *length += n;
    }
    free(text);
    if (file)
        fclose(file);
    return sum;
}

/* What is in the buffer at the fork is in the buffers of both, and both write it. */
static void across_fork(void)
{
    FILE *file = temporary("stdio.fork");
    char *buffer = malloc(MIB);
    long length;
    setvbuf(file, buffer, _IOFBF, MIB);
    for (int i = 0; i < 20000; i++)
        fprintf(file, "before %d\n", i);
    pressure(40);
    pid_t pid = fork_flushed();
    if (pid == 0) {
        for (int i = 0; i < 10000; i++)
            fprintf(file, "child %d\n", i);
        pressure(40);
        fclose(file);
        exit(3);
    }
    check(reap(pid) == 3, "a child writes to the file that it inherited");
    for (int i = 0; i < 10000; i++)
        fprintf(file, "parent %d\n", i);
    pressure(40);
    fclose(file);
    free(buffer);
    uint64_t sum = content_of("stdio.fork", &length);
    check(length > 0, "what both wrote: %ld bytes, %016llx", length, (unsigned long long)sum);
    unlink("stdio.fork");
}

static int prepared, parents;
static char *kept;

static void prepare(void)
{
    free(kept);
    kept = malloc(3 * MIB);
    stamp(kept, 3 * MIB, 77);
    prepared++;
}

static void in_parent(void)
{
    char *p = malloc(2 * MIB);
    memset(p, 1, 2 * MIB);
    parents += stamped(kept, 3 * MIB, 77);
    free(p);
}

static int children;

static void in_child(void)
{
    char *p = calloc(2, MIB);
    children += stamped(kept, 3 * MIB, 77) && nonzero(p, 2 * MIB) == 0;
    stamp(kept, 3 * MIB, 78);
    free(p);
}

static atomic_int stop;

static void *churn(void *argument)
{
    uint64_t state = (uint64_t)(uintptr_t)argument;
    char *slots[64] = {0};
    size_t sizes[64];
    size_t wrong = 0;
    for (uint64_t n = 0; !stop; n++) {
        state = mix(state);
        int i = state % 64;
        if (slots[i])
            wrong += !stamped(slots[i], sizes[i], (uint64_t)i);
        free(slots[i]);
        sizes[i] = 1 + (state >> 20) % 40000;
        slots[i] = malloc(sizes[i]);
        stamp(slots[i], sizes[i], (uint64_t)i);
    }
    for (int i = 0; i < 64; i++)
        free(slots[i]);
    return (void *)wrong;
}

/* The heap works in the child of a thread, whatever the other threads were doing in it. */
static void handlers(void)
{
    enum { N = 4, FORKS = 12 };
    pthread_t threads[N];
    int statuses = 0;
    size_t wrong = 0;
    pthread_atfork(prepare, in_parent, in_child);
    for (int i = 0; i < N; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork_flushed();
        if (pid == 0) {
            void *blocks[100];
            for (int b = 0; b < 100; b++)
                stamp(blocks[b] = malloc(50000), 50000, (uint64_t)b);
            int right = children == 1 && stamped(kept, 3 * MIB, 78);
            for (int b = 0; b < 100; b++) {
                right &= stamped(blocks[b], 50000, (uint64_t)b);
                free(blocks[b]);
            }
            _exit(right ? 0 : 1);
        }
        statuses |= reap(pid);
    }
    stop = 1;
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (size_t)result;
    }
    check(prepared == FORKS && parents == FORKS,
          "handlers of fork that use the heap: %d before, %d in the parent", prepared, parents);
    check(statuses == 0, "and in each child");
    check(wrong == 0 && stamped(kept, 3 * MIB, 77), "the parent's heap is right");
}

int main(void)
{
    large_buffers(1);
    large_buffers(0);
    across_fork();
    handlers();
    return finish();
}
