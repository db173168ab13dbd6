/*
 * An array of four times the memory that it may have, and its sum.
 *
 *   cc -o larger_than_ram larger_than_ram.c $(pkg-config --cflags --libs overspill)
 *   ./larger_than_ram [MIB [DIRECTORY]]     the budget, 64 MiB; where the rest goes, /var/tmp
 */
#include <overspill.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(overspill_error error) {
    if (error != OVERSPILL_OK) {
        fprintf(stderr, "%s: %s\n", overspill_error_text(error), overspill_last_message());
        exit(1);
    }
}

static uint64_t counter(overspill_pool *pool, const char *name) {
    uint64_t value;
    check(overspill_stats(pool, name, &value));
    return value;
}

int main(int argc, char **argv) {
    const size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    overspill_options options = OVERSPILL_OPTIONS_INIT;
    options.memory = (uint64_t)mib << 20;
    options.swap = argc > 2 ? argv[2] : "/var/tmp";
    overspill_pool *pool;
    check(overspill_open(&options, &pool));

    void *region;
    check(overspill_map(pool, 4 * options.memory, &region));
    uint64_t *values = region;
    const uint64_t count = 4 * options.memory / sizeof *values;
    for (uint64_t i = 0; i < count; i++) values[i] = i * 0x9E3779B97F4A7C15u;
    uint64_t sum = 0, expected = 0;
    for (uint64_t i = 0; i < count; i++) sum += values[i];
    for (uint64_t i = 0; i < count; i++) expected += i * 0x9E3779B97F4A7C15u;
    if (sum != expected || counter(pool, "charged_peak_bytes") > options.memory) {
        fprintf(stderr, "the sum is %" PRIu64 " and should be %" PRIu64 "\n", sum, expected);
        return 1;
    }
    printf("the sum of %zu MiB in %zu MiB is right, after %" PRIu64 " faults\n", 4 * mib, mib,
           counter(pool, "pgfault"));

    check(overspill_unmap(pool, region));
    check(overspill_close(pool));
    return 0;
}
