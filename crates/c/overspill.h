/*
 * overspill: regions of memory larger than their budget of RAM.
 *
 * The manual page overspill(3) and docs/guide/c.md say how it is used. This file is made by
 * cbindgen from the definitions in crates/c/src.
 */

#ifndef OVERSPILL_H
#define OVERSPILL_H

#include <stddef.h>
#include <stdint.h>

/** What options begin with: signal delivery, no swap devices. The memory is to be set. */
#define OVERSPILL_OPTIONS_INIT                                                                    \
    {sizeof(overspill_options), 0, NULL, OVERSPILL_DELIVERY_SIGNAL, NULL}

/**
 * What came of a call: `OVERSPILL_OK`, or why it did nothing.
 */
typedef enum {
    /**
     * It did what it was asked.
     */
    OVERSPILL_OK = 0,
    /**
     * An argument cannot be: a null pointer, a size of nothing, a word of no enumeration.
     */
    OVERSPILL_ERROR_ARGUMENT = 1,
    /**
     * The settings name what is no setting, or a value that it does not take.
     */
    OVERSPILL_ERROR_SETTING = 2,
    /**
     * The budget is too small, too large, or does not go with the settings.
     */
    OVERSPILL_ERROR_BUDGET = 3,
    /**
     * A swap device cannot be used.
     */
    OVERSPILL_ERROR_DEVICE = 4,
    /**
     * The kernel gives this user no userfaultfd.
     */
    OVERSPILL_ERROR_NO_USERFAULTFD = 5,
    /**
     * The kernel cannot do what is asked for, or the process cannot beside `overspill run`.
     */
    OVERSPILL_ERROR_UNSUPPORTED = 6,
    /**
     * The process has as many pools or threads as it can.
     */
    OVERSPILL_ERROR_LIMIT = 7,
    /**
     * There is no address space for the pool, or no room in it for the region.
     */
    OVERSPILL_ERROR_ADDRESS_SPACE = 8,
    /**
     * The budget has no room for it.
     */
    OVERSPILL_ERROR_NO_MEMORY = 9,
    /**
     * There is no such pool: it was closed, or never opened.
     */
    OVERSPILL_ERROR_NO_POOL = 10,
    /**
     * The addresses are not in a region of the pool, or not in one.
     */
    OVERSPILL_ERROR_NO_REGION = 11,
    /**
     * It is in use: a pool with regions or calls under way, a region with a part that is held.
     */
    OVERSPILL_ERROR_IN_USE = 12,
    /**
     * What is to be released is not held.
     */
    OVERSPILL_ERROR_NOT_HELD = 13,
    /**
     * There is no counter of that name.
     */
    OVERSPILL_ERROR_NO_COUNTER = 14,
    /**
     * Nothing has room for the pages of the device: it stays in use.
     */
    OVERSPILL_ERROR_NO_ROOM = 15,
    /**
     * The process is a child that was not made by fork(3): it has no pools.
     */
    OVERSPILL_ERROR_FORKED = 16,
    /**
     * The system refused something else.
     */
    OVERSPILL_ERROR_SYSTEM = 17,
} overspill_error;

/**
 * How faults are served.
 */
typedef enum {
    /**
     * By the thread that faults. It needs no rights. System calls fail with EFAULT on memory that
     * is out: `overspill_hold` brings it in and keeps it there.
     */
    OVERSPILL_DELIVERY_SIGNAL = 0,
    /**
     * By a thread of the library. System calls work on any memory of the pool. It needs root,
     * CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or /dev/userfaultfd.
     */
    OVERSPILL_DELIVERY_THREAD = 1,
} overspill_delivery;

/**
 * What is going to happen to pages. Their content stays.
 */
typedef enum {
    /**
     * They are not needed soon: they leave first when room is needed.
     */
    OVERSPILL_ADVICE_COLD = 0,
    /**
     * They are not needed for long: they leave now.
     */
    OVERSPILL_ADVICE_PAGEOUT = 1,
    /**
     * They are needed soon: they come in, as many as there is room for.
     */
    OVERSPILL_ADVICE_WILLNEED = 2,
} overspill_advice;

