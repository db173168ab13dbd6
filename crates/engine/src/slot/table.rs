//! How clusters change hands: what one does under a cluster's lock, and what under the device's as
//! well.
//!
//! [`SlotTable`] is what threads share; [`Books`] is what the device's lock guards, and borrowing
//! it is the proof that the lock is held. Slots are taken out of a [`ClusterState::Current`]
//! cluster, and put back into any, under the cluster's lock alone. Every change of where a cluster
//! *stands* needs both locks, so who puts slots back looks afterwards whether the cluster stands
//! where it should, and if not comes again with the books ([`SlotTable::settle`]). Between the two
//! anything may have happened to it: what is done then follows from what is found then.
//!
//! Locks, in order: the device's, a cluster's.

use super::SlotSettings;
use super::allotments::Allotments;
use super::cluster::{
    CLUSTER_SLOTS, Cluster, ClusterState, ClusterTable, FREE_LIST, LISTS, find_run, free_runs,
};
use super::counts::{SlotState, Tally};
use super::layout::Layout;
use super::lists::ClusterLists;
use super::runs::Runs;
use crate::base::sync::Atomic;
use crate::stats::Stats;
use overspill_os::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// A run at least this long is taken from the current cluster rather than a fresh cluster begun: at
/// 8 pages the cost of a disk operation is well shared, and a cluster is left with gaps that are
/// too small for that only.
pub const RUN_MIN: usize = 8;

/// What is to be taken out of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Slots, at most.
    pub slots: usize,
    /// The shortest run that is good: for less another cluster is looked at first.
    pub run_min: usize,
}

/// What the lock of a device guards.
#[derive(Clone, Debug)]
pub struct Books {
    pub lists: ClusterLists,
    pub allotments: Allotments,
    /// The clusters that are acquired and have no disk space yet; they lie side by side.
    pub ungrown: Range<u32>,
    /// Whether somebody is taking more of the disk into use just now.
    pub growing: bool,
    /// No allotment before this one is nobody's.
    pub next_hint: u32,
    pub idle_allotments: u32,
    pub sealed_clusters: u32,
    /// Set while the disk has no room for growth: when to ask again.
    pub no_growth_until: Option<Instant>,
    /// Set while the disk had no room for a write to space that could not be set aside: when to
    /// write again.
    pub no_writes_until: Option<Instant>,
    /// When allotments that other processes had are asked for again.
    pub retry_at: Option<Instant>,
}

/// Whether there were slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// They were taken.
    Yes,
    /// None, or not before more of the disk is taken into use ([`SlotTable::grow`]).
    Grow,
    /// None.
    No,
}

impl From<bool> for Taken {
    fn from(taken: bool) -> Taken {
        if taken { Taken::Yes } else { Taken::No }
    }
}

/// What is still to be done after slots were put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// Nothing.
    Nothing,
    /// The device can hold fewer pages than before: they are sealed now.
    Publish,
    /// The cluster does not stand where it should, or its allotment may not be needed any more.
    Settle,
}

/// The current cluster of a processor, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Current(AtomicU64);

/// The slots of a device, as threads share them.
#[derive(Debug)]
pub struct SlotTable {
    pub layout: Layout,
    pub clusters: ClusterTable,
    pub tally: Tally,
    /// One more than the current cluster of each owner, or 0: changed under the device's lock,
    /// elsewhere a hint.
    currents: Box<[Current]>,
    /// Clusters of which slots were ever handed out.
    touched: AtomicU64,
    /// Nothing is handed out any more.
    closed: AtomicBool,
    long_runs: bool,
}

impl SlotTable {
    /// A table whose every cluster is absent.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for it.
    pub fn new(
        layout: Layout,
        settings: SlotSettings,
        cpus: usize,
        stats: Stats,
    ) -> Result<(SlotTable, Books), Errno> {
        let locks = settings.lock == super::SlotLock::Cluster;
        let owners = if settings.cpu_cluster { cpus } else { 1 };
        let table = SlotTable {
            layout,
            clusters: ClusterTable::new(layout.clusters, locks, stats)?,
            tally: Tally::default(),
            currents: (0..owners).map(|_| Current::default()).collect(),
            touched: AtomicU64::default(),
            closed: AtomicBool::new(false),
            long_runs: settings.long_runs,
        };
        table.tally.begin(SlotState::Ungrown, layout.pages - layout.reserved);
        let tail = (layout.pages % CLUSTER_SLOTS as u64) as usize;
        if layout.reserved > 0 {
            table.clusters.lock(0).withdraw(0, layout.reserved as usize);
        }
        if tail > 0 {
            table.clusters.lock(layout.clusters - 1).withdraw(tail, CLUSTER_SLOTS - tail);
        }
        let books = Books {
            lists: ClusterLists::new(),
            allotments: Allotments::new(layout.allotments()),
            ungrown: 0..0,
            growing: false,
            next_hint: 0,
            idle_allotments: 0,
            sealed_clusters: 0,
            no_growth_until: None,
            no_writes_until: None,
            retry_at: None,
        };
        Ok((table, books))
    }

