//! A zone behind its lock, and what is counted of that.

use super::zone::Zone;
use crate::base::counted::{CountedMutex, LockCounters};
use crate::stats::Counter;
use std::sync::atomic::{AtomicU32, AtomicU64};

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
