//! How faults and background work reach the engine: the handler thread, the SIGBUS handler, the
//! background thread.
//!
//! Thread delivery: one handler thread reads the userfaultfd. It never waits for a page that
//! somebody else owns, because that owner may itself wait for a fault: such events are set aside
//! and served again.
//!
//! Signal delivery: the faulting thread serves itself, with all signals blocked.

use crate::base::lockdep;
use crate::base::psi::PUBLISH_EVERY;
use crate::base::sync::Backoff;
use crate::config::Delivery;
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::{Access, Served};
use crate::reclaim::Reclaimer;
use crate::reclaim::direct::{Stall, Stalled};
use crate::reclaim::throttle::Ticket;
use crate::stats::Counter;
use crate::units::PageIndex;
use overspill_os::backing::Backing;
use overspill_os::beside::{self, Job, Nap};
use overspill_os::fault_path::FaultPath;
use overspill_os::signal::{Blocked, Outcome, SignalFaults};
use overspill_os::uffd::FaultEvent;
use overspill_os::{PAGE_SIZE, descriptors, thread, vm};
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Instant;

/// Events set aside because their page was somebody else's. One for each thread that waits; more
/// are woken and fault again, which costs them time and nothing else.
const ASIDE_MAX: usize = 256;
/// Sleep of the background thread without a kick: a bound on the harm of a lost one.
const NAP_MS: u64 = 100;
/// Pages freed by one round of background reclaim, between two looks at the gate and the
/// watermarks.
const ROUND_PAGES: usize = 256;

impl Engine {
    /// Ends the threads of a pool that is given up.
    pub(crate) fn stop_threads(&self) {
        self.stop.store(true, Release);
        self.kick_background();
        self.kick_workers();
    }

    /// The body of the handler thread.
    fn handle_faults(&self) {
        let mut events =
            [FaultEvent { address: 0, write: false, write_protected: false, thread: 0 }; 16];
        let mut aside: Vec<FaultEvent> = Vec::with_capacity(ASIDE_MAX);
        let mut backoff = Backoff::default();
        self.pressures.note_engine_thread();
        let _mark = FaultPath::enter();
        while !self.stop.load(Acquire) {
            let count = match self.frames.backing.uffd().read(&mut events) {
                Ok(count) => count,
                Err(errno) => panic!("the userfaultfd cannot be read any more: {errno}"),
            };
            // 1. Nothing new: serve what was set aside, or sleep.
            if count == 0 {
                if aside.is_empty() {
                    self.free_idle_spent();
                    let _ = self.frames.backing.uffd().wait(1000);
                    continue;
                }
                backoff.wait();
            }
            // 2. Pass the gate: a fork closes it. What is locked is locked inside.
            let _inside = self.fault_gate.enter();
            let mut context = self.contexts.take();
            let mut i = 0;
            while i < aside.len() {
                if self.handle(&mut context, aside[i]) == Served::Busy {
                    i += 1;
                } else {
                    aside.swap_remove(i);
                    backoff = Backoff::default();
                }
            }
            for event in &events[..count] {
                if self.handle(&mut context, *event) == Served::Busy {
                    if aside.len() < ASIDE_MAX {
                        aside.push(*event);
                    } else {
                        let _ = self.frames.backing.wake(event.address..event.address + PAGE_SIZE);
                    }
                }
            }
        }
    }

    fn handle(&self, context: &mut crate::fault::FaultContext, event: FaultEvent) -> Served {
        let window = self.window();
        // A hole of the arena is never touched: this would be a bug of the engine, and going on
        // would hang a thread.
        assert!(
            window.contains(&event.address),
            "a fault outside the window, at {:#x}",
            event.address
        );
        let page = self.page(event.address);
        context.thread = event.thread as i32;
        let access = Access { write: event.write, protected: event.write_protected };
        let (since, mut stall) = (Instant::now(), Stall::default());
        let served = loop {
            match self.serve_fault(context, page, access, since) {
                Served::NoRoom => match self.stall_at_once(&mut stall) {
                    Stalled::OutOfRoom => break Served::Failed,
                    Stalled::Pause => stall.pause(),
                    Stalled::Again | Stalled::Throttled(_) => {}
                },
                served => break served,
            }
        };
        if served == Served::Done {
            self.end_stall(&stall);
        }
        match served {
            Served::Failed => self.fail_access(page),
            // It has become so since the event was read.
            Served::Foreign => {
                let _ = self.frames.backing.wake(self.address_range(page.0..page.0 + 1));
            }
            _ => {}
        }
        served
    }

