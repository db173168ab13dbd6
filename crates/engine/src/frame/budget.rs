//! The budget: the limit, what counts towards it, and the watermarks.

use super::locked::LockedZone;
use super::percpu::ListMarks;
use super::{FrameAllocator, Need};
use crate::base::sync::lock;
use crate::stats::Counter;
use crate::units::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What buffers of one kind cost.
#[derive(Debug)]
pub struct Promise {
    /// Pages of each, from its first use on.
    each: u64,
    /// For so many there is room in any case.
    kept: usize,
    /// So many cost memory now.
    costing: AtomicUsize,
}

impl FrameAllocator {
    /// Limit in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Pages of it that the process has for itself: what is kept free is a part of these. Those
    /// that it shares it has already, and others that share them keep a part free as well.
    pub fn own(&self) -> u64 {
        self.limit().saturating_sub(self.shared.load(Relaxed))
    }

    /// The limit that leaves enough free beside what is in use, of which `shared` pages are shared.
    pub fn enough(&self, shared: u64) -> u64 {
        let used = self.used() + self.promised();
        used + self.settings.watermarks.pages(used.saturating_sub(shared))[2]
    }

    /// From now on so many pages of the limit are shared.
    pub fn set_shared(&self, pages: u64) {
        if self.shared.swap(pages, Relaxed) != pages {
            self.fit_lists();
        }
    }

    /// Changes the limit. What is over it is reclaimed by and by.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Relaxed);
        self.stats.set(Counter::LimitBytes, Bytes::from_pages(pages).0);
        let nodes = self.zones.len() as u64;
        for (node, cell) in self.zones.iter().enumerate() {
            cell.limit.store(pages / nodes + ((node as u64) < pages % nodes) as u64, Relaxed);
        }
        self.fit_lists();
    }

    /// Has the lists of processors keep as much as there is room for.
    fn fit_lists(&self) {
        let marks = ListMarks::of(self.own(), self.lists.len());
        for cell in &self.lists {
            let mut lists = lock(&cell.0);
            lists.set_marks(marks);
            self.give(&mut lists, u32::MAX, self.settings.pick);
        }
    }

    /// Pages in use: frames handed out or kept in the lists of processors, and what is charged.
    pub fn used(&self) -> u64 {
        self.handed_out() + self.charged()
    }

    /// Of these, the frames.
    pub fn handed_out(&self) -> u64 {
        self.zones.iter().map(|zone| zone.used.load(Relaxed) as u64).sum()
    }

    /// Pages of memory that are no frames and count like them: buffers of the engine.
    pub fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Frames that a request may take from a zone that has handed out `used`, beside `charged`
    /// pages.
    pub(super) fn room(&self, cell: &LockedZone, used: u32, charged: u64, need: Need) -> u64 {
        let share = |pages: u64| pages / self.zones.len() as u64;
        let limit = cell.limit.load(Relaxed).saturating_sub(share(charged));
        let limit = match need {
            Need::Fault => limit.saturating_sub(share(self.promised() + self.min())),
            Need::Reclaim => limit,
            Need::Over => u64::MAX,
        };
        limit.saturating_sub(used.into())
    }

    /// Keeps room free of faults for the first `kept` buffers of a kind, which cost `each` so many
    /// pages from their first use on.
    pub fn promise(&self, each: u64, kept: usize) -> Promise {
        self.promised.fetch_add(each * kept as u64, Relaxed);
        Promise { each, kept, costing: AtomicUsize::new(0) }
    }

    /// Pages that are kept free for that.
    pub fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Charges a buffer that was promised, or another one if a fault could take as much: the
    /// reserve is for who reclaims. Whether it may be used.
    pub fn charge(&self, promise: &Promise) -> bool {
        let has_room = || self.free_pages() >= promise.each + self.min();
        let may = |costing| costing < promise.kept || promise.each == 0 || has_room();
        let next = |costing| may(costing).then_some(costing + 1);
        let Ok(before) = promise.costing.fetch_update(Relaxed, Relaxed, next) else {
            return false;
        };
        self.charge_more(promise.each);
        if before < promise.kept {
            self.promised.fetch_sub(promise.each, Relaxed);
        }
        true
    }

    /// Such a buffer costs nothing any more, until later.
    pub fn uncharge(&self, promise: &Promise) {
        let before = promise.costing.fetch_sub(1, Relaxed);
        if before <= promise.kept {
            self.promised.fetch_add(promise.each, Relaxed);
        }
        self.charge_less(promise.each);
    }

    /// Charges so many pages that were not promised.
    pub fn charge_more(&self, pages: u64) {
        self.charged.fetch_add(pages, Relaxed);
        self.publish_used();
    }

    /// Such pages cost no more.
    pub fn charge_less(&self, pages: u64) {
        if pages > 0 {
            self.charged.fetch_sub(pages, Relaxed);
            self.publish_used();
        }
    }

    /// Brings the figure of what is in use up to date, where that has changed; returns it. Of two
    /// threads that do so at the same time the later one may tell the older figure: so it is done
    /// again by and by. The most that was in use is noted where frames are taken: a buffer that is
    /// charged while reclaim has what was promised to it exceeds the limit until reclaim gives that
    /// back.
    pub fn publish_used(&self) -> Bytes {
        let bytes = Bytes::from_pages(self.used());
        self.stats.set(Counter::ChargedBytes, bytes.0);
        bytes
    }

    /// Free pages, the reserve included.
    pub fn free_pages(&self) -> u64 {
        self.limit().saturating_sub(self.used() + self.promised())
    }

    /// Pages kept back for reclaim: below them a fault reclaims for itself.
    pub fn min(&self) -> u64 {
        self.watermarks()[0]
    }

    /// Free pages below which background reclaim starts.
    pub fn low(&self) -> u64 {
        self.watermarks()[1]
    }

    /// Free pages at which background reclaim stops.
    pub fn high(&self) -> u64 {
        self.watermarks()[2]
    }

    fn watermarks(&self) -> [u64; 3] {
        self.settings.watermarks.pages(self.own())
    }
}
