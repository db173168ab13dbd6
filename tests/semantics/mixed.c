/*
 * Everything at once: threads that allocate, map, protect, discard, move, copy and hand blocks to
 * each other at random, each block with known content that is verified before anything is done with
 * it.
 *
 * usage: mixed [STEPS]
 */
#include "common.h"
#include <malloc.h>

#define THREADS 32
#define SLOTS 48
#define MAP_PAGES_MAX ((size_t)64)

/* Content of a block: a stamp for heap blocks; for mapped ones a seed a page, 0 for zeros. */
struct block {
    char *p;
    size_t size;
    uint64_t seed;
    int mapped, inaccessible;
    uint64_t page_seed[MAP_PAGES_MAX];
};

static _Atomic(struct block *) exchange[64];
static atomic_long wrong, blocks_made;
static long steps = 800;

static void verify(struct block *b)
{
    if (b->inaccessible) {
        if (mprotect(b->p, b->size, b->inaccessible == 1 ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
            die("mprotect");
        b->inaccessible = b->inaccessible == 1 ? 3 : 0;
    }
    if (!b->mapped) {
        wrong += !stamped(b->p, b->size, b->seed);
        return;
    }
    for (size_t i = 0; i < b->size / PAGE; i++)
        wrong += b->page_seed[i] ? !page_is(b->p + i * PAGE, b->page_seed[i])
                                 : nonzero(b->p + i * PAGE, PAGE) != 0;
}

static void make_writable(struct block *b)
{
    if (b->inaccessible && mprotect(b->p, b->size, PROT_READ | PROT_WRITE) != 0)
        die("mprotect");
    b->inaccessible = 0;
}

static void destroy(struct block *b)
{
    verify(b);
    if (b->mapped)
        munmap(b->p, b->size);
    else
        free(b->p);
    free(b);
}

static struct block *make(uint64_t r, uint64_t seed)
{
    struct block *b = malloc(sizeof *b);
    b->inaccessible = 0;
    b->seed = seed;
    b->mapped = r % 3 == 0;
    if (b->mapped) {
        size_t pages = 1 + (r >> 8) % MAP_PAGES_MAX;
        b->size = pages * PAGE;
        b->p = map_pages(pages);
        /* Some pages are never written. */
        for (size_t i = 0; i < pages; i++) {
            b->page_seed[i] = mix(seed + i) % 8 ? seed * 1000 + i + 1 : 0;
            if (b->page_seed[i])
                fill_page(b->p + i * PAGE, b->page_seed[i]);
        }
    } else {
        b->size = 1 + (r >> 16) % ((size_t)1 << (4 + (r >> 8) % 15));
        switch ((r >> 4) % 4) {
        case 0:
            b->p = calloc(1, b->size);
            wrong += nonzero(b->p, b->size) != 0;
            break;
        case 1:
            b->p = memalign((size_t)16 << (r >> 40) % 10, b->size);
            break;
        default:
            b->p = malloc(b->size);
        }
        stamp(b->p, b->size, seed);
    }
    blocks_made++;
    return b;
}

static void change_mapped(struct block *b, uint64_t r, uint64_t seed)
{
    size_t pages = b->size / PAGE, first = (r >> 8) % pages,
           count = 1 + (r >> 16) % (pages - first);
    switch (r % 7) {
    case 0:
        if (madvise(b->p + first * PAGE, count * PAGE, MADV_DONTNEED) != 0)
            die("madvise");
        memset(b->page_seed + first, 0, count * sizeof b->page_seed[0]);
        break;
    case 1:
        if (mprotect(b->p, b->size, PROT_NONE) != 0)
            die("mprotect");
        b->inaccessible = r >> 63 ? 1 : 2;
        break;
    case 2:
        if (mprotect(b->p, b->size, PROT_READ) != 0)
            die("mprotect");
        b->inaccessible = 3;
        break;
    case 3: {
        /* The tail goes. */
        if (first == 0)
            break;
        munmap(b->p + first * PAGE, b->size - first * PAGE);
        b->size = first * PAGE;
        break;
    }
    case 4: {
        make_writable(b);
        char *p = mremap(b->p, b->size, MAP_PAGES_MAX * PAGE, MREMAP_MAYMOVE);
        if (p == MAP_FAILED)
            die("mremap");
        memset(b->page_seed + pages, 0, (MAP_PAGES_MAX - pages) * sizeof b->page_seed[0]);
        b->p = p;
        b->size = MAP_PAGES_MAX * PAGE;
        break;
    }
    default:
        make_writable(b);
        for (size_t i = first; i < first + count; i++) {
            b->page_seed[i] = seed * 1000 + i + 1;
            fill_page(b->p + i * PAGE, b->page_seed[i]);
        }
    }
}

static void change_heap(struct block *b, struct block *other, uint64_t r, uint64_t seed)
{
    size_t size = 1 + (r >> 16) % ((size_t)1 << (4 + (r >> 8) % 15)),
           kept = size < b->size ? size : b->size;
    if (r % 2 && other && !other->mapped) {
        kept = other->size < b->size ? other->size : b->size;
        memcpy(b->p, other->p, kept);
        b->size = kept;
        b->seed = other->seed;
        wrong += !stamped(b->p, kept, b->seed);
        return;
    }
    b->p = realloc(b->p, size);
    wrong += !stamped(b->p, kept, b->seed);
    b->size = size;
    b->seed = seed;
    stamp(b->p, size, seed);
}

static void *work(void *argument)
{
    struct block *slots[SLOTS] = {0};
    uint64_t thread = (uint64_t)(uintptr_t)argument, state = thread + 1;
    for (long step = 0; step < steps; step++) {
        state = mix(state);
        uint64_t r = mix(state), seed = thread * 10000000 + (uint64_t)step + 1;
        struct block **slot = &slots[state % SLOTS], *other = slots[(state >> 8) % SLOTS];
        if (!*slot) {
            *slot = make(r, seed);
            continue;
        }
        switch ((state >> 20) % 8) {
        case 0:
        case 1:
            destroy(*slot);
            *slot = make(r, seed);
            break;
        case 2:
            destroy(*slot);
            *slot = NULL;
            break;
        case 3:
            verify(*slot);
            *slot = atomic_exchange(&exchange[r % 64], *slot);
            if (*slot)
                verify(*slot);
            break;
        default:
            verify(*slot);
            if ((*slot)->mapped)
                change_mapped(*slot, r, seed);
            else
                change_heap(*slot, other == *slot ? NULL : other, r, seed);
        }
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i])
            destroy(slots[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    if (argc > 1)
        steps = atol(argv[1]);
    for (int i = 0; i < THREADS; i++)
        if ((errno = pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i)) != 0)
            die("pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 64; i++)
        if (exchange[i])
            destroy(exchange[i]);
    check(wrong == 0, "%d threads, %ld steps each: %ld wrong", THREADS, steps, (long)wrong);
    check(blocks_made > 0, "blocks were made");
    return finish();
}
