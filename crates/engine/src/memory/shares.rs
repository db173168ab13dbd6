//! Pages that this process shares since a fork: they count once until a side writes
//! ([`crate::account`]).
//!
//! Such a page is marked in its word, and write-protected. Who writes to it needs a page of the
//! budget, as the kernel makes a copy; who gives it up, or has it leave memory, frees nothing, as
//! others have it. Both ways this process has a page that it cannot use for anything else, which is
//! *owed*: charged to the budget until it is taken off the lease, many at a time.
//!
//! Locks: that over changes of the lease, while what is owed is settled.

use super::Memory;
use super::extent::{EXTENT_PAGES, pages_of};
use super::word::{PageWord, State};
use crate::account::Member;
use crate::stats::Counter;
use crate::units::PageIndex;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that are owed at most before they are taken off the lease: each time the limit changes.
const OWED_MOST: u64 = 128;

impl<B: Backing> Memory<B> {
    /// Pages that are marked.
    fn marked(&self) -> u64 {
        self.stats.get(Counter::SharedPages)
    }

    /// Pages that a child of a fork could share just now.
    pub fn shareable(&self) -> u64 {
        let pinned = self.pinned_pages.load(Relaxed) as u64;
        self.stats.get(Counter::ResidentPages).saturating_sub(pinned)
    }

    /// Whether a page of this process that is marked may be shared still.
    pub fn is_sharing(&self) -> bool {
        self.marked() > 0 && self.lease.member().is_some_and(|member| member.saves() > 0)
    }

    /// Pages that this process may share still.
    pub fn shared(&self) -> u64 {
        self.lease.member().map_or(0, |member| member.saves())
    }

    /// Before a fork, while nothing is evicted: marks all pages that the child is to share, and
    /// protects them. What stays because the kernel is about to write there is not shared.
    pub fn mark_shared(&self) {
        let goes = |w: PageWord| w.is_resident() && !w.is_locked() && !w.is_pinned();
        let mark = |w: PageWord| (goes(w) && !w.is_shared()).then(|| w.shared(true));
        let unmark = |w: PageWord| w.is_shared().then(|| w.shared(false));
        let stats = self.stats;
        self.protect_each(
            |page, word| {
                let marked = goes(word) && self.words.try_update(page, mark).is_some();
                stats.add(Counter::SharedPages, marked.into());
                marked
            },
            // What cannot be protected is the process's own again.
            |page| {
                let unmarked = self.protect_page(page).is_err()
                    && self.words.try_update(page, unmark).is_some();
                stats.sub(Counter::SharedPages, unmarked.into());
                Ok(())
            },
        )
        .expect("what fails is passed over");
    }

    /// In the child of a fork, whose memory has been put under management anew: protects what it
    /// shares.
    ///
    /// # Errors
    /// Those of the kernel's write-protection.
    pub fn protect_shared_in_child(&self) -> Result<(), Errno> {
        if self.lease.member().is_none_or(|member| member.shared() == 0) {
            return Ok(());
        }
        self.protect_each(|_, word| word.is_shared(), |page| self.protect_page(page))
    }

    fn protect_page(&self, page: PageIndex) -> Result<(), Errno> {
        self.frames.backing.protect(self.address_range(page.0..page.0 + 1))
    }

    /// Protects the pages that are `chosen`, with one call as far as there is nothing between that
    /// has to stay writable; where that fails, `one` by one.
    fn protect_each(
        &self,
        mut chosen: impl FnMut(PageIndex, PageWord) -> bool,
        one: impl Fn(PageIndex) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let protect = |pages: &mut Range<usize>| {
            let pages = std::mem::take(pages);
            let is_done = pages.is_empty()
                || self.frames.backing.protect(self.address_range(pages.clone())).is_ok();
            // Or a mapping of the kernel's lies between.
            let rest = if is_done { 0..0 } else { pages };
            rest.map(PageIndex).filter(|page| self.words.load(*page).is_shared()).try_for_each(&one)
        };
        let mut span: Range<usize> = 0..0;
        for page in self.all_touched() {
            let word = self.words.load(page);
            let is_near = page.0 / EXTENT_PAGES <= span.end.div_ceil(EXTENT_PAGES)
                && (span.is_empty() || self.places.is_one_range(PageIndex(span.start), page));
            if word.is_pinned() || word.state() == State::Foreign || !is_near {
                protect(&mut span)?;
            }
            if chosen(page, word) {
                let start = if span.is_empty() { page.0 } else { span.start };
                span = start..page.0 + 1;
            }
        }
        protect(&mut span)
    }

    /// The pages that have content, or had some.
    fn all_touched(&self) -> impl Iterator<Item = PageIndex> + '_ {
        let extents =
            (0..self.extents_high.load(Relaxed)).filter(|at| self.extents.resident(*at) > 0);
        extents.flat_map(|at| self.extents.touched(at, pages_of(at)))
    }

    /// After the last fault before a fork: the child leases what it shares, beside what it needs
    /// for itself, `own` pages at most.
    pub fn share_with(&self, child: Member, own: u64) {
        self.settle_shares();
        if let Some(member) = self.lease.member() {
            let marked = self.marked();
            let needs = self.budget().enough(marked) + self.lease.unmanaged();
            member.share_with(child, own.min(needs.saturating_sub(marked)), marked);
        }
        self.note_shared();
    }

    /// Has the budget know how many pages are shared: others can have fewer of them by now.
    pub fn note_shared(&self) {
        self.budget().set_shared(self.shared());
    }

    /// So many pages that were marked are shared no longer. Said before frames of theirs are given
    /// back.
    pub fn unshare(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        self.stats.sub(Counter::SharedPages, pages);
        if self.shared() == 0 {
            return;
        }
        self.budget().charge_more(pages);
        let owed = self.owed.fetch_add(pages, Relaxed) + pages;
        if owed >= OWED_MOST
            && let Some(_changing) = self.lease.try_change()
        {
            self.settle_alone();
        }
    }

    /// Takes what is owed off the lease.
    pub fn settle_shares(&self) {
        if self.owed.load(Relaxed) > 0 {
            let _changing = self.lease.change();
            self.settle_alone();
        }
    }

    /// Under the lock.
    fn settle_alone(&self) {
        let owed = self.owed.swap(0, Relaxed);
        // What nobody saved by is free.
        let counts = self.lease.member().map_or(0, |member| member.unshare(owed));
        if counts > 0 {
            let limit = self.budget().limit().saturating_sub(counts);
            self.budget().set_limit(limit);
            self.lease.set(limit);
        }
        self.note_shared();
        self.budget().charge_less(owed);
    }
}
