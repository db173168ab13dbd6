//! fork: a process and its children share content, not engines.
//!
//! The child gets a copy of every table and of the arena with the address space. What it needs
//! besides: a userfaultfd of its own (the kernel takes the parent's off its mappings), engine
//! threads of its own, the parent's swap devices to read what was stored there, devices of its own
//! to write to, and a lease of its own on the job's budget.
//!
//! 1. Before: mapping calls stop, and the child gets a lease. Where the job has plenty left, that
//!    is for all that its parent has in memory, since it may come to have all of it for itself; and
//!    else for what they cannot share, and what they share counts once until one of them writes to
//!    it ([`crate::memory::shares`]). Only where there is not even that left the parent shrinks.
//!    Reclaim stops, the swap devices are opened once more for the child.
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

pub mod prepared;

use crate::account::Member;
use crate::base::sync::{lock, sleep};
use crate::config::Delivery;
use crate::control::Child;
use crate::control::limit::Press;
use crate::device::InheritedDevice;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::lease::FLOOR;
use crate::reclaim::Reclaimer;
use crate::stats::{Counter, Gauges, Stats};
use overspill_os::directory::Directory;
use overspill_os::signal::{self, Blocked};
use overspill_os::{beside, descriptors, thread, vm};
use prepared::{ChildLease, Prepared};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longest wait for the parent to shrink before a fork without any progress; after it the fork goes
/// on over the budget.
const SHRINK_PATIENCE: Duration = Duration::from_secs(5);
/// Pages for what comes in between the first half of a fork's preparation and the second.
const FORK_ROOM: u64 = 512;
/// How many times what a child may come to have for itself there has to be, so that it gets a lease
/// for that: the rest is for others, as long as it has it.
const PLENTY: u64 = 2;
/// Rounds of reclaim without any page before it is plain that there is nothing to take, and how
/// long: a round or two may find pages and batches in other hands, and more of them where a thread
/// that has them does not get a processor.
const FRUITLESS_ROUNDS: u64 = 4;
const FRUITLESS_TIME: Duration = Duration::from_millis(50);

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
        let lease = self.lease_for_child();
        self.base.gates.freeze_reclaim();
        if lease.own.is_some() {
            self.memory.mark_shared();
        }
        children.room_wanted.store(false, Relaxed);
        // 2. What the child goes on with.
        let (devices, parts) = self.swap.devices.prepare_fork();
        let token = children.tokens.child();
        let gauges = self.stats.gauges();
        *lock(&self.forking.prepared) =
            Some(Prepared { signals, seq, lease, token, devices, parts, gauges });
    }

    /// A lease for the child.
    fn lease_for_child(&self) -> ChildLease {
        let (memory, budget) = (&self.memory, self.memory.budget());
        let account = memory.lease.account;
        let member = account.enter();
        memory.settle_shares();
        // 1. All that is in use, and what comes in until the fork. This process works, also if it
        //    was at rest just now.
        self.control.aim(u64::MAX);
        memory.have_floor();
        let used = budget.used() + budget.promised();
        let most = (used + used / 8 + budget.high() + FORK_ROOM).max(FLOOR).min(budget.limit());
        self.control.aim(most);
        if most < budget.limit() {
            memory.set_lease(most);
        }
        // The child has what is not managed as well, until it is measured.
        let unmanaged = memory.lease.unmanaged();
        let lease = most + unmanaged;
        let has = |pages: u64| member.is_some_and(|member| member.take(pages, pages, 0) > 0);
        let left = || account.budget().saturating_sub(account.leased());
        if left() < PLENTY * lease {
            self.reclaim.reap();
        }
        if left() >= PLENTY * lease && has(lease) {
            self.shrink();
            return ChildLease { member, own: None };
        }
        // 2. Not so much is left: what it cannot share. Where processes write into each other's
        //    memory they share nothing: such a write would fail.
        let shares = !account.has_remote_writes();
        let shared = || if shares { memory.shareable() } else { 0 };
        let own = || {
            let used = budget.used() + budget.promised();
            (used + budget.high() + FORK_ROOM + unmanaged).saturating_sub(shared()).max(1)
        };
        let mut pages = own();
        if has(pages) {
            self.shrink();
        } else {
            // 3. Nor that. What leaves this process its child needs no room for, but if it is
            //    compressed both have it then.
            let lacks = pages.saturating_sub(left());
            let gives = if shares { 2 * lacks } else { lacks.div_ceil(2) };
            self.control.aim(most.saturating_sub(gives).clamp(FLOOR.min(most), most));
            self.shrink();
            pages = own();
            member.iter().for_each(|member| member.set(pages));
        }
        ChildLease { member, own: shares.then_some(pages) }
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

    /// Before a fork, second half: these engines stand still until [`Engine::fork_parent`] or
    /// [`Engine::fork_child`]. What the process has once is taken when no fault is under way that
    /// could need it.
    pub(crate) fn fork_prepare_freeze(engines: &[&Engine]) {
        vm::touch_own_stack();
        engines.iter().for_each(|engine| engine.base.gates.faults.close());
        signal::fork_prepare();
        beside::fork_prepare();
        for engine in engines {
            let mut prepared = lock(&engine.forking.prepared);
            let prepared = prepared.as_mut().expect("a fork was prepared");
            if let ChildLease { member: Some(member), own: Some(own) } = prepared.lease {
                engine.memory.share_with(member, own);
            }
            prepared.gauges = engine.stats.gauges();
        }
    }

    /// After a fork, in the parent. `made` is whether there is a child.
    pub(crate) fn fork_parent(engines: &[&Engine], made: bool) {
        let settled: Vec<_> = engines.iter().map(|engine| engine.settle_fork(made)).collect();
        beside::fork_done();
        signal::fork_done();
        // The first has blocked the signals that were open: its turn is last.
        for (engine, signals) in engines.iter().zip(settled).rev() {
            engine.base.gates.faults.open();
            engine.base.gates.reclaim.open();
            engine.base.gates.ops.open();
            drop(Blocked::resume(signals));
        }
    }

    /// What of a fork the parent keeps. Returns the signals that were blocked before.
    fn settle_fork(&self, made: bool) -> u64 {
        let Prepared { signals, seq, lease, token, devices, parts, .. } = self.forking.take();
        let children = &self.control.children;
        if made {
            // Before anything can be freed: what the child must be able to read stays.
            self.swap.devices.seal_for_child(seq);
            children.end_fork(Some(Child { seq, token, parts }));
            self.stats.add(Counter::Forks, 1);
        } else {
            children.end_fork(None);
            lease.member.iter().for_each(Member::leave);
            parts.into_iter().for_each(|lent| self.swap.devices.give_back_part(lent));
            token.into_iter().for_each(|token| children.tokens.not_made(token));
        }
        if lease.own.is_some() {
            // What was for the time of the fork: others may need it, before anybody looks.
            self.memory.trim_lease();
        }
        self.control.aim(u64::MAX);
        drop(devices);
        signals
    }

    /// After a fork, in the child: its only thread is the caller.
    pub(crate) fn fork_child(engines: &[&'static Engine]) {
        beside::fork_done();
        signal::fork_done();
        beside::reset_in_child();
        engines.iter().rev().for_each(|engine| engine.begin_child());
    }

    /// What was the parent's, and what the child has of its own.
    fn begin_child(&'static self) {
        let Prepared { signals, lease, token, devices, gauges, .. } = self.forking.take();
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
        // 2. A lease of its own.
        self.memory.adopt_lease(lease.member);
        self.control.reset_limit_in_child();
        self.control.sharing.reset_in_child();
        self.base.wake.reset_in_child();
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
        let parents = self.swap.devices.fds();
        self.memory.force_reader.reset_in_child();
        uffd.reopen(self.config.delivery == Delivery::Signal).map_err(no_uffd)?;
        self.space.settle_child_mappings().map_err(no_uffd)?;
        for error in self.swap.devices.adopt_in_child(devices, &self.control.swaps.list()) {
            thread::report(format_args!("in the child of a fork: {error}"));
        }
        self.control.note_missing_in_child();
        self.swap.drop_copies_in_child();
        self.memory.protect_shared_in_child().map_err(no_uffd)?;
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
