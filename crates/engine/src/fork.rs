//! fork: a process and its children share content, not engines.
//!
//! The child gets a copy of every table and of the arena with the address space. What it needs
//! besides: a userfaultfd of its own (the kernel takes the parent's off its mappings), engine
//! threads of its own, the parent's swap devices to read what was stored there, devices of its own
//! to write to, and a share of the budget.
//!
//! 1. Before: mapping calls stop, the parent shrinks to half of its share of the budget (parent and
//!    child together then never hold more than the whole, whatever they come to share or not),
//!    reclaim stops, the swap devices are opened once more for the child.
//! 2. The program's own preparations run, with faults still served. Then faults stop too.
//! 3. Parent: what is stored stays stored for the child ([`SwapDevices::seal_for_child`]);
//!    everything goes on.
//! 4. Child: see [`Engine::fork_child`].
//!
//! A child is *gone* when it and all that descend from it have ended or execute another program
//! ([`Tokens`]). Then the parent takes its [`Share`] of the budget back, and slots that only the
//! child still needed.
//!
//! **Descriptors.** The engine's lie in the program's table, which a fork copies, so the child has
//! its parent's; what it does not go on with it closes. Nothing is opened by path that was open
//! before: a process may have given up the right to it.
//!
//! [`SwapDevices::seal_for_child`]: crate::device::SwapDevices::seal_for_child

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedGuard, RankedMutex, lock, sleep};
use crate::config::Delivery;
use crate::control::limit::{Press, Share};
use crate::device::{InheritedDevice, LentPart};
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::delivery;
use crate::reclaim::Reclaimer;
use crate::stats::{Counter, Gauges};
use overspill_os::signal::{self, Blocked};
use overspill_os::token::{Token, Tokens};
use overspill_os::{Errno, beside, descriptors, thread, vm};
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for the parent to shrink before a fork without any progress; after it the fork goes
/// on over the budget.
const SHRINK_STALL: Duration = Duration::from_secs(5);
/// How long faults of other threads wait for room while a fork has stopped reclaim. A fork does
/// that for some milliseconds, on a busy machine for some hundred; if it waits for a thread that
/// waits for room, it takes so much longer.
const FREEZE_PATIENCE: Duration = Duration::from_secs(1);
/// Rounds of reclaim without any page before it is plain that there is nothing to take, and how
/// long: a round or two may find pages and batches in other hands, and more of them where a thread
/// that has them does not get a processor.
const FRUITLESS_ROUNDS: u64 = 4;
const FRUITLESS_TIME: Duration = Duration::from_millis(50);

/// A living child, as its parent sees it.
#[derive(Debug)]
struct Child {
    /// Number of the fork, from 1.
    seq: u64,
    /// Its share of the budget.
    share: Share,
    /// Tells when it is gone; without it (no more places) it is taken to live for ever, which costs
    /// room.
    token: Option<Token>,
    /// What was taken for it of files of this process.
    parts: Vec<LentPart>,
}

/// What a fork in progress has prepared for the child.
#[derive(Debug)]
struct Prepared {
    signals: u64,
    seq: u64,
    share: Share,
    /// The child's token.
    token: Option<Token>,
    /// What the child takes over.
    devices: Vec<InheritedDevice>,
    /// What was taken for it of files of this process.
    parts: Vec<LentPart>,
    gauges: Gauges,
}

/// Relations to parent and children.
#[derive(Debug)]
pub(crate) struct Family {
    /// The processes that share memory since a fork.
    tokens: Tokens,
    /// Rounds of background reclaim that freed nothing.
    pub fruitless: AtomicU64,
    /// A fork wants the reserve to be free.
    pub room_wanted: AtomicBool,
    /// A fork went over the budget, which was said.
    exceeded: AtomicBool,
    /// The last thread that stopped reclaim to fork, and when that was.
    forker: AtomicI32,
    frozen_at_ns: AtomicU64,
    began: Instant,
    state: RankedMutex<State>,
}

impl Family {
    /// Of a process without children.
    pub fn new() -> Result<Family, Errno> {
        Ok(Family {
            tokens: Tokens::new()?,
            fruitless: AtomicU64::new(0),
            room_wanted: AtomicBool::new(false),
            exceeded: AtomicBool::new(false),
            forker: AtomicI32::new(0),
            frozen_at_ns: AtomicU64::new(0),
            began: Instant::now(),
            state: RankedMutex::new(Rank::Family, State::default()),
        })
    }

