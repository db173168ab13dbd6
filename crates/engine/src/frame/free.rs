//! Giving frames back: to the lists of the processor, and from there, or at once, to their zones.

use super::hold::{HeldFor, Hold};
use super::percpu::{CpuLists, LIST_ORDER_MAX, Picked};
use super::{FrameAllocator, FramePick, MAX_ORDER, Mobility};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{lock, processor};
use crate::stats::Counter;
use crate::units::FrameId;
use std::sync::atomic::Ordering::Relaxed;

impl FrameAllocator {
    /// Gives back the `2^order` frames from `frame` on. They need not have been taken by one call:
    /// a block may come back in parts, and parts may come back as the block they make up.
    ///
    /// # Panics
    /// When `frame` is not a multiple of `2^order`, or when one of the frames is free already or
    /// outside the arena; at the latest when it goes back to its zone.
    pub fn free(&self, frame: FrameId, order: u8) {
        assert!(
            order <= MAX_ORDER && frame.0.is_multiple_of(1 << order),
            "{frame:?} cannot begin order {order}"
        );
        self.stats.add(Counter::FrameFree, 1 << order);
        if order <= LIST_ORDER_MAX
            && self.settings.percpu
            && let Some(mut lists) = self.lists[processor() % self.lists.len()].0.try_lock()
        {
            self.free_to_lists(&mut lists, frame.0, order);
        } else {
            self.free_to_zone(frame.0, order);
        }
    }

    /// Gives back frames; those that follow one another go as blocks.
    ///
    /// # Panics
    /// As [`FrameAllocator::free`].
    pub fn free_many(&self, frames: &[FrameId]) {
        let mut rest = frames;
        self.free_blocks_of(frames.len(), || {
            let first = rest.first()?.0;
            let order = block_order(rest);
            rest = &rest[1 << order..];
            Some((first, order))
        });
    }

    /// Gives back frames `first..first + count`.
    ///
    /// # Panics
    /// As [`FrameAllocator::free`].
    pub fn free_run(&self, first: FrameId, count: usize) {
        let (mut at, end) = (first.0, first.0 + count as u32);
        self.free_blocks_of(count, || {
            let left = (end - at).checked_ilog2()?;
            let order = left.min(at.trailing_zeros()).min(MAX_ORDER.into()) as u8;
            let block = at;
            at += 1 << order;
            Some((block, order))
        });
    }

    /// Gives back `frames` frames, which are the blocks that `next` names.
    fn free_blocks_of(&self, frames: usize, mut next: impl FnMut() -> Option<(u32, u8)>) {
        self.stats.add(Counter::FrameFree, frames as u64);
        let mut lists = match self.settings.percpu {
            true => self.lists[processor() % self.lists.len()].0.try_lock(),
            false => None,
        };
        // Blocks that are larger than those in lists, of which there are few.
        let mut large = Picked::new();
        while let Some((block, order)) = next() {
            match &mut lists {
                // Without lists each frame by itself: that is what they are measured against.
                _ if !self.settings.percpu => {
                    (block..block + (1 << order)).for_each(|frame| self.free_to_zone(frame, 0));
                }
                Some(lists) if order <= LIST_ORDER_MAX => self.free_to_lists(lists, block, order),
                _ => {
                    large.push(block, order);
                    if large.is_full() {
                        self.give_picked(&mut large);
                    }
                }
            }
        }
        self.give_picked(&mut large);
    }

    /// Gives back blocks that were not in lists: made into larger ones outside the zone's lock, or
    /// under it.
    fn give_picked(&self, picked: &mut Picked) {
        if let Some((block, _)) = picked.blocks().first() {
            let hold = (self.settings.pick == FramePick::Inside)
                .then(|| self.hold(self.zone_of(*block), HeldFor::Give));
            picked.merge();
            self.free_picked(picked, hold);
        }
    }

