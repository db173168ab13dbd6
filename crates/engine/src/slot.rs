//! Swap slots: which pages of a device are in use.
//!
//! A [`SlotMap`] is the table of one device. Slots are grouped in clusters of [`CLUSTER_SLOTS`], clusters in extents
//! of up to [`EXTENT_CLUSTERS_MAX`]. An extent is *leased* before it is used, so that processes can share a device, and its
//! clusters are *grown* (given disk space) before slots of them are handed out, so that a full disk is found here and
//! not when a page is written. Around a fork clusters are *sealed*: parent and child both read them, so neither hands
//! out their free slots until the other is gone.
//!
//! Every usable slot is counted in exactly one place ([`Counts`]). Nothing here does I/O: [`crate::device`] leases,
//! grows and writes, and locks; this is plain data without locks, and allocates no memory after it was made.

mod cluster;
mod lease;
#[cfg(test)]
mod tests;

use crate::base::{PAGE_SIZE, SlotId};
pub use cluster::CLUSTER_SLOTS;
use cluster::{ClusterTable, FREE_LIST, LISTS, State, find_run};
use overspill_os::Errno;
use std::ops::Range;

/// Most clusters of an extent: 32 x 2 MiB = 64 MiB, so that leases and growth are rare (two system calls for 16384
/// pages).
pub const EXTENT_CLUSTERS_MAX: u32 = 32;
/// Extents that a device has at least, as far as its clusters go: so many processes can share it. A device of 4 GiB
/// and more has extents of 64 MiB. Processes need not agree on the size: leases are locks on ranges of bytes.
const EXTENTS_MIN: u32 = 64;
/// Largest device that is used: 64 TiB, for which the table of extents takes 16 MiB.
pub const SLOTS_MAX: u64 = (64 << 40) / PAGE_SIZE as u64;
/// A run at least this long is taken from the current cluster rather than a fresh cluster begun: at 8 pages the
/// cost of a disk operation is well shared, and a cluster is left with gaps that are too small for that only.
const RUN_MIN: usize = 8;
/// Extents without a used slot that a process keeps, for its next writes, before it gives leases back.
const IDLE_EXTENTS_KEPT: u32 = 1;

/// A run of neighbouring slots of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRun {
    /// The first.
    pub first: SlotId,
    /// How many.
    pub len: usize,
}

impl SlotRun {
    /// The slots one by one.
    pub fn slots(self) -> impl Iterator<Item = SlotId> {
        (0..self.len as u64).map(move |i| self.first.advance(i))
    }
}

/// Whose an extent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Owner {
    /// Nobody's, as far as is known.
    #[default]
    Nobody,
    /// Leased by this process.
    Us,
    /// Leased by another process when last asked.
    Another,
}

#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    owner: Owner,
    /// Clusters that have disk space, from the first.
    grown: u8,
    /// Clusters in the free list.
    free_clusters: u8,
    used: u16,
    bad: u16,
}

/// Where the usable slots of a device are; the fields add up to their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Handed out.
    pub used: u64,
    /// Can be handed out at once.
    pub free: u64,
    /// Need a lease or disk space first.
    pub ungrown: u64,
    /// Free, but in clusters shared with a process on the other side of a fork.
    pub sealed: u64,
    /// In extents that other processes lease.
    pub another: u64,
    /// Failed to be written; never handed out again.
    pub bad: u64,
}

/// The next step of growth: clusters of a leased extent that have no disk space yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The extent.
    pub extent: u32,
    /// How many clusters are left.
    pub clusters: u32,
}

/// The slots of one device.
#[derive(Debug)]
pub struct SlotMap {
    table: ClusterTable,
    extents: Vec<Extent>,
    /// Clusters an extent.
    extent_clusters: u32,
    clusters: u32,
    /// Pages of the device, usable or not.
    pages: u64,
    /// Pages at the start that are never handed out (a header).
    reserved: u64,
    counts: Counts,
    current: Option<u32>,
    /// The leased extent that still has clusters without disk space.
    growing: Option<u32>,
    /// No extent before this one is [`Owner::Nobody`]'s.
    lease_hint: u32,
    idle_extents: u32,
    sealed_clusters: u32,
    closed: bool,
}

