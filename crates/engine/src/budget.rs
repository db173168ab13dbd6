//! The budget of frames and its watermarks.
//!
//! One counter of pages in use (resident pages and frames of the arena) against a limit. Between limit and low
//! mark, background reclaim is at work; below min only reclaim itself may take frames, because it needs a few in
//! order to free many.

use crate::base::Bytes;
use crate::stats::{Counter, Stats};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages in use against a limit.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    stats: Stats,
}

impl Budget {
    /// A budget of `limit`.
    pub fn new(limit: Bytes, stats: Stats) -> Budget {
        let budget = Budget { limit: AtomicU64::new(0), used: AtomicU64::new(0), stats };
        budget.set_limit(limit.pages());
        budget
    }

    /// Limit in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. What is over it is reclaimed by and by.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Relaxed);
        self.stats.set(Counter::LimitBytes, Bytes::from_pages(pages).0);
    }

    /// Pages in use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Pages kept back for reclaim: 1/64 of the limit, at least the pages that two batches may need before they free any.
    pub fn min(&self) -> u64 {
        (self.limit() / 64).clamp(96, 2048)
    }

    /// Free pages below which background reclaim starts.
    pub fn low(&self) -> u64 {
        self.min() + self.limit() / 32
    }

    /// Free pages at which background reclaim stops.
    pub fn high(&self) -> u64 {
        self.low() + self.limit() / 32
    }

    /// Free pages, the reserve included.
    pub fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    /// Takes pages for a fault: never the reserve.
    pub fn charge(&self, pages: u64) -> bool {
        self.charge_above(pages, self.min())
    }

    /// Takes pages for reclaim: all but the last.
    pub fn charge_reserve(&self, pages: u64) -> bool {
        self.charge_above(pages, 0)
    }

    /// Takes pages whatever the limit: while reclaim is frozen for a fork.
    pub fn charge_over(&self, pages: u64) {
        let used = self.used.fetch_add(pages, Relaxed) + pages;
        self.publish(used);
    }

    fn charge_above(&self, pages: u64, reserve: u64) -> bool {
        let limit = self.limit().saturating_sub(reserve);
        let taken = self.used.fetch_update(Relaxed, Relaxed, |used| (used + pages <= limit).then_some(used + pages));
        if let Ok(before) = taken {
            self.publish(before + pages);
        }
        taken.is_ok()
    }

    /// Gives pages back.
    pub fn uncharge(&self, pages: u64) {
        let before = self.used.fetch_sub(pages, Relaxed);
        debug_assert!(before >= pages, "{before} pages are charged, {pages} given back");
        self.publish(before - pages);
    }

    fn publish(&self, used: u64) {
        let bytes = Bytes::from_pages(used).0;
        self.stats.set(Counter::ChargedBytes, bytes);
        self.stats.raise(Counter::ChargedPeakBytes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_leave_the_reserve_to_reclaim() {
        let budget = Budget::new(Bytes(4 << 20), Stats::anonymous().unwrap());
        let min = budget.min();
        assert!(budget.charge(1024 - min));
        assert!(!budget.charge(1));
        assert!(budget.charge_reserve(min));
        assert!(!budget.charge_reserve(1));
        budget.uncharge(1024);
        assert_eq!((budget.used(), budget.free()), (0, 1024));
        assert!(budget.min() < budget.low() && budget.low() < budget.high() && budget.high() < budget.limit());
    }
}
