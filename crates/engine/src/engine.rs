//! The engine: every room of a pool in one place, and how they are built.

use crate::base::{Bytes, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use crate::cache::{Ages, SlotIndex};
use crate::clean::Copies;
use crate::compressed::CompressedPool;
use crate::config::{Config, Delivery};
use crate::costs::Choice;
use crate::device::{DeviceSettings, SwapDevices};
use crate::error::Error;
use crate::extent::{EXTENT_PAGES, Extents};
use crate::family::Family;
use crate::fault::FaultContext;
use crate::frame::{FrameAllocator, Mobility, Need};
use crate::frames::Frames;
use crate::job::JobTable;
use crate::limit::Limits;
use crate::lockdep::Rank;
use crate::pressure::Pressures;
use crate::proactive::Proactive;
use crate::readahead::{Streams, Window};
use crate::regions::RegionMap;
use crate::slot::{CLUSTER_BYTES, CLUSTER_SLOTS};
use crate::stats::{Counter, Stats};
use crate::sync::{Backoff, Gate, RankedGuard, RankedMutex};
use crate::tier::Batch;
use crate::word::PageWords;
use crate::zswap::Zswap;
use overspill_os::arena::Arena;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::cpu::Topology;
use overspill_os::probe;
use overspill_os::stack::EngineStacks;
use overspill_os::uffd::{Features, Uffd};
use overspill_os::vm::{self, ForceReader};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Threads that may reclaim for themselves at once, where faults are served by the threads that take them.
const DIRECT: usize = 2;
/// Smallest budget with more than one thread that stores pages ahead of need, unless they are asked for: each has buffers of
/// half a megabyte.
const WORKERS_LEAST: Bytes = Bytes(128 << 20);

/// Everything a pool consists of.
pub(crate) struct Engine {
    pub config: Config,
    pub stats: Stats,
    pub frames: Frames,
    pub words: PageWords,
    pub extents: Extents,
    /// The swap cache: its frames by age, and what is known of each slot.
    pub ages: Ages,
    pub index: Arc<SlotIndex>,
    /// Which slots have a compressed copy in memory, and whether there was no room for more.
    pub zswap: Arc<Zswap>,
    pub compressed_full: AtomicBool,
    /// The value of `evictions` when writeback found nothing to do, last.
    pub written_back: AtomicU64,
    /// Copies that pages in memory still have on devices.
    pub copies: Copies,
    /// Pages that have left for devices.
    pub evictions: AtomicU64,
    pub compressed: CompressedPool,
    pub devices: SwapDevices,
    pub streams: Streams,
    pub window_around: Window,
    pub batches: Workbenches<Batch>,
    pub contexts: Workbenches<FaultContext>,
    /// Frames that stand for the buffers of the benches.
    #[cfg(debug_assertions)]
    pub bench_frames: usize,
    pub force_reader: ForceReader,
    pub stacks: EngineStacks,
    /// Way out: moving (0) or protecting and dropping (1), for dense runs.
    pub way_out: Choice,
    /// Way past a compressed tier that is full: whole pages (0) or compressed ones (1).
    pub past_tier: Choice,
    /// Way in from the swap cache: copying (0) or moving (1), by log2 of the run.
    pub way_in: [Choice; 7],
    /// The first hand of the clock, and one more than the highest extent ever used.
    pub clock_hand: AtomicUsize,
    pub extents_high: AtomicUsize,
    pub dma_seen: AtomicBool,
    /// Closed in this order when a process forks: the program's mapping calls, reclaim, faults.
    pub ops_gate: Gate,
    pub reclaim_gate: Gate,
    pub fault_gate: Gate,
    pub regions: RankedMutex<RegionMap>,
    /// Pages under mlock, and whether new mappings are (MCL_FUTURE).
    pub pinned_pages: AtomicUsize,
    pub pin_future: AtomicBool,
    pub family: Family,
    /// What the limit of the budget is to be, and who says so.
    pub limits: Limits,
    /// Pages of budget that the arena was made to fit.
    pub arena_fits: AtomicU64,
    pub job: Option<JobTable>,
    /// Requests for pages to leave memory ahead of need.
    pub proactive: Proactive,
    /// How much the program waits for memory.
    pub pressures: Pressures,
    /// Wakes the background thread: 1 while it sleeps.
    pub background: AtomicU32,
    /// Threads that store pages ahead of need beside it, and what wakes them: 1 while one sleeps.
    pub workers: usize,
    pub worker_sleeps: AtomicU32,
    pub mailbox: crate::delivery::Mailbox,
    pub stop: AtomicBool,
    window: Range<usize>,
    /// The line about trouble is being printed, and is printed.
    reporting: AtomicBool,
    reported: AtomicBool,
}

/// Pages at the start of the window that no program gets: the first is the doorbell of the handler thread.
pub(crate) const RESERVED_PAGES: usize = EXTENT_PAGES;

impl Engine {
    /// Builds a pool's engine. In thread delivery this runs on the thread whose descriptor table the engine's
    /// descriptors are to live in.
    pub fn build(mut config: Config, stats: Stats) -> Result<Engine, Error> {
        // The job's budget may have been changed since it was started.
        let job = config.job_file.as_deref().and_then(JobTable::open);
        let request = job.map(|job| job.budget()).filter(|request| request.number != 0);
        if let Some(request) = request {
            config.memory = request.memory;
        }
        if config.memory < Config::MEMORY_MIN {
            return Err(Error::BudgetTooSmall { memory: config.memory });
        }
        let out_of_address_space = |_| Error::AddressSpace { window: config.window };
        if !config.vector_drop {
            vm::disable_vector_drop();
        }
        // 1. The window, and the tables over it.
        let len = config.window.0 as usize + RESERVED_PAGES * PAGE_SIZE;
        let base = vm::reserve(len, (16 * EXTENT_PAGES) << PAGE_SHIFT).map_err(out_of_address_space)?;
        let window = base..base + len;
        vm::advise(window.clone(), vm::MADV_NOHUGEPAGE).map_err(out_of_address_space)?;
        let pages = len >> PAGE_SHIFT;
        let words = PageWords::new(pages).map_err(out_of_address_space)?;
        let extents = Extents::new(pages).map_err(out_of_address_space)?;
        // 2. The userfaultfd over the window and the arena.
        let limit = config.memory.pages();
        // Room to grow to the whole memory of the machine, which costs addresses only; without it where they are short.
        let grown = vm::machine_memory() >> PAGE_SHIFT;
        let room = |limit_max| {
            let allocator = FrameAllocator::new(limit, limit_max, config.frame, Topology::of_machine(), stats)?;
            let arena = Arena::new(allocator.frames_max())?;
            Ok((allocator, arena))
        };
        let (allocator, arena) = room(grown).or_else(|_| room(limit)).map_err(out_of_address_space)?;
        let frame_count = allocator.frames_max();
        allocator.resize(limit, |frames| arena.open(frames)).map_err(out_of_address_space)?;
        let signal = config.delivery == Delivery::Signal;
        let mut wanted = Features::THREAD_ID.0 | Features::POISON.0 | Features::MOVE.0 | Features::PAGEFAULT_FLAG_WP.0;
        if signal {
            wanted |= Features::SIGBUS.0;
        }
        let simulated = probe::simulated();
        let without = if simulated.no_move { Features::MOVE } else { Features(0) };
        if simulated.no_uffd {
            return Err(Error::NoUserfaultfd { errno: overspill_os::Errno::NOSYS });
        }
        let (uffd, _) =
            Uffd::open(Features(wanted), without, signal).map_err(|errno| Error::NoUserfaultfd { errno })?;
        if signal && !uffd.features().has(Features::SIGBUS) {
            return Err(Error::NoUserfaultfd { errno: overspill_os::Errno::OPNOTSUPP });
        }
        if config.way_out == crate::config::WayOut::Move && !uffd.features().has(Features::MOVE) {
            return Err(Error::NoMove);
        }
        let backing = AnonPrivate::new(uffd);
        let register = |range| backing.register(range).map_err(|errno| Error::NoUserfaultfd { errno });
        register(window.clone())?;
        register(arena.range())?;
        vm::protect(base..base + PAGE_SIZE, vm::Prot::READ_WRITE).map_err(out_of_address_space)?;
        // 3. The tiers and the benches, charged to the budget.
        let settings = DeviceSettings {
            slots: config.slot,
            uring: config.uring && !simulated.no_uring,
            partition: config.cache_partition,
            invalidate: config.invalidate,
            // No more pages can be compressed than there are.
            in_memory: pages as u64,
        };
        let devices = SwapDevices::open(&config.swap, settings, stats)?;
        let (index, zswap) = (devices.index().clone(), devices.zswap().clone());
        let batch_pages = (config.memory.pages() as usize / 64).clamp(32, 128);
        let workers = match config.workers {
            _ if !config.background => 0,
            Some(workers) => workers as usize - 1,
            None if config.memory < WORKERS_LEAST => 0,
            None => (cpus() / 4).clamp(1, 4) - 1,
        };
        let (direct, contexts) = if signal { (DIRECT, 2 * cpus().clamp(2, 32)) } else { (1, 1) };
        let batches = 1 + workers + direct;
        let (folio, codec, dense) = (config.folio_max, config.zswap_codec, config.zswap_recompress.codec());
        let codecs: Vec<_> = [codec].into_iter().chain(dense).collect();
        let batches = Workbenches::new(Rank::Batch, batches, || Batch::new(batch_pages, codec, dense))
            .map_err(out_of_address_space)?;
        let contexts =
            Workbenches::new(Rank::FaultContext, contexts, || FaultContext::new(folio, config.readahead_max, &codecs))
                .map_err(out_of_address_space)?;
        let compressed =
            CompressedPool::new(frame_count, compressed_max(&config, limit)).map_err(out_of_address_space)?;
        stats.set(Counter::BudgetBytes, config.memory.0);
        // The buffers of the benches count too.
        let bench_frames = batches.len() * batch_pages + contexts.len() * 2 * folio;
        for _ in 0..bench_frames {
            allocator.alloc(0, Mobility::Unmovable, Need::Over);
        }
        let limits = Limits::new(limit, request.map_or(0, |request| request.number));
        stats.set_target(config.memory);
        stats.set_answered(request.map_or(0, |request| request.number));
        let proactive = Proactive::new(job.as_ref()).map_err(out_of_address_space)?;
        stats.set_reclaim_done(proactive.job_done());
        let ages = Ages::new(frame_count, config.cache_partition, config.slot.batching, stats);
        let ages = ages.map_err(out_of_address_space)?;
        let frames = Frames { arena, allocator, backing };
        Ok(Engine {
            stats,
            frames,
            words,
            extents,
            ages,
            index,
            zswap,
            compressed_full: AtomicBool::new(false),
            written_back: AtomicU64::new(0),
            copies: Copies::new(frame_count).map_err(out_of_address_space)?,
            evictions: AtomicU64::new(0),
            compressed,
            devices,
            streams: Streams::default(),
            window_around: Window::default(),
            batches,
            contexts,
            #[cfg(debug_assertions)]
            bench_frames,
            force_reader: ForceReader::new(),
            stacks: EngineStacks::new().map_err(out_of_address_space)?,
            way_out: Choice::default(),
            past_tier: Choice::default(),
            way_in: std::array::from_fn(|_| Choice::default()),
            clock_hand: AtomicUsize::new(0),
            extents_high: AtomicUsize::new(1),
            dma_seen: AtomicBool::new(false),
            ops_gate: Gate::new(Rank::OpsGate),
            reclaim_gate: Gate::new(Rank::ReclaimGate),
            fault_gate: Gate::new(Rank::FaultGate),
            regions: RankedMutex::new(Rank::Regions, RegionMap::new(RESERVED_PAGES..pages)),
            pinned_pages: AtomicUsize::new(0),
            pin_future: AtomicBool::new(false),
            family: Family::default(),
            limits,
            arena_fits: AtomicU64::new(limit),
            job,
            proactive,
            pressures: Pressures::default(),
            background: AtomicU32::new(0),
            workers,
            worker_sleeps: AtomicU32::new(0),
            mailbox: crate::delivery::Mailbox::default(),
            stop: AtomicBool::new(false),
            window,
            reporting: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            config,
        })
    }

    /// The addresses under management.
    pub fn window(&self) -> Range<usize> {
        self.window.clone()
    }

    /// Address of a page.
    pub fn address(&self, page: PageIndex) -> usize {
        self.window.start + (page.0 << PAGE_SHIFT)
    }

    /// Addresses of a range of pages.
    pub fn address_range(&self, pages: Range<usize>) -> Range<usize> {
        self.address(PageIndex(pages.start))..self.address(PageIndex(pages.end))
    }

    /// The page of an address of the window.
    pub fn page(&self, address: usize) -> PageIndex {
        debug_assert!(self.window.contains(&address));
        PageIndex((address - self.window.start) >> PAGE_SHIFT)
    }

    /// The budget.
    pub fn budget(&self) -> &FrameAllocator {
        &self.frames.allocator
    }

    /// Changes the limit of the budget, and of the compressed tier with it.
    pub fn set_limit(&self, pages: u64) {
        self.budget().set_limit(pages);
        self.compressed.set_limit(compressed_max(&self.config, pages));
    }

    /// Notes that the extent of `page` is in use, for the clock and for the metadata figure.
    pub fn note_extent(&self, page: PageIndex) {
        let index = page.0 / EXTENT_PAGES;
        if self.extents_high.load(Relaxed) <= index {
            self.extents_high.fetch_max(index + 1, Relaxed);
        }
    }

    /// Brings the metadata figure up to date: tables in proportion to what was ever managed, and fixed parts.
    pub fn publish_metadata(&self) {
        let extents = self.extents_high.load(Relaxed) as u64;
        // A page word and the extent's cells; for frames that were ever used: buddy links, swap-cache links, chunk table.
        let words = extents * (EXTENT_PAGES as u64 * 8 + 16);
        let frames = (self.stats.get(Counter::ChargedPeakBytes) >> PAGE_SHIFT) * (10 + 16 + 8 + 10);
        // The records of clusters, and the checksums, entries, owners and places in the compressed tier of their slots, kept
        // touched for what is in use.
        let slot_bytes = CLUSTER_BYTES as u64 + CLUSTER_SLOTS as u64 * (4 + 8 + 8 + 16);
        let used = self.devices.used_pages() + self.devices.used_in_memory();
        let slots = (used / CLUSTER_SLOTS as u64 + 1) * slot_bytes;
        self.stats.set(Counter::MetadataBytes, words + frames + slots);
    }

    /// Notes that the program uses DMA into its memory: pages leave by being moved only, from now on.
    pub fn note_dma(&self) {
        if self.dma_seen.load(Relaxed) {
            return;
        }
        // Evictions that began before go on to their end first, also for a second caller. Nobody may close the gate
        // again on this thread meanwhile, as a signal handler that forks would.
        let blocked = overspill_os::signal::Blocked::all();
        self.reclaim_gate.close();
        let seen = self.dma_seen.swap(true, Relaxed);
        self.reclaim_gate.open();
        drop(blocked);
        self.stats.set(Counter::DmaSeen, 1);
        if !seen && !self.frames.backing.can_move() {
            overspill_os::thread::report(
                "the program uses direct I/O or a device, and this kernel cannot move pages safely then: nothing more is \
                 evicted. Use Linux 6.8 or later, or a larger --memory",
            );
        }
    }

    /// Whether a descriptor is the engine's.
    pub fn owns_fd(&self, fd: i32) -> bool {
        self.frames.backing.uffd().raw_fd() == fd
            || self.family.owns_fd(fd)
            || self.devices.fds().iter().any(|(_, device)| *device == fd)
    }

    /// Prints one line about trouble, once: the first reason is the one that matters. When this returns it is printed, also
    /// if another thread does that: the caller fails an access next, which may end the process.
    pub fn report_once(&self, line: impl std::fmt::Display) {
        self.stats.add(Counter::FaultErrors, 1);
        if self.reporting.swap(true, AcqRel) {
            let mut backoff = Backoff::default();
            while !self.reported.load(Acquire) {
                backoff.wait();
            }
            return;
        }
        overspill_os::thread::report(line);
        self.reported.store(true, Release);
    }

    /// In the child of a fork: what its parent has said, or was about to say, it has not.
    pub fn reset_reported(&self) {
        self.reporting.store(false, Relaxed);
        self.reported.store(false, Relaxed);
    }
}

/// Frames that the compressed tier may take of a budget.
fn compressed_max(config: &Config, pages: u64) -> usize {
    pages as usize * config.compressed_max_percent as usize / 100
}

/// Processors this process may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get())
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A fixed set of workbenches, made in advance; a thread takes a free one.
#[derive(Debug)]
pub(crate) struct Workbenches<T> {
    benches: Box<[RankedMutex<T>]>,
}

impl<T> Workbenches<T> {
    fn new<E>(rank: Rank, count: usize, make: impl Fn() -> Result<T, E>) -> Result<Workbenches<T>, E> {
        let bench = |_| Ok(RankedMutex::new(rank, make()?));
        let benches = (0..count).map(bench).collect::<Result<_, E>>()?;
        Ok(Workbenches { benches })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.benches.len()
    }

    /// All of them, one after the other.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = RankedGuard<'_, T>> {
        self.benches.iter().map(crate::sync::lock)
    }

    /// A free one, if there is one.
    pub fn try_take(&self) -> Option<RankedGuard<'_, T>> {
        // Always from the first: under one thread it is the one that is hot in cache.
        self.benches.iter().find_map(RankedMutex::try_lock)
    }

    /// A free one, waiting for it.
    pub fn take(&self) -> RankedGuard<'_, T> {
        self.benches[0].class().check();
        let mut backoff = Backoff::default();
        loop {
            if let Some(bench) = self.try_take() {
                return bench;
            }
            backoff.wait();
        }
    }
}
