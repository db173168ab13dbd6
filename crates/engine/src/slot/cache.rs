//! The slots that each processor keeps, so that most are had and given back without the lock of
//! their cluster.
//!
//! Two stores: runs set aside to be handed out, taken from clusters [`CACHE_SLOTS`] at a time, so
//! that what one processor evicts lies together; and slots that were freed, which go back
//! [`CACHE_SLOTS`] at a time, sorted, so that each cluster is locked once. A freed slot is not
//! handed out from here: it lies anywhere, and would break up what is read together.

use super::cluster::CLUSTER_SLOTS;
use super::runs::{Run, Runs};
use super::table::RUN_MIN;
use crate::base::lockdep::Rank;
use crate::base::sync::RankedMutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots taken or given back at a time, as in Linux: 256 KiB, and arrays of a few cache lines.
pub const CACHE_SLOTS: usize = 64;
/// Requests for more slots, and runs of more that are freed, go past the caches: one lock of a
/// cluster for [`RUN_MIN`] slots costs less than to pass them through here (6 against 20 ns a slot
/// for runs of 16), and finds longer runs where space is fragmented (9 slots on average against 6).
pub const CACHED_MAX: usize = RUN_MIN - 1;
/// Free slots a processor below which caches are given up, and above which they are used (again):
/// as in Linux. What they can hold at most is the first, so that a device never runs out while most
/// of its free slots are cached.
pub const CACHE_LOW: u64 = 2 * CACHE_SLOTS as u64;
pub const CACHE_HIGH: u64 = 5 * CACHE_SLOTS as u64;

/// Freed slots on their way back.
#[derive(Clone, Debug)]
pub struct FreedSlots {
    slots: [u64; CACHE_SLOTS],
    len: usize,
}

impl FreedSlots {
    const fn new() -> FreedSlots {
        FreedSlots { slots: [0; CACHE_SLOTS], len: 0 }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// As runs, by their place: cluster, first slot in it, number.
    pub fn pieces(&mut self) -> impl Iterator<Item = (u32, usize, usize)> {
        let slots = &mut self.slots[..self.len];
        slots.sort_unstable();
        let cluster = |slot: u64| slot / CLUSTER_SLOTS as u64;
        let runs = slots.chunk_by(move |a, b| a + 1 == *b && cluster(*a) == cluster(*b));
        runs.map(move |run| (cluster(run[0]) as u32, run[0] as usize % CLUSTER_SLOTS, run.len()))
    }
}

/// What one processor keeps.
#[derive(Clone, Debug)]
pub struct SlotCache {
    ready: Runs<CACHE_SLOTS>,
    ready_slots: usize,
    freed: FreedSlots,
    /// Whether it was used since it was last asked.
    touched: bool,
}

impl SlotCache {
    /// An empty cache.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> SlotCache {
        SlotCache { ready: Runs::new(), ready_slots: 0, freed: FreedSlots::new(), touched: false }
    }

    /// Slots in both stores.
    pub fn slots(&self) -> usize {
        self.ready_slots + self.freed.len
    }

    /// Takes `want` slots of the first run that has as many.
    pub fn take(&mut self, want: usize) -> Option<Run> {
        let at = self.ready.as_slice().iter().position(|run| run.1 >= want)?;
        Some(self.take_run(at, want))
    }

    /// Takes all slots of the longest run.
    pub fn take_longest(&mut self) -> Option<Run> {
        let runs = self.ready.as_slice();
        let at = (0..runs.len()).rev().max_by_key(|at| runs[*at].1)?;
        Some(self.take_run(at, CACHE_SLOTS))
    }

    fn take_run(&mut self, at: usize, want: usize) -> Run {
        let run = self.ready.take(at, want);
        self.ready_slots -= run.1;
        self.touched = true;
        run
    }

    /// Sets more slots aside: `draw` adds up to as many as it is told. Whether there were any.
    pub fn fill(&mut self, draw: impl FnOnce(usize, &mut Runs<CACHE_SLOTS>) -> bool) -> bool {
        let room = CACHE_SLOTS - self.ready_slots;
        let any = room > 0 && draw(room, &mut self.ready);
        self.ready_slots = self.ready.as_slice().iter().map(|run| run.1).sum();
        any
    }

    /// Adds a slot that was freed. When there are [`CACHE_SLOTS`] they are returned.
    pub fn push(&mut self, slot: u64) -> Option<FreedSlots> {
        self.freed.slots[self.freed.len] = slot;
        self.freed.len += 1;
        self.touched = true;
        (self.freed.len == CACHE_SLOTS)
            .then(|| std::mem::replace(&mut self.freed, FreedSlots::new()))
    }

    /// Empties both stores.
    pub fn drain(&mut self) -> (Runs<CACHE_SLOTS>, FreedSlots) {
        let SlotCache { ready, freed, .. } = std::mem::replace(self, SlotCache::new());
        (ready, freed)
    }

    /// Whether it was used since the last time that this was asked.
    pub fn was_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }
}

/// The cache of a processor, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct CpuCache {
    pub cache: RankedMutex<SlotCache>,
    /// Copy of the number of slots in it, to read without the lock.
    pub slots: AtomicU64,
}

impl CpuCache {
    /// Over a cache.
    pub fn new(cache: SlotCache) -> CpuCache {
        CpuCache {
            slots: AtomicU64::new(cache.slots() as u64),
            cache: RankedMutex::new(Rank::SlotCache, cache),
        }
    }

    /// Brings the copy up to date, while the cache is locked.
    pub fn publish(&self, cache: &SlotCache) {
        self.slots.store(cache.slots() as u64, Relaxed);
    }
}
