//! The gaps between regions, by place and by length. A pure structure.
//!
//! Allocators and runtimes leave tens of thousands of small gaps. So gaps are also kept by classes
//! of length: a place for a mapping is found by a look at the lowest gap of each class, not by a
//! walk over all that are too small.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Lengths below this have a class each; above there are four classes between a power of two and
/// the next.
const EXACT: usize = 64;
/// Classes of all lengths that a 64-bit address space can have, in pages.
const CLASSES: usize = class_of(1 << 52) + 1;
/// Gaps of one class that are tried one by one where the length of the class does not say whether a
/// mapping fits: 64 take a few microseconds, and the next class has one that does.
const TRIES: usize = 64;

/// The class of a length.
const fn class_of(len: usize) -> usize {
    if len < EXACT {
        return len;
    }
    let log = len.ilog2() as usize;
    EXACT + 4 * (log - EXACT.ilog2() as usize) + (len >> (log - 2) & 3)
}

/// The shortest length of a class.
const fn class_min(class: usize) -> usize {
    if class < EXACT {
        return class;
    }
    let (log, quarter) = ((class - EXACT) / 4 + EXACT.ilog2() as usize, (class - EXACT) % 4);
    (4 + quarter) << (log - 2)
}

/// Free runs of pages. No two of them meet.
#[derive(Clone, Debug)]
pub struct Gaps {
    ends: BTreeMap<usize, usize>,
    classes: Box<[BTreeSet<usize>]>,
}

impl Gaps {
    /// No gap.
    pub fn none() -> Gaps {
        Gaps { ends: BTreeMap::new(), classes: vec![BTreeSet::new(); CLASSES].into() }
    }

    /// One gap.
    pub fn new(pages: Range<usize>) -> Gaps {
        let mut gaps = Gaps::none();
        gaps.insert(pages);
        gaps
    }

    fn insert(&mut self, gap: Range<usize>) {
        self.ends.insert(gap.start, gap.end);
        self.classes[class_of(gap.len())].insert(gap.start);
    }

    fn remove(&mut self, start: usize) -> Option<Range<usize>> {
        let gap = start..self.ends.remove(&start)?;
        self.classes[class_of(gap.len())].remove(&start);
        Some(gap)
    }

    /// Whether all of `pages` is free.
    pub fn contains(&self, pages: Range<usize>) -> bool {
        self.ends.range(..=pages.start).next_back().is_some_and(|(_, &end)| pages.end <= end)
    }

    /// The free pages right below a page.
    pub fn below(&self, page: usize) -> Range<usize> {
        match self.ends.range(..page).next_back() {
            Some((&start, &end)) if end >= page => start..page,
            _ => page..page,
        }
    }

    /// Takes `pages`, all of them free.
    pub fn take(&mut self, pages: Range<usize>) {
        let (&start, _) =
            self.ends.range(..=pages.start).next_back().expect("what is taken is free");
        let gap = self.remove(start).expect("just seen");
        assert!(pages.end <= gap.end, "{pages:?} are not free");
        if gap.start < pages.start {
            self.insert(gap.start..pages.start);
        }
        if pages.end < gap.end {
            self.insert(pages.end..gap.end);
        }
    }

    /// Gives `pages` back, none of them free.
    pub fn give(&mut self, mut pages: Range<usize>) {
        if let Some((&start, &end)) = self.ends.range(..pages.start).next_back()
            && end == pages.start
        {
            pages.start = start;
            self.remove(start);
        }
        if let Some(after) = self.remove(pages.end) {
            pages.end = after.end;
        }
        self.insert(pages);
    }

    /// A free run of `pages` pages whose start is a multiple of `align`: the lowest, but for gaps
    /// that are nearly too small, of which only some are tried.
    pub fn find(&self, pages: usize, align: usize) -> Option<usize> {
        let fit = |(&start, &end): (&usize, &usize)| {
            let first = start.next_multiple_of(align);
            (first + pages <= end).then_some(first)
        };
        let surely = pages.checked_add(align - 1)?;
        // 1. The lowest gap of each class in which all are long enough.
        let first_sure = (class_of(surely)..CLASSES).find(|&class| class_min(class) >= surely)?;
        let lowest = self.classes[first_sure..].iter().filter_map(BTreeSet::first).min();
        // 2. Below it, those of the classes in which some are.
        let limit = lowest.copied().unwrap_or(usize::MAX);
        let some = self.classes[class_of(pages)..first_sure].iter();
        let tried = some
            .flat_map(|class| class.range(..limit).take(TRIES))
            .filter_map(|start| fit((start, &self.ends[start])));
        tried
            .chain(lowest.map(|start| start.next_multiple_of(align)))
            .min()
            .or_else(|| self.ends.iter().find_map(fit))
    }

    /// All gaps.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        assert_eq!(self.classes.iter().map(BTreeSet::len).sum::<usize>(), self.ends.len());
        self.ends.iter().map(|(&start, &end)| {
            assert!(self.classes[class_of(end - start)].contains(&start));
            start..end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order_and_know_their_shortest() {
        for len in (1..5000).chain([1 << 20, (1 << 20) - 1, (1 << 52) - 1, 1 << 52]) {
            let class = class_of(len);
            assert!(class_min(class) <= len && class < CLASSES);
            assert!(class + 1 == CLASSES || len < class_min(class + 1), "{len}");
        }
    }

    #[test]
    fn a_gap_is_found_among_many_that_are_too_small() {
        // 3,000 gaps of 70 pages in which 71 do not fit, though their class holds those that do.
        let mut gaps = Gaps::new(0..1_000_000);
        (0..3000).for_each(|i| gaps.take(71 * i + 70..71 * i + 71));
        assert_eq!(class_of(70), class_of(71));
        assert_eq!(gaps.find(71, 1), Some(3000 * 71));
        assert_eq!((gaps.find(70, 1), gaps.find(70, 64)), (Some(0), Some(0)));
        // The only one that fits comes after all the tries, and nothing longer is left.
        gaps.take(3000 * 71..1_000_000);
        gaps.give(71 * 2000 + 70..71 * 2000 + 71);
        assert_eq!(gaps.find(141, 1), Some(71 * 2000));
        assert_eq!(gaps.find(142, 1), None);
        assert_eq!(gaps.find(usize::MAX, 512), None);
    }
}
