//! The figures: how often an access misses, and how often that is by the measure of LRU.

use super::policies::Misses;
use super::trace::Trace;
use crate::measure::Sample;
use crate::measure::counters::{Counted, add};

/// Misses of 1,000 accesses after the warm-up.
pub const MISSES: &str = "misses_per_1000";
/// Misses of 1,000 accesses to hot pages after the warm-up, where a trace has such pages.
pub const HOT_MISSES: &str = "hot_misses_per_1000";
/// [`MISSES`] as a multiple of those of LRU with as many frames as pages were in memory on average.
pub const OF_LRU_RESIDENT: &str = "ratio_to_lru_of_resident";
/// [`HOT_MISSES`] likewise.
pub const HOT_OF_LRU_RESIDENT: &str = "hot_ratio_to_lru_of_resident";
/// Faults that found their page in memory, for each miss.
pub const MINOR: &str = "minor_faults_per_miss";
/// Pages in memory on average, as a share of the budget.
pub const RESIDENT: &str = "resident_ratio";
/// Pages of the budget in use on average, buffers included, as a share of it.
pub const CHARGED: &str = "charged_ratio";

/// What counts of the misses of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// All after the warm-up.
    pub all: u64,
    /// Those of hot pages.
    pub hot: u64,
}

impl Count {
    /// Of what a policy missed.
    pub fn of(trace: &Trace, misses: &Misses) -> Count {
        let missed =
            || trace.accesses.iter().zip(misses).skip(trace.warm_up).filter(|(_, missed)| **missed);
        let all = missed().count() as u64;
        let hot = missed().filter(|(page, _)| **page < trace.hot).count() as u64;
        Count { all, hot }
    }

    /// Of what a pool counted since the end of the warm-up: pages that it read from the device, and
    /// pages touched for the first time. Beside hot pages, all of which had been touched by then,
    /// none is touched twice.
    pub fn between(trace: &Trace, counted: Counted<'_>) -> Count {
        let read = counted.count("pswpin") as u64;
        Count {
            all: read + counted.count("pgzerofill") as u64,
            hot: if trace.hot > 0 { read } else { 0 },
        }
    }

    /// As figures.
    pub fn sample(self, trace: &Trace) -> Sample {
        let counted = &trace.accesses[trace.warm_up..];
        let of_1000 = |misses: u64, accesses: usize| misses as f64 / accesses as f64 * 1000.0;
        let mut sample = Sample::new();
        add(&mut sample, [(MISSES, of_1000(self.all, counted.len()))]);
        if trace.hot > 0 {
            let hot = counted.iter().filter(|page| **page < trace.hot).count();
            add(&mut sample, [(HOT_MISSES, of_1000(self.hot, hot))]);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::counters::Counters;

    #[test]
    fn misses_count_after_the_warm_up_and_those_of_hot_pages_apart() {
        let trace = Trace { accesses: vec![0, 1, 0, 2, 1, 3], pages: 4, warm_up: 2, hot: 2 };
        let counted = Count::of(&trace, &vec![true, true, false, true, true, true]);
        assert_eq!(counted, Count { all: 3, hot: 1 });
        let sample = counted.sample(&trace);
        assert_eq!((sample[MISSES], sample[HOT_MISSES]), (750.0, 500.0));
        let before = Counters::from([("pswpin", 5), ("pgzerofill", 2)]);
        let after = Counters::from([("pswpin", 6), ("pgzerofill", 4)]);
        let between = Counted { before: &before, after: &after };
        assert_eq!(Count::between(&trace, between), counted);
        let even = Trace { hot: 0, ..trace };
        assert_eq!(Count::between(&even, between), Count { all: 3, hot: 0 });
        assert!(!counted.sample(&even).contains_key(HOT_MISSES));
    }
}
