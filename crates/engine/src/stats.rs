//! Counters and histograms of a pool, in memory that other processes may map.
//!
//! One table of 64-bit cells a process: a header, then for each of a few shards a cell a counter and the cells of the
//! histograms of fault times ([`Latencies`]). Events are counted in the shard of the processor, with relaxed atomic adds that no other
//! processor is after; gauges that are set lie in the first shard. The figures of swap devices follow. A reader copies the whole, adds the shards up, and gets
//! a [`Snapshot`]. Counters are named as in /proc/vmstat where it has them.

mod devices;
mod latency;
mod pressure;

use crate::base::Bytes;
pub use devices::{DeviceFigure, DeviceFigures, DeviceIdentity, DeviceKind, DeviceSnapshot};
pub use latency::{FaultSource, Histogram, Latencies};
use overspill_os::{Errno, cpu, vm::SharedCells};
pub use pressure::{Pressure, Stall, WINDOWS_S};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    /// Budget that this process was granted, in bytes (gauge): a child of a fork is granted a share of its parent's.
    BudgetBytes => "budget_bytes",
    /// What of it the process may use now (gauge): less while children hold shares.
    LimitBytes => "limit_bytes",
    /// Bytes of budget in use: resident pages and frames (gauge).
    ChargedBytes => "charged_bytes",
    /// Highest `ChargedBytes` seen (gauge).
    ChargedPeakBytes => "charged_peak_bytes",
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
    /// Pages held as a fill value only (gauge).
    SameFilledPages => "zswap_same_filled_pages",
    /// Slots of swap devices in use: pages on them, and compressed pages that have a place there (gauge).
    DevicePages => "nr_swap_used",
    /// Compressed pages that lie on devices as they are, several to a slot (gauge).
    ZswapPacked => "zswap_packed_pages",
    /// Bytes that swap devices can hold at most (gauge).
    DeviceCapacityBytes => "swap_total_bytes",
    /// Frames of the arena (gauge).
    ArenaFrames => "arena_frames",
    /// Pages in memory that have a copy on a device which is as good (gauge).
    CleanPages => "nr_clean",
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
    /// Pages that left their place because the program advised it (MADV_COLD, MADV_PAGEOUT).
    PgAdvisedOut => "pgadvised_out",
    /// Compressed pages written to devices.
    ZswpWb => "zswpwb",
    /// Compressed pages that stayed cold and were packed more densely.
    ZswapRecompressed => "zswap_recompressed",
    /// Compressed pages written to devices as they are, several to a slot.
    ZswapPackedOut => "zswap_packed_out",
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
    /// Pages that came back from a device, and what left memory between is known.
    WorkingsetRefault => "workingset_refault",
    /// Pages of those that came back so soon that they are passed over by the next eviction.
    WorkingsetActivate => "workingset_activate",
    /// Pages of them that had left within the last second.
    Refaults1s => "refaults_1s",
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
    /// What of that was in holds of more than 50 us: their holder was interrupted, or did a system call.
    SwapCacheLockLongNs => "swap_cache_lock_long_ns",
    /// Times that a lock of the swap cache's lists by age was taken.
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
    /// Pages brought in with UFFDIO_COPY.
    InCopied => "in_copied",
    /// Pages brought in with UFFDIO_MOVE.
    InMoved => "in_moved",
    /// Pages that would not move (pinned for DMA, or shared after a fork).
    MoveBusy => "move_busy",
    /// Pages written to a device because the compressed tier had no room or they did not compress.
    CompressRefused => "zswap_reject",
    /// Device writes that failed.
    WriteErrors => "swap_write_errors",
    /// Device reads that failed.
    ReadErrors => "swap_read_errors",
    /// Pages that came back from a device with a wrong checksum, also those that were right when read again.
    ChecksumErrors => "swap_checksum_errors",
    /// Pages that were read a second time, after an error or a wrong checksum.
    ReadRetries => "swap_read_retries",
    /// Faults that failed: no room, or unreadable page.
    FaultErrors => "fault_errors",
    /// Forks survived.
    Forks => "forks",
    /// Times that the budget was changed while the program ran.
    BudgetChanges => "budget_changes",
    /// 1 once the program was seen using DMA into its memory (O_DIRECT, io_uring, a device).
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
    pub const MAXIMA: [Counter; 3] = [Counter::ThrottleWaitNsMax, Counter::ReclaimersMax, Counter::DirectReclaimNsMax];

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

