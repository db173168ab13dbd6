//! Clean pages: loaded from a device or the compressed tier, not written since, and so leaving
//! memory again without being written.
//!
//! A page that a read brings in from a device, or unpacks, may keep its slot and what is there. It
//! is installed write-protected, and marked clean in its word; the first write is a fault that
//! gives the slot up. Evicted before that, it needs neither compression nor I/O. This is a gain for
//! pages that are mostly read and a loss for those that are written after all, a fault each. So
//! copies are kept while more of them were of use than not, devices and the compressed tier each by
//! their own account (baselines `clean` and `zswap.keep`).
//!
//! Which slot the copy is in is kept with the page's frame, in its [cells](crate::frame::cells):
//! who owns the page, by its lock, owns them. No locks.

use crate::config::Clean;
use crate::engine::Engine;
use crate::frame::cells::Owner;
use crate::memory::extent::pages_of;
use crate::memory::word::{PageWord, State};
use crate::stats::Counter;
use crate::units::{FrameId, PageIndex, SlotId};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a write to a clean page takes, as a multiple of what leaving clean saves: a fault against a
/// page stored among others.
const WRITE_COST: i32 = 3;
/// How far the balance of gains and losses goes to either side: what happened longer ago than so
/// many pages is forgotten.
const BALANCE_MAX: i32 = 1024;
/// How full the compressed tier is, in percent of what it may take, when copies of pages in memory
/// have to go: what is left is for the pages that leave until the clock has come upon such copies.
const KEEP_PERCENT: usize = 95;
/// How many compressed pages there must be for each in memory that copies of those are kept. A copy
/// takes the room of two fifths of a page: where there are few in memory, and most accesses miss
/// anyway, that costs an eighth more misses and saves the packing of all; where most are in memory
/// it costs half as many misses again, more than is saved.
const OUTNUMBERED: u64 = 2;
/// One load in so many keeps its slot while that does not pay, to find out when it does again.
const SAMPLE: u32 = 64;

/// Whether it pays to keep the copies that pages in memory still have.
#[derive(Debug, Default)]
pub struct Copies {
    /// Of pages that came from devices.
    stored: Balance,
    /// Of pages that came from the compressed tier.
    compressed: Balance,
    /// Whether compressed pages outnumber those in memory by [`OUTNUMBERED`].
    outnumbered: AtomicBool,
    /// See [`Copies::reach`].
    reach: AtomicU64,
}

/// Whether it has paid lately to keep copies.
#[derive(Debug, Default)]
struct Balance {
    /// Pages that left without a write, less those that were written, times their cost.
    gains: AtomicI32,
    loads: AtomicU32,
}

impl Balance {
    fn count(&self, gain: i32) {
        let gains = (self.gains.load(Relaxed) + gain).clamp(-BALANCE_MAX, BALANCE_MAX);
        self.gains.store(gains, Relaxed);
    }

    /// Whether the copy of a page that comes in now is to be kept.
    fn pays(&self, setting: Clean) -> bool {
        match setting {
            Clean::On => true,
            Clean::Off => false,
            Clean::Auto => {
                self.gains.load(Relaxed) >= 0
                    || self.loads.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
            }
        }
    }
}

impl Copies {
    /// How many pages memory and the compressed tier hold together, of late; 0 without the tier.
    pub fn reach(&self) -> u64 {
        self.reach.load(Relaxed)
    }
}

impl Engine {
    /// Whether a page that a read brings in from a slot keeps it just now. Not while devices are
    /// more than half full; or, if it is compressed, while such copies are in the way of others.
    /// Nor a single page that is back `soon`: it is to stay for a while; or, from a device, to
    /// leave for the compressed tier the next time, which would hold for ever what was there first
    /// if all that is read left clean. With how many `pages` come in by what is said of the first.
    pub(crate) fn keeps_copies(&self, slot: SlotId, soon: bool, pages: usize) -> bool {
        if self.zswap.contains(slot) {
            if soon || !self.copies.compressed.pays(self.config.baselines.keeps_compressed) {
                return false;
            }
            let sheds = self.sheds_compressed();
            if sheds {
                self.note_no_room(pages);
            }
            return !sheds;
        }
        !(soon && self.config.baselines.clean == Clean::Auto)
            && self.copies.stored.pays(self.config.baselines.clean)
            && 2 * self.stats.get(Counter::DevicePages)
                < self.stats.get(Counter::DeviceCapacityBytes) >> 12
    }

