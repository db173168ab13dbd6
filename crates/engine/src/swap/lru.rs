//! The LRU lists of the swap cache: its frames by age.
//!
//! A doubly linked list over the frames, so that a page that is touched leaves it at once. The
//! frames are split in partitions with a list and a lock each; between partitions age is not
//! compared, they are asked in turn.
//!
//! What is added or taken out together is tied to a list, or cut out of it, as a chain: under the
//! lock only its ends are looked at again, and a batch takes the lock once a partition.
//! [`Batching::Single`] is the baseline.
//!
//! Lock: a partition's ([`Rank::SwapCache`]); nothing is taken under it.

use crate::base::counted::{CountedGuard, CountedMutex, LockCounters, locks_of};
use crate::base::lockdep::Rank;
use crate::frame::cells::{FrameCells, NO_FRAME, Owner};
use crate::slot::Batching;
use crate::stats::{Counter, Stats};
use crate::swap::settings::CachePartition;
use crate::units::{FrameId, PAGE_SIZE, PageIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Most partitions; beyond, and on few processors, they share lists. 16 KiB of memory.
const LISTS_MAX: usize = 256;

/// The counters of the locks of lists.
static LRU_LOCK: LockCounters = LockCounters {
    taken: Counter::SwapAgesLock,
    contended: Counter::SwapAgesLockContended,
    wait_ns: Counter::SwapAgesLockWaitNs,
    hold_ns: Counter::SwapAgesLockHoldNs,
    long_ns: Counter::SwapAgesLockLongNs,
};

#[derive(Debug)]
struct AgeList {
    oldest: u32,
    newest: u32,
}

/// A list, on a cache line of its own.
#[repr(align(64))]
struct Partition {
    list: CountedMutex<AgeList>,
    /// Whether anything is in it, to see without the lock.
    any: AtomicBool,
}

/// A list, locked.
struct LockedList<'a> {
    list: CountedGuard<'a, AgeList>,
    any: &'a AtomicBool,
}

/// Frames by age. The links of a frame are changed with the lock of its partition.
pub struct LruLists {
    /// The next older frame comes before one, the next newer after it.
    cells: FrameCells,
    lists: Box<[Partition]>,
    shift: u32,
    /// Most frames that are added or taken out in one hold of a lock.
    hold_frames: usize,
    /// Partitions up to the highest that ever had a frame: the arena has address space for many
    /// more frames than the budget ever fills.
    used: AtomicUsize,
    /// The partition that is asked next.
    turn: AtomicUsize,
    stats: Stats,
}

impl LruLists {
    /// For an arena whose frames have these cells.
    pub fn new(
        cells: FrameCells,
        partition: CachePartition,
        batching: Batching,
        stats: Stats,
    ) -> LruLists {
        let frames = cells.frames();
        let (shift, count) = match partition {
            CachePartition::Device => (u32::BITS, 1),
            CachePartition::Bytes(bytes) => {
                let size = bytes as usize / PAGE_SIZE;
                (size.ilog2(), frames.div_ceil(size).clamp(1, locks_of(LISTS_MAX)))
            }
        };
        let list = |_| {
            let list = CountedMutex::new(
                Rank::SwapCache,
                &LRU_LOCK,
                AgeList { oldest: NO_FRAME, newest: NO_FRAME },
            );
            Partition { list, any: AtomicBool::new(false) }
        };
        LruLists {
            cells,
            lists: (0..count).map(list).collect(),
            shift,
            hold_frames: batching.most(),
            used: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            stats,
        }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.stats.get(Counter::SwapCachePages) as usize
    }

    /// The number of a frame's partition.
    fn partition(&self, frame: u32) -> usize {
        (frame as u64 >> self.shift) as usize % self.lists.len()
    }

