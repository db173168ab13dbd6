//! Extents: 2 MiB of the window each, what one page-table page maps.
//!
//! An extent carries the lock under which its pages are read in place or change their mapping, the
//! number of its resident pages (so that the clock passes empty ones quickly), which of its pages
//! are mapped with access (so that mapping a range touches no page words), and which of its page
//! words were ever in use (so that unmapping a range that was hardly touched is cheap).
//!
//! Lock order: before page locks, waited for one at a time. Engine threads, who may hold several,
//! only try them: a thread of the program may hold one.

use crate::base::lockdep::{Held, LockClass, Rank};
use crate::base::sync::{Backoff, point};
use crate::units::PageIndex;
use overspill_os::{Errno, table::SharedCells};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Pages of an extent: 2 MiB, a page-table page, so that one protection call walks one table.
pub const EXTENT_PAGES: usize = 512;

/// The class of extent locks.
const EXTENT: LockClass = LockClass::new(Rank::Extent);

const LOCKED: u64 = 1;
/// Every page is mapped with access.
const ACCESSIBLE: u64 = 2;
/// Some may be: each has a bit.
const PARTLY: u64 = 4;
/// The number of resident pages is counted in units of this, above the flags.
const RESIDENT: u64 = 1 << 32;
/// Pages that share a mark of use: their words are a cache line.
const GROUP: usize = EXTENT_PAGES / 64;

/// State of every extent of the window: 16 bytes each, and 64 of those that are accessible in part.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    cells: SharedCells,
    access: SharedCells,
}

