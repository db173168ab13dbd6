//! Traces: the pages that a program touches, one after the other; the same each time.

use clap::ValueEnum;
use overspill_bench::contents::Random;
use serde::{Deserialize, Serialize};

/// Exponent of the distribution of Zipf: that of the Yahoo! Cloud Serving Benchmark.
const ZIPF_EXPONENT: f64 = 0.99;
/// Accesses for each page that fits, before misses begin to count and after: the first fill memory
/// several times over, and the more there are of the others, the less chance has a say.
const WARM_UP: u64 = 4;
const COUNTED: u64 = 12;
/// Hot accesses for each page of the scan.
const HOT_PER_SCANNED: u64 = 4;
/// What the scan goes over, in units of what fits.
const SCANNED: u64 = 4;

/// A pattern of accesses to more than fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Pattern {
    /// Twice the budget; the n-th of all pages by popularity comes 1/n^0.99 as often as the first;
    /// they lie scattered
    #[value(name = "zipf-2x")]
    Zipf2,
    /// The same over four times the budget
    #[value(name = "zipf-4x")]
    Zipf4,
    /// Half the budget touched at random all along, with one sequential pass over four times the
    /// budget in between
    HotScan,
    /// Twice the budget, at random, each page as often as any
    Uniform,
    /// 1.2 times the budget, in sequence, again and again
    Loop,
}

/// The accesses of a pattern.
#[derive(Debug)]
pub struct Trace {
    /// Page by page; pages are numbered from 0 on.
    pub accesses: Vec<u32>,
    /// One more than the largest number.
    pub pages: u32,
    /// Accesses before those whose misses count.
    pub warm_up: usize,
    /// Pages below this number are hot: all have been touched by the end of the warm-up. What else
    /// is touched after it is touched once. 0 where no pages are hot in this way.
    pub hot: u32,
}

impl Pattern {
    /// The trace for memory of so many pages.
    pub fn trace(self, fits: u32) -> Trace {
        // Each pattern has random numbers of its own.
        let mut random = Random::new(self as u64 + 1);
        match self {
            Pattern::Zipf2 => zipf(2 * fits, fits, &mut random),
            Pattern::Zipf4 => zipf(4 * fits, fits, &mut random),
            Pattern::HotScan => hot_scan(fits, &mut random),
            Pattern::Uniform => {
                let pages = 2 * fits;
                Trace::of(pages, fits, || random.below(pages.into()) as u32)
            }
            Pattern::Loop => {
                let pages = fits + fits / 5;
                let mut passes = (0..pages).cycle();
                Trace::of(pages, fits, || passes.next().expect("it begins again"))
            }
        }
    }
}

overspill_bench::named!(Pattern);

impl Trace {
    /// One without hot pages: all pages are filled, in sequence, before the accesses begin.
    fn of(pages: u32, fits: u32, access: impl FnMut() -> u32) -> Trace {
        let [warm_up, counted] = [WARM_UP, COUNTED].map(|n| (n * u64::from(fits)) as usize);
        let accesses =
            (0..pages).chain(std::iter::repeat_with(access).take(warm_up + counted)).collect();
        Trace { accesses, pages, warm_up: pages as usize + warm_up, hot: 0 }
    }
}

fn zipf(pages: u32, fits: u32, random: &mut Random) -> Trace {
    let mut total = 0.0;
    let popularity = |rank: u32| f64::from(rank + 1).powf(-ZIPF_EXPONENT);
    let up_to: Vec<f64> = (0..pages)
        .map(|rank| {
            total += popularity(rank);
            total
        })
        .collect();
    let places = random.shuffled(pages);
    Trace::of(pages, fits, || {
        let at = random.next() as f64 / u64::MAX as f64 * total;
        let rank = up_to.partition_point(|sum| *sum < at).min(places.len() - 1);
        places[rank]
    })
}

fn hot_scan(fits: u32, random: &mut Random) -> Trace {
    let (hot, scanned) = (fits / 2, SCANNED as u32 * fits);
    let mut accesses: Vec<u32> = (0..hot).collect();
    let mut hot_access = || random.below(hot.into()) as u32;
    accesses
        .extend(std::iter::repeat_with(&mut hot_access).take((WARM_UP * u64::from(hot)) as usize));
    let warm_up = accesses.len();
    for page in hot..hot + scanned {
        accesses.extend((0..HOT_PER_SCANNED).map(|_| hot_access()));
        accesses.push(page);
    }
    Trace { accesses, pages: hot + scanned, warm_up, hot }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(trace: &Trace) -> Vec<u32> {
        let mut counts = vec![0; trace.pages as usize];
        trace.accesses.iter().for_each(|page| counts[*page as usize] += 1);
        counts
    }

    #[test]
    fn traces_are_the_same_each_time_and_stay_within_their_pages() {
        for pattern in Pattern::value_variants() {
            let trace = pattern.trace(100);
            assert_eq!(trace.accesses, pattern.trace(100).accesses, "{pattern}");
            assert!(trace.accesses.iter().all(|page| *page < trace.pages), "{pattern}");
            assert!(trace.pages > 100, "{pattern}");
            assert!(0 < trace.warm_up && trace.warm_up < trace.accesses.len(), "{pattern}");
        }
    }

    #[test]
    fn the_popular_pages_of_zipf_have_their_share_and_lie_scattered() {
        let trace = Pattern::Zipf2.trace(1000);
        let mut counts: Vec<(u32, usize)> = counts(&trace).into_iter().zip(0..).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let weight = |ranks: u32| (1..=ranks).map(|rank| f64::from(rank).powf(-0.99)).sum::<f64>();
        let expected = weight(100) / weight(2000) * (trace.accesses.len() - 2000) as f64;
        // Each is filled once, too.
        let found: u32 = counts[..100].iter().map(|(count, _)| count - 1).sum();
        assert!((f64::from(found) / expected - 1.0).abs() < 0.05, "{found}, not {expected}");
        let low_half = counts[..100].iter().filter(|(_, page)| *page < 1000).count();
        assert!((30..70).contains(&low_half), "{low_half} of the first 100 are in the lower half");
    }

    #[test]
    fn the_scan_passes_once_while_the_hot_pages_are_touched() {
        let trace = Pattern::HotScan.trace(100);
        assert_eq!((trace.hot, trace.pages), (50, 450));
        let (before, after) = trace.accesses.split_at(trace.warm_up);
        assert!((0..50).all(|page| before.contains(&page)));
        let (fives, rest) = after.as_chunks::<5>();
        assert_eq!((fives.len(), rest.len()), (400, 0));
        for ([hot @ .., scanned], page) in fives.iter().zip(50..) {
            assert!(*scanned == page && hot.iter().all(|hot| *hot < 50), "{page}");
        }
    }

    #[test]
    fn the_loop_and_the_even_pattern_touch_all_of_their_pages() {
        // 16,000 accesses are 13 1/3 passes; each page is filled once, too.
        let passes = counts(&Pattern::Loop.trace(1000));
        assert_eq!(passes, [vec![15; 400], vec![14; 800]].concat());
        let even = counts(&Pattern::Uniform.trace(1000));
        assert_eq!(even.len(), 2000);
        assert!(even[..1000].iter().sum::<u32>().abs_diff(1_000 + 8_000) < 400);
    }
}
