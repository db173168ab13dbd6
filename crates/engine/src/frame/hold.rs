//! A hold of a zone's lock: how long it lasts, and what is told when it ends.

use super::locked::LockedZone;
use super::zone::Zone;
use super::{FrameAllocator, Need};
use crate::base::counted::CountedGuard;
use crate::stats::Counter;
use crate::units::Bytes;
use std::sync::atomic::Ordering::Relaxed;

impl FrameAllocator {
    /// Locks a zone.
    pub(super) fn hold<'a>(&'a self, cell: &'a LockedZone, doing: HeldFor) -> Hold<'a> {
        let zone = cell.zone.lock(&self.stats);
        let (before, charged) = (zone.used(), self.charged());
        Hold { allocator: self, cell, zone: Some(zone), doing, before, charged }
    }

    /// Frames that a request may take from a zone whose lock it has.
    pub(super) fn room_of(&self, hold: &Hold, need: Need) -> u64 {
        self.room(hold.cell, hold.used(), hold.charged, need)
    }
}

/// What a zone's lock is held for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    Take,
    Give,
}

/// A zone, locked; the time is measured.
pub struct Hold<'a> {
    pub allocator: &'a FrameAllocator,
    pub cell: &'a LockedZone,
    pub zone: Option<CountedGuard<'a, Zone>>,
    pub doing: HeldFor,
    /// What the zone had handed out when it was locked, and the pages that were charged beside.
    pub before: u32,
    pub charged: u64,
}

impl std::ops::Deref for Hold<'_> {
    type Target = Zone;
    fn deref(&self) -> &Zone {
        self.zone.as_ref().expect("held until dropped")
    }
}

impl std::ops::DerefMut for Hold<'_> {
    fn deref_mut(&mut self) -> &mut Zone {
        self.zone.as_mut().expect("held until dropped")
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let is_more = self.used() > self.before;
        self.cell.used.store(self.used(), Relaxed);
        // What was in use at the moment, beside what was charged when it was seen that there is
        // room.
        let used = self.allocator.handed_out() + self.charged;
        let ns = self.zone.take().expect("held until dropped").release();
        let stats = &self.allocator.stats;
        if self.doing == HeldFor::Give {
            stats.add(Counter::ZoneFreeHoldNs, ns);
        }
        self.allocator.publish_used();
        if is_more {
            stats.raise(Counter::ChargedPeakBytes, Bytes::from_pages(used).0);
        }
    }
}