    /// Has the calling thread, which lives as long as its process, hold the token of that.
    pub fn hold_token(&self) {
        self.tokens.hold();
    }
}

#[derive(Default, Debug)]
struct State {
    children: Vec<Child>,
    forks: u64,
    /// A fork is under way: children are not looked for.
    forking: bool,
    prepared: Option<Prepared>,
}

impl Engine {
    /// Before a fork, first half: afterwards nothing is evicted, faults are still served.
    pub(crate) fn fork_prepare_begin(&self) {
        let signals = Blocked::all().suspend();
        self.ops_gate.close();
        // 1. Take back what ended children held; then shrink to half.
        self.reap_gone(lock(&self.family.state));
        // What children give back from now on the child must not count on: it is to have no more
        // than its share.
        lock(&self.family.state).forking = true;
        let share = self.lend_half();
        self.shrink();
        self.family.forker.store(thread::id(), Relaxed);
        self.family.frozen_at_ns.store(self.family.began.elapsed().as_nanos() as u64, Relaxed);
        self.reclaim_gate.close();
        // 2. What the child goes on with.
        let (devices, parts) = self.devices.prepare_fork();
        let mut state = lock(&self.family.state);
        state.forks += 1;
        state.prepared = Some(Prepared {
            signals,
            seq: state.forks,
            share,
            token: self.family.tokens.child(),
            devices,
            parts,
            gauges: self.stats.gauges(),
        });
    }

    /// Reclaims until no more is in use than the limit is to be, and the reserve is free, which
    /// faults of this thread take while reclaim stands still: here, and by the background thread,
    /// whether it reclaims ahead of need or not.
    fn shrink(&self) {
        self.family.room_wanted.store(true, Relaxed);
        let (mut best, mut since) = (u64::MAX, Instant::now());
        let mut fruitless = 0;
        loop {
            let reached = self.press_limit() == Press::Reached;
            if reached && self.budget().free_pages() >= self.budget().min() {
                break;
            }
            let (used, rounds) = (self.budget().used(), self.family.fruitless.load(Relaxed));
            let is_plain =
                || rounds - fruitless > FRUITLESS_ROUNDS && since.elapsed() > FRUITLESS_TIME;
            if used < best {
                (best, since, fruitless) = (used, Instant::now(), rounds);
            } else if is_plain() || since.elapsed() > SHRINK_STALL {
                if !reached && !self.family.exceeded.swap(true, Relaxed) {
                    thread::report(
                        "a process forks and there is no room to share its budget: parent and \
                         child may exceed it",
                    );
                }
                break;
            } else if !reached && !self.limits.is_pressed() {
                self.limits.press_again();
            }
            let inside = self.reclaim_gate.enter();
            if let Some(mut batch) = self.batches.try_take() {
                let want = batch.capacity();
                if self.reclaim(&mut batch, want, Reclaimer::Direct) > 0 {
                    continue;
                }
                self.family.fruitless.fetch_add(1, Relaxed);
            }
            drop(inside);
            self.kick_background();
            sleep(Duration::from_micros(200));
        }
        self.family.room_wanted.store(false, Relaxed);
    }

    /// Whether a fault of thread `tid` for which there is no room may go over the budget while a
    /// fork has stopped reclaim. The thread that forks may. Another waits for the fork to end, but
    /// not for long: the fork may need a lock that it has.
    pub(crate) fn may_exceed(&self, tid: i32) -> bool {
        let forker = self.family.forker.load(Relaxed);
        let frozen_ns =
            self.family.began.elapsed().as_nanos() as u64 - self.family.frozen_at_ns.load(Relaxed);
        tid == forker || frozen_ns > FREEZE_PATIENCE.as_nanos() as u64
    }

    /// Before a fork, second half: the engine stands still until [`Engine::fork_parent`] or
    /// [`Engine::fork_child`].
    pub(crate) fn fork_prepare_freeze(&self) {
        vm::touch_own_stack();
        self.fault_gate.close();
        signal::fork_prepare();
        beside::fork_prepare();
        let mut state = lock(&self.family.state);
        state.prepared.as_mut().expect("a fork was prepared").gauges = self.stats.gauges();
    }

