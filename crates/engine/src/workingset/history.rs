//! How many pages had left memory a second ago, to tell which of those that come back left since.
//!
//! A ring of samples, an eighth of a second apart, taken by whoever comes by: the background
//! thread, which wakes ten times a second, and faults on pages that were stored. No lock: a look
//! during a sample is off by that sample.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

/// Samples a second.
const TICKS: u64 = 8;

/// When pages left memory: the samples of a second, and the one that is being taken.
#[derive(Debug)]
pub(crate) struct EvictionHistory {
    began: Instant,
    /// The latest sample's.
    tick: AtomicU64,
    counts: [AtomicU64; TICKS as usize + 1],
}

impl Default for EvictionHistory {
    fn default() -> EvictionHistory {
        EvictionHistory {
            began: Instant::now(),
            tick: AtomicU64::new(0),
            counts: Default::default(),
        }
    }
}

impl EvictionHistory {
    /// Takes a sample if it is time to: so many have left by now.
    pub fn sample(&self, left: u64) {
        self.sample_at(self.began.elapsed(), left);
    }

    /// How many had left a second ago, to an eighth of it, and have left now.
    pub fn a_second_ago(&self, left: u64) -> u64 {
        self.a_second_before(self.began.elapsed(), left)
    }

    fn sample_at(&self, now: Duration, left: u64) -> u64 {
        let tick = now.as_millis() as u64 * TICKS / 1000;
        let last = self.tick.load(Acquire);
        // Only one thread takes it.
        if tick > last && self.tick.compare_exchange(last, tick, Release, Relaxed).is_ok() {
            // Where nobody came by it is taken as late as now: what left meanwhile is not known to
            // be history.
            let ring = self.counts.len() as u64;
            (last.max(tick.saturating_sub(ring)) + 1..=tick).for_each(|tick| {
                self.counts[(tick % ring) as usize].store(left, Relaxed);
            });
        }
        tick.max(last)
    }

    fn a_second_before(&self, now: Duration, left: u64) -> u64 {
        let tick = self.sample_at(now, left);
        match tick.checked_sub(TICKS) {
            Some(then) => self.counts[(then % self.counts.len() as u64) as usize].load(Relaxed),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_left_within_a_second_is_told_from_what_left_before() {
        let history = EvictionHistory::default();
        // One page leaves each millisecond.
        for now in (0..3000).step_by(10) {
            history.sample_at(ms(now), now);
            let then = history.a_second_before(ms(now), now);
            assert!(
                now.saturating_sub(1125) <= then.max(1) && then <= now.saturating_sub(875),
                "{then} at {now}"
            );
        }
    }

    #[test]
    fn after_a_pause_nothing_is_recent() {
        let history = EvictionHistory::default();
        history.sample_at(ms(500), 10);
        assert_eq!(history.a_second_before(ms(9000), 70), 70);
        // What left in a shorter pause neither; and samples of long ago do not come back.
        assert_eq!(history.a_second_before(ms(9900), 80), 70);
        assert_eq!(history.a_second_before(ms(10_130), 90), 80);
        assert_eq!(history.a_second_before(ms(11_260), 95), 95);
    }

    #[test]
    fn a_clock_that_is_read_late_does_no_harm() {
        let history = EvictionHistory::default();
        history.sample_at(ms(2000), 50);
        assert_eq!(history.a_second_before(ms(1900), 49), 50);
    }
}
