//! Parts of the window that are not managed: mappings of the kernel's own, and memory that the
//! program has for itself, because it has a userfaultfd of its own there or a thread's stack.
//!
//! The map of regions has both as [`RegionKind::Foreign`]. Memory that was managed before also says
//! so in its page words ([`State::Foreign`]), which faults, reclaim and system calls look at
//! without the map's lock.
//!
//! Where the program has a userfaultfd, the kernel may wait in a call that unmaps, moves or drops
//! memory until the program has read of that. Such calls are made without the map's lock, which the
//! reader may need.

use super::remap::{DONTUNMAP, FIXED, MAYMOVE};
use crate::base::sync::{RankedGuard, lock};
use crate::memory::extent::{EXTENT_PAGES, split};
use crate::memory::frames::push_range;
use crate::memory::word::{PageWord, State};
use crate::space::Space;
use crate::space::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::stats::Counter;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use overspill_os::backing::Backing;
use overspill_os::signal::Outcome;
use overspill_os::{Errno, vm};
use rustix::process::{Resource, getrlimit};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that are in memory at once on their way out of management, beside all others: few, so that
/// there is room in the smallest budget; many enough that a large range takes few system calls.
const AT_ONCE: usize = 64;
/// What a mapping may grow down into at most, 1 GiB: whatever the limit of stacks says, some
/// addresses are to be left.
const GROWTH_MAX: usize = 1 << (30 - PAGE_SHIFT);
const _: () = assert!(EXTENT_PAGES.is_multiple_of(AT_ONCE));

impl<B: Backing> Space<B> {
    /// Gives managed memory up where it is: from the first page of a range that is mapped on, up to
    /// the first that is not. Returns the addresses of these pages; `None` where nothing is mapped.
    /// What has content keeps it and is present afterwards; what was never touched is absent, and
    /// under no userfaultfd.
    ///
    /// On an error the pages before the one that it is about are given up.
    pub(crate) fn give_up(&self, range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
        let wanted = self.pages(range)?;
        let mut regions = self.regions();
        let Some((first, _)) = regions.overlapping(wanted.clone()).next() else { return Ok(None) };
        let pages = regions.mapped_start(first.start..wanted.end);
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        for (part, region) in parts {
            match region.kind {
                RegionKind::Foreign => self.mark_foreign(part),
                RegionKind::Managed => {
                    for (_, part) in split(part) {
                        let mut at = part.start;
                        while at < part.end {
                            let end = part.end.min((at / AT_ONCE + 1) * AT_ONCE);
                            self.give_up_some(&mut regions, at..end, region)?;
                            at = end;
                        }
                    }
                    self.stats.add(Counter::Unmanaged, 1);
                }
            }
        }
        Ok(Some(self.memory.address_range(pages)))
    }

    /// [`Space::give_up`] for at most [`AT_ONCE`] pages of one extent and one region.
    fn give_up_some(
        &self,
        regions: &mut RegionMap,
        pages: Range<usize>,
        region: RegionAttributes,
    ) -> Result<(), Errno> {
        // 1. What has content comes in, and stays.
        let brought_in = self.bring_in_for_good(pages.clone());
        // 2. No fault beside them brings one in any more, nor does reclaim look at them.
        self.set_access(pages.clone(), false);
        let extent = self.memory.extents.lock(pages.start / EXTENT_PAGES);
        for page in pages.clone() {
            self.memory.words.lock(PageIndex(page));
        }
        // 3. Out of management. Before their frames are free, since it may fail.
        let addresses = self.memory.address_range(pages.clone());
        let result = brought_in
            .and_then(|()| self.drop_untouched(pages.clone(), region.access()))
            .and_then(|()| self.memory.frames.backing.unregister(addresses.clone()));
        if result.is_err() {
            for page in pages.clone().map(PageIndex) {
                self.memory.words.unlock_as(page, self.memory.words.load(page));
            }
            drop(extent);
            self.set_access(pages.clone(), region.access().readable());
            if !region.stays() {
                regions
                    .held
                    .outside(pages)
                    .into_iter()
                    .for_each(|part| self.set_pinned(part, false));
            }
            return result;
        }
        // 4. They go with their memory.
        self.give_frames(pages.clone());
        drop(extent);
        regions.update(pages, |region| region.kind = RegionKind::Foreign);
        // 5. What the engine did for the program there the kernel does from here on.
        hand_over(region, addresses);
        Ok(())
    }