/**
 * A pool: a budget of RAM with everything behind it. One that was opened is closed by
 * `overspill_close`.
 */
typedef struct overspill_pool overspill_pool;

/**
 * What a pool is opened with. Begin with `OVERSPILL_OPTIONS_INIT`.
 */
typedef struct {
    /**
     * Bytes of this, by which later versions of the library know what it has.
     */
    size_t size;
    /**
     * The budget of RAM in bytes, 4 MiB at least.
     */
    uint64_t memory;
    /**
     * Swap devices, as `overspill run --swap` takes them: "/fast:20G,prio=2,/slow". Null for none:
     * then pages are only compressed.
     */
    const char *swap;
    /**
     * One of `overspill_delivery`.
     */
    int delivery;
    /**
     * Settings, as `overspill run --set` takes them: "zswap.codec=zstd:1,oom=sigbus". Null for
     * none.
     */
    const char *settings;
} overspill_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What a code means, in a few words. Never null; it is not to be freed.
 */
const char *overspill_error_text(int error);

/**
 * Why the last call of this thread that failed did so: a sentence that says what to do. Empty
 * before the first. It stays until the next call of the thread that fails, and is not to be freed.
 */
const char *overspill_last_message(void);

/**
 * Opens a pool and puts its handle into `*pool`.
 *
 * The strings of the options end with a zero.
 */
overspill_error overspill_open(const overspill_options *options, overspill_pool **pool);

/**
 * Closes a pool, which has no regions any more. A null pointer is no pool, and that is no error.
 */
overspill_error overspill_close(overspill_pool *pool);

/**
 * Maps a region of `size` zero bytes, which may be more than the budget, and puts its address into
 * `*address`. It begins at a page.
 */
overspill_error overspill_map(overspill_pool *pool, size_t size, void **address);

/**
 * Unmaps the region that begins at `address`, all of it. A null pointer is no region, and that is
 * no error.
 */
overspill_error overspill_unmap(overspill_pool *pool, void *address);

/**
 * Says what is going to happen to `size` bytes of a region, one of `overspill_advice`. Whole pages
 * around them are meant.
 */
overspill_error overspill_advise(overspill_pool *pool,
                                 const void *address,
                                 size_t size,
                                 int advice);

/**
 * Brings `size` bytes of a region into memory, as many as there is room for without reclaim:
 * `OVERSPILL_ADVICE_WILLNEED`.
 */
overspill_error overspill_prefetch(overspill_pool *pool, const void *address, size_t size);

/**
 * Brings `size` bytes of a region into memory and keeps them there until `overspill_release` of
 * the same, as often as they were held: so that a system call can read and write them in any
 * delivery. At most half of the budget can be held.
 */
overspill_error overspill_hold(overspill_pool *pool, const void *address, size_t size);

/**
 * Ends what `overspill_hold` of the same bytes began.
 */
overspill_error overspill_release(overspill_pool *pool, const void *address, size_t size);

/**
 * Changes the budget to `memory` bytes. A larger one is in force when this returns, a smaller one
 * by and by.
 */
overspill_error overspill_set_memory(overspill_pool *pool, uint64_t memory);

/**
 * Takes `memory` bytes of pages out of memory ahead of need, and waits for it. How many have left
 * is put into `*reclaimed`, which may be null.
 */
overspill_error overspill_reclaim(overspill_pool *pool, uint64_t memory, uint64_t *reclaimed);

/**
 * Adds a swap device, as `overspill run --swap` takes it: "/scratch:20G".
 */
overspill_error overspill_swapon(overspill_pool *pool, const char *device);

/**
 * Takes a swap device out of use, by its path, label or UUID: waits until its pages are elsewhere.
 * If nothing has room for them it stays in use.
 */
overspill_error overspill_swapoff(overspill_pool *pool, const char *device);

/**
 * Reads the counter of that name into `*value`.
 */
overspill_error overspill_stats(overspill_pool *pool, const char *name, uint64_t *value);

/**
 * The name of the counter of that number, counted from 0; null after the last. It is not to be
 * freed.
 */
const char *overspill_stats_name(size_t number);

/**
 * The version of the library, such as "0.1.0". It is not to be freed.
 */
const char *overspill_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OVERSPILL_H */
