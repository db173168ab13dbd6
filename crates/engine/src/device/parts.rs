//! Parts of an unlinked file: swap space for a child of a fork that may not make a file of its own.
//!
//! A child opens the job's file anew, or makes one of its own in the swap directory, as its parent
//! did. Where it cannot (it has become another user, or has another root directory), it goes on in
//! a part of the file that its parent has open: a range of bytes far behind those that the maker of
//! the file uses. Files are sparse, so a part costs disk space only where it is written.
//!
//! Which parts are taken is in a table in memory that a process shares with all its descendants.
//! The parent takes one for each child before the fork, and gives it back when the child and its
//! descendants are gone, along with those that they took. What nobody is left to give back is gone
//! with the file. No locks: a part is taken by compare-and-swap. A file that other processes use
//! too has several such tables; there a part is acquired besides, by a lock on its bytes that
//! parent and child both hold.

use super::block_io::BlockIo;
use crate::units::Bytes;
use overspill_os::io::{File, Lock};
use overspill_os::uring::Op;
use overspill_os::{Errno, table::SharedCells};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Where the parts begin: behind the largest range that the maker of a file uses.
const BEGIN: u64 = super::open::DIRECTORY_MAX.0;
/// Bytes of a part: 16 GiB.
pub const PART: Bytes = Bytes(16 << 30);
/// Parts of a file, its maker's included: together they end below 16 TiB, the largest file of ext4.
const PARTS: usize = 1000;
/// Parts that are asked for at a time where other tables have many.
const TRIES: usize = 64;
const _: () = assert!(BEGIN + PARTS as u64 * PART.0 < 16 << 40);

/// The parts of a file, and the one that this process uses.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// For each part: 0 while it is free, else 1 + the part of the process that has taken it.
    taken: SharedCells,
    /// 0 is the maker's.
    own: usize,
    /// Whether the file has other tables, too.
    shared: bool,
}

impl Parts {
    /// Of a file that this process has opened, and others too if it is `shared`.
    pub fn new(shared: bool) -> Result<Parts, Errno> {
        Ok(Parts { taken: SharedCells::inherited(PARTS)?, own: 0, shared })
    }

    /// For the child that part `own` was taken for.
    pub fn of_child(self, own: usize) -> Parts {
        Parts { own, ..self }
    }

    /// Takes a part of `file` for a child; `None` when there is none left.
    pub fn take(&self, file: &File) -> Option<usize> {
        let owner = self.own as u64 + 1;
        let free =
            |cell: &usize| self.taken[*cell].compare_exchange(0, owner, AcqRel, Relaxed).is_ok();
        // Those that another table has stay taken.
        (1..PARTS).filter(free).take(TRIES).find(|part| self.acquire(*part, file))
    }

    /// Acquires a part that no other table has.
    fn acquire(&self, part: usize, file: &File) -> bool {
        let lock = |lock: Lock| file.try_lock(bytes(part), lock) == Ok(true);
        !self.shared || lock(Lock::Write) && lock(Lock::Read)
    }

    /// Has `file`, opened once more, hold the lock on a part, too.
    pub fn hold(&self, part: usize, file: &File) -> bool {
        !self.shared || file.try_lock(bytes(part), Lock::Read) == Ok(true)
    }

    /// Gives back a part of `file` that this process has taken, and what its user has taken in
    /// turn, and so on: a hole is made of each before another may have it.
    pub fn give_back(&self, part: usize, file: &File) {
        // Where holes cannot be made the disk space stays with the part.
        let _ = file.punch(bytes(part));
        if self.shared {
            let _ = file.unlock(bytes(part));
        }
        let taken =
            |by: usize| move |other: &usize| self.taken[*other].load(Acquire) == by as u64 + 1;
        (1..PARTS).filter(taken(part)).for_each(|other| self.give_back(other, file));
        self.taken[part].store(0, Release);
    }

    /// The bytes of the file that belong to this process's part.
    pub fn own_bytes(&self) -> Range<u64> {
        bytes(self.own)
    }
}

fn bytes(part: usize) -> Range<u64> {
    let end = BEGIN + part as u64 * PART.0;
    end.saturating_sub(if part == 0 { BEGIN } else { PART.0 })..end
}

/// A part of a file as a disk.
#[derive(Debug)]
pub struct PartIo {
    /// The whole file.
    pub io: Box<dyn BlockIo>,
    /// Where the part begins, in bytes.
    pub start: u64,
}

impl BlockIo for PartIo {
    fn file(&self) -> &File {
        self.io.file()
    }

    fn run(&self, ops: &mut [Op<'_>]) {
        ops.iter_mut().for_each(|op| op.offset += self.start);
        self.io.run(ops);
        ops.iter_mut().for_each(|op| op.offset -= self.start);
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Errno> {
        self.io.allocate(self.start + range.start..self.start + range.end)
    }

    fn discard(&self, range: Range<u64>) -> Result<(), Errno> {
        self.io.discard(self.start + range.start..self.start + range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (File, File) {
        // Not temp_dir(), which may be in memory.
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
        let file = File::anonymous_in(target.as_ref()).unwrap();
        let again = file.reopen().unwrap();
        (file, again)
    }

    #[test]
    fn parts_come_back_with_those_of_descendants() {
        let (file, _) = files();
        let parts = Parts::new(false).unwrap();
        let all: Vec<usize> = std::iter::from_fn(|| parts.take(&file)).collect();
        assert_eq!(all, (1..PARTS).collect::<Vec<_>>());
        let mut ranges: Vec<_> = (0..PARTS).map(bytes).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start) && ranges[0].start == 0);
        [7, 5].iter().for_each(|part| parts.give_back(*part, &file));
        // A child, with a child that has two.
        assert_eq!(parts.take(&file), Some(5));
        let child = parts.of_child(5);
        parts.give_back(900, &file);
        assert_eq!(child.take(&file), Some(7));
        let grandchild = child.of_child(7);
        parts.give_back(3, &file);
        assert_eq!([(); 3].map(|()| grandchild.take(&file)), [Some(3), Some(900), None]);
        parts.give_back(5, &file);
        let free = [(); 5].map(|()| parts.take(&file));
        assert_eq!(free, [Some(3), Some(5), Some(7), Some(900), None]);
    }

    #[test]
    fn a_part_of_a_shared_file_is_one_tables_until_nobody_holds_it() {
        let (ours, theirs) = files();
        let [our_parts, their_parts] = [(); 2].map(|()| Parts::new(true).unwrap());
        assert_eq!((our_parts.take(&ours), their_parts.take(&theirs)), (Some(1), Some(2)));
        // Our child, whose parent goes.
        let child = ours.reopen().unwrap();
        assert!(our_parts.hold(1, &child));
        drop(ours);
        let first_free = || Parts::new(true).unwrap().take(&theirs.reopen().unwrap());
        assert_eq!(first_free(), Some(3), "the child has the first");
        drop(child);
        assert_eq!(first_free(), Some(1));
    }
}
