//! From the page's word to what is to be done about it.

use super::context::{FaultContext, SPENT_IN_ALL, SPENT_MAX};
use super::install::Loaded;
use super::settings::Delivery;
use super::streams::Next;
use super::{Access, Fault, Served};
use crate::base::seeded::{Bug, is_seeded};
use crate::frame::Need;
use crate::memory::extent::EXTENT_PAGES;
use crate::memory::frames::zeros;
use crate::memory::word::{PageWord, State};
use crate::stats::{Counter, FaultSource};
use crate::swap::store::LoadError;
use crate::units::{PAGE_SIZE, PageIndex, SlotId};
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use std::ops::Range;
use std::time::Instant;

/// How long a fault takes at most, as is assumed, with each page more that comes in with its page,
/// and one that reads from a device: in what is more it has waited for a processor.
const CPU_NS_MOST: u64 = 30_000;
const CPU_NS_A_PAGE: u64 = 6_000;
const READ_NS_MOST: u64 = 500_000;
/// What the delivery of a fault takes of the program's processor time: two switches for a signal,
/// or the sleep of the thread and its start again, with caches that others have used meanwhile.
const SIGNAL_NS: u64 = 6_000;
const THREAD_NS: u64 = 10_000;

/// What a fault costs without waiting for a processor, and what of that is processor time of the
/// program.
#[derive(PartialEq, Eq, Debug)]
struct Cost {
    ns: u64,
    own_ns: u64,
}

impl Cost {
    /// Of one from `source` that took `ns` and brought in so many pages.
    fn of(delivery: Delivery, source: FaultSource, pages: usize, ns: u64) -> Cost {
        let cpu_most = CPU_NS_MOST + CPU_NS_A_PAGE * pages.saturating_sub(1) as u64;
        let most = if source == FaultSource::Device { READ_NS_MOST } else { cpu_most };
        let (own_ns, delivery_ns) = match delivery {
            Delivery::Signal => (ns.min(cpu_most), SIGNAL_NS),
            Delivery::Thread => (0, THREAD_NS),
        };
        Cost { ns: ns.min(most) + delivery_ns, own_ns: own_ns + delivery_ns }
    }
}

/// What became of the request for a page of budget.
enum Charge {
    Taken,
    /// There is none before something is reclaimed.
    ToReclaim,
    /// There is none while a fork has stopped reclaim.
    Later,
    /// There is none for good.
    Never,
}

impl<B: Backing> Fault<B> {
    /// Serves a fault on `page` and keeps the books; it takes since `since`.
    pub(crate) fn serve_fault(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        access: Access,
        since: Instant,
    ) -> Served {
        let _mark = FaultPath::enter();
        context.source = FaultSource::Place;
        context.installed = 0;
        let served = self.serve(context, page, access);
        if matches!(served, Served::Done | Served::Failed) {
            let ns = since.elapsed().as_nanos() as u64;
            self.stats.add(Counter::PgFault, 1);
            self.stats.fault_ns(context.source, ns);
            self.note_short(context, context.source.short_ns(ns));
            self.workingset.tier_size.note_fault(context.source, ns, context.installed);
        }
        served
    }

    /// Notes that so much of a fault's time is one that more memory would spare.
    fn note_short(&self, context: &FaultContext, ns: u64) {
        if ns == 0 {
            return;
        }
        let cost = Cost::of(self.settings.delivery, context.source, context.installed, ns);
        self.stats.add(Counter::ShortNs, ns);
        self.stats.add(Counter::ShortCostNs, cost.ns);
        self.stats.add(Counter::ShortCpuNs, cost.own_ns);
    }

    fn serve(&self, context: &mut FaultContext, page: PageIndex, access: Access) -> Served {
        let word = self.memory.words.load(page);
        if word.is_locked() {
            return Served::Busy;
        }
        match word.state() {
            State::Resident(_) | State::Evicting(_) if access.protected && word.is_shared() => {
                self.have_copied(context, page)
            }
            State::Resident(_) | State::Evicting(_) if access.protected => self.make_writable(page),
            State::Resident(_) | State::Evicting(_) => self.reinstall(page),
            State::Foreign => Served::Foreign,
            state => self.load(context, page, state, access),
        }
    }

