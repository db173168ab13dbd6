//! Slots over a fork: what parent and child share stays as it is until one of them is gone.

use super::counts::SlotState;
use super::{Disk, SlotMap};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl SlotMap {
    /// Seals every cluster with slots in use for the child of fork number `seq` (counted from 1, in
    /// order).
    pub fn seal(&self, seq: u64, disk: &dyn Disk) {
        // What is cached is not in use.
        self.drain(disk);
        let books = &mut *self.lock();
        self.table.seal(books, seq);
        self.publish(books);
    }

    /// Unseals the clusters that no living child can share: all, or those sealed before the oldest
    /// living child's fork.
    pub fn unseal(&self, oldest_living_child: Option<u64>) {
        let books = &mut *self.lock();
        self.table.unseal(books, oldest_living_child);
        self.publish(books);
    }

    /// Ends allocation for good: in a child of a fork, of the map that it shares with its parent.
    pub fn close(&self, disk: &dyn Disk) {
        self.caching.store(false, Relaxed);
        self.drain(disk);
        let books = &mut *self.lock();
        self.table.close(books);
        // What is in use, from here on: that only becomes less.
        self.set_capacity(self.table.tally.get(SlotState::Taken));
    }

    /// Calls `each` with the range of bytes of every allotment of its own that holds slots in use,
    /// until it returns `false`; whether it never did.
    pub fn all_owned_in_use(&self, mut each: impl FnMut(Range<u64>) -> bool) -> bool {
        let books = &*self.lock();
        self.table
            .allotments_in_use(books)
            .all(|allotment| each(self.table.layout.allotment_bytes(allotment)))
    }
}
