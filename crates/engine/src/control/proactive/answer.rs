//! How this process asks, and does its part of what is asked for.

use super::{Proactive, RequestProgress};
use crate::control::Control;
use crate::control::job::JobTable;
use crate::reclaim::Reclaimer;
use crate::stats::Counter;
use crate::units::Bytes;
use overspill_os::backing::Backing;

/// Pages that a process takes of a request at once: a millisecond or two of work, between two looks
/// at the gate of reclaim.
const BATCH_PAGES: u64 = 256;
/// Batches of a request in a row that may find too little before a process is done with it, as it
/// has nothing more: others may hold what there is for the moment. The kernel makes 16 attempts in
/// a row; here there is mostly a nap between two.
const SHORT_MAX: u64 = 4;
/// What is too little: less than this part of what was wanted. A program that is busy takes pages
/// back as they leave.
const SHORT_PART: usize = 8;
/// How often a batch may look at each page, on average: twice, as what was used lately is passed
/// over once, and as often again. Where it takes more the same few pages come and go.
const LOOKS_MAX: u64 = 4;

impl<B: Backing> Control<B> {
    /// Asks this pool for pages, no more than are in use, so that it comes to an end however many
    /// come back meanwhile; returns the number of the request.
    pub(crate) fn ask_reclaim(&self, memory: Bytes) -> u32 {
        let request = self
            .proactive
            .own
            .ask_reclaim(memory.min(Bytes::from_pages(self.memory.budget().used())));
        self.base.wake.background.wake();
        request.number
    }

    /// What came of a request for this pool, once it is done with it.
    pub(crate) fn reclaimed(&self, number: u32) -> Option<Bytes> {
        self.proactive
            .own_progress
            .is_done(number)
            .then(|| self.proactive.own.reclaimed(number).unwrap_or_default())
    }

    /// Reclaims a batch for the requests; returns how many pages were freed.
    pub(crate) fn reclaim_on_request(&self) -> usize {
        let Proactive { own, own_progress, job_progress, .. } = &self.proactive;
        let tables = [Some((*own, own_progress)), self.job.map(|job| (job, job_progress))];
        let freed = tables
            .into_iter()
            .flatten()
            .map(|(table, progress)| self.reclaim_for(table, progress))
            .sum();
        // Said each time, as with the budget.
        self.stats.set_reclaim_done(self.proactive.job_done());
        freed
    }

    fn reclaim_for(&self, table: JobTable, progress: &RequestProgress) -> usize {
        let request = table.reclaim();
        if progress.is_done(request.number) {
            return 0;
        }
        if table.reclaimed(request.number).is_some_and(|reclaimed| reclaimed >= request.memory) {
            progress.finish(request.number);
            return 0;
        }
        let _inside = self.base.gates.reclaim.enter();
        // Without a batch, or while others have taken all that is left, it is looked at again a
        // little later.
        let Some(mut batch) = self.reclaim.take_batch() else { return 0 };
        let taken = table.take_reclaim(request.number, BATCH_PAGES);
        if taken == 0 {
            let reclaimed = table.reclaimed(request.number).unwrap_or_default().pages();
            if progress.is_forgotten(request.number, reclaimed, self.base.psi.now()) {
                table.forget_taken(request.number);
            }
            return 0;
        }
        let looks = || self.stats.get(Counter::PgScanProactive);
        let (used, looks_before) = (self.memory.budget().used(), looks());
        let freed = self.reclaim.reclaim(&mut batch, taken as usize, Reclaimer::Proactive);
        table.settle_reclaim(request.number, taken, freed as u64);
        // All of it was looked at, twice, and there is no more to be had, but for a few pages that
        // come and go.
        let circled = looks() - looks_before > LOOKS_MAX * used;
        if freed * SHORT_PART >= taken as usize && !circled {
            progress.found_enough(request.number);
        } else if progress.fell_short(request.number) >= SHORT_MAX {
            progress.finish(request.number);
        }
        freed
    }
}