    // ---- Taking ----

    /// The current cluster of an owner.
    pub fn current(&self, owner: usize) -> Option<u32> {
        let current = &self.currents[owner % self.currents.len()].0;
        (Atomic::load(current, Relaxed) as u32).checked_sub(1)
    }

    /// How many current clusters there may be.
    pub fn owners(&self) -> usize {
        self.currents.len()
    }

    fn set_current(&self, _: &mut Books, owner: usize, cluster: Option<u32>) {
        let word = cluster.map_or(0, |cluster| cluster as u64 + 1);
        Atomic::store(&self.currents[owner % self.currents.len()].0, word, Relaxed);
    }

    /// Takes slots out of the current cluster of processor `owner`, if it has a run that is long
    /// enough.
    pub fn take_current<const N: usize>(
        &self,
        owner: usize,
        want: Want,
        runs: &mut Runs<N>,
    ) -> bool {
        let Some(index) = self.current(owner) else { return false };
        let mut cluster = self.clusters.lock(index);
        // Of another owner by now, perhaps: that does no harm.
        cluster.state() == ClusterState::Current
            && self.take(&mut cluster, want, want.run_min, runs)
    }

    /// Takes the slot after one that was taken, out of the current cluster that both lie in, if it
    /// is free.
    pub fn take_next(&self, slot: u64) -> bool {
        let (index, at) = ((slot / CLUSTER_SLOTS as u64) as u32, slot as usize % CLUSTER_SLOTS);
        if at == 0 {
            return false;
        }
        let mut cluster = self.clusters.lock(index);
        let free = cluster.state() == ClusterState::Current
            && cluster.occupied()[at / 64] >> (at % 64) & 1 == 0;
        if free {
            cluster.take(at, 1);
            self.tally.shift(SlotState::Free, SlotState::Taken, 1);
        }
        free
    }

    /// Takes slots of whatever cluster there is, which becomes the owner's current one. `may_grow`
    /// is whether more of the disk can be asked for.
    pub fn take_anywhere<const N: usize>(
        &self,
        books: &mut Books,
        owner: usize,
        want: Want,
        may_grow: bool,
        runs: &mut Runs<N>,
    ) -> Taken {
        let may_grow =
            may_grow && books.no_growth_until.is_none_or(|until| Instant::now() >= until);
        // 1. Somebody else may have come here first. Else a free cluster.
        if self.take_current(owner, want, runs)
            || self.take_listed(books, owner, FREE_LIST..FREE_LIST + 1, want, runs)
        {
            return Taken::Yes;
        }
        // 2. Disk space for one, if half of what is there is in use, and nobody is at it.
        if may_grow && self.wants_growth() && !books.growing {
            return Taken::Grow;
        }
        // 3. The emptiest of the partly used, the one just left included.
        self.retire(books, owner);
        if self.take_listed(books, owner, 0..LISTS, want, runs) {
            return Taken::Yes;
        }
        if may_grow {
            return Taken::Grow;
        }
        // 4. What other processors have.
        (self.retire_all(books) && self.take_listed(books, owner, 0..LISTS, want, runs)).into()
    }

    /// Whether more disk space should be taken into use before partly used clusters are: while half
    /// of what is there is in use, if long runs are wanted. At half they still are; the price is
    /// disk space of at most twice what is stored.
    fn wants_growth(&self) -> bool {
        self.long_runs && self.tally.get(SlotState::Free) < self.tally.get(SlotState::Taken)
    }

    /// Takes slots out of the first cluster of `lists`, and makes that the owner's current one.
    fn take_listed<const N: usize>(
        &self,
        books: &mut Books,
        owner: usize,
        mut lists: Range<usize>,
        want: Want,
        runs: &mut Runs<N>,
    ) -> bool {
        let Some(next) = lists.find_map(|list| books.lists.first(list)) else { return false };
        self.retire(books, owner);
        let mut cluster = self.clusters.lock(next);
        Atomic::fetch_add(&self.touched, cluster.touch().into(), Relaxed);
        self.set_state(books, &mut cluster, ClusterState::Current);
        self.set_current(books, owner, Some(next));
        self.take(&mut cluster, want, 1, runs)
    }

