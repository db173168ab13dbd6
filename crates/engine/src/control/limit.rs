//! The limit of the budget: what it is to be, and how a lower one is reached.
//!
//! A process may use its [`BudgetFraction`] of the job's budget: all of it, or what forks have left
//! of it. That is what its limit *aims* at. A higher aim is in force at once. A lower one is
//! *pressed* towards: the limit follows the pages in use down, step by step while they are
//! reclaimed, and is never below them, so that reclaim always has its reserve and no fault fails
//! because of pages that nobody has taken yet. What cannot be brought down (nothing takes the
//! pages: no swap, a full disk, locked memory) stops the pressing: the process gets room to go on,
//! and its limit follows down only what it gives up by itself.
//!
//! The background thread presses, whatever the baseline `background` says: that is about reclaim
//! ahead of need.
//!
//! Lock: one over the state ([`Rank::Limits`]), never held at a fork: the background thread takes
//! it inside the gate of reclaim, threads of the program as part of a fork or inside the gate of
//! mapping calls. Over it, the limit is set.

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::control::Control;
use crate::memory::MEMORY_MIN;
use crate::stats::Counter;
use crate::units::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long pressing goes on without any progress, and never more than half of what a fault waits
/// for room.
const PATIENCE: Duration = Duration::from_secs(1);
/// And how many rounds of reclaim have freed nothing by then: on a busy machine there may be none
/// for a second.
const FRUITLESS_ROUNDS: u64 = 8;

/// A part of the job's budget. Forks divide it, the end of a child puts it together again, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BudgetFraction(u64);

impl BudgetFraction {
    const BITS: u32 = 62;
    /// The whole budget.
    pub const WHOLE: BudgetFraction = BudgetFraction(1 << BudgetFraction::BITS);

    /// Pages of a job's budget of `job` pages; never less than a pool needs to run.
    fn of(self, job: u64) -> u64 {
        let pages = (u128::from(job) * u128::from(self.0)) >> BudgetFraction::BITS;
        (pages as u64).max(MEMORY_MIN.pages())
    }
}

/// Where pressing stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Press {
    /// The limit is what it is to be.
    Reached,
    /// It comes down as pages are reclaimed.
    Going,
    /// Nothing more can be reclaimed.
    Stuck,
}

#[derive(Debug)]
struct LimitState {
    /// The job's budget in pages.
    job: u64,
    /// This process's part of it at first, and without what its children have.
    granted: BudgetFraction,
    fraction: BudgetFraction,
    /// What the limit is to be, in pages.
    aim: u64,
    /// The limit that was in force before it was to be lower: enough for the process to go on.
    ceiling: u64,
    /// Fewest pages in use since pressing began, and when that was.
    best: u64,
    since: Instant,
    /// Rounds of reclaim that had freed nothing by then.
    fruitless: u64,
}

/// The limit in force, and the one to come.
#[derive(Debug)]
pub(crate) struct Limits {
    state: RankedMutex<LimitState>,
    pressed: AtomicBool,
    /// Number of the job's request that this process follows.
    request: AtomicU32,
}

impl Limits {
    /// For a process with the whole budget of `job` pages, which is in force.
    pub fn new(job: u64, request: u32) -> Limits {
        let state = LimitState {
            job,
            granted: BudgetFraction::WHOLE,
            fraction: BudgetFraction::WHOLE,
            aim: job,
            ceiling: job,
            best: u64::MAX,
            since: Instant::now(),
            fruitless: 0,
        };
        Limits {
            state: RankedMutex::new(Rank::Limits, state),
            pressed: AtomicBool::new(false),
            request: AtomicU32::new(request),
        }
    }

    /// Whether pages are to be reclaimed to reach a lower limit.
    pub fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// Tries again what seemed out of reach.
    pub fn press_again(&self) {
        let mut state = lock(&self.state);
        (state.best, state.since) = (u64::MAX, Instant::now());
        self.pressed.store(true, Relaxed);
    }
}

impl Control {
    /// Changes the budget of the job for this process.
    pub(crate) fn set_job_budget(&self, pages: u64) {
        let mut state = lock(&self.limits.state);
        state.job = pages;
        self.stats.add(Counter::BudgetChanges, 1);
        self.aim(&mut state);
        drop(state);
        self.base.wake.background.wake();
    }

    /// Does what the job's table asks for, if that is new.
    pub(crate) fn follow_job(&self) {
        let Some(job) = self.job else { return };
        let request = job.budget();
        if request.number != self.limits.request.load(Relaxed) {
            self.limits.request.store(request.number, Relaxed);
            self.set_job_budget(request.memory.max(MEMORY_MIN).pages());
        }
        // Said each time: a statistics file that a fork or an exec made anew does not know it.
        self.stats.set_answered(request.number);
    }

