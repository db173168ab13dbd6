//! The entries of a range by age: a doubly linked list through a cell a slot, oldest first.
//!
//! How old the oldest entry is, which is to be compared with that of other ranges, is known
//! roughly: a cell has a few bits for the *epoch* in which its entry was made, and a range says
//! when its epochs began. A new one begins after so many entries, if its number is free: as entries
//! are in order of age, those of the oldest's epoch are the only ones in the way. Until they have
//! gone the last epoch goes on, and what is made in it looks older than it is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Slots of a range: 64 MiB of swap space.
pub const RANGE_SLOTS: usize = 1 << RANGE_BITS;
const RANGE_BITS: u32 = 14;
const INDEX_MASK: u32 = (1 << RANGE_BITS) - 1;
/// What is left of a cell after two links.
const EPOCH_BITS: u32 = u32::BITS - 2 * RANGE_BITS;
/// Epochs that are told apart.
const EPOCHS: usize = 1 << EPOCH_BITS;
/// Entries that are made in one. All entries of a full range are of as many epochs as there are.
const EPOCH_ENTRIES: u64 = (RANGE_SLOTS / EPOCHS) as u64;

/// Cells that a range has for its list. The first: oldest and newest, each one more than its index,
/// so that zero is an empty list, and how many entries have been made in the newest's epoch. The
/// others: when each epoch began, a count of pages.
pub const HEAD_CELLS: usize = 1 + EPOCHS;

/// A list; its range's lock is held by whoever changes it or follows it.
pub struct List<'a> {
    /// Older and newer neighbour of each slot of the range, an end being its own; and its epoch.
    pub links: &'a [AtomicU32],
    /// [`HEAD_CELLS`] of the range.
    pub head: &'a [AtomicU64],
}

/// A cell, as numbers.
#[derive(Clone, Copy)]
struct Link {
    older: usize,
    newer: usize,
    epoch: usize,
}

