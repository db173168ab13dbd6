//! The swap cache: pages that were unmapped but are still whole, in frames of the arena.
//!
//! A page here was passed by the first hand of the clock (moved out, uncompressed). A touch brings it back as a
//! minor fault; what the second hand still finds here, oldest first, is compressed or written. The order is a
//! doubly linked list over the frames, so that a touched page leaves it at once.
//!
//! Lock: one over the list ([`Rank::SwapCache`]); nothing else is taken under it.

use crate::base::{FrameId, PageIndex};
use crate::lockdep::Rank;
use crate::stats::{Counter, Stats};
use crate::sync::{RankedMutex, lock};
use overspill_os::{Errno, table::ZeroTable};

/// No frame: the end of the list.
const NONE: u32 = u32::MAX;
/// The owner of a frame that is not in the list: a page that no program gets.
const NOBODY: u64 = 0;
const OLDER: usize = 0;
const NEWER: usize = 1;

struct List {
    /// Next older and next newer frame.
    links: ZeroTable<[u32; 2]>,
    /// Page of each frame; [`NOBODY`] for those that are not in the list.
    owners: ZeroTable<u64>,
    oldest: u32,
    newest: u32,
    len: usize,
}

/// The pages of the swap cache by age.
pub struct SwapCache {
    list: RankedMutex<List>,
    stats: Stats,
}

impl SwapCache {
    /// For an arena of `frames` frames (16 bytes each).
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the tables.
    pub fn new(frames: usize, stats: Stats) -> Result<SwapCache, Errno> {
        let (links, owners) = (ZeroTable::new(frames)?, ZeroTable::new(frames)?);
        let list = List { links, owners, oldest: NONE, newest: NONE, len: 0 };
        Ok(SwapCache { list: RankedMutex::new(Rank::SwapCache, list), stats })
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.stats.get(Counter::SwapCachePages) as usize
    }

    /// Adds pages as the newest: pages `first..first + count` in frames `frame..`.
    pub fn add_run(&self, first: PageIndex, frame: FrameId, count: usize) {
        let mut list = lock(&self.list);
        for i in 0..count as u32 {
            list.push(frame.0 + i, PageIndex(first.0 + i as usize));
        }
        self.stats.set(Counter::SwapCachePages, list.len as u64);
    }

    /// Takes a page out that was touched or given up. The caller holds its page lock.
    pub fn remove(&self, frame: FrameId) {
        let mut list = lock(&self.list);
        list.unlink(frame.0);
        self.stats.set(Counter::SwapCachePages, list.len as u64);
    }

    /// The page of a frame has moved to another address.
    pub fn change_owner(&self, frame: FrameId, page: PageIndex) {
        lock(&self.list).owners[frame.0 as usize] = page.0 as u64;
    }

    /// The page in a frame, if it is of the swap cache.
    #[cfg(debug_assertions)]
    pub fn owner(&self, frame: FrameId) -> Option<PageIndex> {
        let owner = lock(&self.list).owners[frame.0 as usize];
        (owner != NOBODY).then_some(PageIndex(owner as usize))
    }

    /// Copies out the oldest pages, oldest first, without taking them out: the caller locks each page, looks
    /// whether it is still in that frame, and removes it. Returns how many.
    pub fn oldest(&self, out: &mut [(PageIndex, FrameId)]) -> usize {
        let list = lock(&self.list);
        let mut at = list.oldest;
        let mut count = 0;
        while at != NONE && count < out.len() {
            out[count] = (PageIndex(list.owners[at as usize] as usize), FrameId(at));
            count += 1;
            at = list.links[at as usize][NEWER];
        }
        count
    }

    /// Makes a page the newest again, if it is still here: it must not be stored now.
    pub fn rotate(&self, page: PageIndex, frame: FrameId) {
        let mut list = lock(&self.list);
        if list.owners[frame.0 as usize] == page.0 as u64 {
            list.unlink(frame.0);
            list.push(frame.0, page);
        }
    }
}

impl List {
    fn push(&mut self, frame: u32, owner: PageIndex) {
        debug_assert_ne!(owner.0 as u64, NOBODY);
        self.owners[frame as usize] = owner.0 as u64;
        self.links[frame as usize] = [self.newest, NONE];
        match self.newest {
            NONE => self.oldest = frame,
            newest => self.links[newest as usize][NEWER] = frame,
        }
        self.newest = frame;
        self.len += 1;
    }

    fn unlink(&mut self, frame: u32) {
        let owner = std::mem::replace(&mut self.owners[frame as usize], NOBODY);
        assert_ne!(owner, NOBODY, "frame {frame} is not in the swap cache");
        let [older, newer] = self.links[frame as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize][NEWER] = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize][OLDER] = older,
        }
        self.len -= 1;
    }
}

impl std::fmt::Debug for SwapCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SwapCache({} pages)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn the_list_is_a_queue_with_removal(ops in proptest::collection::vec((0..3u8, 0..16u32), 1..200)) {
            let cache = SwapCache::new(16, Stats::anonymous().unwrap()).unwrap();
            let mut model: VecDeque<u32> = VecDeque::new();
            for (op, frame) in ops {
                let at = model.iter().position(|f| *f == frame);
                match (op, at) {
                    (0, None) => {
                        cache.add_run(PageIndex(frame as usize + 100), FrameId(frame), 1);
                        model.push_back(frame);
                    }
                    (1, Some(at)) => {
                        cache.remove(FrameId(frame));
                        model.remove(at);
                    }
                    (2, Some(at)) => {
                        cache.rotate(PageIndex(frame as usize + 100), FrameId(frame));
                        model.remove(at);
                        model.push_back(frame);
                    }
                    (2, None) => cache.rotate(PageIndex(frame as usize + 100), FrameId(frame)),
                    _ => {}
                }
                let mut out = [(PageIndex(0), FrameId(0)); 16];
                let count = cache.oldest(&mut out);
                let expect: Vec<_> = model.iter().map(|f| (PageIndex(*f as usize + 100), FrameId(*f))).collect();
                prop_assert_eq!(&out[..count], &expect[..]);
                prop_assert_eq!(cache.len(), expect.len());
            }
        }
    }
}
