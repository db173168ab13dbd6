//! A budget that changes while the program runs, and the arena that follows it.
//!
//! A larger budget adds pageblocks to the arena. A smaller one isolates the last pageblocks;
//! reclaim brings the pages in memory down to the limit, and here whatever still lies in an
//! isolated pageblock is given another place:
//!
//! - a page that is mapped exchanges its frame, a number only, for another, under its lock;
//! - a page of the swap cache is stored, or dropped, as the second hand of the clock would;
//! - compressed pages move to chunks elsewhere.
//!
//! Pageblocks that are empty then go back to the system. Called by the background thread alone; it
//! holds an extent's lock and the locks of the pages that it works on, as reclaim does.

use crate::frame::cells::Owner;
use crate::frame::{Mobility, Need, PAGEBLOCK};
use crate::memory::extent::pages_of;
use crate::memory::word::State;
use crate::reclaim::Reclaim;
use crate::swap::batch::Batch;
use crate::units::{FrameId, PageIndex};
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::Relaxed;

impl<B: Backing> Reclaim<B> {
    /// Goes over all pages once and takes them out of isolated pageblocks, if there are any. What
    /// was somebody else's just then is left to the next time.
    pub(crate) fn empty_isolated(&self) {
        let allocator = &self.memory.frames.allocator;
        if !allocator.has_surplus() {
            return;
        }
        let Some(mut batch) = self.take_batch() else { return };
        let batch = &mut *batch;
        allocator.drain();
        self.swap.zpool.trim(&self.memory.frames);
        for index in 0..self.memory.extents_high.load(Relaxed) {
            if self.memory.extents.is_touched(index)
                && let Some(_guard) = self.memory.extents.try_lock(index)
            {
                batch.picks.clear();
                for page in self.memory.extents.touched(index, pages_of(index)) {
                    if !batch.has_room() {
                        self.store_cached(batch);
                        batch.picks.clear();
                    }
                    self.exchange(batch, page);
                }
                self.store_cached(batch);
            }
        }
        self.drop_read_ahead_isolated(batch);
        self.swap.zpool.evacuate(&self.memory.frames, usize::MAX, &mut self.moves_object());
        self.swap.zpool.trim(&self.memory.frames);
    }

    /// Drops what was read ahead into isolated pageblocks; their pages are on devices.
    fn drop_read_ahead_isolated(&self, batch: &mut Batch) {
        batch.frames.clear();
        let surplus = self.memory.frames.allocator.surplus();
        for block in surplus.into_iter().flat_map(|frames| frames.step_by(PAGEBLOCK)).map(FrameId) {
            for frame in block.run(PAGEBLOCK) {
                if batch.frames.len() == batch.capacity() {
                    self.memory.frames.give_present(&batch.frames, &mut batch.ranges);
                    batch.frames.clear();
                }
                if let Some(Owner::Slot(slot)) = self.swap.lru.owner(frame) {
                    self.drop_read_ahead(batch, slot);
                }
            }
        }
        self.memory.frames.give_present(&batch.frames, &mut batch.ranges);
    }

    fn exchange(&self, batch: &mut Batch, page: PageIndex) {
        let allocator = &self.memory.frames.allocator;
        match self.memory.words.load(page).state() {
            State::Resident(old) if allocator.is_isolated(old) => {
                // None while more is in use than the limit: then reclaim has to go first.
                let Some(new) = allocator.alloc(0, Mobility::Movable, Need::Reclaim) else {
                    return;
                };
                let word =
                    self.memory.words.try_lock_if(page, |w| w.state() == State::Resident(old));
                if let Some(word) = word {
                    self.swap
                        .copy_of(word)
                        .into_iter()
                        .for_each(|slot| self.memory.cells().set_copy(new, slot));
                    self.memory.words.unlock_as(page, word.in_place_as(State::Resident(new)));
                }
                allocator.free(if word.is_some() { old } else { new }, 0);
            }
            State::Cached(frame) if allocator.is_isolated(frame) => {
                let from = State::Cached(frame);
                if let Some(word) = self.memory.words.try_lock_if(page, |w| w.state() == from) {
                    batch.picks.push(self.pick(page, word));
                    self.swap.lru.remove(frame);
                }
            }
            _ => {}
        }
    }
}
