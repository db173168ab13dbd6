//! Direct reclaim: how many threads do it at once, and how the others wait.
//!
//! Without a bound every thread that finds no frame reclaims: they fight over locks, and each
//! evicts a batch although a frame was all that it needed. So at most `reclaim.max` threads have a
//! *turn*, and the others stand in line. A turn goes to the one that has waited longest, who first
//! looks whether there are frames enough by now ([`Recheck`]), and if so passes it on.
//!
//! [`Line`] decides, as a state and an instant: who has which turn, who is next. [`Throttle`] is
//! what threads call. The number of a turn is also that of the buffers that its holder reclaims
//! with.
//!
//! The line is for threads that serve their own faults. The handler thread of thread delivery,
//! background threads and the program's mapping calls reclaim without a turn: somebody in the line
//! may wait for them.
//!
//! Nobody waits while inside a gate, with buffers or with a lock: a fork closes the gates and
//! does not wait for the line. The child's is empty ([`Throttle::reset_in_child`]); the parent's
//! goes on. A turn that is not taken up within [`TURN_PATIENCE`] passes on, so that a thread that
//! ended while it waited holds nobody up.
//!
//! Locks: one over the line (`Rank::Throttle`), for some tens of nanoseconds, taken inside the gate
//! of faults, so never held at a fork; nothing is taken under it.

use super::settings::Recheck;
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock, sleep_on};
use crate::reclaim::settings::DIRECT_PAGES;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

/// Threads that can stand in the line; more come back after a nap. 44 bytes each, in every process.
const WAITERS_MAX: usize = 512;
/// Longest sleep in the line between two looks: a bound on the harm of turns that nobody takes up.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a turn waits for the thread that it was given to.
const TURN_PATIENCE: Duration = Duration::from_secs(1);
/// With `reclaim.recheck=timed`, how long a thread must have waited to look for frames at all,
const TIMED_AFTER: Duration = Duration::from_secs(1);
/// and how many times the high watermark must be free then. Both as in the mechanism's origin.
const TIMED_HIGH: u64 = 4;

/// Frames that must be free, beside the reserve, for who looks at every wake: what one reclaim
/// frees. With fewer, those who are sent off one after the other find them taken and stand in line
/// again: up to ten for each reclaim, in a storm.
const SPARE: u64 = DIRECT_PAGES as u64;

/// No place in the line.
const NONE: u32 = u32::MAX;

/// Free frames, and the marks they are measured by, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Free {
    /// Free frames.
    pub pages: u64,
    /// What of them a fault does not take.
    pub min: u64,
    /// Where background reclaim stops.
    pub high: u64,
}

/// Whether a thread that has waited need not reclaim any more.
fn is_enough(recheck: Recheck, free: Free, waited: Duration) -> bool {
    match recheck {
        Recheck::Wake => free.pages >= free.min + SPARE,
        Recheck::Timed => waited > TIMED_AFTER && free.pages > TIMED_HIGH * free.high,
    }
}

/// A place in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    place: u32,
    /// Tells it from those who had the place before.
    number: u32,
    since: Duration,
    /// What the place's bell said under the lock.
    rung: u32,
}