    /// After a fork, in the parent. `made` is whether there is a child.
    pub(crate) fn fork_parent(&self, made: bool) {
        let mut state = lock(&self.family.state);
        let Prepared { signals, seq, share, token, devices, parts, .. } =
            state.prepared.take().expect("a fork was prepared");
        state.forking = false;
        if made {
            // Before anything can be freed: what the child must be able to read stays.
            self.devices.seal_for_child(seq);
            state.children.push(Child { seq, share, token, parts });
            self.stats.add(Counter::Forks, 1);
        } else {
            self.take_back(share);
            parts.into_iter().for_each(|lent| self.devices.give_back_part(lent));
            token.into_iter().for_each(|token| self.family.tokens.not_made(token));
        }
        drop((state, devices));
        beside::fork_done();
        signal::fork_done();
        self.fault_gate.open();
        self.reclaim_gate.open();
        self.ops_gate.open();
        drop(Blocked::resume(signals));
    }

    /// After a fork, in the child: its only thread is the caller.
    pub(crate) fn fork_child(&'static self) {
        let mut state = lock(&self.family.state);
        let Prepared { signals, share, token, devices, gauges, .. } =
            state.prepared.take().expect("a fork was prepared");
        beside::fork_done();
        signal::fork_done();
        beside::reset_in_child();
        self.stacks.reset_in_child();
        self.throttle.reset_in_child();
        self.restart_statistics(&gauges);
        self.pressures.reset_in_child();
        self.proactive.reset_in_child();
        self.wishes.reset_in_child();
        self.reset_swaps_in_child();
        // 1. What was the parent's.
        state.children.clear();
        (state.forks, state.forking) = (0, false);
        drop(state);
        self.family.tokens.adopt(token);
        self.reset_reported();
        // 2. Its share of the budget: as much as the parent kept.
        self.begin_with(share);
        self.background.store(0, Relaxed);
        self.reclaim_gate.open_in_child();
        self.fault_gate.open_in_child();
        // 3. A userfaultfd, registrations, devices and threads of its own.
        if let Err(error) = self.begin_in_child(devices) {
            thread::report(format_args!("the child of a fork cannot go on: {error}"));
            std::process::abort();
        }
        self.ops_gate.open_in_child();
        drop(Blocked::resume(signals));
    }

    /// What makes an engine of the child's copy of its parent's. The child has its parent's
    /// descriptors, under the same numbers.
    fn begin_in_child(&'static self, devices: Vec<InheritedDevice>) -> Result<(), Error> {
        let uffd = self.frames.backing.uffd();
        let no_uffd = |errno| Error::NoUserfaultfd { errno };
        let mut parents: Vec<_> = self.devices.fds();
        parents.push(uffd.raw_fd());
        self.force_reader.reset_in_child();
        uffd.reopen(self.config.delivery == Delivery::Signal).map_err(no_uffd)?;
        self.settle_child_mappings().map_err(no_uffd)?;
        for error in self.devices.adopt_in_child(devices, &self.swaps.list()) {
            thread::report(format_args!("in the child of a fork: {error}"));
        }
        self.note_missing_in_child();
        self.drop_copies_in_child();
        parents.into_iter().for_each(descriptors::close);
        delivery::start_threads(self, true)
    }

    /// The child's statistics go to a file of its own, beside the parent's.
    fn restart_statistics(&self, gauges: &Gauges) {
        let file = self.config.stats_file.as_ref().and_then(|path| {
            let path = path.with_file_name(format!("stats.{}", std::process::id()));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            descriptors::open(|| rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)).ok()
        });
        use std::os::fd::AsFd;
        if self.stats.restart(file.as_ref().map(|file| file.as_fd()), gauges).is_err() {
            let _ = self.stats.restart(None, gauges);
        }
    }

    /// Takes back what children held who are gone. Called by the background thread, which waits for
    /// nobody.
    pub(crate) fn reap_children(&self) {
        if let Some(state) = self.family.state.try_lock() {
            self.reap_gone(state);
        }
    }

    fn reap_gone(&self, mut state: RankedGuard<'_, State>) {
        if state.children.is_empty() || state.forking {
            return;
        }
        let gone = self
            .family
            .tokens
            .take_gone(&mut state.children.iter().filter_map(|child| child.token));
        if gone.is_empty() {
            return;
        }
        let is_gone = |child: &mut Child| child.token.is_some_and(|token| gone.contains(&token));
        for child in state.children.extract_if(.., is_gone) {
            self.take_back(child.share);
            child.parts.iter().for_each(|lent| self.devices.give_back_part(*lent));
        }
        self.devices.unseal(state.children.iter().map(|child| child.seq).min());
    }
}
