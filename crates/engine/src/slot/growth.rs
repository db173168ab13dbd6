//! How a map takes more of its device into use, allotment by allotment, and gives it back:
//! ownership and growth.
//!
//! The books change under the device's lock, which [`Books`] prove. What is to be done on the disk
//! the map asks of [`Disk`], and takes the answer as it is: an allotment refused or a full disk is
//! asked for again after [`RETRY`]. To take more into use is up to milliseconds of system calls: it
//! is done by one thread at a time ([`SlotTable::grow`]) without the device's lock, while others
//! take slots out of what is there and put slots back.

use super::SlotState;
use super::allotments::AllotmentOwner;
use super::cluster::{CLUSTER_SLOTS, ClusterState, FREE_LIST};
use super::table::{Books, SlotTable};
use overspill_os::Errno;
use std::fmt::Debug;
use std::ops::{DerefMut, Range};
use std::time::{Duration, Instant};

/// Disk space is set aside in steps of this many clusters (64 MiB), and in smaller ones as a disk
/// becomes full.
const GROWTH_STEPS: [u32; 4] = [32, 8, 2, 1];
/// Clusters that are acquired at a time at least where no other process can want them: 16 MiB, so
/// that a small device, which has small allotments, does not grow 2 MiB at a time.
const GROWTH_LEAST: u32 = 8;
/// How long a full disk, or one whose allotments other processes own, is left alone before it is
/// asked again.
pub const RETRY: Duration = Duration::from_secs(1);
/// Allotments asked for at a time, where other processes have many: bounds the time that an
/// allocation takes.
const TRIES: usize = 64;
/// Allotments without a slot in use that a process keeps, for its next writes, before it gives
/// some back.
const IDLE_ALLOTMENTS_KEPT: u32 = 1;

/// What a map asks of the disk that its slots lie on.
pub trait Disk: Debug {
    /// Whether other processes may use it too.
    fn is_shared(&self) -> bool;

    /// Makes a range of bytes this process's own; `false` if another has it.
    fn acquire(&self, bytes: Range<u64>) -> bool;

    /// Whether ranges are given back that are no longer needed: others may want them.
    fn gives_back(&self) -> bool;

    /// Gives a range back.
    fn release(&self, bytes: Range<u64>);

    /// Sets disk space aside.
    ///
    /// # Errors
    /// When the disk is full.
    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno>;
}

impl SlotTable {
    /// Takes more of the disk into use; whether there are free clusters now. `lock` locks the
    /// books: they are not locked while the disk is asked. One thread at a time, which is for the
    /// caller to see to.
    pub fn grow<B: DerefMut<Target = Books>>(&self, lock: impl Fn() -> B, disk: &dyn Disk) -> bool {
        let mut books = lock();
        // Whoever was at it before may have done what is needed.
        if books.lists.first(FREE_LIST).is_some() {
            return true;
        }
        if self.is_closed() || books.no_growth_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        books.growing = true;
        // 1. Ownership.
        let mut refused = 0;
        while let Some(allotment) = self.next_to_acquire(&mut books, disk.is_shared()) {
            drop(books);
            let acquired = disk.acquire(self.layout.allotment_bytes(allotment));
            books = lock();
            self.answered(&mut books, allotment, acquired);
            refused += usize::from(!acquired);
            if refused == TRIES {
                break;
            }
        }
        // 2. Disk space.
        let ungrown = books.ungrown.clone();
        drop(books);
        let mut failed = u32::MAX;
        let steps = GROWTH_STEPS.map(|step| step.min(ungrown.len() as u32));
        let grown = steps.into_iter().filter(|step| *step > 0).find(|step| {
            let done = *step != failed
                && disk.allocate(self.layout.bytes_of(ungrown.start..ungrown.start + step)).is_ok();
            failed = *step;
            done
        });
        // 3. Into the books.
        let books = &mut *lock();
        books.growing = false;
        match grown {
            Some(clusters) => {
                self.grown(books, clusters);
                books.no_growth_until = None;
            }
            None if !ungrown.is_empty() => books.no_growth_until = Some(Instant::now() + RETRY),
            None => {}
        }
        grown.is_some()
    }

    /// The first `clusters` of those that are acquired have disk space: their slots can be handed
    /// out.
    fn grown(&self, books: &mut Books, clusters: u32) {
        let first = books.ungrown.start;
        books.ungrown.start += clusters;
        for cluster in first..first + clusters {
            books.allotments[self.layout.allotment_of(cluster)].grown += 1;
            let mut cluster = self.clusters.lock(cluster);
            self.tally.shift(SlotState::Ungrown, SlotState::Free, cluster.free_slots());
            self.place(books, &mut cluster);
        }
    }

