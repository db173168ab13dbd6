//! Proactive reclaim: pages that leave memory because somebody asks for it, as with the kernel's
//! memory.reclaim.
//!
//! A request is a number of pages in a [`JobTable`]: that of the job, which whoever started it
//! writes to and all its processes share, or one of the pool's own, for
//! [`Pool::reclaim`](crate::Pool::reclaim). The background thread of each process takes a batch of
//! what is wanted, reclaims it, and says in the table what came of it, until all is reclaimed or it
//! finds nothing more. So each process gives as fast as it can, and what one cannot give another
//! may.
//!
//! No locks: the request, what of it is taken, and what is reclaimed are a cell each. Whoever asks
//! for the pool waits for its turn outside of all gates.

use crate::control::Control;
use crate::control::job::JobTable;
use crate::reclaim::Reclaimer;
use crate::units::Bytes;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

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

/// How long nothing may come of what others have taken on before it is forgotten: a process that
/// ends in the middle of a batch says no more. A batch takes a thousandth of that.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// Where a process stands with the requests.
#[derive(Debug)]
pub(crate) struct Proactive {
    /// Requests for this pool alone.
    own: JobTable,
    own_progress: RequestProgress,
    job_progress: RequestProgress,
    /// One caller of the pool at a time.
    asking: AtomicBool,
}

/// How far this process is with the requests of a table.
#[derive(Debug, Default)]
struct RequestProgress {
    /// Number of the last one with which it is done.
    done: AtomicU32,
    /// A number, and above it how many batches of that request have found too little, one after the
    /// other.
    short: AtomicU64,
    /// How much was reclaimed when this process found nothing to take, and since when that is so.
    seen: AtomicU64,
    seen_ms: AtomicU64,
}

impl RequestProgress {
    fn is_done(&self, number: u32) -> bool {
        self.done.load(Acquire) == number
    }

    /// A batch of a request found too little; how many have by now. The background thread alone
    /// counts.
    fn fell_short(&self, number: u32) -> u64 {
        let old = self.short.load(Relaxed);
        let count = 1 + if old as u32 == number { old >> 32 } else { 0 };
        self.short.store(count << 32 | u64::from(number), Relaxed);
        count
    }

    fn found_enough(&self, number: u32) {
        self.short.store(u64::from(number), Relaxed);
    }

    /// Whether others have taken all that is left of a request and nothing has come of it for long:
    /// `reclaimed` pages so far.
    fn is_forgotten(&self, number: u32, reclaimed: u64, now: Duration) -> bool {
        let (seen, now_ms) = (reclaimed << 32 | u64::from(number), now.as_millis() as u64);
        if self.seen.swap(seen, Relaxed) != seen {
            self.seen_ms.store(now_ms, Relaxed);
        }
        now_ms - self.seen_ms.load(Relaxed).min(now_ms) >= FORGOTTEN_AFTER.as_millis() as u64
    }

    fn finish(&self, number: u32) {
        self.done.store(number, Release);
    }
}

impl Proactive {
    /// Of a process that has nothing to do with what the job was asked for before.
    pub fn new(job: Option<&JobTable>) -> Result<Proactive, Errno> {
        let (own_progress, job_progress) = (RequestProgress::default(), RequestProgress::default());
        job_progress.finish(job.map_or(0, |job| job.reclaim().number));
        Ok(Proactive {
            own: JobTable::anonymous()?,
            own_progress,
            job_progress,
            asking: AtomicBool::new(false),
        })
    }

    /// Number of the last request for the job with which this process is done.
    pub fn job_done(&self) -> u32 {
        self.job_progress.done.load(Relaxed)
    }

    /// The right to ask, if nobody has it.
    pub fn try_begin(&self) -> bool {
        !self.asking.swap(true, Acquire)
    }

    /// Gives it back.
    pub fn end(&self) {
        self.asking.store(false, Release);
    }

    /// In the child of a fork: what threads of the parent ask for is not its business.
    pub fn reset_in_child(&self) {
        self.own_progress.finish(self.own.reclaim().number);
        self.asking.store(false, Release);
    }

    /// Whether the pool is asked for pages.
    pub fn is_due(&self) -> bool {
        !self.own_progress.is_done(self.own.reclaim().number)
    }
}

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
        let freed = self.reclaim.reclaim(&mut batch, taken as usize, Reclaimer::Proactive);
        table.settle_reclaim(request.number, taken, freed as u64);
        // All of it was looked at, twice, and there is no more to be had, but for a few pages that
        // come and go.
        if freed * SHORT_PART >= taken as usize {
            progress.found_enough(request.number);
        } else if progress.fell_short(request.number) >= SHORT_MAX {
            progress.finish(request.number);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ended_process_has_taken_is_left_to_others() {
        let (progress, seconds) = (RequestProgress::default(), Duration::from_secs);
        let table = JobTable::anonymous().unwrap();
        let number = table.ask_reclaim(Bytes::from_pages(300)).number;
        assert_eq!((table.take_reclaim(number, 256), table.take_reclaim(number, 256)), (256, 44));
        table.settle_reclaim(number, 44, 44);
        assert_eq!(table.take_reclaim(number, 256), 0);
        assert!(!progress.is_forgotten(number, 44, seconds(5)), "it has just been seen");
        assert!(!progress.is_forgotten(number, 50, seconds(6)), "something came of it");
        assert!(!progress.is_forgotten(number + 1, 50, seconds(7)), "another request");
        assert!(progress.is_forgotten(number + 1, 50, seconds(8)));
        table.forget_taken(number);
        assert_eq!(table.take_reclaim(number, 512), 256);
    }

    #[test]
    fn short_batches_count_for_their_own_request() {
        let progress = RequestProgress::default();
        assert!(progress.is_done(0), "nothing was asked for");
        assert_eq!([1, 1, 2, 1].map(|number| progress.fell_short(number)), [1, 2, 1, 1]);
        progress.found_enough(1);
        assert_eq!(progress.fell_short(1), 1);
        progress.finish(7);
        assert!(progress.is_done(7) && !progress.is_done(8));
    }
}
