//! Clean pages: loaded from a device or the compressed tier, not written since, and so leaving
//! memory again without being written.
//!
//! A page that a read brings in from a device, or unpacks, may keep its slot and what is there. It
//! is installed write-protected, and marked clean in its word; the first write is a fault that
//! gives the slot up. Evicted before that, it needs neither compression nor I/O. This is a gain for
//! pages that are mostly read and a loss for those that are written after all, a fault each: the
//! settings `clean` and `zswap.keep` keep copies while more of them were of use than not, devices
//! and the compressed tier each by their own account.
//!
//! Which slot the copy is in is kept with the page's frame, in its [cells](crate::frame::cells):
//! who owns the page, by its lock, owns them. No locks.

use crate::frame::cells::Owner;
use crate::memory::extent::pages_of;
use crate::memory::word::{PageWord, State};
use crate::stats::Counter;
use crate::swap::Swap;
use crate::units::{FrameId, PageIndex, SlotId};
use crate::workingset::copies::Balance;
use crate::workingset::settings::Clean;
use overspill_os::backing::Backing;
use std::sync::atomic::Ordering::Relaxed;

/// What a write to a clean page takes, as a multiple of what leaving clean saves: a fault against a
/// page stored among others.
const WRITE_COST: i32 = 3;
/// How full the compressed tier is, in percent of what it may take, when copies of pages in memory
/// have to go: what is left is for the pages that leave until the clock has come upon such copies.
const KEEP_PERCENT: usize = 95;

impl<B: Backing> Swap<B> {
    /// Whether a page that a read brings in from a slot keeps it just now. Not while devices are
    /// more than half full; or, if it is compressed, while such copies are in the way of others.
    /// Nor a single page that is back `soon`: it is to stay for a while; or, from a device, to
    /// leave for the compressed tier the next time, which would hold for ever what was there first
    /// if all that is read left clean. With how many `pages` come in by what is said of the first.
    pub(crate) fn keeps_copies(&self, slot: SlotId, soon: bool, pages: usize) -> bool {
        if self.zswap.contains(slot) {
            if soon || !self.workingset.copies.account(true).pays(self.settings.keeps_compressed) {
                return false;
            }
            let sheds = self.sheds_compressed();
            if sheds {
                self.note_no_room(pages);
            }
            return !sheds;
        }
        !(soon && self.settings.clean == Clean::Auto)
            && self.workingset.copies.account(false).pays(self.settings.clean)
            && 2 * self.stats.get(Counter::DevicePages)
                < self.stats.get(Counter::DeviceCapacityBytes) >> 12
    }

    /// Notes how many compressed pages there are, copies of pages in memory included.
    pub(crate) fn note_compressed(&self, pages: u64) {
        let gauge = |counter| self.stats.get(counter);
        let others = self.memory.budget().limit().saturating_sub(self.zpool.frames() as u64);
        self.workingset.copies.note_compressed(
            pages,
            gauge(Counter::CleanPages),
            gauge(Counter::ResidentPages),
            others,
        );
    }

    fn balance_of(&self, slot: SlotId) -> &Balance {
        self.workingset.copies.account(self.zswap.contains(slot))
    }

    /// Notes that a page, now in `frame`, still has its slot. The caller holds the page's lock and
    /// marks its word.
    pub(crate) fn keep_copy(&self, frame: FrameId, slot: SlotId) {
        self.memory.cells().set_copy(frame, slot);
        self.stats.add(Counter::CleanPages, 1);
    }

    /// Where the copy of a page is that is clean, by its word. Without the page's lock, only a
    /// guess.
    pub(crate) fn copy_of(&self, word: PageWord) -> Option<SlotId> {
        match word.state() {
            _ if !word.is_clean() => None,
            State::Resident(frame) | State::Evicting(frame) => {
                Some(self.memory.cells().copy(frame))
            }
            State::Cached(frame) => match self.memory.cells().owner(frame) {
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
            self.workingset.tier_size.note_kept();
        }
        self.stats.sub(Counter::CleanPages, 1);
        self.stats.add(Counter::CleanDropped, 1);
    }

    /// Gives up the copy of a page that is not clean any more, if its word, which the caller has
    /// locked, says that it has one.
    pub(crate) fn drop_copy(&self, page: PageIndex, word: PageWord) {
        let Some(slot) = self.copy_of(word) else { return };
        if let State::Cached(frame) = word.state() {
            self.lru.change_owner(frame, page);
        }
        self.stats.sub(Counter::CleanPages, 1);
        self.forget(State::Stored(slot));
    }

    /// Gives up the copy of a page of the swap cache, whose lock the caller holds: it comes in
    /// writable.
    pub(crate) fn drop_cached_copy(&self, page: PageIndex) {
        if let Some((word, _)) =
            self.memory.words.try_update(page, |word| word.is_clean().then(|| word.clean(false)))
        {
            self.drop_copy(page, word);
        }
    }

    /// Whether compressed copies of pages in memory are in the way of others.
    pub(crate) fn sheds_compressed(&self) -> bool {
        match self.settings.keeps_compressed {
            Clean::Off => false,
            Clean::On => self.zpool.is_above_percent(KEEP_PERCENT),
            Clean::Auto => {
                !self.workingset.copies.are_outnumbered()
                    || self.zpool.is_above_percent(KEEP_PERCENT)
            }
        }
    }

    /// Copies of pages in memory are not kept, or no longer: has the tier's size something to do
    /// with it?
    fn note_no_room(&self, pages: usize) {
        if self.workingset.copies.are_outnumbered() {
            self.workingset.tier_size.note_unkept(pages);
        }
    }

    /// Gives up the compressed copy of a clean page in memory, if nobody is at it: a write then
    /// finds out that it is protected for nothing.
    pub(crate) fn shed_compressed(&self, page: PageIndex) {
        if let Some(word) = self.memory.words.try_lock_if(page, |w| w.is_resident() && w.is_clean())
        {
            let sheds = self.copy_of(word).is_some_and(|slot| self.zswap.contains(slot));
            if sheds {
                self.drop_copy(page, word);
                self.note_no_room(1);
            }
            self.memory.words.unlock_as(page, word.clean(!sheds));
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
        for index in 0..self.memory.extents_high.load(Relaxed) {
            for page in self.memory.extents.touched(index, pages_of(index)) {
                if let Some(word) = self.memory.words.try_lock_if(page, PageWord::is_clean) {
                    self.drop_copy(page, word);
                    self.memory.words.unlock_as(page, word.clean(false));
                }
            }
        }
    }
}
