//! fork: a process and its children share content, not engines.
//!
//! The child gets a copy of every table and of the arena with the address space. What it needs besides: a
//! userfaultfd of its own (the kernel takes the parent's off its mappings), engine threads of its own, the
//! parent's swap devices to read what was stored there, devices of its own to write to, and a share of the budget.
//!
//! 1. Before: mapping calls stop, the parent shrinks to half of its share of the budget (parent and child together then
//!    never hold more than the whole, whatever they come to share or not), reclaim stops, descriptors for the child are
//!    opened.
//! 2. The program's own preparations run, with faults still served. Then faults stop too.
//! 3. Parent: what is stored stays stored for the child ([`SwapDevices::seal_for_child`]); everything goes on.
//! 4. Child: see [`Engine::fork_child`].
//!
//! A child is *gone* when the last process that inherited its [`Token`] is: it is passed on through every further fork,
//! closed by exec and exit. Then the parent takes its [`Share`] of the budget back, and slots that only the child still
//! needed.
//!
//! **Descriptors.** In thread delivery the engine's lie in a table of its threads' own, and a fork copies the table of the
//! thread that forks. So that thread takes duplicates of what the child needs ([`thread::duplicate`]), the child's
//! handler keeps them for itself, and both close them in the program's table. Nothing is opened by path that was open
//! before: a process may have given up the right to it.
//!
//! [`SwapDevices::seal_for_child`]: crate::device::SwapDevices::seal_for_child

use crate::config::Delivery;
use crate::delivery;
use crate::device::{InheritedDevice, LentPart};
use crate::engine::Engine;
use crate::limit::{Press, Share};
use crate::lockdep::Rank;
use crate::reclaim::Reclaimer;
use crate::stats::{Counter, Gauges};
use crate::sync::{RankedMutex, lock, sleep};
use overspill_os::io::File;
use overspill_os::signal::{self, Blocked};
use overspill_os::token::{self, Token, Watch};
use overspill_os::{Errno, descriptors, thread, vm};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for the parent to shrink before a fork without any progress; after it the fork goes on over the budget.
const SHRINK_STALL: Duration = Duration::from_secs(5);
/// How long faults of other threads wait for room while a fork has stopped reclaim. A fork does that for some milliseconds,
/// on a busy machine for some hundred; if it waits for a thread that waits for room, it takes so much longer.
const FREEZE_PATIENCE: Duration = Duration::from_secs(1);
/// Rounds of reclaim without any page before it is plain that there is nothing to take, and how long: a round or two may find pages and
/// batches in other hands, and more of them where a thread that has them does not get a processor.
const FRUITLESS_ROUNDS: u64 = 4;
const FRUITLESS_TIME: Duration = Duration::from_millis(50);

/// Longest wait for a look at which children are gone: the background thread may be in the middle of a batch.
const REAP_WAIT: Duration = Duration::from_millis(50);

/// A living child, as its parent sees it.
#[derive(Debug)]
struct Child {
    /// Number of the fork, from 1.
    seq: u64,
    /// Its share of the budget.
    share: Share,
    /// Tells when it is gone; without it (no more descriptors) it is taken to live for ever, which costs room.
    watch: Option<Watch>,
    /// This process's own copy of its token, closed at the next look.
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
    /// The child's token, and what tells of its end: in the engine's table.
    watch: Option<Watch>,
    token: Option<Token>,
    /// What the child takes over: duplicates in the program's table.
    tokens: Vec<Token>,
    devices: Vec<InheritedDevice>,
    /// What was taken for it of files of this process.
    parts: Vec<LentPart>,
    uffd_device: Option<File>,
    /// Whether a token of an ancestor's could not be duplicated: the child must not live.
    incomplete: bool,
    gauges: Gauges,
    _files: FileLimit,
}

/// The limit of open files, raised while a fork needs some that the program may have no room for; lowered when
/// dropped, in parent and child alike.
#[derive(Debug)]
struct FileLimit(Option<Rlimit>);

impl FileLimit {
    /// More than a process has tokens and devices, inherited ones included.
    const EXTRA: u64 = 256;

    fn raise() -> FileLimit {
        let before = getrlimit(Resource::Nofile);
        let raised = before.current.map(|soft| soft + Self::EXTRA);
        let current = match (raised, before.maximum) {
            (Some(soft), Some(hard)) => Some(soft.min(hard)),
            (soft, _) => soft,
        };
        FileLimit(setrlimit(Resource::Nofile, Rlimit { current, ..before }).is_ok().then_some(before))
    }
}

impl Drop for FileLimit {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            let _ = setrlimit(Resource::Nofile, before);
        }
    }
}

