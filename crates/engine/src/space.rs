//! The address space that the program sees: mmap, munmap, mprotect, madvise, mremap and mlock over
//! the window, with the meaning that Linux gives them.
//!
//! It owns the map of regions ([`regions`]) and what of it is known without its lock ([`access`]).
//! mremap is in [`remap`], mlock and the like in [`pin`], what of the window is not managed in
//! [`foreign`], what is managed outside of it in [`annex`]. Its calls run on threads of the
//! program, through [`crate::fault::Fault::enter`].
//!
//! Locks: one over the map of regions plays the part of the kernel's mmap_lock; engine threads
//! never take it. Where a call changes what is behind addresses, it holds the extent's lock, which
//! keeps reclaim out, and the locks of the pages, which keep faults out. The order: regions ->
//! extent -> pages -> zpool, swap cache, slots ([`crate::base::lockdep`]).
//!
//! Below it: control, which takes advice; fault, which brings pages in; swap and memory.

pub mod access;
mod advise;
mod annex;
mod foreign;
mod pin;
mod protect;
pub mod regions;
mod remap;

use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use crate::control::Control;
use crate::fault::Fault;
use crate::fault::settings::Delivery;
use crate::memory::extent::{EXTENT_PAGES, split};
use crate::memory::word::State;
use crate::memory::{Memory, RESERVED_PAGES};
use crate::space::regions::{RegionAttributes, RegionKind, RegionMap};
use crate::stats::{Counter, Stats};
use crate::swap::Swap;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use access::Accesses;
use overspill_os::Errno;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::vm::{self, Prot, advice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Flags of [`crate::Pool::mmap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// The address is a hint: where it cannot be had, the pool chooses.
    pub hint: bool,
    /// MAP_FIXED_NOREPLACE: fail rather than replace.
    pub noreplace: bool,
    /// MAP_LOCKED.
    pub locked: bool,
    /// MAP_GROWSDOWN, of what is not managed.
    pub grows_down: bool,
    /// MAP_32BIT, where the pool has addresses for that ([`crate::config::Config::low`]).
    pub low: bool,
}

/// The address space.
pub struct Space<B = AnonPrivate> {
    stats: Stats,
    delivery: Delivery,
    memory: Arc<Memory<B>>,
    swap: Arc<Swap<B>>,
    fault: Arc<Fault<B>>,
    control: Arc<Control<B>>,
    regions: RankedMutex<RegionMap>,
    /// What of it is known without its lock.
    accesses: Accesses,
    /// Whether new mappings are locked (MCL_FUTURE).
    pin_future: AtomicBool,
}

impl<B: Backing> Space<B> {
    /// With nothing mapped.
    pub fn new(
        control: &Arc<Control<B>>,
        fault: &Arc<Fault<B>>,
        swap: &Arc<Swap<B>>,
        memory: &Arc<Memory<B>>,
        delivery: Delivery,
        stats: Stats,
    ) -> Space<B> {
        let mut regions = RegionMap::new(RESERVED_PAGES..memory.words.len());
        regions.withhold(memory.places.annexed(), memory.places.low());
        Space {
            stats,
            delivery,
            memory: memory.clone(),
            swap: swap.clone(),
            fault: fault.clone(),
            control: control.clone(),
            regions: RankedMutex::new(Rank::Regions, regions),
            accesses: Accesses::default(),
            pin_future: AtomicBool::new(false),
        }
    }

    /// The pages of a range of bytes that begins on a page and lies in the window or an annex; its
    /// end is rounded up.
    fn pages(&self, range: Range<usize>) -> Result<Range<usize>, Errno> {
        self.memory.places.pages(range).ok_or(Errno::INVAL)
    }

    /// The map of regions, which the caller may change.
    fn regions(&self) -> RankedGuard<'_, RegionMap> {
        let regions = lock(&self.regions);
        self.accesses.change();
        regions
    }

    /// Where a new mapping of `count` pages goes: to the page of the hint, if there is room. Large
    /// ones begin on an extent, so that their runs are dense; those of 32 MiB on a multiple of
    /// that, which allocators otherwise map, trim and map again to get.
    fn place(
        &self,
        regions: &RegionMap,
        count: usize,
        hint: Option<usize>,
        low: bool,
    ) -> Option<Range<usize>> {
        if let Some(hint) = hint.map(|address| address & !(PAGE_SIZE - 1))
            && let Ok(hinted) = self.pages(hint..hint.checked_add(count.checked_mul(PAGE_SIZE)?)?)
            && regions.is_free(hinted.clone())
        {
            return Some(hinted);
        }
        if low {
            return regions.find_low(count).map(|first| first..first + count);
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
            // Refused at the limit of mappings: a longer dump, or one with less in it, and nothing
            // else.
            let _ = vm::advise(self.memory.address_range(change.pages), advice);
        }
        let bytes = (regions.mapped_pages() << PAGE_SHIFT) as u64;
        self.stats.set(Counter::ManagedBytes, bytes);
        self.stats.raise(Counter::ManagedPeakBytes, bytes);
    }

    /// mmap of private anonymous memory; `at` is an address in the window, of MAP_FIXED or of a
    /// hint.
    pub(crate) fn map(
        &self,
        at: Option<usize>,
        len: usize,
        prot: Prot,
        flags: MapFlags,
    ) -> Result<usize, Errno> {
        let count = len.div_ceil(PAGE_SIZE);
        if count == 0 {
            return Err(Errno::INVAL);
        }
        let fixed = match at {
            Some(address) if !flags.hint => {
                Some(self.pages(address..address.checked_add(len).ok_or(Errno::NOMEM)?)?)
            }
            _ => None,
        };
        if let Some(pages) = fixed.clone().filter(|_| !flags.noreplace) {
            self.detach_foreign(pages)?;
        }
        let mut regions = self.regions();
        let pages = match fixed {
            Some(pages) => {
                if flags.noreplace && !self.is_vacant(&regions, pages.clone()) {
                    return Err(Errno::EXIST);
                }
                self.clear_out(&mut regions, pages.clone())?;
                pages
            }
            None => self.place(&regions, count, at, flags.low).ok_or(Errno::NOMEM)?,
        };
        // MCL_FUTURE locks what there is room for: a program is not denied memory for having asked
        // for too much once.
        let mut region = RegionAttributes::managed(prot);
        region.pinned = flags.locked
            || self.locks_future() && self.charge_pinned(&regions, count, count).is_ok();
        if flags.locked {
            self.charge_pinned(&regions, count, count)?;
        }
        vm::protect(self.memory.address_range(pages.clone()), prot)?;
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
        Ok(self.memory.address(PageIndex(pages.start)))
    }

    /// munmap.
    pub(crate) fn unmap(&self, range: Range<usize>) -> Result<(), Errno> {
        if range.is_empty() {
            return Err(Errno::INVAL);
        }
        let pages = self.pages(range)?;
        self.detach_foreign(pages.clone())?;
        let mut regions = self.regions();
        let result = self.clear_out(&mut regions, pages);
        self.settle_managed(&mut regions);
        result
    }

    /// The caller puts a mapping of the kernel's over a range: whatever was there is forgotten; or,
    /// with `noreplace`, nothing may be there.
    pub(crate) fn surrender(
        &self,
        range: Range<usize>,
        prot: Prot,
        flags: MapFlags,
    ) -> Result<(), Errno> {
        let pages = self.pages(range)?;
        let mut regions = self.regions();
        if flags.noreplace && !self.is_vacant(&regions, pages.clone()) {
            return Err(Errno::EXIST);
        }
        self.clear_out(&mut regions, pages.clone())?;
        let region = RegionAttributes::foreign(prot);
        if flags.grows_down {
            self.open_hole(&mut regions, pages.start, region)?;
        }
        regions.insert(pages, region);
        self.settle_managed(&mut regions);
        Ok(())
    }

    /// Unmaps what of `pages` is mapped: afterwards it is a gap, without access and registered.
    /// Nothing is, where some of it is sealed.
    fn clear_out(&self, regions: &mut RegionMap, pages: Range<usize>) -> Result<(), Errno> {
        if regions.is_sealed(pages.clone()) {
            return Err(Errno::PERM);
        }
        let parts: Vec<_> = regions.overlapping(pages.clone()).collect();
        self.close_hole(regions, pages.start)?;
        for (part, region) in parts {
            let addresses = self.memory.address_range(part.clone());
            if region.kind == RegionKind::Foreign {
                vm::map_fixed(addresses.clone(), Prot::NONE)?;
                vm::advise(addresses.clone(), vm::MADV_NOHUGEPAGE)?;
                self.clear(part.clone())?;
                self.memory.frames.backing.register(addresses)?;
            } else {
                // Access goes first, lest content comes back while it is given up; and before
                // access goes, reclaim must know, which reads in place.
                self.set_access(part.clone(), false);
                vm::protect(addresses.clone(), Prot::NONE)?;
                if region.advised {
                    for undo in [advice::DOFORK, advice::DODUMP, advice::KEEPONFORK] {
                        let _ = vm::advise(addresses.clone(), undo);
                    }
                }
                if region.stays() || regions.held.overlaps(&part) {
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
            if !self.memory.extents.is_touched(index) {
                continue;
            }
            // 1. Keep reclaim and faults out.
            let locks = !is_seeded(Bug::ClearWithoutExtent);
            let _extent = locks.then(|| self.memory.extents.lock(index));
            let touched = self.memory.extents.touched(index, part.clone());
            let mut used = false;
            for page in touched.clone() {
                used |= self.memory.words.lock(page).state() != State::Empty;
            }
            // 2. Drop what is in the page tables.
            if used {
                self.memory.frames.backing.discard(self.memory.address_range(part.clone()))?;
            }
            // 3. Forget every stored copy.
            let (mut holes, mut present): (Vec<FrameId>, Vec<FrameId>) = (Vec::new(), Vec::new());
            let mut shared = 0;
            for page in touched {
                let word = self.memory.words.load(page);
                shared += u64::from(word.is_shared());
                self.swap.drop_copy(page, word);
                match word.state() {
                    State::Resident(frame) | State::Evicting(frame) => holes.push(frame),
                    State::Cached(frame) => {
                        self.swap.lru.remove(frame);
                        present.push(frame);
                    }
                    State::Foreign => {
                        self.memory.foreign_pages.fetch_sub(1, Relaxed);
                    }
                    state => self.swap.forget(state),
                }
                self.memory
                    .words
                    .unlock_as(page, word.with_state(State::Empty).referenced(false).beside(false));
            }
            // 4. Give the room back.
            self.memory.unshare(shared);
            self.memory.frames.give_present(&present, &mut Vec::with_capacity(present.len()));
            self.memory.frames.give_holes(&holes);
            self.memory.extents.sub_resident(PageIndex(part.start), holes.len());
            self.stats.sub(Counter::ResidentPages, holes.len() as u64);
        }
        self.swap.publish_tiers();
        Ok(())
    }

    /// Notes whether pages are mapped with access. A reservation without any notes nothing: it may
    /// be terabytes. The lock of the map is held.
    fn set_access(&self, pages: Range<usize>, on: bool) {
        let extents = &self.memory.extents;
        for (index, part) in split(pages) {
            if on || extents.has_access(index) {
                extents.set_access(&extents.lock(index), part, on);
            }
        }
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
            let allowed =
                if write { region.access().writable() } else { region.access().readable() };
            // What has grown into a hole reaches up to its end.
            if part.start != end
                || !allowed
                || region.hole && !vm::is_mapped(self.memory.address(PageIndex(end)))
            {
                break;
            }
            end = part.end;
        }
        if end >= pages.end
            && let Some((whole, region)) = regions.around(pages.start)
            && region.kind == RegionKind::Managed
        {
            self.accesses.note(
                pages.start,
                whole,
                region.access().readable(),
                region.access().writable(),
            );
        }
        (self.memory.address(PageIndex(end))).clamp(range.start, range.end) - range.start
    }

    /// Whether the program may read, or write, all of a range, as far as that is known without a
    /// lock.
    pub(crate) fn is_accessible(&self, range: Range<usize>, write: bool) -> bool {
        let (inside, pages) = self.inside(range.clone());
        inside == range && self.accesses.allowed(pages, write)
    }

    /// What of a range lies in the window, or in the annex in which it begins, and its pages.
    fn inside(&self, range: Range<usize>) -> (Range<usize>, Range<usize>) {
        let all = self.memory.places.around(range.start);
        let range = range.start.clamp(all.start, all.end)..range.end.clamp(all.start, all.end);
        let whole = range.start & !(PAGE_SIZE - 1)..range.end;
        let pages = self.memory.places.pages(whole).unwrap_or_default();
        (range, pages)
    }

    /// Makes pages present that may be accessed so.
    pub(crate) fn bring_in(&self, pages: Range<usize>, access: Prot) {
        for page in pages.map(PageIndex).filter(|_| access.readable()) {
            match self.delivery {
                // All signals are blocked here, so a touch would kill: the fault is served as if it
                // had been taken.
                Delivery::Signal
                    if self.memory.words.load(page).is_resident() && !access.writable() => {}
                // Writable: a system call that writes there must not meet a protected page.
                Delivery::Signal => {
                    let _ = self.fault.serve_on_this_thread(page, access.writable());
                }
                Delivery::Thread => vm::touch(self.memory.address(page)),
            }
        }
    }

    /// In the child of a fork: what MADV_DONTFORK, MADV_WIPEONFORK and mlock mean there, and
    /// registration anew of all that is under management.
    pub(crate) fn settle_child_mappings(&self) -> Result<(), Errno> {
        let mut regions = self.regions();
        regions.held.take().into_iter().for_each(|pages| self.set_pinned(pages, false));
        let all: Vec<_> = regions.iter().collect();
        let mut foreign = Vec::new();
        self.lock_future(false);
        for (pages, region) in all {
            let addresses = self.memory.address_range(pages.clone());
            if region.dont_fork {
                vm::map_fixed(addresses.clone(), Prot::NONE)?;
                vm::advise(addresses, vm::MADV_NOHUGEPAGE)?;
                self.set_pinned(pages.clone(), false);
                self.clear(pages.clone())?;
                self.set_access(pages.clone(), false);
                regions.remove(pages);
                continue;
            }
            if region.wipe_on_fork && region.kind == RegionKind::Managed {
                self.clear(pages.clone())?;
                self.set_guard(&mut regions, pages.clone(), region, false)?;
            }
            if region.pinned {
                self.set_pinned(pages.clone(), false);
                regions.update(pages.clone(), |r| r.pinned = false);
            }
            if region.kept && region.kind == RegionKind::Managed {
                self.set_pinned(pages.clone(), true);
            }
            if region.kind == RegionKind::Foreign {
                foreign.push(addresses);
            }
        }
        // All that is managed, but for mappings of the kernel's own.
        for range in self.memory.places.all() {
            let mut at = range.start;
            let holes = foreign.iter().filter(|hole| range.contains(&hole.start));
            for hole in holes.cloned().chain(std::iter::once(range.end..range.end)) {
                if at < hole.start {
                    self.memory.frames.backing.register(at..hole.start)?;
                }
                at = hole.end;
            }
        }
        self.memory.frames.backing.register(self.memory.frames.arena.range())
    }
}
