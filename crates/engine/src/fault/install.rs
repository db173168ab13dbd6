//! The content of pages, into the page tables.

use super::Fault;
use super::context::FaultContext;
use super::settings::WayIn;
use crate::base::seeded::{Bug, is_seeded};
use crate::memory::frames::zeros;
use crate::memory::word::State;
use crate::slot::SlotRun;
use crate::stats::{Counter, FaultSource};
use crate::swap::store::LoadError;
use crate::swap::{Entry, fill};
use crate::units::{FOLIO_MAX, FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex, SlotId, page_mut};
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::uffd::{Stop, Transferred};
use std::time::Instant;

/// What of a run was brought in.
pub struct Loaded {
    pub pages: usize,
    /// Write-protected, and as it is on the device.
    pub clean: bool,
    /// A page alone is not under the engine's userfaultfd.
    pub foreign: bool,
}

impl<B: Backing> Fault<B> {
    /// Brings the content of a locked run in; write-protected if `protect`, as far as it has slots.
    pub(super) fn install_run(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        state: State,
        len: usize,
        protect: bool,
    ) -> Result<Loaded, LoadError> {
        let dst = self.memory.address(page);
        let backing = &self.memory.frames.backing;
        let mut cached = if let State::Cached(frame) = state { Some(frame) } else { None };
        context.source = match state {
            State::Empty => FaultSource::Zero,
            State::Cached(_) => FaultSource::Cache,
            _ => FaultSource::Compressed,
        };
        let done = match state {
            State::Empty => {
                self.stats.add(Counter::ZeroFill, len as u64);
                backing.install(dst, zeros(len), false)
            }
            State::Cached(frame) => {
                // Before its frame is another's, with a copy of its own.
                (page.0..page.0 + len).for_each(|page| self.swap.drop_cached_copy(PageIndex(page)));
                self.install_cached(context, dst, frame, len, false)
            }
            State::Stored(_) if context.is_ahead => {
                // Also a page alone: around its slot nothing more is to be read.
                self.load_run(context, page, len)?;
                backing.install_quietly(dst, &context.buffer[..len << PAGE_SHIFT], protect)
            }
            State::Stored(slot) if len == 1 && !self.swap.zswap.contains(slot) => {
                match self.install_stored(context, slot, dst, protect)? {
                    // Somebody reads it just now: one operation is enough.
                    None => return Ok(Loaded { pages: 0, clean: false, foreign: false }),
                    Some((done, frame)) => {
                        cached = frame;
                        done
                    }
                }
            }
            _ => {
                self.load_run(context, page, len)?;
                backing.install(dst, &context.buffer[..len << PAGE_SHIFT], protect)
            }
        };
        if cached.is_none() {
            self.stats.add(Counter::InCopied, (done.bytes >> PAGE_SHIFT) as u64);
        }
        if done.stop == Some(Stop::Exists) && done.bytes == 0 {
            // A page is there already: it counts as installed when it is the faulting one, and
            // everyone is woken.
            if let Some(frame) = cached {
                self.swap.lru.remove(frame);
                self.spend(context, frame);
            }
            if !context.is_ahead {
                let _ = backing.wake(self.memory.address_range(page.0..page.0 + 1));
            }
            return Ok(Loaded { pages: 1, clean: false, foreign: false });
        }
        // Mappings changing, or gone: what was installed counts, the rest stays as it was.
        let foreign = state == State::Empty && len == 1 && done.stop == Some(Stop::Absent);
        Ok(Loaded { pages: done.bytes >> PAGE_SHIFT, clean: protect, foreign })
    }

    /// Takes the frame with the page of a slot that a look-up has shown, unless it is gone since.
    fn take_cached(&self, slot: SlotId, seen: FrameId) -> Option<FrameId> {
        let taken = self.swap.index.take_frame(slot);
        if is_seeded(Bug::LookUpTrusted) { Some(seen) } else { taken }
    }

