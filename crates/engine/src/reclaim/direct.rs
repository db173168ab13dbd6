//! What a fault does for which there is no frame: reclaim for itself, wait for its turn to, or give
//! up.
//!
//! A [`DirectReclaim`] lasts as long as one fault is without a frame. Each step of it is short:
//! whoever serves the fault waits in between where nothing is held ([`NextStep`]).
//!
//! Neighbours: [`crate::reclaim::throttle`] says whose turn it is, [`crate::reclaim`] does the
//! work, [`crate::fault::delivery`] calls.

use crate::base::sync::Backoff;
use crate::memory::growth::Growth;
use crate::reclaim::settings::DIRECT_PAGES;
use crate::reclaim::throttle::{Free, Ticket, Turn};
use crate::reclaim::{Reclaim, Reclaimer};
use crate::stats::Counter;
use overspill_os::backing::Backing;
use std::time::Instant;

/// A fault without a frame.
#[derive(Default, Debug)]
pub(crate) struct DirectReclaim {
    /// Its place in the line.
    ticket: Option<Ticket>,
    /// When it last tried to reclaim, or first.
    tried: Option<Instant>,
    /// Whether it tries for the last time.
    is_last: bool,
    backoff: Backoff,
}

/// What is to be done about it next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    /// Serve the fault again.
    Again,
    /// Pause, then do the same.
    Pause,
    /// Wait for the bell of the ticket, then take the next step.
    Throttled(Ticket),
    /// There is no room.
    OutOfRoom,
}

impl DirectReclaim {
    /// Whether it stands in the line.
    pub fn is_throttled(&self) -> bool {
        self.ticket.is_some()
    }

    /// Waits a little, longer the next time.
    pub fn pause(&mut self) {
        self.backoff.wait();
    }
}

impl<B: Backing> Reclaim<B> {
    /// The next step of a thread that may be throttled; inside the gate of faults.
    pub(crate) fn reclaim_in_turn(&self, direct: &mut DirectReclaim) -> NextStep {
        if direct.ticket.is_none()
            && let Some(next) = self.grow()
        {
            return next;
        }
        let turn = match direct.ticket.take() {
            Some(ticket) => {
                let (turn, waited) = self.throttle.look(ticket, self.free());
                if !matches!(turn, Turn::Wait(_)) {
                    let ns = waited.as_nanos() as u64;
                    self.stats.add(Counter::ThrottleWaitNs, ns);
                    self.stats.raise(Counter::ThrottleWaitNsMax, ns);
                }
                turn
            }
            None => {
                let (turn, active) = self.throttle.enter();
                match turn {
                    Turn::Wait(_) => self.stats.add(Counter::PgScanDirectThrottle, 1),
                    _ => self.stats.raise(Counter::ReclaimersMax, active as u64),
                }
                turn
            }
        };
        match turn {
            Turn::Mine(turn) => {
                let since = Instant::now();
                let freed = self.base.psi.stalled_for_room(|| self.direct_reclaim(Some(turn)));
                self.throttle.leave(turn);
                self.after_reclaim(direct, since, freed)
            }
            Turn::Wait(ticket) => {
                direct.ticket = Some(ticket);
                NextStep::Throttled(ticket)
            }
            Turn::Enough => NextStep::Again,
            Turn::Full => NextStep::Pause,
        }
    }

    /// The next step of a thread that must not be throttled: somebody in the line may wait for it.
    pub(crate) fn reclaim_at_once(&self, direct: &mut DirectReclaim) -> NextStep {
        if let Some(next) = self.grow() {
            return next;
        }
        let since = Instant::now();
        let freed = self.base.psi.stalled_for_room(|| self.direct_reclaim(None));
        self.after_reclaim(direct, since, freed)
    }

    /// The next step of a thread that the job has pages for; `None` if there are none.
    fn grow(&self) -> Option<NextStep> {
        match self.memory.grow() {
            Growth::Grown => Some(NextStep::Again),
            Growth::UnderWay => Some(NextStep::Pause),
            Growth::Nothing => None,
        }
    }

    /// Reclaims with the buffers of a turn, or those that are free; how many pages were freed.
    /// `None` while reclaim stands still for a fork.
    fn direct_reclaim(&self, turn: Option<usize>) -> Option<usize> {
        let _inside = self.base.gates.reclaim.try_enter()?;
        self.stats.add(Counter::AllocStall, 1);
        self.stats.add(Counter::Reclaimers, 1);
        let since = Instant::now();
        let batch = turn.and_then(|turn| self.direct.at(turn)).or_else(|| self.take_batch());
        let freed =
            batch.map_or(0, |mut batch| self.reclaim(&mut batch, DIRECT_PAGES, Reclaimer::Direct));
        self.stats.sub(Counter::Reclaimers, 1);
        self.stats.raise(Counter::DirectReclaimNsMax, since.elapsed().as_nanos() as u64);
        if freed == 0 {
            // Nothing to reclaim, but other processors may keep free frames.
            self.memory.frames.allocator.drain();
        }
        Some(freed)
    }

    fn after_reclaim(
        &self,
        direct: &mut DirectReclaim,
        since: Instant,
        freed: Option<usize>,
    ) -> NextStep {
        match freed {
            // The fault finds out what is to be done.
            None => NextStep::Again,
            Some(freed) => {
                let since = direct.tried.replace(Instant::now()).unwrap_or(since);
                let fruitless = self.oom_progress.note(since, freed, self.swap.is_writing());
                if freed > 0 {
                    return NextStep::Again;
                }
                if fruitless < self.settings.oom_wait.0 {
                    return NextStep::Pause;
                }
                // Once more, and that is the last time: there may be room by now.
                if !std::mem::replace(&mut direct.is_last, true) {
                    return NextStep::Again;
                }
                direct.is_last = false;
                self.out_of_room()
            }
        }
    }

    /// A fault was served, or is served again later.
    pub(crate) fn end_direct(&self, direct: &DirectReclaim) {
        self.oom_progress.freed(direct.tried.is_some().into());
    }

    fn free(&self) -> Free {
        let budget = self.memory.budget();
        Free { pages: budget.free_pages(), min: budget.min(), high: budget.high() }
    }
}