    /// Makes the accesses to a page fail: SIGBUS for the program, EFAULT for a system call.
    fn fail_access(&self, page: PageIndex) {
        let range = self.address_range(page.0..page.0 + 1);
        if !self.frames.backing.can_poison() || self.frames.backing.poison(range).is_err() {
            // Before Linux 6.6 there is no way to fail one access: better end than hang or hand out
            // zeros.
            thread::report(
                "this kernel cannot fail a single access (UFFDIO_POISON, Linux 6.6): ending the \
                 program",
            );
            beside::end_program();
        }
    }

    /// Wakes the background thread if the low watermark is passed, or something else is due.
    pub(crate) fn kick_background(&self) {
        let is_due = || {
            self.budget().free_pages() < self.budget().low()
                || self.limits.is_pressed()
                || self.has_to_write_back()
                || self.stop.load(Relaxed)
                || self.proactive.is_due()
                || self.wishes.is_due()
                || self.swaps.is_due()
        };
        if self.background.load(Relaxed) == 1 && is_due() && self.background.swap(0, AcqRel) == 1 {
            let _ = futex::wake(&self.background, futex::Flags::PRIVATE, 1);
        }
    }

    /// Whether there is more to reclaim than ahead of need.
    fn has_to_reclaim(&self) -> bool {
        let forks = self.family.room_wanted.load(Relaxed)
            && self.budget().free_pages() < self.budget().min();
        forks || self.limits.is_pressed()
    }

    /// The body of the background thread: keeps the free pages between low and high, brings the
    /// process down to a lower limit, and looks after the family. All of it inside the gate of
    /// reclaim: a fork finds no lock of it taken.
    fn reclaim_in_background(&'static self) {
        self.pressures.note_engine_thread();
        self.family.hold_token();
        while !self.stop.load(Acquire) {
            self.recent.sample(self.evictions.load(Relaxed));
            if !self.has_to_reclaim()
                && (self.budget().free_pages() >= self.budget().low()
                    || !self.config.baselines.background)
            {
                self.free_idle_spent();
                // While a fork has the gate closed there is nothing to look after.
                if let Some(_inside) = self.reclaim_gate.try_enter() {
                    self.publish_metadata();
                    self.publish_pressure(PUBLISH_EVERY);
                    self.follow_refaults();
                    self.reap_children();
                    self.follow_job();
                    self.look_after_swaps();
                    self.press_limit();
                    self.fit_arena();
                    self.frames.allocator.decay();
                    self.devices.trim_caches();
                    self.devices.discard_idle();
                    self.devices.publish();
                    self.close_devices();
                    self.compact();
                }
                let done =
                    self.write_back_in_background() + self.reclaim_on_request() + self.grant_wish();
                if !self.has_to_reclaim() && done == 0 {
                    self.nap();
                }
                continue;
            }
            while self.has_to_reclaim()
                || self.config.baselines.background
                    && self.budget().free_pages() < self.budget().high()
            {
                if self.stop.load(Acquire) {
                    break;
                }
                self.recent.sample(self.evictions.load(Relaxed));
                let inside = self.reclaim_gate.enter();
                self.follow_job();
                self.look_after_swaps();
                self.publish_pressure(PUBLISH_EVERY);
                self.follow_refaults();
                self.press_limit();
                let freed = match self.batches.try_take() {
                    Some(mut batch) => {
                        let freed = self.reclaim(&mut batch, ROUND_PAGES, Reclaimer::Background);
                        self.family.fruitless.fetch_add((freed == 0).into(), Relaxed);
                        self.hardship.freed(freed);
                        freed
                    }
                    None => 0,
                };
                drop(inside);
                if freed
                    + self.write_back_in_background()
                    + self.reclaim_on_request()
                    + self.grant_wish()
                    == 0
                {
                    self.nap();
                }
            }
        }
    }

