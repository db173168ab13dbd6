//! Where pages lie: in the window, or in an annex.
//!
//! The pages of the window are numbered from its start. An annex is memory that the program has at
//! addresses of its own, such as its large arrays: it is managed where it lies. It takes the
//! numbers of a part of the window, whose addresses stay unused. So whoever works with numbers,
//! ranges and extents of pages knows nothing of annexes, and only this tells addresses by numbers.

use super::extent::EXTENT_PAGES;
use crate::base::seeded::{Bug, is_seeded};
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use std::ops::Range;

/// Pages at the start of the window that no program gets.
pub const RESERVED_PAGES: usize = EXTENT_PAGES;

/// The window and its annexes.
#[derive(Clone, Debug)]
pub struct Places {
    window: Range<usize>,
    annexes: Vec<Annex>,
    /// Whether the last annex is for mappings that must lie low.
    has_low: bool,
    /// The first page that lies in the window at its number.
    first: usize,
}

/// Memory at an address of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annex {
    /// Where it lies.
    pub addresses: Range<usize>,
    /// The numbers of its pages.
    pub pages: Range<usize>,
}

impl Places {
    /// A window, and whole pages elsewhere, of which the last are for mappings that must lie low.
    pub fn new(
        window: Range<usize>,
        annexes: &[Range<usize>],
        low: Option<&Range<usize>>,
    ) -> Places {
        let mut first = RESERVED_PAGES;
        let place = |addresses: &Range<usize>| {
            let pages = first..first + (addresses.len() >> PAGE_SHIFT);
            // A page at least lies between two, so that none is next to another's.
            first = (pages.end + 1).next_multiple_of(EXTENT_PAGES);
            Annex { addresses: addresses.clone(), pages }
        };
        let annexes = annexes.iter().chain(low).map(place).collect();
        Places { window, annexes, has_low: low.is_some(), first }
    }

    /// The window.
    pub fn window(&self) -> Range<usize> {
        self.window.clone()
    }

    /// The annexes.
    pub fn annexes(&self) -> &[Annex] {
        &self.annexes
    }

    /// Those that the program has in use from the beginning.
    pub fn arrays(&self) -> &[Annex] {
        &self.annexes[..self.annexes.len() - usize::from(self.has_low)]
    }

    /// The pages of the one for mappings that must lie low.
    pub fn low(&self) -> Option<Range<usize>> {
        self.annexes.last().filter(|_| self.has_low).map(|annex| annex.pages.clone())
    }

    /// All ranges of addresses that are managed.
    pub fn all(&self) -> impl Iterator<Item = Range<usize>> {
        let annexes = self.annexes.iter().map(|annex| annex.addresses.clone());
        std::iter::once(self.window()).chain(annexes)
    }

    /// The same without what of the window no page lies in.
    pub fn mappable(&self) -> impl Iterator<Item = Range<usize>> {
        let start = self.window.start + (self.first << PAGE_SHIFT);
        let annexes = self.annexes.iter().map(|annex| annex.addresses.clone());
        std::iter::once(start..self.window.end).chain(annexes)
    }

    /// Whether some of a range lies in the window or in an annex.
    pub fn reach_into(&self, range: Range<usize>) -> bool {
        self.all().any(|place| place.start < range.end && range.start < place.end)
    }

    /// The numbers that annexes take, from the first on, with what lies between them.
    pub fn annexed(&self) -> Range<usize> {
        RESERVED_PAGES..self.first
    }

    /// Address of a page.
    #[inline]
    pub fn address(&self, page: PageIndex) -> usize {
        let (start, first) = match self.annexes.iter().find(|annex| page.0 < annex.pages.end) {
            Some(annex) if annex.pages.contains(&page.0) => {
                (annex.addresses.start, annex.pages.start)
            }
            _ => (self.window.start, 0),
        };
        start + ((page.0 - first) << PAGE_SHIFT)
    }

    /// Addresses of pages that are next to one another, all in the window or in one annex.
    pub fn address_range(&self, pages: Range<usize>) -> Range<usize> {
        let last = pages.end.max(pages.start + 1) - 1;
        debug_assert!(
            self.is_one_range(PageIndex(pages.start), PageIndex(last)),
            "pages {pages:?} lie in several places"
        );
        let start = self.address(PageIndex(pages.start));
        start..start + (pages.len() << PAGE_SHIFT)
    }

    /// Whether two pages, with all between them, have one range of addresses: numbers of an annex
    /// and of what follows it are near, and their addresses are not.
    pub fn is_one_range(&self, one: PageIndex, other: PageIndex) -> bool {
        let distance = self.address(other).wrapping_sub(self.address(one));
        is_seeded(Bug::OneRangeAssumed) || distance == other.0.wrapping_sub(one.0) << PAGE_SHIFT
    }

    /// The addresses that lie together with one: its annex, or the window.
    pub fn around(&self, address: usize) -> Range<usize> {
        let annex = self.annexes.iter().find(|annex| annex.addresses.contains(&address));
        annex.map_or_else(|| self.window(), |annex| annex.addresses.clone())
    }