const HEADER: usize = 24;
/// Where the counters begin; room is left so that the layout is stable while counters are added.
const COUNTERS_MAX: usize = 160;
/// Cells of a shard: whole cache lines.
const SHARD: usize = COUNTERS_MAX + latency::CELLS;
/// Shards. Processors beyond share them.
const SHARDS: usize = 16;
/// Where the section of the devices begins.
const DEVICES: usize = HEADER + SHARDS * SHARD;
const CELLS: usize = DEVICES + devices::CELLS;
const _: () = assert!(HEADER.is_multiple_of(8) && SHARD.is_multiple_of(8));
const _: () = assert!(Counter::ALL.len() <= COUNTERS_MAX);
/// The gauges are the counters before this one.
const GAUGES: usize = Counter::PgFault as usize;

/// Size of a statistics file in bytes.
pub const FILE_BYTES: usize = CELLS * 8;
/// First cell of every table: "ovrspil" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"ovrspil\x04");
const CELL_PID: usize = 1;
const CELL_NAME: usize = 2;
const NAME_CELLS: usize = 4;
const CELL_TARGET: usize = 6;
const CELL_ANSWERED: usize = 7;
const CELL_STUCK: usize = 8;
const CELL_RECLAIM_DONE: usize = 9;
const CELL_PRESSURE: usize = 10;
const _: () = assert!(CELL_PRESSURE + Pressure::CELLS <= HEADER);

/// The gauges of a pool at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Gauges([u64; GAUGES]);

/// The live statistics of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    cells: SharedCells,
}

impl Stats {
    /// In private memory.
    pub fn anonymous() -> Result<Stats, Errno> {
        Ok(Stats { cells: SharedCells::anonymous(CELLS)? }.init())
    }

    /// In a file, which is grown to [`FILE_BYTES`].
    pub fn in_file(file: std::os::fd::BorrowedFd<'_>) -> Result<Stats, Errno> {
        // It may be that of the program that this process ran before an exec. A new one is all zeros and takes no memory yet.
        let used = rustix::fs::fstat(file)?.st_size > 0;
        rustix::fs::ftruncate(file, FILE_BYTES as u64)?;
        let stats = Stats { cells: SharedCells::shared(file, CELLS)? };
        if used {
            stats.cells.iter().for_each(|cell| cell.store(0, Relaxed));
        }
        Ok(stats.init())
    }

    fn init(self) -> Stats {
        self.cells[CELL_PID].store(std::process::id() as u64, Relaxed);
        self.cells[0].store(MAGIC, Relaxed);
        self
    }

