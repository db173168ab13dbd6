//! How the limit follows the job's budget, and is pressed towards its aim.

use super::Press;
use crate::base::sync::lock;
use crate::control::Control;
use crate::memory::MEMORY_MIN;
use crate::reclaim::settings::DIRECT_PAGES;
use crate::stats::Counter;
use crate::units::Bytes;
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long pressing goes on without any progress, and never more than half of what a fault waits
/// for room.
const PATIENCE: Duration = Duration::from_secs(1);
/// And how many rounds of reclaim have freed nothing by then: on a busy machine there may be none
/// for a second.
const FRUITLESS_ROUNDS: u64 = 8;
/// How long after it began what came to nothing is tried again.
const STUCK_FOR: Duration = Duration::from_secs(10);

impl<B: Backing> Control<B> {
    /// Tries again what seemed out of reach long enough ago: pages that nothing takes may be locked
    /// for a while only.
    pub(crate) fn press_now_and_then(&self) {
        if self.limits.is_stuck() && lock(&self.limits.state).since.elapsed() >= STUCK_FOR {
            self.press_again();
        }
    }

    /// Tries again what seemed out of reach.
    pub(crate) fn press_again(&self) {
        let mut state = lock(&self.limits.state);
        (state.best, state.since) = (u64::MAX, Instant::now());
        self.memory.lease.set_pressed(true);
        self.limits.stuck.store(false, Relaxed);
    }

    /// Changes the budget of the job.
    pub(crate) fn set_job_budget(&self, pages: u64) {
        self.memory.lease.account.set_budget(pages);
        self.stats.add(Counter::BudgetChanges, 1);
        self.stats.set(Counter::BudgetBytes, Bytes::from_pages(pages).0);
        // Frames first: a limit that rises above them would have faults reclaim.
        let state = lock(&self.limits.state);
        if pages > self.memory.arena_fits.load(Relaxed) {
            self.memory.resize_arena(pages);
        }
        drop(state);
        self.limits.stuck.store(false, Relaxed);
        self.share_anew();
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

    /// Has the limit come down to `aim` pages, if it is above, and not rise above them.
    pub(crate) fn aim(&self, aim: u64) {
        let mut state = lock(&self.limits.state);
        let limit = self.memory.budget().limit();
        if !self.memory.lease.is_pressed() {
            (state.best, state.since, state.ceiling) = (u64::MAX, Instant::now(), limit);
        }
        state.aim = aim;
        state.ceiling = state.ceiling.max(limit);
        self.memory.lease.set_cap(aim);
        self.memory.lease.set_pressed(aim < limit);
        self.limits.stuck.store(false, Relaxed);
        // Until it is known better, what was out of reach is.
        if aim >= limit {
            self.stats.set_stuck(false);
        }
        self.stats.set_target(Bytes::from_pages(aim.min(self.memory.lease.account.budget())));
    }

    /// In the child of a fork: nothing is asked of it yet.
    pub(crate) fn reset_limit_in_child(&self) {
        self.aim(u64::MAX);
        self.stats.set_answered(self.limits.request.load(Relaxed));
    }

    /// Makes the arena fit the job's budget.
    pub(crate) fn fit_arena(&self) {
        let budget = self.memory.lease.account.budget();
        let state = lock(&self.limits.state);
        let (limit, fits) = (self.memory.budget().limit(), self.memory.arena_fits.load(Relaxed));
        // A process that cannot come down to the budget needs the frames that it has.
        let wanted = if limit > budget { limit.max(fits) } else { budget };
        if wanted != fits {
            self.memory.resize_arena(wanted);
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
        let budget = self.memory.budget();
        // Buffers that are used first now take what was promised to them. A process at rest uses
        // none; when it wakes up it gets as much as each has in any case.
        let promised = if self.sharing.is_at_rest() { 0 } else { budget.promised() };
        let (limit, used) = (budget.limit(), budget.used() + promised);
        // Without room for one go of reclaim nothing would ever leave again.
        if limit <= state.aim || used + DIRECT_PAGES as u64 <= state.aim {
            if limit > state.aim {
                self.swap.set_limit(state.aim);
            }
            self.memory.lease.set_pressed(false);
            self.limits.stuck.store(false, Relaxed);
            self.stats.set_stuck(false);
            return Press::Reached;
        }
        // What a process needs that can give nothing up: above what it uses, the reserve and both
        // watermarks.
        let room = (used + used / 8 + 256).max(state.aim);
        if !self.memory.lease.is_pressed() {
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
            // The room first: who found none looks again when the limit is not pressed any more.
            self.swap.set_limit(room.min(state.ceiling).max(limit));
            self.memory.lease.set_pressed(false);
            self.limits.stuck.store(true, Relaxed);
            self.stats.set_stuck(true);
            return Press::Stuck;
        }
        // Room for reclaim, which takes a few frames in order to free many; none for faults, which
        // reclaim for themselves.
        let next = (used + budget.min()).max(state.aim);
        if next < limit {
            self.swap.set_limit(next);
        }
        Press::Going
    }
}
