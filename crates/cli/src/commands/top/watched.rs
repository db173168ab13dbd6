//! A job as it was seen over the last minutes.

use crate::commands::stat::sample::Sample;
use crate::control::look::Look;
use crate::control::protocol::{JobStats, Process};
use overspill::stats::Counter;
use std::collections::{BTreeMap, VecDeque};

/// Looks that are kept: five minutes of one a second.
const KEPT: usize = 300;

/// What is drawn over time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HistoryPoint {
    /// What of the budget is in use, as a part of it.
    pub used: f64,
    /// Faults a second.
    pub faults: f64,
    /// The part of the time in which nothing got on, in percent.
    pub stalled: f64,
}

/// The last looks at a job.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: VecDeque<HistoryPoint>,
    /// How many there have been.
    count: usize,
}

impl History {
    fn push(&mut self, point: HistoryPoint) {
        self.points.push_back(point);
        self.count += 1;
        while self.points.len() > KEPT {
            self.points.pop_front();
        }
    }

    /// One value a column for all that is kept, the newest last: the highest of those that share a
    /// column. Columns hold the same looks until they leave, so that the graph moves and does not
    /// flicker.
    pub fn columns(&self, columns: usize, value: impl Fn(&HistoryPoint) -> f64) -> Vec<f64> {
        let shared = KEPT.div_ceil(columns.max(1));
        let first = self.count - self.points.len();
        let last_column = (self.count.max(1) - 1) / shared;
        let mut values = vec![0.0; columns];
        for (at, point) in self.points.iter().enumerate() {
            let back = last_column - (first + at) / shared;
            if let Some(column) = columns.checked_sub(back + 1) {
                values[column] = f64::max(values[column], value(point));
            }
        }
        values
    }
}

/// A job that is watched.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The process of its `overspill run`.
    pub job: u32,
    /// What it said last.
    pub look: Look,
    /// What it did between the last two looks.
    pub sample: Sample,
    /// Faults a second of each process.
    pub faults: BTreeMap<u32, f64>,
    /// The last minutes.
    pub history: History,
    /// Why it does not answer, if it does not.
    pub silent: Option<String>,
}

impl Watched {
    /// A job that is seen for the first time: what it did, it did since it began.
    pub fn new(job: u32, look: Look) -> Watched {
        let nothing = Look::default();
        let sample = Sample::new(job, &JobStats::default(), &look.stats);
        let mut watched = Watched {
            job,
            faults: fault_rates(&nothing, &look),
            look,
            sample,
            history: History::default(),
            silent: None,
        };
        watched.note();
        watched
    }

    /// It has been looked at again.
    pub fn again(&mut self, look: Look) {
        self.sample = Sample::new(self.job, &self.look.stats, &look.stats);
        self.faults = fault_rates(&self.look, &look);
        self.look = look;
        self.silent = None;
        self.note();
    }

    fn note(&mut self) {
        let [_, stalled] = self.sample.stalled_percent();
        let faults = self.sample.rate(Counter::PgFault);
        self.history.push(HistoryPoint { used: self.used(), faults, stalled });
    }

    /// What of the budget is in use, as a part of it.
    pub fn used(&self) -> f64 {
        self.look.budget.used_bytes as f64 / (self.look.budget.memory_bytes as f64).max(1.0)
    }

    /// What is on its swap devices.
    pub fn swapped(&self) -> u64 {
        self.look.swaps.iter().fold(0, |sum, device| sum.saturating_add(device.used_bytes))
    }
}

fn fault_rates(before: &Look, now: &Look) -> BTreeMap<u32, f64> {
    let us = now.stats.elapsed_us.saturating_sub(before.stats.elapsed_us);
    let seconds = (us as f64 / 1e6).max(1e-3);
    let earlier: BTreeMap<u32, u64> =
        before.budget.largest.iter().map(|one| (one.pid, one.figures.faults)).collect();
    let rate = |one: &Process| {
        // Another program in the same process counts anew, and has not done less.
        let faults = one.figures.faults;
        let since = faults.checked_sub(earlier.get(&one.pid).copied().unwrap_or(0));
        (one.pid, since.unwrap_or(faults) as f64 / seconds)
    };
    now.budget.largest.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u32>) -> History {
        let mut history = History::default();
        for value in values {
            history.push(HistoryPoint { faults: f64::from(value), ..HistoryPoint::default() });
        }
        history
    }

    #[test]
    fn a_graph_moves_on_column_by_column() {
        let columns = |history: &History, columns| history.columns(columns, |point| point.faults);
        assert_eq!(columns(&of([]), 3), [0.0; 3]);
        assert_eq!(columns(&of([1, 9, 2]), 100)[99], 9.0, "three looks share a column");
        assert_eq!(columns(&of([1, 9, 2, 4]), 100)[98..], [9.0, 4.0]);
        let whole = columns(&of(1..=301), 100);
        assert_eq!((whole[0], whole[98], whole[99]), (6.0, 300.0, 301.0));
        assert_eq!(columns(&of(1..=301), 0), [0.0; 0]);
        assert_eq!(of(1..=301).points.len(), KEPT);
    }

    fn look(elapsed_ms: u64, faults: u64) -> Look {
        let mut look = Look::default();
        look.stats.elapsed_us = elapsed_ms * 1_000;
        look.stats.counters.insert(Counter::PgFault.name().to_owned(), faults);
        look.budget.memory_bytes = 100;
        look.budget.used_bytes = 25;
        let mut process = Process { pid: 7, ..Process::default() };
        process.figures.faults = faults;
        look.budget.largest.push(process);
        look
    }

    #[test]
    fn rates_are_those_since_the_last_look() {
        let mut watched = Watched::new(1, look(2_000, 100));
        assert_eq!((watched.sample.rate(Counter::PgFault), watched.faults[&7]), (50.0, 50.0));
        watched.again(look(2_500, 200));
        assert_eq!((watched.sample.rate(Counter::PgFault), watched.faults[&7]), (200.0, 200.0));
        assert_eq!((watched.used(), watched.swapped()), (0.25, 0));
        watched.again(look(3_500, 10));
        assert_eq!(watched.faults[&7], 10.0, "another program has begun");
    }
}