impl List<'_> {
    fn link(&self, index: usize) -> Link {
        let word = self.links[index].load(Relaxed);
        let part = |shift: u32| (word >> shift & INDEX_MASK) as usize;
        Link { older: part(0), newer: part(RANGE_BITS), epoch: (word >> (2 * RANGE_BITS)) as usize }
    }

    fn set_link(&self, index: usize, Link { older, newer, epoch }: Link) {
        let word = older | newer << RANGE_BITS | epoch << (2 * RANGE_BITS);
        self.links[index].store(word as u32, Relaxed);
    }

    /// Oldest and newest, and entries made in the newest's epoch; `None` when the list is empty.
    fn ends(&self) -> Option<(usize, usize, u64)> {
        let word = self.head[0].load(Relaxed);
        let part = |shift: u32| (word >> shift) as usize & ((1 << (RANGE_BITS + 1)) - 1);
        Some((
            part(0).checked_sub(1)?,
            part(RANGE_BITS + 1).checked_sub(1)?,
            word >> (2 * (RANGE_BITS + 1)),
        ))
    }

    fn set_ends(&self, oldest: usize, newest: usize, made: u64) {
        let (oldest, newest) = (oldest as u64 + 1, newest as u64 + 1);
        self.head[0]
            .store(oldest | newest << (RANGE_BITS + 1) | made << (2 * (RANGE_BITS + 1)), Relaxed);
    }

    /// How long ago the oldest entry was made, `now` being the time, or longer; `None` when there
    /// is none. A guess without the lock.
    pub fn age(&self, now: u64) -> Option<u64> {
        let (oldest, ..) = self.ends()?;
        Some(now.saturating_sub(self.head[1 + self.link(oldest).epoch].load(Relaxed)))
    }

    /// Adds an entry as the newest.
    pub fn push(&self, index: usize, time: u64) {
        let begin = |epoch: usize| self.head[1 + epoch].store(time, Relaxed);
        let Some((oldest, newest, mut made)) = self.ends() else {
            begin(0);
            self.set_link(index, Link { older: index, newer: index, epoch: 0 });
            return self.set_ends(index, index, 1);
        };
        let last = self.link(newest);
        let (mut epoch, next) = (last.epoch, (last.epoch + 1) % EPOCHS);
        if made >= EPOCH_ENTRIES && next != self.link(oldest).epoch {
            begin(next);
            (epoch, made) = (next, 0);
        }
        self.set_link(index, Link { older: newest, newer: index, epoch });
        self.set_link(newest, Link { newer: index, ..last });
        self.set_ends(oldest, index, (made + 1).min(EPOCH_ENTRIES));
    }

    /// Takes an entry out.
    pub fn unlink(&self, index: usize) {
        let Link { older, newer, .. } = self.link(index);
        let Some((oldest, newest, made)) = self.ends() else {
            unreachable!("an entry of an empty list")
        };
        if oldest == newest {
            return self.head[0].store(0, Relaxed);
        }
        let (is_oldest, is_newest) = (index == oldest, index == newest);
        // An end is its own neighbour, and so is what becomes one.
        if !is_oldest {
            self.set_link(
                older,
                Link { newer: if is_newest { older } else { newer }, ..self.link(older) },
            );
        }
        if !is_newest {
            self.set_link(
                newer,
                Link { older: if is_oldest { newer } else { older }, ..self.link(newer) },
            );
        }
        let last = if is_newest { older } else { newest };
        // Where none of the newest's epoch is left, the one before has ended.
        let has_ended = self.link(last).epoch != self.link(newest).epoch;
        self.set_ends(
            if is_oldest { newer } else { oldest },
            last,
            if has_ended { EPOCH_ENTRIES } else { made },
        );
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let first = self.ends().map(|(oldest, ..)| oldest);
        std::iter::successors(first, |index| {
            Some(self.link(*index).newer).filter(|newer| newer != index)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Cells for an empty list.
    fn cells() -> (Vec<AtomicU32>, [AtomicU64; HEAD_CELLS]) {
        ((0..RANGE_SLOTS).map(|_| AtomicU32::new(0)).collect(), Default::default())
    }

    proptest! {
        #[test]
        fn a_list_is_a_queue_with_removal(
            ops in proptest::collection::vec((any::<bool>(), 0..RANGE_SLOTS), 1..200),
        ) {
            let (links, head) = cells();
            let list = List { links: &links, head: &head };
            let mut model: VecDeque<(usize, u64)> = VecDeque::new();
            let mut began = 0;
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
                        began = if model.is_empty() { time as u64 } else { began };
                        list.push(index, time as u64);
                        model.push_back((index, time as u64));
                    }
                    _ => {}
                }
                prop_assert!(list.iter().eq(model.iter().map(|(index, _)| *index)));
                prop_assert_eq!(list.age(1000), model.front().map(|_| 1000 - began));
            }
        }
    }

    /// Pushes all slots once, a page leaving with each, then takes them out and pushes some again:
    /// `again` of each 4.
    fn ages(again: usize) -> impl Iterator<Item = (u64, u64)> {
        let (links, head) = cells();
        let mut times: VecDeque<(usize, u64)> =
            (0..RANGE_SLOTS).map(|slot| (slot, 10 + slot as u64)).collect();
        let list = List { links: &links, head: &head };
        times.iter().for_each(|(slot, time)| list.push(*slot, *time));
        let mut now = times.len() as u64 + 10;
        let mut seen = Vec::new();
        while let Some((slot, time)) = times.pop_front() {
            seen.push((list.age(now).unwrap(), now - time));
            list.unlink(slot);
            if slot % 4 < again && now < 8 * RANGE_SLOTS as u64 {
                list.push(slot, now);
                times.push_back((slot, now));
            }
            now += 1;
        }
        assert_eq!(list.age(now), None);
        seen.into_iter()
    }

    #[test]
    fn the_oldest_looks_as_old_as_it_is_or_an_epoch_older() {
        for again in 0..=4 {
            // The pages that leave while so many entries are made.
            let epoch = EPOCH_ENTRIES * 4 / again.clamp(1, 4) as u64;
            assert!(
                ages(again).all(|(looks, is)| (is..is + 2 * epoch).contains(&looks)),
                "{again} of 4"
            );
        }
    }

    #[test]
    fn an_epoch_does_not_go_on_after_the_next_one() {
        let (links, head) = cells();
        let list = List { links: &links, head: &head };
        (0..EPOCH_ENTRIES as usize).for_each(|slot| list.push(slot, 10));
        // The second, of which one is left, and then none.
        (0..2).for_each(|more| list.push(EPOCH_ENTRIES as usize + more, 20));
        (0..2).for_each(|more| list.unlink(EPOCH_ENTRIES as usize + more));
        list.push(RANGE_SLOTS - 1, 30);
        (0..EPOCH_ENTRIES as usize).for_each(|slot| list.unlink(slot));
        assert_eq!(list.age(100), Some(70));
    }

    #[test]
    fn while_an_old_entry_stays_newer_ones_share_the_last_epoch() {
        let (links, head) = cells();
        let list = List { links: &links, head: &head };
        list.push(0, 1);
        list.push(2, 2);
        let last = 10 * RANGE_SLOTS as u64;
        (3..=last).for_each(|time| {
            let (new, old) = if time % 2 == 1 { (1, 2) } else { (2, 1) };
            list.push(new, time);
            list.unlink(old);
            assert_eq!(list.age(time), Some(time - 1));
        });
        list.unlink(0);
        assert!(list.age(last).is_some_and(|age| (8 * RANGE_SLOTS as u64..last).contains(&age)));
        // Then epochs begin again.
        list.push(3, last);
        list.unlink(2);
        assert_eq!(list.age(last), Some(0));
    }
}
