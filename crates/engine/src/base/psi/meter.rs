//! What is counted of threads or processes that wait, and what is made of it: the time in which any
//! did, the part of it in which none got on, and their averages over some seconds.
//!
//! A process has these for its threads, and a job for its processes.

use crate::stats::{AVG_SECONDS, Pressure, Stall};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Period of the averages, as the kernel's.
const AVERAGED: Duration = Duration::from_secs(2);
/// How often the background thread publishes, at most: it reads the clocks of all engine threads
/// for it.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(50);

/// How many threads are stalled, and since when at least one is: a word, with the time in
/// microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Stalled(u64);

impl Stalled {
    /// Threads take 16 bits, the time 48: nine years.
    const THREADS: u64 = (1 << 16) - 1;

    fn new(threads: u64, since_us: u64) -> Stalled {
        Stalled(since_us << 16 | threads)
    }

    fn threads(self) -> u64 {
        self.0 & Stalled::THREADS
    }

    fn since_us(self) -> u64 {
        self.0 >> 16
    }

    /// One thread more.
    fn enter(self, now_us: u64) -> Stalled {
        let since_us = if self.threads() == 0 { now_us } else { self.since_us() };
        Stalled::new(self.threads() + 1, since_us)
    }

    /// One thread less; and the time that has passed, once none is left.
    fn leave(self, now_us: u64) -> (Stalled, u64) {
        match self.threads() {
            // None: it entered in the parent of a fork.
            0 => (self, 0),
            1 => (Stalled::default(), now_us.saturating_sub(self.since_us())),
            threads => (Stalled::new(threads - 1, self.since_us()), 0),
        }
    }

    /// The time that has passed so far, if any thread is stalled, which is counted anew from here
    /// on.
    fn flush(self, now_us: u64) -> (Stalled, u64) {
        match self.threads() {
            0 => (self, 0),
            threads => {
                let since_us = self.since_us().max(now_us);
                (Stalled::new(threads, since_us), since_us - self.since_us())
            }
        }
    }
}

/// e to the power of minus `age`, to seven digits: the limit of `(1 - age / n)^n`, by squaring. The
/// C library has it in a library of its own, which would be loaded into every process for this.
fn decayed(age: f64) -> f64 {
    const SQUARINGS: i32 = 24;
    let step = 1.0 - age / f64::from(1 << SQUARINGS);
    (0..SQUARINGS).fold(step.max(0.0), |power, _| power * power)
}

/// A word and a total that threads or processes share: how many are stalled, and the time in which
/// any was.
#[derive(Clone, Copy, Debug)]
pub struct Count<'a> {
    pub word: &'a AtomicU64,
    pub some_us: &'a AtomicU64,
}

impl Count<'_> {
    /// One more; how many there were.
    pub fn enter(self, now_us: u64) -> u64 {
        self.change(|word| (word.enter(now_us), 0))
    }

    /// One less; how many there were.
    pub fn leave(self, now_us: u64) -> u64 {
        self.change(|word| word.leave(now_us))
    }

    /// Counts the time that has passed so far.
    pub fn flush(self, now_us: u64) {
        self.change(|word| word.flush(now_us));
    }

    /// The same, and nobody is stalled any more.
    pub fn forget(self, now_us: u64) {
        self.change(|word| (Stalled::default(), word.flush(now_us).1));
    }

    /// The time in which any was, up to now.
    pub fn total_us(self, now_us: u64) -> u64 {
        let (_, passed_us) = Stalled(self.word.load(Relaxed)).flush(now_us);
        self.some_us.load(Relaxed) + passed_us
    }

    fn change(self, change: impl Fn(Stalled) -> (Stalled, u64)) -> u64 {
        let next = |word| Some(change(Stalled(word)).0.0);
        let old = self.word.fetch_update(Relaxed, Relaxed, next);
        let old = Stalled(old.expect("it is always updated"));
        let (_, passed_us) = change(old);
        if passed_us > 0 {
            self.some_us.fetch_add(passed_us, Relaxed);
        }
        old.threads()
    }
}