impl SlotMap {
    /// The map of a device of `pages` pages, the first `reserved` of which (less than a cluster) are not for slots.
    pub fn new(pages: u64, reserved: u64) -> Result<SlotMap, Errno> {
        assert!(reserved < pages && reserved < CLUSTER_SLOTS as u64 && pages <= SLOTS_MAX);
        let clusters = pages.div_ceil(CLUSTER_SLOTS as u64) as u32;
        let extent_clusters = (clusters / EXTENTS_MIN).clamp(1, EXTENT_CLUSTERS_MAX);
        let mut table = ClusterTable::new(clusters)?;
        table.set_bad(0, 0, reserved as usize);
        let tail = (pages % CLUSTER_SLOTS as u64) as usize;
        if tail > 0 {
            table.set_bad(clusters - 1, tail, CLUSTER_SLOTS - tail);
        }
        Ok(SlotMap {
            table,
            extents: vec![Extent::default(); clusters.div_ceil(extent_clusters) as usize],
            extent_clusters,
            clusters,
            pages,
            reserved,
            counts: Counts { ungrown: pages - reserved, ..Counts::default() },
            current: None,
            growing: None,
            lease_hint: 0,
            idle_extents: 0,
            sealed_clusters: 0,
            closed: false,
        })
    }

    /// Where the slots are.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Hands out up to `want` neighbouring slots: page offset and number. Prefers the cluster that the last ones
    /// came from, then a cluster without any used slot; clusters that are partly used only with `fragments`.
    pub fn alloc(&mut self, want: usize, fragments: bool) -> Option<(u64, usize)> {
        assert!((1..=CLUSTER_SLOTS).contains(&want));
        if self.closed {
            return None;
        }
        // 1. The current cluster, if it has a run worth an operation.
        if let Some(current) = self.current {
            let (start, len) = find_run(&self.table.occupied(current), want);
            if len >= want.min(RUN_MIN) {
                return Some(self.take(current, start, len));
            }
        }
        // 2. A free cluster; else the emptiest of the partly used, the one just left included.
        let mut next = self.table.first(FREE_LIST);
        if fragments && next.is_none() {
            self.retire_current();
            next = (0..LISTS).find_map(|list| self.table.first(list));
        }
        let next = next?;
        self.retire_current();
        self.set_state(next, State::Current);
        self.current = Some(next);
        let (start, len) = find_run(&self.table.occupied(next), want);
        Some(self.take(next, start, len))
    }

    fn take(&mut self, cluster: u32, start: usize, len: usize) -> (u64, usize) {
        self.table.take(cluster, start, len);
        self.extent_mut(cluster).used += len as u16;
        self.counts.used += len as u64;
        self.counts.free -= len as u64;
        (cluster as u64 * CLUSTER_SLOTS as u64 + start as u64, len)
    }

    fn retire_current(&mut self) {
        if let Some(current) = self.current.take() {
            self.place(current);
        }
    }

    /// Whether more disk space should be taken into use before partly used clusters are: while half of what is there
    /// is in use. At half, runs are still long; the price is disk space of at most twice what is stored.
    pub fn wants_growth(&self) -> bool {
        self.counts.free < self.counts.used
    }

    /// Takes slots back, which must be in use.
    pub fn free(&mut self, offset: u64, len: usize) {
        for (cluster, start, len) in pieces(offset, len) {
            self.table.put(cluster, start, len);
            self.extent_mut(cluster).used -= len as u16;
            self.counts.used -= len as u64;
            match self.table.state(cluster) {
                _ if self.closed => self.counts.sealed += len as u64,
                State::Sealed => self.counts.sealed += len as u64,
                State::Current => self.counts.free += len as u64,
                _ => {
                    self.counts.free += len as u64;
                    self.place(cluster);
                }
            }
        }
    }

    /// Withdraws slots in use for ever: writing them failed.
    pub fn mark_bad(&mut self, offset: u64, len: usize) {
        for (cluster, start, len) in pieces(offset, len) {
            self.table.put(cluster, start, len);
            self.table.set_bad(cluster, start, len);
            let extent = self.extent_mut(cluster);
            extent.used -= len as u16;
            extent.bad += len as u16;
            self.counts.used -= len as u64;
            self.counts.bad += len as u64;
            if !self.closed && !matches!(self.table.state(cluster), State::Sealed | State::Current) {
                self.place(cluster);
            }
        }
    }

    /// Puts a cluster that is neither current nor sealed where its slots say.
    fn place(&mut self, cluster: u32) {
        let free = self.table.free_slots(cluster) as usize;
        let state = if free == 0 {
            State::Full
        } else if self.table.used_slots(cluster) == 0 {
            State::Listed(FREE_LIST)
        } else {
            let quarters = LISTS - 1;
            State::Listed(1 + (CLUSTER_SLOTS - free) * quarters / CLUSTER_SLOTS)
        };
        if self.table.state(cluster) != state {
            self.set_state(cluster, state);
        }
    }

