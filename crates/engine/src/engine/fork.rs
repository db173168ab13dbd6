//! fork: a process and its children share content, not engines.
//!
//! The child gets a copy of every table and of the arena with the address space. What it needs
//! besides: a userfaultfd of its own (the kernel takes the parent's off its mappings), engine
//! threads of its own, the parent's swap devices to read what was stored there, devices of its own
//! to write to, and a lease of its own on the job's budget.
//!
//! 1. Before: mapping calls stop, the child gets a lease for all that its parent has in memory,
//!    since it may come to have all of it for itself. Where the job's budget has not so much left,
//!    the parent shrinks until there is enough for both. Reclaim stops, the swap devices are opened
//!    once more for the child.
//! 2. The program's own preparations run, with faults still served. Then faults stop too.
//! 3. Parent: what is stored stays stored for the child ([`SwapDevices::seal_for_child`]);
//!    everything goes on.
//! 4. Child: see [`Engine::fork_child`].
//!
//! **Descriptors.** The engine's lie in the program's table, which a fork copies, so the child has
//! its parent's; what it does not go on with it closes. Nothing is opened by path that was open
//! before: a process may have given up the right to it.
//!
//! [`SwapDevices::seal_for_child`]: crate::device::SwapDevices::seal_for_child

use crate::account::Member;
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock, sleep};
use crate::config::Delivery;
use crate::control::Child;
use crate::control::limit::Press;
use crate::device::{InheritedDevice, LentPart};
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::lease::FLOOR;
use crate::reclaim::Reclaimer;
use crate::stats::{Counter, Gauges, Stats};
use overspill_os::directory::Directory;
use overspill_os::signal::{self, Blocked};
use overspill_os::token::Token;
use overspill_os::{beside, descriptors, thread, vm};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for the parent to shrink before a fork without any progress; after it the fork goes
/// on over the budget.
const SHRINK_PATIENCE: Duration = Duration::from_secs(5);
/// Pages for what comes in between the first half of a fork's preparation and the second.
const FORK_ROOM: u64 = 512;
/// Rounds of reclaim without any page before it is plain that there is nothing to take, and how
/// long: a round or two may find pages and batches in other hands, and more of them where a thread
/// that has them does not get a processor.
const FRUITLESS_ROUNDS: u64 = 4;
const FRUITLESS_TIME: Duration = Duration::from_millis(50);

/// What is the process's rather than a pool's, and stands still as long as a pool of it does: the
/// thread that forks closes it for the first of its pools, and opens it after the last.
struct ProcessGate(AtomicUsize);

static FROZEN: ProcessGate = ProcessGate(AtomicUsize::new(0));

impl ProcessGate {
    fn close(&self) {
        if self.0.fetch_add(1, Relaxed) == 0 {
            signal::fork_prepare();
            beside::fork_prepare();
        }
    }

    fn open(&self) {
        if self.0.fetch_sub(1, Relaxed) == 1 {
            beside::fork_done();
            signal::fork_done();
        }
    }
}

/// What a fork in progress has prepared for the child.
#[derive(Debug)]
struct Prepared {
    signals: u64,
    seq: u64,
    /// The child's entry in the account of the job.
    member: Option<Member>,
    /// The child's token.
    token: Option<Token>,
    /// What the child takes over.
    devices: Vec<InheritedDevice>,
    /// What was taken for it of files of this process.
    parts: Vec<LentPart>,
    gauges: Gauges,
}

/// The fork in progress.
#[derive(Debug)]
pub struct Forking {
    prepared: RankedMutex<Option<Prepared>>,
    /// One went over the budget, which was said.
    exceeded: AtomicBool,
}

impl Default for Forking {
    fn default() -> Forking {
        let prepared = RankedMutex::new(Rank::Children, None);
        Forking { prepared, exceeded: AtomicBool::new(false) }
    }
}

impl Forking {
    fn take(&self) -> Prepared {
        lock(&self.prepared).take().expect("a fork was prepared")
    }
}

