//! The budget: the limit, what counts towards it, and the watermarks.

use super::FrameAllocator;
use super::percpu::ListMarks;
use crate::base::sync::lock;
use crate::stats::Counter;
use crate::units::Bytes;
use std::sync::atomic::Ordering::Relaxed;

impl FrameAllocator {
    /// Limit in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. What is over it is reclaimed by and by.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Relaxed);
        self.stats.set(Counter::LimitBytes, Bytes::from_pages(pages).0);
        let nodes = self.zones.len() as u64;
        for (node, cell) in self.zones.iter().enumerate() {
            cell.limit.store(pages / nodes + ((node as u64) < pages % nodes) as u64, Relaxed);
        }
        let marks = ListMarks::of(pages, self.lists.len());
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

    /// Keeps so many pages free of faults that are to be charged later: buffers that nobody has
    /// used yet.
    pub fn promise(&self, pages: u64) {
        self.promised.fetch_add(pages, Relaxed);
    }

    /// Pages that are kept free for that.
    pub fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Charges what was promised, as it `costs` memory from now on; or no more, until later.
    pub fn charge(&self, pages: u64, costs: bool) {
        let [from, to] =
            if costs { [&self.promised, &self.charged] } else { [&self.charged, &self.promised] };
        to.fetch_add(pages, Relaxed);
        from.fetch_sub(pages, Relaxed);
        self.publish_used();
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
        self.settings.watermarks.pages(self.limit())
    }
}
