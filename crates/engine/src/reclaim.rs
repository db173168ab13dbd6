//! Reclaim: choosing pages, taking them out of the page tables, storing them.
//!
//! The clock has two hands. The first walks over the extents of the window. Dense runs it moves out
//! to frames of the arena, unchanged: the swap cache, where a touch brings them back cheaply and
//! counts as a reference. Scattered pages, which would cost a flush each to move, it protects,
//! stores where they are, and drops with one call. The second hand takes the oldest pages of the
//! swap cache and stores them. [`writeback`] passes the tier's coldest pages on to devices.
//!
//! It owns the buffers of a batch, the hand, the line of threads that reclaim for themselves
//! ([`throttle`], [`direct`]), and how far a pool is from being out of room ([`oom`]).
//!
//! Locks: a batch holds the locks of the extents that its pages leave, and then of the pages; all
//! are tried, never waited for. Nobody waits for a reclaiming thread's page locks longer than one
//! system call.
//!
//! Below it: swap, memory and the working set. It knows nothing of faults.

pub mod direct;
pub mod oom;
mod plan;
mod resize;
pub mod settings;
pub mod throttle;
mod way_out;
pub mod writeback;

use crate::base::Base;
use crate::base::buffers::{Buffers, TakenBuffers};
use crate::base::costs::Choice;
use crate::base::lockdep::Rank;
use crate::frame::cells::Owner;
use crate::memory::Memory;
use crate::memory::extent::{self, EXTENT_PAGES, ExtentGuard};
use crate::memory::lease::Lease;
use crate::memory::word::{PageWord, State};
use crate::reclaim::settings::DIRECT_PAGES;
use crate::stats::{Counter, Stats};
use crate::swap::Swap;
use crate::swap::batch::{Batch, Pick};
use crate::units::{FrameId, PageIndex, SlotId};
use crate::workingset::WorkingSet;
use crate::workingset::settings::CompressedMax;
use oom::OomProgress;
use overspill_os::Errno;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::cpu::{self, Topology};
use overspill_os::fault_path::FaultPath;
pub(crate) use plan::EvictTo;
use plan::{EvictPlan, ExtentBitmap, ScanProgress};
use settings::{ReclaimMax, ReclaimSettings};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use throttle::Throttle;

/// Share of the budget that the swap cache fills before its oldest pages are stored: 1/8. Enough
/// for pages that are touched again soon, small enough to leave the frames to resident and
/// compressed pages.
const CACHE_SHARE: usize = 8;
/// Extents of which pages leave together at most: with fewer than a batch's pages in each, flushes
/// are what costs most.
const TOGETHER_EXTENTS: usize = 16;
/// Most pages of a batch that is not for direct reclaim.
const BATCH_MOST: usize = 128;
/// Rounds of the clock after which reclaim says what it has found: a page is stored in the third at
/// the latest, if anything takes it.
const ROUNDS_MAX: usize = 8;

/// Who reclaims, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimer {
    /// The background thread.
    Background,
    /// A thread that needs a frame for its fault.
    Direct,
    /// The background thread, because it was asked to ([`crate::control::proactive`]).
    Proactive,
}

impl Reclaimer {
    /// Of pages looked at, and of pages freed.
    fn counters(self) -> (Counter, Counter) {
        match self {
            Reclaimer::Background => (Counter::PgScanKswapd, Counter::PgStealKswapd),
            Reclaimer::Direct => (Counter::PgScanDirect, Counter::PgStealDirect),
            Reclaimer::Proactive => (Counter::PgScanProactive, Counter::PgStealProactive),
        }
    }

    /// Whether pages stay that are shared since a fork, as nothing is free before all who have them
    /// have them leave: unless there was nothing else in a round, and there has to be something.
    fn spares_shared(self, is_first_round: bool, lease: &Lease) -> bool {
        match self {
            Reclaimer::Background => is_first_round || !lease.is_pressed(),
            Reclaimer::Direct => is_first_round,
            Reclaimer::Proactive => true,
        }
    }
}

