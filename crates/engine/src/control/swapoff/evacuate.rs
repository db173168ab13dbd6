//! Moving the pages of a device elsewhere: what each thread of an evacuation does.
//!
//! Clusters are gone through in the order in which they lie on the device, a run of slots at a
//! time, inside the gate of reclaim:
//!
//! 1. What is in the slots: pages that are nowhere else, or only what a copy in memory is for.
//!    Neighbours that are nowhere else are a run.
//! 2. **Claim** each slot, by marking it in the slot index as one with I/O under way. From here on
//!    it stays in use, whatever becomes of its page; a fault on the page waits for this run alone,
//!    and who gives the page up leaves the slot to us.
//! 3. Read the run with one operation.
//! 4. Lock the pages, those whose words still name the slots: **only what is there under both the
//!    claim and the page lock is used**. So nothing that was read before a page changed is ever
//!    installed.
//! 5. To memory, into frames of the swap cache, while there is more than the low watermark; the
//!    rest is swapped out as pages that leave memory are: compressed, or written to another
//!    device.
//! 6. End the claim, and give the slots back as a range.
//!
//! Steps 4 to 6 are in `place`; what is compressed is in `compressed`.
//!
//! The owner of a slot is in the reverse map of the slot index: a hint, which the page's word
//! confirms.

use super::buffers::EvacuationBuffers;
use super::{Ending, Evacuation};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{lock, sleep};
use crate::control::Control;
use crate::device::RUN_MAX;
use crate::memory::word::{PageWord, State};
use crate::reclaim::Reclaimer;
use crate::slot::{Bitmap, CLUSTER_SLOTS, SlotRun};
use crate::stats::Counter;
use crate::swap::Entry;
use crate::swap::store::runs_where;
use crate::units::{PAGE_SHIFT, SlotId};
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::io::IoBuffer;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// How long an evacuation goes on without any progress while there is no room for a page.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same while pages are only in other hands: those of threads that are stopped, or that wait
/// for a slow device.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two passes over what is left: pages in other hands are there for a moment.
const PAUSE: Duration = Duration::from_millis(1);

/// What a slot in use has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    /// A page that is nowhere else.
    Page,
    /// Nothing: its page is compressed in memory.
    Compressed,
    /// A page that was read ahead.
    ReadAhead,
    /// A page that is in memory too.
    Clean,
    /// Somebody is at it.
    Busy,
}

/// Which of the slots of a run something is so of.
pub type Which = [bool; RUN_MAX];

/// What became of a run.
#[derive(Default)]
pub struct Moved {
    /// How many are elsewhere.
    pub pages: usize,
    /// There was no room for some of them.
    pub full: bool,
}

impl Evacuation {
    /// The next cluster to be looked at: which of the devices, and its number there. `None` when
    /// nothing is left, or no more can be done.
    fn next_cluster(&self, control: &Control<impl Backing>) -> Option<(usize, u32)> {
        let total: u64 = self.devices.iter().map(|device| device.clusters.len() as u64).sum();
        if total == 0 || !self.is_going() || control.base.wake.has_stopped() {
            return None;
        }
        let next = self.next.fetch_add(1, Relaxed);
        if next >= total {
            // What was in other hands the last time, or had no room.
            if self.left() == 0 {
                return None;
            }
            if next.is_multiple_of(total) {
                self.rest(control);
            }
        }
        let mut at = (next % total) as usize;
        let device = self.devices.iter().position(|device| {
            let here = at < device.clusters.len();
            at -= if here { 0 } else { device.clusters.len() };
            here
        })?;
        Some((device, self.devices[device].clusters[at]))
    }

    /// Before another pass: gives up if there was no progress for too long.
    fn rest(&self, control: &Control<impl Backing>) {
        sleep(PAUSE);
        let still = self
            .began
            .elapsed()
            .saturating_sub(Duration::from_millis(self.progress_ms.load(Relaxed)));
        let patience = if self.full.load(Relaxed) {
            PATIENCE.min(control.settings.oom_wait / 2)
        } else {
            LONG_PATIENCE
        };
        if still > patience {
            self.end(Ending::NoRoom);
        }
    }

