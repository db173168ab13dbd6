//! The ways of resident pages out of the page tables: a run moves to frames of the arena, or pages
//! are protected, stored where they are, and dropped with one call.

use super::plan::{EvictPlan, EvictTo, ExtentBitmap, ScanProgress};
use super::settings::WayOut;
use crate::base::seeded::{Bug, is_seeded};
use crate::frame::cells::Owner;
use crate::memory::extent::{self, EXTENT_PAGES};
use crate::memory::frames::push_range;
use crate::memory::word::{PageWord, State};
use crate::reclaim::Reclaim;
use crate::stats::Counter;
use crate::swap::batch::{Batch, Pick};
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex, page_mut};
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::uffd::Stop;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// Shortest run that is moved: at 64 pages a flush for each run costs a page 0.4 us when another
/// core is busy, the same as protecting and dropping; below that moving is dearer.
const RUN_MIN: usize = 64;
/// Pages moved by one call; the order of the frames that take them.
const RUN_ORDER: u8 = 6;

impl<B: Backing> Reclaim<B> {
    /// How pages are evicted that are to go there; runs may move out.
    pub(super) fn plan(&self, to: EvictTo, runs_move: bool) -> EvictPlan {
        let only_move = self.only_move();
        EvictPlan {
            only_move,
            moves: only_move || runs_move && self.prefers_move(to),
            // What cannot be moved has no other way.
            to: if only_move { EvictTo::SwapOut } else { to },
            spares_shared: self.memory.is_sharing(),
        }
    }

    /// Whether pages may leave by moving only.
    fn only_move(&self) -> bool {
        if self.memory.lease.account.has_remote_writes() {
            self.note_dma();
        }
        self.settings.way_out == WayOut::Move || self.dma_seen.load(SeqCst)
    }

    /// Whether dense runs are moved just now.
    fn prefers_move(&self, to: EvictTo) -> bool {
        self.settings.way_out == WayOut::Auto
            && self.memory.frames.backing.can_move()
            && self.ways_out[to as usize].pick() == 0
    }

    /// Whether an extent has pages that can leave like that.
    pub(super) fn may_leave(&self, index: usize, plan: EvictPlan) -> bool {
        self.memory.extents.resident(index) > 0
            && (!plan.only_move || self.memory.frames.backing.can_move())
    }

    /// Evicts the wanted pages of an extent whose lock is held, or picks them for that.
    pub(super) fn evict_wanted(
        &self,
        batch: &mut Batch,
        index: usize,
        (mut wanted, most): (ExtentBitmap, usize),
        plan: EvictPlan,
        progress: &mut ScanProgress,
    ) {
        let first = extent::pages_of(index).start;
        // 1. Dense runs move out; all runs, where a device might be writing to a page that looks
        //    idle.
        if plan.moves {
            let shortest = if plan.only_move { 1 } else { RUN_MIN };
            let mut immovable: ExtentBitmap = [0; EXTENT_PAGES / 64];
            let mut at = 0;
            while let Some(run) = next_run(&wanted, at) {
                at = run.end;
                if run.len() >= shortest {
                    let pages = first + run.start..first + run.end;
                    progress.deactivated +=
                        self.move_out(pages, plan.only_move, first, &mut wanted, &mut immovable);
                }
            }
            if plan.only_move {
                // A page that cannot be moved because it is not writable is not a device's target
                // either.
                wanted = immovable;
            }
        }
        // 2. The rest is stored where it is and dropped; or, where it would go to a device, from
        //    which it is dear to bring back, copied to the swap cache first.
        let mut picked = 0;
        for at in (0..EXTENT_PAGES).filter(|at| wanted[at / 64] & 1 << (at % 64) != 0) {
            if picked == most {
                break;
            }
            if !batch.has_room() {
                self.evict_picked(batch, plan, progress);
            }
            let page = PageIndex(first + at);
            if let Some((_, word)) = self.memory.words.try_update(page, PageWord::begin_evict) {
                batch.picks.push(self.pick(page, word));
                picked += 1;
            }
        }
    }

