//! How it is measured, and what kinds of memory it is.

use super::{EVERY, Exact, NEAR, TIME_PART, Unmanaged, follow};
use crate::control::Control;
use crate::control::job::tolerance;
use crate::stats::Counter;
use crate::units::Bytes;
use overspill_os::backing::Backing;
use overspill_os::rss::Rss;
use overspill_os::smaps::{Kinds, MemoryKind};
use overspill_os::{Errno, thread};
use std::time::Instant;

/// What part of all that the processes of the job have is much for one of them.
const MUCH: u64 = 8;

impl<B: Backing> Control<B> {
    /// Measures it in a process that works.
    pub(in crate::control) fn measure_unmanaged(&self, state: &mut Unmanaged) {
        let began = thread::cpu_time(thread::id());
        let found = self.find_unmanaged(state.exact);
        if let Ok(exact) = found {
            self.sort_where_it_matters(state, exact);
        }
        let took = thread::cpu_time(thread::id()).saturating_sub(began);
        state.next = Some(Instant::now() + EVERY.max(took * TIME_PART));
        let Ok(exact) = found else { return };
        // At first there is nothing to follow: the child of a fork has its parent's figure.
        let pages = match state.exact {
            None => exact.pages,
            Some(_) => follow(self.memory.lease.unmanaged(), exact.pages),
        };
        state.exact = Some(exact);
        self.note_unmanaged(pages);
    }

    /// Measures it in one that has come to rest: no memory comes to be behind its frames.
    pub(in crate::control) fn measure_at_rest(&self, state: &mut Unmanaged) {
        if let Ok(exact) = self.find_unmanaged(None) {
            state.exact = Some(exact);
            self.note_unmanaged(exact.pages);
            self.sort_where_it_matters(state, exact);
        }
    }

    /// Measures it in one that has been at rest, where it has given back more, or shares so much
    /// that it may have become more.
    pub(in crate::control) fn measure_again(&self, state: &mut Unmanaged) {
        let managed = self.memory.budget().used();
        let rough = Rss::roughly().map_or(0, |rss| rss.pages().saturating_sub(managed));
        let before = self.memory.lease.unmanaged();
        if state.is_less(managed) || rough > before + NEAR {
            self.measure_at_rest(state);
            if self.memory.lease.unmanaged() > before + NEAR {
                state.look_soon();
            }
        }
    }

    /// Measures it when the process ends, if it has become so much meanwhile that it is to be told.
    pub fn measure_at_the_end(&self) {
        let (lease, managed) = (&self.memory.lease, self.memory.budget().used());
        let Some(rough) = self.job.and_then(|_| Rss::roughly().ok()) else { return };
        let rough = rough.pages().saturating_sub(managed);
        let known = lease.unmanaged();
        if rough <= (known + known / 4).max(self.tolerated()) {
            return;
        }
        if let Ok(exact) = self.find_unmanaged(None) {
            self.note_unmanaged(exact.pages.max(known));
            self.sort_where_it_matters(&mut Unmanaged::default(), exact);
            let others = lease.account.members().map(|member| member.told().unmanaged).sum::<u64>();
            lease.account.note_unmanaged((others + exact.pages).saturating_sub(known));
        }
    }

    fn note_unmanaged(&self, pages: u64) {
        if pages != self.memory.lease.unmanaged() {
            self.memory.set_unmanaged(pages);
            let bytes = Bytes::from_pages(pages).0;
            self.stats.set(Counter::UnmanagedBytes, bytes);
            self.stats.raise(Counter::UnmanagedPeakBytes, bytes);
        }
    }

    /// Asks what it is, if it was not when there was about as much, and the job has so much that it
    /// is to be told.
    fn sort_where_it_matters(&self, state: &mut Unmanaged, found: Exact) {
        let lease = &self.memory.lease;
        let own = found.pages;
        if own <= state.sorted + state.sorted / 4 {
            return;
        }
        let (entry, members) = (lease.member().map(|own| own.entry()), lease.account.members());
        let others = members.filter(|member| Some(member.entry()) != entry);
        let (all, most) = others.fold((own, own), |(all, most), member| {
            let pages = member.told().unmanaged;
            (all + pages, most.max(pages))
        });
        if all > self.tolerated() && own >= most.min(all / MUCH) {
            state.sorted = own;
            if let Ok(kinds) = Kinds::of_process(&self.memory.places.all().collect::<Vec<_>>()) {
                self.note_kinds(found, kinds);
            }
        }
    }

    /// Pages that all processes of the job may have without more ado.
    fn tolerated(&self) -> u64 {
        tolerance(Bytes::from_pages(self.memory.lease.account.budget())).pages()
    }

    fn note_kinds(&self, found: Exact, kinds: Kinds) {
        let frames = self.memory.budget().used();
        let [stacks, brk, data, files, code, other] = [
            MemoryKind::Stacks,
            MemoryKind::Brk,
            MemoryKind::Data,
            MemoryKind::Files,
            MemoryKind::Code,
            MemoryKind::Other,
        ]
        .map(|kind| kinds.get(kind));
        // The engine's own mappings have its frames as well, which come and go meanwhile: it has no
        // more than the others leave of the whole.
        let engine =
            (kinds.get(MemoryKind::Own) + kinds.get(MemoryKind::Managed)).saturating_sub(frames);
        let others = found.shared + stacks + brk + data + files + code + other;
        let engine = engine.min(found.pages.saturating_sub(others));
        let pages = [found.shared, stacks, brk, data, files, code, other, engine];
        for (kind, pages) in Counter::UNMANAGED_KINDS.into_iter().zip(pages) {
            self.stats.set(kind, Bytes::from_pages(pages).0);
        }
    }

    /// What it is: what was found last, where a look at the kernel's counters tells nothing else.
    fn find_unmanaged(&self, last: Option<Exact>) -> Result<Exact, Errno> {
        let managed = self.memory.budget().used();
        let rough = Rss::roughly()?.pages().saturating_sub(managed);
        if let Some(last) = last.filter(|last| last.holds(rough)) {
            return Ok(last);
        }
        let rss = Rss::of_process()?;
        // Frames come and go meanwhile: the most there were are taken off, but for what the kernel
        // counts for others. What the account says of those may be a little old.
        let others = self.memory.lease.member().map_or(0, |member| member.part_of_saved());
        let others = others.min(rss.divided);
        let own = managed.max(self.memory.budget().used()).saturating_sub(others);
        let pages = rss.pages().saturating_sub(own);
        Ok(Exact { at: Instant::now(), pages, shared: rss.shared, managed, rough })
    }
}
