//! Page frames: who may have memory, and how much.
//!
//! **A frame is the right to one page of memory, and a place of the arena that goes with it.**
//! Every page in memory owns one: a page of the program while it is mapped (then its place in the
//! arena is a hole), a page of the swap cache, a part of the zpool. A free frame is a
//! hole: no memory lies behind it. So the arena has more frames than the budget has pages,
//! fragmentation costs address space and not memory, and the budget is a **limit** on the frames
//! that are handed out, with the watermarks of the kernel.
//!
//! [`FrameAllocator`] has two layers, a file each:
//! - [`percpu`]: lists that each processor keeps, with which most calls end;
//! - [`zone`]: a buddy system a NUMA node, behind one lock, from which lists are filled and to
//!   which they give back in bulk. What goes back is **picked before the lock is taken**, and made
//!   into blocks as large as it makes up; under it blocks are only merged with what is there.
//!   [`FramePick::Inside`] is the baseline.
//!
//! Beside these, the limit and what counts (`budget`), a zone's lock and what is measured of it
//! (`locked`), and the size of the arena (`size`).
//!
//! Frames that come back in runs longer than lists have are blocks already: they go past the lists.
//!
//! Locks: a processor's lists (`Rank::CpuLists`) -> a zone (`Rank::FrameZone`, a leaf). Lists are
//! tried, and the zone is asked directly when they are somebody else's just now. A hold of a zone's
//! lock is bounded by [`percpu::HOLD_BLOCKS`] blocks.

mod budget;
pub mod cells;
mod locked;
mod mobility;
pub mod percpu;
mod settings;
mod size;
pub mod watermarks;
pub mod zone;

use crate::base::counted::CountedMutex;
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::stats::{Counter, Stats};
use crate::units::{Bytes, FrameId};
use cells::{FrameCells, NO_FRAME};
use locked::{Doing, Hold, LockedZone, ZONE_LOCK};
use mobility::ORDERS;
pub use mobility::{MAX_ORDER, Mobility, PAGEBLOCK};
use overspill_os::Errno;
use overspill_os::cpu::{self, Topology};
use percpu::{CpuLists, LIST_ORDER_MAX, ListMarks, Picked};
pub use settings::{FramePick, FrameSettings};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
pub use watermarks::{Mark, Watermarks};
use zone::{Pageblocks, Source, Zone};

/// The largest arena: what entries of slots and of the compressed tier tell the frames of apart.
pub const ARENA_MAX: Bytes = Bytes(4 << 40);

/// How far into the budget a request may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A fault: never the reserve below the min watermark.
    Fault,
    /// Reclaim, which needs a few frames in order to free many: all, also what is promised. A
    /// buffer that is charged then exceeds the limit for a moment.
    Reclaim,
    /// Whatever the limit: while reclaim is frozen for a fork.
    Over,
}

/// Lists on cache lines of their own.
#[repr(align(128))]
struct CpuCell(RankedMutex<CpuLists>);

/// Hands out the frames of an arena within a limit; shared by all threads.
pub struct FrameAllocator {
    zones: Box<[LockedZone]>,
    lists: Box<[CpuCell]>,
    /// Frames that each zone may ever have.
    zone_frames: u32,
    pageblocks: Pageblocks,
    cells: FrameCells,
    topology: Topology,
    limit: AtomicU64,
    /// Pages of the limit that other processes have as well.
    shared: AtomicU64,
    /// Pages of memory that are no frames and count like them; and those that are kept free for
    /// more of them.
    charged: AtomicU64,
    promised: AtomicU64,
    /// Frames handed out when the tables were trimmed last.
    trimmed: AtomicU64,
    settings: FrameSettings,
    stats: Stats,
}

impl FrameAllocator {
    /// Frames of address space for each page of the limit: twice, so that runs are found in spite
    /// of fragmentation.
    const SPAN_FACTOR: u64 = 2;

    /// For a limit of `limit` pages, which may grow up to `limit_max`; without frames until
    /// [`FrameAllocator::resize`].
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the tables.
    pub fn new(
        limit: u64,
        limit_max: u64,
        settings: FrameSettings,
        topology: Topology,
        stats: Stats,
    ) -> Result<FrameAllocator, Errno> {
        let share = Self::share(Self::span(limit.max(limit_max)), topology.nodes()) as u32;
        let frames = share as usize * topology.nodes();
        assert!(
            frames < NO_FRAME as usize,
            "an arena has fewer than {NO_FRAME} frames, not {frames}"
        );
        let (pageblocks, cells) = (Pageblocks::new(frames)?, FrameCells::new(frames)?);
        let zone = |node: usize| {
            let zone = Zone::new(
                node as u32 * share..(node as u32 + 1) * share,
                pageblocks.clone(),
                cells.clone(),
            )?;
            let zone = CountedMutex::new(Rank::FrameZone, &ZONE_LOCK, zone);
            Ok(LockedZone { zone, used: AtomicU32::new(0), limit: AtomicU64::new(0) })
        };
        let lists = || {
            CpuCell(RankedMutex::new(
                Rank::CpuLists,
                CpuLists::new(ListMarks::of(limit, topology.cpus())),
            ))
        };
        let allocator = FrameAllocator {
            zones: (0..topology.nodes()).map(zone).collect::<Result<_, Errno>>()?,
            lists: (0..topology.cpus()).map(|_| lists()).collect(),
            zone_frames: share,
            pageblocks,
            cells,
            limit: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            topology,
            settings,
            stats,
        };
        allocator.set_limit(limit);
        Ok(allocator)
    }

