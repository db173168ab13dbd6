//! How a map takes more of its device into use, extent by extent, and gives it back: leases and growth.
//!
//! All of it under the device's lock, which [`Books`] prove. The map keeps the books; what is to be done on the disk it
//! asks of [`Disk`], and takes the answer as it is: a lease refused or a full disk is asked for again after [`RETRY`].

use super::Place;
use super::cluster::{CLUSTER_SLOTS, FREE_LIST, Records, State};
use super::table::{Books, SlotTable};
use overspill_os::Errno;
use std::fmt::Debug;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Disk space is set aside in steps of this many clusters, and in smaller ones as a disk becomes full.
const GROWTH_STEPS: [u32; 4] = [32, 8, 2, 1];
/// How long a full disk, or one whose extents other processes lease, is left alone before it is asked again.
pub const RETRY: Duration = Duration::from_secs(1);
/// Extents asked for in one allocation, where other processes have many: bounds the time that the device is locked.
const LEASE_TRIES: usize = 64;
/// Extents without a slot in use that a process keeps, for its next writes, before it gives leases back.
const IDLE_EXTENTS_KEPT: u32 = 1;

/// What a map asks of the disk that its slots lie on.
pub trait Disk: Debug {
    /// Leases a range of bytes for this process; `false` if another has it.
    fn lease(&self, bytes: Range<u64>) -> bool;

    /// Whether leases are given back that are no longer needed: others may want them.
    fn gives_back(&self) -> bool;

    /// Gives a lease back.
    fn release(&self, bytes: Range<u64>);

    /// Sets disk space aside.
    ///
    /// # Errors
    /// When the disk is full.
    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno>;
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
    /// Leased by this process, and about to be given back.
    Leaving,
}

/// What is known of an extent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    owner: Owner,
    /// Clusters that have disk space, from the first.
    pub grown: u8,
    /// Clusters in the free list.
    pub free_clusters: u8,
    /// Slots that could not be written.
    pub bad: u16,
}

impl Extent {
    /// Whether this process leases it.
    pub fn is_ours(&self) -> bool {
        self.owner == Owner::Us
    }

    /// Whether another process leases it.
    pub fn is_anothers(&self) -> bool {
        self.owner == Owner::Another
    }
}

impl<R: Records> SlotTable<R> {
    /// Takes more of the disk into use; `false` if there is no more just now.
    pub fn grow(&self, books: &mut Books, disk: &dyn Disk) -> bool {
        if books.no_growth_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let Some(extent) = books.growing.or_else(|| self.lease(books, disk)) else { return false };
        books.growing = Some(extent);
        let clusters = self.layout.clusters_of(extent);
        let first = clusters.start + books.extents[extent as usize].grown as u32;
        let mut failed = u32::MAX;
        for step in GROWTH_STEPS.map(|step| step.min(clusters.end - first)) {
            if step == failed {
                continue;
            }
            if disk.allocate(self.layout.bytes_of(first..first + step)).is_ok() {
                self.grown(books, extent, first..first + step);
                books.no_growth_until = None;
                return true;
            }
            failed = step;
        }
        books.no_growth_until = Some(Instant::now() + RETRY);
        false
    }

    /// The next clusters of the extent that is grown have disk space: their slots can be handed out.
    fn grown(&self, books: &mut Books, extent: u32, clusters: Range<u32>) {
        books.extents[extent as usize].grown += clusters.len() as u8;
        if clusters.end == self.layout.clusters_of(extent).end {
            books.growing = None;
        }
        for cluster in clusters {
            let mut cluster = self.clusters.lock(cluster);
            self.tally.shift(Place::Ungrown, Place::Free, cluster.free_slots());
            self.place(books, &mut cluster);
        }
    }

