//! What is held in memory for a while, such as the buffers of a request that is under way. A pure
//! structure.

use std::ops::Range;

/// Ranges of pages, as often as they are held.
#[derive(Clone, Debug, Default)]
pub struct Holds(Vec<Range<usize>>);

impl Holds {
    /// Notes that pages are held once more.
    pub fn add(&mut self, pages: Range<usize>) {
        self.0.push(pages);
    }

    /// Notes that they are held once less; `false` if they were not.
    pub fn remove(&mut self, pages: &Range<usize>) -> bool {
        let at = self.0.iter().position(|held| held == pages);
        at.map(|at| self.0.swap_remove(at)).is_some()
    }

    /// All that is held, which is not held any more.
    pub fn take(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.0)
    }

    /// Whether any of `pages` is held.
    pub fn overlaps(&self, pages: &Range<usize>) -> bool {
        self.0.iter().any(|held| held.start < pages.end && pages.start < held.end)
    }

    /// The parts of `pages` that are not held.
    pub fn outside(&self, pages: Range<usize>) -> Vec<Range<usize>> {
        self.0.iter().fold(vec![pages], |parts, held| {
            let around = |part: Range<usize>| {
                [part.start..part.end.min(held.start), part.start.max(held.end)..part.end]
            };
            parts.into_iter().flat_map(around).filter(|part| !part.is_empty()).collect()
        })
    }
}