impl Engine {
    /// Before a fork, first half: afterwards nothing is evicted, faults are still served.
    pub(crate) fn fork_prepare_begin(&self) {
        let signals = Blocked::all().suspend();
        self.base.gates.ops.close();
        // 1. Take back what ended children held; then a lease for the child.
        let children = &self.control.children;
        self.control.reap_before_fork();
        let seq = children.begin_fork();
        children.room_wanted.store(true, Relaxed);
        self.control.sharing.settle();
        let member = self.lease_for_child();
        self.base.gates.freeze_reclaim();
        children.room_wanted.store(false, Relaxed);
        // 2. What the child goes on with.
        let (devices, parts) = self.swap.devices.prepare_fork();
        let token = children.tokens.child();
        let gauges = self.stats.gauges();
        *lock(&self.forking.prepared) =
            Some(Prepared { signals, seq, member, token, devices, parts, gauges });
    }

    /// A lease for the child, for all that it may come to have for itself.
    fn lease_for_child(&self) -> Option<Member> {
        let (memory, budget) = (&self.memory, self.memory.budget());
        let account = memory.lease.account;
        let member = account.enter();
        // 1. All that is in use, and what comes in until the fork. This process works, also if it
        //    was at rest just now.
        self.control.aim(u64::MAX);
        if budget.limit() < FLOOR {
            memory.set_lease(FLOOR);
        }
        let used = budget.used() + budget.promised();
        let most = (used + used / 8 + budget.high() + FORK_ROOM).max(FLOOR).min(budget.limit());
        self.control.aim(most);
        if most < budget.limit() {
            memory.set_lease(most);
        }
        // The child has what is not managed as well, until it is measured.
        let lease = most + memory.lease.unmanaged();
        let has = |member: Member| member.take(lease, lease, 0) > 0;
        if !member.is_some_and(has) {
            self.reclaim.reap();
            if !member.is_some_and(has) {
                // 2. The job has not so much left: what there is, for both.
                let left = account.budget().saturating_sub(account.leased());
                let left = left.saturating_sub(memory.lease.unmanaged());
                self.control.aim(most.midpoint(left).clamp(FLOOR.min(most), most));
                self.shrink();
                let lease = budget.limit() + memory.lease.unmanaged();
                member.iter().for_each(|member| member.set(lease));
                return member;
            }
        }
        self.shrink();
        member
    }

    /// Reclaims until no more is in use than the limit is to be, and the reserve is free, which
    /// faults of this thread take while reclaim stands still: here, and by the background thread,
    /// whether it reclaims ahead of need or not.
    fn shrink(&self) {
        let (mut best, mut since) = (u64::MAX, Instant::now());
        let mut fruitless = 0;
        loop {
            let reached = self.control.press_limit() == Press::Reached;
            if reached && self.memory.budget().free_pages() >= self.memory.budget().min() {
                break;
            }
            let (used, rounds) =
                (self.memory.budget().used(), self.control.children.fruitless.load(Relaxed));
            let is_plain =
                || rounds - fruitless > FRUITLESS_ROUNDS && since.elapsed() > FRUITLESS_TIME;
            if used < best {
                (best, since, fruitless) = (used, Instant::now(), rounds);
            } else if is_plain() || since.elapsed() > SHRINK_PATIENCE {
                if !reached && !self.forking.exceeded.swap(true, Relaxed) {
                    thread::report(
                        "a process forks and there is no room to share its budget: parent and \
                         child may exceed it",
                    );
                }
                break;
            } else if !reached && !self.memory.lease.is_pressed() {
                self.control.press_again();
            }
            let inside = self.base.gates.reclaim.enter();
            if let Some(mut batch) = self.reclaim.take_batch() {
                let want = batch.capacity();
                if self.reclaim.reclaim(&mut batch, want, Reclaimer::Direct) > 0 {
                    continue;
                }
                self.control.children.fruitless.fetch_add(1, Relaxed);
            }
            drop(inside);
            self.base.wake.background.wake();
            sleep(Duration::from_micros(200));
        }
    }