/// Relations to parent and children.
#[derive(Debug)]
pub(crate) struct Family {
    /// The engine thread in whose descriptor table the engine's descriptors are; 0 when that is the program's own.
    handler: AtomicI32,
    /// A look for ended children is asked for; how many there were.
    pub reap: AtomicBool,
    reaped: AtomicU64,
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

impl Default for Family {
    fn default() -> Family {
        Family {
            handler: AtomicI32::new(0),
            reap: AtomicBool::new(false),
            reaped: AtomicU64::new(0),
            fruitless: AtomicU64::new(0),
            room_wanted: AtomicBool::new(false),
            exceeded: AtomicBool::new(false),
            forker: AtomicI32::new(0),
            frozen_at_ns: AtomicU64::new(0),
            began: Instant::now(),
            state: RankedMutex::new(Rank::Family, State::default()),
        }
    }
}

#[derive(Default, Debug)]
struct State {
    /// Tokens of this process itself: those that its parent and its ancestors watch.
    held: Vec<Token>,
    children: Vec<Child>,
    /// Files in the engine's table that are to be closed there.
    litter: Vec<File>,
    forks: u64,
    /// A fork is under way: children are not looked for.
    forking: bool,
    prepared: Option<Prepared>,
}

impl Family {
    /// Notes which thread has the engine's descriptors.
    pub fn set_handler(&self, tid: i32) {
        self.handler.store(tid, Relaxed);
    }

    fn handler_tid(&self) -> i32 {
        match self.handler.load(Relaxed) {
            0 => thread::id(),
            tid => tid,
        }
    }
}

/// A duplicate in the calling thread's table of a descriptor in that of thread `tid`, by path where it must be.
fn duplicate(tid: i32, fd: RawFd) -> Result<File, Errno> {
    thread::duplicate(tid, fd).or_else(|_| File::reopen(tid as u32, fd))
}

impl Engine {
    /// Before a fork, first half: afterwards nothing is evicted, faults are still served.
    pub(crate) fn fork_prepare_begin(&self) {
        let signals = Blocked::all().suspend();
        self.ops_gate.close();
        // 1. Take back what ended children held; then shrink to half.
        self.reap_now();
        // What children give back from now on the child must not count on: it is to have no more than its share.
        lock(&self.family.state).forking = true;
        let share = self.lend_half();
        self.shrink();
        self.family.forker.store(thread::id(), Relaxed);
        self.family.frozen_at_ns.store(self.family.began.elapsed().as_nanos() as u64, Relaxed);
        self.reclaim_gate.close();
        // 2. Descriptors for the child.
        let files = FileLimit::raise();
        let made = self.make_token();
        let mut state = lock(&self.family.state);
        state.forks += 1;
        let seq = state.forks;
        let tid = self.family.handler_tid();
        let copy = |token: &Token| token.0.raw_fd().and_then(|fd| duplicate(tid, fd)).map(Token);
        let mut tokens = Vec::with_capacity(state.held.len() + 1);
        tokens.extend(state.held.iter().map_while(|token| copy(token).ok()));
        let incomplete = tokens.len() < state.held.len();
        let (mut watch, token) = made.unzip();
        match token.as_ref().map(copy) {
            Some(Ok(copy)) => tokens.push(copy),
            // A child without one would seem to be gone at once.
            _ => state.litter.extend(watch.take().map(|watch| watch.0)),
        }
        let (mut devices, mut parts) = (Vec::new(), Vec::new());
        for (index, fd) in self.devices.prepare_fork() {
            // With locks of its own if it can be opened once more; else it shares those of this process.
            let own = File::reopen(tid as u32, fd).ok().filter(|file| self.devices.lock_for_child(index, file));
            let own_locks = own.is_some();
            if let Some(file) = own.or_else(|| thread::duplicate(tid, fd).ok()) {
                let lent = self.devices.take_part(index);
                parts.extend(lent);
                let part = lent.map(|lent| lent.part);
                devices.push(InheritedDevice { index, file, own_locks, part });
            }
        }
        let uffd_device = self.frames.backing.uffd().device_fd().and_then(|fd| thread::duplicate(tid, fd).ok());
        let (gauges, _files) = (self.stats.gauges(), files);
        let prepared = Prepared {
            signals,
            seq,
            share,
            watch,
            token,
            tokens,
            devices,
            parts,
            uffd_device,
            incomplete,
            gauges,
            _files,
        };
        state.prepared = Some(prepared);
    }

    /// A new token in the engine's table of descriptors.
    fn make_token(&self) -> Option<(Watch, Token)> {
        match self.config.delivery {
            Delivery::Thread => self.call_for_token(),
            Delivery::Signal => token::pair(),
        }
        .ok()
    }