    fn lock(&self, partition: usize) -> LockedList<'_> {
        let Partition { list, any } = &self.lists[partition];
        LockedList { list: list.lock(&self.stats), any }
    }

    /// Adds pages as the newest: pages `first..first + count` in frames `frame..`.
    pub fn add_run(&self, first: PageIndex, frame: FrameId, count: usize) {
        let owner = |f: u32| Owner::Page(PageIndex(first.0 + (f - frame.0) as usize));
        self.parts(frame.0..frame.0 + count as u32).for_each(|part| self.push_part(part, owner));
        self.stats.add(Counter::SwapCachePages, count as u64);
    }

    /// A run of frames cut at the ends of partitions, and where one hold of a lock ends.
    fn parts(&self, frames: Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
        let (mut at, shift, most) = (frames.start, self.shift, self.hold_frames as u64);
        std::iter::from_fn(move || {
            let end = (((at as u64 >> shift) + 1) << shift).min((at as u64).saturating_add(most));
            let part = at..(frames.end as u64).min(end) as u32;
            at = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Adds one frame as the newest.
    pub fn add(&self, owner: Owner, frame: FrameId) {
        self.push_part(frame.0..frame.0 + 1, |_| owner);
        self.stats.add(Counter::SwapCachePages, 1);
    }

    /// Takes frames out whose pages were touched or given up. The caller holds the page locks, or
    /// has taken them out of the index.
    pub fn remove_run(&self, frame: FrameId, count: usize) {
        for part in self.parts(frame.0..frame.0 + count as u32) {
            self.unlink_all(&mut self.lock(self.partition(part.start)), part);
        }
        self.stats.sub(Counter::SwapCachePages, count as u64);
    }

    /// The same for frames that lie anywhere. Best in the order in which [`LruLists::oldest`] gave
    /// them: those of a partition together, and neighbours in its list in a row.
    pub fn remove_many(&self, frames: &[FrameId]) {
        for same in frames.chunk_by(|a, b| self.partition(a.0) == self.partition(b.0)) {
            for part in same.chunks(self.hold_frames.min(same.len())) {
                self.unlink_all(
                    &mut self.lock(self.partition(part[0].0)),
                    part.iter().map(|frame| frame.0),
                );
            }
        }
        self.stats.sub(Counter::SwapCachePages, frames.len() as u64);
    }

    /// Takes one frame out.
    pub fn remove(&self, frame: FrameId) {
        self.remove_run(frame, 1);
    }

    /// The page of a frame has moved to another address, or has no copy any more.
    pub fn change_owner(&self, frame: FrameId, page: PageIndex) {
        let _list = self.lock(self.partition(frame.0));
        self.cells.set_owner(frame, Owner::Page(page));
    }

    /// Copies out some of the oldest, oldest first in each partition, without taking them out: the
    /// caller finds out whether the owner still has the frame, and removes it then. Returns how
    /// many: as many as `out` has room for, if there are.
    pub fn oldest(&self, out: &mut [(Owner, FrameId)]) -> usize {
        let (turn, lists) = (self.turn.load(Relaxed), self.used.load(Relaxed).max(1));
        let mut count = 0;
        // As much as one partition has, before the next is asked; the next time it is the other's
        // turn.
        for partition in (0..lists).map(|i| (turn + i) % lists) {
            if !self.lists[partition].any.load(Relaxed) {
                continue;
            }
            // The lock is for the end of the list only. The way from there may lead astray while
            // others change links: to frames that are gone or in the list twice, of which the
            // caller finds out; or that there are none.
            let mut at = self.lock(partition).list.oldest;
            while (at as usize) < self.cells.frames() && count < out.len() {
                let Some(owner) = self.owner(FrameId(at)) else { break };
                out[count] = (owner, FrameId(at));
                count += 1;
                at = self.cells.links(at).1;
            }
            if count == out.len() {
                self.turn.store((partition + 1) % lists, Relaxed);
                break;
            }
        }
        count
    }

    /// Makes a frame the newest again, if it is still `owner`'s: it must not be stored now.
    pub fn rotate(&self, owner: Owner, frame: FrameId) {
        let mut list = self.lock(self.partition(frame.0));
        if self.owner(frame) == Some(owner) {
            self.unlink_chain(&mut list, frame.0, frame.0);
            self.cells.set_links(frame.0, NO_FRAME, NO_FRAME);
            self.push_chain(&mut list, frame.0, frame.0);
        }
    }

    /// Whose copy is in a frame.
    pub fn owner(&self, frame: FrameId) -> Option<Owner> {
        self.cells.owner(frame)
    }

    /// Adds frames of one partition, which are in no list, as the newest.
    fn push_part(&self, part: Range<u32>, owner: impl Fn(u32) -> Owner) {
        let used = ((part.start as u64 >> self.shift) as usize + 1).min(self.lists.len());
        if self.used.load(Relaxed) < used {
            self.used.fetch_max(used, Relaxed);
        }
        // 1. A chain of their own. Without an owner nobody looks at them.
        let (first, last) = (part.start, part.end - 1);
        for frame in part.clone() {
            let (older, newer) = (frame.wrapping_sub(1), frame + 1);
            self.cells.set_links(
                frame,
                if frame == first { NO_FRAME } else { older },
                if frame == last { NO_FRAME } else { newer },
            );
        }
        // 2. Tied to the list.
        let mut list = self.lock(self.partition(first));
        for frame in part {
            debug_assert_eq!(
                self.owner(FrameId(frame)),
                None,
                "frame {frame} has an owner already"
            );
            self.cells.set_owner(FrameId(frame), owner(frame));
        }
        self.push_chain(&mut list, first, last);
    }

    /// Ties a chain to the newer end of a list.
    fn push_chain(&self, list: &mut LockedList<'_>, first: u32, last: u32) {
        match list.list.newest {
            NO_FRAME => {
                list.list.oldest = first;
                list.any.store(true, Relaxed);
            }
            newest => {
                self.cells.set_previous(first, newest);
                self.cells.set_next(newest, first);
            }
        }
        list.list.newest = last;
    }

    /// Takes frames out of their list. Those that follow one another there are cut out at once.
    fn unlink_all(&self, list: &mut LockedList<'_>, mut frames: impl Iterator<Item = u32>) {
        let disown = |frame: u32| {
            assert!(
                self.cells.disown(FrameId(frame)).is_some(),
                "frame {frame} is not in the swap cache"
            );
            frame
        };
        let Some(mut first) = frames.next().map(disown) else { return };
        let mut last = first;
        for frame in frames.map(disown) {
            if self.cells.links(last).1 != frame {
                self.unlink_chain(list, first, last);
                first = frame;
            }
            last = frame;
        }
        self.unlink_chain(list, first, last);
    }

    /// Cuts a chain out of a list.
    fn unlink_chain(&self, list: &mut LockedList<'_>, first: u32, last: u32) {
        let (older, newer) = (self.cells.links(first).0, self.cells.links(last).1);
        match older {
            NO_FRAME => list.list.oldest = newer,
            older => self.cells.set_next(older, newer),
        }
        match newer {
            NO_FRAME => list.list.newest = older,
            newer => self.cells.set_previous(newer, older),
        }
        if list.list.oldest == NO_FRAME {
            list.any.store(false, Relaxed);
        }
    }
}

impl std::fmt::Debug for LruLists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LruLists({} frames)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SlotId;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The arena, in frames.
    const FRAMES: u32 = 64;
    const NOBODY: (Owner, FrameId) = (Owner::Page(PageIndex(0)), FrameId(0));

    /// The lists beside a queue a partition.
    struct Model {
        lru: LruLists,
        /// Frames of a partition.
        size: usize,
        queues: Vec<VecDeque<u32>>,
        /// Which frames were added in a run, whose pages have numbers one higher.
        in_run: [bool; FRAMES as usize],
    }

    impl Model {
        fn new(partitioned: bool, batching: Batching) -> Model {
            let size = if partitioned { 16 } else { FRAMES as usize };
            let partition = match partitioned {
                true => CachePartition::Bytes((size * PAGE_SIZE) as u64),
                false => CachePartition::Device,
            };
            let cells = FrameCells::new(FRAMES as usize).unwrap();
            let lru = LruLists::new(cells, partition, batching, Stats::anonymous().unwrap());
            let queues = vec![VecDeque::new(); FRAMES as usize / size];
            Model { lru, size, queues, in_run: [false; FRAMES as usize] }
        }

        fn owner(&self, frame: u32) -> Owner {
            if self.in_run[frame as usize] {
                Owner::Page(PageIndex(frame as usize + 1))
            } else if frame.is_multiple_of(3) {
                Owner::Slot(SlotId::new(1, frame as u64))
            } else {
                Owner::Page(PageIndex(frame as usize + 100))
            }
        }

        /// Up to where frames are all in a queue, or all in none, from one on.
        fn end(&self, frame: u32, queued: bool) -> u32 {
            let is_queued = |f: u32| self.queues[f as usize / self.size].contains(&f);
            (frame..FRAMES).find(|f| is_queued(*f) != queued).unwrap_or(FRAMES)
        }

        fn step(&mut self, op: u8, frame: u32) {
            let partition = frame as usize / self.size;
            let at = self.queues[partition].iter().position(|f| *f == frame);
            match (op, at) {
                (0, None) => {
                    self.in_run[frame as usize] = false;
                    match self.owner(frame) {
                        Owner::Page(page) => self.lru.add_run(page, FrameId(frame), 1),
                        owner => self.lru.add(owner, FrameId(frame)),
                    }
                    self.queues[partition].push_back(frame);
                }
                (1, Some(at)) => {
                    self.lru.remove(FrameId(frame));
                    self.queues[partition].remove(at);
                }
                (2, at) => {
                    self.lru.rotate(self.owner(frame), FrameId(frame));
                    if let Some(at) = at {
                        self.queues[partition].remove(at);
                        self.queues[partition].push_back(frame);
                    }
                }
                (3, _) => self.add_run(frame),
                (4, Some(_)) => {
                    let end = self.end(frame, true);
                    self.lru.remove_run(FrameId(frame), (end - frame) as usize);
                    self.forget(|f| (frame..end).contains(&f));
                }
                (5, _) => self.remove_oldest(frame),
                _ => {}
            }
            self.check();
        }

        /// The frames from one on that are in no list yet, with one call.
        fn add_run(&mut self, frame: u32) {
            let end = self.end(frame, false);
            let first = PageIndex(frame as usize + 1);
            self.lru.add_run(first, FrameId(frame), (end - frame) as usize);
            for f in frame..end {
                self.queues[f as usize / self.size].push_back(f);
                self.in_run[f as usize] = true;
            }
        }

        /// As the second hand does: some of the oldest, but for those that are wanted again.
        fn remove_oldest(&mut self, wanted: u32) {
            let mut oldest = [NOBODY; 20];
            let count = self.lru.oldest(&mut oldest);
            let gone: Vec<FrameId> = oldest[..count]
                .iter()
                .map(|(_, frame)| *frame)
                .filter(|frame| !(frame.0 ^ wanted).is_multiple_of(5))
                .collect();
            self.lru.remove_many(&gone);
            self.forget(|f| gone.contains(&FrameId(f)));
        }

        fn forget(&mut self, gone: impl Fn(u32) -> bool) {
            self.queues.iter_mut().for_each(|queue| queue.retain(|f| !gone(*f)));
        }

        /// Partitions are asked in turn; within one the order counts.
        fn check(&self) {
            let mut out = [NOBODY; FRAMES as usize];
            let count = self.lru.oldest(&mut out);
            let mut found = out[..count].to_vec();
            found.sort_by_key(|(_, frame)| frame.0 as usize / self.size);
            let expected = self.queues.iter().flatten().map(|f| (self.owner(*f), FrameId(*f)));
            assert_eq!(found, expected.collect::<Vec<_>>());
            assert_eq!(self.lru.len(), count);
        }
    }

    proptest! {
        #[test]
        fn each_partition_is_a_queue_with_removal(
            ops in proptest::collection::vec((0..6u8, 0..FRAMES), 1..200),
            partitioned in any::<bool>(),
            batching in prop_oneof![Just(Batching::Whole), Just(Batching::Single)],
        ) {
            let mut model = Model::new(partitioned, batching);
            ops.into_iter().for_each(|(op, frame)| model.step(op, frame));
        }

        #[test]
        fn runs_end_where_partitions_do(first in 0..60u32, count in 1..30usize) {
            let (cells, stats) = (FrameCells::new(128).unwrap(), Stats::anonymous().unwrap());
            let partition = CachePartition::Bytes(16 * PAGE_SIZE as u64);
            let lru = LruLists::new(cells, partition, Batching::Whole, stats);
            lru.add_run(PageIndex(1000), FrameId(first), count);
            let mut out = [NOBODY; 128];
            prop_assert_eq!(lru.oldest(&mut out), count);
            for (owner, frame) in &out[..count] {
                prop_assert_eq!(*owner, Owner::Page(PageIndex(1000 + (frame.0 - first) as usize)));
            }
            lru.remove_run(FrameId(first), count);
            prop_assert_eq!(lru.len(), 0);
        }
    }

    #[test]
    fn only_partitions_with_frames_are_asked_and_a_batch_is_filled() {
        let stats = Stats::anonymous().unwrap();
        let size = CachePartition::Bytes(16 * PAGE_SIZE as u64);
        let lru = LruLists::new(FrameCells::new(16 * 1000).unwrap(), size, Batching::Whole, stats);
        lru.add_run(PageIndex(1000), FrameId(20), 4);
        lru.add_run(PageIndex(2000), FrameId(160), 16);
        let locks = |lru: &LruLists, room: usize| {
            let before = stats.get(Counter::SwapAgesLock);
            let mut out = vec![(Owner::Page(PageIndex(0)), FrameId(0)); room];
            (lru.oldest(&mut out), stats.get(Counter::SwapAgesLock) - before)
        };
        assert_eq!(locks(&lru, 128), (20, 2), "of ten partitions");
        assert_eq!(locks(&lru, 12), (12, 2), "the first has four only");
        assert_eq!(locks(&lru, 4), (4, 1), "it is the turn of what lies behind");
        let before = stats.get(Counter::SwapAgesLock);
        let frames: Vec<FrameId> = FrameId(160).run(16).chain(FrameId(20).run(4)).collect();
        lru.remove_many(&frames);
        assert_eq!((lru.len(), stats.get(Counter::SwapAgesLock) - before), (0, 2));
        assert_eq!(locks(&lru, 4), (0, 0));
    }

    #[test]
    fn the_baseline_locks_for_each_frame() {
        let stats = Stats::anonymous().unwrap();
        let lru = LruLists::new(
            FrameCells::new(64).unwrap(),
            CachePartition::Device,
            Batching::Single,
            stats,
        );
        lru.add_run(PageIndex(1000), FrameId(0), 10);
        lru.remove_many(&FrameId(0).run(6).collect::<Vec<_>>());
        lru.remove_run(FrameId(6), 4);
        assert_eq!((stats.get(Counter::SwapAgesLock), lru.len()), (20, 0));
    }
}