    /// Evicts the resident pages of a part of an extent, whether they were referenced lately or
    /// not; how many have left it.
    pub(crate) fn evict_pages(&self, batch: &mut Batch, pages: Range<usize>, to: EvictTo) -> usize {
        let _mark = FaultPath::enter();
        let (index, plan) = (pages.start / EXTENT_PAGES, self.plan(to, to == EvictTo::SwapCache));
        if !self.may_leave(index, plan) {
            return 0;
        }
        let Some(_guard) = self.memory.extents.try_lock(index) else { return 0 };
        let mut wanted: ExtentBitmap = [0; EXTENT_PAGES / 64];
        let first = extent::pages_of(index).start;
        for page in pages {
            let word = self.memory.words.load(PageIndex(page));
            if word.is_resident() && !word.is_locked() && !word.is_pinned() && !plan.spares(word) {
                wanted[(page - first) / 64] |= 1 << ((page - first) % 64);
            }
        }
        let mut progress = ScanProgress::default();
        batch.picks.clear();
        self.evict_wanted(batch, index, (wanted, EXTENT_PAGES), plan, &mut progress);
        self.evict_picked(batch, plan, &mut progress);
        progress.freed + progress.deactivated
    }

    /// Moves a run of resident pages out to frames of the arena; returns how many moved. Bit 0 of
    /// the bitmaps is page `base`: what moved leaves `wanted`, what the kernel will not move for
    /// its kind of mapping enters `immovable`.
    fn move_out(
        &self,
        pages: Range<usize>,
        exclusive: bool,
        base: usize,
        wanted: &mut ExtentBitmap,
        immovable: &mut ExtentBitmap,
    ) -> usize {
        let (mut moved, mut at, mut largest) = (0, pages.start, RUN_ORDER);
        while at < pages.end {
            // 1. Lock as many as one block of frames takes.
            let order = ((pages.end - at).ilog2() as u8).min(largest);
            let len = self.lock_resident(at, 1 << order, exclusive);
            if len == 0 {
                at += 1;
                continue;
            }
            // 2. Move.
            let Some(frame) = self.memory.frames.take_holes(order) else {
                self.memory.unlock_run(at, len);
                // Where there is no room for so many, a few are a beginning.
                if order == 0 {
                    break;
                }
                largest = order - 1;
                continue;
            };
            let (count, stop) = self.move_run(at..at + len, frame, exclusive);
            // 3. Publish: the moved are in the swap cache, the others as they were.
            self.publish_moved(at, frame, count);
            for i in at - base..at - base + count {
                wanted[i / 64] &= !(1 << (i % 64));
            }
            self.memory.unlock_run(at + count, len - count);
            if count < 1 << order {
                let rest = FrameId(frame.0 + count as u32);
                self.memory.budget().free_run(rest, (1 << order) - count);
            }
            moved += count;
            at += count;
            // 4. Who stopped it?
            match stop {
                None | Some(Stop::Again) => largest = RUN_ORDER,
                // The run may reach over two mappings: a shorter one may not.
                Some(Stop::Unsuitable) if order > 0 && count == 0 => largest = order - 1,
                Some(Stop::Busy) => {
                    self.stats.add(Counter::MoveBusy, 1);
                    at += 1;
                }
                // Dropped behind our back by a raw system call: to the kernel it reads as zeros
                // now.
                Some(Stop::Absent) => {
                    self.note_zapped(PageIndex(at));
                    at += 1;
                }
                Some(_) => {
                    immovable[(at - base) / 64] |= 1 << ((at - base) % 64);
                    at += 1;
                }
            }
        }
        moved
    }

    /// Locks up to `most` pages from a page on that are resident and may leave; how many. What is
    /// shared since a fork the kernel does not move, unless it is made `exclusive`.
    fn lock_resident(&self, first: usize, most: usize, exclusive: bool) -> usize {
        let moves = |word: PageWord| exclusive || !word.is_shared();
        let goes = |word: PageWord| word.is_resident() && !word.is_pinned() && moves(word);
        let locks = |page: &usize| self.memory.words.try_lock_if(PageIndex(*page), goes).is_some();
        (first..first + most).take_while(locks).count()
    }

    /// Moves locked pages into frames that are holes; how many have moved, and what stopped it.
    fn move_run(
        &self,
        pages: Range<usize>,
        frame: FrameId,
        exclusive: bool,
    ) -> (usize, Option<Stop>) {
        let start = Instant::now();
        let backing = &self.memory.frames.backing;
        let dst = self.memory.frames.arena.frame_range(frame.0, pages.len()).start;
        let (first, len) = (PageIndex(pages.start), pages.len());
        let mut done = backing.move_out(dst, self.memory.address_range(pages));
        if exclusive && done.bytes == 0 {
            match done.stop {
                // Shared since a fork? Once more, as the process's own; if it is pinned, it stays.
                Some(Stop::Busy) if self.make_exclusive(first) => {
                    done = backing.move_out(dst, self.memory.address_range(first.0..first.0 + 1));
                }
                // Code that may be written: the kernel never moves it, and nobody knows whether it
                // is pinned.
                Some(Stop::Unsuitable) if len == 1 && self.make_exclusive(first) => {
                    done.stop = Some(Stop::Busy);
                }
                _ => {}
            }
        }
        let count = done.bytes >> PAGE_SHIFT;
        // The kernel does not move what is pinned. Who writes without a pin does so to the same
        // memory, before anybody else finds it in the frames.
        if count > 0 && !is_seeded(Bug::MovedUnsettled) {
            backing.settle();
        }
        let ns = start.elapsed().as_nanos() as u64;
        self.ways_out.iter().for_each(|choice| choice.record(0, ns, count));
        (count, done.stop)
    }

