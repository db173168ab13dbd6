//! swapoff: a device is taken out of use while the program runs, and its pages are moved elsewhere.
//!
//! Which devices there are to be is a list ([`JobSwaps`]): the job's, which the background thread
//! reads when it has changed, or as [`Pool::swapon`](crate::Pool::swapon) and
//! [`Pool::swapoff`](crate::Pool::swapoff) change it. The background thread opens what is missing,
//! and begins an `Evacuation` of each device that is on the list no more: it is retired
//! ([`crate::device`]), so that no page comes to it, and a few threads move those that are there
//! (`evacuate`), until none is left, none can be moved for want of room, or the device is back on
//! the list. Then the background thread closes it, or takes it into use again.
//!
//! Locks: one over the list and what is under way (`Rank::Swaps`); the background thread takes it
//! inside the gate of reclaim, others inside that of mapping calls, so that a fork finds it free.

mod compressed;
mod elsewhere;
mod evacuate;

use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{RankedMutex, lock, spawn};
use crate::control::Control;
use crate::device::list::{JobSwaps, ListedSwap};
use crate::device::spec::SwapSpec;
use crate::device::{Retired, SwapError};
use crate::frame::{Mobility, Need};
use crate::stats::SwapsOutcome;
use crate::units::FrameId;
use evacuate::EvacuationBuffers;
use overspill_os::backing::Backing;
use overspill_os::directory::Directory;
use overspill_os::{Errno, thread};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire};
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

/// How long an evacuation goes on without any progress while there is no room for a page.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same while pages are only in other hands: those of threads that are stopped, or that wait
/// for a slow device.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// Shares of the budget that the buffers of an evacuation, and a run of it, take at most.
const BUFFERS_SHARE: usize = 8;
const RUN_SHARE: usize = 64;
/// Pages of the batch by which a thread stores what does not fit in memory.
const BATCH_PAGES: usize = 128;
/// How many ended evacuations are remembered, for whoever asks.
const ENDED_MAX: usize = 64;

/// How far a device is on its way out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Pages that it still has.
    pub left_pages: u64,
    /// Pages that were moved elsewhere. Others were given up by the program meanwhile.
    pub moved_pages: u64,
}

/// What it took to take a device out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evacuated {
    /// Pages that were moved elsewhere.
    pub moved_pages: u64,
    /// Pages that were read from the device for that; of the others there was a copy in memory.
    pub read_pages: u64,
    /// Operations by which they were read.
    pub read_ops: u64,
    /// Pages that could not be read: an access to one of them fails.
    pub lost_pages: u64,
}

/// Why a device was not taken out of use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapoffError {
    /// There is no device of that name.
    Unknown(String),
    /// Nothing has room for its pages. It is in use as before.
    NoRoom {
        /// Pages that are left on it.
        left_pages: u64,
    },
    /// The caller wanted no more of it. It is in use as before.
    Interrupted {
        /// Pages that are left on it.
        left_pages: u64,
    },
}

impl fmt::Display for SwapoffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapoffError::Unknown(name) => {
                write!(
                    f,
                    "no swap device is called '{name}': name one in use, by its path, label or UUID"
                )
            }
            SwapoffError::NoRoom { left_pages } => write!(
                f,
                "neither memory nor another swap device has room for {left_pages} pages of it: \
                 add a device first, or give the program a larger budget"
            ),
            SwapoffError::Interrupted { left_pages } => {
                write!(
                    f,
                    "interrupted: the device is in use as before, with {left_pages} pages on it"
                )
            }
        }
    }
}

impl std::error::Error for SwapoffError {}

/// How an evacuation comes to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Ending {
    /// It goes on until nothing is left.
    Empty = 0,
    /// The device is to stay.
    Cancelled = 1,
    /// There is no room.
    NoRoom = 2,
}

