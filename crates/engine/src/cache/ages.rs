//! The frames of the swap cache by age.
//!
//! A doubly linked list over the frames, so that a page that is touched leaves it at once. The frames are split in
//! partitions with a list and a lock each; between partitions age is not compared, they are asked in turn.
//!
//! Lock: a partition's ([`Rank::SwapCache`]); nothing is taken under it.

use super::index::SWAP_CACHE_LOCK;
use crate::base::{FrameId, PAGE_SIZE, PageIndex, SlotId};
use crate::config::CachePartition;
use crate::counted::{CountedGuard, CountedMutex};
use crate::lockdep::Rank;
use crate::stats::{Counter, Stats};
use overspill_os::{Errno, vm::SharedCells};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most partitions; beyond, they share lists.
const LISTS_MAX: usize = 1024;
/// Frames taken from one partition before the next is asked.
const TURN: usize = 32;
/// No frame: the end of a list.
const NONE: u32 = u32::MAX;
/// Set in the owner of a frame whose page is found by its slot.
const BY_SLOT: u64 = 1 << 63;

/// Whose copy a frame has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A page that was moved out: its word names the frame.
    Page(PageIndex),
    /// A page that was read ahead: the index names the frame.
    Slot(SlotId),
}

impl Owner {
    /// Never 0, which is no owner: page 0 is no program's.
    fn to_word(self) -> u64 {
        match self {
            Owner::Page(page) => page.0 as u64,
            Owner::Slot(slot) => BY_SLOT | slot.to_bits(),
        }
    }

    fn from_word(word: u64) -> Option<Owner> {
        match word {
            0 => None,
            word if word & BY_SLOT != 0 => Some(Owner::Slot(SlotId::from_bits(word & !BY_SLOT))),
            page => Some(Owner::Page(PageIndex(page as usize))),
        }
    }
}

#[derive(Debug)]
struct List {
    oldest: u32,
    newest: u32,
}

/// Frames by age. The cells of a frame are changed with the lock of its partition.
pub struct Ages {
    /// Next older frame in the high half, next newer one in the low.
    links: SharedCells,
    owners: SharedCells,
    lists: Box<[CountedMutex<List>]>,
    shift: u32,
    /// Partitions up to the highest that ever had a frame: the arena has address space for many more frames than the budget
    /// ever fills.
    used: AtomicUsize,
    /// The partition that is asked next.
    turn: AtomicUsize,
    stats: Stats,
}

impl Ages {
    /// For an arena of `frames` frames (16 bytes each).
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the tables.
    pub fn new(frames: usize, partition: CachePartition, stats: Stats) -> Result<Ages, Errno> {
        let (shift, count) = match partition {
            CachePartition::Device => (u32::BITS, 1),
            CachePartition::Bytes(bytes) => {
                let size = bytes as usize / PAGE_SIZE;
                (size.ilog2(), frames.div_ceil(size).clamp(1, LISTS_MAX))
            }
        };
        let list = |_| CountedMutex::new(Rank::SwapCache, &SWAP_CACHE_LOCK, List { oldest: NONE, newest: NONE });
        let (links, owners) = (SharedCells::anonymous(frames)?, SharedCells::anonymous(frames)?);
        Ok(Ages {
            links,
            owners,
            lists: (0..count).map(list).collect(),
            shift,
            used: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            stats,
        })
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.stats.get(Counter::SwapCachePages) as usize
    }

    fn list_of(&self, frame: u32) -> &CountedMutex<List> {
        &self.lists[(frame as u64 >> self.shift) as usize % self.lists.len()]
    }

