//! How faults and background work reach the engine: the handler thread, the SIGBUS handler, the
//! background thread.
//!
//! Thread delivery: one handler thread reads the userfaultfd. It never waits for a page that
//! somebody else owns, because that owner may itself wait for a fault: such events are set aside
//! and served again.
//!
//! Signal delivery: the faulting thread serves itself, with all signals blocked.

use crate::base::lockdep;
use crate::base::sync::Backoff;
use crate::fault::polling::Polling;
use crate::fault::{Access, Fault, Served};
use crate::reclaim::direct::{DirectReclaim, NextStep};
use crate::reclaim::throttle::Ticket;
use crate::units::PageIndex;
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::signal::{Blocked, Outcome, SignalFaults};
use overspill_os::uffd::FaultEvent;
use overspill_os::{Errno, PAGE_SIZE, beside, cpu, descriptors, thread, vm};
use std::time::{Duration, Instant};

/// How long the processor is given away before a fault is served, and what is too short for anybody
/// to have wanted it.
const GIVE_WAY_FOR: Duration = Duration::from_millis(1);
const UNWANTED: Duration = Duration::from_micros(10);

/// Events set aside because their page was somebody else's. One for each thread that waits; more
/// are woken and fault again, which costs them time and nothing else.
const ASIDE_MAX: usize = 256;

impl Fault {
    /// The body of the handler thread.
    pub fn handle_faults(&self) {
        let mut events =
            [FaultEvent { address: 0, write: false, write_protected: false, thread: 0 }; 16];
        let mut aside: Vec<FaultEvent> = Vec::with_capacity(ASIDE_MAX);
        let mut backoff = Backoff::default();
        let mut polling = Polling::new(if self.settings.polls { cpu::available() } else { 0 });
        self.base.psi.note_engine_thread();
        let _mark = FaultPath::enter();
        while !self.base.wake.has_stopped() {
            beside::come_by();
            let count = match self.memory.frames.backing.uffd().read(&mut events) {
                Ok(count) => count,
                Err(errno) => panic!("the userfaultfd cannot be read any more: {errno}"),
            };
            // 1. Nothing new: serve what was set aside, or sleep.
            if count == 0 {
                if aside.is_empty() {
                    self.wait_for_event(&mut polling);
                    continue;
                }
                backoff.wait();
            }
            self.give_way();
            // 2. Pass the gate: a fork closes it. What is locked is locked inside.
            let _inside = self.base.gates.faults.enter();
            let mut context = self.take_context();
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
                        let _ = self
                            .memory
                            .frames
                            .backing
                            .wake(event.address..event.address + PAGE_SIZE);
                    }
                }
            }
        }
    }

    /// Waits for the next event, for a second at most.
    fn wait_for_event(&self, polling: &mut Polling) {
        let uffd = self.memory.frames.backing.uffd();
        let wait = |ms| uffd.wait(ms).unwrap_or(false);
        let since = Instant::now();
        let at_work = self.memory.lease.at_work();
        let is_there = polling.poll(at_work, || wait(0)) || {
            self.free_idle_spent();
            wait(1000)
        };
        if is_there {
            polling.note(since.elapsed());
        }
    }
}

impl<B: Backing> Fault<B> {
    fn handle(&self, context: &mut crate::fault::FaultContext, event: FaultEvent) -> Served {
        // A hole of the arena is never touched: this would be a bug of the engine, and going on
        // would hang a thread.
        let page = self.memory.places.page(event.address);
        let page = page.unwrap_or_else(|| panic!("a fault at {:#x}, no page", event.address));
        context.thread = event.thread as i32;
        let access = Access { write: event.write, protected: event.write_protected };
        let (since, mut direct) = (Instant::now(), DirectReclaim::default());
        let served = loop {
            match self.serve_fault(context, page, access, since) {
                Served::NoRoom => match self.reclaim.reclaim_at_once(&mut direct) {
                    NextStep::OutOfRoom => break Served::Failed,
                    NextStep::Pause => direct.pause(),
                    NextStep::Again | NextStep::Throttled(_) => {}
                },
                served => break served,
            }
        };
        if served == Served::Done {
            self.reclaim.end_direct(&direct);
        }
        match served {
            Served::Failed => self.fail_access(page),
            // It has become so since the event was read.
            Served::Foreign => {
                let _ =
                    self.memory.frames.backing.wake(self.memory.address_range(page.0..page.0 + 1));
            }
            _ => {}
        }
        served
    }

    /// What the handler thread does with one event, for models: whether it is not to be set aside.
    #[cfg(test)]
    pub fn handle_event(&self, event: FaultEvent) -> bool {
        let _inside = self.base.gates.faults.enter();
        let mut context = self.take_context();
        let served = self.handle(&mut context, event);
        assert_ne!(served, Served::Failed, "{event:?}");
        served != Served::Busy
    }