/// A device on its way out of use.
#[derive(Debug)]
struct Evacuation {
    /// Which of the listed devices.
    id: u32,
    devices: Vec<Retired>,
    /// The next cluster to be looked at, counted over all passes.
    next: AtomicU64,
    /// What each thread works with, locked inside the gate of reclaim.
    buffers: Vec<RankedMutex<Option<EvacuationBuffers>>>,
    /// What the budget is charged for that.
    frames: Vec<FrameId>,
    working: AtomicU32,
    ending: AtomicU32,
    began: Instant,
    /// When a page was moved last, in milliseconds since then, and whether there was no room for
    /// one after that.
    progress_ms: AtomicU64,
    full: AtomicBool,
    moved: AtomicU64,
    read_pages: AtomicU64,
    read_ops: AtomicU64,
    lost: AtomicU64,
}

impl Evacuation {
    fn is_going(&self) -> bool {
        self.ending.load(Relaxed) == Ending::Empty as u32
    }

    fn end(&self, how: Ending) {
        let _ = self.ending.compare_exchange(Ending::Empty as u32, how as u32, Relaxed, Relaxed);
    }

    /// Pages that are left.
    fn left(&self) -> u64 {
        self.devices.iter().filter_map(Retired::area).map(|area| area.slots().counts().used).sum()
    }

    fn evacuated(&self) -> Evacuated {
        let get = |cell: &AtomicU64| cell.load(Relaxed);
        Evacuated {
            moved_pages: get(&self.moved),
            read_pages: get(&self.read_pages),
            read_ops: get(&self.read_ops),
            lost_pages: get(&self.lost),
        }
    }
}

/// What came of an evacuation.
type Ended = Result<Evacuated, SwapoffError>;

#[derive(Debug, Default)]
struct SwapsState {
    /// The devices that there are to be.
    list: JobSwaps,
    under_way: Vec<Arc<Evacuation>>,
    /// Devices of the list that could not be opened.
    not_opened: Vec<(u32, SwapError)>,
    /// Devices that are in use though they are not on the list, since nothing has room for their
    /// pages.
    kept: Vec<u32>,
    ended: Vec<(u32, Ended)>,
    outcome: SwapsOutcome,
}

impl SwapsState {
    fn is_listed(&self, id: u32) -> bool {
        self.list.devices.iter().any(|listed| listed.id == id)
    }

    fn leaves(&self, id: u32) -> bool {
        self.under_way.iter().any(|evacuation| evacuation.id == id)
    }

    fn end(&mut self, id: u32, how: Ended) {
        self.ended.retain(|(other, _)| *other != id);
        if self.ended.len() == ENDED_MAX {
            drop(self.ended.remove(0));
        }
        self.ended.push((id, how));
    }
}

/// Which devices there are to be, and how far that is.
#[derive(Debug)]
pub(crate) struct Swaps {
    state: RankedMutex<SwapsState>,
    /// There is something to be done that the job's table does not tell: now, or to look at with
    /// each nap.
    due: AtomicBool,
    under_way: AtomicBool,
    /// A thread closes files just now, or is about to.
    closing: AtomicBool,
    /// Number of the list of the job that this process has read.
    number: AtomicU32,
    /// Frames that buffers of evacuations are charged for.
    pub charged: AtomicUsize,
}

impl Swaps {
    /// For a process with the devices of a list.
    pub fn new(list: JobSwaps) -> Swaps {
        let number = AtomicU32::new(list.number);
        let state = RankedMutex::new(Rank::Swaps, SwapsState { list, ..SwapsState::default() });
        Swaps {
            state,
            due: AtomicBool::new(true),
            under_way: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            number,
            charged: AtomicUsize::new(0),
        }
    }

    /// The devices that there are to be.
    pub fn list(&self) -> JobSwaps {
        lock(&self.state).list.clone()
    }

    /// Whether the background thread has something to do.
    pub fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }
}

