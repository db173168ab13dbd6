/* The malloc family under pressure: alignment, content, sizes that cannot be had, and the callers
   inside libc. */
#include "common.h"
#include <malloc.h>

/* Sizes and pointers that the compiler must not reason about. */
static volatile size_t absurd = PTRDIFF_MAX;

static void *hidden(void *p)
{
    __asm__ volatile("" : "+r"(p));
    return p;
}

static void alignments(void)
{
    int wrong = 0;
    for (size_t align = 16; align <= MIB; align *= 2)
        for (size_t size = 1; size <= 3 * MIB; size = size * 7 + 1) {
            void *p = NULL, *q = aligned_alloc(align, (size + align - 1) / align * align),
                 *r = memalign(align, size);
            wrong += posix_memalign(&p, align, size) != 0 || !p || !q || !r;
            wrong += ((uintptr_t)p | (uintptr_t)q | (uintptr_t)r) % align != 0;
            stamp(p, size, 1);
            stamp(q, size, 2);
            stamp(r, size, 3);
            wrong += !stamped(p, size, 1) || !stamped(q, size, 2) || !stamped(r, size, 3);
            free(p);
            free(q);
            free(r);
        }
    check(wrong == 0, "posix_memalign, aligned_alloc and memalign align: %d wrong", wrong);
    void *v = valloc(100), *pv = pvalloc(PAGE + 1);
    check((uintptr_t)v % PAGE == 0 && (uintptr_t)pv % PAGE == 0,
          "valloc and pvalloc give whole pages");
    check(malloc_usable_size(pv) >= 2 * PAGE, "pvalloc rounds up to pages");
    free(v);
    free(pv);
    wrong = 0;
    /* Runtimes keep four bits of their own in pointers to blocks of any size. */
    for (size_t size = 0; size < 5000; size++) {
        void *p = malloc(size), *q = calloc(1, size), *r = realloc(malloc(size + 100), size + 1),
             *s = memalign(1, size);
        wrong += ((uintptr_t)p | (uintptr_t)q | (uintptr_t)r | (uintptr_t)s) % 16 != 0;
        wrong += malloc_usable_size(p) < size || malloc_usable_size(r) < size + 1;
        memset(p, 1, malloc_usable_size(p));
        free(p);
        free(q);
        free(r);
        free(s);
    }
    check(wrong == 0, "malloc aligns, and all of the usable size can be used: %d wrong", wrong);
}

static void contents(void)
{
    int wrong = 0;
    char *p = NULL;
    size_t have = 0;
    for (size_t size = 1; size <= 24 * MIB; size = size * 3 / 2 + 7) {
        p = realloc(p, size);
        wrong += !p || !stamped(p, have, 5);
        stamp(p, size, 5);
        have = size;
    }
    pressure(40);
    for (size_t size = have / 2; size > 0; size /= 3) {
        p = realloc(p, size);
        wrong += !p || !stamped(p, size, 5);
    }
    free(p);
    check(wrong == 0, "realloc keeps the content while it grows and shrinks: %d wrong", wrong);

    wrong = 0;
    char *blocks[64];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 64; i++) {
            size_t size = (size_t)1 << (4 + (i + round) % 17);
            blocks[i] = calloc(size / 8, 8);
            wrong += nonzero(blocks[i], size) != 0;
            memset(blocks[i], 0xdd, malloc_usable_size(blocks[i]));
        }
        if (round == 2)
            pressure(40);
        for (int i = 0; i < 64; i++)
            free(blocks[i]);
    }
    char *large = malloc(20 * MIB);
    memset(large, 0xee, 20 * MIB);
    pressure(32);
    free(large);
    large = calloc(20, MIB);
    wrong += nonzero(large, 20 * MIB) != 0;
    free(large);
    check(wrong == 0, "calloc gives zeros where others have written before: %d wrong", wrong);
}

/* That a request fails with ENOMEM. */
#define REFUSED(call) (errno = 0, (call) == NULL && errno == ENOMEM)

static void refusals(void)
{
    check(REFUSED(malloc(absurd)), "malloc of PTRDIFF_MAX bytes: ENOMEM");
    check(REFUSED(malloc(absurd + absurd)), "malloc of nearly SIZE_MAX bytes: ENOMEM");
    check(REFUSED(calloc(absurd, 3)), "calloc whose product overflows: ENOMEM");
    check(REFUSED(calloc(absurd / 16, 16)), "calloc of half the numbers there are: ENOMEM");
    check(REFUSED(memalign(64, absurd)), "memalign of PTRDIFF_MAX bytes: ENOMEM");
    check(REFUSED(memalign(absurd, 1)) && REFUSED(aligned_alloc(absurd + 1, 1)),
          "memalign and aligned_alloc to half of all addresses: ENOMEM");
    errno = 0;
    check(memalign(absurd + 2, 1) == NULL && errno == EINVAL, "memalign to more: EINVAL");
    void *p = malloc(100000), *untouched = p;
    stamp(p, 100000, 8);
    check(REFUSED(realloc(hidden(p), absurd)), "realloc to PTRDIFF_MAX bytes: ENOMEM");
    check(REFUSED(reallocarray(hidden(p), absurd, 4)),
          "reallocarray whose product overflows: ENOMEM");
    check(stamped(p, 100000, 8), "and the block stays as it was");
    check(posix_memalign(&untouched, 24, 100) == EINVAL &&
              posix_memalign(&untouched, 4, 100) == EINVAL,
          "posix_memalign to no power of two, or less than a pointer: EINVAL");
    check(posix_memalign(&untouched, 64, absurd) == ENOMEM && untouched == p,
          "posix_memalign of too much: ENOMEM, result untouched");
    free(p);
}