    /// A write to a page that is protected: it is being evicted, and is taken back, or it lies
    /// between such pages.
    ///
    /// Under the page's lock. Without it the page could be chosen anew after the look at its word
    /// and protected before this unprotects it: a write would go unseen while the page is stored,
    /// and be dropped with it.
    fn make_writable(&self, page: PageIndex) -> Served {
        let Some((_, word)) = self.memory.words.try_update(page, PageWord::lock_in_place) else {
            return Served::Busy;
        };
        let range = self.memory.address_range(page.0..page.0 + 1);
        let (State::Resident(frame) | State::Evicting(frame)) = word.state() else {
            unreachable!("locked in place")
        };
        let unlock = || self.memory.words.unlock_as(page, word.with_state(State::Resident(frame)));
        if is_seeded(Bug::UnprotectUnlocked) {
            unlock();
        }
        let unprotected = self.unprotect(range.clone());
        self.swap.drop_written_copy(page, word);
        // It may have been marked since the look at its word.
        self.memory.unshare(word.is_shared().into());
        if !is_seeded(Bug::UnprotectUnlocked) {
            unlock();
        }
        self.stats.add(Counter::WpFault, 1);
        // On an error the mapping has changed under the fault: the repeated access finds out.
        if unprotected.is_ok() { Served::Done } else { self.wake(range) }
    }

    /// Has the first page of a range, and all that follow, be writable.
    pub(super) fn unprotect(&self, range: Range<usize>) -> Result<(), Errno> {
        let backing = &self.memory.frames.backing;
        // A signal does not tell protection from absence: the program may have dropped the page
        // with a system call of its own making, as in `reinstall`.
        let absent = self.settings.delivery == Delivery::Signal
            && backing.install(range.start, zeros(1), false).stop.is_none();
        if absent && range.len() == PAGE_SIZE { Ok(()) } else { backing.unprotect(range) }
    }

    pub(super) fn wake(&self, range: Range<usize>) -> Served {
        let _ = self.memory.frames.backing.wake(range);
        Served::Done
    }

    /// A missing fault on a page that is resident: mostly it was brought in with a folio meanwhile.
    /// If it truly is not there, the program dropped it with a system call of its own making, and
    /// it reads as zeros.
    fn reinstall(&self, page: PageIndex) -> Served {
        let Some((_, word)) = self.memory.words.try_update(page, PageWord::lock_in_place) else {
            return Served::Busy;
        };
        let (State::Resident(frame) | State::Evicting(frame)) = word.state() else {
            unreachable!("locked in place")
        };
        let word = word.in_place_as(State::Resident(frame));
        let range = self.memory.address_range(page.0..page.0 + 1);
        let done = self.memory.frames.backing.install(range.start, zeros(1), false);
        let present = done.stop.is_some();
        if !present {
            self.swap.drop_copy(page, word);
            self.memory.unshare(word.is_shared().into());
        }
        let word = if present { word } else { word.with_state(State::Resident(frame)) };
        self.memory.words.unlock_as(page, word);
        if done.stop.is_some() { self.wake(range) } else { Served::Done }
    }

    /// Brings in a page that is not resident, and its neighbours while the access is sequential.
    pub(super) fn load(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        state: State,
        access: Access,
    ) -> Served {
        let next = self.streams.next(page).at_most(context.capacity());
        self.stats.add(Counter::SwapRaHit, next.read_ahead as u64);
        // 1. Frames for what can come in with it: as many as there are without waiting, or one.
        if let Err(served) = self.charge(context, self.fitting(page, state, next)) {
            return served;
        }
        // 2. Lock the run: the page, and neighbours whose content lies likewise.
        let below = next.down.then(|| self.lock_below(page, context.frames.len())).flatten();
        let down = below.is_some();
        let (first, state, mut len) = below.unwrap_or_else(|| {
            let most = if next.down { 1 } else { context.frames.len() };
            (page, state, self.lock_run(page, state, most))
        });
        // What nobody has touched may be on its way out of the address space, or elsewhere.
        if context.is_ahead && !self.memory.extents.is_accessible(first) {
            self.memory.unlock_run(first.0, len);
            len = 0;
        }
        // Others may want them before these are read.
        self.memory.frames.give_holes(&context.frames[len..]);
        context.frames.truncate(len);
        if len == 0 {
            return Served::Busy;
        }
        // 3. Load and install.
        if is_seeded(Bug::FreeBeforeInstall) && matches!(state, State::Stored(_)) {
            self.swap.forget(state);
        }
        let keeps = |slot| {
            let soon = len == 1 && self.is_back_soon(slot);
            self.swap.keeps_copies(slot, soon, len)
        };
        let protect = !access.write && matches!(state, State::Stored(slot) if keeps(slot));
        let loaded = self.install_run(context, first, state, len, protect);
        context.installed = loaded.as_ref().map_or(0, |loaded| loaded.pages);
        self.memory.frames.give_holes(&context.frames[context.installed..]);
        // 4. Publish.
        let served = self.publish_loaded(context, first, len, loaded);
        if down && context.installed < len {
            // That of the fault is not there yet, and who waits for it is to ask again.
            self.streams.forget(page);
            if context.is_ahead {
                return Served::Busy;
            }
            return self.wake(self.memory.address_range(page.0..page.0 + 1));
        }
        if served == Served::Done {
            let from_device = context.source == FaultSource::Device;
            self.streams.advance(first, (len, next.pages), from_device, down);
            let end = if next.down { first.0.checked_sub(1) } else { Some(first.0 + len) };
            end.into_iter().for_each(|end| self.ask_ahead(context, next, end, access.write));
            if context.spent.len() >= (SPENT_IN_ALL / self.contexts.len()).clamp(1, SPENT_MAX) {
                self.free_spent(context);
            }
        }
        served
    }

