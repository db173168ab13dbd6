//! The address space that the program sees: mmap, munmap, mprotect, madvise, mremap and mlock over the window, with
//! the meaning that Linux gives them.
//!
//! Called on threads of the program, through [`crate::delivery::enter`]. One lock over the map of regions plays the
//! part of the kernel's mmap_lock; engine threads never take it. Where a call changes what is behind addresses, it
//! holds the extent's lock, which keeps reclaim out, and the locks of the pages, which keep faults out.
//!
//! Lock order: regions -> extent -> pages -> compressed pool, swap cache, slots ([`crate::lockdep`]).

use crate::base::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use crate::config::Delivery;
use crate::engine::Engine;
use crate::extent::{EXTENT_PAGES, split};
use crate::hints::Wish;
use crate::regions::{Kind, Region, RegionMap};
use crate::stats::Counter;
use crate::sync::{RankedGuard, lock};
use crate::word::State;
use overspill_os::vm::{self, Prot, advice};
use overspill_os::{Errno, Rlimit};
use std::ops::Range;

/// Flags of [`crate::Pool::mmap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// The address is a wish: where it cannot be had, the pool chooses.
    pub hint: bool,
    /// MAP_FIXED_NOREPLACE: fail rather than replace.
    pub noreplace: bool,
    /// MAP_LOCKED.
    pub locked: bool,
}

/// mremap's flags.
mod remap {
    pub const MAYMOVE: u32 = 1;
    pub const FIXED: u32 = 2;
    pub const DONTUNMAP: u32 = 4;
}

/// mlockall's flags.
const MCL_CURRENT: u32 = 1;
const MCL_FUTURE: u32 = 2;
const MCL_ONFAULT: u32 = 4;

impl Engine {
    /// The pages of a range of bytes that begins on a page and lies in the window; its end is rounded up.
    fn pages(&self, range: Range<usize>) -> Result<Range<usize>, Errno> {
        let window = self.window();
        let inside = range.start >= window.start && range.start <= range.end && range.end <= window.end;
        if !range.start.is_multiple_of(PAGE_SIZE) || !inside {
            return Err(Errno::INVAL);
        }
        let first = (range.start - window.start) >> PAGE_SHIFT;
        Ok(first..first + range.len().div_ceil(PAGE_SIZE))
    }