    fn note(&self, control: &Control<impl Backing>, moved: &Moved) {
        if moved.pages > 0 {
            self.moved.fetch_add(moved.pages as u64, Relaxed);
            self.progress_ms.store(self.began.elapsed().as_millis() as u64, Relaxed);
            self.full.store(false, Relaxed);
            control.stats.add(Counter::SwapoffPages, moved.pages as u64);
        }
        if moved.full {
            self.full.store(true, Relaxed);
            // The program must not fail for want of the room that the device has.
            if control.reclaim.oom_progress.is_beyond(control.settings.oom_wait / 4) {
                self.end(Ending::NoRoom);
            }
        }
    }
}

impl<B: Backing> Control<B> {
    /// The body of a thread of an evacuation.
    pub(super) fn evacuate(&self, evacuation: &Evacuation, number: usize) {
        while let Some((device, cluster)) = evacuation.next_cluster(self) {
            let mut at = 0;
            while at < CLUSTER_SLOTS && evacuation.is_going() {
                // A fork finds no lock taken, and no slot claimed.
                let _inside = self.base.gates.reclaim.enter();
                let retired = &evacuation.devices[device];
                let Some(area) = retired.area() else { break };
                let mut buffers = lock(&evacuation.buffers[number]);
                let Some(buffers) = &mut *buffers else { break };
                let first = SlotId::new(retired.device, u64::from(cluster) * CLUSTER_SLOTS as u64);
                let Some((run, holds)) =
                    self.next_run(&area.slots().used_in(cluster), first, at, buffers.run_max)
                else {
                    break;
                };
                at = (run.first.offset() - first.offset()) as usize + run.len;
                let _mark = FaultPath::enter();
                let moved = match holds {
                    Holds::Page => self.move_run(evacuation, buffers, run),
                    Holds::Compressed => self.move_compressed(buffers, run.first),
                    Holds::ReadAhead => self.keep_read_ahead(run.first),
                    Holds::Clean => self.leave_clean(run.first),
                    Holds::Busy => Moved::default(),
                };
                evacuation.note(self, &moved);
                self.base.wake.background.wake();
                if moved.full {
                    // Others may have room to give: those that were not used for longest.
                    self.reclaim.reclaim(&mut buffers.batch, run.len, Reclaimer::Background);
                }
            }
        }
        self.base.psi.note_ended_thread();
        evacuation.working.fetch_sub(1, Release);
        self.swaps.due.store(true, Release);
        self.base.wake.background.wake();
    }

    /// The next run of a cluster, from slot `from` of it on: neighbouring slots in use that hold
    /// the same.
    fn next_run(
        &self,
        used: &Bitmap,
        first: SlotId,
        from: usize,
        most: usize,
    ) -> Option<(SlotRun, Holds)> {
        let is_used = |at: &usize| used[at / 64] >> (at % 64) & 1 != 0;
        let start = (from..CLUSTER_SLOTS).find(is_used)?;
        let holds = self.holds(first.advance(start as u64));
        let end = if holds == Holds::Page { CLUSTER_SLOTS.min(start + most) } else { start + 1 };
        let more = (start + 1..end)
            .take_while(|at| is_used(at) && self.holds(first.advance(*at as u64)) == holds);
        Some((SlotRun { first: first.advance(start as u64), len: 1 + more.count() }, holds))
    }

    fn holds(&self, slot: SlotId) -> Holds {
        match self.swap.index.load(slot) {
            Entry::Shadow(_) if self.swap.zswap.contains(slot) => Holds::Compressed,
            Entry::Shadow(_) => Holds::Page,
            Entry::Frame(..) => Holds::ReadAhead,
            Entry::Clean => Holds::Clean,
            Entry::None | Entry::Busy(_) | Entry::Abandoned | Entry::Lost => Holds::Busy,
        }
    }

    // ---- Pages ----

