//! The entries of a range by age: a doubly linked list through a cell a slot, oldest first.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots of a range: 64 MiB of swap space.
pub const RANGE_SLOTS: usize = 1 << RANGE_BITS;
const RANGE_BITS: u32 = 14;
/// A link is an index in the range and one more bit for [`NONE`].
const LINK_BITS: u32 = RANGE_BITS + 1;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
/// No slot.
const NONE: usize = RANGE_SLOTS;
/// The rest of a cell is the time at which the entry was made, a count of pages.
const TIME_BITS: u32 = u64::BITS - 2 * LINK_BITS;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// A list; its range's lock is held by whoever changes it or follows it.
pub struct List<'a> {
    /// Older and newer neighbour and time of each slot of the range.
    pub links: &'a [AtomicU64],
    /// Oldest and newest, each one more than its index, so that zero is an empty list; and the time of the oldest.
    pub ends: &'a AtomicU64,
}

/// Two links and a time in a word.
fn pack(older: usize, newer: usize, time: u64) -> u64 {
    older as u64 | (newer as u64) << LINK_BITS | (time & TIME_MASK) << (2 * LINK_BITS)
}

fn unpack(word: u64) -> (usize, usize, u64) {
    ((word & LINK_MASK) as usize, (word >> LINK_BITS & LINK_MASK) as usize, word >> (2 * LINK_BITS))
}

impl List<'_> {
    fn link(&self, index: usize) -> (usize, usize, u64) {
        unpack(self.links[index].load(Relaxed))
    }

    fn set_link(&self, index: usize, older: usize, newer: usize, time: u64) {
        self.links[index].store(pack(older, newer, time), Relaxed);
    }

    /// Oldest and newest.
    fn ends(&self) -> (usize, usize) {
        let (oldest, newest, _) = unpack(self.ends.load(Relaxed));
        (oldest.checked_sub(1).unwrap_or(NONE), newest.checked_sub(1).unwrap_or(NONE))
    }

    fn set_ends(&self, oldest: usize, newest: usize) {
        let word = if oldest == NONE { 0 } else { pack(oldest + 1, newest + 1, self.link(oldest).2) };
        self.ends.store(word, Relaxed);
    }

    /// How long ago the oldest entry was made, `now` being the time; `None` when there is none. A guess without the lock.
    pub fn age(&self, now: u64) -> Option<u64> {
        let (oldest, _, time) = unpack(self.ends.load(Relaxed));
        (oldest != 0).then_some(now.wrapping_sub(time) & TIME_MASK)
    }

    /// Adds an entry as the newest.
    pub fn push(&self, index: usize, time: u64) {
        let (oldest, newest) = self.ends();
        self.set_link(index, newest, NONE, time);
        if newest != NONE {
            let (older, _, time) = self.link(newest);
            self.set_link(newest, older, index, time);
        }
        self.set_ends(if oldest == NONE { index } else { oldest }, index);
    }

    /// Takes an entry out.
    pub fn unlink(&self, index: usize) {
        let (older, newer, _) = self.link(index);
        let (mut oldest, mut newest) = self.ends();
        if older == NONE {
            oldest = newer;
        } else {
            let (before, _, time) = self.link(older);
            self.set_link(older, before, newer, time);
        }
        if newer == NONE {
            newest = older;
        } else {
            let (_, after, time) = self.link(newer);
            self.set_link(newer, older, after, time);
        }
        self.set_ends(oldest, newest);
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let next = |index: usize| (index != NONE).then_some(index);
        std::iter::successors(next(self.ends().0), move |index| next(self.link(*index).1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn a_list_is_a_queue_with_removal(ops in proptest::collection::vec((any::<bool>(), 0..RANGE_SLOTS), 1..200)) {
            let links: Vec<AtomicU64> = (0..RANGE_SLOTS).map(|_| AtomicU64::new(0)).collect();
            let ends = AtomicU64::new(0);
            let list = List { links: &links, ends: &ends };
            let mut model: VecDeque<(usize, u64)> = VecDeque::new();
            for (time, (push, index)) in ops.into_iter().enumerate() {
                // Few slots, so that they come again.
                let index = if index % 3 == 0 { index % 5 } else { RANGE_SLOTS - 1 - index % 7 };
                let at = model.iter().position(|(i, _)| *i == index);
                match at {
                    Some(at) if !push => {
                        list.unlink(index);
                        model.remove(at);
                    }
                    None if push => {
                        list.push(index, time as u64);
                        model.push_back((index, time as u64));
                    }
                    _ => {}
                }
                prop_assert!(list.iter().eq(model.iter().map(|(index, _)| *index)));
                prop_assert_eq!(list.age(1000), model.front().map(|(_, time)| 1000 - time));
            }
        }
    }
}
