//! A device that is taken out of use: nothing is handed out, and where slots are in use is known.

use super::growth::Disk;
use super::{Bitmap, SlotMap};
use std::sync::atomic::Ordering::Relaxed;

impl SlotMap {
    /// Hands out nothing from here on, but for what other threads are just taking: see
    /// [`SlotMap::settle_retired`].
    pub fn begin_retire(&self) {
        self.retiring.store(true, Relaxed);
    }

    /// Once nobody takes slots any more: those that are not in use are where they are known to be.
    pub fn settle_retired(&self, disk: &dyn Disk) {
        self.caching.store(false, Relaxed);
        self.drain(disk);
        let books = &mut *self.lock();
        self.table.retire_all(books);
        self.publish(books);
    }

    /// Hands slots out again.
    pub fn end_retire(&self, disk: &dyn Disk) {
        self.retiring.store(false, Relaxed);
        self.publish(&self.lock());
        self.review(disk);
    }

    /// Whether it is being taken out of use.
    pub fn is_retiring(&self) -> bool {
        self.retiring.load(Relaxed)
    }

    /// The clusters that have slots in use.
    pub fn clusters_in_use(&self) -> Vec<u32> {
        let books = &*self.lock();
        let clusters = self
            .table
            .allotments_in_use(books)
            .flat_map(|allotment| self.table.layout.clusters_of(allotment));
        clusters.filter(|cluster| self.table.clusters.used_slots(*cluster) > 0).collect()
    }

    /// The slots of a cluster that are in use, or were a moment ago, a bit each.
    pub fn used_in(&self, cluster: u32) -> Bitmap {
        self.table.clusters.used_bitmap(cluster)
    }
}
