//! A job that is looked at while it runs: the most that it had, and a budget that goes along.
//!
//! A budget so small that pages leave tells what they would have needed. So it is a third of what
//! there is, and grows with that. Of a program that does little but wait in so little memory enough
//! is known soon: it gets more, again and again, so that it comes to its end.

use super::around::USUAL;
use super::model::Measured;
use crate::rundir::{RunDir, Tree};
use overspill::stats::{Counter, Snapshot};
use overspill::units::{Bytes, PAGE_SIZE};
use std::time::{Duration, Instant};

/// How often, at most.
const EVERY: Duration = Duration::from_millis(100);
/// What part of the time looks may take.
const TIME_PART: u32 = 50;
/// What part of what is managed fits in a budget that goes along.
const PART: u64 = 3;
/// The least that it has for what is managed.
const LEAST: u64 = 8 << 20;
/// How often all pages have come back when enough is known of a budget.
const TURNS: u64 = 16;
/// Of what is managed what a program gets then, if it waited half of the time.
const MORE: u64 = 8;

/// What was seen so far.
#[derive(Debug)]
pub struct Watch {
    /// Whether the budget goes along.
    follows: bool,
    budget: Bytes,
    managed: u64,
    unmanaged: u64,
    /// What it has beyond a part of what is managed.
    more: u64,
    /// When enough was known the last time.
    turn: Turn,
    began: Instant,
    next: Instant,
}

/// How far a job had come.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    refaults: u64,
    waited: Duration,
    elapsed: Duration,
}

impl Watch {
    /// Of a job that begins with this budget, which grows with the job if it `follows`.
    pub fn new(budget: Bytes, follows: bool) -> Watch {
        let began = Instant::now();
        let turn = Turn::default();
        Watch { follows, budget, managed: 0, unmanaged: 0, more: 0, turn, began, next: began }
    }

    /// What a budget begins with that goes along.
    pub fn first() -> Bytes {
        Bytes(2 * LEAST)
    }

    /// Looks, if it is time to; calls `set` when there is to be another budget. How long it is
    /// until the next look.
    pub fn look(&mut self, run_dir: &mut RunDir, set: impl FnOnce(Bytes)) -> Duration {
        let began = Instant::now();
        if began >= self.next {
            let now = run_dir.now(crate::control::job::lives).total;
            if let Some(budget) = self.note(&now, self.began.elapsed()) {
                set(budget);
            }
            self.next = began + EVERY.max(began.elapsed() * TIME_PART);
        }
        self.next.saturating_duration_since(Instant::now())
    }

    /// Notes how much there is; the budget that there is to be from now on, if it is another.
    fn note(&mut self, now: &Snapshot, elapsed: Duration) -> Option<Bytes> {
        self.managed = self.managed.max(content(now));
        self.unmanaged = self.unmanaged.max(now.get(Counter::UnmanagedBytes));
        if self.thrashes(now, elapsed) {
            self.more += self.managed / MORE;
        }
        let part = (self.managed / PART).max(LEAST) + self.more;
        let wanted = self.unmanaged.saturating_add(part);
        // By whole steps, so that what grows slowly is not told again and again.
        let wanted = Bytes(wanted.next_multiple_of(1 << 20));
        let grows = self.follows && wanted > self.budget;
        grows.then(|| {
            self.budget = wanted;
            wanted
        })
    }

    /// Whether all pages have come back often enough since this was asked last, and the job waited
    /// for that half of the time.
    fn thrashes(&mut self, now: &Snapshot, elapsed: Duration) -> bool {
        let faults = now.get(Counter::PgFault) as f64;
        let waited = Duration::from_nanos(now.latency.all().total_ns()) + USUAL.mul_f64(faults);
        let here = Turn { refaults: now.get(Counter::RefaultSeen), waited, elapsed };
        let since = std::mem::replace(&mut self.turn, here);
        let pages = self.managed / PAGE_SIZE as u64;
        if here.refaults.saturating_sub(since.refaults) < TURNS * pages.max(1) {
            self.turn = since;
            return false;
        }
        waited.saturating_sub(since.waited) * 2 >= elapsed.saturating_sub(since.elapsed)
    }