    /// Leases an extent to grow.
    fn lease(&self, books: &mut Books, disk: &dyn Disk) -> Option<u32> {
        if books.lease_retry.is_some_and(|retry| Instant::now() >= retry) {
            books.lease_retry = None;
            self.forget_refused(books);
        }
        for _ in 0..LEASE_TRIES {
            // 1. The first that may be had.
            let rest = &books.extents[books.lease_hint as usize..];
            let skipped = rest.iter().position(|extent| extent.owner == Owner::Nobody).unwrap_or(rest.len());
            books.lease_hint += skipped as u32;
            let extent = books.lease_hint;
            if extent == self.layout.extents() {
                return None;
            }
            // 2. Asked for.
            if disk.lease(self.layout.extent_bytes(extent)) {
                books.extents[extent as usize].owner = Owner::Us;
                return Some(extent);
            }
            books.extents[extent as usize].owner = Owner::Another;
            self.tally.shift(Place::Ungrown, Place::Another, self.usable_slots(books, extent));
            books.lease_retry = books.lease_retry.or_else(|| Some(Instant::now() + RETRY));
        }
        None
    }

    /// Forgets which extents other processes had, so that they are asked for again.
    pub fn forget_refused(&self, books: &mut Books) {
        books.extents.iter_mut().filter(|e| e.owner == Owner::Another).for_each(|e| e.owner = Owner::Nobody);
        self.tally.shift(Place::Another, Place::Ungrown, self.tally.get(Place::Another));
        books.lease_hint = 0;
    }

    /// Gives the extent of a cluster back if it has no slot in use and there are others like it; of a closed map, if it has
    /// no slot in use.
    pub fn release_idle(&self, books: &mut Books, cluster: u32, disk: &dyn Disk) {
        let extent = self.layout.extent_of(cluster);
        if !disk.gives_back() || !books.extents[extent as usize].is_ours() {
            return;
        }
        if self.is_closed() {
            if self.is_extent_in_use(extent) {
                return;
            }
        } else {
            if !self.is_idle(books, extent) || books.idle_extents <= IDLE_EXTENTS_KEPT {
                return;
            }
            self.vacate(books, extent);
        }
        books.extents[extent as usize].grown = 0;
        self.given_up(books, extent);
        disk.release(self.layout.extent_bytes(extent));
    }

    /// Takes an extent without a slot in use out of use, if there are others like it: it can be leased again after
    /// [`SlotTable::given_up`]. Of several the last.
    pub fn give_up_idle(&self, books: &mut Books) -> Option<u32> {
        if self.is_closed() || books.idle_extents <= IDLE_EXTENTS_KEPT {
            return None;
        }
        let idle = |extent: &u32| books.extents[*extent as usize].is_ours() && self.is_idle(books, *extent);
        let extent = (0..self.layout.extents()).rev().find(idle)?;
        self.vacate(books, extent);
        books.extents[extent as usize].owner = Owner::Leaving;
        Some(extent)
    }

    /// See [`SlotTable::give_up_idle`].
    pub fn given_up(&self, books: &mut Books, extent: u32) {
        books.extents[extent as usize].owner = Owner::Nobody;
        books.lease_hint = books.lease_hint.min(extent);
    }

    /// Takes the clusters of an extent without a slot in use out of use.
    fn vacate(&self, books: &mut Books, extent: u32) {
        for cluster in self.layout.clusters_of(extent) {
            let mut cluster = self.clusters.lock(cluster);
            debug_assert_eq!(cluster.state(), State::Listed(FREE_LIST));
            self.set_state(books, &mut cluster, State::Absent);
        }
        books.extents[extent as usize].grown = 0;
        self.tally.shift(Place::Free, Place::Ungrown, self.usable_slots(books, extent));
    }

    /// Withdraws a slot of an extent that nobody leases yet, for ever.
    pub fn exclude(&self, books: &mut Books, offset: u64) {
        let index = (offset / CLUSTER_SLOTS as u64) as u32;
        let extent = &mut books.extents[self.layout.extent_of(index) as usize];
        assert_eq!(extent.owner, Owner::Nobody);
        let mut cluster = self.clusters.lock(index);
        let slot = offset as usize % CLUSTER_SLOTS;
        if cluster.occupied()[slot / 64] >> (slot % 64) & 1 == 0 {
            cluster.withdraw(slot, 1);
            extent.bad += 1;
            self.tally.shift(Place::Ungrown, Place::Bad, 1);
        }
    }

    /// Slots of an extent that are not bad.
    fn usable_slots(&self, books: &Books, extent: u32) -> u64 {
        self.layout.slots_of(extent) - books.extents[extent as usize].bad as u64
    }
}
