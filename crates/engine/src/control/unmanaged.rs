//! Memory of the process that the engine does not manage, and the job cannot get back: stacks, data
//! of libraries, shared memory, the engine's own tables.
//!
//! It is what the kernel counts for the process beyond the frames in use. Frames of pages that were
//! never written have no memory behind them, so the difference is too low at times: what was found
//! is only by and by taken for less. The exact figure takes a millisecond even in a small process;
//! so the kernel's counters are looked at first, whether it can have changed. Measured in processes
//! of a job: the budget of a library's pool is for the pool alone.
//!
//! What processes share since a fork is divided among them, so that it counts once. So it becomes
//! more in one that does nothing, as others end or write to it: one at rest is looked at again, the
//! longer apart the longer that stays as it is.
//!
//! What kinds of memory it is takes as long again, and longer with many mappings. So that is asked
//! only where somebody will want to know: in the process that has most of it, or much, once all
//! processes of the job have more than is tolerated, and again when it has become a
//! quarter more. As each measurement it takes a hundredth of the time at most.

mod measure;

use std::time::{Duration, Instant};

/// How often it is measured, and at most what part of the time.
const EVERY: Duration = Duration::from_millis(50);
/// How often exactly where the rough figure stays where it is, which is for so many pages.
const EXACT_EVERY: Duration = Duration::from_secs(1);
const NEAR: u64 = 32;
const TIME_PART: u32 = 100;
/// What part of the way down a lower figure is followed.
const DOWN: u64 = 4;
/// At which look at a process at rest it has given back its buffers.
const SETTLED: u32 = 3;
/// How long after that it is measured once more.
const CONFIRM_AFTER: Duration = Duration::from_millis(250);
/// Time between two looks at one at rest which has memory that others share, at least and at most.
const AGAIN_LEAST: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// When it is measured next.
#[derive(Default, Debug)]
pub struct Unmanaged {
    next: Option<Instant>,
    /// Time of processors that the program had used by then.
    worked: Duration,
    exact: Option<Exact>,
    /// Looks since the process is at rest; when there is to be a look at what it shares, and how
    /// long after the one before; how many processes the job had.
    rested: u32,
    again: Option<Instant>,
    /// Whether it was measured since the process has settled, and given back the last of what it
    /// needed for that.
    confirmed: bool,
    pause: Duration,
    members: usize,
    /// Pages that there were when it was last asked what they are.
    sorted: u64,
}

/// What was found last.
#[derive(Clone, Copy, Debug)]
struct Exact {
    at: Instant,
    pages: u64,
    /// Of those, shared memory.
    shared: u64,
    /// Pages beside them that are managed.
    managed: u64,
    /// What the rough figure was then.
    rough: u64,
}

impl Exact {
    /// Whether that is how it still is, by the rough figure of now.
    fn holds(&self, rough: u64) -> bool {
        rough.abs_diff(self.rough) < NEAR && self.at.elapsed() < EXACT_EVERY
    }
}

impl Unmanaged {
    /// Of the child of a fork, which has its parent's figure for a while.
    pub fn of_child(now: Instant) -> Unmanaged {
        Unmanaged { next: Some(now + EVERY), ..Unmanaged::default() }
    }

    /// Whether to measure, when the program has used so much time of processors: what has not run
    /// has no more memory than before.
    pub fn is_due(&mut self, worked: Duration) -> bool {
        let is_due = worked != self.worked && self.next.is_none_or(|next| next <= Instant::now());
        if is_due {
            self.worked = worked;
        }
        is_due
    }

    /// Whether the process has come to rest, and has just what it will have from now on.
    pub fn has_settled(&mut self, is_at_rest: bool) -> bool {
        self.rested = if is_at_rest { self.rested.saturating_add(1) } else { 0 };
        self.confirmed &= self.rested != SETTLED;
        (self.again, self.pause) = match self.rested {
            SETTLED => (Some(Instant::now() + CONFIRM_AFTER), AGAIN_LEAST),
            ..SETTLED => (None, AGAIN_LEAST),
            _ => (self.again, self.pause),
        };
        self.rested == SETTLED
    }

    /// Whether it has become less since it was measured, if so many pages are managed now: the
    /// process has settled just before, or pages of it have left since.
    fn is_less(&mut self, managed: u64) -> bool {
        let was_confirmed = std::mem::replace(&mut self.confirmed, true);
        !was_confirmed || self.exact.is_none_or(|exact| exact.managed != managed)
    }