    /// Brings in a single page that is on a device, or was read ahead from there into the frame
    /// that is returned as well; `None` while somebody else reads it.
    fn install_stored(
        &self,
        context: &mut FaultContext,
        slot: SlotId,
        dst: usize,
        protect: bool,
    ) -> Result<Option<(Transferred, Option<FrameId>)>, LoadError> {
        match self.swap.index.load(slot) {
            Entry::Lost => return Err(LoadError::Lost),
            Entry::Busy(_) => return Ok(None),
            Entry::Frame(seen) if let Some(frame) = self.take_cached(slot, seen) => {
                context.source = FaultSource::Cache;
                self.readahead_size.hit();
                self.stats.add(Counter::SwapRaHit, 1);
                let done = self.install_cached(context, dst, frame, 1, protect);
                if done.bytes == 0 && done.stop != Some(Stop::Exists) {
                    self.swap.lru.remove(frame);
                    self.spend(context, frame);
                }
                return Ok(Some((done, Some(frame))));
            }
            _ => {}
        }
        context.source = FaultSource::Device;
        let (at, around) = self.base.psi.stalled_for_device(|| self.read_around(context, slot))?;
        self.stats.add(Counter::PgMajFault, 1);
        let page = page_mut(&mut context.buffer, at);
        let done = self.memory.frames.backing.install(dst, page, protect);
        if let Some(around) = around {
            self.keep_around(context, around, true);
        }
        Ok(Some((done, None)))
    }

    /// Lines up the content of a locked run of stored pages in the buffer.
    fn load_run(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        len: usize,
    ) -> Result<(), LoadError> {
        let state = |i: usize| self.memory.words.load(PageIndex(page.0 + i)).state();
        // 1. What is on a device, by runs of slots: between its pages others may lie.
        let on_device = |i: usize| match state(i) {
            State::Stored(slot) if !self.swap.zswap.contains(slot) => Some((i, slot)),
            _ => None,
        };
        let mut was_read = [false; FOLIO_MAX];
        let mut found = (0..len).filter_map(on_device).peekable();
        while let Some((place, first)) = found.next() {
            let (mut run, mut places) = (SlotRun { first, len: 1 }, [place; FOLIO_MAX]);
            while let Some((place, _)) = found.next_if(|(_, slot)| run.follows(*slot)) {
                places[run.len] = place;
                run.len += 1;
            }
            let places = &places[..run.len];
            self.read_apart(context, run, places)?;
            places.iter().for_each(|place| was_read[*place] = true);
        }
        // 2. What is in memory.
        for i in (0..len).filter(|i| !was_read[*i]) {
            let FaultContext { packed, decompressor, buffer, .. } = &mut *context;
            let out = page_mut(buffer, i);
            let slot = match state(i) {
                State::Filled(value) => {
                    fill::fill(out, value);
                    continue;
                }
                State::Stored(slot) => slot,
                other => unreachable!("{other:?} is not stored"),
            };
            // It may have gone on to a device meanwhile.
            if !self.swap.load_compressed(slot, packed, decompressor, out)? {
                self.read_apart(context, SlotRun { first: slot, len: 1 }, &[i])?;
            }
        }
        Ok(())
    }

    /// Reads a run of slots with one operation, each into its place in the buffer: places in
    /// order, between which nothing lies yet.
    fn read_apart(
        &self,
        context: &mut FaultContext,
        run: SlotRun,
        places: &[usize],
    ) -> Result<(), LoadError> {
        // 1. Next to one another, up to the last place.
        let first = places[run.len - 1] + 1 - run.len;
        context.source = FaultSource::Device;
        let waits = !context.is_ahead;
        let mut read = || self.swap.load_slots(run, &mut context.buffer, first);
        if waits { self.base.psi.stalled_for_device(read) } else { read() }?;
        self.stats.add(Counter::PgMajFault, waits.into());
        self.stats.add(Counter::SwapRa, run.len as u64 - u64::from(waits));
        // 2. Apart, first to last: none is moved over one that is still to be moved.
        for (i, place) in places.iter().enumerate().filter(|(i, place)| first + i != **place) {
            let start = (first + i) << PAGE_SHIFT;
            context.buffer.copy_within(start..start + PAGE_SIZE, place << PAGE_SHIFT);
        }
        Ok(())
    }