    /// How many pages of those that are next in a stream can come in together, by what their words
    /// say just now.
    fn fitting(&self, page: PageIndex, state: State, next: Next) -> usize {
        let peek = |page: PageIndex, fits: &dyn Fn(PageWord) -> bool| {
            let word = self.memory.words.load(page);
            let is_free = !word.is_locked() && self.memory.extents.is_accessible(page);
            (is_free && fits(word)).then_some(word)
        };
        if !next.down {
            return self.run_len(page, state, next.pages, peek);
        }
        // The longest run that ends with the page.
        let mut first = self.first_below(page, next.pages);
        while first < page {
            let (state, whole) = (self.memory.words.load(first).state(), page.0 + 1 - first.0);
            let len = if is_away(state) { self.run_len(first, state, whole, peek) } else { 1 };
            if len == whole {
                return whole;
            }
            first.0 += len;
        }
        1
    }

    /// The first of so many pages up to one, in its extent.
    fn first_below(&self, page: PageIndex, pages: usize) -> PageIndex {
        let start = page.0 / EXTENT_PAGES * EXTENT_PAGES;
        PageIndex((page.0 + 1).saturating_sub(pages).max(start))
    }

    /// Locks the pages below one, and that, where all of them are away in the same place; at most
    /// `most`. The first, its state, and how many.
    fn lock_below(&self, page: PageIndex, most: usize) -> Option<(PageIndex, State, usize)> {
        let first = self.first_below(page, most);
        let state = self.memory.words.load(first).state();
        if first == page || !is_away(state) {
            return None;
        }
        let whole = page.0 + 1 - first.0;
        let len = self.lock_run(first, state, whole);
        if len < whole || !self.memory.extents.is_accessible(first) {
            self.memory.unlock_run(first.0, len);
            return None;
        }
        Some((first, state, len))
    }

    /// What became of the run of a fault, which is given its new words, or left as it was.
    fn publish_loaded(
        &self,
        context: &FaultContext,
        page: PageIndex,
        len: usize,
        loaded: Result<Loaded, LoadError>,
    ) -> Served {
        match loaded {
            Ok(Loaded { pages, clean, foreign }) => {
                self.publish_run(page, len, &context.frames[..pages], clean);
                if foreign {
                    Served::Foreign
                } else if pages == 0 {
                    // The run may reach over two mappings of the kernel's: the page alone next
                    // time.
                    self.streams.forget(page);
                    Served::Busy
                } else {
                    Served::Done
                }
            }
            Err(error) => {
                self.memory.unlock_run(page.0, len);
                if len > 1 || context.is_ahead {
                    // A neighbour may be the unreadable one: a read error reaches only its own
                    // reader.
                    self.streams.forget(page);
                    Served::Busy
                } else {
                    self.base.report.once(format_args!("{error}"));
                    Served::Failed
                }
            }
        }
    }

    /// Takes up to `wanted` frames, or one if they are short.
    pub(super) fn charge(&self, context: &mut FaultContext, wanted: usize) -> Result<(), Served> {
        context.frames.clear();
        if self.memory.frames.allocator.alloc_folio(wanted, Need::Fault, &mut context.frames) == 0 {
            match self.make_room(context) {
                Charge::Taken => {}
                Charge::ToReclaim => return Err(Served::NoRoom),
                Charge::Later => return Err(Served::Busy),
                Charge::Never => return Err(Served::Failed),
            }
        }
        if self.memory.is_low() {
            self.base.wake.background.wake();
        }
        Ok(())
    }

    /// Takes one frame although there seemed to be none.
    fn make_room(&self, context: &mut FaultContext) -> Charge {
        self.free_spent(context);
        if self.memory.frames.allocator.alloc_folio(1, Need::Fault, &mut context.frames) == 1 {
            return Charge::Taken;
        }
        if self.base.gates.reclaim.try_enter().is_some() {
            return Charge::ToReclaim;
        }
        // Frozen for a fork, or for a moment because DMA was seen.
        if !self.base.gates.may_exceed(context.thread) {
            return Charge::Later;
        }
        match self.memory.frames.allocator.alloc_folio(1, Need::Over, &mut context.frames) {
            1 => Charge::Taken,
            _ => Charge::Never,
        }
    }