    /// Takes the first run of all slots that are wanted, or else the longest, if it has `run_min`;
    /// and in that case the other runs that are long enough, if there is room for them in `runs`.
    fn take<const N: usize>(
        &self,
        cluster: &mut Cluster<'_>,
        want: Want,
        run_min: usize,
        runs: &mut Runs<N>,
    ) -> bool {
        let occupied = cluster.occupied();
        let best = find_run(&occupied, want.slots);
        if best.1 < run_min {
            return false;
        }
        let mut left = want.slots;
        let others = free_runs(&occupied).filter(|run| run.0 != best.0 && run.1 >= want.run_min);
        for (start, len) in std::iter::once(best).chain(others) {
            let len = len.min(left);
            if len == 0 || runs.is_full() {
                break;
            }
            cluster.take(start, len);
            runs.push(cluster.first_slot() + start as u64, len);
            left -= len;
        }
        self.tally.shift(SlotState::Free, SlotState::Taken, (want.slots - left) as u64);
        true
    }

    /// Puts the current cluster of an owner among the others.
    fn retire(&self, books: &mut Books, owner: usize) {
        if let Some(index) = self.current(owner) {
            self.set_current(books, owner, None);
            self.place(books, &mut self.clusters.lock(index));
        }
    }

    /// Puts all current clusters among the others; whether there was one.
    pub fn retire_all(&self, books: &mut Books) -> bool {
        let any = (0..self.currents.len()).any(|owner| self.current(owner).is_some());
        (0..self.currents.len()).for_each(|owner| self.retire(books, owner));
        any
    }

    // ---- Putting back ----

    /// Puts slots of one cluster back, which must be in use: of each run, the first slot in the
    /// cluster and the number.
    pub fn put(&self, index: u32, runs: impl Iterator<Item = (usize, usize)>) -> After {
        let mut cluster = self.clusters.lock(index);
        let mut slots = 0;
        for (start, len) in runs {
            cluster.put(start, len);
            slots += len as u64;
        }
        if self.is_closed() {
            self.tally.shift(SlotState::Taken, SlotState::Sealed, slots);
            return if cluster.used_slots() == 0 { After::Settle } else { After::Nothing };
        }
        if cluster.state() == ClusterState::Sealed {
            self.tally.shift(SlotState::Taken, SlotState::Sealed, slots);
            return After::Publish;
        }
        self.tally.shift(SlotState::Taken, SlotState::Free, slots);
        if is_placed(cluster.state()) && cluster.state() != place_of(&cluster) {
            After::Settle
        } else {
            After::Nothing
        }
    }

    /// Moves a cluster to where it should stand by now.
    pub fn settle(&self, books: &mut Books, index: u32) {
        let mut cluster = self.clusters.lock(index);
        if !self.is_closed() && is_placed(cluster.state()) {
            self.place(books, &mut cluster);
        }
    }

    /// Withdraws slots of a cluster that are in use for ever.
    pub fn withdraw(&self, books: &mut Books, index: u32, start: usize, len: usize) {
        let mut cluster = self.clusters.lock(index);
        cluster.put(start, len);
        cluster.withdraw(start, len);
        self.tally.shift(SlotState::Taken, SlotState::Bad, len as u64);
        books.allotments[self.layout.allotment_of(index)].bad += len as u32;
        if !self.is_closed() && is_placed(cluster.state()) {
            self.place(books, &mut cluster);
        }
    }

    /// Puts a cluster that is neither current nor sealed where its slots say.
    pub fn place(&self, books: &mut Books, cluster: &mut Cluster<'_>) {
        let state = place_of(cluster);
        if cluster.state() != state {
            self.set_state(books, cluster, state);
        }
    }

    /// Moves a cluster: out of its list if it is in one, to the end of the new one if that is a
    /// list.
    pub fn set_state(&self, books: &mut Books, cluster: &mut Cluster<'_>, state: ClusterState) {
        let before = cluster.state();
        if let ClusterState::Listed(list) = before {
            books.lists.unlink(&self.clusters, cluster.index(), list);
        }
        cluster.set_state(state);
        if let ClusterState::Listed(list) = state {
            books.lists.link_last(&self.clusters, cluster.index(), list);
        }
        let listed_free = |state| u8::from(state == ClusterState::Listed(FREE_LIST));
        let index = self.layout.allotment_of(cluster.index());
        let was_idle = self.is_idle(books, index);
        let allotment = &mut books.allotments[index];
        allotment.free_clusters =
            allotment.free_clusters + listed_free(state) - listed_free(before);
        books.idle_allotments =
            books.idle_allotments + u32::from(self.is_idle(books, index)) - u32::from(was_idle);
    }