    /// Brings pages in that have content, and pins all of a part of an extent.
    fn bring_in_for_good(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.set_pinned(pages.clone(), true);
        // Reclaim that began before may still take some out.
        drop(self.memory.extents.lock(pages.start / EXTENT_PAGES));
        let mut out = pages.map(PageIndex).filter(|page| {
            let word = self.memory.words.load(*page);
            !(word.is_resident() || word.state() == State::Empty || is_untouched(word))
        });
        match out.all(|page| self.fault.serve_on_this_thread(page, false) == Outcome::Served) {
            true => Ok(()),
            false => Err(Errno::NOMEM),
        }
    }

    /// Gives the frames of locked pages up without their memory, which is charged to nobody from
    /// here on, and unlocks the pages as foreign. The lock of their extent is held.
    fn give_frames(&self, pages: Range<usize>) {
        let mut frames: Vec<FrameId> = Vec::with_capacity(pages.len());
        for page in pages.clone().map(PageIndex) {
            let word = self.memory.words.load(page);
            self.swap.drop_copy(page, word);
            self.memory.unshare(word.is_shared().into());
            match word.state() {
                State::Resident(frame) => frames.push(frame),
                state => {
                    assert!(
                        state == State::Empty || is_untouched(word),
                        "{page:?} was brought in and is pinned: {word:?}"
                    );
                    self.swap.forget(state);
                }
            }
            self.memory.note_extent(page);
            self.memory.words.unlock_as(
                page,
                word.with_state(State::Foreign).referenced(false).pinned(false).beside(false),
            );
        }
        self.memory.pinned_pages.fetch_sub(pages.len(), Relaxed);
        self.memory.foreign_pages.fetch_add(pages.len(), Relaxed);
        self.memory.frames.give_holes(&frames);
        self.memory.extents.sub_resident(PageIndex(pages.start), frames.len());
        self.stats.sub(Counter::ResidentPages, frames.len() as u64);
    }

    /// Drops pages that were never touched and are in memory all the same, since they came in
    /// beside others: to the program they are absent. Their locks are held. Of those that it has
    /// touched without a fault, a page of zeros is taken for one.
    fn drop_untouched(&self, pages: Range<usize>, access: vm::Prot) -> Result<(), Errno> {
        let mut content = Box::new([0; PAGE_SIZE]);
        let mut ranges = Vec::new();
        for page in pages.map(PageIndex) {
            let word = self.memory.words.load(page);
            if !word.is_resident() || !word.is_beside() {
                continue;
            }
            let range = self.memory.address_range(page.0..page.0 + 1);
            // From here on a write is a fault, which waits for the page.
            self.memory.frames.backing.protect(range.clone())?;
            if access.readable() {
                vm::copy_page(range.start, &mut content);
            } else {
                self.memory.force_reader.copy_page(range.start, &mut content)?;
            }
            if content.iter().all(|byte| *byte == 0) {
                push_range(&mut ranges, range);
            }
        }
        if ranges.is_empty() {
            Ok(())
        } else {
            self.memory.frames.backing.drop_pages(&ranges).map(drop)
        }
    }

    /// Notes in the words of pages of the kernel's own mappings that they are none of the engine's.
    fn mark_foreign(&self, pages: Range<usize>) {
        for page in pages.map(PageIndex) {
            self.memory.extents.touch(page.0..page.0 + 1);
            self.memory.note_extent(page);
            let word = self.memory.words.lock(page);
            if word.state() != State::Foreign {
                assert_eq!(word.state(), State::Empty, "{page:?} is not managed");
                self.memory.foreign_pages.fetch_add(1, Relaxed);
            }
            self.memory.words.unlock_as(page, word.with_state(State::Foreign));
        }
    }

