//! Proactive reclaim: pages that leave memory because somebody asks for it, as with the kernel's memory.reclaim.
//!
//! A request is a number of pages in a [`JobTable`]: that of the job, which whoever started it writes to and all its
//! processes share, or one of the pool's own, for [`Pool::reclaim`](crate::Pool::reclaim). The background thread of each
//! process takes a batch of what is wanted, reclaims it, and says in the table what came of it, until all is reclaimed or
//! it finds nothing more. So each process gives as fast as it can, and what one cannot give another may.
//!
//! No locks: the request, what of it is taken, and what is reclaimed are a cell each. Whoever asks for the pool waits for
//! its turn outside of all gates.

use crate::base::Bytes;
use crate::engine::Engine;
use crate::job::JobTable;
use crate::reclaim::Reclaimer;
use overspill_os::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Pages that a process takes of a request at once: a millisecond or two of work, between two looks at the gate of reclaim.
const BATCH_PAGES: u64 = 256;

/// Where a process stands with the requests.
#[derive(Debug)]
pub(crate) struct Proactive {
    /// Requests for this pool alone.
    own: JobTable,
    /// Numbers of the last requests for the job and for the pool with which this process is done.
    job_done: AtomicU32,
    own_done: AtomicU32,
    /// One caller of the pool at a time.
    asking: AtomicBool,
}

impl Proactive {
    /// Of a process that has nothing to do with what the job was asked for before.
    pub fn new(job: Option<&JobTable>) -> Result<Proactive, Errno> {
        let job_done = job.map_or(0, |job| job.reclaim().number);
        Ok(Proactive {
            own: JobTable::anonymous()?,
            job_done: AtomicU32::new(job_done),
            own_done: AtomicU32::new(0),
            asking: AtomicBool::new(false),
        })
    }

    /// Number of the last request for the job with which this process is done.
    pub fn job_done(&self) -> u32 {
        self.job_done.load(Relaxed)
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
        self.own_done.store(self.own.reclaim().number, Relaxed);
        self.asking.store(false, Release);
    }

    /// Whether the pool is asked for pages.
    pub fn is_due(&self) -> bool {
        self.own.reclaim().number != self.own_done.load(Relaxed)
    }
}

impl Engine {
    /// Asks this pool for pages, no more than are in use, so that it comes to an end however many come back meanwhile; returns
    /// the number of the request.
    pub(crate) fn ask_reclaim(&self, memory: Bytes) -> u32 {
        let request = self.proactive.own.ask_reclaim(memory.min(Bytes::from_pages(self.budget().used())));
        self.kick_background();
        request.number
    }

    /// What came of a request for this pool, once it is done with it.
    pub(crate) fn reclaimed(&self, number: u32) -> Option<Bytes> {
        let done = self.proactive.own_done.load(Acquire) == number;
        done.then(|| self.proactive.own.reclaimed(number).unwrap_or_default())
    }

    /// Reclaims a batch for the requests; returns how many pages were freed.
    pub(crate) fn reclaim_on_request(&self) -> usize {
        let own = (self.proactive.own, &self.proactive.own_done);
        let job = self.job.map(|job| (job, &self.proactive.job_done));
        let freed = [Some(own), job].into_iter().flatten().map(|(table, done)| self.reclaim_for(table, done)).sum();
        // Said each time, as with the budget.
        self.stats.set_reclaim_done(self.proactive.job_done());
        freed
    }

    fn reclaim_for(&self, table: JobTable, done: &AtomicU32) -> usize {
        let request = table.reclaim();
        if request.number == done.load(Relaxed) {
            return 0;
        }
        if table.reclaimed(request.number).is_some_and(|reclaimed| reclaimed >= request.memory) {
            done.store(request.number, Release);
            return 0;
        }
        let _inside = self.reclaim_gate.enter();
        // Without a batch, or while others have taken all that is left, it is looked at again a little later.
        let Some(mut batch) = self.batches.try_take() else { return 0 };
        let taken = table.take_reclaim(request.number, BATCH_PAGES);
        if taken == 0 {
            return 0;
        }
        let freed = self.reclaim(&mut batch, taken as usize, Reclaimer::Proactive);
        table.settle_reclaim(request.number, taken, freed as u64);
        if freed == 0 {
            // All of it was looked at: there is nothing to be had.
            done.store(request.number, Release);
        }
        freed
    }
}
