//! Whether the handler thread polls for the next fault, or sleeps.
//!
//! A processor without work is halted. To wake it takes an interrupt and what the machine needs to
//! leave its sleep: more than to serve a fault from the compressed tier, in a virtual machine
//! several times as much. So where faults follow one another closely the handler polls for about as
//! long as a sleep and its end would cost, which is at most twice the cost of the better choice
//! (Karlin, Li, Manasse, Owicki, "Empirical studies of competitive spinning", 1991).
//!
//! 1. It polls while the next fault has come soon, on average, and every process of the job that is
//!    at work can have a processor for its program and one for its handler.
//! 2. Where others take its processor away meanwhile it sleeps for a while.
//!
//! Lock: none; the handler has it.

use std::time::{Duration, Instant};

/// How long it polls, and how soon the next fault must come on average: what a sleep costs in a
/// virtual machine, for both who sleeps and who wakes it.
const MOST: Duration = Duration::from_micros(60);
/// How long it is at least between two looks where another thread had the processor.
const PREEMPTED: Duration = Duration::from_micros(50);
/// How many faults it sleeps for after that.
const SLEEPS: u32 = 32;
/// Weight of what was before in the average.
const WEIGHT: u32 = 8;

/// What the handler knows of how faults come.
#[derive(Debug)]
pub struct Polling {
    /// How many processes may be at work, for each to have two processors.
    at_work_most: usize,
    /// How long the next fault takes to come, on average.
    gap: Duration,
    /// So many are slept for, as others want the processor.
    sleeps: u32,
}

impl Polling {
    /// Of a handler that has seen no faults, on so many processors. With none it only sleeps.
    pub fn new(processors: usize) -> Polling {
        Polling { at_work_most: processors / 2, gap: MOST * 2, sleeps: 0 }
    }

    /// Polls, if it is worth it where so many processes are `at_work`, with `is_there`, which says
    /// whether there is a fault; whether there is one.
    pub fn poll(&mut self, at_work: usize, mut is_there: impl FnMut() -> bool) -> bool {
        if self.gap >= MOST || at_work > self.at_work_most {
            return false;
        }
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return false;
        }
        let since = Instant::now();
        let mut before = since;
        loop {
            let there = is_there();
            let now = Instant::now();
            if now - before > PREEMPTED {
                self.sleeps = SLEEPS;
            }
            if there || now - since > MOST {
                return there;
            }
            before = now;
        }
    }

    /// A fault has come after so long.
    pub fn note(&mut self, gap: Duration) {
        self.gap = (self.gap * (WEIGHT - 1) + gap.min(MOST * 4)) / WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(5);

    fn after(faults: u32, gap: Duration, mut polling: Polling) -> Polling {
        (0..faults).for_each(|_| polling.note(gap));
        polling
    }

    #[test]
    fn it_polls_where_faults_follow_one_another_closely() {
        let mut polling = Polling::new(4);
        assert!(!polling.poll(1, || panic!("there was no fault yet")));
        polling = after(16, SOON, polling);
        let mut looks = 0;
        let comes = || {
            looks += 1;
            looks == 2
        };
        assert!(polling.poll(2, comes));
        let since = Instant::now();
        assert!(!polling.poll(2, || false), "no longer than a sleep costs");
        assert!(since.elapsed() >= MOST);
        polling = after(16, Duration::from_secs(1), polling);
        assert!(!polling.poll(1, || panic!("faults are rare")));
    }

    #[test]
    fn it_sleeps_where_others_want_the_processor() {
        let mut polling = after(16, SOON, Polling::new(4));
        assert!(!polling.poll(3, || panic!("three processes need six processors")));
        let after_others = || {
            std::thread::sleep(PREEMPTED);
            true
        };
        assert!(polling.poll(2, after_others));
        for _ in 0..SLEEPS {
            assert!(!polling.poll(2, || panic!("others had the processor")));
        }
        assert!(polling.poll(2, || true), "it tries again");
        let mut off = after(16, SOON, Polling::new(0));
        assert!(!off.poll(1, || panic!("it is off")));
    }
}
