//! Where the pages of a claimed run go: to memory, to the tiers, or, if they could not be read,
//! nowhere.

use super::Evacuation;
use super::buffers::EvacuationBuffers;
use super::evacuate::Which;
use crate::base::seeded::{Bug, is_seeded};
use crate::control::Control;
use crate::device::RUN_MAX;
use crate::frame::{Mobility, Need};
use crate::memory::word::{PageWord, State};
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::GivenUp;
use crate::swap::batch::Pick;
use crate::swap::store::runs_where;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex, SlotId};
use overspill_os::backing::Backing;
use overspill_os::io::IoBuffer;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Largest block of frames that a run is put into.
const BLOCK_ORDER: u32 = 8;

impl<B: Backing> Control<B> {
    /// Puts pages of a claimed run, whose contents are in the buffer, elsewhere: those that still
    /// are what `is_still` says. Notes which are gone from their slots; whether there was no room
    /// for some.
    pub(super) fn put_elsewhere(
        &self,
        buffers: &mut EvacuationBuffers,
        run: SlotRun,
        has: &Which,
        gone: &mut Which,
        is_still: impl Fn(SlotId) -> bool,
    ) -> bool {
        // 1. Lock those that are still there. It has been so since the claim.
        let mut pages = [None; RUN_MAX];
        for (i, slot) in run.slots().enumerate().filter(|(i, _)| has[*i]) {
            pages[i] = self.lock_owner(slot, &is_still);
        }
        // 2. To memory.
        let EvacuationBuffers { buffer, batch, .. } = buffers;
        self.place_in_memory(buffer, run, &mut pages, gone);
        // 3. To the tiers.
        let mut full = false;
        let mut at = 0;
        while at < run.len {
            batch.picks.clear();
            while at < run.len && batch.has_room() {
                if let Some(page) = pages[at] {
                    batch.picks.push(Pick::new(
                        page,
                        State::Stored(run.first.advance(at as u64)),
                        None,
                    ));
                }
                at += 1;
            }
            let place = |from: State| match from {
                State::Stored(slot) => (slot.offset() - run.first.offset()) as usize,
                other => unreachable!("{other:?} is not on a device"),
            };
            if !full && !batch.picks.is_empty() {
                self.swap.store_batch(batch, |pick, out| {
                    out.copy_from_slice(&buffer[place(pick.from) << PAGE_SHIFT..][..PAGE_SIZE]);
                    true
                });
            }
            for pick in &batch.picks {
                gone[place(pick.from)] = pick.stored.is_some();
                full |= pick.stored.is_none();
                if !is_seeded(Bug::EndedUnpublished) {
                    self.publish_placed(pick);
                }
            }
        }
        full
    }

    /// Gives the lock of a page back, with the place that it was stored in, if one took it.
    pub(super) fn publish_placed(&self, pick: &Pick) {
        let word = self.memory.words.load(pick.page);
        let placed = pick.stored.map_or(word, |stored| word.with_state(stored));
        self.memory.words.unlock_as(pick.page, placed);
    }

    /// Locks the page of a slot, if its word says that it is there.
    pub(super) fn lock_owner(
        &self,
        slot: SlotId,
        is_still: impl Fn(SlotId) -> bool,
    ) -> Option<PageIndex> {
        let page = self.swap.index.owner(slot);
        let is_there =
            |w: PageWord| w.state() == State::Stored(slot) || is_seeded(Bug::NotLookedAgain);
        let word = self.memory.words.try_lock_if(page, is_there)?;
        if is_still(slot) {
            return Some(page);
        }
        self.memory.words.unlock_as(page, word);
        None
    }

