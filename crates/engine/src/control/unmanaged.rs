//! Memory of the process that the engine does not manage, and the job cannot get back: stacks, data
//! of libraries, shared memory, the engine's own tables.
//!
//! It is what the kernel counts for the process beyond the frames in use. Frames of pages that were
//! never written have no memory behind them, so the difference is too low at times: what was found
//! is only by and by taken for less. The exact figure takes a millisecond even in a small process;
//! so the kernel's counters are looked at first, whether it can have changed. Measured in processes
//! of a job: the budget of a library's pool is for the pool alone.
//!
//! What processes share since a fork is divided among them, so that it counts once. So it becomes
//! more in one that does nothing, as others end or write to it: one at rest is looked at again, the
//! longer apart the longer that stays as it is.
//!
//! What kinds of memory it is takes as long again, and longer with many mappings. So that is asked
//! only where somebody will want to know: in the process that has most of it, or much, once all
//! processes of the job have more than is tolerated, and again when it has become a
//! quarter more. As each measurement it takes a hundredth of the time at most.

use super::Control;
use super::job::tolerance;
use crate::stats::Counter;
use crate::units::Bytes;
use overspill_os::backing::Backing;
use overspill_os::rss::Rss;
use overspill_os::smaps::{Kinds, MemoryKind};
use overspill_os::{Errno, thread};
use std::time::{Duration, Instant};

/// How often it is measured, and at most what part of the time.
const EVERY: Duration = Duration::from_millis(50);
/// How often exactly where the rough figure stays where it is, which is for so many pages.
const EXACT_EVERY: Duration = Duration::from_secs(1);
const NEAR: u64 = 32;
const TIME_PART: u32 = 100;
/// What part of the way down a lower figure is followed.
const DOWN: u64 = 4;
/// What part of all that the processes of the job have is much for one of them.
const MUCH: u64 = 8;
/// At which look at a process at rest it has given back its buffers.
const SETTLED: u32 = 3;
/// Time between two looks at one at rest which has memory that others share, at least and at most.
const AGAIN_LEAST: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// When it is measured next.
#[derive(Default, Debug)]
pub struct Unmanaged {
    next: Option<Instant>,
    /// Time of processors that the program had used by then.
    worked: Duration,
    exact: Option<Exact>,
    /// Looks since the process is at rest; when there is to be a look at what it shares, and how
    /// long after the one before; how many processes the job had.
    rested: u32,
    again: Option<Instant>,
    pause: Duration,
    members: usize,
    /// Pages that there were when it was last asked what they are.
    sorted: u64,
}

/// What was found last.
#[derive(Clone, Copy, Debug)]
struct Exact {
    at: Instant,
    pages: u64,
    /// Of those, shared memory.
    shared: u64,
    /// What the rough figure was then.
    rough: u64,
}

impl Exact {
    /// Whether that is how it still is, by the rough figure of now.
    fn holds(&self, rough: u64) -> bool {
        rough.abs_diff(self.rough) < NEAR && self.at.elapsed() < EXACT_EVERY
    }
}

impl Unmanaged {
    /// Whether to measure, when the program has used so much time of processors: what has not run
    /// has no more memory than before.
    pub fn is_due(&mut self, worked: Duration) -> bool {
        let is_due = worked != self.worked && self.next.is_none_or(|next| next <= Instant::now());
        if is_due {
            self.worked = worked;
        }
        is_due
    }

    /// Whether the process has come to rest, and has just what it will have from now on.
    pub fn has_settled(&mut self, is_at_rest: bool) -> bool {
        self.rested = if is_at_rest { self.rested.saturating_add(1) } else { 0 };
        (self.again, self.pause) = match self.rested {
            SETTLED => (Some(Instant::now() + AGAIN_LEAST), AGAIN_LEAST),
            ..SETTLED => (None, AGAIN_LEAST),
            _ => (self.again, self.pause),
        };
        self.rested == SETTLED
    }

    /// It changes: the next look is soon.
    fn look_soon(&mut self) {
        let soon = Instant::now() + AGAIN_LEAST;
        self.pause = AGAIN_LEAST;
        self.again = self.again.map(|again| again.min(soon));
    }