    /// The allotment that is to be asked for next, if more should be acquired.
    fn next_to_acquire(&self, books: &mut Books, shared: bool) -> Option<u32> {
        let more = !books.ungrown.is_empty();
        if more && (shared || books.ungrown.len() >= GROWTH_LEAST as usize) {
            return None;
        }
        if books.retry_at.is_some_and(|retry| Instant::now() >= retry) {
            books.retry_at = None;
            self.forget_refused(books);
        }
        // The first that may be had; a further one where it goes on.
        let is_nobodys =
            |allotment: &u32| books.allotments[*allotment].owner == AllotmentOwner::Nobody;
        let allotments = books.next_hint..self.layout.allotments();
        let allotment = allotments.clone().find(is_nobodys).unwrap_or(allotments.end);
        books.next_hint = allotment;
        if allotment == self.layout.allotments()
            || more && self.layout.clusters_of(allotment).start != books.ungrown.end
        {
            return None;
        }
        books.allotments[allotment].owner = AllotmentOwner::Asking;
        Some(allotment)
    }

    /// What became of asking for an allotment.
    fn answered(&self, books: &mut Books, allotment: u32, acquired: bool) {
        if acquired {
            books.allotments[allotment].owner = AllotmentOwner::Us;
            let clusters = self.layout.clusters_of(allotment);
            books.ungrown =
                if books.ungrown.is_empty() { clusters } else { books.ungrown.start..clusters.end };
        } else {
            books.allotments[allotment].owner = AllotmentOwner::Another;
            self.tally.shift(
                SlotState::Ungrown,
                SlotState::Another,
                self.usable_slots(books, allotment),
            );
            books.retry_at = books.retry_at.or_else(|| Some(Instant::now() + RETRY));
        }
    }

    /// Forgets which allotments other processes had, so that they are asked for again.
    pub fn forget_refused(&self, books: &mut Books) {
        books
            .allotments
            .known_mut()
            .iter_mut()
            .filter(|e| e.owner == AllotmentOwner::Another)
            .for_each(|e| e.owner = AllotmentOwner::Nobody);
        self.tally.shift(
            SlotState::Another,
            SlotState::Ungrown,
            self.tally.get(SlotState::Another),
        );
        books.next_hint = 0;
    }

    /// Gives the allotment of a cluster back if it has no slot in use and there are others like it;
    /// of a closed map, if it has no slot in use.
    pub fn release_idle(&self, books: &mut Books, cluster: u32, disk: &dyn Disk) {
        let allotment = self.layout.allotment_of(cluster);
        if !disk.gives_back() || !books.allotments[allotment].is_ours() {
            return;
        }
        if self.is_closed() {
            if self.is_allotment_in_use(allotment) {
                return;
            }
        } else {
            if !self.is_idle(books, allotment) || books.idle_allotments <= IDLE_ALLOTMENTS_KEPT {
                return;
            }
            self.vacate(books, allotment);
        }
        books.allotments[allotment].grown = 0;
        self.given_up(books, allotment);
        disk.release(self.layout.allotment_bytes(allotment));
    }

    /// Takes an allotment without a slot in use out of use, if there are others like it: it can be
    /// acquired again after [`SlotTable::given_up`]. Of several the last.
    pub fn give_up_idle(&self, books: &mut Books) -> Option<u32> {
        if self.is_closed() || books.idle_allotments <= IDLE_ALLOTMENTS_KEPT {
            return None;
        }
        let idle = |allotment: &u32| {
            books.allotments[*allotment].is_ours() && self.is_idle(books, *allotment)
        };
        let allotment = (0..self.layout.allotments()).rev().find(idle)?;
        self.vacate(books, allotment);
        books.allotments[allotment].owner = AllotmentOwner::Leaving;
        Some(allotment)
    }

    /// See [`SlotTable::give_up_idle`].
    pub fn given_up(&self, books: &mut Books, allotment: u32) {
        books.allotments[allotment].owner = AllotmentOwner::Nobody;
        books.next_hint = books.next_hint.min(allotment);
    }

    /// Takes the clusters of an allotment without a slot in use out of use.
    fn vacate(&self, books: &mut Books, allotment: u32) {
        for cluster in self.layout.clusters_of(allotment) {
            let mut cluster = self.clusters.lock(cluster);
            debug_assert_eq!(cluster.state(), ClusterState::Listed(FREE_LIST));
            self.set_state(books, &mut cluster, ClusterState::Absent);
        }
        books.allotments[allotment].grown = 0;
        self.tally.shift(SlotState::Free, SlotState::Ungrown, self.usable_slots(books, allotment));
    }

    /// Withdraws a slot of an allotment that nobody owns yet, for ever.
    pub fn exclude(&self, books: &mut Books, offset: u64) {
        let index = (offset / CLUSTER_SLOTS as u64) as u32;
        let allotment = &mut books.allotments[self.layout.allotment_of(index)];
        assert_eq!(allotment.owner, AllotmentOwner::Nobody);
        let mut cluster = self.clusters.lock(index);
        let slot = offset as usize % CLUSTER_SLOTS;
        if cluster.occupied()[slot / 64] >> (slot % 64) & 1 == 0 {
            cluster.withdraw(slot, 1);
            allotment.bad += 1;
            self.tally.shift(SlotState::Ungrown, SlotState::Bad, 1);
        }
    }

    /// Slots of an allotment that are not bad.
    fn usable_slots(&self, books: &Books, allotment: u32) -> u64 {
        self.layout.slots_of(allotment) - u64::from(books.allotments[allotment].bad)
    }
}