    /// Installs pages that lie in frames of the swap cache, by the cheaper way, or write-protected;
    /// the frames of those installed are given up.
    fn install_cached(
        &self,
        context: &mut FaultContext,
        dst: usize,
        frame: FrameId,
        len: usize,
        protect: bool,
    ) -> Transferred {
        let backing = &self.memory.frames.backing;
        let frames = self.memory.frames.arena.frame_range(frame.0, len);
        let way = match self.settings.way_in {
            // What is moved is not protected.
            _ if protect => 0,
            WayIn::Move => 1,
            WayIn::Auto if backing.can_move() => self.way_in[len.ilog2() as usize].pick(),
            _ => 0,
        };
        let start = Instant::now();
        let done = if way == 1 {
            let moved = backing.move_in(dst, frames);
            // Shared with a child of a fork: then by copy.
            if moved.bytes == 0 && matches!(moved.stop, Some(Stop::Busy | Stop::Unsuitable)) {
                self.copy_frames(context, dst, frame, len, protect)
            } else {
                self.finish_moved_in(frame, moved.bytes >> PAGE_SHIFT);
                moved
            }
        } else {
            self.copy_frames(context, dst, frame, len, protect)
        };
        let pages = done.bytes >> PAGE_SHIFT;
        self.way_in[len.ilog2() as usize].record(way, start.elapsed().as_nanos() as u64, pages);
        self.stats.add(Counter::CacheIn, pages as u64);
        done
    }

    fn copy_frames(
        &self,
        context: &mut FaultContext,
        dst: usize,
        frame: FrameId,
        len: usize,
        protect: bool,
    ) -> Transferred {
        let done = self.memory.frames.backing.install_frames(
            dst,
            self.memory.frames.arena.frame_range(frame.0, len),
            protect,
        );
        let pages = done.bytes >> PAGE_SHIFT;
        self.stats.add(Counter::InCopied, pages as u64);
        self.swap.lru.remove_run(frame, pages);
        frame.run(pages).for_each(|frame| self.spend(context, frame));
        done
    }

    /// A frame that was taken out of the swap cache, as its page is installed elsewhere: to be
    /// dropped with others.
    fn spend(&self, context: &mut FaultContext, frame: FrameId) {
        if context.spent.len() == context.spent.capacity() {
            self.free_spent(context);
        }
        context.spent.push(frame);
    }

    fn finish_moved_in(&self, frame: FrameId, pages: usize) {
        self.stats.add(Counter::InMoved, pages as u64);
        self.swap.lru.remove_run(frame, pages);
        self.memory.frames.allocator.free_run(frame, pages);
    }

    /// Drops the frames that contexts hold which nobody uses just now.
    pub(crate) fn free_idle_spent(&self) {
        if let Some(_inside) = self.base.gates.faults.try_enter() {
            self.contexts.idle().for_each(|mut context| self.free_spent(&mut context));
        }
    }

    /// Gives back the memory of buffers, as no faults are to be expected.
    pub(crate) fn trim(&self) {
        if let Some(_inside) = self.base.gates.faults.try_enter() {
            self.contexts.trim(|context| {
                self.free_spent(context);
                self.memory.budget().charge_less(context.forget() as u64);
            });
            self.stacks.forget();
        }
    }

    /// Drops frames whose pages were copied in, with one call.
    pub(crate) fn free_spent(&self, context: &mut FaultContext) {
        let _mark = FaultPath::enter();
        self.memory.frames.give_present(&context.spent, &mut context.ranges);
        context.spent.clear();
    }
}