    /// Notes how many compressed pages there are, copies of pages in memory included.
    pub(crate) fn note_compressed(&self, pages: u64) {
        let (clean, resident) =
            (self.stats.get(Counter::CleanPages), self.stats.get(Counter::ResidentPages));
        self.copies
            .outnumbered
            .store(pages.saturating_sub(clean) >= OUTNUMBERED * resident, Relaxed);
        let others = self.budget().limit().saturating_sub(self.compressed.frames() as u64);
        self.copies.reach.store(if pages > 0 { others + pages } else { 0 }, Relaxed);
    }

    fn balance_of(&self, slot: SlotId) -> &Balance {
        if self.zswap.contains(slot) { &self.copies.compressed } else { &self.copies.stored }
    }

    /// Notes that a page, now in `frame`, still has its slot. The caller holds the page's lock and
    /// marks its word.
    pub(crate) fn keep_copy(&self, frame: FrameId, slot: SlotId) {
        self.cells().set_copy(frame, slot);
        self.stats.add(Counter::CleanPages, 1);
    }

    /// Where the copy of a page is that is clean, by its word. Without the page's lock, only a
    /// guess.
    pub(crate) fn copy_of(&self, word: PageWord) -> Option<SlotId> {
        match word.state() {
            _ if !word.is_clean() => None,
            State::Resident(frame) | State::Evicting(frame) => Some(self.cells().copy(frame)),
            State::Cached(frame) => match self.cells().owner(frame) {
                Some(Owner::Copy(slot)) => Some(slot),
                _ => None,
            },
            _ => None,
        }
    }

    /// A clean page leaves memory: its copy is all that there is of it from now on.
    pub(crate) fn leave_copy(&self, slot: SlotId) {
        self.index.left(slot, self.stamp(1));
        self.balance_of(slot).count(1);
        if self.zswap.contains(slot) {
            self.share.note_kept();
        }
        self.stats.sub(Counter::CleanPages, 1);
        self.stats.add(Counter::CleanDropped, 1);
    }

    /// Gives up the copy of a page that is not clean any more, if its word, which the caller has
    /// locked, says that it has one.
    pub(crate) fn drop_copy(&self, page: PageIndex, word: PageWord) {
        let Some(slot) = self.copy_of(word) else { return };
        if let State::Cached(frame) = word.state() {
            self.ages.change_owner(frame, page);
        }
        self.stats.sub(Counter::CleanPages, 1);
        self.forget(State::Stored(slot));
    }

    /// Gives up the copy of a page of the swap cache, whose lock the caller holds: it comes in
    /// writable.
    pub(crate) fn drop_cached_copy(&self, page: PageIndex) {
        if let Some((word, _)) =
            self.words.try_update(page, |word| word.is_clean().then(|| word.clean(false)))
        {
            self.drop_copy(page, word);
        }
    }

    /// Whether compressed copies of pages in memory are in the way of others.
    pub(crate) fn sheds_compressed(&self) -> bool {
        match self.config.baselines.keeps_compressed {
            Clean::Off => false,
            Clean::On => self.compressed.is_above_percent(KEEP_PERCENT),
            Clean::Auto => {
                !self.copies.outnumbered.load(Relaxed)
                    || self.compressed.is_above_percent(KEEP_PERCENT)
            }
        }
    }

    /// Copies of pages in memory are not kept, or no longer: has the tier's share something to do
    /// with it?
    fn note_no_room(&self, pages: usize) {
        if self.copies.outnumbered.load(Relaxed) {
            self.share.note_unkept(pages);
        }
    }

    /// Gives up the compressed copy of a clean page in memory, if nobody is at it: a write then
    /// finds out that it is protected for nothing.
    pub(crate) fn shed_compressed(&self, page: PageIndex) {
        if let Some(word) = self.words.try_lock_if(page, |w| w.is_resident() && w.is_clean()) {
            let sheds = self.copy_of(word).is_some_and(|slot| self.zswap.contains(slot));
            if sheds {
                self.drop_copy(page, word);
                self.note_no_room(1);
            }
            self.words.unlock_as(page, word.clean(!sheds));
        }
    }

    /// The same because of a write.
    pub(crate) fn drop_written_copy(&self, page: PageIndex, word: PageWord) {
        if let Some(slot) = self.copy_of(word) {
            self.balance_of(slot).count(-WRITE_COST);
            self.stats.add(Counter::CleanWritten, 1);
            self.drop_copy(page, word);
        }
    }

    /// In the child of a fork, where protection did not come along: no page is clean.
    pub(crate) fn drop_copies_in_child(&self) {
        if self.stats.get(Counter::CleanPages) == 0 {
            return;
        }
        for index in 0..self.extents_high.load(Relaxed) {
            for page in self.extents.touched(index, pages_of(index)) {
                if let Some(word) = self.words.try_lock_if(page, PageWord::is_clean) {
                    self.drop_copy(page, word);
                    self.words.unlock_as(page, word.with_state(word.state()));
                }
            }
        }
    }
}