    /// Writes a batch of the compressed tier's pages to devices if that is due; returns how many.
    fn write_back_in_background(&self) -> usize {
        if !self.config.baselines.background || !self.has_to_write_back() {
            return 0;
        }
        let _inside = self.reclaim_gate.enter();
        let written =
            self.batches.try_take().map_or(0, |mut batch| self.write_back_coldest(&mut batch));
        self.compact();
        written
    }

    /// The body of a worker: stores the oldest pages of the swap cache while much waits there, so
    /// that neither the background thread nor a fault has to.
    fn store_in_background(&self) {
        self.pressures.note_engine_thread();
        while !self.stop.load(Acquire) {
            let stored = match self.reclaim_gate.try_enter() {
                Some(_inside) if self.has_to_store() => self
                    .batches
                    .try_take()
                    .map_or(0, |mut batch| self.store_oldest(&mut batch, Reclaimer::Background)),
                _ => 0,
            };
            self.hardship.freed(stored);
            if stored == 0 {
                sleep_on(&self.worker_sleeps);
            }
        }
    }

    /// Wakes the workers, if there is something to do.
    pub(crate) fn kick_workers(&self) {
        let due = self.workers > 0 && (self.has_to_store() || self.stop.load(Relaxed));
        if due && self.worker_sleeps.load(Relaxed) == 1 && self.worker_sleeps.swap(0, AcqRel) == 1 {
            let _ = futex::wake(&self.worker_sleeps, futex::Flags::PRIVATE, self.workers as u32);
        }
    }

    fn nap(&self) {
        sleep_on(&self.background);
    }
}

impl SignalFaults for Engine {
    fn serve(&self, address: usize, write: bool) -> Outcome {
        lockdep::check_none_held();
        descriptors::close_left();
        let mut fault = OwnFault::new(self.page(address), write);
        loop {
            // The handler may run on the program's alternate stack, which can be as small as 2 KiB.
            match self.stacks.run(|| self.serve_own(&mut fault)) {
                Step::Ended(outcome) => return outcome,
                // It has become so since the access, which is repeated then; or this is a signal of
                // the program's own affair.
                Step::Foreign => {
                    return if vm::fails(address, write) {
                        Outcome::Failed
                    } else {
                        Outcome::Served
                    };
                }
                // Here, and not on a stack of the engine's, of which there are fewer than threads.
                Step::Throttled(ticket) => self.stalled_for_room(|| self.throttle.wait(&ticket)),
            }
        }
    }
}

/// A fault that its thread serves itself.
struct OwnFault {
    page: PageIndex,
    write: bool,
    since: Instant,
    stall: Stall,
    backoff: Backoff,
}

impl OwnFault {
    fn new(page: PageIndex, write: bool) -> OwnFault {
        OwnFault {
            page,
            write,
            since: Instant::now(),
            stall: Stall::default(),
            backoff: Backoff::default(),
        }
    }
}

/// How far a thread got with its own fault.
enum Step {
    Ended(Outcome),
    /// The page is none of the engine's.
    Foreign,
    /// It is to wait in the line of those who reclaim, and come back.
    Throttled(Ticket),
}

impl Engine {
    /// Serves a fault of the calling thread, which is not on a stack that may be managed memory,
    /// until it has to wait for its turn to reclaim. For signal delivery, where every thread has
    /// the engine's descriptors.
    fn serve_own(&self, fault: &mut OwnFault) -> Step {
        loop {
            let inside = self.fault_gate.enter();
            let served =
                if fault.stall.is_throttled() { Served::NoRoom } else { self.serve_once(fault) };
            let stalled = match served {
                Served::Done => {
                    self.end_stall(&fault.stall);
                    return Step::Ended(Outcome::Served);
                }
                Served::Failed => return Step::Ended(Outcome::Failed),
                Served::Foreign => return Step::Foreign,
                Served::Busy => None,
                Served::NoRoom => Some(self.stall_in_turn(&mut fault.stall)),
            };
            drop(inside);
            match stalled {
                None => fault.backoff.wait(),
                Some(Stalled::Again) => {}
                Some(Stalled::Pause) => fault.stall.pause(),
                Some(Stalled::Throttled(ticket)) => return Step::Throttled(ticket),
                Some(Stalled::OutOfRoom) => return Step::Ended(Outcome::Failed),
            }
        }
    }