    /// Records which program this is, for people who read the statistics.
    pub fn set_name(&self, name: &str) {
        for (i, chunk) in name.as_bytes().chunks(8).take(NAME_CELLS).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.cells[CELL_NAME + i].store(u64::from_le_bytes(word), Relaxed);
        }
    }

    /// Notes what `limit_bytes` is to become: less than it while a lower limit is being reached, or cannot be.
    pub fn set_target(&self, limit: Bytes) {
        self.cells[CELL_TARGET].store(limit.0, Relaxed);
    }

    /// Notes whether it is out of reach, because nothing more can be reclaimed.
    pub fn set_stuck(&self, stuck: bool) {
        self.cells[CELL_STUCK].store(stuck.into(), Relaxed);
    }

    /// Notes which request of the job's table ([`crate::job`]) this process follows.
    pub fn set_answered(&self, number: u32) {
        self.cells[CELL_ANSWERED].store(number.into(), Relaxed);
    }

    /// Notes with which request for reclaim of the job's table this process is done.
    pub fn set_reclaim_done(&self, number: u32) {
        self.cells[CELL_RECLAIM_DONE].store(number.into(), Relaxed);
    }

    fn cell(&self, shard: usize, index: usize) -> &AtomicU64 {
        &self.cells[HEADER + shard * SHARD + index]
    }

    /// That of the caller's processor.
    fn near(&self, index: usize) -> &AtomicU64 {
        self.cell(cpu::current() % SHARDS, index)
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.near(counter as usize).fetch_add(n, Relaxed);
    }

    /// Subtracts from a gauge that is added to.
    pub fn sub(&self, counter: Counter, n: u64) {
        self.near(counter as usize).fetch_sub(n, Relaxed);
    }

    /// Sets a gauge, which is never added to.
    pub fn set(&self, counter: Counter, n: u64) {
        self.cell(0, counter as usize).store(n, Relaxed);
    }

    /// Raises a peak.
    pub fn raise(&self, counter: Counter, n: u64) {
        let cell = self.cell(0, counter as usize);
        if cell.load(Relaxed) < n {
            cell.fetch_max(n, Relaxed);
        }
    }

    /// Reads one.
    pub fn get(&self, counter: Counter) -> u64 {
        (0..SHARDS).fold(0, |sum, shard| sum.wrapping_add(self.cell(shard, counter as usize).load(Relaxed)))
    }

    /// Records the time that one fault took to serve.
    pub fn fault_ns(&self, source: FaultSource, ns: u64) {
        self.near(COUNTERS_MAX + latency::cell(source, ns)).fetch_add(1, Relaxed);
    }

    /// Notes how much the process waits for memory.
    pub fn set_pressure(&self, pressure: &Pressure) {
        self.cells[CELL_PRESSURE..].iter().zip(pressure.cells()).for_each(|(cell, value)| cell.store(value, Relaxed));
    }

    /// The figures of swap device number `index`.
    pub fn device(&self, index: usize) -> DeviceFigures {
        DeviceFigures::new(self.cells, DEVICES, index)
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> Snapshot {
        let cells: Vec<u64> = self.cells.iter().map(|c| c.load(Relaxed)).collect();
        Snapshot::from_cells(&cells)
    }

    /// The gauges, for [`Stats::restart`]: before a fork, when nothing changes them.
    pub fn gauges(&self) -> Gauges {
        Gauges(std::array::from_fn(|index| self.get(Counter::ALL[index])))
    }

    /// In the child of a fork: moves the table into a file of its own (or private memory), sets the gauges to what they
    /// were at the fork (the parent goes on changing its own) and begins to count events from zero, without devices.
    pub fn restart(&self, file: Option<std::os::fd::BorrowedFd<'_>>, gauges: &Gauges) -> Result<(), Errno> {
        if let Some(file) = file {
            // Empty first: a process of the same number may have left it.
            rustix::fs::ftruncate(file, 0)?;
            rustix::fs::ftruncate(file, FILE_BYTES as u64)?;
        }
        // The header stays, all else is zero.
        self.cells.replace_backing(file, HEADER)?;
        self.set_pressure(&Pressure::default());
        gauges.0.iter().enumerate().for_each(|(index, value)| self.cell(0, index).store(*value, Relaxed));
        self.set(Counter::ChargedPeakBytes, self.get(Counter::ChargedBytes));
        self.init();
        Ok(())
    }
}

/// The statistics of a process at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// What `limit_bytes` is to become.
    #[serde(skip)]
    pub target: Bytes,
    /// Whether it is out of reach, because nothing more can be reclaimed.
    #[serde(skip)]
    pub stuck: bool,
    /// Number of the request of the job's table that the process follows.
    #[serde(skip)]
    pub answered: u32,
    /// Number of the request for reclaim with which the process is done.
    #[serde(skip)]
    pub reclaim_done: u32,
    /// Every counter and gauge by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// The swap devices, in the order of their numbers.
    pub devices: Vec<DeviceSnapshot>,
    /// What the frame allocator did on each processor; beyond the sixteenth they share entries.
    pub by_cpu: Vec<BTreeMap<&'static str, u64>>,
    /// Fragmentation: for each order, the share of free frames that lie in smaller blocks (0 to 1, the kernel's
    /// unusable free space index).
    pub frag_unusable: Vec<f64>,
    /// How much the process waits for memory.
    pub pressure: Pressure,
    /// Times of faults, by where their pages came from.
    pub latency: Latencies,
    /// Time to serve a fault, median, in nanoseconds.
    pub fault_ns_p50: u64,
    /// Time to serve a fault, 99th percentile, in nanoseconds.
    pub fault_ns_p99: u64,
    /// Time spent in faults in total, in nanoseconds (from the histogram, so within an eighth).
    pub fault_ns_total: u64,
}