    /// Has the background thread, which has the descriptors, look for children that are gone, and waits for it.
    fn reap_now(&self) {
        if lock(&self.family.state).children.is_empty() {
            return;
        }
        let before = self.family.reaped.load(Relaxed);
        self.family.reap.store(true, Relaxed);
        let since = Instant::now();
        while self.family.reaped.load(Relaxed) == before && since.elapsed() < REAP_WAIT {
            self.kick_background();
            sleep(Duration::from_micros(20));
        }
    }

    /// Reclaims until no more is in use than the limit is to be, and the reserve is free, which faults of this thread take
    /// while reclaim stands still: here where this thread has the userfaultfd, else by the background thread, whether it
    /// reclaims ahead of need or not.
    fn shrink(&self) {
        let here = self.config.delivery == Delivery::Signal;
        self.family.room_wanted.store(true, Relaxed);
        let (mut best, mut since) = (u64::MAX, Instant::now());
        let mut fruitless = 0;
        loop {
            let reached = self.press_limit() == Press::Reached;
            if reached && self.budget().free_pages() >= self.budget().min() {
                break;
            }
            let (used, rounds) = (self.budget().used(), self.family.fruitless.load(Relaxed));
            let is_plain = || rounds - fruitless > FRUITLESS_ROUNDS && since.elapsed() > FRUITLESS_TIME;
            if used < best {
                (best, since, fruitless) = (used, Instant::now(), rounds);
            } else if is_plain() || since.elapsed() > SHRINK_STALL {
                if !reached && !self.family.exceeded.swap(true, Relaxed) {
                    thread::report(
                        "a process forks and there is no room to share its budget: parent and child may exceed it",
                    );
                }
                break;
            } else if !reached && !self.limits.is_pressed() {
                self.limits.press_again();
            }
            if here {
                let _inside = self.reclaim_gate.enter();
                if let Some(mut batch) = self.batches.try_take() {
                    let want = batch.capacity();
                    if self.reclaim(&mut batch, want, Reclaimer::Direct) > 0 {
                        continue;
                    }
                    self.family.fruitless.fetch_add(1, Relaxed);
                }
            }
            self.kick_background();
            sleep(Duration::from_micros(200));
        }
        self.family.room_wanted.store(false, Relaxed);
    }

    /// Whether a fault of thread `tid` for which there is no room may go over the budget while a fork has stopped reclaim. The
    /// thread that forks may. Another waits for the fork to end, but not for long: the fork may need a lock that it has.
    pub(crate) fn may_exceed(&self, tid: i32) -> bool {
        let forker = self.family.forker.load(Relaxed);
        let frozen_ns = self.family.began.elapsed().as_nanos() as u64 - self.family.frozen_at_ns.load(Relaxed);
        tid == forker || frozen_ns > FREEZE_PATIENCE.as_nanos() as u64
    }

    /// Before a fork, second half: the engine stands still until [`Engine::fork_parent`] or [`Engine::fork_child`].
    pub(crate) fn fork_prepare_freeze(&self) {
        vm::touch_own_stack();
        self.fault_gate.close();
        signal::fork_prepare();
        let mut state = lock(&self.family.state);
        state.prepared.as_mut().expect("a fork was prepared").gauges = self.stats.gauges();
    }

    /// After a fork, in the parent.
    pub(crate) fn fork_parent(&self) {
        let mut state = lock(&self.family.state);
        let prepared = state.prepared.take().expect("a fork was prepared");
        // Before anything can be freed: what the child must be able to read stays.
        self.devices.seal_for_child(prepared.seq);
        let Prepared { seq, share, watch, token, parts, .. } = prepared;
        // In signal delivery it lies in the program's table, where other children would inherit it.
        let token = token.filter(|_| self.config.delivery == Delivery::Thread);
        state.forking = false;
        state.children.push(Child { seq, share, watch, token, parts });
        self.stats.add(Counter::Forks, 1);
        drop(state);
        signal::fork_done();
        self.fault_gate.open();
        self.reclaim_gate.open();
        self.ops_gate.open();
        drop(Blocked::resume(prepared.signals));
    }

