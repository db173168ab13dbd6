//! Extents: 2 MiB of the window each, what one page-table page maps.
//!
//! An extent carries the lock under which its pages are read in place or change their mapping, the
//! number of its resident pages (so that the clock passes empty ones quickly), and whether it is
//! accessible as a whole (so that mapping a large range touches no page words).
//!
//! Lock order: before page locks, waited for one at a time. Engine threads, who may hold several,
//! only try them: a thread of the program may hold one.

use crate::base::PageIndex;
use crate::lockdep::{Class, Held, Rank};
use overspill_os::{Errno, vm::SharedCells};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Pages of an extent: 2 MiB, a page-table page, so that one protection call walks one table.
pub const EXTENT_PAGES: usize = 512;

/// The class of extent locks.
const EXTENT: Class = Class::new(Rank::Extent);

const LOCKED: u64 = 1;
const ACCESSIBLE: u64 = 2;
const TOUCHED: u64 = 4;

/// State of every extent of the window: 16 bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    cells: SharedCells,
}

/// Pages of extent `index`.
pub fn pages_of(index: usize) -> Range<usize> {
    index * EXTENT_PAGES..(index + 1) * EXTENT_PAGES
}

/// The extents that a range of pages overlaps, each with the pages of the range in it.
pub fn split(pages: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    (pages.start / EXTENT_PAGES..pages.end.div_ceil(EXTENT_PAGES)).map(move |index| {
        let whole = pages_of(index);
        (index, whole.start.max(pages.start)..whole.end.min(pages.end))
    })
}

impl Extents {
    /// For a window of `pages` pages.
    pub fn new(pages: usize) -> Result<Extents, Errno> {
        Ok(Extents { cells: SharedCells::anonymous(2 * pages.div_ceil(EXTENT_PAGES))? })
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self, index: usize) -> Option<ExtentGuard<'_>> {
        let before = self.cells[2 * index].fetch_or(LOCKED, Acquire);
        (before & LOCKED == 0).then(|| ExtentGuard { extents: self, index, _held: EXTENT.hold() })
    }

    /// Takes the lock, waiting for a batch of eviction at most.
    pub fn lock(&self, index: usize) -> ExtentGuard<'_> {
        EXTENT.check();
        let mut backoff = crate::sync::Backoff::default();
        loop {
            if let Some(guard) = self.try_lock(index) {
                return guard;
            }
            backoff.wait();
        }
    }

    /// Whether every page is mapped with access.
    pub fn is_accessible(&self, page: PageIndex) -> bool {
        self.cells[2 * (page.0 / EXTENT_PAGES)].load(Acquire) & ACCESSIBLE != 0
    }

    /// Sets whether every page is mapped with access.
    pub fn set_accessible(&self, guard: &ExtentGuard<'_>, on: bool) {
        self.flag(guard.index, ACCESSIBLE, on);
    }

    /// Whether any page word of the extent was ever used since it was last cleared.
    pub fn is_touched(&self, index: usize) -> bool {
        self.cells[2 * index].load(Acquire) & TOUCHED != 0
    }

    /// Notes that page words of the extent are in use. True if that is new.
    pub fn touch(&self, page: PageIndex) -> bool {
        let cell = &self.cells[2 * (page.0 / EXTENT_PAGES)];
        cell.load(Acquire) & TOUCHED == 0 && cell.fetch_or(TOUCHED, AcqRel) & TOUCHED == 0
    }

    fn flag(&self, index: usize, flag: u64, on: bool) {
        if on {
            self.cells[2 * index].fetch_or(flag, AcqRel);
        } else {
            self.cells[2 * index].fetch_and(!flag, AcqRel);
        }
    }

    /// Resident pages of an extent.
    pub fn resident(&self, index: usize) -> usize {
        self.cells[2 * index + 1].load(Relaxed) as usize
    }

    /// Counts `pages` more resident in the extent of `page`.
    pub fn add_resident(&self, page: PageIndex, pages: usize) {
        self.cells[2 * (page.0 / EXTENT_PAGES) + 1].fetch_add(pages as u64, Relaxed);
    }

    /// Counts `pages` fewer.
    pub fn sub_resident(&self, page: PageIndex, pages: usize) {
        let before = self.cells[2 * (page.0 / EXTENT_PAGES) + 1].fetch_sub(pages as u64, Relaxed);
        debug_assert!(
            before >= pages as u64,
            "extent of {page:?} has {before} resident pages, {pages} leave"
        );
    }
}

/// The lock of an extent, held.
#[derive(Debug)]
pub struct ExtentGuard<'a> {
    extents: &'a Extents,
    index: usize,
    _held: Held,
}

impl Drop for ExtentGuard<'_> {
    fn drop(&mut self) {
        self.extents.cells[2 * self.index].fetch_and(!LOCKED, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_at_extents() {
        let parts: Vec<_> = split(500..1030).collect();
        assert_eq!(parts, [(0, 500..512), (1, 512..1024), (2, 1024..1030)]);
        assert_eq!(split(512..1024).collect::<Vec<_>>(), [(1, 512..1024)]);
        assert_eq!(split(7..7).count(), 1);
    }

    #[test]
    fn a_lock_is_held_once() {
        let extents = Extents::new(2048).unwrap();
        let guard = extents.try_lock(1).unwrap();
        assert!(extents.try_lock(1).is_none() && extents.try_lock(2).is_some());
        assert!(extents.try_lock(1).is_none(), "a failed try must not unlock");
        extents.set_accessible(&guard, true);
        assert!(extents.is_accessible(PageIndex(600)) && !extents.is_accessible(PageIndex(100)));
        drop(guard);
        assert!(extents.try_lock(1).is_some() && extents.is_accessible(PageIndex(600)));
    }
}
