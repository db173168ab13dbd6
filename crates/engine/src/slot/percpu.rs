//! How a map uses the caches of processors: when, for what, and how they are emptied.
//!
//! Locks, in order: a cache (`Rank::SlotCache`), which is tried and waited for only to empty it;
//! then, while it is filled, the device's and a cluster's. It is not held while slots go back.

use super::cache::{CACHE_HIGH, CACHE_LOW, CACHE_SLOTS, CACHED_MAX, CpuCache, SlotCache};
use super::counts::SlotState;
use super::layout::pieces;
use super::runs::Run;
use super::table::Want;
use super::{Batching, Disk, SlotMap};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{RankedGuard, lock};
use crate::stats::Counter;
use std::sync::atomic::Ordering::Relaxed;

impl SlotMap {
    /// Hands slots out of the cache of processor `cpu`, which is filled first if nothing good is in
    /// it. `None` if it is not used, somebody else's just now, or empty for want of slots.
    pub(super) fn alloc_cached(&self, cpu: usize, want: usize, disk: &dyn Disk) -> Option<Run> {
        let want =
            if self.settings.batching == Batching::Single { want.min(CACHE_SLOTS) } else { want };
        let (cell, mut cache) = self.try_cache(cpu, want)?;
        let mut filled = false;
        let run = cache.take(want).or_else(|| {
            filled = cache.fill(|slots, runs| {
                self.draw(cpu, Want { slots, run_min: want.min(slots) }, disk, runs)
            });
            cache.take(want).or_else(|| cache.take_longest())
        });
        cell.publish(&cache);
        drop(cache);
        if filled {
            self.stats.add(Counter::SlotCacheRefill, 1);
            self.review(disk);
        }
        self.stats.add(Counter::SlotCacheAlloc, run?.1 as u64);
        run
    }

    /// Adds slots to those that processor `cpu` has collected; `false` if its cache is not used, or
    /// somebody else's just now.
    pub(super) fn collect(&self, cpu: usize, offset: u64, len: usize, disk: &dyn Disk) -> bool {
        let Some((cell, mut cache)) = self.try_cache(cpu, len) else { return false };
        let mut full = None;
        (offset..offset + len as u64).for_each(|slot| full = cache.push(slot).or(full.take()));
        cell.publish(&cache);
        drop(cache);
        if let Some(mut batch) = full {
            self.stats.add(Counter::SlotCacheReturn, 1);
            self.stats.add(Counter::SlotCacheFree, CACHE_SLOTS as u64);
            self.put(batch.pieces(), disk);
            self.review(disk);
        }
        true
    }

    /// The cache of a processor, for a request of `slots`; or that of the next if it is somebody
    /// else's just now, who may have been interrupted with it. `None` if none is to be had, or none
    /// is to be used.
    fn try_cache(
        &self,
        cpu: usize,
        slots: usize,
    ) -> Option<(&CpuCache, RankedGuard<'_, SlotCache>)> {
        let most =
            if self.settings.batching == Batching::Single { CACHE_SLOTS } else { CACHED_MAX };
        if slots > most || !self.caching.load(Relaxed) {
            return None;
        }
        let cells = [cpu % self.cpus, (cpu + 1) % self.cpus].map(|cpu| &self.caches[cpu]);
        let locked = cells.into_iter().find_map(|cell| Some((cell, cell.cache.try_lock()?)))?;
        // Only now it is certain.
        let caching = self.caching.load(Relaxed) || is_seeded(Bug::CachingLookedTooEarly);
        if caching { Some(locked) } else { None }
    }

    /// Slots that can be handed out, disk space taken into use as needed; those in caches do not
    /// count.
    pub(super) fn available(&self) -> u64 {
        if self.writes_paused.load(Relaxed) {
            return 0;
        }
        let ungrown =
            if self.disk_full.load(Relaxed) { 0 } else { self.table.tally.get(SlotState::Ungrown) };
        self.table.tally.get(SlotState::Free) + ungrown
    }

    /// Begins to use the caches where there is room enough, and gives them up where there is too
    /// little.
    pub(super) fn review(&self, disk: &dyn Disk) {
        if self.caches.is_empty() {
            return;
        }
        let (available, cpus) = (self.available(), self.cpus as u64);
        if self.caching.load(Relaxed) {
            if available < CACHE_LOW * cpus {
                self.caching.store(false, Relaxed);
                self.drain(disk);
            }
        } else if available > CACHE_HIGH * cpus && !self.table.is_closed() && !self.is_retiring() {
            self.caching.store(true, Relaxed);
        }
    }

    /// Puts everything back that is in caches; how many slots that were. What other threads are
    /// just putting back they put back themselves.
    pub fn drain(&self, disk: &dyn Disk) -> usize {
        let slots =
            self.caches.iter().map(|cell| self.drain_one(cell, lock(&cell.cache), disk)).sum();
        if slots > 0 {
            self.stats.add(Counter::SlotCacheDrain, 1);
        }
        slots
    }

    /// Puts back what lies in caches that were not used since this was last called. To be called
    /// now and then.
    pub fn trim(&self, disk: &dyn Disk) {
        for cell in &self.caches {
            if let Some(mut cache) = cell.cache.try_lock()
                && !cache.was_touched()
            {
                self.drain_one(cell, cache, disk);
            }
        }
    }

    fn drain_one(
        &self,
        cell: &CpuCache,
        mut cache: RankedGuard<'_, SlotCache>,
        disk: &dyn Disk,
    ) -> usize {
        let slots = cache.slots();
        if slots > 0 {
            let late = is_seeded(Bug::CacheClearedLate);
            let (ready, mut freed) = if late { cache.clone().drain() } else { cache.drain() };
            cell.publish(&cache);
            drop(cache);
            self.stats.add(Counter::SlotCacheFree, freed.len() as u64);
            self.put(ready.as_slice().iter().flat_map(|run| pieces(run.0, run.1)), disk);
            self.put(freed.pieces(), disk);
            if late {
                lock(&cell.cache).drain();
            }
        }
        slots
    }
}
