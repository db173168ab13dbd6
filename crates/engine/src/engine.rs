//! The engine: every room of a pool in one place, and how they are built.

use crate::base::costs::Choice;
use crate::base::lockdep::Rank;
use crate::base::psi::Pressures;
use crate::base::sync::{Backoff, Gate, RankedGuard, RankedMutex, lock};
use crate::config::{Config, Delivery, Folios, ReclaimMax};
use crate::control::advice::Wishes;
use crate::control::job::JobTable;
use crate::control::limit::Limits;
use crate::control::proactive::Proactive;
use crate::control::swapoff::Swaps;
use crate::device::list::JobSwaps;
use crate::device::{DeviceSettings, SwapDevices};
use crate::error::Error;
use crate::fault::FaultContext;
use crate::fault::readahead::{Streams, Window};
use crate::fork::Family;
use crate::frame::cells::FrameCells;
use crate::frame::{FrameAllocator, Mobility, Need};
use crate::memory::extent::{EXTENT_PAGES, Extents};
use crate::memory::frames::Frames;
use crate::memory::word::PageWords;
use crate::reclaim::direct::DIRECT_PAGES;
use crate::reclaim::oom::Hardship;
use crate::reclaim::throttle::Throttle;
use crate::space::access::Accesses;
use crate::space::regions::RegionMap;
use crate::stats::{Counter, Stats};
use crate::swap::clean::Copies;
use crate::swap::store::Batch;
use crate::swap::zswap::Zswap;
use crate::swap::{Ages, SlotIndex};
use crate::units::{Bytes, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use crate::workingset::history::Recent;
use crate::workingset::tier_size::{Density, Share};
use crate::zpool::CompressedPool;
use overspill_os::Errno;
use overspill_os::arena::Arena;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::cpu::Topology;
use overspill_os::probe;
use overspill_os::stack::EngineStacks;
use overspill_os::uffd::{Features, Uffd};
use overspill_os::vm::{self, ForceReader};
use rustix::thread::{Timespec, futex};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

/// Threads that may reclaim for themselves at once unless the setting says otherwise, a NUMA node.
const DIRECT_PER_NODE: usize = 2;
/// Stacks for threads that are inside the engine at the same time; the next one waits.
const STACKS: usize = 64;
/// Smallest budget with more than one thread that stores pages ahead of need, unless they are asked
/// for: each has buffers of half a megabyte.
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
    pub recent: Recent,
    /// How far it is from being out of room, and whether the process is being killed for that.
    pub hardship: Hardship,
    pub killing: AtomicBool,
    pub compressed: CompressedPool,
    pub share: Share,
    /// How densely it packs.
    pub density: Density,
    pub devices: SwapDevices,
    pub streams: Streams,
    pub window_around: Window,
    /// Those of engine threads, and one for whoever must not be throttled: the handler thread, a
    /// fork, mapping calls.
    pub batches: Workbenches<Batch>,
    /// Who reclaims for itself, and with which of these.
    pub throttle: Throttle,
    pub direct: Workbenches<Batch>,
    pub contexts: Workbenches<FaultContext>,
    /// Frames that stand for the buffers of the benches.
    #[cfg(debug_assertions)]
    pub bench_frames: usize,
    pub force_reader: ForceReader,
    pub stacks: EngineStacks,
    /// Way out: moving (0) or protecting and dropping (1), for dense runs.
    pub way_out: Choice,
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
    /// What of it is known without its lock.
    pub accesses: Accesses,
    /// Pages under mlock, and whether new mappings are (MCL_FUTURE).
    pub pinned_pages: AtomicUsize,
    /// Pages that the program has for itself.
    pub foreign_pages: AtomicUsize,
    pub pin_future: AtomicBool,
    pub family: Family,
    /// What the limit of the budget is to be, and who says so.
    pub limits: Limits,
    /// Pages of budget that the arena was made to fit.
    pub arena_fits: AtomicU64,
    pub job: Option<JobTable>,
    /// Which devices there are to be.
    pub swaps: Swaps,
    /// Requests for pages to leave memory ahead of need.
    pub proactive: Proactive,
    /// How much the program waits for memory.
    pub pressures: Pressures,
    /// Wakes the background thread: 1 while it sleeps.
    pub background: AtomicU32,
    /// Threads that store pages ahead of need beside it, and what wakes them: 1 while one sleeps.
    pub workers: usize,
    pub worker_sleeps: AtomicU32,
    /// What the program wishes of pages.
    pub wishes: Wishes,
    pub stop: AtomicBool,
    window: Range<usize>,
    /// The line about trouble is being printed, and is printed.
    reporting: AtomicBool,
    reported: AtomicBool,
}