/// What a thread is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Reclaim, then give the turn back.
    Mine(usize),
    /// Wait, and look again.
    Wait(Ticket),
    /// There are frames by now.
    Enough,
    /// The line is full: come back a little later.
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaiterState {
    Free,
    Waiting,
    /// Has been given a turn.
    Called {
        turn: usize,
        at: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    state: WaiterState,
    number: u32,
    /// Neighbours in the line; the next free place of one that is free.
    next: u32,
    previous: u32,
}

/// Who has a turn, and who waits for one.
#[derive(Debug)]
pub(crate) struct Line {
    /// Turns that nobody has.
    free: Vec<usize>,
    turns: usize,
    /// By turn, the place that it was given to and that has not taken it up.
    called: Box<[u32]>,
    /// Places that were ever had, of so many.
    waiters: Vec<Waiter>,
    places: usize,
    first: u32,
    last: u32,
    free_place: u32,
    waiting: usize,
}

impl Line {
    fn new(turns: usize, places: usize) -> Line {
        let mut line = Line {
            free: Vec::with_capacity(turns),
            turns,
            called: vec![NONE; turns].into(),
            waiters: Vec::with_capacity(places),
            places,
            first: NONE,
            last: NONE,
            free_place: NONE,
            waiting: 0,
        };
        line.reset();
        line
    }

    /// Nobody has a turn, nobody waits. Numbers go on, so that a ticket from before is known to be
    /// old.
    fn reset(&mut self) {
        self.free.clear();
        self.free.extend((0..self.turns).rev());
        self.called.fill(NONE);
        (self.first, self.last, self.waiting) = (NONE, NONE, 0);
        self.free_place = if self.waiters.is_empty() { NONE } else { 0 };
        let places = self.waiters.len() as u32;
        for (place, waiter) in (0..places).zip(&mut self.waiters) {
            let next = if place + 1 < places { place + 1 } else { NONE };
            let number = waiter.number.wrapping_add(1);
            *waiter = Waiter { state: WaiterState::Free, number, next, previous: NONE };
        }
    }

    /// Turns that are taken, or given to somebody.
    fn active(&self) -> usize {
        self.turns - self.free.len()
    }

    /// A thread wants a turn. Nobody overtakes those who wait.
    fn enter(&mut self, now: Duration) -> Turn {
        if self.waiting == 0
            && let Some(turn) = self.free.pop()
        {
            return Turn::Mine(turn);
        }
        let Some(place) = self.place() else { return Turn::Full };
        let last = self.last;
        let waiter = &mut self.waiters[place as usize];
        (waiter.state, waiter.next, waiter.previous) = (WaiterState::Waiting, NONE, last);
        let number = waiter.number;
        match last {
            NONE => self.first = place,
            last => self.waiters[last as usize].next = place,
        }
        self.last = place;
        self.waiting += 1;
        Turn::Wait(Ticket { place, number, since: now, rung: 0 })
    }

    /// A free place, which is off the list of these.
    fn place(&mut self) -> Option<u32> {
        if self.free_place != NONE {
            let place = self.free_place;
            self.free_place = self.waiters[place as usize].next;
            return Some(place);
        }
        if self.waiters.len() == self.places {
            return None;
        }
        let state = WaiterState::Free;
        self.waiters.push(Waiter { state, number: 0, next: NONE, previous: NONE });
        Some(self.waiters.len() as u32 - 1)
    }

    /// One who waited looks again; also returns whose bell is to be rung, if anybody's.
    fn look(&mut self, ticket: Ticket, now: Duration, enough: bool) -> (Turn, u32) {
        let waiter = self.waiters[ticket.place as usize];
        match waiter.state {
            // The turn came, and was given to another meanwhile: to the end of the line.
            _ if waiter.number != ticket.number => {
                (if enough { Turn::Enough } else { self.enter(now) }, NONE)
            }
            WaiterState::Free => unreachable!("a place changes its number when it becomes free"),
            WaiterState::Called { turn, .. } => {
                self.called[turn] = NONE;
                self.free(ticket.place);
                if enough {
                    (Turn::Enough, self.leave(turn, now))
                } else {
                    (Turn::Mine(turn), NONE)
                }
            }
            WaiterState::Waiting if enough => {
                self.unlink(ticket.place);
                self.free(ticket.place);
                (Turn::Enough, NONE)
            }
            WaiterState::Waiting => (Turn::Wait(ticket), self.pass_on_overdue(now)),
        }
    }

    /// A turn ends: it goes to the first in the line, whose bell is to be rung.
    fn leave(&mut self, turn: usize, now: Duration) -> u32 {
        let place = self.first;
        if place == NONE {
            debug_assert!(!self.free.contains(&turn), "a turn is given back once");
            self.free.push(turn);
            return NONE;
        }
        self.unlink(place);
        self.waiters[place as usize].state = WaiterState::Called { turn, at: now };
        self.called[turn] = place;
        place
    }

    /// Takes back a turn that was not taken up and gives it to the next.
    fn pass_on_overdue(&mut self, now: Duration) -> u32 {
        let overdue = |place: u32| match self.waiters.get(place as usize).map(|waiter| waiter.state)
        {
            Some(WaiterState::Called { at, .. }) => now.saturating_sub(at) > TURN_PATIENCE,
            _ => false,
        };
        let Some(turn) = self.called.iter().position(|place| overdue(*place)) else { return NONE };
        let place = std::mem::replace(&mut self.called[turn], NONE);
        self.free(place);
        self.leave(turn, now)
    }

    fn unlink(&mut self, place: u32) {
        let Waiter { next, previous, .. } = self.waiters[place as usize];
        match previous {
            NONE => self.first = next,
            previous => self.waiters[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.waiters[next as usize].previous = previous,
        }
        self.waiting -= 1;
    }

    fn free(&mut self, place: u32) {
        let waiter = &mut self.waiters[place as usize];
        (waiter.state, waiter.next, waiter.number) =
            (WaiterState::Free, self.free_place, waiter.number.wrapping_add(1));
        self.free_place = place;
    }
}

/// A lock over a [`Line`]: the machine's, or in tests that of a checker of interleavings.
pub(crate) trait LineLock {
    /// Over `line`.
    fn new(line: Line) -> Self;
    /// Runs `change` with the lock held.
    fn with<R>(&self, change: impl FnOnce(&mut Line) -> R) -> R;
}

impl LineLock for RankedMutex<Line> {
    fn new(line: Line) -> Self {
        RankedMutex::new(Rank::Throttle, line)
    }

    fn with<R>(&self, change: impl FnOnce(&mut Line) -> R) -> R {
        change(&mut lock(self))
    }
}

/// What one thread in the line waits for; likewise.
pub(crate) trait Bell: Default {
    /// How often it was rung.
    fn rung(&self) -> u32;
    /// Rings it.
    fn ring(&self);
    /// Waits until it was rung more often than `rung` times, for `time` at most, or for no reason.
    fn wait(&self, rung: u32, time: Duration);
}

impl Bell for AtomicU32 {
    fn rung(&self) -> u32 {
        self.load(Acquire)
    }

    fn ring(&self) {
        self.fetch_add(1, Release);
        let _ = futex::wake(self, futex::Flags::PRIVATE, 1);
    }

    fn wait(&self, rung: u32, time: Duration) {
        let time = rustix::thread::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        sleep_on(self, rung, &time);
    }
}

/// Bounds the threads that reclaim for themselves.
#[derive(Debug)]
pub(crate) struct Throttle<L = RankedMutex<Line>, B = AtomicU32> {
    line: L,
    bells: Box<[B]>,
    recheck: Recheck,
    began: Instant,
}

impl Throttle {
    /// For `turns` threads at once.
    pub fn new(turns: usize, recheck: Recheck) -> Throttle {
        Throttle::with_places(turns, WAITERS_MAX, recheck)
    }
}

impl<L: LineLock, B: Bell> Throttle<L, B> {
    fn with_places(turns: usize, places: usize, recheck: Recheck) -> Throttle<L, B> {
        Throttle {
            line: L::new(Line::new(turns, places)),
            bells: (0..places).map(|_| B::default()).collect(),
            recheck,
            began: Instant::now(),
        }
    }

    /// The calling thread wants to reclaim; with the number of threads that have a turn now.
    pub fn enter(&self) -> (Turn, usize) {
        let now = self.began.elapsed();
        self.line.with(|line| (self.with_bell(line.enter(now)), line.active()))
    }

    /// It has waited, and there is so much free. Says with how long it has waited what is to be
    /// done.
    pub fn look(&self, ticket: Ticket, free: Free) -> (Turn, Duration) {
        let now = self.began.elapsed();
        let waited = now.saturating_sub(ticket.since);
        let enough = is_enough(self.recheck, free, waited);
        let (turn, called) = self.line.with(|line| {
            let (turn, called) = line.look(ticket, now, enough);
            (self.with_bell(turn), called)
        });
        self.ring(called);
        (turn, waited)
    }

    /// It has reclaimed.
    pub fn leave(&self, turn: usize) {
        let now = self.began.elapsed();
        let called = self.line.with(|line| line.leave(turn, now));
        self.ring(called);
    }

    /// Waits until it is this thread's turn, or for no reason; in no gate, with no lock.
    pub fn wait(&self, ticket: &Ticket) {
        self.bells[ticket.place as usize].wait(ticket.rung, LOOK_EVERY);
    }

    /// In the child of a fork: nobody is there but the caller.
    pub fn reset_in_child(&self) {
        self.line.with(Line::reset);
    }

    /// Threads that have taken their turn.
    #[cfg(debug_assertions)]
    pub fn reclaiming(&self) -> usize {
        self.line
            .with(|line| line.active() - line.called.iter().filter(|place| **place != NONE).count())
    }

    /// Who waits must have seen its bell under the lock under which it is called.
    fn with_bell(&self, turn: Turn) -> Turn {
        match turn {
            Turn::Wait(ticket) => {
                Turn::Wait(Ticket { rung: self.bells[ticket.place as usize].rung(), ..ticket })
            }
            turn => turn,
        }
    }

    fn ring(&self, place: u32) {
        if let Some(bell) = self.bells.get(place as usize) {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
