//! Swap slots: which pages of a device are in use.
//!
//! A [`SlotMap`] hands out the slots of one device, to all threads at once. Slots are grouped in
//! clusters of [`CLUSTER_SLOTS`], clusters in allotments of up to 32. An allotment is
//! *acquired* before it is used, so that processes can share a device, and its clusters are *grown*
//! (given disk space) before slots of them are handed out, so that a full disk is found here and
//! not when a page is written. Around a fork clusters are *sealed*: parent and child both read
//! them, so neither hands out their free slots until the other is gone.
//!
//! A file each, bottom up:
//! - `cluster`: a record for each cluster, with a lock of its own;
//! - `table`: what is done to clusters, under their locks and that of the device; `lists` that they
//!   stand in by how full they are, `growth`, and `counts`;
//! - `cache`: the slots that a processor keeps; `percpu`: when they are used;
//! - `retire`: a device that is taken out of use; `fork`: what parent and child share.
//!
//! **Scaling**, in three steps, each a setting that can be turned back ([`SlotSettings`]):
//! 1. *A lock a cluster.* Slots are taken and put back under the lock of their cluster; the
//!    device's lock guards the lists of clusters, ownership, growth and seals. Putting slots back
//!    needs it only when the cluster changes its list, taking them only when the current cluster
//!    has no more. The baseline holds it for every operation.
//! 2. *Slot caches.* Requests for a few slots are served from 64 slots that a processor took in one
//!    go, and single slots that are freed go back as many at a time, with no other lock held. Only
//!    while the device has room: below 128 slots a processor what is cached goes back, and so it
//!    does when a request would fail, and around a fork.
//! 3. *A current cluster a processor*, so that no two take slots of the same one. Without it there
//!    is one for the device. When space is short they are given up.
//!
//! And a fourth, which is not for slots alone ([`Batching`]): slots that are taken or put back
//! together are so in one hold of a lock. Without it a run is made up of slots taken one by one.
//!
//! Every usable slot is counted in exactly one state ([`Counts`]). Nothing here does I/O: what is
//! to be done on the disk is asked of [`Disk`]. Nothing allocates memory after it was made.
//!
//! Locks, in order: the cache of a processor (`Rank::SlotCache`: tried, waited for only to empty
//! it, and not held while its slots go back), the right to grow (`Rank::SlotGrowth`; held over
//! system calls), the device's (`Rank::SlotMap`; of the system calls of [`Disk`] only those that
//! give a range back or share one are made under it), a cluster's (`Rank::Cluster`, a leaf). The
//! last two are counted.

mod allotments;
mod cache;
mod check;
mod cluster;
mod counts;
mod fork;
mod growth;
#[cfg(test)]
mod interleavings;
mod layout;
mod lists;
mod percpu;
mod retire;
mod runs;
mod settings;
mod table;
#[cfg(test)]
mod tests;

use crate::base::counted::{CountedGuard, CountedMutex, LockCounters};
use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{RankedMutex, lock, processor};
use crate::stats::{Counter, Stats};
use crate::units::{PAGE_SIZE, SlotId};
use cache::{CACHE_HIGH, CpuCache, SlotCache};
use cluster::RECORD_WORDS;
pub use cluster::{Bitmap, CLUSTER_SLOTS};
pub use counts::Counts;
use counts::SlotState;
pub use growth::Disk;
use growth::RETRY;
use layout::{Layout, pieces};
use overspill_os::Errno;
use runs::{Run, Runs};
pub use settings::{Batching, SlotLock, SlotSettings};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;
use table::{After, Books, RUN_MIN, SlotTable, Taken, Want};

/// Largest device that is used: 64 TiB, for which the table of allotments takes 6 MiB.
pub const SLOTS_MAX: u64 = (64 << 40) / PAGE_SIZE as u64;
/// What a cluster takes in memory when it is used.
pub const CLUSTER_BYTES: usize = RECORD_WORDS * 8;

/// A run of neighbouring slots of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRun {
    /// The first.
    pub first: SlotId,
    /// How many.
    pub len: usize,
}

impl SlotRun {
    /// Whether a slot lies behind its last one.
    pub fn follows(self, slot: SlotId) -> bool {
        self.first.device() == slot.device()
            && self.first.offset() + self.len as u64 == slot.offset()
    }

    /// Whether a slot is one of them.
    pub fn contains(self, slot: SlotId) -> bool {
        let first = self.first.offset();
        self.first.device() == slot.device()
            && (first..first + self.len as u64).contains(&slot.offset())
    }

    /// The slots one by one.
    pub fn slots(self) -> impl Iterator<Item = SlotId> + Clone {
        (0..self.len as u64).map(move |i| self.first.advance(i))
    }
}