    /// Makes the accesses to a page fail: SIGBUS for the program, EFAULT for a system call.
    fn fail_access(&self, page: PageIndex) {
        let (backing, range) =
            (&self.memory.frames.backing, self.memory.address_range(page.0..page.0 + 1));
        let made =
            if backing.can_poison() { backing.poison(range.clone()) } else { Err(Errno::NOSYS) };
        match made {
            Ok(()) => {}
            // They fail already, as another thread came first, or the mapping has changed under the
            // fault: the repeated access finds out.
            Err(Errno::EXIST | Errno::NOENT) => drop(backing.wake(range)),
            // Before Linux 6.6 there is no way to fail one access: better end than hang or hand out
            // zeros.
            Err(errno) => {
                thread::report(format_args!(
                    "this kernel cannot fail a single access ({errno}; UFFDIO_POISON, Linux 6.6): \
                     ending the program"
                ));
                beside::end_program();
            }
        }
    }
}

impl SignalFaults for Fault {
    fn serve(&self, address: usize, write: bool) -> Outcome {
        lockdep::check_none_held();
        descriptors::close_left();
        let Some(page) = self.memory.places.page(address) else { return Outcome::Failed };
        let mut fault = OwnFault::new(page, write);
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
                Step::Throttled(ticket) => {
                    self.base.psi.stalled_for_room(|| self.reclaim.throttle.wait(&ticket))
                }
            }
        }
    }
}

/// A fault that its thread serves itself.
struct OwnFault {
    page: PageIndex,
    write: bool,
    since: Instant,
    direct: DirectReclaim,
    backoff: Backoff,
}

impl OwnFault {
    fn new(page: PageIndex, write: bool) -> OwnFault {
        OwnFault {
            page,
            write,
            since: Instant::now(),
            direct: DirectReclaim::default(),
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

impl<B: Backing> Fault<B> {
    /// Serves a fault of the calling thread, which is not on a stack that may be managed memory,
    /// until it has to wait for its turn to reclaim. For signal delivery, where every thread has
    /// the engine's descriptors.
    fn serve_own(&self, fault: &mut OwnFault) -> Step {
        self.give_way();
        loop {
            let inside = self.base.gates.faults.enter();
            let served =
                if fault.direct.is_throttled() { Served::NoRoom } else { self.serve_once(fault) };
            let next = match served {
                Served::Done => {
                    self.reclaim.end_direct(&fault.direct);
                    return Step::Ended(Outcome::Served);
                }
                Served::Failed => return Step::Ended(Outcome::Failed),
                Served::Foreign => return Step::Foreign,
                Served::Busy => None,
                Served::NoRoom => Some(self.reclaim.reclaim_in_turn(&mut fault.direct)),
            };
            drop(inside);
            match next {
                None => fault.backoff.wait(),
                Some(NextStep::Again) => {}
                Some(NextStep::Pause) => fault.direct.pause(),
                Some(NextStep::Throttled(ticket)) => return Step::Throttled(ticket),
                Some(NextStep::OutOfRoom) => return Step::Ended(Outcome::Failed),
            }
        }
    }

    /// The same for one of the program's mapping calls, which is never throttled: it holds what
    /// others may wait for.
    pub(crate) fn serve_on_this_thread(&self, page: PageIndex, write: bool) -> Outcome {
        let mut fault = OwnFault::new(page, write);
        loop {
            let inside = self.base.gates.faults.enter();
            let next = match self.serve_once(&fault) {
                Served::Done => {
                    self.reclaim.end_direct(&fault.direct);
                    return Outcome::Served;
                }
                Served::Failed => return Outcome::Failed,
                Served::Foreign => return Outcome::Served,
                Served::Busy => NextStep::Pause,
                Served::NoRoom => self.reclaim.reclaim_at_once(&mut fault.direct),
            };
            drop(inside);
            match next {
                NextStep::OutOfRoom => return Outcome::Failed,
                NextStep::Pause => fault.backoff.wait(),
                NextStep::Again | NextStep::Throttled(_) => {}
            }
        }
    }

    /// Where another process of the job has its turn to have its pages in memory, lets it have the
    /// processor: pages that come in here drive out others. Nobody waits for a processor that is
    /// idle.
    fn give_way(&self) {
        if !self.memory.lease.gives_way() {
            return;
        }
        let (mut before, until) = (Instant::now(), Instant::now() + GIVE_WAY_FOR);
        loop {
            std::thread::yield_now();
            let now = Instant::now();
            if now >= until || now - before < UNWANTED {
                return;
            }
            before = now;
        }
    }

    fn serve_once(&self, fault: &OwnFault) -> Served {
        let mut context = self.take_context();
        context.thread = thread::id();
        // The signal does not say whether protection was the cause: a write to a page in place is.
        let access = Access { write: fault.write, protected: fault.write };
        self.serve_fault(&mut context, fault.page, access, fault.since)
    }

    /// Blocks signals, moves to an engine stack, and passes the gate of mapping calls. The thread's
    /// own stack may be managed, or have next to nothing left: a program with much thread-local
    /// memory has threads with 8 KiB.
    pub fn enter<R>(&self, call: impl FnOnce() -> R) -> R {
        let _blocked = Blocked::all_beside_stack();
        debug_assert!(overspill_os::signal::all_blocked());
        descriptors::close_left();
        let inside = || {
            let _inside = self.base.gates.ops.enter();
            call()
        };
        self.stacks.run(inside)
    }
}