    /// The page of an address; `None` where no page lies.
    #[inline]
    pub fn page(&self, address: usize) -> Option<PageIndex> {
        if self.window.contains(&address) {
            let page = (address - self.window.start) >> PAGE_SHIFT;
            return (page < RESERVED_PAGES || page >= self.first).then_some(PageIndex(page));
        }
        let annex = self.annexes.iter().find(|annex| annex.addresses.contains(&address))?;
        Some(PageIndex(annex.pages.start + ((address - annex.addresses.start) >> PAGE_SHIFT)))
    }

    /// The pages of a range of bytes that begins on a page and lies in the window or in one annex;
    /// its end is rounded up.
    pub fn pages(&self, range: Range<usize>) -> Option<Range<usize>> {
        let inside = self.around(range.start);
        let lies = inside.start <= range.start && range.start <= range.end;
        if !range.start.is_multiple_of(PAGE_SIZE) || !lies || range.end > inside.end {
            return None;
        }
        let len = range.len().div_ceil(PAGE_SIZE);
        let first = match self.page(range.start) {
            Some(page) => page.0,
            // An empty range at the end of the window.
            None => (range.start == self.window.end).then(|| self.window.len() >> PAGE_SHIFT)?,
        };
        Some(first..first + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Range<usize> = 0x4000_0000_0000..0x4000_4000_0000;
    const ONE: Range<usize> = 0x60_0000..0x61_3000;
    const OTHER: Range<usize> = 0x5555_0000_0000..0x5555_0040_0000;

    #[test]
    fn without_annexes_pages_are_numbered_from_the_start_of_the_window() {
        let places = Places::new(WINDOW, &[], None);
        assert_eq!(places.page(WINDOW.start + 8191), Some(PageIndex(1)));
        assert_eq!(places.address(PageIndex(7)), WINDOW.start + 7 * PAGE_SIZE);
        assert_eq!([places.page(WINDOW.end), places.page(WINDOW.start - 1)], [None; 2]);
        assert_eq!(places.pages(WINDOW), Some(0..WINDOW.len() >> PAGE_SHIFT));
        assert!(places.pages(WINDOW.end..WINDOW.end).is_some_and(|pages| pages.is_empty()));
        assert!(places.annexed().is_empty());
    }

    #[test]
    fn each_page_of_an_annex_has_a_number_and_that_leads_back() {
        let places = Places::new(WINDOW, &[ONE, OTHER], None);
        let mut numbers = Vec::new();
        for address in ONE.chain(OTHER).step_by(PAGE_SIZE) {
            let page = places.page(address + 5).unwrap();
            assert_eq!(places.address(page), address);
            numbers.push(page.0);
        }
        assert!(numbers.is_sorted_by(|a, b| a < b) && numbers[0] == RESERVED_PAGES);
        // Extents are not shared, and no two of them meet.
        let [one, other] = places.annexes() else { panic!("two annexes") };
        assert!(other.pages.start > one.pages.end && other.pages.start % EXTENT_PAGES == 0);
        assert!(places.annexed().end > other.pages.end);
        // The addresses in the window that would have these numbers are no pages.
        let hidden = WINDOW.start + (one.pages.start << PAGE_SHIFT);
        assert_eq!((places.page(hidden), places.pages(hidden..hidden + 4096)), (None, None));
        let first = WINDOW.start + (places.annexed().end << PAGE_SHIFT);
        assert_eq!(places.page(first), Some(PageIndex(places.annexed().end)));
        // Whose extents are near is not in one range with them.
        let [end, next] = [one.pages.end - 1, other.pages.start].map(PageIndex);
        let [last, after] = [other.pages.end - 1, places.annexed().end].map(PageIndex);
        assert!(places.is_one_range(next, last) && places.is_one_range(last, last));
        assert!(!places.is_one_range(end, next) && !places.is_one_range(last, after));
        assert!(places.is_one_range(after, PageIndex(after.0 + 9)));
    }

    #[test]
    fn what_must_lie_low_is_an_annex_that_begins_empty() {
        let low = 0x4000_0000..0x4800_0000;
        let places = Places::new(WINDOW, &[ONE], Some(&low));
        assert_eq!((places.annexes().len(), places.arrays().len()), (2, 1));
        let pages = places.low().unwrap();
        assert_eq!(places.address_range(pages.clone()), low);
        assert!(places.all().any(|range| range == low) && places.annexed().end > pages.end);
        assert_eq!(Places::new(WINDOW, &[ONE], None).low(), None);
    }

    #[test]
    fn a_range_lies_in_one_place() {
        let places = Places::new(WINDOW, &[ONE, OTHER], None);
        let annex = &places.annexes()[0];
        assert_eq!(places.pages(ONE), Some(annex.pages.clone()));
        assert_eq!(places.address_range(annex.pages.clone()), ONE);
        assert_eq!(places.pages(ONE.start..ONE.end + 1), None);
        assert_eq!(places.pages(ONE.start + 1..ONE.end), None);
        assert_eq!(places.pages(ONE.start - PAGE_SIZE..ONE.end), None);
        assert_eq!(places.around(OTHER.start + 1), OTHER);
        assert_eq!(places.around(0), WINDOW);
        let beside = ONE.end..ONE.end + PAGE_SIZE;
        let across = ONE.end - 1..ONE.end + 1;
        assert!(places.reach_into(OTHER) && places.reach_into(across));
        assert!(places.reach_into(0..usize::MAX) && !places.reach_into(beside));
    }
}