    /// Makes a locked page that is shared since a fork the process's own; whether it is.
    fn make_exclusive(&self, page: PageIndex) -> bool {
        let range = self.memory.address_range(page.0..page.0 + 1);
        // 1. A write to a protected page is a fault, and nobody would serve it while this thread
        //    waits. Where nothing protects it any more, it is not known to be clean, nor counted
        //    once.
        let dirty = |word: PageWord| {
            let is_protected = word.is_clean() || word.is_shared();
            is_protected.then(|| word.clean(false).shared(false))
        };
        if let Some((word, _)) = self.memory.words.try_update(page, dirty) {
            self.swap.drop_copy(page, word);
            self.memory.unshare(word.is_shared().into());
        }
        // 2. Write.
        self.memory.frames.backing.make_exclusive(range).is_ok()
    }

    /// Gives pages that have moved to frames from `frame` on their new words, and their own frames
    /// back.
    fn publish_moved(&self, first: usize, frame: FrameId, count: usize) {
        self.swap.lru.add_run(PageIndex(first), frame, count);
        let (mut own, mut shared) = ([FrameId(0); 1 << RUN_ORDER], 0);
        for (i, frame) in frame.run(count).enumerate() {
            let page = PageIndex(first + i);
            let word = self.memory.words.load(page);
            let State::Resident(hole) = word.state() else { unreachable!("locked as resident") };
            own[i] = hole;
            shared += u64::from(word.is_shared());
            if let Some(slot) = self.swap.copy_of(word) {
                self.memory.cells().set_owner(frame, Owner::Copy(slot));
            }
            let cached = word.with_state(State::Cached(frame)).clean(word.is_clean());
            self.memory.words.unlock_as(page, cached);
        }
        self.memory.unshare(shared);
        self.memory.frames.give_holes(&own[..count]);
        self.memory.extents.sub_resident(PageIndex(first), count);
        self.stats.sub(Counter::ResidentPages, count as u64);
        self.stats.add(Counter::OutMoved, count as u64);
        self.stats.add(Counter::PgDeactivate, count as u64);
    }

    /// A resident page turned out not to be in the page tables.
    fn note_zapped(&self, page: PageIndex) {
        if let Some(word) = self.memory.words.try_lock_if(page, PageWord::is_resident)
            && let State::Resident(frame) = word.state()
        {
            self.memory.extents.sub_resident(page, 1);
            self.stats.sub(Counter::ResidentPages, 1);
            self.swap.drop_copy(page, word);
            self.memory.unshare(word.is_shared().into());
            self.memory.words.unlock_as(page, word.with_state(State::Empty));
            self.memory.frames.give_holes(&[frame]);
        }
    }

    /// Evicts what was picked.
    pub(super) fn evict_picked(
        &self,
        batch: &mut Batch,
        plan: EvictPlan,
        progress: &mut ScanProgress,
    ) {
        let left = self.evict_in_place(batch, plan);
        match plan.to {
            EvictTo::SwapCache => progress.deactivated += left,
            EvictTo::SwapOut => progress.freed += left,
        }
        batch.picks.clear();
    }

