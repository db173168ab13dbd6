//! A table of 64-bit cells that costs memory for the groups of cells that are in use, wherever in
//! the table they are.
//!
//! A program may touch a page here and a page there, 2 MiB apart: it pays 128 bytes for the words
//! around each of them, where a plain table would take 4 KiB. So each group of cells has a *place*,
//! a number that says where its cells lie, and gets it when one of them is first written to. Groups
//! get their places in the order in which they come into use, and keep them.
//!
//! No locks: who finds a group without a place takes the next one and puts its number in, by
//! compare-and-swap. Who comes second gives back the one it took; where somebody has taken another
//! meanwhile, it stays unused.

use crate::base::sync::point;
use overspill_os::{Errno, table::SharedCells};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Cells of a group: two cache lines, which neighbours share, since folios have as many pages.
const GROUP: usize = 16;
/// Numbers of places that share a word: one has 32 bits.
const PLACES: usize = 2;
const PLACE_BITS: usize = 32;
/// Places beyond one for each group, for those that stay unused.
const SPARE: usize = 1 << 10;

/// Bytes of a place.
const GROUP_BYTES: u64 = GROUP as u64 * 8;

/// The table; as its cells, it is there for ever.
#[derive(Clone, Copy, Debug)]
pub struct SparseCells {
    /// Where each group lies: a number, 0 for nowhere yet.
    places: SharedCells,
    /// The groups by their places. That of number 0 is nobody's, and its first cell is the number
    /// that was taken last.
    cells: SharedCells,
    len: usize,
}

impl SparseCells {
    /// A table of `len` zeros.
    pub fn new(len: usize) -> Result<SparseCells, Errno> {
        let groups = len.div_ceil(GROUP);
        let places = SharedCells::anonymous(groups.div_ceil(PLACES))?;
        let cells = SharedCells::anonymous((1 + groups + SPARE) * GROUP)?;
        Ok(SparseCells { places, cells, len })
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the groups in use take, and the places of the first `len` cells.
    pub fn used_bytes(&self, len: usize) -> u64 {
        let groups = len.div_ceil(GROUP) as u64;
        self.taken().load(Relaxed) * GROUP_BYTES + groups * PLACE_BITS as u64 / 8
    }

    /// A cell, if its group is in use: else it is zero.
    pub fn find(&self, index: usize) -> Option<&AtomicU64> {
        let (word, shift) = self.place_of(index / GROUP);
        let place = (word.load(Acquire) >> shift) as u32;
        (place != 0).then(|| self.cell(place, index))
    }

    /// A cell, whose group is in use from now on.
    pub fn get(&self, index: usize) -> &AtomicU64 {
        self.find(index).unwrap_or_else(|| self.cell(self.settle(index / GROUP), index))
    }

    fn taken(&self) -> &AtomicU64 {
        &self.cells[0]
    }

    fn cell(&self, place: u32, index: usize) -> &AtomicU64 {
        &self.cells[place as usize * GROUP + index % GROUP]
    }

    fn place_of(&self, group: usize) -> (&AtomicU64, usize) {
        (&self.places[group / PLACES], group % PLACES * PLACE_BITS)
    }

    /// The place of a group, which gets one if it has none.
    fn settle(&self, group: usize) -> u32 {
        let (word, shift) = self.place_of(group);
        point();
        let own = self.taken().fetch_add(1, Relaxed) + 1;
        assert!((own as usize) < self.cells.len() / GROUP, "there is a place for every group");
        let put = |word: u64| ((word >> shift) as u32 == 0).then_some(word | own << shift);
        point();
        match word.fetch_update(AcqRel, Acquire, put) {
            Ok(_) => own as u32,
            Err(word) => {
                point();
                let _ = self.taken().compare_exchange(own, own - 1, Relaxed, Relaxed);
                (word >> shift) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn groups_far_apart_share_memory() {
        let table = SparseCells::new(1 << 30).unwrap();
        let all = || (0..1000).map(|at| at << 20 | 5);
        assert!(all().all(|at| table.find(at).is_none()));
        all().for_each(|at| table.get(at).store(at as u64 + 1, Relaxed));
        assert!(all().all(|at| table.find(at).unwrap().load(Relaxed) == at as u64 + 1));
        // Neighbours have come into use with them, as zeros; others have not.
        assert_eq!(table.find(6).map(|cell| cell.load(Relaxed)), Some(0));
        assert!(table.find(GROUP).is_none());
        assert_eq!((table.used_bytes(0), table.len()), (128_000, 1 << 30));
    }

    #[test]
    fn threads_agree_on_where_a_cell_is() {
        let table = SparseCells::new(GROUP * 1000).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let cells = (0..GROUP * 1000).step_by(3);
                    cells.for_each(|at| _ = table.get(at).fetch_add(1, Relaxed));
                });
            }
        });
        let values = (0..GROUP * 1000).map(|at| table.get(at).load(Relaxed));
        assert!(values.enumerate().all(|(at, value)| value == if at % 3 == 0 { 4 } else { 0 }));
        let unused = table.used_bytes(0) / GROUP_BYTES - 1000;
        assert!(unused < SPARE as u64, "{unused} places are nobody's");
    }

    proptest! {
        #[test]
        fn cells_are_as_in_a_map(
            steps in prop::collection::vec((0usize..2000, any::<u64>(), any::<bool>()), 1..200)
        ) {
            let table = SparseCells::new(2000).unwrap();
            let mut model = HashMap::new();
            for (at, value, writes) in steps {
                if writes {
                    table.get(at).store(value, Relaxed);
                    model.insert(at, value);
                }
                let found = table.find(at).map_or(0, |cell| cell.load(Relaxed));
                prop_assert_eq!(found, model.get(&at).copied().unwrap_or(0));
            }
            let groups: std::collections::HashSet<_> = model.keys().map(|at| at / GROUP).collect();
            prop_assert_eq!(table.used_bytes(0), groups.len() as u64 * GROUP_BYTES);
        }
    }
}
