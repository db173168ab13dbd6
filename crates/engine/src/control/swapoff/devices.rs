//! What the background thread does about devices: it opens what is missing, begins and ends
//! evacuations, and has files closed.

use super::buffers::EvacuationBuffers;
use super::{Ending, Evacuation, SwapoffError, Swaps, SwapsState};
use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{RankedMutex, lock, spawn};
use crate::control::Control;
use crate::device::SwapError;
use crate::device::list::JobSwaps;
use crate::frame::{Mobility, Need};
use crate::stats::SwapsOutcome;
use overspill_os::backing::Backing;
use overspill_os::directory::Directory;
use overspill_os::{Errno, thread};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Instant;

/// Shares of the budget that the buffers of an evacuation, and a run of it, take at most.
const BUFFERS_SHARE: usize = 8;
const RUN_SHARE: usize = 64;
/// Pages of the batch by which a thread stores what does not fit in memory.
const BATCH_PAGES: usize = 128;

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
            let fresh = lock(buffers).take().and_then(|buffers| buffers.fresh);
            fresh.into_iter().for_each(|run| self.swap.devices.free_run(run));
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
}
