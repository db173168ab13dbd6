//! The new words of pages that came in, and whether they came back soon.

use super::Fault;
use super::serve::lies_behind;
use crate::base::seeded::{Bug, is_seeded};
use crate::memory::word::State;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::Entry;
use crate::swap::store::runs_where;
use crate::units::{FOLIO_MAX, FrameId, PageIndex, SlotId};
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::Relaxed;

/// A page that is back before a quarter of what fits in memory has left is hot. Measured with 280
/// MiB for 512 MiB, half a dozen runs each: where all copies are kept a Zipf load misses a seventh
/// more; where none is that is back within all of memory, a load that reads at random packs twice
/// as many pages again.
const HOT_SHARE: u64 = 4;

impl<B: Backing> Fault<B> {
    /// Gives the locked run its new words and its old copies up: the first pages are resident, with
    /// `frames`.
    pub(super) fn publish_run(&self, page: PageIndex, len: usize, frames: &[FrameId], clean: bool) {
        let installed = frames.len();
        let state = |i: usize| self.memory.words.load(PageIndex(page.0 + i)).state();
        // Counted first: once a word is published, an eviction may count its page out again.
        if installed > 0 {
            self.memory.extents.add_resident(page, installed);
            self.stats.add(Counter::ResidentPages, installed as u64);
            self.stats.add(Counter::FaultAround, installed as u64 - 1);
            if matches!(state(0), State::Cached(_)) {
                self.stats.add(Counter::PgActivate, installed as u64);
            }
        }
        // Pages in slots next to one another together.
        let mut at = 0;
        while at < installed {
            let more = (at + 1..installed).take_while(|i| lies_behind(state(i - 1), state(*i)));
            let end = at + 1 + more.count();
            match state(at) {
                State::Stored(first) => {
                    let run = SlotRun { first, len: end - at };
                    self.publish_stored(PageIndex(page.0 + at), run, &frames[at..end], clean);
                }
                _ => (at..end)
                    .for_each(|i| self.publish_page(PageIndex(page.0 + i), frames[i], i > 0)),
            }
            at = end;
        }
        (installed..len).for_each(|i| self.memory.unlock_unchanged(PageIndex(page.0 + i)));
    }

    /// A page that had no slot is resident, with `frame`; `along` with one that was touched, or
    /// touched itself.
    fn publish_page(&self, page: PageIndex, frame: FrameId, along: bool) {
        let word = self.memory.words.load(page);
        let old = word.state();
        let referenced = matches!(old, State::Cached(_));
        debug_assert!(
            !word.is_clean(),
            "the copy of {page:?} is known by a frame that is no longer its own"
        );
        let beside = along && (old == State::Empty || word.is_beside());
        self.memory.words.unlock_as(
            page,
            word.with_state(State::Resident(frame)).referenced(referenced).beside(beside),
        );
        // What it had of its own is given up last.
        self.swap.forget(old);
    }

    /// Pages that had the slots of a run are resident, with `frames`; they keep the slots if they
    /// are `clean`.
    fn publish_stored(&self, page: PageIndex, run: SlotRun, frames: &[FrameId], clean: bool) {
        let mut soon = [false; FOLIO_MAX];
        run.slots().zip(&mut soon).for_each(|(slot, soon)| *soon = self.refaults_soon(slot));
        let mut keeps = [false; FOLIO_MAX];
        if clean {
            self.swap.index.came_back(run, &mut keeps);
            // What stays in memory is to be nowhere else.
            for (i, keep) in keeps.iter_mut().enumerate().take(frames.len()) {
                *keep &= !self.memory.words.load(PageIndex(page.0 + i)).is_pinned();
            }
        }
        for (i, (slot, frame)) in run.slots().zip(frames).enumerate() {
            let page = PageIndex(page.0 + i);
            if keeps[i] {
                self.swap.keep_copy(*frame, slot);
            }
            let word = self.memory.words.load(page).with_state(State::Resident(*frame));
            self.memory.words.unlock_as(page, word.referenced(soon[i]).clean(keeps[i]));
        }
        if is_seeded(Bug::CleanWithoutCopy) {
            let kept = runs_where(run, |i| keeps[i]);
            kept.for_each(|run| self.swap.zswap.invalidate(run, |old| self.swap.free_object(old)));
        }
        let spent = |i: usize| !keeps[i] && !is_seeded(Bug::FreeBeforeInstall);
        runs_where(run, spent).for_each(|run| self.swap.forget_run(run));
    }

    /// Whether a page that comes back from a device would still be here if it had been kept a
    /// little longer: since it left, less has left than fits in memory.
    fn refaults_soon(&self, slot: SlotId) -> bool {
        let evictions = self.workingset.evictions.load(Relaxed);
        self.note_refault(slot);
        let Some(distance) = self.refault_distance(slot, evictions) else { return false };
        self.workingset.tier_size.note_refault(distance);
        let soon = distance < self.memory.budget().limit();
        let recent =
            distance <= evictions.saturating_sub(self.workingset.history.a_second_ago(evictions));
        self.stats.add(Counter::Refaults1s, recent.into());
        self.stats.add(Counter::WorkingsetRefault, 1);
        self.stats.add(Counter::WorkingsetActivate, soon.into());
        soon
    }

    /// Records how many pages of memory would have kept one that comes back, and what there is just
    /// now: for who asks later how much would have been enough.
    fn note_refault(&self, slot: SlotId) {
        let Some(left) = self.swap.index.left_at(slot) else { return };
        let (budget, tier) = (self.memory.budget(), self.swap.zpool.frames() as u64);
        let resident = budget.limit().saturating_sub(budget.low() + tier);
        self.stats.refault(resident + self.swap.come_back(left));
        for (sum, pages) in [
            (Counter::RefaultSeen, 1),
            (Counter::RefaultLimitPages, budget.limit()),
            (Counter::RefaultTierFrames, tier),
            (Counter::RefaultTierPages, self.stats.gauge(Counter::CompressedPages)),
        ] {
            self.stats.add(sum, pages);
        }
    }

    /// How many pages have left since that of a slot did, of which `evictions` are all so far.
    fn refault_distance(&self, slot: SlotId, evictions: u64) -> Option<u64> {
        match self.swap.index.load(slot) {
            Entry::Shadow(stamp) => Some(stamp.distance(evictions)),
            _ => None,
        }
    }

    /// Whether a page comes back to memory so soon that it is not to leave for where it came from:
    /// from the compressed tier, it will stay for a while, and what it would save by leaving clean
    /// is less than its copy takes up meanwhile; from a device, it would still be in memory or in
    /// the tier, had those that left before it not been there in its place.
    pub(super) fn is_back_soon(&self, slot: SlotId) -> bool {
        let soon = if self.swap.zswap.contains(slot) {
            self.memory.budget().limit() / HOT_SHARE
        } else {
            self.workingset.copies.reach()
        };
        self.refault_distance(slot, self.workingset.evictions.load(Relaxed))
            .is_some_and(|distance| distance < soon)
    }
}
