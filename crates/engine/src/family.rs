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
//! A child is *gone* when the last process that inherited its token is: an open file with a read lock on one byte
//! of a file of the parent's, passed on through every further fork, closed by exec and exit. Then the parent takes
//! its [`Share`] of the budget back, and slots that only the child still needed.
//!
//! [`SwapDevices::seal_for_child`]: crate::device::SwapDevices::seal_for_child

use crate::config::Delivery;
use crate::delivery;
use crate::engine::Engine;
use crate::limit::{Press, Share};
use crate::lockdep::Rank;
use crate::stats::{Counter, Gauges};
use crate::sync::{RankedMutex, lock, sleep};
use overspill_os::io::{File, Lock};
use overspill_os::signal::Blocked;
use overspill_os::{thread, vm};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest wait for the parent to shrink before a fork without any progress; after it the fork goes on over the budget.
const SHRINK_STALL: Duration = Duration::from_secs(5);

/// Longest wait for a look at which children are gone: the background thread may be in the middle of a batch.
const REAP_WAIT: Duration = Duration::from_millis(50);

/// A living child, as its parent sees it.
#[derive(Debug)]
struct Child {
    /// Number of the fork, from 1: also the byte of the token file that it holds locked.
    seq: u64,
    /// Its share of the budget.
    share: Share,
}

/// A token held: an open file, and the byte that it holds locked.
#[derive(Debug)]
struct Token {
    file: File,
    byte: u64,
}

/// What a fork in progress has prepared for the child.
#[derive(Debug)]
struct Prepared {
    signals: u64,
    seq: u64,
    share: Share,
    gauges: Gauges,
    tokens: Vec<Token>,
    devices: Vec<(usize, OwnedFd)>,
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
    state: RankedMutex<State>,
}

impl Default for Family {
    fn default() -> Family {
        Family {
            handler: AtomicI32::new(0),
            reap: AtomicBool::new(false),
            reaped: AtomicU64::new(0),
            state: RankedMutex::new(Rank::Family, State::default()),
        }
    }
}

#[derive(Default, Debug)]
struct State {
    /// The file whose bytes are the tokens of this process's children.
    tokens: Option<File>,
    /// Tokens of this process itself: its parent's and its ancestors'.
    held: Vec<Token>,
    children: Vec<Child>,
    forks: u64,
    prepared: Option<Prepared>,
}

impl Family {
    /// Notes which thread has the engine's descriptors.
    pub fn set_handler(&self, tid: i32) {
        self.handler.store(tid, Relaxed);
    }

    /// Makes the token file, in the descriptor table of the calling thread. Without it (no memfd) children are taken
    /// to live for ever, which costs room and nothing else.
    pub fn open_tokens(&self) {
        let mut state = lock(&self.state);
        state.tokens = rustix::fs::memfd_create("overspill-tokens", MemfdFlags::CLOEXEC).ok().map(File::from_fd);
    }

    /// Whether a descriptor is a token.
    pub fn owns_fd(&self, fd: i32) -> bool {
        let state = lock(&self.state);
        let held = state.held.iter().map(|token| &token.file);
        held.chain(&state.tokens).any(|file| file.raw_fd() == Ok(fd))
    }

    fn handler_tid(&self) -> u32 {
        match self.handler.load(Relaxed) {
            0 => thread::id() as u32,
            tid => tid as u32,
        }
    }
}

fn byte(at: u64) -> Range<u64> {
    at..at + 1
}