impl Snapshot {
    /// Reads a statistics file; `None` if it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Snapshot> {
        let cells: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
        (cells.len() >= CELLS && cells[0] == MAGIC).then(|| Snapshot::from_cells(&cells))
    }

    fn from_cells(cells: &[u64]) -> Snapshot {
        let name: Vec<u8> = cells[CELL_NAME..CELL_NAME + NAME_CELLS].iter().flat_map(|c| c.to_le_bytes()).collect();
        let shards = || cells[HEADER..DEVICES].chunks_exact(SHARD);
        let sum = |index: usize| shards().fold(0u64, |sum, shard| sum.wrapping_add(shard[index]));
        let counters = Counter::ALL.iter().map(|c| (c.name(), sum(*c as usize))).collect();
        let latency = Latencies::of_cells(&(COUNTERS_MAX..SHARD).map(sum).collect::<Vec<_>>());
        let of_cpu = |shard: &[u64]| Counter::BY_CPU.iter().map(|c| (c.name(), shard[*c as usize])).collect();
        let mut snapshot = Snapshot {
            pid: cells[CELL_PID] as u32,
            name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
            target: Bytes(cells[CELL_TARGET]),
            stuck: cells[CELL_STUCK] != 0,
            answered: cells[CELL_ANSWERED] as u32,
            reclaim_done: cells[CELL_RECLAIM_DONE] as u32,
            counters,
            devices: DeviceSnapshot::read(&cells[DEVICES..CELLS]),
            by_cpu: shards().map(of_cpu).collect(),
            pressure: Pressure::of_cells(&cells[CELL_PRESSURE..]),
            latency,
            ..Snapshot::default()
        };
        snapshot.summarise();
        snapshot
    }

    fn summarise(&mut self) {
        let blocks = (Counter::BuddyFree0 as usize..=Counter::BuddyFree9 as usize).map(|i| self.get(Counter::ALL[i]));
        self.frag_unusable = unusable(&blocks.collect::<Vec<_>>());
        let all = self.latency.all();
        self.fault_ns_p50 = all.within_ns(500);
        self.fault_ns_p99 = all.within_ns(990);
        self.fault_ns_total = all.total_ns();
    }

    /// Reads one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter.name()).copied().unwrap_or(0)
    }

    /// Reads a counter that holds bytes.
    pub fn bytes(&self, counter: Counter) -> Bytes {
        Bytes(self.get(counter))
    }

    /// Adds what another process has done, but not what it held: it has ended.
    pub fn merge_done(&mut self, other: &Snapshot) {
        for counter in &Counter::ALL[GAUGES..] {
            let sum = self.counters.entry(counter.name()).or_default();
            *sum = sum.saturating_add(other.get(*counter));
        }
        self.latency.merge(&other.latency);
        self.summarise();
    }

    /// Adds another process's statistics to these: counters, gauges and times of faults add up; of the pressure, the higher
    /// counts.
    pub fn merge(&mut self, other: &Snapshot) {
        for (name, value) in &other.counters {
            let sum = self.counters.entry(name).or_default();
            // The file is another process's: whatever is in it, the report is written.
            *sum = match Counter::MAXIMA.iter().any(|maximum| maximum.name() == *name) {
                true => *value.max(sum),
                false => sum.saturating_add(*value),
            };
        }
        DeviceSnapshot::merge_all(&mut self.devices, &other.devices);
        self.by_cpu.resize(self.by_cpu.len().max(other.by_cpu.len()), BTreeMap::new());
        for (cpu, others) in self.by_cpu.iter_mut().zip(&other.by_cpu) {
            for (name, value) in others {
                let sum = cpu.entry(name).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
        self.pressure = self.pressure.max(other.pressure);
        self.latency.merge(&other.latency);
        self.summarise();
    }
}

/// From the number of free blocks of each order, the share of free frames that no allocation of each order can have.
fn unusable(blocks: &[u64]) -> Vec<f64> {
    let frames = |(order, n): (usize, &u64)| n.saturating_mul(1 << order);
    let sum = |from: usize| blocks.iter().enumerate().skip(from).map(frames).fold(0, u64::saturating_add);
    let free = sum(0);
    (0..blocks.len()).map(|order| if free == 0 { 0.0 } else { (free - sum(order)) as f64 / free as f64 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_keeps_the_gauges_and_counts_from_zero() {
        let stats = Stats::anonymous().unwrap();
        stats.add(Counter::ResidentPages, 5);
        stats.set(Counter::ChargedBytes, 70);
        stats.set(Counter::ChargedPeakBytes, 90);
        stats.add(Counter::PgFault, 7);
        stats.fault_ns(FaultSource::Zero, 5);
        stats.set_pressure(&Pressure { some: Stall { avg: [1; 3], total_us: 9 }, ..Pressure::default() });
        let gauges = stats.gauges();
        // As the parent does, as long as the table is shared.
        stats.add(Counter::ResidentPages, 1000);
        stats.set(Counter::ChargedBytes, 1000);
        stats.restart(None, &gauges).unwrap();
        let get = |counter| stats.get(counter);
        assert_eq!((get(Counter::ResidentPages), get(Counter::ChargedBytes)), (5, 70));
        assert_eq!((get(Counter::ChargedPeakBytes), get(Counter::PgFault)), (70, 0));
        let now = stats.snapshot();
        assert_eq!((now.latency.all().count(), now.pressure), (0, Pressure::default()));
    }

    #[test]
    fn free_frames_in_small_blocks_are_no_use_to_large_ones() {
        assert_eq!(unusable(&[4, 2, 2]), [0.0, 0.25, 0.5]);
        assert_eq!(unusable(&[0, 0]), [0.0, 0.0]);
    }

    #[test]
    fn of_a_process_that_ended_what_it_did_remains() {
        let stats = Stats::anonymous().unwrap();
        stats.add(Counter::ResidentPages, 5);
        stats.add(Counter::PgFault, 7);
        stats.fault_ns(FaultSource::Zero, 5);
        let mut total = stats.snapshot();
        total.merge_done(&stats.snapshot());
        let count = total.latency.all().count();
        assert_eq!((total.get(Counter::ResidentPages), total.get(Counter::PgFault), count), (5, 14, 2));
    }

    #[test]
    fn a_snapshot_survives_its_file_form() {
        let stats = Stats::anonymous().unwrap();
        stats.set_name("sort");
        stats.add(Counter::PgFault, 7);
        (0..98).for_each(|_| stats.fault_ns(FaultSource::Zero, 1000));
        (0..2).for_each(|_| stats.fault_ns(FaultSource::Device, 100_000));
        let bytes: Vec<u8> = stats.cells.iter().flat_map(|c| c.load(Relaxed).to_le_bytes()).collect();
        let snapshot = Snapshot::from_bytes(&bytes).unwrap();
        assert_eq!((snapshot.name.as_str(), snapshot.get(Counter::PgFault)), ("sort", 7));
        assert!(snapshot.fault_ns_p50 >= 1000 && snapshot.fault_ns_p50 < 1125);
        assert!(snapshot.fault_ns_p99 >= 100_000 && snapshot.fault_ns_p99 < 112_500);
        assert!(Snapshot::from_bytes(&bytes[8..]).is_none());
        // Whatever a file holds can be added up.
        let mut bytes = vec![0xff; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let mut total = Snapshot::from_bytes(&bytes).unwrap();
        total.merge(&Snapshot::from_bytes(&bytes).unwrap());
        assert_eq!(total.get(Counter::PgFault), u64::MAX);
    }
}