/// Shares of time, averaged as the kernel does: in an average over some seconds, what is as old as
/// that counts 1/e.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Averages([f64; AVG_SECONDS.len()]);

impl Averages {
    /// Another period, of which a part was stalled.
    fn add(&mut self, period: Duration, stalled_us: u64) {
        let share = (stalled_us as f64 / 1e6 / period.as_secs_f64()).min(1.0);
        for (average, seconds) in self.0.iter_mut().zip(AVG_SECONDS) {
            let kept = decayed(period.as_secs_f64() / seconds as f64);
            *average = *average * kept + share * (1.0 - kept);
        }
    }

    fn stall(&self, total_us: u64) -> Stall {
        Stall { avg: self.0.map(|share| (share * 10_000.0).round() as u64), total_us }
    }
}

/// What was published last, and of what.
#[derive(Debug, Default)]
pub struct Meter {
    /// Up to when, and what the totals were then.
    now: Duration,
    some_us: u64,
    full_us: u64,
    /// Processor time of the program outside of the engine, by then.
    worked: Duration,
    /// Up to when the averages go, and what the totals were then.
    averaged: Duration,
    averaged_some_us: u64,
    averaged_full_us: u64,
    some: Averages,
    full: Averages,
}

impl Meter {
    /// As if everything up to `now` had been published, and nothing of it had been waited for.
    pub fn since(now: Duration) -> Meter {
        Meter { now, averaged: now, ..Meter::default() }
    }

    /// Up to when it goes.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Processor time of the program outside of the engine, by then.
    pub fn worked(&self) -> Duration {
        self.worked
    }

    /// Goes on to `now`, at which some thread had been stalled for `some_us` in all and the program
    /// had `worked`.
    ///
    /// What a job waits is kept by others too: whatever they wrote, nothing is negative.
    pub fn advance(&mut self, now: Duration, some_us: u64, worked: Duration) {
        let worked_now = worked.saturating_sub(self.worked);
        let period = now.saturating_sub(self.now);
        let left = period.saturating_sub(worked_now).as_micros() as u64;
        let full_us = left.min(some_us.saturating_sub(self.some_us));
        self.full_us = self.full_us.saturating_add(full_us);
        (self.now, self.some_us, self.worked) = (now, some_us, worked);
        let period = now.saturating_sub(self.averaged);
        if period >= AVERAGED {
            self.some.add(period, some_us.saturating_sub(self.averaged_some_us));
            self.full.add(period, self.full_us.saturating_sub(self.averaged_full_us));
            (self.averaged, self.averaged_some_us, self.averaged_full_us) =
                (now, some_us, self.full_us);
        }
    }

    /// The figures so far.
    pub fn pressure(&self) -> Pressure {
        Pressure { some: self.some.stall(self.some_us), full: self.full.stall(self.full_us) }
    }

    /// Cells that it takes up, where processes share it.
    pub const CELLS: usize = 13;

    /// As another process has left it.
    pub fn load(cells: &[AtomicU64]) -> Meter {
        let cell = |at: usize| cells[at].load(Relaxed);
        let averages = |at: usize| Averages([0, 1, 2].map(|i| f64::from_bits(cell(at + i))));
        Meter {
            now: Duration::from_micros(cell(0)),
            some_us: cell(1),
            full_us: cell(2),
            worked: Duration::from_nanos(cell(3)),
            averaged: Duration::from_micros(cell(4)),
            averaged_some_us: cell(5),
            averaged_full_us: cell(6),
            some: averages(7),
            full: averages(10),
        }
    }

