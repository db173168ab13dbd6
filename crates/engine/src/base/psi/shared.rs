//! The pressure of a job: the union in time of what its processes wait, in cells that all of them
//! map.
//!
//! A process that begins to be stalled, with its first thread, adds itself to the count there, and
//! takes itself off with the last. Processor time adds up. Whoever publishes first after a while
//! brings the averages up to date. A process that is killed while it is stalled stays in the count
//! until it is found to be gone: then the count begins anew, and those that are stalled just then
//! are missing in it until they are again.
//!
//! No locks: the count is a word, as a process's own, and whose turn it is to publish is decided by
//! a compare-and-swap.

use super::meter::{Count, Meter, PUBLISH_EVERY};
use crate::stats::Pressure;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const STALLED: usize = 0;
const SOME_US: usize = 1;
const WORKED_NS: usize = 2;
/// Up to when the meter goes, in microseconds; 0 before the first time.
const UNTIL_US: usize = 3;
const METER: usize = 4;

/// The pressure of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobPressure {
    cells: &'static [AtomicU64],
}

impl JobPressure {
    /// Cells that it takes up.
    pub const CELLS: usize = METER + Meter::CELLS;

    /// In cells that were zero at first.
    ///
    /// # Panics
    /// When there are not [`JobPressure::CELLS`].
    pub fn over(cells: &'static [AtomicU64]) -> JobPressure {
        JobPressure { cells: &cells[..JobPressure::CELLS] }
    }

    /// A process begins to be stalled.
    pub fn enter(&self) {
        self.count().enter(clock_us());
    }

    /// It is no longer.
    pub fn leave(&self) {
        self.count().leave(clock_us());
    }

    /// Processes are gone, of which some may have been stalled.
    pub fn forget_gone(&self) {
        self.count().forget(clock_us());
    }

    /// Adds processor time that a process has used outside of the engine, and brings the averages
    /// up to date if they are due.
    pub fn publish(&self, worked: Duration) {
        self.publish_at(clock_us(), worked);
    }

    /// The figures of now.
    pub fn pressure(&self) -> Pressure {
        Meter::load(&self.cells[METER..]).pressure()
    }

    fn count(&self) -> Count<'static> {
        Count { word: &self.cells[STALLED], some_us: &self.cells[SOME_US] }
    }

    fn publish_at(&self, now_us: u64, worked: Duration) {
        self.cells[WORKED_NS].fetch_add(worked.as_nanos() as u64, Relaxed);
        let until = self.cells[UNTIL_US].load(Relaxed);
        if until != 0 && now_us < until.saturating_add(PUBLISH_EVERY.as_micros() as u64)
            || self.cells[UNTIL_US].compare_exchange(until, now_us, Relaxed, Relaxed).is_err()
        {
            return;
        }
        let now = Duration::from_micros(now_us);
        let mut meter = match until {
            0 => Meter::since(now),
            _ => Meter::load(&self.cells[METER..]),
        };
        self.count().flush(now_us);
        let worked = Duration::from_nanos(self.cells[WORKED_NS].load(Relaxed));
        meter.advance(now.max(meter.now()), self.cells[SOME_US].load(Relaxed), worked);
        meter.store(&self.cells[METER..]);
    }
}

/// The time in microseconds, of a clock that all processes have.
pub fn clock_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job() -> JobPressure {
        let cells = [const { AtomicU64::new(0) }; JobPressure::CELLS];
        JobPressure::over(Box::leak(Box::new(cells)))
    }

    const MS: u64 = 1000;

    #[test]
    fn it_is_the_union_in_time_and_not_the_sum() {
        let job = job();
        let begin = 7_000_000;
        job.publish_at(begin, Duration::ZERO);
        // From 10 to 30 ms one, from 20 to 50 ms another, and from 60 to 70 ms a third.
        job.count().enter(begin + 10 * MS);
        job.count().enter(begin + 20 * MS);
        job.count().leave(begin + 30 * MS);
        job.count().leave(begin + 50 * MS);
        job.count().enter(begin + 60 * MS);
        job.count().leave(begin + 70 * MS);
        // They worked for 80 ms of the 100, on two processors.
        job.publish_at(begin + 40 * MS, Duration::from_millis(30));
        job.publish_at(begin + 100 * MS, Duration::from_millis(50));
        let Pressure { some, full } = job.pressure();
        assert_eq!((some.total_us, full.total_us), (50 * MS, 20 * MS));
    }

    #[test]
    fn averages_are_told_after_two_seconds() {
        let job = job();
        let begin = 9_000_000;
        job.publish_at(begin, Duration::ZERO);
        job.count().enter(begin);
        (1..=40).for_each(|step| job.publish_at(begin + step * 50 * MS, Duration::ZERO));
        let Pressure { some, full } = job.pressure();
        assert!(some.total_us == 2_000_000 && some == full, "{some:?} {full:?}");
        assert!((1800..1830).contains(&some.avg[0]), "1 - exp(-2 / 10): {some:?}");
    }

    proptest! {
        /// The cells are memory of other processes: whatever is in them is brought up to date.
        #[test]
        fn whatever_others_wrote_is_gone_on_from(
            words in prop::collection::vec(
                prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()],
                JobPressure::CELLS,
            ),
            now in 1..1u64 << 50,
        ) {
            let job = job();
            job.cells.iter().zip(words).for_each(|(cell, word)| cell.store(word, Relaxed));
            job.count().enter(now);
            job.publish_at(now, Duration::from_millis(1));
            job.count().leave(now + 5);
            job.count().forget(now + 10);
            job.publish_at(now + 10_000_000, Duration::from_millis(1));
            let _ = job.pressure();
        }
    }

    #[test]
    fn who_is_killed_while_it_is_stalled_does_not_count_for_ever() {
        let job = job();
        let begin = 1_000_000;
        job.publish_at(begin, Duration::ZERO);
        job.count().enter(begin);
        job.count().enter(begin + 10 * MS);
        job.count().forget(begin + 20 * MS);
        // The one that lives leaves what it is no longer part of.
        job.count().leave(begin + 30 * MS);
        job.publish_at(begin + 80 * MS, Duration::ZERO);
        assert_eq!(job.pressure().some.total_us, 20 * MS);
        assert_eq!(job.cells[STALLED].load(Relaxed), 0);
    }
}
