//! mlock, munlock and mlockall, and what is to be in no core dump: pages that stay in memory.

use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::Backoff;
use crate::memory::extent;
use crate::memory::growth::Growth;
use crate::memory::word::State;
use crate::space::Space;
use crate::space::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use overspill_os::backing::Backing;
use overspill_os::{Errno, Rlimit, vm};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The part of the budget that memory may have which stays because no core dump is to have it.
const KEPT_PART: usize = 8;

/// mlockall's flags.
const MCL_CURRENT: u32 = 1;
const MCL_FUTURE: u32 = 2;
const MCL_ONFAULT: u32 = 4;

impl<B: Backing> Space<B> {
    /// mlock and mlock2.
    pub(crate) fn pin(&self, range: Range<usize>, on_fault: bool) -> Result<(), Errno> {
        if self.pin_and_bring_in(range, on_fault)? { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Locks up to the first hole, as the kernel does; what may not be read is locked and cannot be
    /// brought in. Whether everything was there and came in.
    fn pin_and_bring_in(&self, range: Range<usize>, on_fault: bool) -> Result<bool, Errno> {
        let end = range.end.next_multiple_of(PAGE_SIZE);
        let wanted = self.pages(range.start & !(PAGE_SIZE - 1)..end)?;
        let mut regions = self.regions();
        let pages = regions.mapped_start(wanted.clone());
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        let (managed, foreign): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|(_, r)| r.kind == RegionKind::Managed);
        let fresh =
            || managed.iter().filter(|(_, region)| !region.pinned).map(|(part, _)| part.clone());
        let come = managed.iter().filter(|(_, region)| !region.stays());
        let come = come.map(|(part, _)| part.len()).sum();
        self.charge_pinned(&regions, fresh().map(|part| part.len()).sum(), come)?;
        regions.update(pages.clone(), |region| region.pinned = true);
        fresh().for_each(|part| self.have_stay(part));
        drop(regions);
        let mut complete = pages == wanted;
        for (part, _) in foreign {
            complete &= vm::lock(self.memory.address_range(part), on_fault).is_ok();
        }
        if pages == wanted && !on_fault {
            complete &= managed.iter().all(|(_, region)| region.access().readable());
            managed.into_iter().for_each(|(part, region)| self.bring_in(part, region.access()));
        }
        Ok(complete)
    }

    /// Brings a range in that is mapped, and keeps it in memory until it is released as often as it
    /// is held, whatever mlock and munlock do meanwhile.
    pub(crate) fn hold(&self, range: Range<usize>) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        let mut regions = self.regions();
        if self.memory.pinned_pages.load(Relaxed) + pages.len() > self.pinned_max() {
            return Err(Errno::NOMEM);
        }
        let managed: Vec<_> = regions
            .overlapping(pages.clone())
            .filter(|(_, r)| r.kind == RegionKind::Managed)
            .collect();
        regions.held.add(pages.clone());
        managed.iter().for_each(|(part, _)| self.set_pinned(part.clone(), true));
        // Reclaim that began before may still protect them.
        extent::split(pages).for_each(|(index, _)| drop(self.memory.extents.lock(index)));
        drop(regions);
        managed.into_iter().for_each(|(part, region)| self.bring_in(part, region.access()));
        Ok(())
    }