/// Pages at the start of the window that no program gets.
pub(crate) const RESERVED_PAGES: usize = EXTENT_PAGES;

impl Engine {
    /// Builds a pool's engine, without its threads.
    pub fn build(mut config: Config, stats: Stats) -> Result<Engine, Error> {
        // The job's budget may have been changed since it was started.
        let job = config.job_file.as_deref().and_then(JobTable::open);
        let request = job.map(|job| job.budget()).filter(|request| request.number != 0);
        if let Some(request) = request {
            config.memory = request.memory;
        }
        Config::check_memory(config.memory)?;
        let watermarks = config.watermarks;
        if !watermarks.rise(config.memory.pages()) {
            return Err(Error::Watermarks { watermarks, memory: config.memory });
        }
        if config.window > Config::WINDOW_MAX {
            return Err(Error::WindowTooLarge { window: config.window });
        }
        let out_of_address_space = |_| Error::AddressSpace { window: config.window };
        if !config.baselines.vector_drop {
            vm::disable_vector_drop();
        }
        // 1. The window, and the tables over it.
        let len = config.window.0 as usize + RESERVED_PAGES * PAGE_SIZE;
        let base = match &config.window_at {
            None => vm::reserve(len, (16 * EXTENT_PAGES) << PAGE_SHIFT),
            Some(range) if len > range.len() => Err(Errno::NOMEM),
            Some(range) => vm::reserve_at(range.start, len),
        }
        .map_err(out_of_address_space)?;
        let window = base..base + len;
        vm::advise(window.clone(), vm::MADV_NOHUGEPAGE).map_err(out_of_address_space)?;
        let pages = len >> PAGE_SHIFT;
        let words = PageWords::new(pages).map_err(out_of_address_space)?;
        let extents = Extents::new(pages).map_err(out_of_address_space)?;
        // 2. The userfaultfd over the window and the arena.
        let limit = config.memory.pages();
        // Room to grow to the whole memory of the machine, which costs addresses only; without it
        // where they are short.
        let grown = vm::machine_memory().min(Config::MEMORY_MAX.0) >> PAGE_SHIFT;
        let room = |limit_max| {
            let allocator = FrameAllocator::new(
                limit,
                limit_max,
                config.frame(),
                Topology::of_machine().clone(),
                stats,
            )?;
            let arena = Arena::new(allocator.frames_max())?;
            Ok((allocator, arena))
        };
        let nodes = Topology::of_machine().nodes();
        let (allocator, arena) =
            room(grown).or_else(|_| room(limit)).map_err(out_of_address_space)?;
        let frame_count = allocator.frames_max();
        allocator.resize(limit, |frames| arena.open(frames)).map_err(out_of_address_space)?;
        let signal = config.delivery == Delivery::Signal;
        let mut wanted = Features::THREAD_ID.0
            | Features::POISON.0
            | Features::MOVE.0
            | Features::PAGEFAULT_FLAG_WP.0;
        if signal {
            wanted |= Features::SIGBUS.0;
        }
        let simulated = probe::simulated();
        let without = if simulated.no_move { Features::MOVE } else { Features(0) };
        if simulated.no_uffd {
            return Err(Error::NoUserfaultfd { errno: overspill_os::Errno::NOSYS });
        }
        let (uffd, _) = Uffd::open(Features(wanted), without, signal)
            .map_err(|errno| Error::NoUserfaultfd { errno })?;
        if signal && !uffd.features().has(Features::SIGBUS) {
            return Err(Error::NoUserfaultfd { errno: overspill_os::Errno::OPNOTSUPP });
        }
        if config.way_out == crate::config::WayOut::Move && !uffd.features().has(Features::MOVE) {
            return Err(Error::NoMove);
        }
        let backing = AnonPrivate::new(uffd);
        let register =
            |range| backing.register(range).map_err(|errno| Error::NoUserfaultfd { errno });
        register(window.clone())?;
        register(arena.range())?;
        // 3. The tiers and the benches, charged to the budget.
        let settings = DeviceSettings {
            slots: config.baselines.slot,
            uring: config.baselines.uring && !simulated.no_uring,
            partition: config.baselines.cache_partition,
            invalidate: config.baselines.invalidate,
            // No more pages can be compressed than there are.
            in_memory: pages as u64,
            frames: frame_count,
            // What the job executes later may have another user or another root, from which they
            // cannot be reached: its memory is only compressed then.
            reachable_only: config.job_file.is_some() && job.is_none_or(|job| !job.is_first()),
        };
        // The devices of the job may have been changed since it was started, too.
        let changed =
            config.job_file.as_deref().filter(|_| job.is_some_and(|job| job.swaps() != 0));
        let list = changed.and_then(|file| JobSwaps::read(&JobSwaps::path(file)).ok());
        let list = list.unwrap_or_else(|| JobSwaps::first(&config.swap));
        let devices = SwapDevices::open(&list, settings, stats)?;
        let (index, zswap) = (devices.index().clone(), devices.zswap().clone());
        let batch_pages = (config.memory.pages() as usize / 64).clamp(32, 128);
        let workers = match config.workers {
            _ if !config.baselines.background => 0,
            Some(workers) => workers as usize - 1,
            None if config.memory < WORKERS_LEAST => 0,
            None => (cpus() / 4).clamp(1, 4) - 1,
        };
        let contexts = if signal { 2 * cpus().clamp(2, 32) } else { 1 };
        // In thread delivery there is nobody to throttle.
        let direct = match config.reclaim_max {
            _ if !signal => 0,
            ReclaimMax::Auto => DIRECT_PER_NODE * nodes,
            ReclaimMax::Threads(threads) => threads.into(),
            ReclaimMax::Off => ReclaimMax::OFF_THREADS.into(),
        };
        let folios = Folios::new(config.folio, config.memory.pages() as usize, contexts);
        let folio = folios.memory.max(folios.device);
        let benches =
            |count, pages| Workbenches::new(Rank::Batch, count, || Batch::new(pages, &config));
        let batches = benches(1 + workers + 1, batch_pages).map_err(out_of_address_space)?;
        let direct = benches(direct, DIRECT_PAGES).map_err(out_of_address_space)?;
        let throttle = Throttle::new(direct.len(), config.baselines.reclaim_recheck);
        // A stack for each of them, beside those for everything else.
        let stacks = EngineStacks::new(STACKS + direct.len()).map_err(out_of_address_space)?;
        let contexts = Workbenches::new(Rank::FaultContext, contexts, || {
            FaultContext::new(folio, config.readahead_max, &config.codecs())
        })
        .map_err(out_of_address_space)?;
        let share = Share::new(config.compressed_max);
        let compressed = CompressedPool::new(allocator.cells().clone(), share.frames(limit));
        stats.set(Counter::BudgetBytes, config.memory.0);
        // The buffers of the benches count too; but not those of more direct reclaimers than there
        // are by default, which together could be larger than the budget.
        let direct_counted = direct.len().min(DIRECT_PER_NODE * nodes) * DIRECT_PAGES;
        let bench_frames = batches.len() * batch_pages + direct_counted + contexts.len() * folio;
        for _ in 0..bench_frames {
            allocator.alloc(0, Mobility::Unmovable, Need::Over);
        }
        let limits = Limits::new(limit, request.map_or(0, |request| request.number));
        stats.set_target(config.memory);
        stats.set_answered(request.map_or(0, |request| request.number));
        let proactive = Proactive::new(job.as_ref()).map_err(out_of_address_space)?;
        stats.set_reclaim_done(proactive.job_done());
        let ages = Ages::new(
            allocator.cells().clone(),
            config.baselines.cache_partition,
            config.baselines.slot.batching,
            stats,
        );
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
            copies: Copies::default(),
            evictions: AtomicU64::new(0),
            recent: Recent::default(),
            hardship: Hardship::default(),
            killing: AtomicBool::new(false),
            compressed,
            share,
            density: Density::default(),
            devices,
            streams: Streams::new(folios),
            window_around: Window::default(),
            batches,
            throttle,
            direct,
            contexts,
            #[cfg(debug_assertions)]
            bench_frames,
            force_reader: ForceReader::new(),
            stacks,
            way_out: Choice::default(),
            way_in: std::array::from_fn(|_| Choice::default()),
            clock_hand: AtomicUsize::new(0),
            extents_high: AtomicUsize::new(1),
            dma_seen: AtomicBool::new(false),
            ops_gate: Gate::new(Rank::OpsGate),
            reclaim_gate: Gate::new(Rank::ReclaimGate),
            fault_gate: Gate::new(Rank::FaultGate),
            regions: RankedMutex::new(Rank::Regions, RegionMap::new(RESERVED_PAGES..pages)),
            accesses: Accesses::default(),
            pinned_pages: AtomicUsize::new(0),
            foreign_pages: AtomicUsize::new(0),
            pin_future: AtomicBool::new(false),
            family: Family::new().map_err(out_of_address_space)?,
            limits,
            arena_fits: AtomicU64::new(limit),
            job,
            proactive,
            swaps: Swaps::new(list),
            pressures: Pressures::default(),
            background: AtomicU32::new(0),
            workers,
            worker_sleeps: AtomicU32::new(0),
            wishes: Wishes::default(),
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

    /// What is kept of each frame.
    pub fn cells(&self) -> &FrameCells {
        self.budget().cells()
    }

    /// Changes the limit of the budget, and of the compressed tier with it.
    pub fn set_limit(&self, pages: u64) {
        self.budget().set_limit(pages);
        self.compressed.set_limit(self.share.frames(pages));
    }

    /// Notes that the extent of `page` is in use, for the clock and for the metadata figure.
    pub fn note_extent(&self, page: PageIndex) {
        let index = page.0 / EXTENT_PAGES;
        if self.extents_high.load(Relaxed) <= index {
            self.extents_high.fetch_max(index + 1, Relaxed);
        }
    }

    /// Brings the metadata figure up to date: what the tables take up that have an entry a page, a
    /// frame or a slot, of all that were ever in use. Not what few have: 4 bytes a frame that was
    /// read ahead into.
    pub fn publish_metadata(&self) {
        let extents = self.extents_high.load(Relaxed) as u64;
        // A page word, and the extent's cells.
        let words = extents * (EXTENT_PAGES as u64 * 8 + 16);
        // Its cells, and its tag.
        let frames = (self.stats.get(Counter::ChargedPeakBytes) >> PAGE_SHIFT) * (16 + 1);
        self.stats.set(Counter::MetadataBytes, words + frames + self.devices.table_bytes());
    }

    /// Notes that the program uses DMA into its memory: pages leave by being moved only, from now
    /// on.
    pub fn note_dma(&self) {
        if self.dma_seen.load(Relaxed) {
            return;
        }
        // Evictions that began before go on to their end first, also for a second caller. Nobody
        // may close the gate again on this thread meanwhile, as a signal handler that forks would.
        let blocked = overspill_os::signal::Blocked::all();
        self.reclaim_gate.close();
        let seen = self.dma_seen.swap(true, Relaxed);
        self.reclaim_gate.open();
        drop(blocked);
        self.stats.set(Counter::DmaSeen, 1);
        if !seen && !self.frames.backing.can_move() {
            overspill_os::thread::report(
                "the program uses direct I/O or a device, and this kernel cannot move pages \
                 safely then: nothing more is evicted. Use Linux 6.8 or later, or a larger \
                 --memory",
            );
        }
    }

    /// Prints one line about trouble, once: the first reason is the one that matters. When this
    /// returns it is printed, also if another thread does that: the caller fails an access next,
    /// which may end the process.
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

/// Processors this process may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get())
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Longest sleep of a thread that waits for a workbench between two looks: nothing is known to need
/// it.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A fixed set of workbenches, made in advance; a thread takes a free one.
#[derive(Debug)]
pub(crate) struct Workbenches<T> {
    benches: Box<[RankedMutex<T>]>,
    /// Threads that wait for one, and how often one of them was woken.
    waiting: AtomicU32,
    woken: AtomicU32,
}

/// A workbench that a thread has.
pub(crate) struct Workbench<'a, T> {
    bench: Option<RankedGuard<'a, T>>,
    benches: &'a Workbenches<T>,
}

impl<T> std::ops::Deref for Workbench<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.bench.as_ref().expect("held until dropped")
    }
}

