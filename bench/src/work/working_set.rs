//! `working-set`: a trace of accesses on a pool of the library, and what other policies would miss
//! on the same trace.
//!
//! [`trace`] is what is accessed, [`policies`] are the others.

pub mod policies;
pub mod trace;

use crate::measure::*;
use overspill::units::Bytes;
use overspill_bench::contents::{WORDS, tag};
use policies::{Misses, Policy};
use std::hint::black_box;
use trace::{Pattern, Trace};

/// How much is in memory is looked at once in so many accesses.
const LOOK_EVERY: usize = 1024;

/// Measures in this process, which does nothing else. `what` is what is accessed.
pub fn measure_one(request: pool::Request<Pattern>) -> Result<Sample, Failure> {
    let fits = Bytes(request.memory).pages();
    let trace = request.what.trace(fits as u32);
    let pool = request.pool()?;
    let mut region = pool::map(&pool, Bytes::from_pages(trace.pages.into()).0)?;
    let words = region.as_mut_slice::<u64>();
    let mut touched = vec![false; trace.pages as usize];
    let mut wrong = 0_u64;
    // 1. A page is written to when it is touched for the first time, and read after that.
    let mut access = |page: u32| {
        let word = &mut words[page as usize * WORDS];
        if std::mem::replace(&mut touched[page as usize], true) {
            wrong += u64::from(*black_box(word) != tag(page.into()));
        } else {
            *word = tag(page.into());
        }
    };
    // 2. The warm-up, then what counts.
    let (warm_up, counted) = trace.accesses.split_at(trace.warm_up);
    warm_up.iter().for_each(|page| access(*page));
    let (looks, counted) = Counted::during(&pool, || {
        let look = |chunk: &[u32]| {
            chunk.iter().for_each(|page| access(*page));
            let counters = pool.stats().counters;
            let resident = counters["nr_resident"] + counters["nr_swapcached"];
            (resident as f64, Bytes(counters["charged_bytes"]).pages() as f64)
        };
        counted.chunks(LOOK_EVERY).map(look).collect::<Vec<_>>()
    });
    pool::right(wrong)?;
    // 3. The figures, with those of LRU in as much memory as there was on average.
    let misses = Count::between(&trace, &counted);
    let mut sample = misses.sample(&trace);
    let resident = looks.iter().map(|(resident, _)| resident).sum::<f64>() / looks.len() as f64;
    let charged = looks.iter().map(|(_, charged)| charged).sum::<f64>() / looks.len() as f64;
    let fits = fits as f64;
    // Pages in memory on average, as a share of the budget; the same of what is in use of it,
    // buffers included.
    add(&mut sample, [("resident_ratio", resident / fits), ("charged_ratio", charged / fits)]);
    let lru = Count::of(&trace, &policies::lru(&trace.accesses, resident.round() as usize));
    let minor = (counted.count("pgfault") - misses.all as f64).max(0.0);
    for (figure, here, there) in [
        // Misses as multiples of those of LRU with as many frames as pages were in memory.
        ("ratio_to_lru_of_resident", misses.all as f64, lru.all),
        ("hot_ratio_to_lru_of_resident", misses.hot as f64, lru.hot),
        // Faults that found their page in memory.
        ("minor_faults_per_miss", minor, misses.all),
    ] {
        if there > 0 {
            add(&mut sample, [(figure, here / there as f64)]);
        }
    }
    Ok(sample)
}

/// What a policy that is simulated misses.
pub fn simulate(pattern: Pattern, frames: u32, policy: Policy) -> Sample {
    let trace = pattern.trace(frames);
    Count::of(&trace, &policy(&trace.accesses, frames as usize)).sample(&trace)
}

/// What counts of the misses of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    /// All after the warm-up.
    all: u64,
    /// Those of hot pages.
    hot: u64,
}

impl Count {
    /// Of what a policy missed.
    fn of(trace: &Trace, misses: &Misses) -> Count {
        let missed =
            || trace.accesses.iter().zip(misses).skip(trace.warm_up).filter(|(_, missed)| **missed);
        let hot = missed().filter(|(page, _)| **page < trace.hot).count() as u64;
        Count { all: missed().count() as u64, hot }
    }

    /// Of what a pool counted since the end of the warm-up: pages that it read from the device, and
    /// pages touched for the first time. Beside hot pages, all of which had been touched by then,
    /// none is touched twice.
    fn between(trace: &Trace, counted: &Counted) -> Count {
        let read = counted.count("pswpin") as u64;
        let all = read + counted.count("pgzerofill") as u64;
        Count { all, hot: if trace.hot > 0 { read } else { 0 } }
    }

    /// As figures: misses of 1,000 accesses after the warm-up, and of 1,000 of those to hot pages,
    /// where a trace has such pages.
    fn sample(self, trace: &Trace) -> Sample {
        let counted = &trace.accesses[trace.warm_up..];
        let of_1000 = |misses: u64, accesses: usize| misses as f64 / accesses as f64 * 1000.0;
        let mut sample = figures([("misses_per_1000", of_1000(self.all, counted.len()))]);
        if trace.hot > 0 {
            let hot = counted.iter().filter(|page| **page < trace.hot).count();
            add(&mut sample, [("hot_misses_per_1000", of_1000(self.hot, hot))]);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_count_after_the_warm_up_and_those_of_hot_pages_apart() {
        let trace = Trace { accesses: vec![0, 1, 0, 2, 1, 3], pages: 4, warm_up: 2, hot: 2 };
        let count = Count::of(&trace, &vec![true, true, false, true, true, true]);
        assert_eq!(count, Count { all: 3, hot: 1 });
        let expected = [("misses_per_1000", 750.0), ("hot_misses_per_1000", 500.0)];
        assert_eq!(count.sample(&trace), figures(expected));
        let counted = crate::fixture::counted(&[("pswpin", 5, 6), ("pgzerofill", 2, 4)]);
        assert_eq!(Count::between(&trace, &counted), count);
        let even = Trace { hot: 0, ..trace };
        assert_eq!(Count::between(&even, &counted), Count { all: 3, hot: 0 });
        assert_eq!(count.sample(&even), figures(expected[..1].iter().copied()));
    }
}