    /// Ends what [`Space::hold`] began.
    pub(crate) fn release(&self, range: Range<usize>) {
        let Ok(pages) = self.pages(range) else { return };
        let mut regions = self.regions();
        if regions.held.remove(&pages) {
            let free = regions
                .overlapping(pages)
                .filter(|(_, r)| r.kind == RegionKind::Managed && !r.stays());
            free.flat_map(|(part, _)| regions.held.outside(part))
                .for_each(|part| self.set_pinned(part, false));
        }
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
                RegionKind::Managed if region.kept => {}
                RegionKind::Managed => regions
                    .held
                    .outside(part)
                    .into_iter()
                    .for_each(|part| self.set_pinned(part, false)),
                RegionKind::Foreign => vm::unlock(self.memory.address_range(part))?,
            }
        }
        regions.update(pages, |region| region.pinned = false);
        result
    }

    /// mlockall.
    pub(crate) fn pin_all(&self, flags: u32) -> Result<(), Errno> {
        if flags == 0
            || flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0
            || flags == MCL_ONFAULT
        {
            return Err(Errno::INVAL);
        }
        self.lock_future(flags & MCL_FUTURE != 0);
        if flags & MCL_CURRENT == 0 {
            return Ok(());
        }
        let all: Vec<_> =
            self.regions().iter().map(|(pages, region)| (pages, region.kind)).collect();
        // What cannot be brought in is no failure here.
        all.into_iter().try_for_each(|(pages, kind)| {
            let on_fault = flags & MCL_ONFAULT != 0 || kind == RegionKind::Foreign;
            self.pin_and_bring_in(self.memory.address_range(pages), on_fault).map(drop)
        })
    }

    /// munlockall.
    pub(crate) fn unpin_all(&self) -> Result<(), Errno> {
        self.lock_future(false);
        let all: Vec<_> =
            self.regions().iter().filter(|(_, r)| r.pinned).map(|(pages, _)| pages).collect();
        all.into_iter().try_for_each(|pages| self.unpin(self.memory.address_range(pages)))
    }

    /// MADV_DONTDUMP: what is to be in no core dump is to be on no device, so it stays in memory.
    /// Programs leave out what is secret, and also what is merely large: an eighth of the budget is
    /// kept at most, and what does not fit in there leaves as any other memory does.
    pub(super) fn keep(
        &self,
        regions: &mut RegionMap,
        part: Range<usize>,
        region: RegionAttributes,
    ) {
        let come = if region.pinned { 0 } else { part.len() };
        let most = self.memory.lease.account.budget() as usize / KEPT_PART;
        if region.kept || regions.kept_pages() + part.len() > most || !self.has_room_to_stay(come) {
            return;
        }
        regions.update(part.clone(), |region| region.kept = true);
        self.have_stay(part.clone());
        // What is compressed would go on to a device by and by.
        let is_stored = |page: &usize| {
            matches!(self.memory.words.load(PageIndex(*page)).state(), State::Stored(_))
        };
        part.filter(is_stored).for_each(|page| self.bring_in(page..page + 1, region.access()));
    }

    /// MADV_DODUMP.
    pub(super) fn let_go(
        &self,
        regions: &mut RegionMap,
        part: Range<usize>,
        region: RegionAttributes,
    ) {
        if region.kept {
            regions.update(part.clone(), |region| region.kept = false);
            let free = if region.pinned { Vec::new() } else { regions.held.outside(part) };
            free.into_iter().for_each(|part| self.set_pinned(part, false));
        }
    }

    /// What more of a region has where it grows: it stays as far as there is room.
    pub(super) fn grown(
        &self,
        regions: &RegionMap,
        region: RegionAttributes,
        pages: usize,
    ) -> RegionAttributes {
        let pinned = region.pinned && self.charge_pinned(regions, pages, pages).is_ok();
        let most = self.memory.lease.account.budget() as usize / KEPT_PART;
        let kept = region.kept
            && regions.kept_pages() + pages <= most
            && (pinned || self.has_room_to_stay(pages));
        RegionAttributes { guard: false, pinned, kept, ..region }
    }

    /// Room for more locked pages, of which so many come to those that stay.
    pub(super) fn charge_pinned(
        &self,
        regions: &RegionMap,
        pages: usize,
        come: usize,
    ) -> Result<(), Errno> {
        let allowed = match Rlimit::memlock() {
            Some(0) if pages > 0 => return Err(Errno::PERM),
            Some(bytes) => (bytes as usize) >> PAGE_SHIFT,
            None => usize::MAX,
        };
        let is_allowed = regions.locked_pages() + pages <= allowed;
        if is_allowed && self.has_room_to_stay(come) { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Whether more pages may stay in memory: half of the budget at most, so that the rest can
    /// still turn over.
    fn has_room_to_stay(&self, come: usize) -> bool {
        let after = self.memory.pinned_pages.load(Relaxed) + come;
        if come == 0 {
            return true;
        }
        // What this process leases follows what it uses: there may be more for it.
        if after > self.pinned_max() {
            self.memory.have_floor();
        }
        let mut backoff = Backoff::default();
        while after > self.pinned_max() {
            match self.memory.grow() {
                Growth::Grown => {}
                Growth::UnderWay => backoff.wait(),
                Growth::Nothing => return false,
            }
        }
        true
    }

    fn pinned_max(&self) -> usize {
        self.memory.budget().limit() as usize / 2
    }

    /// Has pages stay in memory, and on no device. Reclaim that began before may still protect
    /// them; and what the compressed tier has of pages in memory would go on to a device by and by.
    fn have_stay(&self, pages: Range<usize>) {
        self.set_pinned(pages.clone(), true);
        for (index, part) in extent::split(pages).filter(|_| !is_seeded(Bug::PinWithoutExtent)) {
            let _extent = self.memory.extents.lock(index);
            for page in self.memory.extents.touched(index, part) {
                let word = self.memory.words.lock(page);
                self.swap.drop_copy(page, word);
                self.memory.words.unlock_as(page, word.clean(false));
            }
        }
    }

    pub(super) fn set_pinned(&self, pages: Range<usize>, on: bool) {
        for page in pages.map(PageIndex) {
            self.memory.extents.touch(page.0..page.0 + 1);
            let word = self.memory.words.lock(page);
            if word.is_pinned() != on {
                if on {
                    self.memory.pinned_pages.fetch_add(1, Relaxed)
                } else {
                    self.memory.pinned_pages.fetch_sub(1, Relaxed)
                };
            }
            self.memory.words.unlock_as(page, word.pinned(on));
        }
    }

    pub(super) fn locks_future(&self) -> bool {
        self.pin_future.load(Relaxed)
    }

    pub(super) fn lock_future(&self, on: bool) {
        self.pin_future.store(on, Relaxed);
    }
}