    /// Protects the picked pages, so that from then on every write to one of them is a fault.
    fn protect_picked(&self, batch: &mut Batch) {
        // With one call for extents that are next to one another; but a pinned page stays writable,
        // since the kernel may be about to write there, and so does one that the program protects
        // itself. Whoever makes a page such waits for the lock of its extent, and so for who did
        // not see that.
        let may_be_passed_over =
            self.memory.pinned_pages.load(Relaxed) + self.memory.foreign_pages.load(Relaxed) > 0;
        let is_passed_over = |page: usize| {
            let word = self.memory.words.load(PageIndex(page));
            word.is_pinned() || word.state() == State::Foreign
        };
        let together = |a: &Pick, b: &Pick| {
            let is_one_range = self.memory.places.is_one_range(a.page, b.page);
            let [a, b] = [a, b].map(|pick| pick.page.0);
            is_one_range
                && (0..=1).contains(&(b / EXTENT_PAGES).wrapping_sub(a / EXTENT_PAGES))
                && !(may_be_passed_over && (a + 1..b).any(is_passed_over))
        };
        let protect = |picks: &[Pick]| {
            let (Some(first), Some(last)) = (picks.first(), picks.last()) else { return Ok(()) };
            self.memory
                .frames
                .backing
                .protect(self.memory.address_range(first.page.0..last.page.0 + 1))
        };
        if batch.picks.chunk_by(together).all(|picks| protect(picks).is_ok()) {
            return;
        }
        // A mapping of the kernel's lies between: page by page.
        batch.picks.retain(|pick| {
            let protected = protect(std::slice::from_ref(pick)).is_ok();
            if !protected {
                self.memory.words.try_update(pick.page, PageWord::take_back);
            }
            protected
        });
    }

    /// Stores or copies the picked pages from where they are, and drops them; returns how many. The
    /// locks of their extents are held.
    fn evict_in_place(&self, batch: &mut Batch, plan: EvictPlan) -> usize {
        let to = plan.to;
        if batch.picks.is_empty() {
            return 0;
        }
        // 1. Protect: from here on a write is a fault. Who found a page before may still write to
        //    it: for as long as it likes if it holds a pin, of which it has told before it took it;
        //    and else while it has the lock of the page tables.
        let started = Instant::now();
        self.protect_picked(batch);
        if !plan.only_move && !is_seeded(Bug::HoldersUnasked) && self.only_move() {
            self.take_back_picked(batch);
            return 0;
        }
        if !is_seeded(Bug::NotSettled) {
            self.memory.frames.backing.settle();
        }
        let mut ns = started.elapsed().as_nanos() as u64;
        // 2. Store from where they are; for the swap cache, in the frames that they own. Storing is
        //    no part of what this way costs, as pages that move are stored as well; copying is.
        let started = Instant::now();
        match to {
            EvictTo::SwapOut => {
                self.swap.store_batch(batch, |pick, out| self.read_evicting(pick, out));
            }
            EvictTo::SwapCache => self.copy_picked(batch),
        }
        // 3. Commit: who was taken back meanwhile stays, and its stored copy is forgotten.
        self.commit_picked(batch);
        if batch.picks.is_empty() {
            return 0;
        }
        if to == EvictTo::SwapCache {
            // Nobody writes to them any more. There is memory twice for a moment, that of a batch.
            let Batch { picks, buffer, .. } = &mut *batch;
            picks.iter().for_each(|pick| self.fill_own_frame(pick, buffer));
            ns += started.elapsed().as_nanos() as u64;
        }
        if is_seeded(Bug::PublishBeforeDrop) {
            self.publish_evicted(batch, to);
        }
        // 4. Drop, with one call and one flush.
        let started = Instant::now();
        self.memory.frames.backing.drop_pages(&batch.ranges).expect("dropping managed pages");
        let count = batch.picks.len();
        ns += started.elapsed().as_nanos() as u64;
        self.ways_out[to as usize].record(1, ns, count);
        // 5. Publish where they are now.
        if !is_seeded(Bug::PublishBeforeDrop) {
            self.publish_evicted(batch, to);
        }
        count
    }

    /// None of the picked pages is evicted. They stay protected, until they are written to.
    fn take_back_picked(&self, batch: &mut Batch) {
        for pick in &batch.picks {
            self.memory.words.try_update(pick.page, PageWord::take_back);
        }
        batch.picks.clear();
    }

    /// Reads the picked pages into the buffer, for the frames that they own.
    fn copy_picked(&self, batch: &mut Batch) {
        let Batch { picks, buffer, .. } = batch;
        for (i, pick) in picks.iter_mut().enumerate() {
            let State::Evicting(frame) = pick.from else { unreachable!("picked to be evicted") };
            pick.place = Some(i as u32);
            let is_read = self.read_evicting(pick, page_mut(buffer, i));
            pick.stored = is_read.then_some(State::Cached(frame));
        }
    }

