//! What is counted, and how each figure is named. Gauges come first, up to [`Counter::PgFault`]: a
//! child of a fork keeps them, while what follows is counted from zero in it.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal),* $(,)?) => {
        /// The counters and gauges of a pool.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $name),* }

        impl Counter {
            /// All of them, in the order of the table.
            pub const ALL: &[Counter] = &[$(Counter::$name),*];

            /// The name under which it is printed, as in /proc/vmstat where it has one.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$name => $text),* }
            }
        }
    };
}

counters! {
    /// Budget of the job, in bytes (gauge).
    BudgetBytes => "budget_bytes",
    /// What of it the process may have now for managed pages (gauge).
    LimitBytes => "limit_bytes",
    /// Bytes of budget in use: resident pages and frames (gauge).
    ChargedBytes => "charged_bytes",
    /// Highest `ChargedBytes` seen (gauge).
    ChargedPeakBytes => "charged_peak_bytes",
    /// Memory of the process that is not managed, and comes off its limit: stacks, data of
    /// libraries, shared memory, the engine's own tables (gauge).
    UnmanagedBytes => "unmanaged_bytes",
    /// Highest `UnmanagedBytes` seen (gauge).
    UnmanagedPeakBytes => "unmanaged_peak_bytes",
    /// Of that memory, when it was last looked at by kind, as it is once there is much: shared
    /// memory (gauge).
    UnmanagedSharedBytes => "unmanaged_shared_bytes",
    /// Stacks (gauge).
    UnmanagedStackBytes => "unmanaged_stack_bytes",
    /// What brk(2) gave (gauge).
    UnmanagedBrkBytes => "unmanaged_brk_bytes",
    /// Data of the program and its libraries (gauge).
    UnmanagedDataBytes => "unmanaged_data_bytes",
    /// Pages of files that are mapped privately and were written (gauge).
    UnmanagedFileBytes => "unmanaged_file_bytes",
    /// Memory that code may be run in (gauge).
    UnmanagedCodeBytes => "unmanaged_code_bytes",
    /// Anonymous memory of other origin: the kernel was asked for it directly (gauge).
    UnmanagedOtherBytes => "unmanaged_other_bytes",
    /// The engine's own, and what the process had before it was managed (gauge).
    UnmanagedEngineBytes => "unmanaged_engine_bytes",
    /// Resident application pages (gauge).
    ResidentPages => "nr_resident",
    /// Pages in the swap cache, unmapped and uncompressed (gauge).
    SwapCachePages => "nr_swapcached",
    /// Bytes of address space under management (gauge).
    ManagedBytes => "managed_bytes",
    /// Highest `ManagedBytes` seen (gauge).
    ManagedPeakBytes => "managed_peak_bytes",
    /// Bytes of metadata touched so far, estimated from the tables in use (gauge).
    MetadataBytes => "metadata_bytes",
    /// Pages held compressed (gauge).
    CompressedPages => "zswap_stored_pages",
    /// Bytes of those pages after compression (gauge).
    CompressedBytes => "zswap_stored_bytes",
    /// Bytes of frames behind the compressed tier (gauge).
    CompressedPoolBytes => "zswap_pool_bytes",
    /// What these may come to (gauge).
    CompressedLimitBytes => "zswap_pool_limit_bytes",
    /// Pages held as a fill value only (gauge).
    SameFilledPages => "zswap_same_filled_pages",
    /// Slots of swap devices in use: pages on them, and compressed pages that have a place there
    /// (gauge).
    DevicePages => "nr_swap_used",
    /// Bytes that swap devices can hold at most (gauge).
    DeviceCapacityBytes => "swap_total_bytes",
    /// Frames of the arena (gauge).
    ArenaFrames => "arena_frames",
    /// Pages in memory that have a copy on a device which is as good (gauge).
    CleanPages => "nr_clean",
    /// Pages in memory that were shared by a fork, and not written to since (gauge).
    SharedPages => "nr_shared",
    /// Threads that reclaim for themselves now (gauge).
    Reclaimers => "nr_reclaimers",
    /// Free blocks of each order, as in /proc/buddyinfo (gauges, brought up to date now and then).
    BuddyFree0 => "buddy_free_order_0",
    /// Order 1.
    BuddyFree1 => "buddy_free_order_1",
    /// Order 2.
    BuddyFree2 => "buddy_free_order_2",
    /// Order 3.
    BuddyFree3 => "buddy_free_order_3",
    /// Order 4.
    BuddyFree4 => "buddy_free_order_4",
    /// Order 5.
    BuddyFree5 => "buddy_free_order_5",
    /// Order 6.
    BuddyFree6 => "buddy_free_order_6",
    /// Order 7.
    BuddyFree7 => "buddy_free_order_7",
    /// Order 8.
    BuddyFree8 => "buddy_free_order_8",
    /// Order 9.
    BuddyFree9 => "buddy_free_order_9",
    /// Faults served, of any kind.
    PgFault => "pgfault",
    /// Faults that had to read a device.
    PgMajFault => "pgmajfault",
    /// Pages that were zero-filled.
    ZeroFill => "pgzerofill",
    /// Pages brought in from the swap cache (minor faults).
    CacheIn => "swpcache_in",
    /// Look-ups in the compressed tier's index, none of which takes a lock.
    ZswapLookup => "zswap_lookup",
    /// Compressed pages that were forgotten because their slot was given back.
    ZswapErased => "zswap_erased",
    /// Times that a lock of the compressed tier's index was taken.
    ZswapLock => "zswap_lock",
    /// Times that one had to be waited for.
    ZswapLockContended => "zswap_lock_contended",
    /// Time waited for them, in nanoseconds.
    ZswapLockWaitNs => "zswap_lock_wait_ns",
    /// Time that they were held, in nanoseconds.
    ZswapLockHoldNs => "zswap_lock_hold_ns",
    /// The part of that in holds of more than 50 us: the holder did not run.
    ZswapLockLongNs => "zswap_lock_long_ns",
    /// Pages decompressed.
    ZswpIn => "zswpin",
    /// Pages compressed.
    ZswpOut => "zswpout",
    /// Of these, those packed by a denser codec as that pays (zswap.codec=auto).
    ZswpOutDense => "zswpout_dense",
    /// Pages that left their place because the program advised it (MADV_COLD, MADV_PAGEOUT).
    PgAdvisedOut => "pgadvised_out",
    /// Compressed pages written to devices.
    ZswpWb => "zswpwb",
    /// Compressed pages that stayed cold and were compressed more densely.
    ZswapRecompressed => "zswap_recompressed",
    /// Pages read from devices.
    PswpIn => "pswpin",
    /// Pages written to devices.
    PswpOut => "pswpout",
    /// Read operations on devices.
    PswpInOps => "pswpin_ops",
    /// Write operations on devices.
    PswpOutOps => "pswpout_ops",
    /// Pages read from devices ahead of need: around a missing one, or with it in a folio.
    SwapRa => "swap_ra",
    /// Pages of those that were wanted after all.
    SwapRaHit => "swap_ra_hit",
    /// Pages that the thread ahead of long sequences brought in.
    SwapAhead => "swap_ahead",
    /// Pages that were moved elsewhere from devices that were taken out of use.
    SwapoffPages => "swapoff_pages",
    /// Pages that were read for that.
    SwapoffRead => "swapoff_read",
    /// Operations by which they were read.
    SwapoffReadOps => "swapoff_read_ops",
    /// Pages that could not be read then: they are lost.
    SwapoffLost => "swapoff_lost",
    /// Pages that came back from a device, and what left memory between is known.
    WorkingsetRefault => "workingset_refault",
    /// Pages that have left memory for the compressed tier or a device.
    WorkingsetEvict => "workingset_evict",
    /// Pages whose refault distance is known, and the sums over them of what the process might
    /// have then, of the frames of the compressed tier, and of the pages in it: divided they are
    /// means.
    RefaultSeen => "refault_seen",
    /// See `RefaultSeen`.
    RefaultLimitPages => "refault_limit_pages",
    /// See `RefaultSeen`.
    RefaultTierFrames => "refault_tier_frames",
    /// See `RefaultSeen`.
    RefaultTierPages => "refault_tier_pages",
    /// Pages of those that came back so soon that they are passed over by the next eviction.
    WorkingsetActivate => "workingset_activate",
    /// Pages of them that had left within the last second.
    Refaults1s => "refaults_1s",
    /// Time of faults that more memory would spare, in nanoseconds: for pages that had left it, and
    /// a quarter of that for new ones.
    ShortNs => "fault_short_ns",
    /// What such faults cost where nobody waits for a processor, in nanoseconds: up to 30 us each,
    /// 500 us of a device, and 6 us to be delivered.
    ShortCostNs => "fault_short_cost_ns",
    /// What of that is the program's own time of processors: not what devices take, nor what a
    /// thread of the engine does.
    ShortCpuNs => "fault_short_cpu_ns",
    /// Pages that left memory without being written, because their copy on a device was as good.
    CleanDropped => "clean_dropped",
    /// Pages that gave such a copy up for a write.
    CleanWritten => "clean_written",
    /// Times that a lock of the swap cache's index was taken, by slot.
    SwapCacheLock => "swap_cache_lock",
    /// Times that one had to be waited for.
    SwapCacheLockContended => "swap_cache_lock_contended",
    /// Time waited for them, in nanoseconds.
    SwapCacheLockWaitNs => "swap_cache_lock_wait_ns",
    /// Time that they were held, in nanoseconds.
    SwapCacheLockHoldNs => "swap_cache_lock_hold_ns",
    /// What of that was in holds of more than 50 us: their holder was interrupted, or did a system
    /// call.
    SwapCacheLockLongNs => "swap_cache_lock_long_ns",
    /// Times that a lock of the swap cache's LRU lists was taken.
    SwapAgesLock => "swap_ages_lock",
    /// Times that one had to be waited for.
    SwapAgesLockContended => "swap_ages_lock_contended",
    /// Time waited for them, in nanoseconds.
    SwapAgesLockWaitNs => "swap_ages_lock_wait_ns",
    /// Time that they were held, in nanoseconds.
    SwapAgesLockHoldNs => "swap_ages_lock_hold_ns",
    /// What of that was in long holds.
    SwapAgesLockLongNs => "swap_ages_lock_long_ns",
    /// Pages stored as a fill value.
    SameFilledOut => "same_filled_out",
    /// Pages brought in beside the faulting one (folios).
    FaultAround => "fault_around",
    /// Writes to pages that were shared since a fork.
    CowFault => "cow_fault",
    /// Pages that the kernel could copy because of that: neighbours too.
    CowPages => "pgcow",
    /// Writes to pages that were write-protected for eviction: taken back.
    WpFault => "wp_fault",
    /// Pages taken back from an eviction by a write.
    EvictAborted => "pgevict_aborted",
    /// Pages scanned by background reclaim.
    PgScanKswapd => "pgscan_kswapd",
    /// Pages freed by background reclaim.
    PgStealKswapd => "pgsteal_kswapd",
    /// Pages scanned by direct reclaim.
    PgScanDirect => "pgscan_direct",
    /// Pages freed by direct reclaim.
    PgStealDirect => "pgsteal_direct",
    /// Pages scanned because somebody asked for memory back.
    PgScanProactive => "pgscan_proactive",
    /// Pages freed because somebody asked for memory back.
    PgStealProactive => "pgsteal_proactive",
    /// Times a fault had to reclaim for itself.
    AllocStall => "allocstall",
    /// Times a thread had to wait for its turn to reclaim for itself.
    PgScanDirectThrottle => "pgscan_direct_throttle",
    /// Time that threads waited for that, in nanoseconds.
    ThrottleWaitNs => "throttle_wait_ns",
    /// The longest of these waits.
    ThrottleWaitNsMax => "throttle_wait_ns_max",
    /// Most threads that reclaimed for themselves at once.
    ReclaimersMax => "reclaimers_max",
    /// The longest time that a thread reclaimed for itself in one go, in nanoseconds.
    DirectReclaimNsMax => "direct_reclaim_ns_max",
    /// Pages moved into the swap cache (first hand of the clock).
    PgDeactivate => "pgdeactivate",
    /// Pages that came back from the swap cache or soon after eviction.
    PgActivate => "pgactivate",
    /// Pages moved out with UFFDIO_MOVE.
    OutMoved => "out_moved",
    /// Pages protected, stored and dropped.
    OutDropped => "out_dropped",
    /// Batches of those: each is protected and dropped by one call, unless its extents lie apart.
    OutDroppedBatches => "out_dropped_batches",
    /// Pages brought in with UFFDIO_COPY.
    InCopied => "in_copied",
    /// Pages brought in with UFFDIO_MOVE.
    InMoved => "in_moved",
    /// Pages that would not move (pinned for DMA, or shared after a fork).
    MoveBusy => "move_busy",
    /// Pages written to a device because the compressed tier had no room, or they did not compress,
    /// or came after many that did not.
    CompressRefused => "zswap_reject",
    /// Device writes that failed.
    WriteErrors => "swap_write_errors",
    /// Device reads that failed.
    ReadErrors => "swap_read_errors",
    /// Pages that came back from a device other than they were written, by seal or checksum, also
    /// those that were right when read again.
    ChecksumErrors => "swap_checksum_errors",
    /// Pages that were read a second time, after an error or because they were not as written.
    ReadRetries => "swap_read_retries",
    /// Faults that failed: an unreadable page, or no room with `oom=sigbus`.
    FaultErrors => "fault_errors",
    /// Processes that this one had killed for want of room.
    OomKill => "oom_kill",
    /// Forks survived.
    Forks => "forks",
    /// Times that the budget was changed while the program ran.
    BudgetChanges => "budget_changes",
    /// 1 once memory was seen to be written past the page tables: by DMA (O_DIRECT, io_uring, a
    /// device), or from another process of the job (process_vm_writev).
    DmaSeen => "dma_seen",
    /// Requests that could not be managed and were left to the kernel.
    Unmanaged => "unmanaged_mappings",
    /// Frames handed out.
    FrameAlloc => "frame_alloc",
    /// Frames given back.
    FrameFree => "frame_free",
    /// Times that a processor's lists were filled from a zone.
    FrameBatchAlloc => "frame_batch_alloc",
    /// Times that a processor's lists gave frames back to a zone in bulk.
    FrameBatchFree => "frame_batch_free",
    /// Acquisitions of a zone's lock.
    ZoneLock => "zone_lock",
    /// Those that had to wait.
    ZoneLockContended => "zone_lock_contended",
    /// Time waited for the lock, in nanoseconds.
    ZoneLockWaitNs => "zone_lock_wait_ns",
    /// Time that it was held, in nanoseconds.
    ZoneLockHoldNs => "zone_lock_hold_ns",
    /// What of that was in long holds.
    ZoneLockLongNs => "zone_lock_long_ns",
    /// The part of that in which frames were given back.
    ZoneFreeHoldNs => "zone_free_hold_ns",
    /// Blocks taken from a pageblock of another mobility.
    FrameFallback => "frame_fallback",
    /// Pageblocks taken over by another mobility.
    FrameSteal => "frame_steal",
    /// Acquisitions of the lock of a device's slots.
    SlotLock => "slot_lock",
    /// Those that had to wait.
    SlotLockContended => "slot_lock_contended",
    /// Time waited for it, in nanoseconds.
    SlotLockWaitNs => "slot_lock_wait_ns",
    /// Time that it was held, in nanoseconds.
    SlotLockHoldNs => "slot_lock_hold_ns",
    /// What of that was in long holds.
    SlotLockLongNs => "slot_lock_long_ns",
    /// Acquisitions of a cluster's lock.
    ClusterLock => "cluster_lock",
    /// Those that had to wait.
    ClusterLockContended => "cluster_lock_contended",
    /// Time waited for it, in nanoseconds.
    ClusterLockWaitNs => "cluster_lock_wait_ns",
    /// Time that it was held, in nanoseconds.
    ClusterLockHoldNs => "cluster_lock_hold_ns",
    /// What of that was in long holds.
    ClusterLockLongNs => "cluster_lock_long_ns",
    /// Slots handed out of the caches of processors.
    SlotCacheAlloc => "slot_cache_alloc",
    /// Freed slots that were collected in them and have gone back.
    SlotCacheFree => "slot_cache_free",
    /// Times that a cache was filled.
    SlotCacheRefill => "slot_cache_refill",
    /// Times that a cache gave back the slots that it had collected.
    SlotCacheReturn => "slot_cache_return",
    /// Times that all caches of a device were emptied.
    SlotCacheDrain => "slot_cache_drain",
}