impl<T> std::ops::DerefMut for Workbench<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.bench.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for Workbench<'_, T> {
    fn drop(&mut self) {
        drop(self.bench.take());
        // The lock is given back before this look, and who waits looks at the lock once more after
        // it said so.
        fence(SeqCst);
        if self.benches.waiting.load(Relaxed) > 0 {
            self.benches.woken.fetch_add(1, Release);
            let _ = futex::wake(&self.benches.woken, futex::Flags::PRIVATE, 1);
        }
    }
}

impl<T> Workbenches<T> {
    fn new<E>(
        rank: Rank,
        count: usize,
        make: impl Fn() -> Result<T, E>,
    ) -> Result<Workbenches<T>, E> {
        let bench = |_| Ok(RankedMutex::new(rank, make()?));
        let benches = (0..count).map(bench).collect::<Result<_, E>>()?;
        Ok(Workbenches { benches, waiting: AtomicU32::new(0), woken: AtomicU32::new(0) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.benches.len()
    }

    /// All of them, one after the other.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = RankedGuard<'_, T>> {
        self.benches.iter().map(lock)
    }

    fn taken<'a>(&'a self, bench: RankedGuard<'a, T>) -> Workbench<'a, T> {
        Workbench { bench: Some(bench), benches: self }
    }

    /// That with a number, which nobody else has.
    pub fn at(&self, number: usize) -> Workbench<'_, T> {
        self.taken(lock(&self.benches[number]))
    }