    /// After a fork, in the child: its only thread is the caller.
    pub(crate) fn fork_child(&'static self) {
        let mut state = lock(&self.family.state);
        let prepared = state.prepared.take().expect("a fork was prepared");
        signal::fork_done();
        self.stacks.reset_in_child();
        thread::reset_in_child();
        self.throttle.reset_in_child();
        self.restart_statistics(&prepared.gauges);
        self.pressures.reset_in_child();
        self.proactive.reset_in_child();
        self.wishes.reset_in_child();
        self.reset_swaps_in_child();
        // 1. What was the parent's: children and tokens.
        let mut parents: Vec<File> = Vec::new();
        for Child { watch, token, .. } in state.children.drain(..) {
            parents.extend(watch.map(|watch| watch.0));
            parents.extend(token.map(|token| token.0));
        }
        parents.append(&mut state.litter);
        parents.extend(prepared.watch.map(|watch| watch.0));
        parents.extend(prepared.token.into_iter().chain(state.held.drain(..)).map(|token| token.0));
        self.forget_parents(parents);
        (state.forks, state.forking) = (0, false);
        state.held = prepared.tokens;
        let files = (state.held.iter().map(|token| &token.0))
            .chain(prepared.devices.iter().map(|device| &device.file))
            .chain(&prepared.uffd_device);
        let keep: Vec<RawFd> = files.filter_map(|file| file.raw_fd().ok()).collect();
        drop(state);
        self.reset_reported();
        // 2. Its share of the budget: as much as the parent kept.
        self.begin_with(prepared.share);
        self.background.store(0, Relaxed);
        self.reclaim_gate.open_in_child();
        self.fault_gate.open_in_child();
        // 3. A userfaultfd, registrations, devices and threads of its own.
        let Prepared { devices, uffd_device, .. } = prepared;
        if prepared.incomplete {
            // An ancestor would take it for gone, and hand out slots that it needs.
            thread::report("the child of a fork cannot go on: it has no descriptors left");
            std::process::abort();
        }
        let adopt = move || -> Result<&'static Engine, crate::error::Error> {
            let signal = self.config.delivery == Delivery::Signal;
            let uffd = self.frames.backing.uffd();
            let no_uffd = |errno| crate::error::Error::NoUserfaultfd { errno };
            // In signal delivery the child has its parent's descriptors, under the same numbers.
            let mut parents = Vec::new();
            if signal {
                parents.push(uffd.raw_fd());
                parents.extend(self.devices.fds().into_iter().map(|(_, fd)| fd));
            }
            self.force_reader.reset_in_child(signal);
            uffd.reopen(signal, uffd_device).map_err(no_uffd)?;
            self.settle_child_mappings().map_err(no_uffd)?;
            for error in self.devices.adopt_in_child(devices, &self.swaps.list(), signal) {
                thread::report(format_args!("in the child of a fork: {error}"));
            }
            self.note_missing_in_child();
            self.drop_copies_in_child();
            parents.into_iter().for_each(descriptors::close);
            Ok(self)
        };
        let started = match self.config.delivery {
            Delivery::Thread => {
                let copies = keep.clone();
                let started = delivery::start_handler(keep, adopt);
                // The handler has them in a table of its own.
                copies.into_iter().for_each(descriptors::close);
                started
            }
            Delivery::Signal => adopt().and_then(delivery::start_background),
        };
        if let Err(error) = started {
            thread::report(format_args!("the child of a fork cannot go on: {error}"));
            std::process::abort();
        }
        self.ops_gate.open_in_child();
        drop(Blocked::resume(prepared.signals));
    }

    /// In the child: gives up descriptors that it has from its parent. In thread delivery their numbers are those of the
    /// parent's table, and may be other files in this one's.
    fn forget_parents(&self, files: Vec<File>) {
        if self.config.delivery == Delivery::Thread {
            files.iter().for_each(|file| file.adopt(None));
        }
    }

    /// The child's statistics go to a file of its own, beside the parent's.
    fn restart_statistics(&self, gauges: &Gauges) {
        let file = self.config.stats_file.as_ref().and_then(|path| {
            let path = path.with_file_name(format!("stats.{}", std::process::id()));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()
        });
        use std::os::fd::AsFd;
        if self.stats.restart(file.as_ref().map(|file| file.as_fd()), gauges).is_err() {
            let _ = self.stats.restart(None, gauges);
        }
    }

    /// Takes back what children held who are gone. Called by the background thread, which has the descriptors.
    pub(crate) fn reap_children(&self) {
        self.family.reap.store(false, Relaxed);
        self.reap_gone();
        self.family.reaped.fetch_add(1, Relaxed);
    }

    fn reap_gone(&self) {
        let Some(mut state) = self.family.state.try_lock() else { return };
        state.litter.clear();
        if state.children.is_empty() || state.forking {
            return;
        }
        let children = &mut state.children;
        let before = children.len();
        children.retain_mut(|child| {
            child.token = None;
            let gone = child.watch.as_ref().is_some_and(Watch::is_gone);
            if gone {
                self.take_back(child.share);
                child.parts.iter().for_each(|lent| self.devices.give_back_part(*lent));
            }
            !gone
        });
        if children.len() == before {
            return;
        }
        self.devices.unseal(children.iter().map(|child| child.seq).min());
    }
}