impl Engine {
    /// Before a fork, first half: afterwards nothing is evicted, faults are still served.
    pub(crate) fn fork_prepare_begin(&self) {
        let signals = Blocked::all().suspend();
        self.ops_gate.close();
        // 1. Take back what ended children held; then shrink to half.
        self.reap_now();
        let share = self.lend_half();
        self.shrink();
        self.reclaim_gate.close();
        // 2. Descriptors for the child.
        let mut state = lock(&self.family.state);
        state.forks += 1;
        let seq = state.forks;
        let mut tokens = Vec::new();
        let files = FileLimit::raise();
        let tid = self.family.handler_tid();
        let own = state.tokens.iter().map(|file| (file, seq));
        for (file, at) in own.chain(state.held.iter().map(|held| (&held.file, held.byte))) {
            if let Ok(file) = file.raw_fd().and_then(|fd| File::reopen(tid, fd))
                && file.try_lock(byte(at), Lock::Read) == Ok(true)
            {
                tokens.push(Token { file, byte: at });
            }
        }
        let mut devices = Vec::new();
        for (index, fd) in self.devices.prepare_fork() {
            let Ok(file) = File::reopen(tid, fd) else { continue };
            if self.devices.lock_for_child(index, &file)
                && let Some(fd) = file.into_fd()
            {
                devices.push((index, fd));
            }
        }
        state.prepared =
            Some(Prepared { signals, seq, share, gauges: self.stats.gauges(), tokens, devices, _files: files });
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

    /// Has the background thread reclaim until no more is in use than the limit is to be.
    fn shrink(&self) {
        let mut best = u64::MAX;
        let mut since = Instant::now();
        while self.press_limit() != Press::Reached {
            if self.budget().used() < best {
                (best, since) = (self.budget().used(), Instant::now());
            } else if since.elapsed() > SHRINK_STALL {
                thread::report(
                    "a process forks and there is no room to share its budget: parent and child may exceed it",
                );
                break;
            } else if !self.limits.is_pressed() {
                self.limits.press_again();
            }
            self.kick_background();
            sleep(Duration::from_micros(200));
        }
    }

    /// Before a fork, second half: the engine stands still until [`Engine::fork_parent`] or [`Engine::fork_child`].
    pub(crate) fn fork_prepare_freeze(&self) {
        vm::touch_own_stack();
        self.fault_gate.close();
        if let Some(prepared) = &mut lock(&self.family.state).prepared {
            prepared.gauges = self.stats.gauges();
        }
    }

    /// After a fork, in the parent.
    pub(crate) fn fork_parent(&self) {
        let mut state = lock(&self.family.state);
        let prepared = state.prepared.take().expect("a fork was prepared");
        // Before anything can be freed: what the child must be able to read stays.
        self.devices.seal_for_child(prepared.seq);
        state.children.push(Child { seq: prepared.seq, share: prepared.share });
        self.stats.add(Counter::Forks, 1);
        drop(state);
        self.fault_gate.open();
        self.reclaim_gate.open();
        self.ops_gate.open();
        drop(Blocked::resume(prepared.signals));
    }

    /// After a fork, in the child: its only thread is the caller.
    pub(crate) fn fork_child(&'static self) {
        let mut state = lock(&self.family.state);
        let prepared = state.prepared.take().expect("a fork was prepared");
        self.restart_statistics(&prepared.gauges);
        // 1. What was the parent's: children, tokens of its own, statistics.
        state.children.clear();
        state.forks = 0;
        if let Some(tokens) = state.tokens.take() {
            // The number belongs to the parent's table, or to the program's own, where exec closes it.
            tokens.adopt(None);
        }
        for held in state.held.drain(..) {
            held.file.adopt(None);
        }
        state.held = prepared.tokens;
        let keep: Vec<i32> = (state.held.iter().filter_map(|t| t.file.raw_fd().ok()))
            .chain(prepared.devices.iter().map(|(_, fd)| fd.as_raw_fd()))
            .collect();
        drop(state);
        // 2. Its share of the budget: as much as the parent kept.
        self.begin_with(prepared.share);
        self.background.store(0, Relaxed);
        self.reclaim_gate.open_in_child();
        self.fault_gate.open_in_child();
        // 3. A userfaultfd, registrations, devices and threads of its own.
        let devices = prepared.devices;
        let adopt = move || -> Result<&'static Engine, crate::error::Error> {
            let signal = self.config.delivery == Delivery::Signal;
            let uffd = self.frames.backing.uffd();
            let no_uffd = |errno| crate::error::Error::NoUserfaultfd { errno };
            self.family.open_tokens();
            uffd.reopen(signal).map_err(no_uffd)?;
            self.settle_child_mappings().map_err(no_uffd)?;
            for error in self.devices.adopt_in_child(devices) {
                thread::report(format_args!("in the child of a fork: {error}"));
            }
            Ok(self)
        };
        let started = match self.config.delivery {
            Delivery::Thread => {
                let copies = keep.clone();
                let started = delivery::start_handler(keep, adopt);
                // The handler has them in a table of its own.
                copies.into_iter().for_each(thread::close);
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
        if state.children.is_empty() {
            return;
        }
        let State { tokens, children, .. } = &mut *state;
        let Some(tokens) = tokens else { return };
        let before = children.len();
        children.retain(|child| {
            let gone = tokens.could_lock(byte(child.seq), Lock::Write).unwrap_or(false);
            if gone {
                self.take_back(child.share);
            }
            !gone
        });
        if children.len() == before {
            return;
        }
        self.devices.unseal(children.iter().map(|child| child.seq).min());
    }
}