/// Bytes that are kept of an extent of which all is accessible, or nothing.
pub const EXTENT_CELLS_BYTES: u64 = 16;
/// Words of a bitmap of an extent's pages.
const BITMAP: usize = EXTENT_PAGES / 64;

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
        let count = pages.div_ceil(EXTENT_PAGES);
        let cells = SharedCells::anonymous(2 * count)?;
        Ok(Extents { cells, access: SharedCells::anonymous(BITMAP * count)? })
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self, index: usize) -> Option<ExtentGuard<'_>> {
        point();
        let before = self.cells[2 * index].fetch_or(LOCKED, Acquire);
        (before & LOCKED == 0).then(|| ExtentGuard { extents: self, index, _held: EXTENT.hold() })
    }

    /// Takes the lock, waiting for a batch of eviction at most.
    pub fn lock(&self, index: usize) -> ExtentGuard<'_> {
        EXTENT.check();
        let mut backoff = Backoff::default();
        loop {
            if let Some(guard) = self.try_lock(index) {
                return guard;
            }
            backoff.wait();
        }
    }

    /// Whether a page is mapped with access.
    pub fn is_accessible(&self, page: PageIndex) -> bool {
        point();
        let flags = self.cells[2 * (page.0 / EXTENT_PAGES)].load(SeqCst);
        flags & ACCESSIBLE != 0
            || flags & PARTLY != 0
                && self.access[page.0 / 64].load(SeqCst) & 1 << (page.0 % 64) != 0
    }

    /// Whether a page of an extent is mapped with access, as far as it is noted.
    pub fn has_access(&self, index: usize) -> bool {
        self.cells[2 * index].load(SeqCst) & (ACCESSIBLE | PARTLY) != 0
    }

    /// Sets whether `pages`, which lie in the extent of `guard`, are mapped with access.
    pub fn set_access(&self, guard: &ExtentGuard<'_>, pages: Range<usize>, on: bool) {
        let whole = pages_of(guard.index);
        let flags = &self.cells[2 * guard.index];
        let was = flags.load(SeqCst);
        if pages == whole {
            self.flag(guard.index, ACCESSIBLE, on);
            self.flag(guard.index, PARTLY, false);
            if was & PARTLY != 0 {
                self.mark(whole, false);
            }
        } else if was & ACCESSIBLE == 0 {
            self.mark(pages, on);
            self.flag(guard.index, PARTLY, true);
        } else if !on {
            // The bits of the others first: they are accessible all the while.
            self.mark(whole.start..pages.start, true);
            self.mark(pages.end..whole.end, true);
            self.flag(guard.index, PARTLY, true);
            self.flag(guard.index, ACCESSIBLE, false);
        }
    }

    fn mark(&self, pages: Range<usize>, on: bool) {
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / 64 + 1) * 64);
            let bits = u64::MAX >> (64 - (end - at)) << (at % 64);
            if on {
                self.access[at / 64].fetch_or(bits, SeqCst);
            } else {
                self.access[at / 64].fetch_and(!bits, SeqCst);
            }
            at = end;
        }
    }

    /// Whether any page word of the extent was ever used.
    pub fn is_touched(&self, index: usize) -> bool {
        self.groups(index).load(SeqCst) != 0
    }

    /// Notes that words of `pages`, which lie in one extent, are in use.
    ///
    /// Who unmaps takes access away before it asks which are. So a fault notes its pages before it
    /// asks for access: one of both sees the other.
    pub fn touch(&self, pages: Range<usize>) {
        point();
        let (first, last) = (pages.start / GROUP % 64, (pages.end - 1) / GROUP % 64);
        let marks = (u64::MAX << first) & (u64::MAX >> (63 - last));
        let groups = self.groups(pages.start / EXTENT_PAGES);
        if groups.load(SeqCst) & marks != marks {
            groups.fetch_or(marks, SeqCst);
        }
    }

    /// Those of `pages`, which lie in extent `index`, whose words may be in use now.
    pub fn touched(
        &self,
        index: usize,
        pages: Range<usize>,
    ) -> impl Iterator<Item = PageIndex> + Clone + use<> {
        let groups = self.groups(index).load(SeqCst);
        let marked = (0..64).filter(move |group| groups & 1 << group != 0);
        marked.flat_map(move |group| {
            let first = index * EXTENT_PAGES + group * GROUP;
            (first.max(pages.start)..(first + GROUP).min(pages.end)).map(PageIndex)
        })
    }

    fn groups(&self, index: usize) -> &AtomicU64 {
        &self.cells[2 * index + 1]
    }

    fn flag(&self, index: usize, flag: u64, on: bool) {
        if on {
            self.cells[2 * index].fetch_or(flag, SeqCst);
        } else {
            self.cells[2 * index].fetch_and(!flag, SeqCst);
        }
    }

    /// Resident pages of an extent.
    pub fn resident(&self, index: usize) -> usize {
        (self.cells[2 * index].load(Relaxed) / RESIDENT) as usize
    }

    /// Counts `pages` more resident in the extent of `page`.
    pub fn add_resident(&self, page: PageIndex, pages: usize) {
        self.cells[2 * (page.0 / EXTENT_PAGES)].fetch_add(pages as u64 * RESIDENT, Relaxed);
    }

    /// Counts `pages` fewer.
    pub fn sub_resident(&self, page: PageIndex, pages: usize) {
        let pages = pages as u64;
        let before =
            self.cells[2 * (page.0 / EXTENT_PAGES)].fetch_sub(pages * RESIDENT, Relaxed) / RESIDENT;
        debug_assert!(before >= pages, "{pages} of {before} resident pages leave {page:?}");
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
        point();
        self.extents.cells[2 * self.index].fetch_and(!LOCKED, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_split_at_extents() {
        let parts: Vec<_> = split(500..1030).collect();
        assert_eq!(parts, [(0, 500..512), (1, 512..1024), (2, 1024..1030)]);
        assert_eq!(split(512..1024).collect::<Vec<_>>(), [(1, 512..1024)]);
        assert_eq!(split(7..7).count(), 1);
    }

    #[test]
    fn words_in_use_are_known_by_groups() {
        let extents = Extents::new(2048).unwrap();
        let touched =
            |pages: Range<usize>| extents.touched(1, pages).map(|page| page.0).collect::<Vec<_>>();
        assert!(!extents.is_touched(1) && touched(512..1024).is_empty());
        extents.touch(513..514);
        extents.touch(1000..1024);
        let expected: Vec<_> = (512..520).chain(1000..1024).collect();
        assert_eq!(touched(512..1024), expected);
        assert_eq!(touched(515..1001), [515, 516, 517, 518, 519, 1000]);
        assert!(extents.is_touched(1) && !extents.is_touched(0) && !extents.is_touched(2));
        extents.touch(512..1024);
        assert_eq!(touched(512..1024).len(), 512);
        // They share a word with nothing that is counted.
        let guard = extents.lock(1);
        extents.add_resident(PageIndex(600), 512);
        extents.set_access(&guard, 512..1024, true);
        extents.sub_resident(PageIndex(512), 500);
        assert_eq!((extents.resident(1), extents.is_accessible(PageIndex(600))), (12, true));
    }

    #[test]
    fn a_lock_is_held_once() {
        let extents = Extents::new(2048).unwrap();
        let guard = extents.try_lock(1).unwrap();
        assert!(extents.try_lock(1).is_none() && extents.try_lock(2).is_some());
        assert!(extents.try_lock(1).is_none(), "a failed try must not unlock");
        extents.set_access(&guard, 512..1024, true);
        assert!(extents.is_accessible(PageIndex(600)) && !extents.is_accessible(PageIndex(100)));
        drop(guard);
        assert!(extents.try_lock(1).is_some() && extents.is_accessible(PageIndex(600)));
    }

    proptest! {
        #[test]
        fn access_is_as_in_a_list_of_pages(
            changes in prop::collection::vec((0usize..=512, 0usize..=512, any::<bool>()), 1..20)
        ) {
            let extents = Extents::new(1536).unwrap();
            let mut model = [false; 512];
            for (a, b, on) in changes {
                // Every other change is of the whole extent.
                let part = if a % 2 == 0 { 0..512 } else { a.min(b)..a.max(b) };
                if !part.is_empty() {
                    model[part.clone()].fill(on);
                    let pages = part.start + 512..part.end + 512;
                    extents.set_access(&extents.lock(1), pages, on);
                }
                let seen: Vec<_> =
                    (0..1536).map(|page| extents.is_accessible(PageIndex(page))).collect();
                prop_assert!(seen[..512].iter().chain(&seen[1024..]).all(|on| !on));
                prop_assert_eq!(&seen[512..1024], &model);
            }
        }
    }
}