    /// Frames of the arena for a limit.
    fn span(limit: u64) -> u64 {
        (limit * Self::SPAN_FACTOR).max(PAGEBLOCK as u64)
    }

    /// Of `frames`, one node's: whole pageblocks.
    fn share(frames: u64, nodes: usize) -> u64 {
        frames.div_ceil(nodes as u64).next_multiple_of(PAGEBLOCK as u64)
    }

    /// Frames that the arena may ever have.
    pub fn frames_max(&self) -> usize {
        self.zone_frames as usize * self.zones.len()
    }

    /// What is kept of each frame; of one that is handed out it is for whoever has it.
    pub fn cells(&self) -> &FrameCells {
        &self.cells
    }

    // ---- Taking ----

    /// Takes `2^order` contiguous frames, the first at a multiple of their number. `None` when the
    /// budget or the arena has no room for them.
    pub fn alloc(&self, order: u8, mobility: Mobility, need: Need) -> Option<FrameId> {
        assert!(order <= MAX_ORDER, "no block has order {order}");
        let cpu = cpu::current();
        let block = self.alloc_from_lists(cpu, order, mobility, need).or_else(|| {
            self.zones_of(cpu).find_map(|zone| self.alloc_from_zone(zone, order, mobility, need))
        })?;
        self.stats.add(Counter::FrameAlloc, 1 << order);
        Some(FrameId(block))
    }

    /// Takes up to `pages` frames for pages that are mapped together, in blocks as large as the
    /// lists have, and adds them to `out`; how many there were.
    pub fn alloc_folio(&self, pages: usize, need: Need, out: &mut Vec<FrameId>) -> usize {
        let before = out.len();
        let mut order = LIST_ORDER_MAX;
        while out.len() - before < pages {
            let rest = pages - (out.len() - before);
            order = order.min(rest.ilog2() as u8);
            match self.alloc(order, Mobility::Movable, need) {
                Some(first) => out.extend((0..1 << order).map(|i| FrameId(first.0 + i))),
                None if order > 0 => order -= 1,
                None => break,
            }
        }
        out.len() - before
    }

    fn alloc_from_lists(
        &self,
        cpu: usize,
        order: u8,
        mobility: Mobility,
        need: Need,
    ) -> Option<u32> {
        if !self.settings.percpu || order > LIST_ORDER_MAX || need == Need::Over {
            return None;
        }
        let mut lists = self.lists[cpu % self.lists.len()].0.try_lock()?;
        // 1. What this processor keeps. Not for a fault while the reserve is half gone: what is
        //    freed comes back to the lists, so that the zone would never see again what reclaim
        //    took of it.
        if need == Need::Fault && self.is_reserve_short(cpu) {
            self.give(&mut lists, u32::MAX, self.settings.pick);
        }
        if let Some(block) = lists.pop(mobility, order) {
            return Some(block);
        }
        // 2. As many as may be, in one hold of the zone's lock. Reclaim below the mark takes what
        //    it needs and no more.
        let blocks = lists.to_take(order);
        let mut taken = Picked::new();
        for cell in self.zones_of(cpu).filter(|cell| self.has_room(cell, order, need)) {
            let mut hold = self.hold(cell, Doing::Take);
            let room = |need| (self.room_of(&hold, need) >> order) as usize;
            let mut left = blocks.min(room(Need::Fault).max(1)).min(room(need)) << order;
            while left > 0 && !taken.is_full() {
                let most = left.ilog2().min(MAX_ORDER.into()) as u8;
                let own = hold.alloc_own(order, most, mobility);
                let Some((block, order)) =
                    own.or_else(|| Some((self.take(&mut hold, order, mobility)?, order)))
                else {
                    break;
                };
                taken.push(block, order);
                left -= 1 << order;
            }
            drop(hold);
            // Large blocks are taken apart without the lock. Those that follow one another are
            // handed out one after the other, so that they come back as the block that they were.
            for (block, whole) in taken.blocks().iter().rev() {
                self.pageblocks.set_used(*block, *whole);
                let parts = (*block..block + (1 << whole)).step_by(1 << order);
                parts.rev().for_each(|part| lists.push(part, order, mobility));
            }
            taken.clear();
            if let Some(block) = lists.pop(mobility, order) {
                self.stats.add(Counter::FrameBatchAlloc, 1);
                return Some(block);
            }
        }
        None
    }

