//! mremap: pages move, their stored copies change owner.

use crate::memory::extent::split;
use crate::memory::word::State;
use crate::space::Space;
use crate::space::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::units::{PAGE_SIZE, PageIndex};
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::vm::{self, advice};
use std::ops::Range;

/// mremap's flags.
pub(super) const MAYMOVE: u32 = 1;
pub(super) const FIXED: u32 = 2;
pub(super) const DONTUNMAP: u32 = 4;

impl<B: Backing> Space<B> {
    /// mremap; returns the new address.
    pub(crate) fn remap(
        &self,
        old: Range<usize>,
        new_len: usize,
        flags: u32,
        new_at: usize,
    ) -> Result<usize, Errno> {
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
        // Something is there.
        let (part, region) = regions.overlapping(old.clone()).next().ok_or(Errno::FAULT)?;
        if part.start != old.start {
            return Err(Errno::FAULT);
        }
        if region.sealed {
            return Err(Errno::PERM);
        }
        // What stays where it is and does not grow may be many mappings, with holes between them.
        let fixed = flags & FIXED != 0;
        let stays = !fixed && !keep_old && count <= old.len();
        if region.kind == RegionKind::Foreign && !stays {
            if part != old {
                return Err(Errno::FAULT);
            }
            return self.remap_foreign(regions, old, region, new_len, flags, new_at);
        }
        let first = if fixed {
            let new = self.pages(new_at..new_at.checked_add(new_len).ok_or(Errno::INVAL)?)?;
            if new.start < old.end && old.start < new.end {
                return Err(Errno::INVAL);
            }
            self.remap_to(&mut regions, old, new.clone(), keep_old).map(|()| new.start)
        } else if stays {
            self.clear_out(&mut regions, old.start + count..old.end).map(|()| old.start)
        } else {
            self.remap_anywhere(&mut regions, old, count, (moves, keep_old), new_at)
        };
        self.settle_managed(&mut regions);
        first.map(|first| self.memory.address(PageIndex(first)))
    }

    /// To where the caller says.
    fn remap_to(
        &self,
        regions: &mut RegionMap,
        old: Range<usize>,
        new: Range<usize>,
        keep_old: bool,
    ) -> Result<(), Errno> {
        if new.len() != old.len() {
            let common = old.start..old.end.min(old.start + new.len());
            movable(regions, common.clone())?;
            self.clear_out(regions, new.clone())?;
            self.clear_out(regions, common.end..old.end)?;
            return self.move_mapping(regions, common, new, keep_old);
        }
        // As it is: many mappings move one by one, up to one that cannot, and holes between them
        // stay what they are there.
        let mut rest = old.clone();
        loop {
            let Some(start) = regions.overlapping(rest).next().map(|(part, _)| part.start) else {
                return Ok(());
            };
            let mapping = regions.mapping_start(start..old.end);
            movable(regions, mapping.clone())?;
            let there = mapping.start - old.start + new.start..mapping.end - old.start + new.start;
            self.clear_out(regions, there.clone())?;
            rest = mapping.end..old.end;
            self.move_mapping(regions, mapping, there, keep_old)?;
        }
    }

    /// To where there is room: where it is, if it grows, or else, if it may move, elsewhere.
    /// Returns the first page.
    fn remap_anywhere(
        &self,
        regions: &mut RegionMap,
        old: Range<usize>,
        count: usize,
        (moves, keep_old): (bool, bool),
        hint: usize,
    ) -> Result<usize, Errno> {
        let region = movable(regions, old.clone())?;
        let tail = old.end..old.start + count;
        if !keep_old && tail.end <= self.memory.words.len() && regions.is_free(tail.clone()) {
            let grown = self.grown(regions, region, tail.len());
            self.map_part(regions, tail, grown)?;
            return Ok(old.start);
        }
        if !moves {
            return Err(Errno::NOMEM);
        }
        // With MREMAP_DONTUNMAP the address is a hint.
        let new = self.place(regions, count, Some(hint), false).ok_or(Errno::NOMEM)?;
        self.move_mapping(regions, old, new.clone(), keep_old)?;
        Ok(new.start)
    }

    /// Moves one mapping to pages where nothing is, as many or more.
    ///
    /// The pages move while no fault beside them can bring in either place, where content would be
    /// in the way or lost; then they are mapped there, and unmapped here.
    fn move_mapping(
        &self,
        regions: &mut RegionMap,
        old: Range<usize>,
        new: Range<usize>,
        keep_old: bool,
    ) -> Result<(), Errno> {
        let parts: Vec<_> = regions.overlapping(old.clone()).collect();
        let Some(&(_, region)) = parts.first() else { return Ok(()) };
        let there = |page: usize| page - old.start + new.start;
        let grown = self.grown(regions, region, new.len() - old.len());
        self.set_access(old.clone(), false);
        let stay = parts.iter().filter(|(_, region)| region.stays());
        stay.for_each(|(part, _)| self.set_pinned(there(part.start)..there(part.end), true));
        let moved = self.move_content(old.clone(), new.start).and_then(|()| {
            let mut mapped = parts.iter().try_for_each(|(part, region)| {
                self.map_part(regions, there(part.start)..there(part.end), *region)
            });
            if there(old.end) < new.end {
                mapped =
                    mapped.and_then(|()| self.map_part(regions, there(old.end)..new.end, grown));
            }
            if mapped.is_err() {
                // Guards take more mappings of the kernel's than there may be.
                self.move_content(new.start..there(old.end), old.start)?;
            }
            mapped
        });
        parts
            .iter()
            .for_each(|(part, region)| self.set_access(part.clone(), region.access().readable()));
        if let Err(errno) = moved {
            regions.insert(new.clone(), RegionAttributes { pinned: true, ..grown });
            self.clear_out(regions, new)?;
            return Err(errno);
        }
        if !keep_old {
            return self.clear_out(regions, old);
        }
        // The guards have moved.
        parts
            .into_iter()
            .try_for_each(|(part, region)| self.set_guard(regions, part, region, false))
    }