/// What takes pages out of memory.
pub struct Reclaim<B = AnonPrivate> {
    base: Arc<Base>,
    stats: Stats,
    settings: ReclaimSettings,
    memory: Arc<Memory<B>>,
    workingset: Arc<WorkingSet>,
    swap: Arc<Swap<B>>,
    /// Buffers of engine threads, and one for whoever must not be throttled: the handler thread, a
    /// fork, mapping calls.
    pub batches: Buffers<Batch>,
    /// Who reclaims for itself, and with which of these.
    pub throttle: Throttle,
    direct: Buffers<Batch>,
    /// How far it is on its way to being out of room, and whether the process is killed for that.
    pub oom_progress: OomProgress,
    killing: AtomicBool,
    /// How many pages had left when writeback found nothing to do, last.
    written_back: AtomicU64,
    /// Way out, by where it leads ([`EvictTo`]): moving (0) or protecting and dropping (1), for
    /// dense runs.
    ways_out: [Choice; 2],
    /// The first hand of the clock.
    clock_hand: AtomicUsize,
    /// Whether something writes to memory past the page tables.
    dma_seen: AtomicBool,
}

impl<B: Backing> Reclaim<B> {
    /// With buffers for the background thread, `workers` beside it, and as many threads that
    /// reclaim for themselves as the settings say.
    pub fn new(
        base: &Arc<Base>,
        swap: &Arc<Swap<B>>,
        memory: &Arc<Memory<B>>,
        workingset: &Arc<WorkingSet>,
        settings: ReclaimSettings,
        stats: Stats,
    ) -> Result<Reclaim<B>, Errno> {
        let budget = memory.lease.account.budget() as usize;
        let auto = ReclaimMax::auto(Topology::of_machine().nodes(), cpu::available(), budget);
        let direct = match settings.max {
            // In thread delivery there is nobody to throttle.
            _ if !settings.own_faults => 0,
            ReclaimMax::Auto => auto,
            ReclaimMax::Threads(threads) => threads.into(),
            ReclaimMax::Off => ReclaimMax::OFF_THREADS.into(),
        };
        let of_swap = &swap.settings;
        let buffers = |count, pages: usize, each: usize, kept| {
            let charge = memory.charges(each as u64, kept);
            Buffers::new(Rank::Batch, count, || Batch::new(pages, of_swap), charge)
        };
        // In thread delivery the handler has none but these, and must not wait for another's.
        let kept = if settings.own_faults { 1 } else { 2 };
        let batches = 1 + base.wake.worker_count() + 1;
        let batches = buffers(batches, BATCH_MOST, Batch::LEAST, kept)?;
        // Those of direct reclaimers do not count where there are more than by default: together
        // they could be larger than the budget.
        let each = if direct <= auto { DIRECT_PAGES } else { 0 };
        let direct = buffers(direct, DIRECT_PAGES, each, 1)?;
        Ok(Reclaim {
            base: base.clone(),
            stats,
            memory: memory.clone(),
            workingset: workingset.clone(),
            swap: swap.clone(),
            throttle: Throttle::new(direct.len(), settings.recheck),
            batches,
            direct,
            oom_progress: OomProgress::default(),
            killing: AtomicBool::new(false),
            written_back: AtomicU64::new(0),
            ways_out: Default::default(),
            clock_hand: AtomicUsize::new(0),
            dma_seen: AtomicBool::new(false),
            settings,
        })
    }

    /// Gives back the memory of buffers, as nothing is to be reclaimed soon.
    pub(crate) fn trim(&self) {
        for buffers in [&self.batches, &self.direct] {
            buffers.trim(|batch| self.memory.budget().charge_less(batch.forget() as u64));
        }
    }