    /// Moves pages that are on the device only.
    fn move_run(
        &self,
        evacuation: &Evacuation,
        buffers: &mut EvacuationBuffers,
        run: SlotRun,
    ) -> Moved {
        // 1. Claim.
        let mut claimed = [is_seeded(Bug::Unclaimed); RUN_MAX];
        if !is_seeded(Bug::Unclaimed) {
            self.swap.index.begin_io(run, &mut claimed);
        }
        let mut moved = Moved::default();
        for part in runs_where(run, |i| claimed[i]) {
            // 2. Read.
            let (mut has, mut lost) = ([false; RUN_MAX], [false; RUN_MAX]);
            self.read_run(evacuation, part, &mut buffers.buffer, &mut has, &mut lost);
            // 3. Elsewhere.
            let mut gone = [false; RUN_MAX];
            moved.full |= self.put_elsewhere(buffers, part, &has, &mut gone, |slot| {
                self.swap.zswap.look_up(slot).is_none() || is_seeded(Bug::ReadTooSoon)
            });
            for (i, slot) in part.slots().enumerate().filter(|(i, _)| lost[*i]) {
                gone[i] = self.lose(evacuation, slot);
            }
            // 4. The slots.
            moved.pages += gone.iter().filter(|gone| **gone).count();
            self.end_claim(part, &gone);
            if is_seeded(Bug::EndedUnpublished) {
                buffers.batch.picks.iter().for_each(|pick| self.publish_placed(pick));
                buffers.batch.picks.clear();
            }
        }
        moved
    }

    /// Reads a run of slots that are in use: which are in the buffer now, each at its place in the
    /// run, and which cannot be had.
    pub(super) fn read_run(
        &self,
        evacuation: &Evacuation,
        run: SlotRun,
        buffer: &mut IoBuffer,
        has: &mut Which,
        lost: &mut Which,
    ) {
        let mut at = 0;
        while at < run.len {
            let rest = SlotRun { first: run.first.advance(at as u64), len: run.len - at };
            evacuation.read_ops.fetch_add(1, Relaxed);
            self.stats.add(Counter::SwapoffReadOps, 1);
            let read = match self.swap.devices.read(rest, &mut buffer[at << PAGE_SHIFT..]) {
                Ok(()) => rest.len,
                Err(error) => {
                    let good = (error.offset_bytes >> PAGE_SHIFT)
                        .saturating_sub(rest.first.offset())
                        as usize;
                    lost[at + good] = true;
                    good
                }
            };
            has[at..at + read].fill(true);
            evacuation.read_pages.fetch_add(read as u64, Relaxed);
            self.stats.add(Counter::SwapoffRead, read as u64);
            at += read + 1;
        }
    }

    // ---- What is in memory as well ----

    /// A page that was read ahead is in the swap cache without its slot.
    pub(super) fn keep_read_ahead(&self, slot: SlotId) -> Moved {
        let Some(page) = self.lock_owner(slot, |_| true) else { return Moved::default() };
        let word = self.memory.words.load(page);
        let Some(frame) = self.swap.index.take_frame(slot) else {
            self.memory.words.unlock_as(page, word);
            return Moved::default();
        };
        if self.swap.zswap.contains(slot) && !is_seeded(Bug::FrameTrusted) {
            // It was read while the page was being stored, which is compressed: on the device there
            // was another.
            self.swap.lru.remove(frame);
            self.memory.frames.give_one(frame);
            self.memory.words.unlock_as(page, word);
            return Moved::default();
        }
        self.swap.lru.change_owner(frame, page);
        self.memory.words.unlock_as(page, word.with_state(State::Cached(frame)));
        self.swap.forget(State::Stored(slot));
        Moved { pages: 1, full: false }
    }

    /// A page in memory that is as it is on the device has no copy there any more: the next write
    /// to it finds out that it is protected for nothing.
    pub(super) fn leave_clean(&self, slot: SlotId) -> Moved {
        let page = self.swap.index.owner(slot);
        let has_copy = |w: PageWord| {
            !matches!(w.state(), State::Evicting(_)) && self.swap.copy_of(w) == Some(slot)
        };
        let Some(word) = self.memory.words.try_lock_if(page, has_copy) else {
            return Moved::default();
        };
        self.swap.drop_copy(page, word);
        self.memory.words.unlock_as(page, word.clean(false));
        Moved { pages: 1, full: false }
    }
}
