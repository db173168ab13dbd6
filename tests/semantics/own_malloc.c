/* A program whose executable has a malloc of its own, which takes its lock in pthread_atfork, as
   Chromium's and rustc's do. */
#include "common.h"
#include <dlfcn.h>
#include <pwd.h>
#include <semaphore.h>

#define FORKS 40

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *current, *end;
static int begun, early;

/* A block has its size before it, and a number that it is known by. None is used again, so what is
   written tells whether it is still there. */
#define NUMBER(block) ((size_t)(block) ^ 0x5bd1e995a17c3f2b)

void *malloc(size_t size)
{
    pthread_mutex_lock(&lock);
    size = ((size + 15) & ~(size_t)15) + 16;
    if ((size_t)(end - current) < size) {
        size_t chunk = size > MIB ? (size + PAGE - 1) & ~(PAGE - 1) : MIB;
        current = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = current + chunk;
    }
    char *block = current + 16;
    current += size;
    *(size_t *)(block - 16) = size - 16;
    *(size_t *)(block - 8) = NUMBER(block);
    pthread_mutex_unlock(&lock);
    return block;
}

void free(void *block)
{
    early |= !begun;
    if (block) {
        if (*(size_t *)((char *)block - 8) != NUMBER(block)) {
            dprintf(1, "WRONG free of a block of another malloc's\n");
            _exit(97);
        }
    }
}

void *calloc(size_t count, size_t size)
{
    return memset(malloc(count * size), 0, count * size);
}

void *realloc(void *block, size_t size)
{
    char *moved = malloc(size);
    if (block) {
        free(block);
        size_t old = *(size_t *)((char *)block - 16);
        memcpy(moved, block, old < size ? old : size);
    }
    return moved;
}

static void take(void)
{
    pthread_mutex_lock(&lock);
}

static void give_back(void)
{
    pthread_mutex_unlock(&lock);
}

static atomic_int stop;
static sem_t started;

/* Keeps the lock, the streams and the name service busy. */
static void *allocate(void *argument)
{
    (void)argument;
    int first = 1;
    while (!stop) {
        FILE *file = fopen("/etc/passwd", "r");
        char *line = NULL;
        size_t room = 0;
        while (file && getline(&line, &room, file) > 0)
            ;
        if (file)
            fclose(file);
        struct passwd entry, *found;
        char buffer[2048];
        getpwuid_r(0, &entry, buffer, sizeof buffer, &found);
        if (first)
            sem_post(&started);
        first = 0;
    }
    return NULL;
}

static char *(*own)(void);

static void *use(void *argument)
{
    for (int i = 0; i < 4096; i++)
        if (own()[i] != 0)
            return argument;
    memset(own(), 1, 4096);
    return NULL;
}

/* Variables of threads that end: the loader has allocated them, and the C library frees them when
   the next thread gets the stack. */
static void thread_local_variables(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW), *result;
    pthread_t thread;
    int wrong = 0;
    *(void **)&own = library ? dlsym(library, "own") : NULL;
    if (!own)
        die("dlopen");
    for (int i = 0; i < 20; i++) {
        if (pthread_create(&thread, NULL, use, library) || pthread_join(thread, &result))
            die("pthread_create");
        wrong += result != NULL;
    }
    check(wrong == 0, "each thread begins with zeros: %d wrong", wrong);
    dlclose(library);
}

int main(void)
{
    begun = 1;
    check(!early, "nothing is freed before the program begins");
    pthread_atfork(take, give_back, give_back);
    /* With one thread, before anybody has asked for a name. */
    pid_t child = fork_flushed();
    if (child == 0)
        _exit(strlen(strdup("alive")) == 5 ? 0 : 1);
    check(reap(child) == 0, "the child of a process with one thread");

    char *blocks[64];
    for (int i = 0; i < 64; i++)
        stamp(blocks[i] = malloc(50000), 50000, i);
    sem_init(&started, 0, 0);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, allocate, NULL);
    for (int i = 0; i < 3; i++)
        sem_wait(&started);
    int wrong = 0;
    for (int n = 0; n < FORKS; n++) {
        if (n % 10 == 0)
            pressure(24);
        child = fork_flushed();
        if (child == 0) {
            int bad = getpwuid(0) == NULL;
            for (int i = n % 8; i < 64; i += 8)
                bad += !stamped(blocks[i], 50000, i);
            FILE *file = fopen("/dev/null", "w");
            bad += !file || fprintf(file, "%d", n) < 1 || fclose(file) != 0;
            _exit(bad != 0);
        }
        wrong += reap(child) != 0;
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    check(wrong == 0, "%d children of a process with threads: %d wrong", FORKS, wrong);
    /* What the loader allocates and frees goes there too. */
    for (int i = 0; i < 20; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        wrong += !library || dlsym(library, "none") || !dlerror() || dlclose(library);
        wrong += dlopen("libnone.so", RTLD_NOW) != NULL || !dlerror();
    }
    check(wrong == 0, "libraries loaded and not found: %d wrong", wrong);
    thread_local_variables();
    return finish();
}