/// The counters of the lock of a device's slots.
static SLOT_LOCK: LockCounters = LockCounters {
    taken: Counter::SlotLock,
    contended: Counter::SlotLockContended,
    wait_ns: Counter::SlotLockWaitNs,
    hold_ns: Counter::SlotLockHoldNs,
    long_ns: Counter::SlotLockLongNs,
};

type Guard<'a> = CountedGuard<'a, Books>;

/// The slots of one device.
#[derive(Debug)]
pub struct SlotMap {
    table: SlotTable,
    books: CountedMutex<Books>,
    /// The right to take more of the disk into use.
    growth: RankedMutex<()>,
    /// One a processor; none if that is the setting.
    caches: Box<[CpuCache]>,
    /// Whether there is room enough to use them: it is looked at with a cache locked, so that when
    /// they are emptied after it was cleared they stay empty.
    caching: AtomicBool,
    /// Set while the device is being taken out of use: nothing is handed out.
    retiring: AtomicBool,
    cpus: usize,
    settings: SlotSettings,
    stats: Stats,
    /// Copies of what the books say, to read without their lock: whether nothing can be written
    /// just now, whether the disk has no more room, and how many pages the device can hold.
    writes_paused: AtomicBool,
    disk_full: AtomicBool,
    capacity: AtomicU64,
}

impl SlotMap {
    /// The map of a device of `pages` pages, the first `reserved` of which (less than a cluster)
    /// are not for slots, for `cpus` processors.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for it.
    pub fn new(
        pages: u64,
        reserved: u64,
        settings: SlotSettings,
        cpus: usize,
        stats: Stats,
    ) -> Result<SlotMap, Errno> {
        assert!(reserved < pages && reserved < CLUSTER_SLOTS as u64 && pages <= SLOTS_MAX);
        let layout = Layout::new(pages, reserved);
        let (table, books) = SlotTable::new(layout, settings, cpus, stats)?;
        let map = SlotMap {
            table,
            books: CountedMutex::new(Rank::SlotMap, &SLOT_LOCK, books),
            growth: RankedMutex::new(Rank::SlotGrowth, ()),
            caches: (0..if settings.cache { cpus } else { 0 })
                .map(|_| CpuCache::new(SlotCache::new()))
                .collect(),
            caching: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            cpus,
            settings,
            stats,
            writes_paused: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            capacity: AtomicU64::new(0),
        };
        map.publish(&map.books.inspect());
        map.caching.store(settings.cache && map.available() > CACHE_HIGH * cpus as u64, Relaxed);
        Ok(map)
    }

    /// How it works.
    pub fn settings(&self) -> SlotSettings {
        self.settings
    }

    // ---- Locks ----

