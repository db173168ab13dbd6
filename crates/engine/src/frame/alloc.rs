//! Taking frames: from the lists of the processor, and else from a zone.

use super::hold::HeldFor;
use super::locked::LockedZone;
use super::percpu::{LIST_ORDER_MAX, Picked};
use super::zone::{Source, Zone};
use super::{FrameAllocator, MAX_ORDER, Mobility, Need};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::processor;
use crate::stats::Counter;
use crate::units::FrameId;
use std::sync::atomic::Ordering::Relaxed;

impl FrameAllocator {
    /// Takes `2^order` contiguous frames, the first at a multiple of their number. `None` when the
    /// budget or the arena has no room for them.
    pub fn alloc(&self, order: u8, mobility: Mobility, need: Need) -> Option<FrameId> {
        assert!(order <= MAX_ORDER, "no block has order {order}");
        let cpu = processor();
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
            let mut hold = self.hold(cell, HeldFor::Take);
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
        let mut hold = self.hold(cell, HeldFor::Take);
        if self.room_of(&hold, need) < 1 << order && !is_seeded(Bug::RoomUnlocked) {
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
}
