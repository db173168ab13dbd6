//! What ways in and out cost on this machine, just now: moving averages, and the choice between two
//! ways.
//!
//! A flush of other cores' translations costs nothing while the process runs on one core and 20 us
//! when it runs on two (the table is in ARCHITECTURE.md), so the cheaper way changes while a
//! program runs. Each way is tried now and then to keep its average true.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Two ways to do the same thing, with the average cost of each.
#[derive(Debug, Default)]
pub struct Choice {
    averages: [AtomicU64; 2],
    calls: AtomicU32,
}

/// The dearer way is tried once in so many calls: 1.5 % of calls pay for knowing when the tide
/// turns.
const EXPLORE: u32 = 64;
/// Weight of a new sample, as a shift: 1/8.
const WEIGHT: u32 = 3;

impl Choice {
    /// The way to take now: 0 or 1.
    pub fn pick(&self) -> usize {
        let [a, b] = [0, 1].map(|way| self.average_ns(way));
        let better = if a <= b { 0 } else { 1 };
        let call = self.calls.fetch_add(1, Relaxed);
        if call.is_multiple_of(EXPLORE) { 1 - better } else { better }
    }

    /// Records that way `way` took `ns` for `pages` pages.
    pub fn record(&self, way: usize, ns: u64, pages: usize) {
        if pages == 0 {
            return;
        }
        let sample = ns / pages as u64;
        let before = self.average_ns(way);
        let after = if before == 0 {
            sample.max(1)
        } else {
            before - (before >> WEIGHT) + (sample >> WEIGHT)
        };
        self.averages[way].store(after, Relaxed);
    }

    /// Average nanoseconds a page; 0 when never tried.
    fn average_ns(&self, way: usize) -> u64 {
        self.averages[way].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_tried() {
        let choice = Choice::default();
        (0..20).for_each(|_| choice.record(0, 1000, 1));
        (0..20).for_each(|_| choice.record(1, 6400, 64));
        let picks: Vec<_> = (0..1280).map(|_| choice.pick()).collect();
        assert_eq!(picks.iter().filter(|way| **way == 0).count(), 20);
        (0..200).for_each(|_| choice.record(1, 128_000, 64));
        assert_eq!((0..640).map(|_| choice.pick()).filter(|way| *way == 1).count(), 10);
    }
}