    /// The same for one of the program's mapping calls, which is never throttled: it holds what
    /// others may wait for.
    pub(crate) fn serve_on_this_thread(&self, page: PageIndex, write: bool) -> Outcome {
        let mut fault = OwnFault::new(page, write);
        loop {
            let inside = self.fault_gate.enter();
            let stalled = match self.serve_once(&fault) {
                Served::Done => {
                    self.end_stall(&fault.stall);
                    return Outcome::Served;
                }
                Served::Failed => return Outcome::Failed,
                Served::Foreign => return Outcome::Served,
                Served::Busy => Stalled::Pause,
                Served::NoRoom => self.stall_at_once(&mut fault.stall),
            };
            drop(inside);
            match stalled {
                Stalled::OutOfRoom => return Outcome::Failed,
                Stalled::Pause => fault.backoff.wait(),
                Stalled::Again | Stalled::Throttled(_) => {}
            }
        }
    }

    fn serve_once(&self, fault: &OwnFault) -> Served {
        let mut context = self.contexts.take();
        context.thread = thread::id();
        // The signal does not say whether protection was the cause: a write to a page in place is.
        let access = Access { write: fault.write, protected: fault.write };
        self.serve_fault(&mut context, fault.page, access, fault.since)
    }
}

/// Sleeps until somebody who finds 1 there wakes this thread, or for [`NAP_MS`].
fn sleep_on(cell: &AtomicU32) {
    cell.store(1, Release);
    let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_MS as i64 * 1_000_000 };
    let _ = futex::wait(cell, futex::Flags::PRIVATE, 1, Some(&time));
    cell.store(0, Release);
}

/// Starts the engine's threads: that which serves faults in thread delivery, that of the
/// background, and the workers. Those of the child of a fork wait until they are needed, where none
/// serves faults: most children execute a program, or end, before that.
pub(crate) fn start_threads(engine: &'static Engine, is_child: bool) -> Result<(), Error> {
    let handler = (engine.config.delivery == Delivery::Thread)
        .then(|| Job::new(c"overspill", || engine.handle_faults()));
    let can_wait = is_child && handler.is_none();
    let nap = can_wait
        .then(|| Nap { cell: &engine.background, first: Box::new(|| engine.family.hold_token()) });
    let background = Job::new(c"overspill-bg", || engine.reclaim_in_background());
    let workers =
        (0..engine.workers).map(|_| Job::new(c"overspill-wk", || engine.store_in_background()));
    let jobs = handler.into_iter().chain([background]).chain(workers).collect();
    beside::start(jobs, nap).map_err(|_| Error::Thread)?;
    engine.stats.set_engine(beside::sibling().map_or(0, |pid| pid.as_raw_nonzero().get() as u32));
    Ok(())
}

/// Blocks signals, moves to an engine stack, and passes the gate of mapping calls. The thread's own
/// stack may be managed, or have next to nothing left: a program with much thread-local memory has
/// threads with 8 KiB.
pub(crate) fn enter<R>(engine: &Engine, call: impl FnOnce() -> R) -> R {
    let _blocked = Blocked::all();
    debug_assert!(overspill_os::signal::all_blocked());
    descriptors::close_left();
    let inside = || {
        let _inside = engine.ops_gate.enter();
        call()
    };
    engine.stacks.run(inside)
}

/// Counter of what could not be managed.
pub(crate) fn count_unmanaged(engine: &Engine) {
    engine.stats.add(Counter::Unmanaged, 1);
}