    fn map_part(
        &self,
        regions: &mut RegionMap,
        pages: Range<usize>,
        region: RegionAttributes,
    ) -> Result<(), Errno> {
        let addresses = self.memory.address_range(pages.clone());
        vm::protect(addresses.clone(), region.access())?;
        if region.undumped {
            vm::advise(addresses, advice::DONTDUMP)?;
        }
        self.set_access(pages.clone(), region.access().readable());
        if region.stays() {
            self.set_pinned(pages.clone(), true);
        }
        regions.insert(pages, region);
        Ok(())
    }

    /// Moves the content of pages to `new..`, where nothing is. If that fails, everything is where
    /// it was.
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

    /// Makes managed memory like any other of a range to which [`Space::move_pages`] has moved
    /// pages.
    fn settle_moved(&self, pages: Range<usize>) -> Result<(), Errno> {
        let addresses = self.memory.address_range(pages);
        self.memory.frames.backing.register(addresses.clone())?;
        vm::advise(addresses, advice::NORMAL)
    }

    /// Moves the content of pages to `new..`, where nothing is; stored copies change owner,
    /// resident pages move in the page tables. Ends at an error. The caller settles the new range
    /// afterwards.
    fn move_pages(&self, old: Range<usize>, new: usize) -> Result<(), Errno> {
        let shift = |page: usize| PageIndex(page - old.start + new);
        for (index, part) in split(old.clone()) {
            if !self.memory.extents.is_touched(index) {
                continue;
            }
            let _extent = self.memory.extents.lock(index);
            let mut resident = false;
            let touched = self.memory.extents.touched(index, part.clone());
            for page in touched.clone() {
                resident |= self.memory.words.lock(page).is_resident();
            }
            let mut result = Ok(());
            if resident {
                result = remap_resident(
                    &self.memory.frames.backing,
                    self.memory.address_range(part.clone()),
                    self.memory.address(shift(part.start)),
                );
            }
            for page in touched {
                let word = self.memory.words.load(page);
                let state = word.state();
                if result.is_err() || state == State::Empty {
                    self.memory.words.unlock_as(page, word);
                    continue;
                }
                // Protection does not come along.
                self.swap.drop_copy(page, word);
                self.memory.unshare(word.is_shared().into());
                let target = shift(page.0);
                self.memory.extents.touch(target.0..target.0 + 1);
                self.memory.note_extent(target);
                match state {
                    State::Cached(frame) => self.swap.lru.change_owner(frame, target),
                    State::Stored(slot) => self.swap.index.set_owner(slot, target),
                    State::Resident(_) => {
                        self.memory.extents.sub_resident(page, 1);
                        self.memory.extents.add_resident(target, 1);
                    }
                    _ => {}
                }
                let there = self.memory.words.lock(target);
                self.memory.words.unlock_as(target, there.with_state(state));
                self.memory.words.unlock_as(page, word.with_state(State::Empty));
            }
            result?;
        }
        Ok(())
    }
}

/// Whether pages are one mapping, which may have guards, and can be moved; its region, but for the
/// guards.
fn movable(regions: &RegionMap, pages: Range<usize>) -> Result<RegionAttributes, Errno> {
    let region = regions.overlapping(pages.clone()).next().map(|(_, region)| region);
    match region.filter(|_| regions.mapping_start(pages.clone()) == pages) {
        Some(RegionAttributes { sealed: true, .. }) => Err(Errno::PERM),
        Some(region) if region.kind == RegionKind::Managed => Ok(region),
        _ => Err(Errno::FAULT),
    }
}

/// Moves what is resident of a range in the page tables. The kernel moves parts of one mapping of
/// its own only, and may keep two of them where the map of regions has one (their pages have
/// different histories): then by halves.
fn remap_resident(backing: &impl Backing, old: Range<usize>, new: usize) -> Result<(), Errno> {
    match backing.remap(old.clone(), new) {
        Err(Errno::FAULT) if old.len() > PAGE_SIZE => {
            let half = (old.len() / 2).next_multiple_of(PAGE_SIZE);
            remap_resident(backing, old.start..old.start + half, new)?;
            remap_resident(backing, old.start + half..old.end, new + half).inspect_err(|_| {
                // All or nothing. The way back needs no mapping that is not there.
                let _ = remap_resident(backing, new..new + half, old.start);
            })
        }
        result => result,
    }
}
