//! A zone behind its lock: how long that is held, and what is told when it is let go.

use super::FrameAllocator;
use super::zone::Zone;
use crate::base::counted::{CountedGuard, CountedMutex, LockCounters};
use crate::stats::Counter;
use crate::units::Bytes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A zone behind its lock, which all lie on the cache line that the zone begins on.
#[repr(C, align(64))]
pub struct LockedZone {
    /// Its share of the limit.
    pub limit: AtomicU64,
    /// Copy of what `zone` has handed out, to read without the lock.
    pub used: AtomicU32,
    pub zone: CountedMutex<Zone>,
}

/// The counters of the zones' locks.
pub static ZONE_LOCK: LockCounters = LockCounters {
    taken: Counter::ZoneLock,
    contended: Counter::ZoneLockContended,
    wait_ns: Counter::ZoneLockWaitNs,
    hold_ns: Counter::ZoneLockHoldNs,
    long_ns: Counter::ZoneLockLongNs,
};

/// What a zone's lock is held for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Take,
    Give,
}

/// A zone, locked; the time is measured.
pub struct Hold<'a> {
    pub allocator: &'a FrameAllocator,
    pub cell: &'a LockedZone,
    pub zone: Option<CountedGuard<'a, Zone>>,
    pub doing: Doing,
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
        if self.doing == Doing::Give {
            stats.add(Counter::ZoneFreeHoldNs, ns);
        }
        self.allocator.publish_used();
        if is_more {
            stats.raise(Counter::ChargedPeakBytes, Bytes::from_pages(used).0);
        }
    }
}