    /// A free batch of those that are not for direct reclaim, with as many pages as are worth it
    /// here, if there is room for them.
    pub(crate) fn take_batch(&self) -> Option<TakenBuffers<'_, Batch>> {
        let (mut batch, budget) = (self.batches.try_take()?, self.memory.budget());
        let growth = batch.growth(budget.limit() as usize).min(budget.free_pages() as usize / 2);
        if growth > 0 {
            budget.charge_more(growth as u64);
            batch.grow(growth);
        }
        Some(batch)
    }

    /// How many threads may reclaim for themselves at once.
    pub fn direct_count(&self) -> usize {
        self.direct.len()
    }

    /// Frees `want` pages or as many as can be had; returns how many.
    pub(crate) fn reclaim(&self, batch: &mut Batch, want: usize, who: Reclaimer) -> usize {
        let _mark = FaultPath::enter();
        let (scan, steal) = who.counters();
        let mut freed = 0;
        // Extents passed in a row without any use; two rounds see every referenced page twice. And
        // in all: pages that nothing takes may go to the swap cache and come back for ever.
        let (mut idle, mut passed) = (0, 0);
        while freed < want {
            let extents = self.memory.extents_high.load(Relaxed);
            if passed > ROUNDS_MAX * extents {
                break;
            }
            let cache_full = self.swap.lru.len() > self.cached_max();
            // A busy program that is not short takes pages back from the swap cache faster than it
            // fills.
            let circling = matches!(who, Reclaimer::Proactive) && passed > ROUNDS_MAX / 2 * extents;
            if cache_full || circling || idle > 2 * extents {
                let stored = self.store_oldest(batch, who);
                freed += stored;
                if stored > 0 {
                    idle = 0;
                    continue;
                }
            }
            // Nothing is left to compress, or the compressed tier holds more than it may: on to the
            // devices.
            if idle > 2 * extents || self.swap.zpool.is_over_limit() {
                match self.write_back(batch) {
                    0 if idle > 2 * extents => break,
                    written => {
                        self.stats.add(steal, written as u64);
                        freed += written;
                    }
                }
            }
            let spares =
                self.memory.is_sharing() && who.spares_shared(idle < extents, &self.memory.lease);
            let progress = self.scan(batch, who, want.saturating_sub(freed), spares);
            passed += progress.passed;
            self.stats.add(scan, progress.scanned as u64);
            self.stats.add(steal, progress.freed as u64);
            freed += progress.freed;
            if progress.deactivated > 0 {
                self.kick_workers();
            }
            idle =
                if progress.freed + progress.deactivated > 0 { 0 } else { idle + progress.passed };
        }
        // The last there is: empty chunks of the zpool, kept for its next objects.
        if freed == 0 {
            freed = self.swap.zpool.trim(&self.memory.frames);
            self.stats.add(scan, freed as u64);
            self.stats.add(steal, freed as u64);
        }
        freed
    }

    /// How full the swap cache may be before its oldest pages are stored.
    fn cached_max(&self) -> usize {
        self.memory.budget().limit() as usize / CACHE_SHARE
    }

    /// Whether so much waits in the swap cache, and so little room is left, that workers are to
    /// store it.
    pub(crate) fn has_to_store(&self) -> bool {
        self.swap.lru.len() > self.cached_max() / 2
            && self.memory.budget().free_pages() < self.memory.budget().high()
    }

    /// The second hand, counted; returns how many pages it freed.
    pub(crate) fn store_oldest(&self, batch: &mut Batch, who: Reclaimer) -> usize {
        let _mark = FaultPath::enter();
        let (scan, steal) = who.counters();
        let stored = self.shrink_cache(batch);
        self.stats.add(scan, batch.picks.len() as u64);
        self.stats.add(steal, stored as u64);
        stored
    }

    /// The second hand: stores the oldest pages of the swap cache and frees their frames.
    fn shrink_cache(&self, batch: &mut Batch) -> usize {
        // 1. Isolate: lock the oldest pages that are still where the list says; what was only read
        //    ahead is on its device.
        batch.picks.clear();
        batch.frames.clear();
        let mut oldest = [(Owner::Page(PageIndex(0)), FrameId(0)); 128];
        let (mut taken, mut locked) = ([FrameId(0); 128], 0);
        let room = batch.capacity().min(oldest.len());
        let count = self.swap.lru.oldest(&mut oldest[..room]);
        for &(owner, frame) in &oldest[..count] {
            let page = match owner {
                Owner::Page(page) => page,
                Owner::Copy(slot) => self.swap.index.owner(slot),
                Owner::Slot(slot) => {
                    self.drop_read_ahead(batch, slot);
                    continue;
                }
            };
            let from = State::Cached(frame);
            if let Some(word) =
                self.memory.words.try_lock_if(page, |w| w.state() == from && !w.is_pinned())
            {
                (taken[locked], locked) = (frame, locked + 1);
                batch.picks.push(self.pick(page, word));
            } else if self.memory.words.load(page).is_pinned() {
                self.swap.lru.rotate(owner, frame);
            }
        }
        self.swap.lru.remove_many(&taken[..locked]);
        self.memory.frames.give_present(&batch.frames, &mut batch.ranges);
        batch.frames.len() + self.store_cached(batch)
    }

    /// A page of memory to be stored, or only dropped if it is clean.
    pub(crate) fn pick(&self, page: PageIndex, word: PageWord) -> Pick {
        Pick::new(page, word.state(), self.swap.copy_of(word))
    }

    /// Takes the copy of a slot's page out of the swap cache, if it is still there, and adds its
    /// frame to those to be freed.
    pub(crate) fn drop_read_ahead(&self, batch: &mut Batch, slot: SlotId) {
        if let Some(frame) = self.swap.index.take_frame(slot) {
            self.swap.lru.remove(frame);
            batch.frames.push(frame);
        }
    }

    /// Stores the picked pages of the swap cache, whose locks are held, and frees their frames; how
    /// many.
    pub(crate) fn store_cached(&self, batch: &mut Batch) -> usize {
        // 2. Store. The frames are ours alone: nothing to protect.
        let arena = &self.memory.frames.arena;
        self.swap.store_batch(batch, |pick, out| {
            let State::Cached(frame) = pick.from else {
                unreachable!("picked from the swap cache")
            };
            arena.read(frame.0, 0, out);
            true
        });
        // 3. Publish where they are now; what nobody took goes back as the newest.
        batch.frames.clear();
        for pick in &batch.picks {
            let State::Cached(frame) = pick.from else {
                unreachable!("picked from the swap cache")
            };
            let word = self.memory.words.load(pick.page);
            match pick.stored {
                Some(stored) => {
                    pick.copy.into_iter().for_each(|copy| self.swap.leave_copy(copy));
                    self.memory.words.unlock_as(pick.page, word.with_state(stored));
                    batch.frames.push(frame);
                }
                None => {
                    self.swap.lru.add(pick.owner(), frame);
                    self.memory.words.unlock_as(pick.page, word);
                }
            }
        }
        // 4. Free the frames, with one call and one flush.
        self.memory.frames.give_present(&batch.frames, &mut batch.ranges);
        batch.frames.len()
    }

    /// The first hand, over one extent or, while few pages of each are to leave, over several: they
    /// leave together, with one flush.
    fn scan(&self, batch: &mut Batch, who: Reclaimer, want: usize, spares: bool) -> ScanProgress {
        let mut progress = ScanProgress::default();
        let to = if self.is_bound_for_devices() { EvictTo::SwapCache } else { EvictTo::SwapOut };
        let plan = EvictPlan { spares_shared: spares, ..self.plan(to, true) };
        let extents = self.memory.extents_high.load(Relaxed).max(1);
        let mut guards = [const { None }; TOGETHER_EXTENTS];
        batch.picks.clear();
        for guard in guards.iter_mut().take(extents) {
            progress.passed += 1;
            let hand = self.clock_hand.fetch_add(1, Relaxed);
            let (from, most) = match who {
                Reclaimer::Background | Reclaimer::Proactive => (0, EXTENT_PAGES),
                // No more than is asked for, and another part of the extent each time.
                Reclaimer::Direct => {
                    let left = want.saturating_sub(progress.freed + batch.picks.len()).max(1);
                    (hand / extents * DIRECT_PAGES % EXTENT_PAGES, left)
                }
            };
            *guard = self.scan_extent(batch, hand % extents, (from, most), plan, &mut progress);
            if !batch.has_room() || progress.freed + batch.picks.len() >= want {
                break;
            }
        }
        self.evict_picked(batch, plan, &mut progress);
        progress
    }

    /// The first hand on one extent, from page `from` of it on; stops once `most` pages more are to
    /// be stored. Pages that move out are as many as there are: that is cheaper the more they are.
    /// The lock, under which the picked pages are to leave.
    fn scan_extent(
        &self,
        batch: &mut Batch,
        index: usize,
        (from, most): (usize, usize),
        plan: EvictPlan,
        progress: &mut ScanProgress,
    ) -> Option<ExtentGuard<'_>> {
        if !self.may_leave(index, plan) {
            return None;
        }
        let guard = self.memory.extents.try_lock(index)?;
        // 1. Isolate: who is resident and was not referenced lately.
        let mut wanted: ExtentBitmap = [0; EXTENT_PAGES / 64];
        let sheds = self.swap.sheds_compressed();
        let mut count = 0;
        let first = extent::pages_of(index).start;
        for i in (from..EXTENT_PAGES).chain(0..from) {
            let page = PageIndex(first + i);
            let word = self.memory.words.load(page);
            if word.is_locked() || word.is_pinned() || !word.is_resident() || plan.spares(word) {
                continue;
            }
            if sheds && word.is_clean() {
                self.swap.shed_compressed(page);
            }
            progress.scanned += 1;
            if word.is_referenced() {
                self.memory
                    .words
                    .try_update(page, |w| (!w.is_locked()).then_some(w.referenced(false)));
                continue;
            }
            wanted[i / 64] |= 1 << (i % 64);
            count += 1;
            if count == most && !plan.moves {
                break;
            }
        }
        // 2. Out.
        self.evict_wanted(batch, index, (wanted, most), plan, progress);
        Some(guard)
    }

    /// Stores those of some pages that are in the swap cache; how many.
    pub(crate) fn store_cached_of(&self, batch: &mut Batch, pages: Range<usize>) -> usize {
        let _mark = FaultPath::enter();
        let (mut at, mut stored) = (pages.start, 0);
        while at < pages.end {
            batch.picks.clear();
            while at < pages.end && batch.has_room() {
                let page = PageIndex(at);
                let goes = |w: PageWord| matches!(w.state(), State::Cached(_)) && !w.is_pinned();
                if let Some(word) = self.memory.words.try_lock_if(page, goes)
                    && let State::Cached(frame) = word.state()
                {
                    batch.picks.push(self.pick(page, word));
                    self.swap.lru.remove(frame);
                }
                at += 1;
            }
            stored += self.store_cached(batch);
        }
        stored
    }

    /// Whether what leaves memory just now goes to a device rather than to the compressed tier.
    fn is_bound_for_devices(&self) -> bool {
        let tier_takes = self.swap.settings.compressed_max != CompressedMax::OFF
            && !self.swap.compressed_full.load(Relaxed);
        !tier_takes && self.stats.get(Counter::DeviceCapacityBytes) > 0
    }

    /// Notes that memory is about to be written past the page tables: pages leave by being moved
    /// only, from now on. Evictions in place that are under way find out (`evict_in_place`).
    pub fn note_dma(&self) {
        if self.dma_seen.swap(true, SeqCst) {
            return;
        }
        self.stats.set(Counter::DmaSeen, 1);
        if !self.memory.frames.backing.can_move() {
            overspill_os::thread::report(
                "memory is written past the page tables (direct I/O, a device, \
                 process_vm_writev), and this kernel cannot move pages safely then: nothing more \
                 is evicted. Use Linux 6.8 or later, or a larger budget",
            );
        }
    }

    /// As if nothing had been noted.
    #[cfg(test)]
    pub fn forget_dma(&self) {
        self.memory.lease.account.forget_remote_writes();
        self.dma_seen.store(false, SeqCst);
    }

    /// Wakes the workers, if there is something to do.
    pub(crate) fn kick_workers(&self) {
        if self.base.wake.worker_count() > 0 && self.has_to_store() {
            self.base.wake.workers.wake();
        }
    }
}