    /// Whether no cluster of an allotment is in use.
    pub fn is_idle(&self, books: &Books, allotment: u32) -> bool {
        books.allotments[allotment].free_clusters as usize
            == self.layout.clusters_of(allotment).len()
    }

    // ---- Forks ----

    /// Seals every cluster with slots in use for the child of fork number `seq` (counted from 1, in
    /// order).
    pub fn seal(&self, books: &mut Books, seq: u64) {
        assert!(seq > 0);
        if self.is_closed() {
            return;
        }
        for index in 0..self.layout.clusters {
            // A look without the lock first: most of a large device was never used.
            if !books.allotments[self.layout.allotment_of(index)].is_ours()
                || self.clusters.used_slots(index) == 0
            {
                continue;
            }
            let mut cluster = self.clusters.lock(index);
            if cluster.state() != ClusterState::Sealed {
                if cluster.state() == ClusterState::Current {
                    let owner =
                        (0..self.currents.len()).find(|owner| self.current(*owner) == Some(index));
                    self.set_current(books, owner.expect("a current cluster has an owner"), None);
                }
                self.set_state(books, &mut cluster, ClusterState::Sealed);
                books.sealed_clusters += 1;
                self.tally.shift(SlotState::Free, SlotState::Sealed, cluster.free_slots());
            }
            cluster.set_seal(seq);
        }
    }

    /// Unseals the clusters that no living child can share: all, or those sealed before the oldest
    /// living child's fork.
    pub fn unseal(&self, books: &mut Books, oldest_living_child: Option<u64>) {
        for index in
            0..if self.is_closed() || books.sealed_clusters == 0 { 0 } else { self.layout.clusters }
        {
            if !books.allotments[self.layout.allotment_of(index)].is_ours()
                || self.clusters.state(index) != ClusterState::Sealed
                || oldest_living_child.is_some_and(|oldest| self.clusters.seal(index) >= oldest)
            {
                continue;
            }
            let mut cluster = self.clusters.lock(index);
            self.tally.shift(SlotState::Sealed, SlotState::Free, cluster.free_slots());
            books.sealed_clusters -= 1;
            self.place(books, &mut cluster);
        }
    }

    /// Ends allocation for good: in a child of a fork, of the map that it shares with its parent.
    pub fn close(&self, _: &mut Books) {
        self.closed.store(true, Relaxed);
        for state in [SlotState::Free, SlotState::Ungrown, SlotState::Another] {
            self.tally.shift(state, SlotState::Sealed, self.tally.get(state));
        }
    }

    /// Whether it has been closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// The owned allotments that hold slots in use.
    pub fn allotments_in_use(&self, books: &Books) -> impl Iterator<Item = u32> {
        let ours = (0..)
            .zip(books.allotments.known())
            .filter(|(_, allotment)| allotment.is_ours())
            .map(|(index, _)| index);
        ours.filter(|allotment| self.is_allotment_in_use(*allotment))
    }

    /// Whether an allotment holds slots in use.
    pub fn is_allotment_in_use(&self, allotment: u32) -> bool {
        self.layout.clusters_of(allotment).any(|cluster| self.clusters.used_slots(cluster) > 0)
    }

    /// Clusters of which slots were ever handed out.
    pub fn touched_clusters(&self) -> u64 {
        self.touched.load(Relaxed)
    }

    /// What a fork copies.
    #[cfg(test)]
    pub fn copy_to(&self, other: &SlotTable) {
        other.touched.store(self.touched.load(Relaxed), Relaxed);
        self.clusters.copy_to(&other.clusters);
        self.tally.copy_to(&other.tally);
        self.currents
            .iter()
            .zip(&other.currents)
            .for_each(|(from, to)| to.0.store(from.0.load(Relaxed), Relaxed));
        other.closed.store(self.is_closed(), Relaxed);
    }
}

/// Whether a cluster in this state stands where its slots say.
fn is_placed(state: ClusterState) -> bool {
    matches!(state, ClusterState::Full | ClusterState::Listed(_))
}

/// Where a cluster should stand that is neither current nor sealed.
pub fn place_of(cluster: &Cluster<'_>) -> ClusterState {
    let free = cluster.free_slots() as usize;
    if free == 0 {
        ClusterState::Full
    } else if cluster.used_slots() == 0 {
        ClusterState::Listed(FREE_LIST)
    } else {
        let quarters = LISTS - 1;
        ClusterState::Listed(1 + (CLUSTER_SLOTS - free) * quarters / CLUSTER_SLOTS)
    }
}