    /// Whether to look at what a process that has settled shares, in a job of so many: soon after
    /// some of them have ended.
    pub fn is_due_again(&mut self, members: usize) -> bool {
        let Some(again) = self.again else { return false };
        let now = Instant::now();
        if members < self.members {
            self.look_soon();
        }
        self.members = members;
        let is_due = again <= now;
        if is_due {
            self.pause = (self.pause * 2).min(AGAIN_MOST);
            self.again = Some(now + self.pause);
        }
        is_due
    }
}

/// What it is taken for after it was measured to be `found`.
fn follow(before: u64, found: u64) -> u64 {
    if found < before { before - (before - found).div_ceil(DOWN) } else { found }
}

impl<B: Backing> Control<B> {
    /// Measures it in a process that works.
    pub(super) fn measure_unmanaged(&self, state: &mut Unmanaged) {
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
    pub(super) fn measure_at_rest(&self, state: &mut Unmanaged) {
        if let Ok(exact) = self.find_unmanaged(None) {
            state.exact = Some(exact);
            self.note_unmanaged(exact.pages);
            self.sort_where_it_matters(state, exact);
        }
    }

    /// Measures it in one that has been at rest, where it shares so much that it may have become
    /// more.
    pub(super) fn measure_again(&self, state: &mut Unmanaged) {
        let managed = self.memory.budget().used();
        let rough = Rss::roughly().map_or(0, |rss| rss.pages().saturating_sub(managed));
        let before = self.memory.lease.unmanaged();
        if rough > before + NEAR {
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
        let managed = managed.max(self.memory.budget().used()).saturating_sub(others);
        let pages = rss.pages().saturating_sub(managed);
        Ok(Exact { at: Instant::now(), pages, shared: rss.shared, rough })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_counts_at_once_and_less_by_and_by() {
        assert_eq!((follow(100, 900), follow(900, 100), follow(101, 100)), (900, 700, 100));
    }

    #[test]
    fn a_rough_figure_that_stays_saves_an_exact_one_for_a_second() {
        let mut exact = Exact { at: Instant::now(), pages: 700, shared: 0, rough: 500 };
        assert!(exact.holds(500) && exact.holds(500 - NEAR + 1) && !exact.holds(500 + NEAR));
        exact.at -= EXACT_EVERY;
        assert!(!exact.holds(500));
    }

    #[test]
    fn a_process_that_does_nothing_is_not_measured_again() {
        let mut unmanaged = Unmanaged::default();
        let worked = Duration::from_millis(3);
        assert!(unmanaged.is_due(worked) && !unmanaged.is_due(worked));
        assert!(unmanaged.is_due(worked * 2));
        unmanaged.next = Some(Instant::now() + EVERY);
        assert!(!unmanaged.is_due(worked * 3));
    }

    #[test]
    fn one_that_comes_to_rest_is_measured_once_more() {
        let mut unmanaged = Unmanaged::default();
        let mut looks = |is_at_rest: bool, count: u32| {
            (0..count).filter(|_| unmanaged.has_settled(is_at_rest)).count()
        };
        assert_eq!((looks(true, 20), looks(false, 20)), (1, 0));
        assert_eq!((looks(true, SETTLED - 1), looks(false, 1), looks(true, 20)), (0, 0, 1));
    }

    #[test]
    fn what_one_at_rest_shares_is_looked_at_again_and_sooner_when_others_end() {
        let mut unmanaged = Unmanaged::default();
        assert!(!unmanaged.is_due_again(9), "it works");
        let settles = (1..=SETTLED).filter(|_| unmanaged.has_settled(true)).count();
        assert_eq!(settles, 1);
        assert!(!unmanaged.is_due_again(9));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            unmanaged.again = Some(Instant::now());
            assert!(unmanaged.is_due_again(9) && !unmanaged.is_due_again(9));
            pauses.push(unmanaged.pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        let is_soon = |unmanaged: &Unmanaged| {
            unmanaged.again.is_some_and(|again| again <= Instant::now() + AGAIN_LEAST)
        };
        assert!(!unmanaged.is_due_again(10) && !is_soon(&unmanaged), "one more");
        assert!(!unmanaged.is_due_again(8) && is_soon(&unmanaged), "two less");
        unmanaged.has_settled(false);
        assert!(unmanaged.again.is_none());
    }
}