    fn set_state(&mut self, cluster: u32, state: State) {
        let listed_free = |state| u8::from(state == State::Listed(FREE_LIST));
        let (before, after) = (listed_free(self.table.state(cluster)), listed_free(state));
        self.table.set_state(cluster, state);
        let index = self.extent_of(cluster);
        let was_idle = self.is_idle(index);
        self.extents[index].free_clusters = self.extents[index].free_clusters + after - before;
        self.idle_extents = self.idle_extents + u32::from(self.is_idle(index)) - u32::from(was_idle);
    }

    fn is_idle(&self, extent: usize) -> bool {
        self.extents[extent].free_clusters as usize == self.clusters_of(extent as u32).len()
    }

    fn extent_of(&self, cluster: u32) -> usize {
        (cluster / self.extent_clusters) as usize
    }

    fn extent_mut(&mut self, cluster: u32) -> &mut Extent {
        let index = self.extent_of(cluster);
        &mut self.extents[index]
    }

    /// The clusters of an extent; the last extent may have fewer.
    fn clusters_of(&self, extent: u32) -> Range<u32> {
        let first = extent * self.extent_clusters;
        first..(first + self.extent_clusters).min(self.clusters)
    }

    /// Usable slots of an extent.
    fn slots_of(&self, extent: u32) -> u64 {
        let pages = self.extent_pages(extent);
        pages.end - pages.start.max(self.reserved) - self.extents[extent as usize].bad as u64
    }

    fn extent_pages(&self, extent: u32) -> Range<u64> {
        let clusters = self.clusters_of(extent);
        let page = |cluster: u32| (cluster as u64 * CLUSTER_SLOTS as u64).min(self.pages);
        page(clusters.start)..page(clusters.end)
    }

    /// Where an extent lies on the device, in bytes: the range that a lease locks.
    pub fn extent_bytes(&self, extent: u32) -> Range<u64> {
        let pages = self.extent_pages(extent);
        pages.start * PAGE_SIZE as u64..pages.end * PAGE_SIZE as u64
    }

    /// Seals every cluster with used slots for the child of fork number `seq` (counted from 1, in order).
    pub fn seal(&mut self, seq: u64) {
        assert!(seq > 0);
        for extent in 0..if self.closed { 0 } else { self.extents.len() as u32 } {
            if self.extents[extent as usize].used == 0 {
                continue;
            }
            for cluster in self.clusters_of(extent) {
                if self.table.used_slots(cluster) == 0 {
                    continue;
                }
                if self.table.state(cluster) != State::Sealed {
                    self.current = self.current.filter(|current| *current != cluster);
                    self.set_state(cluster, State::Sealed);
                    self.sealed_clusters += 1;
                    let free = self.table.free_slots(cluster);
                    self.counts.free -= free;
                    self.counts.sealed += free;
                }
                self.table.set_seal(cluster, seq);
            }
        }
    }

    /// Unseals the clusters that no living child can share: all, or those sealed before the oldest living child's
    /// fork.
    pub fn unseal(&mut self, oldest_living_child: Option<u64>) {
        for cluster in 0..if self.closed || self.sealed_clusters == 0 { 0 } else { self.clusters } {
            if self.extents[self.extent_of(cluster)].owner != Owner::Us
                || self.table.state(cluster) != State::Sealed
                || oldest_living_child.is_some_and(|oldest| self.table.seal(cluster) >= oldest)
            {
                continue;
            }
            let free = self.table.free_slots(cluster);
            self.counts.sealed -= free;
            self.counts.free += free;
            self.sealed_clusters -= 1;
            self.place(cluster);
        }
    }

    /// Ends allocation for good: in a child of a fork, of the map that it shares with its parent.
    pub fn close(&mut self) {
        self.closed = true;
        self.current = None;
        let Counts { used, free, ungrown, sealed, another, bad } = self.counts;
        self.counts = Counts { used, bad, sealed: sealed + free + ungrown + another, ..Counts::default() };
    }
}

/// A run of slots cut at the ends of clusters: cluster, first slot in it, number of slots.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u32, usize, usize)> {
    let end = offset + len as u64;
    let slots = CLUSTER_SLOTS as u64;
    (offset / slots..end.div_ceil(slots)).map(move |cluster| {
        let from = offset.max(cluster * slots);
        let to = end.min((cluster + 1) * slots);
        (cluster as u32, (from - cluster * slots) as usize, (to - from) as usize)
    })
}