    fn alloc_from_zone(
        &self,
        cell: &LockedZone,
        order: u8,
        mobility: Mobility,
        need: Need,
    ) -> Option<u32> {
        if !self.has_room(cell, order, need) {
            return None;
        }
        let mut hold = self.hold(cell, Doing::Take);
        if self.room_of(&hold, need) < 1 << order {
            return None;
        }
        let block = self.take(&mut hold, order, mobility)?;
        drop(hold);
        self.pageblocks.set_used(block, order);
        Some(block)
    }

    /// Whether a request may take a block from a zone, as far as can be seen without its lock: near
    /// the limit many ask in vain.
    fn has_room(&self, cell: &LockedZone, order: u8, need: Need) -> bool {
        self.room(cell, cell.used.load(Relaxed), self.charged(), need) >= 1 << order
    }

    /// Whether less than half of the reserve is left in the zone of a processor.
    fn is_reserve_short(&self, cpu: usize) -> bool {
        let cell = &self.zones[self.topology.node(cpu)];
        let left = self.room(cell, cell.used.load(Relaxed), self.charged(), Need::Reclaim);
        left < self.min() / self.zones.len() as u64 / 2
    }

    fn take(&self, zone: &mut Zone, order: u8, mobility: Mobility) -> Option<u32> {
        let (block, source) = zone.alloc(order, mobility)?;
        if source != Source::Own {
            self.stats.add(Counter::FrameFallback, 1);
            self.stats.add(Counter::FrameSteal, (source == Source::Steal) as u64);
        }
        Some(block)
    }

    /// Frames that a request may take from a zone whose lock it has.
    fn room_of(&self, hold: &Hold, need: Need) -> u64 {
        self.room(hold.cell, hold.used(), hold.charged, need)
    }

    /// Frames that a request may take from a zone that has handed out `used`, beside `charged`
    /// pages.
    fn room(&self, cell: &LockedZone, used: u32, charged: u64, need: Need) -> u64 {
        let share = |pages: u64| pages / self.zones.len() as u64;
        let limit = cell.limit.load(Relaxed).saturating_sub(share(charged));
        let limit = match need {
            Need::Fault => limit.saturating_sub(share(self.promised() + self.min())),
            Need::Reclaim => limit,
            Need::Over => u64::MAX,
        };
        limit.saturating_sub(used.into())
    }

    /// The zones, the nearest first.
    fn zones_of(&self, cpu: usize) -> impl Iterator<Item = &LockedZone> {
        let first = self.topology.node(cpu);
        self.zones[first..].iter().chain(&self.zones[..first])
    }

    // ---- Giving back ----

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
            && let Some(mut lists) = self.lists[cpu::current() % self.lists.len()].0.try_lock()
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
            true => self.lists[cpu::current() % self.lists.len()].0.try_lock(),
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
                .then(|| self.hold(self.zone_of(*block), Doing::Give));
            picked.merge();
            self.free_picked(picked, hold);
        }
    }

    fn free_to_lists(&self, lists: &mut CpuLists, block: u32, order: u8) {
        match self.pageblocks.mobility(block) {
            // It must come to rest where it was isolated.
            Mobility::Isolated => self.free_to_zone(block, order),
            mobility => {
                lists.push(block, order, mobility);
                let frames = lists.to_give();
                self.give(lists, frames, self.settings.pick);
            }
        }
    }

    fn free_to_zone(&self, block: u32, order: u8) {
        self.pageblocks.clear_used(block, order);
        let mut hold = self.hold(self.zone_of(block), Doing::Give);
        hold.free(block, order);
    }

    /// Gives the oldest `frames` frames of a processor back to their zones, in holds of bounded
    /// length.
    fn give(&self, lists: &mut CpuLists, mut frames: u32, pick: FramePick) {
        let mut picked = Picked::new();
        while frames > 0 && lists.frames() > 0 {
            let before = lists.frames();
            // The zone of most of them, where there are several: that of the processor.
            let near = self.zones_of(cpu::current()).next().expect("there is a zone");
            let hold = (pick == FramePick::Inside).then(|| self.hold(near, Doing::Give));
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
                hold = Some(self.hold(cell, Doing::Give));
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

    fn zone_of(&self, frame: u32) -> &LockedZone {
        &self.zones[(frame / self.zone_frames) as usize]
    }

    // ---- Figures ----

    /// Free blocks of each order, without what processors keep.
    pub fn free_blocks(&self) -> [u64; ORDERS] {
        let mut sum = [0; ORDERS];
        for cell in &self.zones {
            let blocks = cell.zone.inspect().free_blocks();
            sum.iter_mut().zip(blocks).for_each(|(sum, blocks)| *sum += blocks as u64);
        }
        sum
    }

    /// Checks every invariant, in time proportional to the arena; for tests and debugging.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        for cell in &self.zones {
            let zone = cell.zone.inspect();
            zone.check();
            assert_eq!(cell.used.load(Relaxed), zone.used(), "the copy of the count");
        }
    }

    fn hold<'a>(&'a self, cell: &'a LockedZone, doing: Doing) -> Hold<'a> {
        let zone = cell.zone.lock(&self.stats);
        let (before, charged) = (zone.used(), self.charged());
        Hold { allocator: self, cell, zone: Some(zone), doing, before, charged }
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

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