    /// Halves this process's fraction and returns the other half, for a child.
    /// [`Control::press_limit`] gets there.
    pub(crate) fn lend_half(&self) -> BudgetFraction {
        let mut state = lock(&self.limits.state);
        let half = BudgetFraction(state.fraction.0 / 2);
        state.fraction.0 -= half.0;
        self.aim(&mut state);
        half
    }

    /// Takes back what a child had.
    pub(crate) fn take_back(&self, fraction: BudgetFraction) {
        let mut state = lock(&self.limits.state);
        state.fraction.0 += fraction.0;
        self.aim(&mut state);
    }

    /// In the child of a fork: its fraction is all that it has.
    pub(crate) fn begin_with(&self, fraction: BudgetFraction) {
        let mut state = lock(&self.limits.state);
        (state.granted, state.fraction) = (fraction, fraction);
        self.aim(&mut state);
        self.stats.set_answered(self.limits.request.load(Relaxed));
    }

    fn aim(&self, state: &mut LimitState) {
        let limit = self.memory.budget().limit();
        if !self.limits.is_pressed() || state.ceiling < limit {
            state.ceiling = limit;
        }
        state.aim = state.fraction.of(state.job);
        (state.best, state.since) = (u64::MAX, Instant::now());
        self.limits.pressed.store(state.aim < limit, Relaxed);
        self.stats.set_stuck(false);
        // Frames first: a limit that rises above them would have faults reclaim.
        let granted = state.granted.of(state.job);
        if granted > self.memory.arena_fits.load(Relaxed) {
            self.memory.resize_arena(granted);
        }
        if state.aim > limit {
            self.swap.set_limit(state.aim);
        }
        self.stats.set(Counter::BudgetBytes, Bytes::from_pages(state.granted.of(state.job)).0);
        self.stats.set_target(Bytes::from_pages(state.aim));
    }

    /// Makes the arena fit this process's part of the job's budget, what its children have of it
    /// included.
    pub(crate) fn fit_arena(&self) {
        let state = lock(&self.limits.state);
        let granted = state.granted.of(state.job);
        if granted != self.memory.arena_fits.load(Relaxed) {
            self.memory.resize_arena(granted);
        }
        drop(state);
        self.reclaim.empty_isolated();
        // Under the lock: a budget that grows would open what is being closed.
        let state = lock(&self.limits.state);
        self.memory.give_up_surplus();
        drop(state);
    }

    /// Brings the limit as near to its aim as the pages in use allow now.
    pub(crate) fn press_limit(&self) -> Press {
        let mut state = lock(&self.limits.state);
        let (limit, used) = (self.memory.budget().limit(), self.memory.budget().used());
        if limit <= state.aim || used <= state.aim {
            if limit != state.aim {
                self.swap.set_limit(state.aim);
            }
            self.limits.pressed.store(false, Relaxed);
            self.stats.set_stuck(false);
            return Press::Reached;
        }
        // What a process needs that can give nothing up: above what it uses, the reserve and both
        // watermarks.
        let room = (used + used / 8 + 256).max(state.aim);
        if !self.limits.is_pressed() {
            if room < limit {
                self.swap.set_limit(room);
            }
            return Press::Stuck;
        }
        let fruitless = self.children.fruitless.load(Relaxed);
        let is_patient = || state.since.elapsed() <= PATIENCE.min(self.settings.oom_wait / 2);
        if used < state.best {
            (state.best, state.since, state.fruitless) = (used, Instant::now(), fruitless);
        } else if fruitless.wrapping_sub(state.fruitless) >= FRUITLESS_ROUNDS && !is_patient() {
            self.limits.pressed.store(false, Relaxed);
            self.stats.set_stuck(true);
            self.swap.set_limit(room.min(state.ceiling).max(limit));
            return Press::Stuck;
        }
        // Room for reclaim, which takes a few frames in order to free many; none for faults, which
        // reclaim for themselves.
        let next = (used + self.memory.budget().min()).max(state.aim);
        if next < limit {
            self.swap.set_limit(next);
        }
        Press::Going
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_of_the_budget_and_never_too_small_to_run_in() {
        let min = MEMORY_MIN.pages();
        assert_eq!(BudgetFraction::WHOLE.of(1 << 38), 1 << 38);
        assert_eq!(BudgetFraction(BudgetFraction::WHOLE.0 / 2).of(3 * min), 3 * min / 2);
        assert_eq!(BudgetFraction(BudgetFraction::WHOLE.0 / 2).of(min), min);
        assert_eq!(BudgetFraction(0).of(1 << 38), min);
    }
}
