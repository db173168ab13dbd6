/* Blocks that one library allocates and another frees, where the two find malloc in different ways:
   RTLD_DEEPBIND, dlsym. */
#include "common.h"
#include <dlfcn.h>
#include <malloc.h>

#define SMALL 300
#define LARGE (40 * MIB)

typedef void *(*make_function)(size_t);
typedef void *(*resize_function)(void *, size_t);
typedef void (*give_up_function)(void *);
typedef size_t (*usable_function)(void *);

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        dprintf(2, "%s\n", dlerror());
        _exit(99);
    }
    return found;
}

/* Blocks go to and fro between the program and other functions of the family. */
static void exchange(const char *whose, make_function make, resize_function resize,
                     give_up_function give_up, usable_function usable)
{
    int wrong = 0;
    for (size_t size = 1; size < LARGE; size = size * 3 + 7) {
        char *theirs = make(size), *ours = malloc(size);
        stamp(theirs, size, size);
        stamp(ours, size, size + 1);
        wrong += usable(ours) < size || malloc_usable_size(theirs) < size;
        ours = resize(ours, size * 2);
        theirs = realloc(theirs, size * 2);
        wrong += !stamped(ours, size, size + 1) || !stamped(theirs, size, size);
        free(theirs);
        give_up(ours);
    }
    check(wrong == 0, "%s: blocks cross: %d wrong", whose, wrong);
}

int main(void)
{
    void *bound = dlopen(LIBRARY, RTLD_NOW | RTLD_DEEPBIND);
    if (!bound) {
        dprintf(2, "%s\n", dlerror());
        return 99;
    }
    exchange("a library opened with RTLD_DEEPBIND", (make_function)(uintptr_t)find(bound, "make"),
             (resize_function)(uintptr_t)find(bound, "resize"),
             (give_up_function)(uintptr_t)find(bound, "give_up"),
             (usable_function)(uintptr_t)find(bound, "usable"));
    int (*all_kinds)(void) = (int (*)(void))(uintptr_t)find(bound, "all_kinds");
    check(all_kinds() == 0, "such a library by itself");

    void *c = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    exchange("dlsym of the C library", (make_function)(uintptr_t)find(c, "malloc"),
             (resize_function)(uintptr_t)find(c, "realloc"),
             (give_up_function)(uintptr_t)find(c, "free"),
             (usable_function)(uintptr_t)find(c, "malloc_usable_size"));

    /* What such a library has allocated is memory like any other. */
    make_function make = (make_function)(uintptr_t)find(bound, "make");
    char *blocks[SMALL];
    for (int i = 0; i < SMALL; i++) {
        blocks[i] = make(100000);
        stamp(blocks[i], 100000, i);
    }
    pressure(40);
    pid_t child = fork_flushed();
    int wrong = 0;
    for (int i = 0; i < SMALL; i++) {
        wrong += !stamped(blocks[i], 100000, i);
        free(blocks[i]);
    }
    if (child == 0)
        _exit(wrong != 0);
    check(wrong == 0 && reap(child) == 0, "blocks of such a library under pressure and in a child");
    return finish();
}