    /// What was seen of a job that has ended.
    pub fn measured(&self, tree: &Tree, elapsed: Duration, program: Duration) -> Measured {
        // A short one was not looked at, and has still all that it had.
        let last: u64 = tree.processes.iter().map(content).max().unwrap_or(0);
        let peak: u64 = tree.processes.iter().map(peak).max().unwrap_or(0);
        let fitted = tree.total.get(Counter::WorkingsetEvict) == 0;
        let managed = self.managed.max(last).max(if fitted { peak } else { 0 });
        let unmanaged = tree.unmanaged.peak_bytes.max(self.unmanaged);
        Measured {
            elapsed,
            program,
            budget: self.budget,
            managed: Bytes(managed),
            unmanaged: Bytes(unmanaged),
            around: None,
        }
    }
}

/// What pages that are in use take, wherever they are. A clean page is in two places.
fn content(now: &Snapshot) -> u64 {
    let places = [
        Counter::ResidentPages,
        Counter::SwapCachePages,
        Counter::CompressedPages,
        Counter::DevicePages,
    ];
    let pages = places.iter().fold(0u64, |sum, place| sum.saturating_add(now.get(*place)));
    pages.saturating_sub(now.get(Counter::CleanPages)).saturating_mul(PAGE_SIZE as u64)
}

fn peak(process: &Snapshot) -> u64 {
    process.get(Counter::ChargedPeakBytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::{FaultSource, Stats};

    #[test]
    fn a_budget_goes_along_with_what_there_is() {
        let stats = Stats::anonymous().unwrap();
        let mut watch = Watch::new(Watch::first(), true);
        let mut note = |resident: u64, compressed: u64, unmanaged: u64| {
            let pages =
                [(Counter::ResidentPages, resident), (Counter::CompressedPages, compressed)];
            pages.iter().for_each(|(counter, mib)| stats.set(*counter, mib << 8));
            stats.set(Counter::UnmanagedBytes, unmanaged << 20);
            watch.note(&stats.snapshot(), EVERY).map(|budget| budget.0 >> 20)
        };
        assert_eq!([note(5, 0, 2), note(40, 50, 2), note(40, 80, 2)], [None, Some(32), Some(42)]);
        assert_eq!([note(10, 0, 2), note(40, 80, 9)], [None, Some(49)]);
        let measured = watch.measured(&Tree::default(), EVERY, EVERY);
        let figures = [measured.budget, measured.managed, measured.unmanaged].map(|b| b.0 >> 20);
        assert_eq!(figures, [49, 120, 9]);
        let mut fixed = Watch::new(Bytes(1 << 24), false);
        assert_eq!(fixed.note(&stats.snapshot(), EVERY), None);
    }

    #[test]
    fn who_only_waits_gets_more_and_who_computes_does_not() {
        let stats = Stats::anonymous().unwrap();
        stats.set(Counter::ResidentPages, 96 << 8);
        let mut watch = Watch::new(Watch::first(), true);
        let turn = TURNS * (96 << 8);
        let mut note = |refaults: u64, faults_of_10_us: u64, at: u64| {
            stats.add(Counter::RefaultSeen, refaults);
            stats.add(Counter::PgFault, faults_of_10_us);
            (0..faults_of_10_us).for_each(|_| stats.fault_ns(FaultSource::Compressed, 5_000));
            watch.note(&stats.snapshot(), Duration::from_secs(at)).map(|budget| budget.0 >> 20)
        };
        assert_eq!(note(0, 0, 0), Some(32));
        // 2 of 3 s, but not often enough; and often enough.
        assert_eq!([note(turn - 1, 200_000, 3), note(1, 0, 3)], [None, Some(44)]);
        // Each page came back often, in 2 of 10 s.
        assert_eq!([note(turn, 200_000, 13), note(turn - 1, 200_000, 16)], [None; 2]);
        assert_eq!(note(1, 0, 16), Some(56));
    }
}