    /// The map of regions, which the caller may change.
    fn regions(&self) -> RankedGuard<'_, RegionMap> {
        let regions = lock(&self.regions);
        self.accesses.change();
        regions
    }

    /// Where a new mapping of `count` pages goes: to the page of the hint, if there is room. Large ones begin on an extent,
    /// so that their runs are dense; those of 32 MiB on a multiple of that, which allocators otherwise map, trim and map
    /// again to get.
    fn place(&self, regions: &RegionMap, count: usize, hint: Option<usize>) -> Option<Range<usize>> {
        if let Some(hint) = hint.map(|address| address & !(PAGE_SIZE - 1))
            && let Ok(wish) = self.pages(hint..hint.checked_add(count.checked_mul(PAGE_SIZE)?)?)
            && regions.is_free(wish.clone())
        {
            return Some(wish);
        }
        let align = match count / EXTENT_PAGES {
            0 => 1,
            1..16 => EXTENT_PAGES,
            _ => 16 * EXTENT_PAGES,
        };
        let first = regions.find_gap(count, align).or_else(|| regions.find_gap(count, 1))?;
        Some(first..first + count)
    }

    /// After a change of what is mapped: the figures, and what a core dump holds.
    fn settle_managed(&self, regions: &mut RegionMap) {
        if let Some(change) = regions.limit_dump() {
            let advice = if change.dumped { advice::DODUMP } else { advice::DONTDUMP };
            // Refused at the limit of mappings: a longer dump, or one with less in it, and nothing else.
            let _ = vm::advise(self.address_range(change.pages), advice);
        }
        let bytes = (regions.mapped_pages() << PAGE_SHIFT) as u64;
        self.stats.set(Counter::ManagedBytes, bytes);
        self.stats.raise(Counter::ManagedPeakBytes, bytes);
    }

    /// mmap of private anonymous memory; `at` is an address in the window, of MAP_FIXED or of a hint.
    pub(crate) fn map(&self, at: Option<usize>, len: usize, prot: Prot, flags: MapFlags) -> Result<usize, Errno> {
        let count = len.div_ceil(PAGE_SIZE);
        if count == 0 {
            return Err(Errno::INVAL);
        }
        let mut regions = self.regions();
        let pages = match at {
            Some(address) if !flags.hint => {
                let pages = self.pages(address..address.checked_add(len).ok_or(Errno::NOMEM)?)?;
                if flags.noreplace && !regions.is_free(pages.clone()) {
                    return Err(Errno::EXIST);
                }
                self.clear_out(&mut regions, pages.clone())?;
                pages
            }
            hint => self.place(&regions, count, hint).ok_or(Errno::NOMEM)?,
        };
        // MCL_FUTURE locks what there is room for: a program is not denied memory for having asked for too much once.
        let mut region = Region::managed(prot);
        region.pinned = flags.locked || self.locks_future() && self.charge_pinned(count).is_ok();
        if flags.locked {
            self.charge_pinned(count)?;
        }
        vm::protect(self.address_range(pages.clone()), prot)?;
        self.set_access(pages.clone(), prot.readable());
        regions.insert(pages.clone(), region);
        self.settle_managed(&mut regions);
        drop(regions);
        if region.pinned {
            self.set_pinned(pages.clone(), true);
            if flags.locked {
                self.bring_in(pages.clone(), prot);
            }
        }
        Ok(self.address(PageIndex(pages.start)))
    }

    /// munmap.
    pub(crate) fn unmap(&self, range: Range<usize>) -> Result<(), Errno> {
        if range.is_empty() {
            return Err(Errno::INVAL);
        }
        let pages = self.pages(range)?;
        let mut regions = self.regions();
        let result = self.clear_out(&mut regions, pages);
        self.settle_managed(&mut regions);
        result
    }

    /// The caller puts a mapping of the kernel's over a range: whatever was there is forgotten; or, with `noreplace`,
    /// nothing may be there.
    pub(crate) fn surrender(&self, range: Range<usize>, noreplace: bool) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        let mut regions = self.regions();
        if noreplace && !regions.is_free(pages.clone()) {
            return Err(Errno::EXIST);
        }
        self.clear_out(&mut regions, pages.clone())?;
        regions.insert(pages, Region { kind: Kind::Foreign, ..Region::managed(Prot::NONE) });
        self.settle_managed(&mut regions);
        Ok(())
    }

    /// Unmaps what of `pages` is mapped: afterwards it is a gap, without access and registered.
    fn clear_out(&self, regions: &mut RegionMap, pages: Range<usize>) -> Result<(), Errno> {
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        for (part, region) in parts {
            let addresses = self.address_range(part.clone());
            if region.kind == Kind::Foreign {
                vm::map_fixed(addresses.clone(), Prot::NONE)?;
                vm::advise(addresses.clone(), vm::MADV_NOHUGEPAGE)?;
                self.register_range(addresses)?;
            } else {
                // Access goes first, lest content comes back while it is given up; and before access goes, reclaim
                // must know, which reads in place.
                self.set_access(part.clone(), false);
                vm::protect(addresses.clone(), Prot::NONE)?;
                if region.advised {
                    for undo in [advice::DOFORK, advice::DODUMP, advice::KEEPONFORK] {
                        let _ = vm::advise(addresses.clone(), undo);
                    }
                }
                if region.pinned {
                    self.set_pinned(part.clone(), false);
                }
                self.clear(part.clone())?;
            }
            regions.remove(part);
        }
        Ok(())
    }

    /// Gives the content of pages up: they read as zeros.
    pub(crate) fn clear(&self, pages: Range<usize>) -> Result<(), Errno> {
        for (index, part) in split(pages) {
            if !self.extents.is_touched(index) {
                continue;
            }
            // 1. Keep reclaim and faults out.
            let _extent = self.extents.lock(index);
            let mut used = false;
            for page in part.clone().map(PageIndex) {
                used |= self.words.lock(page).state() != State::Empty;
            }
            // 2. Drop what is in the page tables.
            if used {
                vm::advise(self.address_range(part.clone()), vm::MADV_DONTNEED)?;
            }
            // 3. Forget every stored copy.
            let (mut holes, mut present): (Vec<FrameId>, Vec<FrameId>) = (Vec::new(), Vec::new());
            for page in part.clone().map(PageIndex) {
                let word = self.words.load(page);
                self.drop_copy(word);
                match word.state() {
                    State::Resident(frame) | State::Evicting(frame) => holes.push(frame),
                    State::Cached(frame) => {
                        self.ages.remove(frame);
                        present.push(frame);
                    }
                    state => self.forget(state),
                }
                self.words.unlock_as(page, word.with_state(State::Empty).referenced(false));
            }
            // 4. Give the room back.
            self.frames.give_present(&present, &mut Vec::with_capacity(present.len()));
            self.frames.give_holes(&holes);
            self.extents.sub_resident(PageIndex(part.start), holes.len());
            self.stats.sub(Counter::ResidentPages, holes.len() as u64);
        }
        self.publish_tiers();
        Ok(())
    }

    /// Notes whether pages are mapped with access.
    fn set_access(&self, pages: Range<usize>, on: bool) {
        for (index, part) in split(pages) {
            let extent = self.extents.lock(index);
            let whole = part.len() == EXTENT_PAGES;
            let was = self.extents.is_accessible(PageIndex(part.start));
            if whole || was && !on {
                // The extent's mark goes first into the words, or comes out of them.
                let marked = !whole;
                if self.extents.is_touched(index) || marked {
                    crate::extent::pages_of(index).for_each(|page| self.mark_accessible(page, marked));
                }
                self.extents.set_accessible(&extent, whole && on);
            }
            if !(whole || was && on) {
                self.extents.touch(PageIndex(part.start));
                part.for_each(|page| self.mark_accessible(page, on));
            }
        }
    }

    fn mark_accessible(&self, page: usize, on: bool) {
        let word = self.words.lock(PageIndex(page));
        self.words.unlock_as(PageIndex(page), word.accessible(on));
    }

    /// Whether every page of a range is mapped.
    pub(crate) fn is_mapped(&self, range: Range<usize>) -> bool {
        self.pages(range).is_ok_and(|pages| self.regions().covers(pages))
    }

    /// How many bytes of a range, from its start on, the program may read, or write.
    pub(crate) fn accessible(&self, range: Range<usize>, write: bool) -> usize {
        let (range, pages) = self.inside(range);
        let mut end = pages.start;
        let regions = lock(&self.regions);
        for (part, region) in regions.overlapping(pages.clone()) {
            let allowed = if write { region.prot.writable() } else { region.prot.readable() };
            // What is not managed inside the window is the kernel's: it says itself what it may access.
            if part.start != end || !(allowed || region.kind == Kind::Foreign) {
                break;
            }
            end = part.end;
        }
        if end >= pages.end
            && let Some((whole, region)) = regions.around(pages.start)
            && region.kind == Kind::Managed
        {
            self.accesses.note(pages.start, whole, region.prot.readable(), region.prot.writable());
        }
        (self.address(PageIndex(end))).clamp(range.start, range.end) - range.start
    }

    /// Whether the program may read, or write, all of a range, as far as that is known without a lock.
    pub(crate) fn is_accessible(&self, range: Range<usize>, write: bool) -> bool {
        let (inside, pages) = self.inside(range.clone());
        inside == range && self.accesses.allowed(pages, write)
    }

    /// What of a range lies in the window, and its pages.
    fn inside(&self, range: Range<usize>) -> (Range<usize>, Range<usize>) {
        let window = self.window();
        let range = range.start.clamp(window.start, window.end)..range.end.clamp(window.start, window.end);
        let page = |address: usize| (address - window.start) >> PAGE_SHIFT;
        let pages = page(range.start)..page(range.end.next_multiple_of(PAGE_SIZE));
        (range, pages)
    }

    /// mprotect. Where the range has a hole, what lies before it is changed all the same, as the kernel does it.
    pub(crate) fn protect(&self, range: Range<usize>, prot: Prot) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        let wanted = self.pages(range)?;
        let mut regions = self.regions();
        let pages = regions.mapped_start(wanted.clone());
        let result = if pages == wanted { Ok(()) } else { Err(Errno::NOMEM) };
        if pages.is_empty() {
            return result;
        }
        let changes = |r: &Region| r.kind == Kind::Managed && r.prot.readable() != prot.readable();
        let changing: Vec<_> =
            regions.overlapping(pages.clone()).filter(|(_, r)| changes(r)).map(|(part, _)| part).collect();
        // Before access goes, reclaim must know: it reads in place. When access comes, only afterwards.
        if !prot.readable() {
            changing.iter().for_each(|part| self.set_access(part.clone(), false));
        }
        vm::protect(self.address_range(pages.clone()), prot)?;
        if prot.readable() {
            changing.iter().for_each(|part| self.set_access(part.clone(), true));
        }
        regions.update(pages, |region| region.prot = prot);
        result
    }

    /// madvise.
    pub(crate) fn advise(&self, range: Range<usize>, what: i32) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        if pages.is_empty() {
            return Ok(());
        }
        // What is mapped and its protection stay, so what is known of them does.
        let mut regions = lock(&self.regions);
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        let mut wishes = Vec::new();
        for (part, region) in &parts {
            if region.kind == Kind::Foreign {
                vm::advise(self.address_range(part.clone()), what)?;
                continue;
            }
            match what {
                advice::DONTNEED | advice::FREE if region.pinned => return Err(Errno::INVAL),
                advice::DONTNEED | advice::FREE | advice::DONTNEED_LOCKED => self.clear(part.clone())?,
                advice::DONTFORK | advice::DOFORK | advice::WIPEONFORK | advice::KEEPONFORK => {
                    vm::advise(self.address_range(part.clone()), what)?;
                    regions.update(part.clone(), |r| {
                        r.advised = true;
                        match what {
                            advice::DONTFORK => r.dont_fork = true,
                            advice::DOFORK => r.dont_fork = false,
                            advice::WIPEONFORK => r.wipe_on_fork = true,
                            _ => r.wipe_on_fork = false,
                        }
                    });
                }
                advice::DONTDUMP | advice::DODUMP => {
                    vm::advise(self.address_range(part.clone()), what)?;
                    regions.update(part.clone(), |r| r.advised = true);
                }
                // Populating is what the accesses will do anyway; it fails where they would.
                advice::POPULATE_READ if !region.prot.readable() => return Err(Errno::FAULT),
                advice::POPULATE_WRITE if !region.prot.writable() => return Err(Errno::FAULT),
                advice::COLD | advice::PAGEOUT if region.pinned => return Err(Errno::INVAL),
                advice::COLD => wishes.push((Wish::Cold, part.clone())),
                advice::PAGEOUT => wishes.push((Wish::PageOut, part.clone())),
                advice::WILLNEED => self.prefetch(part.clone(), region.prot),
                // Hints about order, huge pages and merging: the engine finds its own way.
                advice::NORMAL..=advice::WILLNEED
                | advice::MERGEABLE..=advice::NOHUGEPAGE
                | advice::COLD..=advice::POPULATE_WRITE
                | advice::COLLAPSE => {}
                _ => return Err(Errno::INVAL),
            }
        }
        drop(regions);
        wishes.into_iter().for_each(|(wish, pages)| self.wish(wish, pages));
        let covered: usize = parts.iter().map(|(part, _)| part.len()).sum();
        if covered == pages.len() { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// mremap; returns the new address.
    pub(crate) fn remap(&self, old: Range<usize>, new_len: usize, flags: u32, new_at: usize) -> Result<usize, Errno> {
        let known = flags & !(remap::MAYMOVE | remap::FIXED | remap::DONTUNMAP) == 0;
        let moves = flags & remap::MAYMOVE != 0;
        if !known || new_len == 0 || old.is_empty() || flags & (remap::FIXED | remap::DONTUNMAP) != 0 && !moves {
            return Err(Errno::INVAL);
        }
        let old = self.pages(old)?;
        let keep_old = flags & remap::DONTUNMAP != 0;
        let count = new_len.div_ceil(PAGE_SIZE);
        if keep_old && count != old.len() {
            return Err(Errno::INVAL);
        }
        let mut regions = self.regions();
        let fixed = flags & remap::FIXED != 0;
        // 1. Something is there. What stays where it is and does not grow may be many mappings, with holes between them.
        let (part, region) = regions.overlapping(old.clone()).next().ok_or(Errno::FAULT)?;
        if part.start != old.start {
            return Err(Errno::FAULT);
        }
        if !fixed && !keep_old && count <= old.len() {
            self.clear_out(&mut regions, old.start + count..old.end)?;
            self.settle_managed(&mut regions);
            return Ok(self.address(PageIndex(old.start)));
        }
        // 2. Otherwise one region, as the kernel wants one mapping. Where to?
        if part != old || region.kind != Kind::Managed {
            return Err(Errno::FAULT);
        }
        let new = if fixed {
            let new = self.pages(new_at..new_at.checked_add(new_len).ok_or(Errno::INVAL)?)?;
            if new.start < old.end && old.start < new.end {
                return Err(Errno::INVAL);
            }
            self.clear_out(&mut regions, new.clone())?;
            new
        } else {
            let tail = old.end..old.start + count;
            if !keep_old && tail.end <= self.words.len() && regions.is_free(tail.clone()) {
                self.map_part(&mut regions, tail, region)?;
                return Ok(self.address(PageIndex(old.start)));
            }
            if !moves {
                return Err(Errno::NOMEM);
            }
            // With MREMAP_DONTUNMAP the address is a hint.
            self.place(&regions, count, Some(new_at)).ok_or(Errno::NOMEM)?
        };
        // 3. Move the pages while no fault beside them can bring in either place, where content would be in the way or
        //    lost; then map there, unmap here.
        let common = old.start..old.start + old.len().min(count);
        self.set_access(old.clone(), false);
        let moved = self.move_content(common, new.start);
        self.set_access(old.clone(), region.prot.readable());
        self.map_part(&mut regions, new.clone(), region)?;
        if let Err(errno) = moved {
            self.clear_out(&mut regions, new)?;
            self.settle_managed(&mut regions);
            return Err(errno);
        }
        if region.pinned {
            self.set_pinned(new.clone(), true);
        }
        if !keep_old {
            self.clear_out(&mut regions, old)?;
        }
        self.settle_managed(&mut regions);
        Ok(self.address(PageIndex(new.start)))
    }

    fn map_part(&self, regions: &mut RegionMap, pages: Range<usize>, region: Region) -> Result<(), Errno> {
        vm::protect(self.address_range(pages.clone()), region.prot)?;
        self.set_access(pages.clone(), region.prot.readable());
        regions.insert(pages, region);
        self.settle_managed(regions);
        Ok(())
    }

    /// Moves the content of pages to `new..`, where nothing is. If that fails, everything is where it was.
    fn move_content(&self, old: Range<usize>, new: usize) -> Result<(), Errno> {
        let there = new..new + old.len();
        let moved = self.move_pages(old.clone(), new);
        if moved.is_err() {
            // What came along lies between holes, and so do the places that it goes back to.
            self.move_pages(there.clone(), old.start)?;
            self.settle_moved(old)?;
        }
        self.settle_moved(there)?;
        moved
    }

    /// Makes managed memory like any other of a range to which [`Engine::move_pages`] has moved pages.
    fn settle_moved(&self, pages: Range<usize>) -> Result<(), Errno> {
        let addresses = self.address_range(pages);
        self.register_range(addresses.clone())?;
        vm::advise(addresses, advice::NORMAL)
    }

    /// Moves the content of pages to `new..`, where nothing is; stored copies change owner, resident pages move in
    /// the page tables. Ends at an error. The caller settles the new range afterwards.
    fn move_pages(&self, old: Range<usize>, new: usize) -> Result<(), Errno> {
        let shift = |page: usize| PageIndex(page - old.start + new);
        for (index, part) in split(old.clone()) {
            if !self.extents.is_touched(index) {
                continue;
            }
            let _extent = self.extents.lock(index);
            let mut resident = false;
            for page in part.clone() {
                resident |= self.words.lock(PageIndex(page)).is_resident();
            }
            let mut result = Ok(());
            if resident {
                result = remap_resident(self.address_range(part.clone()), self.address(shift(part.start)));
            }
            for page in part {
                let word = self.words.load(PageIndex(page));
                let state = word.state();
                if result.is_err() || state == State::Empty {
                    self.words.unlock_as(PageIndex(page), word);
                    continue;
                }
                // Protection does not come along.
                self.drop_copy(word);
                let target = shift(page);
                self.extents.touch(target);
                self.note_extent(target);
                match state {
                    State::Cached(frame) => self.ages.change_owner(frame, target),
                    State::Stored(slot) => self.index.set_owner(slot, target),
                    State::Resident(_) => {
                        self.extents.sub_resident(PageIndex(page), 1);
                        self.extents.add_resident(target, 1);
                    }
                    _ => {}
                }
                let there = self.words.lock(target);
                self.words.unlock_as(target, there.with_state(state));
                self.words.unlock_as(PageIndex(page), word.with_state(State::Empty));
            }
            result?;
        }
        Ok(())
    }

    /// mlock and mlock2. Locks up to the first hole, as the kernel does; what may not be read is locked and cannot be
    /// brought in.
    pub(crate) fn pin(&self, range: Range<usize>, on_fault: bool) -> Result<(), Errno> {
        let end = range.end.next_multiple_of(PAGE_SIZE);
        let wanted = self.pages(range.start & !(PAGE_SIZE - 1)..end)?;
        let mut regions = self.regions();
        let pages = regions.mapped_start(wanted.clone());
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        let (managed, foreign): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(_, r)| r.kind == Kind::Managed);
        let fresh = || managed.iter().filter(|(_, region)| !region.pinned).map(|(part, _)| part.clone());
        self.charge_pinned(fresh().map(|part| part.len()).sum())?;
        regions.update(pages.clone(), |region| region.pinned = true);
        fresh().for_each(|part| self.set_pinned(part, true));
        drop(regions);
        let mut complete = pages == wanted;
        for (part, _) in foreign {
            complete &= vm::lock(self.address_range(part), on_fault).is_ok();
        }
        if pages == wanted && !on_fault {
            complete &= managed.iter().all(|(_, region)| region.prot.readable());
            managed.into_iter().for_each(|(part, region)| self.bring_in(part, region.prot));
        }
        if complete { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Whether all of a range is locked.
    pub(crate) fn is_locked(&self, range: Range<usize>) -> bool {
        let Ok(pages) = self.pages(range) else { return false };
        let regions = self.regions();
        regions.covers(pages.clone()) && regions.overlapping(pages).all(|(_, region)| region.pinned)
    }

    /// munlock.
    pub(crate) fn unpin(&self, range: Range<usize>) -> Result<(), Errno> {
        let end = range.end.next_multiple_of(PAGE_SIZE);
        let wanted = self.pages(range.start & !(PAGE_SIZE - 1)..end)?;
        let mut regions = self.regions();
        let pages = regions.mapped_start(wanted.clone());
        let result = if pages == wanted { Ok(()) } else { Err(Errno::NOMEM) };
        let pinned: Vec<_> = regions.overlapping(pages.clone()).filter(|(_, r)| r.pinned).collect();
        for (part, region) in pinned {
            match region.kind {
                Kind::Managed => self.set_pinned(part, false),
                Kind::Foreign => vm::unlock(self.address_range(part))?,
            }
        }
        regions.update(pages, |region| region.pinned = false);
        result
    }

    /// mlockall.
    pub(crate) fn pin_all(&self, flags: u32) -> Result<(), Errno> {
        if flags == 0 || flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0 || flags == MCL_ONFAULT {
            return Err(Errno::INVAL);
        }
        self.lock_future(flags & MCL_FUTURE != 0);
        if flags & MCL_CURRENT == 0 {
            return Ok(());
        }
        let all: Vec<_> =
            self.regions().iter().filter(|(_, r)| r.kind == Kind::Managed).map(|(pages, _)| pages).collect();
        all.into_iter().try_for_each(|pages| self.pin(self.address_range(pages), flags & MCL_ONFAULT != 0))
    }

    /// munlockall.
    pub(crate) fn unpin_all(&self) -> Result<(), Errno> {
        self.lock_future(false);
        let all: Vec<_> = self.regions().iter().filter(|(_, r)| r.pinned).map(|(pages, _)| pages).collect();
        all.into_iter().try_for_each(|pages| self.unpin(self.address_range(pages)))
    }

    /// Room for more pinned pages: half of the budget at most, so that the rest can still turn over.
    fn charge_pinned(&self, pages: usize) -> Result<(), Errno> {
        let after = self.pinned_pages.load(std::sync::atomic::Ordering::Relaxed) + pages;
        let allowed = match Rlimit::memlock() {
            Some(0) if pages > 0 => return Err(Errno::PERM),
            Some(bytes) => (bytes as usize) >> PAGE_SHIFT,
            None => usize::MAX,
        };
        if after > allowed.min(self.budget().limit() as usize / 2) { Err(Errno::NOMEM) } else { Ok(()) }
    }

    fn set_pinned(&self, pages: Range<usize>, on: bool) {
        use std::sync::atomic::Ordering::Relaxed;
        for page in pages {
            let page = PageIndex(page);
            self.extents.touch(page);
            let word = self.words.lock(page);
            if word.is_pinned() != on {
                if on {
                    self.pinned_pages.fetch_add(1, Relaxed)
                } else {
                    self.pinned_pages.fetch_sub(1, Relaxed)
                };
            }
            self.words.unlock_as(page, word.pinned(on));
        }
    }

    pub(crate) fn bring_in(&self, pages: Range<usize>, prot: Prot) {
        for page in pages.map(PageIndex).filter(|_| prot.readable()) {
            match self.config.delivery {
                // All signals are blocked here, so a touch would kill: the fault is served as if it had been taken.
                Delivery::Signal if self.words.load(page).is_resident() && !prot.writable() => {}
                // Writable: a system call that writes there must not meet a protected page.
                Delivery::Signal => {
                    let _ = self.serve_on_this_thread(page, prot.writable());
                }
                Delivery::Thread => vm::touch(self.address(page)),
            }
        }
    }

    /// In the child of a fork: what MADV_DONTFORK, MADV_WIPEONFORK and mlock mean there, and registration anew of all
    /// that is under management.
    pub(crate) fn settle_child_mappings(&self) -> Result<(), Errno> {
        let mut regions = self.regions();
        let all: Vec<_> = regions.iter().collect();
        let mut foreign = Vec::new();
        self.lock_future(false);
        for (pages, region) in all {
            let addresses = self.address_range(pages.clone());
            if region.dont_fork {
                vm::map_fixed(addresses.clone(), Prot::NONE)?;
                vm::advise(addresses, vm::MADV_NOHUGEPAGE)?;
                self.set_pinned(pages.clone(), false);
                self.clear(pages.clone())?;
                self.set_access(pages.clone(), false);
                regions.remove(pages);
                continue;
            }
            if region.wipe_on_fork {
                self.clear(pages.clone())?;
            }
            if region.pinned {
                self.set_pinned(pages.clone(), false);
                regions.update(pages.clone(), |r| r.pinned = false);
            }
            if region.kind == Kind::Foreign {
                foreign.push(addresses);
            }
        }
        // The window, but for mappings of the kernel's own.
        use overspill_os::backing::Backing;
        let window = self.window();
        let mut at = window.start;
        for hole in foreign.into_iter().chain(std::iter::once(window.end..window.end)) {
            if at < hole.start {
                self.frames.backing.register(at..hole.start)?;
            }
            at = hole.end;
        }
        self.frames.backing.register(self.frames.arena.range())
    }

    fn locks_future(&self) -> bool {
        self.pin_future.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn lock_future(&self, on: bool) {
        self.pin_future.store(on, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Moves what is resident of a range in the page tables. The kernel moves parts of one mapping of its own only, and
/// may keep two of them where the map of regions has one (their pages have different histories): then by halves.
fn remap_resident(old: Range<usize>, new: usize) -> Result<(), Errno> {
    match vm::remap_pages(old.clone(), new) {
        Err(Errno::FAULT) if old.len() > PAGE_SIZE => {
            let half = (old.len() / 2).next_multiple_of(PAGE_SIZE);
            remap_resident(old.start..old.start + half, new)?;
            remap_resident(old.start + half..old.end, new + half).inspect_err(|_| {
                // All or nothing. The way back needs no mapping that is not there.
                let _ = remap_resident(new..new + half, old.start);
            })
        }
        result => result,
    }
}