    /// A free one, if there is one.
    pub fn try_take(&self) -> Option<Workbench<'_, T>> {
        // Always from the first: under one thread it is the one that is hot in cache.
        self.benches.iter().find_map(RankedMutex::try_lock).map(|bench| self.taken(bench))
    }

    /// Those that are free, one after the other.
    pub fn idle(&self) -> impl Iterator<Item = Workbench<'_, T>> {
        self.benches.iter().filter_map(RankedMutex::try_lock).map(|bench| self.taken(bench))
    }

    /// A free one, waiting for it asleep: with many more threads than processors, those that poll
    /// keep the others from getting done.
    pub fn take(&self) -> Workbench<'_, T> {
        self.benches[0].class().check();
        loop {
            if let Some(bench) = self.try_take() {
                return bench;
            }
            self.waiting.fetch_add(1, SeqCst);
            let woken = self.woken.load(Acquire);
            fence(SeqCst);
            let found = self.try_take();
            if found.is_none() {
                let _ = futex::wait(&self.woken, futex::Flags::PRIVATE, woken, Some(&LOOK_EVERY));
            }
            self.waiting.fetch_sub(1, SeqCst);
            if let Some(bench) = found {
                return bench;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_workbenches_take_turns() {
        let benches = Workbenches::new(Rank::Batch, 2, || Ok::<u64, ()>(0)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut bench = benches.take();
                        *bench += 1;
                        std::thread::yield_now();
                    }
                });
            }
        });
        let sum: u64 = (0..2).map(|number| *benches.at(number)).sum();
        assert_eq!((sum, benches.waiting.load(Relaxed)), (4000, 0));
        let _both = [benches.try_take(), benches.try_take()].map(Option::unwrap);
        assert!(benches.try_take().is_none());
    }
}