    /// Whether the program is known to have a page of the window for itself.
    pub(crate) fn is_foreign(&self, address: usize) -> bool {
        let page = self.memory.places.page(address);
        page.is_some_and(|page| self.memory.words.load(page).state() == State::Foreign)
    }

    /// The first part of a range that is not managed, up to the first page that is, or is not
    /// mapped; `None` where there is none.
    ///
    /// # Errors
    /// EINVAL where nothing is mapped.
    pub(crate) fn foreign_part(&self, range: Range<usize>) -> Result<Option<Range<usize>>, Errno> {
        let pages = self.pages(range)?;
        let regions = lock(&self.regions);
        regions.overlapping(pages.clone()).next().ok_or(Errno::INVAL)?;
        let mut foreign =
            regions.overlapping(pages).filter(|(_, region)| region.kind == RegionKind::Foreign);
        Ok(foreign.next().map(|(part, _)| self.memory.address_range(part)))
    }

    /// What the kernel has in a range goes before the map of regions is locked to put something
    /// else there: the kernel may wait until the program has read of that.
    pub(super) fn detach_foreign(&self, pages: Range<usize>) -> Result<(), Errno> {
        if self.memory.foreign_pages.load(Relaxed) == 0 {
            return Ok(());
        }
        let is_foreign =
            |(_, region): &(Range<usize>, RegionAttributes)| region.kind == RegionKind::Foreign;
        let regions = lock(&self.regions);
        if regions.is_sealed(pages.clone()) {
            return Err(Errno::PERM);
        }
        let parts: Vec<_> = regions.overlapping(pages).filter(is_foreign).collect();
        drop(regions);
        parts.into_iter().try_for_each(|(part, _)| {
            vm::map_fixed(self.memory.address_range(part), vm::Prot::NONE)
        })
    }

    /// Whether nothing is mapped in a range: it is free, or a hole into which nothing has grown
    /// yet.
    pub(super) fn is_vacant(&self, regions: &RegionMap, pages: Range<usize>) -> bool {
        let is_empty = |part: Range<usize>| {
            let addresses = self.memory.address_range(part);
            vm::reserve_at(addresses.start, addresses.len())
                .is_ok_and(|_| vm::unmap(addresses).is_ok())
        };
        regions.overlapping(pages).all(|(part, region)| region.hole && is_empty(part))
    }

    /// Makes room for a mapping that grows down from a page: the kernel does not let it grow over
    /// the reservation of the window. Down to the next region, and as far as the limit of stacks
    /// allows.
    pub(super) fn open_hole(
        &self,
        regions: &mut RegionMap,
        page: usize,
        region: RegionAttributes,
    ) -> Result<(), Errno> {
        let limit = getrlimit(Resource::Stack)
            .current
            .map_or(GROWTH_MAX, |bytes| (bytes >> PAGE_SHIFT) as usize);
        let gap = regions.gap_below(page);
        let hole = gap.start.max(page.saturating_sub(limit.min(GROWTH_MAX)))..page;
        if hole.is_empty() {
            return Ok(());
        }
        vm::unmap(self.memory.address_range(hole.clone()))?;
        self.mark_foreign(hole.clone());
        regions.insert(hole, RegionAttributes { hole: true, ..region });
        Ok(())
    }

