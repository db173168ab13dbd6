//! Pages that processes share since a fork: each leases them, and they count once.
//!
//! A process and the children that it shares pages with are a *family*. What counts twice in their
//! leases, since it is one page of memory, the family *saves*: it is taken off the sum of all
//! leases ([`Account::leased`]). A fork saves as many pages as its child shares. Each time that a
//! process has such a page no longer, or for itself, because it writes to it, gives it up or has it
//! leave memory, the family saves one page less, and whoever does that sees to it that there is a
//! page ([`crate::memory::shares`]).
//!
//! Who is the last to have a page gives up a page that nobody shares, and the family saves one less
//! all the same. So it never saves more than is shared, and sometimes less. When a process ends,
//! all that it shared is taken off what its family saves: with one process left, or none, that is
//! nothing.
//!
//! A family has the number of the entry of the process that forked first. If that ends, and
//! another process with its entry forks, both families are taken for one.

use super::{Account, FAMILY, Member, PAGES_MAX, PLACES, SAVED, SHARED};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::point;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

impl Account {
    /// Pages that all families save.
    pub fn saved(&self) -> u64 {
        self.entries().map(|member| member.saved_here()).sum()
    }
}

impl Member {
    /// What the family of this number saves.
    fn saved_here(&self) -> u64 {
        self.cell(SAVED).load(SeqCst).min(PAGES_MAX)
    }

    /// The entry with the number of its family.
    fn family(&self) -> Option<Member> {
        let entry = self.cell(FAMILY).load(Relaxed) as usize;
        self.account.member(entry).filter(|_| entry < PLACES)
    }

    /// Pages of the process that were shared with a child or its parent, and that it has had since
    /// without writing to them.
    pub fn shared(&self) -> u64 {
        self.cell(SHARED).load(SeqCst).min(PAGES_MAX)
    }

    /// Pages that the process may share with others: as many as its family still saves.
    pub fn saves(&self) -> u64 {
        self.family().map_or(0, |family| family.saved_here()).min(self.shared())
    }

    /// Its part of what its family saves, as the kernel divides what processes share.
    pub fn part_of_saved(&self) -> u64 {
        let Some(family) = self.family() else { return 0 };
        let relatives = || {
            let entries = self.account.entries();
            entries.filter(|member| member.cell(FAMILY).load(Relaxed) == family.at as u64)
        };
        let shared = |has_died: bool| -> u64 {
            let those = relatives().filter(|member| member.mark().has_died() == has_died);
            those.map(|member| member.shared()).sum()
        };
        let saved = family.saved_here().saturating_sub(shared(true));
        let part = u128::from(saved) * u128::from(self.shared());
        part.checked_div(shared(false).into()).unwrap_or(0).min(self.shared().into()) as u64
    }

    /// Before a fork: the child, which has `own` pages for itself, leases `shared` more that it
    /// shares with this process, and they count once.
    pub fn share_with(&self, child: Member, own: u64, shared: u64) {
        let family = self.family().unwrap_or(*self);
        // Whoever ends meanwhile leaves too little that is saved, never too much.
        for member in [*self, child] {
            member.cell(FAMILY).store(family.at as u64, SeqCst);
            member.cell(SHARED).store(shared, SeqCst);
        }
        let save = || _ = family.cell(SAVED).fetch_add(shared, SeqCst);
        if is_seeded(Bug::SavedFirst) {
            save();
            point();
            return child.set(own + shared);
        }
        child.set(own + shared);
        point();
        save();
    }

    /// So many pages are shared no longer by this process; for how many of them its family saved
    /// one, which counts from now on.
    pub fn unshare(&self, pages: u64) -> u64 {
        if pages == 0 {
            return 0;
        }
        let less = |saved: u64| Some(saved.saturating_sub(pages));
        let saved = self.family().map_or(0, |family| {
            point();
            let before = family.cell(SAVED).fetch_update(SeqCst, SeqCst, less);
            before.unwrap_or_else(|saved| saved)
        });
        let _ = self.cell(SHARED).fetch_update(AcqRel, Relaxed, less);
        saved.min(pages)
    }
}

#[cfg(test)]
mod tests;