    fn lock(&self) -> Guard<'_> {
        self.books.lock(&self.stats)
    }

    /// The lock that an operation of the baseline holds throughout.
    fn baseline(&self) -> Option<Guard<'_>> {
        (self.settings.lock == SlotLock::Device).then(|| self.lock())
    }

    /// Does something under the device's lock, which may be held already.
    fn with_books<T>(&self, held: &mut Option<Guard<'_>>, call: impl FnOnce(&mut Books) -> T) -> T {
        match held {
            Some(books) => call(books),
            None => call(&mut self.lock()),
        }
    }

    // ---- Handing out ----

    /// Hands out up to `want` neighbouring slots, all in one cluster: page offset and number.
    /// Prefers slots next to those handed out last on this processor.
    pub fn alloc(&self, want: usize, disk: &dyn Disk) -> Option<(u64, usize)> {
        self.alloc_on(processor(), want, disk)
    }

    fn alloc_on(&self, cpu: usize, want: usize, disk: &dyn Disk) -> Option<Run> {
        assert!((1..=CLUSTER_SLOTS).contains(&want));
        if self.table.is_closed()
            || self.is_retiring()
            || self.writes_paused.load(Relaxed) && !self.writes_resumed()
        {
            return None;
        }
        let run = self
            .alloc_cached(cpu, want, disk)
            .or_else(|| self.alloc_run(cpu, want, disk))
            // What lies in caches is the last there is.
            .or_else(
                || if self.drain(disk) > 0 { self.alloc_run(cpu, want, disk) } else { None },
            )?;
        self.stats.add(Counter::DevicePages, run.1 as u64);
        Some(run)
    }

    fn alloc_run(&self, cpu: usize, want: usize, disk: &dyn Disk) -> Option<Run> {
        let (slots, mut run) = (want.min(self.settings.batching.most()), Runs::<1>::new());
        let run_min = if self.settings.long_runs { slots.min(RUN_MIN) } else { 1 };
        if !self.draw(cpu, Want { slots, run_min }, disk, &mut run) {
            return None;
        }
        let (first, mut len) = *run.as_slice().first()?;
        while self.settings.batching == Batching::Single
            && len < want
            && self.draw_next(first + len as u64)
        {
            len += 1;
        }
        self.review(disk);
        Some((first, len))
    }

    /// Takes one more slot for a run, if it is free.
    fn draw_next(&self, slot: u64) -> bool {
        let _held = self.baseline();
        self.table.take_next(slot)
    }

    /// Takes slots out of clusters; `false` if there are none.
    fn draw<const N: usize>(
        &self,
        cpu: usize,
        want: Want,
        disk: &dyn Disk,
        runs: &mut Runs<N>,
    ) -> bool {
        let mut held = self.baseline();
        // 1. The current cluster, under its own lock alone.
        if self.table.take_current(cpu, want, runs) {
            return true;
        }
        // 2. Under the device's, which is not held while more of the disk is taken into use.
        let mut may_grow = true;
        loop {
            let taken = self.with_books(&mut held, |books| {
                let taken = self.table.take_anywhere(books, cpu, want, may_grow, runs);
                self.publish(books);
                taken
            });
            if taken != Taken::Grow {
                return taken == Taken::Yes;
            }
            drop(held.take());
            may_grow = self.grow(disk);
            held = self.baseline();
        }
    }

    fn grow(&self, disk: &dyn Disk) -> bool {
        let _one = (!is_seeded(Bug::GrowTogether)).then(|| lock(&self.growth));
        let grown = self.table.grow(|| self.lock(), disk);
        self.publish(&self.lock());
        grown
    }

    // ---- Taking back ----

    /// Takes slots back, which must be in use. Returns whether this was the last of a closed map.
    pub fn free(&self, offset: u64, len: usize, disk: &dyn Disk) -> bool {
        self.free_on(processor(), offset, len, disk)
    }

    fn free_on(&self, cpu: usize, offset: u64, len: usize, disk: &dyn Disk) -> bool {
        let most = self.settings.batching.most().min(len).max(1);
        let parts = (0..len).step_by(most).map(|at| (offset + at as u64, most.min(len - at)));
        // The last part is that which may have been the last of all.
        parts.fold(false, |_, (offset, len)| self.free_part(cpu, offset, len, disk))
    }

    fn free_part(&self, cpu: usize, offset: u64, len: usize, disk: &dyn Disk) -> bool {
        self.stats.sub(Counter::DevicePages, len as u64);
        if !self.collect(cpu, offset, len, disk) {
            self.put(pieces(offset, len), disk);
            self.review(disk);
        }
        if !self.table.is_closed() {
            return false;
        }
        self.capacity.fetch_sub(len as u64, Relaxed);
        self.stats.sub(Counter::DeviceCapacityBytes, (len * PAGE_SIZE) as u64);
        self.table.tally.get(SlotState::Taken) == 0
    }

    /// Puts slots back: cluster, first slot in it, number. Best sorted.
    fn put(&self, pieces: impl Iterator<Item = (u32, usize, usize)>, disk: &dyn Disk) {
        let mut held = self.baseline();
        let mut publish = self.writes_paused.load(Relaxed);
        let mut pieces = pieces.peekable();
        while let Some((cluster, start, len)) = pieces.next() {
            let same = std::iter::from_fn(|| pieces.next_if(|piece| piece.0 == cluster));
            let runs =
                std::iter::once((start, len)).chain(same.map(|(_, start, len)| (start, len)));
            match self.table.put(cluster, runs) {
                After::Nothing => {}
                After::Publish => publish = true,
                After::Settle if is_seeded(Bug::ClusterNotSettled) => {}
                After::Settle => {
                    self.with_books(&mut held, |books| {
                        self.table.settle(books, cluster);
                        self.table.release_idle(books, cluster, disk);
                    });
                    // What is released cannot be had while the disk is full.
                    publish = true;
                }
            }
        }
        if publish {
            self.with_books(&mut held, |books| self.publish(books));
        }
    }

    /// Withdraws slots for ever that are known to be bad, before any is handed out.
    pub fn exclude(&self, slots: impl Iterator<Item = u64>) {
        let books = &mut *self.books.inspect();
        slots.for_each(|slot| self.table.exclude(books, slot));
        self.publish(books);
    }

    /// Gives up the allotments without a slot in use, but for one: `discard` is called for the
    /// bytes of each, with no lock held, before anybody can have it again.
    pub fn give_up_idle(&self, mut discard: impl FnMut(Range<u64>)) {
        loop {
            let mut books = self.lock();
            let Some(allotment) = self.table.give_up_idle(&mut books) else { return };
            self.publish(&books);
            drop(books);
            discard(self.table.layout.allotment_bytes(allotment));
            self.table.given_up(&mut self.lock(), allotment);
        }
    }

    /// Pages at the start that are not for slots.
    pub fn reserved_pages(&self) -> u64 {
        self.table.layout.reserved
    }

    /// Withdraws slots in use for ever: writing them failed.
    pub fn mark_bad(&self, offset: u64, len: usize) {
        self.stats.sub(Counter::DevicePages, len as u64);
        let books = &mut *self.lock();
        pieces(offset, len)
            .for_each(|(cluster, start, len)| self.table.withdraw(books, cluster, start, len));
        self.publish(books);
    }

    /// Takes slots back that the disk had no room for, and hands none out for a second.
    pub fn pause_writes(&self, offset: u64, len: usize, disk: &dyn Disk) {
        let mut books = self.lock();
        books.no_writes_until = Some(Instant::now() + RETRY);
        self.writes_paused.store(true, Relaxed);
        self.publish(&books);
        drop(books);
        self.free(offset, len, disk);
        self.review(disk);
    }

    fn writes_resumed(&self) -> bool {
        let books = &mut *self.lock();
        if books.no_writes_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        books.no_writes_until = None;
        self.writes_paused.store(false, Relaxed);
        self.publish(books);
        true
    }

    // ---- Figures ----

    /// Where the slots are. Exact while no operation is under way.
    pub fn counts(&self) -> Counts {
        let get = |state| self.table.tally.get(state);
        let cached = self.caches.iter().map(|cell| cell.slots.load(Relaxed)).sum();
        Counts {
            used: get(SlotState::Taken).saturating_sub(cached),
            cached,
            free: get(SlotState::Free),
            ungrown: get(SlotState::Ungrown),
            sealed: get(SlotState::Sealed),
            another: get(SlotState::Another),
            bad: get(SlotState::Bad),
        }
    }

    /// Pages that can be held, those in use included: less than the device's where slots are bad,
    /// the disk is full, other processes use it too, or free slots are shared over a fork.
    pub fn capacity_pages(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// Brings the figure of the capacity up to date; the lock of the books is held, so that the
    /// last word is the latest.
    fn publish(&self, books: &Books) {
        if self.table.is_closed() {
            return;
        }
        if self.is_retiring() {
            return self.set_capacity(0);
        }
        // What cannot be had: counted so because slots in use and free ones change places without
        // this lock.
        let Counts { free, ungrown, sealed, another, bad, .. } = self.counts();
        let free = if books.no_writes_until.is_some() { free } else { 0 };
        let ungrown =
            if books.no_writes_until.or(books.no_growth_until).is_some() { ungrown } else { 0 };
        self.disk_full.store(books.no_growth_until.is_some(), Relaxed);
        let layout = self.table.layout;
        self.set_capacity(layout.pages - layout.reserved - free - ungrown - sealed - another - bad);
    }

    fn set_capacity(&self, now: u64) {
        let before = self.capacity.swap(now, Relaxed);
        if now > before {
            self.stats.add(Counter::DeviceCapacityBytes, (now - before) * PAGE_SIZE as u64);
        } else if now < before {
            self.stats.sub(Counter::DeviceCapacityBytes, (before - now) * PAGE_SIZE as u64);
        }
    }

    /// Clusters of which slots were ever handed out: tables by slot have memory for that many.
    pub fn touched_clusters(&self) -> u64 {
        self.table.touched_clusters()
    }

    /// Checks every invariant from the bitmaps up, in time proportional to what is acquired; for
    /// tests and debugging, when no operation is under way.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        let books = &*self.books.inspect();
        self.table.check(books);
        assert!(
            self.caching.load(Relaxed) || self.counts().cached == 0,
            "slots in caches that are not used"
        );
        let Counts { used, cached, free, ungrown, sealed, another, bad } = self.counts();
        let layout = self.table.layout;
        let total = used + cached + free + ungrown + sealed + another + bad;
        assert_eq!(total, layout.pages - layout.reserved, "a slot is lost");
    }

    /// A copy, as a fork makes one.
    #[cfg(test)]
    pub fn copy(&self, cpus: usize, stats: Stats) -> SlotMap {
        let layout = self.table.layout;
        // What it counts while it is made is not to be counted.
        let scratch = Stats::anonymous().unwrap();
        let copy =
            SlotMap::new(layout.pages, layout.reserved, self.settings, cpus, scratch).unwrap();
        self.table.copy_to(&copy.table);
        let books = self.books.inspect().clone();
        *copy.books.inspect() = books;
        let cache = |cell: &CpuCache| CpuCache::new(crate::base::sync::lock(&cell.cache).clone());
        let copy = SlotMap { caches: self.caches.iter().map(cache).collect(), stats, ..copy };
        copy.caching.store(self.caching.load(Relaxed), Relaxed);
        copy.retiring.store(self.is_retiring(), Relaxed);
        copy.writes_paused.store(self.writes_paused.load(Relaxed), Relaxed);
        copy.disk_full.store(self.disk_full.load(Relaxed), Relaxed);
        copy.capacity.store(self.capacity.load(Relaxed), Relaxed);
        copy
    }
}
