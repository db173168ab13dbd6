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

mod answer;

use crate::control::job::JobTable;
use overspill_os::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

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