    /// Puts locked pages into the swap cache, as far as there are frames above the low watermark,
    /// and takes them out of `pages`.
    fn place_in_memory(
        &self,
        buffer: &IoBuffer,
        run: SlotRun,
        pages: &mut [Option<PageIndex>; RUN_MAX],
        gone: &mut Which,
    ) {
        let mut at = 0;
        while at < run.len {
            let together = pages[at..run.len].iter().take_while(|page| page.is_some()).count();
            if together == 0 {
                at += 1;
                continue;
            }
            let Some(block) = self.take_block(together) else { return };
            self.memory.frames.fill(
                FrameId(block.start),
                &buffer[at << PAGE_SHIFT..][..block.len() << PAGE_SHIFT],
            );
            // Those that follow one another are as one in the lists of the swap cache.
            let ours = at..at + block.len();
            let mut next = at;
            while next < ours.end {
                let first = pages[next].expect("it is one of those together");
                let more = (next + 1..ours.end)
                    .take_while(|i| pages[*i] == Some(PageIndex(first.0 + i - next)));
                let count = 1 + more.count();
                self.swap.lru.add_run(first, FrameId(block.start + (next - at) as u32), count);
                next += count;
            }
            for (i, frame) in ours.clone().zip(block) {
                let page = pages[i].take().expect("it is one of those together");
                let word = self.memory.words.load(page).with_state(State::Cached(FrameId(frame)));
                self.memory.words.unlock_as(page, word);
                gone[i] = true;
            }
            at = ours.end;
        }
    }

    /// Frames for up to so many pages: a block of them.
    fn take_block(&self, pages: usize) -> Option<Range<u32>> {
        let spare =
            self.memory.budget().free_pages().saturating_sub(self.memory.budget().low()) as usize;
        let largest = pages.min(spare).checked_ilog2()?.min(BLOCK_ORDER);
        let take = |order: u32| {
            let first = self.memory.frames.allocator.alloc(
                order as u8,
                Mobility::Reclaimable,
                Need::Fault,
            )?;
            Some(first.0..first.0 + (1 << order))
        };
        (0..=largest).rev().find_map(take)
    }

    /// A page cannot be read: it has no place any more but one that says so. Whether it still was
    /// there.
    pub(super) fn lose(&self, evacuation: &Evacuation, slot: SlotId) -> bool {
        // What is being stored just now is not on the device yet.
        let is_still =
            |slot| self.swap.zswap.look_up(slot).is_none() || is_seeded(Bug::LostTooSoon);
        let Some(page) = self.lock_owner(slot, is_still) else { return false };
        let to = self.lost_slot(page);
        let word = self.memory.words.load(page);
        self.memory.words.unlock_as(page, to.map_or(word, |to| word.with_state(State::Stored(to))));
        if to.is_some() {
            self.note_lost(evacuation);
        }
        to.is_some()
    }

    /// A slot on no device that says that the page, whose lock the caller holds, is lost.
    pub(super) fn lost_slot(&self, page: PageIndex) -> Option<SlotId> {
        let SlotRun { first: slot, .. } = self.swap.devices.alloc_in_memory(1)?;
        self.swap.index.set_owner(slot, page);
        self.swap.index.lost(slot);
        Some(slot)
    }

    pub(super) fn note_lost(&self, evacuation: &Evacuation) {
        evacuation.lost.fetch_add(1, Relaxed);
        self.stats.add(Counter::SwapoffLost, 1);
    }

    /// Ends the claim on a run, of which some pages are `gone`: their slots are given back, and
    /// those that were given up meanwhile.
    pub(super) fn end_claim(&self, run: SlotRun, gone: &Which) {
        if is_seeded(Bug::Unclaimed) {
            return runs_where(run, |i| gone[i]).for_each(|part| self.swap.forget_run(part));
        }
        let mut done = [GivenUp::Later; RUN_MAX];
        for part in runs_where(run, |i| gone[i]) {
            debug_assert!(part.slots().all(|slot| self.is_elsewhere(slot)), "{part:?} goes back");
            self.swap.index.give_up(part, &mut done);
            if is_seeded(Bug::FreedClaimed) {
                self.swap.give_back(part, None);
            }
        }
        let ends: Which = std::array::from_fn(|i| gone[i] || !is_seeded(Bug::KeptWithoutRoom));
        let mut still = ends;
        self.swap.index.end_io(run, &[None; RUN_MAX], &mut still);
        let all = is_seeded(Bug::WholeRunFreed) && still[..run.len].contains(&false);
        for part in runs_where(run, |i| all || ends[i] && !still[i]) {
            self.swap.give_back(part, None);
        }
    }

    /// Whether the word of the page that had a slot says that it is elsewhere.
    fn is_elsewhere(&self, slot: SlotId) -> bool {
        let page = self.swap.index.owner(slot);
        self.memory.words.load(page).state() != State::Stored(slot)
    }
}