impl<B: Backing> Control<B> {
    /// Does what there is to be done about devices. For the background thread, inside the gate of
    /// reclaim.
    pub(crate) fn look_after_swaps(self: &Arc<Self>) {
        let Swaps { state, due, under_way, number, .. } = &self.swaps;
        let news = self.job.is_some_and(|job| job.swaps() != number.load(Relaxed));
        if !due.swap(false, Acquire) && !under_way.load(Relaxed) && !news {
            return;
        }
        let state = &mut *lock(state);
        if news {
            self.read_list(state);
        }
        self.conclude(state);
        // Whoever waits for it may want to unmount what it is on.
        let all_closed = self.close_devices();
        // What is on the list no more goes; what is on it again stays.
        for id in self.swap.devices.ids() {
            if !state.is_listed(id) && !state.leaves(id) && !state.kept.contains(&id) {
                self.begin_swapoff(state, id);
            }
        }
        for evacuation in state.under_way.iter().filter(|evacuation| state.is_listed(evacuation.id))
        {
            evacuation.end(Ending::Cancelled);
        }
        // What is on it and not open is opened, once.
        let list = state.list.clone();
        for (listed, priority) in list.with_priorities() {
            let failed = state.not_opened.iter().any(|(id, _)| *id == listed.id);
            if self.swap.devices.is_open(listed.id) || state.leaves(listed.id) || failed {
                continue;
            }
            if let Err(error) = self.swap.devices.add(listed, priority) {
                if list.number != 0 {
                    // Who asks for it by the job's list hears of it here.
                    thread::report(format_args!("{error}"));
                }
                state.outcome.not_opened = true;
                state.not_opened.push((listed.id, error));
            }
        }
        self.swap.devices.set_priorities(&list);
        let left = state.under_way.iter().map(|evacuation| evacuation.left()).sum();
        self.stats.set_swaps_left(left);
        let done = state.under_way.is_empty() && all_closed;
        under_way.store(!done, Relaxed);
        if done {
            self.stats.set_swaps_done(state.list.number, state.outcome);
        }
    }

    /// Reads the list of the job.
    fn read_list(&self, state: &mut SwapsState) {
        let Some(path) = self.settings.run_dir.as_deref() else { return };
        let run_dir = Directory::trusted(path).map_err(Into::into);
        match run_dir.and_then(|run_dir| JobSwaps::read(&run_dir)) {
            Ok(list) => {
                self.swaps.number.store(list.number, Relaxed);
                state.list = list;
                state.kept.clear();
                state.not_opened.clear();
                state.outcome = SwapsOutcome {
                    lost_pages: state.outcome.lost_pages,
                    ..SwapsOutcome::default()
                };
            }
            Err(error) => {
                // The run has ended, or its directory is out of reach: it stays as it is.
                self.swaps.number.store(self.job.map_or(0, |job| job.swaps()), Relaxed);
                thread::report(format_args!(
                    "the list of swap devices cannot be read ({error}): nothing changes"
                ));
            }
        }
    }