    /// What lies behind a hole is about to change, so that nothing grows into it any more: it is a
    /// gap of the window again, unless something is in it.
    pub(super) fn close_hole(&self, regions: &mut RegionMap, page: usize) -> Result<(), Errno> {
        match page.checked_sub(1).and_then(|below| regions.around(below)) {
            Some((pages, region)) if region.hole => {
                let hole = pages.start..page;
                let addresses = self.memory.address_range(hole.clone());
                match vm::reserve_at(addresses.start, addresses.len()) {
                    Ok(_) => self.clear_out(regions, hole),
                    Err(_) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// mremap of a region that is not managed to the free pages behind it too.
    fn grow_foreign(
        &self,
        regions: &mut RegionMap,
        old: Range<usize>,
        tail: Range<usize>,
        region: RegionAttributes,
    ) -> Result<usize, Errno> {
        let addresses = self.memory.address_range(old.clone());
        // The window's reservation would be in the way.
        vm::unmap(self.memory.address_range(tail.clone()))?;
        regions.insert(tail.clone(), region);
        self.mark_foreign(tail.clone());
        let grown =
            vm::remap(addresses, self.memory.address_range(old.start..tail.end).len(), 0, 0);
        if grown.is_err() {
            self.clear_out(regions, tail)?;
        }
        self.settle_managed(regions);
        grown
    }

    /// mremap of a whole region that is not managed; the new place lies in the window too, unless
    /// the program says otherwise: then elsewhere, or in an annex.
    pub(super) fn remap_foreign(
        &self,
        mut regions: RankedGuard<'_, RegionMap>,
        old: Range<usize>,
        region: RegionAttributes,
        new_len: usize,
        flags: u32,
        new_at: usize,
    ) -> Result<usize, Errno> {
        let count = new_len.div_ceil(PAGE_SIZE);
        // 1. It grows where it is, or where to?
        let tail = old.end..old.start + count;
        if flags & (FIXED | DONTUNMAP) == 0
            && tail.end <= self.memory.words.len()
            && regions.is_free(tail.clone())
        {
            return self.grow_foreign(&mut regions, old, tail, region);
        }
        let new = if flags & FIXED == 0 {
            if flags & MAYMOVE == 0 {
                return Err(Errno::NOMEM);
            }
            Some(self.place(&regions, count, Some(new_at), false).ok_or(Errno::NOMEM)?)
        } else if !self.memory.places.reach_into(new_at..new_at.saturating_add(new_len)) {
            None
        } else {
            let new = self.pages(new_at..new_at.checked_add(new_len).ok_or(Errno::INVAL)?)?;
            if new.start < old.end && old.start < new.end {
                return Err(Errno::INVAL);
            }
            Some(new)
        };
        if let Some(new) = &new {
            self.clear_out(&mut regions, new.clone())?;
            regions.insert(new.clone(), region);
            self.mark_foreign(new.clone());
        }
        drop(regions);
        // 2. Move.
        let at = new.as_ref().map_or(new_at, |new| self.memory.address(PageIndex(new.start)));
        let addresses = self.memory.address_range(old.clone());
        let moved = vm::remap(addresses.clone(), new_len, flags & DONTUNMAP | FIXED | MAYMOVE, at);
        // 3. What is empty now is a gap of the window again, unless somebody was faster to map
        //    something there.
        let emptied = if moved.is_err() {
            new
        } else if flags & DONTUNMAP == 0 {
            vm::reserve_at(addresses.start, addresses.len()).ok().map(|_| old)
        } else {
            None
        };
        let mut regions = self.regions();
        if let Some(pages) = emptied {
            self.clear_out(&mut regions, pages)?;
        }
        self.settle_managed(&mut regions);
        moved
    }
}

/// Has the kernel guard and lock pages that are no longer managed.
fn hand_over(region: RegionAttributes, addresses: Range<usize>) {
    if region.guard {
        // Where the kernel has no guards they stay what they are in its page tables.
        let _ = vm::protect(addresses.clone(), region.prot)
            .and_then(|()| vm::advise(addresses.clone(), vm::advice::GUARD_INSTALL))
            .or_else(|_| vm::protect(addresses.clone(), vm::Prot::NONE));
    }
    if region.pinned {
        // The kernel's lock, as it is the kernel that might take them out. Without it they stay as
        // well as other memory.
        let _ = vm::lock(addresses, true);
    }
}

/// Whether a page that is out of memory was never touched.
fn is_untouched(word: PageWord) -> bool {
    word.is_beside() && word.state() == State::Filled(0)
}
