//! mremap: pages move, their stored copies change owner.

use crate::base::{PAGE_SIZE, PageIndex};
use crate::engine::Engine;
use crate::extent::split;
use crate::regions::{Kind, Region, RegionMap};
use crate::word::State;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::vm::{self, advice};
use std::ops::Range;

/// mremap's flags.
pub(super) const MAYMOVE: u32 = 1;
pub(super) const FIXED: u32 = 2;
pub(super) const DONTUNMAP: u32 = 4;

impl Engine {
    /// mremap; returns the new address.
    pub(crate) fn remap(&self, old: Range<usize>, new_len: usize, flags: u32, new_at: usize) -> Result<usize, Errno> {
        let known = flags & !(MAYMOVE | FIXED | DONTUNMAP) == 0;
        let moves = flags & MAYMOVE != 0;
        if !known || new_len == 0 || old.is_empty() || flags & (FIXED | DONTUNMAP) != 0 && !moves {
            return Err(Errno::INVAL);
        }
        let old = self.pages(old)?;
        let keep_old = flags & DONTUNMAP != 0;
        let count = new_len.div_ceil(PAGE_SIZE);
        if keep_old && count != old.len() {
            return Err(Errno::INVAL);
        }
        let mut regions = self.regions();
        let fixed = flags & FIXED != 0;
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
        if part != old {
            return Err(Errno::FAULT);
        }
        if region.kind == Kind::Foreign {
            return self.remap_foreign(regions, old, region, new_len, flags, new_at);
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
        self.frames.backing.register(addresses.clone())?;
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
                self.drop_copy(PageIndex(page), word);
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