    fn lock(&self, frame: u32) -> CountedGuard<'_, List> {
        self.list_of(frame).lock(&self.stats)
    }

    /// Adds pages as the newest: pages `first..first + count` in frames `frame..`.
    pub fn add_run(&self, first: PageIndex, frame: FrameId, count: usize) {
        for part in self.parts(frame.0..frame.0 + count as u32) {
            let mut list = self.lock(part.start);
            part.for_each(|f| self.push(&mut list, f, Owner::Page(PageIndex(first.0 + (f - frame.0) as usize))));
        }
        self.stats.add(Counter::SwapCachePages, count as u64);
    }

    /// A run of frames cut at the ends of partitions.
    fn parts(&self, frames: Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
        let (mut at, shift) = (frames.start, self.shift);
        std::iter::from_fn(move || {
            let end = ((at as u64 >> shift) + 1) << shift;
            let part = at..(frames.end as u64).min(end) as u32;
            at = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Adds a page that was read ahead as the newest.
    pub fn add_slot(&self, slot: SlotId, frame: FrameId) {
        self.push(&mut self.lock(frame.0), frame.0, Owner::Slot(slot));
        self.stats.add(Counter::SwapCachePages, 1);
    }

    /// Takes frames out whose pages were touched or given up. The caller holds the page locks, or has taken them out of the
    /// index.
    pub fn remove_run(&self, frame: FrameId, count: usize) {
        for part in self.parts(frame.0..frame.0 + count as u32) {
            let mut list = self.lock(part.start);
            part.for_each(|f| self.unlink(&mut list, f));
        }
        self.stats.sub(Counter::SwapCachePages, count as u64);
    }

    /// Takes one frame out.
    pub fn remove(&self, frame: FrameId) {
        self.remove_run(frame, 1);
    }

    /// The page of a frame has moved to another address.
    pub fn change_owner(&self, frame: FrameId, page: PageIndex) {
        let _list = self.lock(frame.0);
        self.owners[frame.0 as usize].store(Owner::Page(page).to_word(), Relaxed);
    }

    /// Copies out some of the oldest, oldest first in each partition, without taking them out: the caller finds out whether
    /// the owner still has the frame, and removes it then. Returns how many.
    pub fn oldest(&self, out: &mut [(Owner, FrameId)]) -> usize {
        let (turn, lists) = (self.turn.fetch_add(1, Relaxed), self.used.load(Relaxed).max(1));
        // One partition after the other, and once more round when all that there is is wanted.
        let per_list = if lists == 1 { out.len() } else { TURN.max(out.len() / lists) };
        let mut count = 0;
        for i in 0..lists {
            let list = self.lists[(turn + i) % lists].lock(&self.stats);
            let (mut at, end) = (list.oldest, out.len().min(count + per_list));
            while at != NONE && count < end {
                let owner = self.owner(FrameId(at)).expect("a frame in a list has an owner");
                out[count] = (owner, FrameId(at));
                count += 1;
                at = self.links(at).1;
            }
            if count == out.len() {
                break;
            }
        }
        count
    }

    /// Makes a frame the newest again, if it is still `owner`'s: it must not be stored now.
    pub fn rotate(&self, owner: Owner, frame: FrameId) {
        let mut list = self.lock(frame.0);
        if self.owner(frame) == Some(owner) {
            self.unlink(&mut list, frame.0);
            self.push(&mut list, frame.0, owner);
        }
    }

    /// Whose copy is in a frame.
    pub fn owner(&self, frame: FrameId) -> Option<Owner> {
        Owner::from_word(self.owners[frame.0 as usize].load(Relaxed))
    }

    /// Older and newer neighbour.
    fn links(&self, frame: u32) -> (u32, u32) {
        let word = self.links[frame as usize].load(Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    fn link(&self, frame: u32, older: u32, newer: u32) {
        self.links[frame as usize].store((older as u64) << 32 | newer as u64, Relaxed);
    }

    fn push(&self, list: &mut List, frame: u32, owner: Owner) {
        let used = ((frame as u64 >> self.shift) as usize + 1).min(self.lists.len());
        if self.used.load(Relaxed) < used {
            self.used.fetch_max(used, Relaxed);
        }
        debug_assert_ne!(owner.to_word(), 0);
        self.owners[frame as usize].store(owner.to_word(), Relaxed);
        self.link(frame, list.newest, NONE);
        match list.newest {
            NONE => list.oldest = frame,
            newest => self.link(newest, self.links(newest).0, frame),
        }
        list.newest = frame;
    }

    fn unlink(&self, list: &mut List, frame: u32) {
        assert_ne!(self.owners[frame as usize].swap(0, Relaxed), 0, "frame {frame} is not in the swap cache");
        let (older, newer) = self.links(frame);
        match older {
            NONE => list.oldest = newer,
            older => self.link(older, self.links(older).0, newer),
        }
        match newer {
            NONE => list.newest = older,
            newer => self.link(newer, older, self.links(newer).1),
        }
    }
}

impl std::fmt::Debug for Ages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ages({} frames)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn owner_of(frame: u32) -> Owner {
        if frame.is_multiple_of(3) {
            Owner::Slot(SlotId::new(1, frame as u64))
        } else {
            Owner::Page(PageIndex(frame as usize + 100))
        }
    }

    proptest! {
        #[test]
        fn each_partition_is_a_queue_with_removal(
            ops in proptest::collection::vec((0..3u8, 0..64u32), 1..200),
            partitioned in any::<bool>(),
        ) {
            let size = if partitioned { 16 } else { 64 };
            let partition =
                if partitioned { CachePartition::Bytes((size * PAGE_SIZE) as u64) } else { CachePartition::Device };
            let ages = Ages::new(64, partition, Stats::anonymous().unwrap()).unwrap();
            let mut model: Vec<VecDeque<u32>> = vec![VecDeque::new(); 64 / size];
            for (op, frame) in ops {
                let queue = &mut model[frame as usize / size];
                let at = queue.iter().position(|f| *f == frame);
                match (op, at) {
                    (0, None) => {
                        match owner_of(frame) {
                            Owner::Page(page) => ages.add_run(page, FrameId(frame), 1),
                            Owner::Slot(slot) => ages.add_slot(slot, FrameId(frame)),
                        }
                        queue.push_back(frame);
                    }
                    (1, Some(at)) => {
                        ages.remove(FrameId(frame));
                        queue.remove(at);
                    }
                    (2, Some(at)) => {
                        ages.rotate(owner_of(frame), FrameId(frame));
                        queue.remove(at);
                        queue.push_back(frame);
                    }
                    (2, None) => ages.rotate(owner_of(frame), FrameId(frame)),
                    _ => {}
                }
                let mut out = [(Owner::Page(PageIndex(0)), FrameId(0)); 64];
                let count = ages.oldest(&mut out);
                let expect = model.iter().flatten().map(|f| (owner_of(*f), FrameId(*f)));
                let by_partition = |(_, frame): &(Owner, FrameId)| frame.0 as usize / size;
                let mut found = out[..count].to_vec();
                // Partitions are asked in turn; within one the order counts.
                found.sort_by_key(by_partition);
                prop_assert_eq!(found, expect.collect::<Vec<_>>());
                prop_assert_eq!(ages.len(), count);
            }
        }

        #[test]
        fn runs_end_where_partitions_do(first in 0..60u32, count in 1..30usize) {
            let partition = CachePartition::Bytes(16 * PAGE_SIZE as u64);
            let ages = Ages::new(128, partition, Stats::anonymous().unwrap()).unwrap();
            ages.add_run(PageIndex(1000), FrameId(first), count);
            let mut out = [(Owner::Page(PageIndex(0)), FrameId(0)); 128];
            prop_assert_eq!(ages.oldest(&mut out), count);
            for (owner, frame) in &out[..count] {
                prop_assert_eq!(*owner, Owner::Page(PageIndex(1000 + (frame.0 - first) as usize)));
            }
            ages.remove_run(FrameId(first), count);
            prop_assert_eq!(ages.len(), 0);
        }
    }

    #[test]
    fn partitions_that_never_had_a_frame_are_not_asked() {
        let stats = Stats::anonymous().unwrap();
        let ages = Ages::new(16 * 1000, CachePartition::Bytes(16 * PAGE_SIZE as u64), stats).unwrap();
        ages.add_run(PageIndex(1000), FrameId(20), 4);
        let before = stats.get(Counter::SwapCacheLock);
        let mut out = [(Owner::Page(PageIndex(0)), FrameId(0)); 128];
        assert_eq!(ages.oldest(&mut out), 4);
        assert_eq!(stats.get(Counter::SwapCacheLock) - before, 2, "the partition of the frames, and the one below");
    }
}
