//! Memory of the process that the engine does not manage, and the job cannot get back: stacks, data
//! of libraries, shared memory, the engine's own tables.
//!
//! It is what the kernel counts for the process beyond the frames in use. Frames of pages that were
//! never written have no memory behind them, so the difference is too low at times: what was found
//! is only by and by taken for less. Measured in processes of a job: the budget of a library's pool
//! is for the pool alone.

use super::Control;
use crate::stats::Counter;
use crate::units::Bytes;
use overspill_os::backing::Backing;
use overspill_os::rss::Rss;
use overspill_os::thread;
use std::time::{Duration, Instant};

/// How often it is measured, and at most what part of the time.
const EVERY: Duration = Duration::from_millis(50);
const TIME_PART: u32 = 100;
/// What part of the way down a lower figure is followed.
const DOWN: u64 = 4;

/// When it is measured next.
#[derive(Default, Debug)]
pub struct Unmanaged {
    next: Option<Instant>,
    /// Time of processors that the program had used by then.
    worked: Duration,
}

impl Unmanaged {
    /// Whether to measure, when the program has used so much time of processors: what has not run
    /// has no more memory than before.
    pub fn is_due(&mut self, worked: Duration) -> bool {
        let is_due = worked != self.worked && self.next.is_none_or(|next| next <= Instant::now());
        if is_due {
            self.worked = worked;
        }
        is_due
    }
}

/// What it is taken for after it was measured to be `found`.
fn follow(before: u64, found: u64) -> u64 {
    if found < before { before - (before - found).div_ceil(DOWN) } else { found }
}

impl<B: Backing> Control<B> {
    /// Measures it.
    pub(super) fn measure_unmanaged(&self, state: &mut Unmanaged) {
        let began = thread::cpu_time(thread::id());
        let managed = self.memory.budget().used();
        let rss = Rss::of_process();
        let took = thread::cpu_time(thread::id()).saturating_sub(began);
        state.next = Some(Instant::now() + EVERY.max(took * TIME_PART));
        let Ok(Rss { anonymous, shared }) = rss else { return };
        // Frames come and go meanwhile: the most there were are taken off.
        let managed = managed.max(self.memory.budget().used());
        let before = self.memory.lease.unmanaged();
        let now = follow(before, (anonymous + shared).saturating_sub(managed));
        if now != before {
            self.memory.set_unmanaged(now);
            self.stats.set(Counter::UnmanagedBytes, Bytes::from_pages(now).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_counts_at_once_and_less_by_and_by() {
        assert_eq!((follow(100, 900), follow(900, 100), follow(101, 100)), (900, 700, 100));
    }

    #[test]
    fn a_process_that_does_nothing_is_not_measured_again() {
        let mut unmanaged = Unmanaged::default();
        let worked = Duration::from_millis(3);
        assert!(unmanaged.is_due(worked) && !unmanaged.is_due(worked));
        assert!(unmanaged.is_due(worked * 2));
        unmanaged.next = Some(Instant::now() + EVERY);
        assert!(!unmanaged.is_due(worked * 3));
    }
}
