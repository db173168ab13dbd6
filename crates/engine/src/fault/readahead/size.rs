//! How many pages are read around a slot.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How far around a slot it is worth reading. Races between threads cost a size that is too small
/// or too large.
#[derive(Debug, Default)]
pub struct ReadaheadSize {
    /// Pages read ahead that were touched since the last readahead.
    hits: AtomicU32,
    last: AtomicU32,
    /// The last slot, by its offset.
    before: AtomicU64,
}

impl ReadaheadSize {
    /// A page that was read ahead was touched.
    pub fn hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    /// Pages to read around a slot: a power of two up to `max`. Two for a neighbour of the last
    /// slot; more than were hit; at least half of the last size, so that a moment without hits does
    /// not end it.
    pub fn pages(&self, slot: u64, max: usize) -> usize {
        if max == 1 {
            return 1;
        }
        let (hits, before) = (self.hits.swap(0, Relaxed) as usize, self.before.swap(slot, Relaxed));
        let wanted = match hits {
            0 if slot.abs_diff(before) == 1 => 2,
            0 => 1,
            hits => (hits + 2).next_power_of_two(),
        };
        let pages = wanted.max(self.last.load(Relaxed) as usize / 2).min(max);
        self.last.store(pages as u32, Relaxed);
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_grows_with_hits_and_shrinks_without() {
        let size = ReadaheadSize::default();
        // Scattered slots: nothing is read around them.
        assert_eq!([10, 500, 90, 7000].map(|slot| size.pages(slot, 8)), [1, 1, 1, 1]);
        // Neighbours: a little, and more as it is wanted.
        assert_eq!(size.pages(7001, 8), 2);
        (0..3).for_each(|_| size.hit());
        assert_eq!(size.pages(100, 8), 8);
        (0..50).for_each(|_| size.hit());
        assert_eq!(size.pages(300, 8), 8);
        assert_eq!([900, 20, 4000, 8].map(|slot| size.pages(slot, 8)), [4, 2, 1, 1]);
        (0..50).for_each(|_| size.hit());
        assert_eq!(size.pages(4, 1), 1);
    }
}