    fn free_to_lists(&self, lists: &mut CpuLists, block: u32, order: u8) {
        match self.pageblocks.mobility(block) {
            // It must come to rest where it was isolated.
            Mobility::Isolated if !is_seeded(Bug::IsolatedInLists) => {
                self.free_to_zone(block, order);
            }
            mobility => {
                lists.push(block, order, mobility);
                let frames = lists.to_give();
                self.give(lists, frames, self.settings.pick);
            }
        }
    }

    fn free_to_zone(&self, block: u32, order: u8) {
        self.pageblocks.clear_used(block, order);
        let mut hold = self.hold(self.zone_of(block), HeldFor::Give);
        hold.free(block, order);
    }

    /// Gives the oldest `frames` frames of a processor back to their zones, in holds of bounded
    /// length.
    pub(super) fn give(&self, lists: &mut CpuLists, mut frames: u32, pick: FramePick) {
        let mut picked = Picked::new();
        while frames > 0 && lists.frames() > 0 {
            let before = lists.frames();
            // The zone of most of them, where there are several: that of the processor.
            let near = self.zones_of(processor()).next().expect("there is a zone");
            let hold = (pick == FramePick::Inside).then(|| self.hold(near, HeldFor::Give));
            lists.pick(frames, &mut picked);
            picked.merge();
            self.free_picked(&mut picked, hold);
            self.stats.add(Counter::FrameBatchFree, 1);
            frames = frames.saturating_sub(before - lists.frames());
        }
    }

    /// Gives blocks back to their zones, each of which is locked once where they lie together;
    /// `hold` is held already.
    fn free_picked<'a>(&'a self, picked: &mut Picked, mut hold: Option<Hold<'a>>) {
        picked
            .blocks()
            .iter()
            .for_each(|(block, order)| self.pageblocks.clear_used(*block, *order));
        for (block, order) in picked.blocks() {
            let cell = self.zone_of(*block);
            if hold.as_ref().is_none_or(|hold| !std::ptr::eq(hold.cell, cell)) {
                drop(hold.take());
                hold = Some(self.hold(cell, HeldFor::Give));
            }
            hold.as_mut().expect("held just now").free(*block, *order);
        }
        drop(hold);
        picked.clear();
    }

    /// Gives back what all processors keep: room is short, or every free frame must be in its
    /// place.
    pub fn drain(&self) {
        for cell in &self.lists {
            let mut lists = lock(&cell.0);
            self.give(&mut lists, u32::MAX, self.settings.pick);
        }
        self.zones.iter().for_each(|cell| {
            cell.zone.inspect().merge_parked();
        });
    }

    /// Gives back the memory of cells of frames that are free, where others are in use than at the
    /// last call. For a process at rest.
    pub fn trim(&self) {
        let used = self.handed_out();
        if self.trimmed.swap(used, Relaxed) != used {
            self.drain();
            self.zones.iter().for_each(|cell| cell.zone.inspect().trim());
            self.trimmed.store(self.handed_out(), Relaxed);
        }
    }

    /// Gives back what processors kept for a burst that is over. To be called now and then.
    pub fn decay(&self) {
        for cell in &self.lists {
            if let Some(mut lists) = cell.0.try_lock() {
                let frames = lists.decay();
                self.give(&mut lists, frames, self.settings.pick);
            }
        }
        for (order, blocks) in self.free_blocks().iter().enumerate() {
            self.stats.set(Counter::BUDDY_FREE[order], *blocks);
        }
    }
}

/// The order of the largest block that the first of `frames` make up.
fn block_order(frames: &[FrameId]) -> u8 {
    let first = frames[0].0;
    let mut order = 0;
    while order < MAX_ORDER {
        let next = 2usize << order;
        let whole = first.is_multiple_of(next as u32) && frames.len() >= next;
        if !whole || !(1 << order..next).all(|i| frames[i].0 == first + i as u32) {
            break;
        }
        order += 1;
    }
    order
}