impl Counter {
    /// Those that are also told by processor.
    pub const BY_CPU: [Counter; 11] = [
        Counter::FrameAlloc,
        Counter::FrameFree,
        Counter::FrameBatchAlloc,
        Counter::FrameBatchFree,
        Counter::ZoneLock,
        Counter::ZoneLockContended,
        Counter::ZoneLockWaitNs,
        Counter::ZoneLockHoldNs,
        Counter::ZoneFreeHoldNs,
        Counter::FrameFallback,
        Counter::FrameSteal,
    ];

    /// Those that are the most of something: of several processes, the highest counts.
    pub const MAXIMA: [Counter; 3] =
        [Counter::ThrottleWaitNsMax, Counter::ReclaimersMax, Counter::DirectReclaimNsMax];

    /// The kinds of memory that is not managed.
    pub const UNMANAGED_KINDS: [Counter; 8] = [
        Counter::UnmanagedSharedBytes,
        Counter::UnmanagedStackBytes,
        Counter::UnmanagedBrkBytes,
        Counter::UnmanagedDataBytes,
        Counter::UnmanagedFileBytes,
        Counter::UnmanagedCodeBytes,
        Counter::UnmanagedOtherBytes,
        Counter::UnmanagedEngineBytes,
    ];

    /// Free blocks by order.
    pub const BUDDY_FREE: [Counter; 10] = [
        Counter::BuddyFree0,
        Counter::BuddyFree1,
        Counter::BuddyFree2,
        Counter::BuddyFree3,
        Counter::BuddyFree4,
        Counter::BuddyFree5,
        Counter::BuddyFree6,
        Counter::BuddyFree7,
        Counter::BuddyFree8,
        Counter::BuddyFree9,
    ];
}