    /// Locks the picked pages that were stored, and lines their addresses up; the others stay.
    fn commit_picked(&self, batch: &mut Batch) {
        batch.ranges.clear();
        batch.picks.retain(|pick| {
            let Some(stored) = pick.stored else {
                if self.memory.words.try_update(pick.page, PageWord::take_back).is_none() {
                    self.stats.add(Counter::EvictAborted, 1);
                }
                return false;
            };
            let commit = match is_seeded(Bug::DropWithoutCommit) {
                true => PageWord::lock_in_place,
                false => PageWord::commit_evict,
            };
            if self.memory.words.try_update(pick.page, commit).is_none() {
                self.stats.add(Counter::EvictAborted, 1);
                // The copy of a page that was clean is its writer's business.
                if pick.copy.is_none() {
                    self.swap.forget(stored);
                }
                return false;
            }
            let range = self.memory.address_range(pick.page.0..pick.page.0 + 1);
            push_range(&mut batch.ranges, range);
            true
        });
    }

    /// Gives pages that were dropped their new words, and their frames back.
    fn publish_evicted(&self, batch: &mut Batch, to: EvictTo) {
        batch.frames.clear();
        let mut shared = 0;
        for pick in &batch.picks {
            let word = self.memory.words.load(pick.page);
            shared += u64::from(word.is_shared());
            let State::Evicting(frame) = word.state() else { unreachable!("committed before") };
            let stored = pick.stored.expect("kept when it was committed");
            if to == EvictTo::SwapCache {
                self.swap.lru.add(pick.owner(), frame);
                let cached = word.with_state(stored).clean(word.is_clean());
                self.memory.words.unlock_as(pick.page, cached);
                continue;
            }
            batch.frames.push(frame);
            pick.copy.into_iter().for_each(|copy| self.swap.leave_copy(copy));
            self.memory.words.unlock_as(pick.page, word.with_state(stored));
        }
        self.memory.unshare(shared);
        self.memory.frames.give_holes(&batch.frames);
        let count = batch.picks.len() as u64;
        if to == EvictTo::SwapCache {
            self.stats.add(Counter::PgDeactivate, count);
        }
        let of_one_extent = |a: &Pick, b: &Pick| a.page.0 / EXTENT_PAGES == b.page.0 / EXTENT_PAGES;
        for picks in batch.picks.chunk_by(of_one_extent) {
            self.memory.extents.sub_resident(picks[0].page, picks.len());
        }
        self.stats.sub(Counter::ResidentPages, count);
        self.stats.add(Counter::OutDropped, count);
        self.stats.add(Counter::OutDroppedBatches, 1);
    }

    /// Copies a page that is being evicted, be it accessible or not; `false` if it was taken back,
    /// or cannot be read.
    fn read_evicting(&self, pick: &Pick, out: &mut [u8; PAGE_SIZE]) -> bool {
        let word = self.memory.words.load(pick.page);
        if !matches!(word.state(), State::Evicting(_)) {
            return false;
        }
        let address = self.memory.address(pick.page);
        if self.memory.extents.is_accessible(pick.page) {
            self.memory.frames.backing.read(address, out);
            true
        } else {
            self.memory.force_reader.copy_page(address, out).is_ok()
        }
    }

    /// Puts a page of the buffer into the frame that its page owns, of which there was no memory in
    /// the arena while the page was in place.
    fn fill_own_frame(&self, pick: &Pick, buffer: &mut [u8]) {
        let (Some(State::Cached(frame)), Some(place)) = (pick.stored, pick.place) else {
            unreachable!("read for the swap cache")
        };
        let hole = self.memory.frames.arena.frame_range(frame.0, 1).start;
        let done =
            self.memory.frames.backing.install(hole, page_mut(buffer, place as usize), false);
        assert_eq!(done.stop, None, "the frame of a resident page is not a hole");
    }
}

/// The first run of set bits from bit `from` on.
fn next_run(bits: &ExtentBitmap, from: usize) -> Option<Range<usize>> {
    let start = (from..EXTENT_PAGES).find(|i| bits[i / 64] & 1 << (i % 64) != 0)?;
    let end =
        (start..EXTENT_PAGES).find(|i| bits[i / 64] & 1 << (i % 64) == 0).unwrap_or(EXTENT_PAGES);
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_bitmap() {
        let mut bits: ExtentBitmap = [0; EXTENT_PAGES / 64];
        assert_eq!(next_run(&bits, 0), None);
        (60..130).chain(500..512).for_each(|i: usize| bits[i / 64] |= 1 << (i % 64));
        assert_eq!(next_run(&bits, 0), Some(60..130));
        assert_eq!(next_run(&bits, 130), Some(500..512));
        assert_eq!(next_run(&bits, 505), Some(505..512));
    }
}
