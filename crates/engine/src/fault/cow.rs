//! A write to a page that is shared since a fork: the kernel copies it once it is not protected any
//! more, and the copy counts.

use super::context::FaultContext;
use super::{Fault, Served};
use crate::base::seeded::{Bug, is_seeded};
use crate::memory::extent::EXTENT_PAGES;
use crate::memory::word::{PageWord, State};
use crate::stats::Counter;
use crate::units::PageIndex;
use overspill_os::backing::Backing;

impl<B: Backing> Fault<B> {
    /// Sees to it that there is room for a copy of the page, and has the kernel make it: of its
    /// neighbours too, while the program writes to one after the other.
    pub(super) fn have_copied(&self, context: &mut FaultContext, page: PageIndex) -> Served {
        // 1. Pages of the budget, unless all others have ended, or have copies of their own.
        let mut most = self.streams.next(page).at_most(context.capacity()).upwards();
        context.frames.clear();
        if self.memory.is_sharing() {
            if let Err(served) = self.charge(context, most) {
                return served;
            }
            most = context.frames.len();
        }
        // 2. Lock what is shared.
        let len = self.lock_shared_run(page, most);
        let served = if len == 0 { Served::Busy } else { self.have_run_copied(page, len) };
        // 3. What the copies take was charged anew.
        self.memory.frames.give_holes(&context.frames);
        served
    }

    /// Locks up to `most` pages from a page on that are in place, and shared; how many.
    fn lock_shared_run(&self, page: PageIndex, most: usize) -> usize {
        if self.memory.words.try_update(page, PageWord::lock_in_place).is_none() {
            return 0;
        }
        let end = (page.0 / EXTENT_PAGES + 1) * EXTENT_PAGES;
        let follows = |w: PageWord| w.is_resident() && w.is_shared() && !w.is_clean();
        let locks =
            |next: &usize| self.memory.words.try_lock_if(PageIndex(*next), follows).is_some();
        1 + (page.0 + 1..end.min(page.0 + most)).take_while(locks).count()
    }

    /// Has locked pages be writable, and gives them back as the process's own. In this order: a
    /// fork may mark and protect them anew from then on.
    fn have_run_copied(&self, page: PageIndex, len: usize) -> Served {
        let range = self.memory.address_range(page.0..page.0 + len);
        if is_seeded(Bug::CopiedUnlocked) {
            let shared = self.unlock_copied(page, len);
            self.memory.unshare(shared);
            return if self.unprotect(range).is_ok() { Served::Done } else { Served::Busy };
        }
        let unprotected = self.unprotect(range.clone());
        let shared = self.unlock_copied(page, len);
        self.memory.unshare(shared);
        self.stats.add(Counter::CowFault, 1);
        self.stats.add(Counter::CowPages, shared);
        self.streams.advance(page, (len, len), false, false);
        // On an error the mapping has changed under the fault: the repeated access finds out.
        if unprotected.is_ok() { Served::Done } else { self.wake(range) }
    }

    /// Gives locked pages back as the process's own; how many were shared.
    fn unlock_copied(&self, page: PageIndex, len: usize) -> u64 {
        let mut shared = 0;
        for at in (page.0..page.0 + len).map(PageIndex) {
            let word = self.memory.words.load(at);
            let (State::Resident(frame) | State::Evicting(frame)) = word.state() else {
                unreachable!("locked in place")
            };
            shared += u64::from(word.is_shared());
            self.swap.drop_written_copy(at, word);
            self.memory.words.unlock_as(at, word.with_state(State::Resident(frame)));
        }
        shared
    }
}