    /// For other processes to go on from.
    pub fn store(&self, cells: &[AtomicU64]) {
        let us = |time: Duration| time.as_micros() as u64;
        let figures = [
            us(self.now),
            self.some_us,
            self.full_us,
            self.worked.as_nanos() as u64,
            us(self.averaged),
            self.averaged_some_us,
            self.averaged_full_us,
        ];
        let averages = self.some.0.into_iter().chain(self.full.0).map(f64::to_bits);
        let figures = figures.into_iter().chain(averages);
        cells.iter().zip(figures).for_each(|(cell, figure)| cell.store(figure, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter,
        Leave,
        Flush,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop::sample::select(vec![Step::Enter, Step::Leave, Step::Flush])
    }

    proptest! {
        /// Against a model that looks at every microsecond.
        #[test]
        fn some_is_the_time_in_which_anybody_waits(
            steps in prop::collection::vec((0..50u64, step()), 0..60),
        ) {
            let (mut now, mut word, mut total, mut expected) = (1_000u64, Stalled::default(), 0, 0);
            for (passes, step) in steps {
                expected += if word.threads() > 0 { passes } else { 0 };
                now += passes;
                let passed = match step {
                    Step::Enter => {
                        word = word.enter(now);
                        0
                    }
                    Step::Leave => {
                        let (next, passed) = word.leave(now);
                        word = next;
                        passed
                    }
                    Step::Flush => {
                        let (next, passed) = word.flush(now);
                        word = next;
                        passed
                    }
                };
                total += passed;
            }
            prop_assert_eq!(total + word.flush(now).1, expected);
        }
    }

    #[test]
    fn clocks_that_are_read_out_of_order_take_nothing_away() {
        let word = Stalled::default().enter(1_000);
        assert_eq!(word.leave(990), (Stalled::default(), 0));
        let (word, passed) = word.flush(990);
        assert_eq!((word, passed), (Stalled::new(1, 1_000), 0));
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn averages_follow_as_those_of_the_kernel() {
        let mut averages = Averages::default();
        (0..5).for_each(|_| averages.add(ms(2_000), 2_000_000));
        // After 10 s of nothing else: 1 - 1/e, 1 - e^(-1/6), 1 - e^(-1/30).
        assert_eq!(averages.stall(7), Stall { avg: [6321, 1535, 328], total_us: 7 });
        // A period that is longer than it should be, because nobody looked, counts as several.
        let mut long = Averages::default();
        long.add(ms(10_000), 10_000_000);
        assert_eq!(long.stall(7), averages.stall(7));
        (0..300).for_each(|_| averages.add(ms(2_000), 0));
        assert_eq!(averages.stall(0).avg, [0, 0, 44]);
        // More than all of the time cannot be.
        averages.add(ms(2_000), 9_000_000);
        assert!(averages.0.iter().all(|share| *share <= 1.0));
    }

    #[test]
    fn full_is_what_work_leaves_of_some() {
        let mut meter = Meter::default();
        let mut advance = |now: u64, some: u64, worked: u64| {
            meter.advance(ms(now), some * 1000, ms(worked));
            (meter.some_us / 1000, meter.full_us / 1000)
        };
        // One thread that waits for 60 ms and works for 40.
        assert_eq!(advance(100, 60, 40), (60, 60));
        // It waits for 60, works for 20 and sleeps.
        assert_eq!(advance(200, 120, 60), (120, 120));
        // One waits all the time, and another works all the time; then for three quarters of it.
        assert_eq!(advance(300, 220, 160), (220, 120));
        assert_eq!(advance(400, 320, 235), (320, 145));
        // Two work at once.
        assert_eq!(advance(500, 330, 435), (330, 145));
    }

    #[test]
    fn a_meter_averages_every_two_seconds() {
        let mut meter = Meter::default();
        for tick in 1..=100 {
            meter.advance(ms(100 * tick), 50_000 * tick, ms(0));
        }
        // Half of 10 s, all of it without work.
        let pressure = meter.pressure();
        assert_eq!((pressure.some, pressure.full), (pressure.full, pressure.some));
        assert_eq!(pressure.some, Stall { avg: [3161, 768, 164], total_us: 5_000_000 });
    }
}