    /// Before a fork, second half: the engine stands still until [`Engine::fork_parent`] or
    /// [`Engine::fork_child`].
    pub(crate) fn fork_prepare_freeze(&self) {
        vm::touch_own_stack();
        self.base.gates.faults.close();
        FROZEN.close();
        let mut prepared = lock(&self.forking.prepared);
        prepared.as_mut().expect("a fork was prepared").gauges = self.stats.gauges();
    }

    /// After a fork, in the parent. `made` is whether there is a child.
    pub(crate) fn fork_parent(&self, made: bool) {
        let Prepared { signals, seq, member, token, devices, parts, .. } = self.forking.take();
        let children = &self.control.children;
        if made {
            // Before anything can be freed: what the child must be able to read stays.
            self.swap.devices.seal_for_child(seq);
            children.end_fork(Some(Child { seq, token, parts }));
            self.stats.add(Counter::Forks, 1);
        } else {
            children.end_fork(None);
            member.iter().for_each(Member::leave);
            parts.into_iter().for_each(|lent| self.swap.devices.give_back_part(lent));
            token.into_iter().for_each(|token| children.tokens.not_made(token));
        }
        self.control.aim(u64::MAX);
        drop(devices);
        FROZEN.open();
        self.base.gates.faults.open();
        self.base.gates.reclaim.open();
        self.base.gates.ops.open();
        drop(Blocked::resume(signals));
    }

    /// After a fork, in the child: its only thread is the caller.
    pub(crate) fn fork_child(&'static self) {
        let Prepared { signals, member, token, devices, gauges, .. } = self.forking.take();
        FROZEN.open();
        beside::reset_in_child();
        self.fault.reset_in_child();
        self.reclaim.throttle.reset_in_child();
        self.restart_statistics(&gauges);
        self.base.psi.reset_in_child();
        self.control.proactive.reset_in_child();
        self.control.advice.reset_in_child();
        self.control.reset_swaps_in_child();
        // 1. What was the parent's.
        self.control.children.reset_in_child(token);
        self.base.report.reset_in_child();
        // 2. A lease of its own: as much as the parent kept.
        self.memory.adopt_lease(member);
        self.control.reset_limit_in_child();
        self.control.sharing.reset_in_child();
        self.base.wake.background.reset_in_child();
        self.base.gates.reclaim.open_in_child();
        self.base.gates.faults.open_in_child();
        // 3. A userfaultfd, registrations, devices and threads of its own.
        if let Err(error) = self.begin_in_child(devices) {
            thread::report(format_args!("the child of a fork cannot go on: {error}"));
            std::process::abort();
        }
        self.base.gates.ops.open_in_child();
        drop(Blocked::resume(signals));
    }

    /// What makes an engine of the child's copy of its parent's. The child has its parent's
    /// descriptors, under the same numbers.
    fn begin_in_child(&'static self, devices: Vec<InheritedDevice>) -> Result<(), Error> {
        let uffd = self.memory.frames.backing.uffd();
        let no_uffd = |errno| Error::NoUserfaultfd { errno };
        let mut parents: Vec<_> = self.swap.devices.fds();
        parents.push(uffd.raw_fd());
        self.memory.force_reader.reset_in_child();
        uffd.reopen(self.config.delivery == Delivery::Signal).map_err(no_uffd)?;
        self.space.settle_child_mappings().map_err(no_uffd)?;
        for error in self.swap.devices.adopt_in_child(devices, &self.control.swaps.list()) {
            thread::report(format_args!("in the child of a fork: {error}"));
        }
        self.control.note_missing_in_child();
        self.swap.drop_copies_in_child();
        parents.into_iter().for_each(descriptors::close);
        self.start_threads(true)
    }

    /// The child's statistics go to a file of its own, beside the parent's.
    fn restart_statistics(&self, gauges: &Gauges) {
        let run_dir = self.config.run_dir.as_deref().map(Directory::trusted);
        let file = run_dir.and_then(|run_dir| Stats::make_file(&run_dir.ok()?).ok());
        use std::os::fd::AsFd;
        if self.stats.restart(file.as_ref().map(|file| file.as_fd()), gauges).is_err() {
            let _ = self.stats.restart(None, gauges);
        }
    }
}