    /// Locks up to `max` pages from `page` on whose content is of the same kind as `state`; how
    /// many. 0 if the page itself has changed.
    fn lock_run(&self, page: PageIndex, state: State, max: usize) -> usize {
        if self.memory.words.try_lock_if(page, |w| w.state() == state).is_none() {
            return 0;
        }
        let max = max.min(EXTENT_PAGES - page.0 % EXTENT_PAGES);
        self.memory.extents.touch(page.0..page.0 + max);
        self.memory.note_extent(page);
        self.run_len(page, state, max, |next, fits| {
            let word = self.memory.words.try_lock_if(next, fits)?;
            // Under its lock: who unmaps it takes access away before it waits for that lock.
            if !self.memory.extents.is_accessible(next) {
                self.memory.unlock_unchanged(next);
                return None;
            }
            Some(word)
        })
    }

    /// How many pages from `page` on, which is in `state`, come in together: up to `max` in its
    /// extent, as far as each may be had: `have` says so, given which words fit.
    fn run_len(
        &self,
        page: PageIndex,
        state: State,
        max: usize,
        have: impl Fn(PageIndex, &dyn Fn(PageWord) -> bool) -> Option<PageWord>,
    ) -> usize {
        let max = max.min(EXTENT_PAGES - page.0 % EXTENT_PAGES);
        let (mut len, mut last) = (1, state);
        // The slot behind those that are read from a device.
        let mut behind = match state {
            State::Stored(slot) if !self.swap.zswap.contains(slot) => Some(slot.advance(1)),
            _ => None,
        };
        while len < max {
            let fits = |word: PageWord| self.follows(last, behind, word.state());
            let Some(word) = have(PageIndex(page.0 + len), &fits) else { break };
            last = word.state();
            if let Some(slot) = behind.filter(|slot| last == State::Stored(*slot)) {
                behind = Some(slot.advance(1));
            }
            len += 1;
        }
        len
    }

    /// Whether the content of the page after one in state `last` can come in together with it: from
    /// the same place, made up in memory, or with the operation that reads up to slot `behind`.
    fn follows(&self, last: State, behind: Option<SlotId>, next: State) -> bool {
        match (last, next) {
            (State::Filled(_) | State::Stored(_), State::Filled(_)) => true,
            (State::Filled(_) | State::Stored(_), State::Stored(slot)) => {
                behind == Some(slot) || self.swap.zswap.contains(slot) || lies_behind(last, next)
            }
            _ => lies_behind(last, next),
        }
    }
}

/// Whether a page in this state is to be brought in.
fn is_away(state: State) -> bool {
    !matches!(state, State::Resident(_) | State::Evicting(_) | State::Foreign)
}

/// Whether the content of a page in state `next` lies in the same place as that of a page in state
/// `last`, behind it.
pub(super) fn lies_behind(last: State, next: State) -> bool {
    match (last, next) {
        (State::Empty, State::Empty) => true,
        (State::Cached(a), State::Cached(b)) => b.0 == a.0 + 1,
        (State::Stored(a), State::Stored(b)) => {
            b.device() == a.device() && b.offset() == a.offset() + 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{FrameId, SlotId};

    #[test]
    fn what_a_fault_costs_grows_with_what_comes_in_and_not_with_waiting() {
        use Delivery::{Signal, Thread};
        use FaultSource::{Compressed, Device};
        let cost = |delivery, source, pages, us: u64| {
            let Cost { ns, own_ns } = Cost::of(delivery, source, pages, us * 1000);
            (ns / 1000, own_ns / 1000)
        };
        assert_eq!(cost(Signal, Compressed, 1, 8), (14, 14));
        assert_eq!(cost(Signal, Compressed, 1, 4_000), (36, 36), "it waited for a processor");
        assert_eq!(cost(Signal, Compressed, 16, 90), (96, 96));
        assert_eq!(cost(Signal, Compressed, 16, 4_000), (126, 126));
        assert_eq!(cost(Signal, Device, 1, 400), (406, 36), "the rest is the device's time");
        assert_eq!(cost(Thread, Compressed, 16, 90), (100, 10), "the program only waits");
    }

    #[test]
    fn neighbours_come_in_only_with_their_kind() {
        let stored = |n| State::Stored(SlotId::new(0, n));
        assert!(lies_behind(stored(5), stored(6)) && !lies_behind(stored(5), stored(9)));
        assert!(!lies_behind(stored(5), State::Stored(SlotId::new(1, 6))));
        assert!(lies_behind(State::Cached(FrameId(1)), State::Cached(FrameId(2))));
        assert!(
            lies_behind(State::Empty, State::Empty) && !lies_behind(State::Empty, State::Filled(0))
        );
        assert!(!lies_behind(State::Empty, State::Resident(FrameId(1))));
    }
}