    /// Begins to take a device out of use.
    fn begin_swapoff(self: &Arc<Self>, state: &mut SwapsState, id: u32) {
        let devices = self.swap.devices.retire(id);
        let limit = self.memory.budget().limit() as usize;
        let run = self.settings.swapoff_run.min((limit / RUN_SHARE).max(1));
        let batch = BATCH_PAGES.min((limit / RUN_SHARE).max(16));
        let pages = run + batch;
        let threads = self.settings.swapoff_depth.min((limit / BUFFERS_SHARE / pages).max(1));
        let of_a_thread = |_| {
            Ok(RankedMutex::new(
                Rank::Batch,
                Some(EvacuationBuffers::new(run, batch, &self.swap.settings)?),
            ))
        };
        let buffers: Vec<_> =
            (0..threads).map(of_a_thread).collect::<Result<_, Errno>>().unwrap_or_default();
        let frame = |_| self.memory.frames.allocator.alloc(0, Mobility::Unmovable, Need::Over);
        let frames: Vec<_> = (0..buffers.len() * pages).filter_map(frame).collect();
        self.swaps.charged.fetch_add(frames.len(), Relaxed);
        let evacuation = Arc::new(Evacuation {
            id,
            devices,
            next: AtomicU64::new(0),
            buffers,
            frames,
            working: AtomicU32::new(0),
            ending: AtomicU32::new(Ending::Empty as u32),
            began: Instant::now(),
            progress_ms: AtomicU64::new(0),
            full: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            read_pages: AtomicU64::new(0),
            read_ops: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let (mut started, mut refused) = (0, None);
        for number in 0..evacuation.buffers.len() {
            let (control, theirs) = (self.clone(), evacuation.clone());
            evacuation.working.fetch_add(1, Relaxed);
            match spawn(c"overspill-so", move || control.evacuate(&theirs, number)) {
                Ok(()) => started += 1,
                Err(errno) => {
                    evacuation.working.fetch_sub(1, Relaxed);
                    refused = Some(errno);
                }
            }
        }
        if let (0, Some(errno)) = (started, refused) {
            thread::report(format_args!(
                "a swap device stays in use: no thread can be made to move its pages ({errno})"
            ));
        }
        state.under_way.push(evacuation);
    }

    /// Ends what has come to its end: the device is closed, or in use again.
    fn conclude(&self, state: &mut SwapsState) {
        let still = |evacuation: &Arc<Evacuation>| evacuation.working.load(Acquire) > 0;
        let (under_way, over) = std::mem::take(&mut state.under_way).into_iter().partition(still);
        state.under_way = under_way;
        for evacuation in over {
            let id = evacuation.id;
            self.give_back_buffers(&evacuation);
            let evacuated = evacuation.evacuated();
            state.outcome.lost_pages += evacuated.lost_pages;
            // Whoever sees that the device is gone sees this.
            self.stats.set_swaps_outcome(state.outcome);
            // Nothing is left, whatever else was asked for meanwhile.
            let is_empty = evacuation.left() == 0 || is_seeded(Bug::ClosedInUse);
            if is_empty && !state.is_listed(id) && self.swap.devices.remove(id) {
                state.end(id, Ok(evacuated));
                continue;
            }
            let left_pages = evacuation.left();
            self.swap.devices.resume(id);
            let ending = evacuation.ending.load(Relaxed);
            // On the list again when its pages were gone and its threads had ended already.
            let too_late = ending == Ending::Empty as u32 && state.is_listed(id);
            if too_late || ending == Ending::Cancelled as u32 {
                state.end(id, Err(SwapoffError::Interrupted { left_pages }));
            } else {
                state.outcome.no_room = true;
                state.kept.push(id);
                state.end(id, Err(SwapoffError::NoRoom { left_pages }));
            }
        }
    }

    fn give_back_buffers(&self, evacuation: &Evacuation) {
        for buffers in &evacuation.buffers {
            let buffers = lock(buffers).take();
            buffers.into_iter().for_each(|buffers| buffers.give_back(self));
        }
        self.swaps.charged.fetch_sub(evacuation.frames.len(), Relaxed);
        self.memory.frames.allocator.free_many(&evacuation.frames);
    }

    /// Has the files of devices that are out of use closed, by a thread of its own: to remove one
    /// without a name takes long, and nobody waits for the background thread meanwhile. Whether all
    /// are closed.
    pub(crate) fn close_devices(self: &Arc<Self>) -> bool {
        let (open, unused) = self.swap.devices.to_close();
        let closing = &self.swaps.closing;
        if unused > 0 && !closing.swap(true, Acquire) {
            let control = self.clone();
            let close = move || {
                // A fork finds them open or closed.
                let inside = control.base.gates.reclaim.enter();
                control.swap.devices.close_files();
                drop(inside);
                control.base.psi.note_ended_thread();
                control.swaps.closing.store(false, Release);
                control.swaps.due.store(true, Release);
                control.base.wake.background.wake();
            };
            if spawn(c"overspill-so", close).is_err() {
                self.swap.devices.close_files();
                closing.store(false, Release);
            }
        }
        open == 0 && !closing.load(Acquire)
    }

    /// In the child of a fork: the threads that move pages are the parent's. What it inherited of a
    /// device that is not on the list it moves itself.
    pub(crate) fn reset_swaps_in_child(&self) {
        let state = &mut *lock(&self.swaps.state);
        for evacuation in std::mem::take(&mut state.under_way) {
            self.give_back_buffers(&evacuation);
            self.swap.devices.resume(evacuation.id);
        }
        state.kept.clear();
        state.ended.clear();
        state.outcome = SwapsOutcome::default();
        self.swaps.closing.store(false, Release);
        self.swaps.due.store(true, Release);
    }

    /// In the child of a fork: a device that it could not open, which was said, is not tried again.
    pub(crate) fn note_missing_in_child(&self) {
        let state = &mut *lock(&self.swaps.state);
        let missing =
            state.list.devices.iter().filter(|listed| !self.swap.devices.is_open(listed.id));
        state.not_opened =
            missing.map(|listed| (listed.id, SwapError::Lost(listed.spec.path.clone()))).collect();
    }

    // ---- What a program asks for ----

    /// Puts a device on the list; its number there.
    pub(crate) fn ask_swapon(&self, spec: &SwapSpec) -> u32 {
        let state = &mut *lock(&self.swaps.state);
        let listed = state.list.devices.iter().map(|listed| listed.id);
        let id = listed.chain(self.swap.devices.ids()).max().map_or(0, |id| id + 1);
        state.ended.retain(|(other, _)| *other != id);
        state.list.devices.push(ListedSwap { id, spec: spec.to_absolute() });
        self.ask();
        id
    }

    /// Whether it is open; `None` while that is not known.
    pub(crate) fn swapped_on(&self, id: u32) -> Option<Result<(), SwapError>> {
        let state = &mut *lock(&self.swaps.state);
        if let Some(at) = state.not_opened.iter().position(|(failed, _)| *failed == id) {
            state.list.devices.retain(|listed| listed.id != id);
            return Some(Err(state.not_opened.swap_remove(at).1));
        }
        self.swap.devices.is_open(id).then_some(Ok(()))
    }

    /// Takes a device off the list; its number there, and what takes it back.
    pub(crate) fn ask_swapoff(&self, name: &str) -> Result<Leaving, SwapoffError> {
        let state = &mut *lock(&self.swaps.state);
        let unknown = || SwapoffError::Unknown(name.to_owned());
        let id = self.swap.devices.find(name).ok_or_else(unknown)?;
        let at =
            state.list.devices.iter().position(|listed| listed.id == id).ok_or_else(unknown)?;
        let listed = state.list.devices.remove(at);
        state.ended.retain(|(other, _)| *other != id);
        self.ask();
        Ok(Leaving { at, listed })
    }

    /// How far it is, or what came of it; whoever asked for it is to take it back if it failed.
    pub(crate) fn swapped_off(&self, asked: &Leaving) -> Result<Progress, Ended> {
        let state = &mut *lock(&self.swaps.state);
        let id = asked.listed.id;
        let all_closed = self.swap.devices.to_close().0 == 0 && !self.swaps.closing.load(Acquire);
        if let Some(at) = state.ended.iter().position(|(ended, _)| *ended == id)
            && all_closed
        {
            return Err(state.ended.swap_remove(at).1);
        }
        let moved_pages = state
            .under_way
            .iter()
            .find(|other| other.id == id)
            .map_or(0, |e| e.evacuated().moved_pages);
        Ok(Progress { left_pages: self.swap.devices.left(id), moved_pages })
    }

    /// Puts it on the list again.
    pub(crate) fn take_swapoff_back(&self, asked: &Leaving) {
        let state = &mut *lock(&self.swaps.state);
        state.kept.retain(|id| *id != asked.listed.id);
        if !state.is_listed(asked.listed.id) {
            let at = asked.at.min(state.list.devices.len());
            state.list.devices.insert(at, asked.listed.clone());
        }
        self.ask();
    }

    fn ask(&self) {
        self.swaps.due.store(true, Release);
        self.base.wake.background.wake();
    }
}

/// A device that was taken off the list, and where it stood.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    at: usize,
    listed: ListedSwap,
}