    /// It changes: the next look is soon.
    fn look_soon(&mut self) {
        let soon = Instant::now() + AGAIN_LEAST;
        self.pause = AGAIN_LEAST;
        self.again = self.again.map(|again| again.min(soon));
    }

    /// Whether to look at what a process that has settled shares, in a job of so many: soon after
    /// some of them have ended.
    pub fn is_due_again(&mut self, members: usize) -> bool {
        let Some(again) = self.again else { return false };
        let now = Instant::now();
        if members < self.members {
            self.look_soon();
        }
        self.members = members;
        let is_due = again <= now;
        if is_due {
            self.pause = (self.pause * 2).min(AGAIN_MOST);
            self.again = Some(now + self.pause);
        }
        is_due
    }
}

/// What it is taken for after it was measured to be `found`.
fn follow(before: u64, found: u64) -> u64 {
    if found < before { before - (before - found).div_ceil(DOWN) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_counts_at_once_and_less_by_and_by() {
        assert_eq!((follow(100, 900), follow(900, 100), follow(101, 100)), (900, 700, 100));
    }

    #[test]
    fn a_rough_figure_that_stays_saves_an_exact_one_for_a_second() {
        let mut exact = Exact { at: Instant::now(), pages: 700, shared: 0, managed: 0, rough: 500 };
        assert!(exact.holds(500) && exact.holds(500 - NEAR + 1) && !exact.holds(500 + NEAR));
        exact.at -= EXACT_EVERY;
        assert!(!exact.holds(500));
    }

    #[test]
    fn a_process_that_does_nothing_is_not_measured_again() {
        let mut unmanaged = Unmanaged::default();
        let worked = Duration::from_millis(3);
        assert!(unmanaged.is_due(worked) && !unmanaged.is_due(worked));
        assert!(unmanaged.is_due(worked * 2));
        unmanaged.next = Some(Instant::now() + EVERY);
        assert!(!unmanaged.is_due(worked * 3));
    }

    #[test]
    fn one_that_comes_to_rest_is_measured_once_more() {
        let mut unmanaged = Unmanaged::default();
        let mut looks = |is_at_rest: bool, count: u32| {
            (0..count).filter(|_| unmanaged.has_settled(is_at_rest)).count()
        };
        assert_eq!((looks(true, 20), looks(false, 20)), (1, 0));
        assert_eq!((looks(true, SETTLED - 1), looks(false, 1), looks(true, 20)), (0, 0, 1));
    }

    #[test]
    fn what_has_settled_is_measured_until_it_has_what_it_had() {
        let exact = Exact { at: Instant::now(), pages: 700, shared: 0, managed: 9, rough: 500 };
        let mut unmanaged = Unmanaged { exact: Some(exact), ..Unmanaged::default() };
        (0..SETTLED).for_each(|_| _ = unmanaged.has_settled(true));
        assert_eq!(
            [9, 9, 4, 9].map(|managed| unmanaged.is_less(managed)),
            [true, false, true, false]
        );
        unmanaged.has_settled(false);
        (0..SETTLED).for_each(|_| _ = unmanaged.has_settled(true));
        assert!(unmanaged.is_less(9));
    }

    #[test]
    fn what_one_at_rest_shares_is_looked_at_again_and_sooner_when_others_end() {
        let mut unmanaged = Unmanaged::default();
        assert!(!unmanaged.is_due_again(9), "it works");
        let settles = (1..=SETTLED).filter(|_| unmanaged.has_settled(true)).count();
        assert_eq!(settles, 1);
        assert!(!unmanaged.is_due_again(9));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            unmanaged.again = Some(Instant::now());
            assert!(unmanaged.is_due_again(9) && !unmanaged.is_due_again(9));
            pauses.push(unmanaged.pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        let is_soon = |unmanaged: &Unmanaged| {
            unmanaged.again.is_some_and(|again| again <= Instant::now() + AGAIN_LEAST)
        };
        assert!(!unmanaged.is_due_again(10) && !is_soon(&unmanaged), "one more");
        assert!(!unmanaged.is_due_again(8) && is_soon(&unmanaged), "two less");
        unmanaged.has_settled(false);
        assert!(unmanaged.again.is_none());
    }
}