static void corners(void)
{
    free(NULL);
    void *a = malloc(0), *b = malloc(0);
    check(a && b && a != b, "malloc(0) gives blocks of their own");
    free(a);
    free(b);
    a = realloc(NULL, 50);
    check(a != NULL, "realloc(NULL, n) is malloc");
    free(a);
    check(malloc_usable_size(NULL) == 0, "malloc_usable_size(NULL) is 0");
    errno = 1234;
    for (size_t size = 1; size < 32 * MIB; size *= 5) {
        a = malloc(size);
        memset(a, 1, size);
        errno = 1234;
        free(a);
        if (errno != 1234)
            break;
    }
    check(errno == 1234, "free leaves errno alone");
    malloc_trim(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallinfo2();
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Memory that libc allocates and the program frees, or the other way round. */
static void libc_callers(void)
{
    char *text = NULL, *line = NULL;
    size_t size = 0, lines = 0, room = 0;
    check(asprintf(&text, "%0500000d", 7) == 500000 && text[499999] == '7', "asprintf");
    char *copy = strdup(text), *part = strndup(text, 1000);
    check(strcmp(copy, text) == 0 && strlen(part) == 1000, "strdup and strndup");
    free(copy);
    free(part);
    free(text);
    FILE *stream = open_memstream(&text, &size);
    for (int i = 0; i < 100000; i++)
        fprintf(stream, "line %d\n", i);
    fclose(stream);
    check(size == 1088890, "open_memstream holds %zu bytes", size);
    pressure(40);
    stream = fmemopen(text, size, "r");
    while (getline(&line, &room, stream) > 0)
        lines += atoi(line + 5) == (int)lines;
    fclose(stream);
    free(line);
    free(text);
    check(lines == 100000, "getline over fmemopen: %zu lines", lines);

    size_t count = MIB;
    uint64_t *numbers = malloc(count * sizeof *numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = mix(i);
    qsort(numbers, count, sizeof *numbers, by_value);
    size_t falls = 0;
    for (size_t i = 1; i < count; i++)
        falls += numbers[i - 1] > numbers[i];
    check(falls == 0, "qsort of 8 MiB: checksum %016llx",
          (unsigned long long)checksum(numbers, count * 8, 0));
    free(numbers);
}

/* Random blocks, some 40 MiB at a time. */
static void torture(void)
{
    enum { SLOTS = 4096 };
    static struct { char *p; size_t size; uint64_t seed; } slots[SLOTS];
    uint64_t state = 1;
    int wrong = 0;
    for (uint64_t step = 0; step < 60000; step++) {
        state = mix(state);
        size_t i = state % SLOTS,
               size = 1 + (state >> 20) % ((size_t)1 << (4 + (state >> 12) % 13));
        if (state >> 60 == 0)
            size *= 8;
        wrong += slots[i].p && !stamped(slots[i].p, slots[i].size, slots[i].seed);
        switch ((state >> 50) % 5) {
        case 0:
            free(slots[i].p);
            slots[i].p = NULL;
            continue;
        case 1: {
            size_t kept = slots[i].p ? slots[i].size : 0;
            slots[i].p = realloc(slots[i].p, size);
            wrong += !stamped(slots[i].p, kept < size ? kept : size, slots[i].seed);
            break;
        }
        case 2:
            free(slots[i].p);
            slots[i].p = calloc(1, size);
            wrong += nonzero(slots[i].p, size) != 0;
            break;
        default:
            free(slots[i].p);
            slots[i].p = malloc(size);
        }
        slots[i].size = size;
        slots[i].seed = step;
        stamp(slots[i].p, size, step);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].p) {
            wrong += !stamped(slots[i].p, slots[i].size, slots[i].seed);
            bytes += slots[i].size;
            free(slots[i].p);
        }
    check(wrong == 0, "60000 random operations, %zu bytes at the end: %d wrong", bytes, wrong);
}

int main(void)
{
    alignments();
    contents();
    refusals();
    corners();
    libc_callers();
    torture();
    return finish();
}
