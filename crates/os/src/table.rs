//! Tables of zeros that cost memory only where they are used.

use crate::units::{Errno, PAGE_SIZE};
use crate::vm;
use rustix::fd::BorrowedFd;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Types of which all bytes zero are a value, and every byte pattern is one.
///
/// # Safety
/// Both must be so, the alignment at most that of a page, and nothing is to be done when a value is
/// dropped.
pub unsafe trait Plain {}
// SAFETY: integers, atomic or not, and arrays of them.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU8 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU64 {}
// SAFETY: as above.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A slice of zeros in a mapping of its own: not part of the heap, whose allocator might fill it
/// in, and not counted by the system before it is touched.
#[derive(Debug)]
pub struct ZeroTable<T: Plain> {
    base: usize,
    len: usize,
    of: PhantomData<Box<[T]>>,
}

impl<T: Plain> ZeroTable<T> {
    /// A table of `len` zeros.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for it.
    pub fn new(len: usize) -> Result<ZeroTable<T>, Errno> {
        Ok(ZeroTable { base: vm::map_metadata(Self::bytes(len))?, len, of: PhantomData })
    }

    /// Sets all to zero, and gives their memory back.
    pub fn forget(&mut self) {
        let (base, bytes) = (self.base, Self::bytes(self.len));
        // SAFETY: the mapping is so long; self is borrowed for writing; zeros are values (Plain).
        vm::forget(base, bytes, || unsafe { (base as *mut u8).write_bytes(0, bytes) });
    }

    /// Size of the mapping: the kernel refuses an empty one.
    fn bytes(len: usize) -> usize {
        (len * size_of::<T>()).max(1)
    }
}

impl ZeroTable<AtomicU64> {
    /// Gives back the memory of the whole pages in a part that says nothing any more: each of its
    /// words is as it was, or zero.
    pub fn release(&self, part: Range<usize>) {
        let at = |index: usize| self.base + index * size_of::<AtomicU64>();
        assert!(part.end <= self.len, "{part:?} of {} words", self.len);
        let pages = at(part.start).next_multiple_of(PAGE_SIZE)..at(part.end) & !(PAGE_SIZE - 1);
        if !pages.is_empty() {
            // Where that fails they keep their memory.
            let _ = vm::advise(pages, vm::MADV_DONTNEED);
        }
    }
}

impl<T: Plain> Deref for ZeroTable<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: 1. the mapping has room for `len` values, page aligned; 2. zeros, and whatever
        // was written since, are values (Plain); 3. it is unmapped only when self goes.
        unsafe { std::slice::from_raw_parts(self.base as *const T, self.len) }
    }
}

impl<T: Plain> DerefMut for ZeroTable<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; self is borrowed for writing, so there is no other reference.
        unsafe { std::slice::from_raw_parts_mut(self.base as *mut T, self.len) }
    }
}

impl<T: Plain> Drop for ZeroTable<T> {
    fn drop(&mut self) {
        let _ = vm::unmap(self.base..self.base + Self::bytes(self.len));
    }
}

/// Room for a page, which costs memory from its first use until it is forgotten.
#[derive(Debug)]
pub struct PageRoom(ZeroTable<[u8; PAGE_SIZE]>);

impl PageRoom {
    /// A page of zeros; errors as of [`ZeroTable::new`].
    pub fn new() -> Result<PageRoom, Errno> {
        ZeroTable::new(1).map(PageRoom)
    }

    /// Sets it to zeros, and gives its memory back.
    pub fn forget(&mut self) {
        self.0.forget();
    }
}

impl Deref for PageRoom {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &[u8; PAGE_SIZE] {
        &self.0[0]
    }
}

impl DerefMut for PageRoom {
    fn deref_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        &mut self.0[0]
    }
}

/// A [`ZeroTable`] of 32-bit words that threads share.
#[derive(Debug)]
pub struct AtomicTable(ZeroTable<u32>);

impl AtomicTable {
    /// A table of `len` zeros; errors as of [`ZeroTable::new`].
    pub fn new(len: usize) -> Result<AtomicTable, Errno> {
        ZeroTable::new(len).map(AtomicTable)
    }

    /// Sets all words to zero, and gives their memory back.
    pub fn forget(&self) {
        vm::forget(self.0.base, ZeroTable::<u32>::bytes(self.0.len), || {
            self.iter().for_each(|word| word.store(0, Relaxed))
        });
    }
}

impl Deref for AtomicTable {
    type Target = [AtomicU32];
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: 1. as in `ZeroTable::deref`; an AtomicU32 lies in memory as a u32 does; 2. nobody
        // has the table as plain words: it is private and only ever lent as this.
        unsafe { std::slice::from_raw_parts(self.0.base as *const AtomicU32, self.0.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_zero_and_keeps_what_is_written() {
        let mut table: ZeroTable<[u32; 2]> = ZeroTable::new(100_000).unwrap();
        assert!(table.iter().all(|pair| *pair == [0, 0]));
        table[99_999] = [1, 2];
        assert_eq!((table.len(), table[99_999], table[0]), (100_000, [1, 2], [0, 0]));
        assert!(ZeroTable::<u8>::new(0).unwrap().is_empty());
    }

    #[test]
    fn threads_share_an_atomic_table() {
        let table = AtomicTable::new(10_000).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| table.iter().for_each(|word| _ = word.fetch_add(1, Relaxed)));
            }
        });
        assert!(table.iter().all(|word| word.load(Relaxed) == 4));
        table.forget();
        assert!(table.iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn a_table_larger_than_memory_costs_nothing_before_it_is_used() {
        let mut table: ZeroTable<u64> = ZeroTable::new(1 << 37).unwrap();
        table[1 << 36] = 7;
        assert_eq!(table[1 << 36], 7);
    }
}

/// Memory of atomic cells that lives as long as the process: page words, extent tables, statistics.
///
/// Anonymous or a shared mapping of a file; zero at first; touched lazily, so a table over a large
/// window costs only what is used of it.
#[derive(Clone, Copy)]
pub struct SharedCells {
    cells: &'static [AtomicU64],
}

impl SharedCells {
    /// A private table of `len` cells.
    pub fn anonymous(len: usize) -> Result<SharedCells, Errno> {
        let base = vm::map_metadata(len * 8)?;
        // SAFETY: the mapping is len * 8 bytes, page aligned, zeroed (a valid AtomicU64) and never
        // unmapped.
        let cells = unsafe { std::slice::from_raw_parts(base as *const AtomicU64, len) };
        Ok(SharedCells { cells })
    }

    /// Sets all cells of a private table to zero, and gives their memory back.
    pub fn forget(&self) {
        let clear = || self.cells.iter().for_each(|cell| cell.store(0, Relaxed));
        vm::forget(self.cells.as_ptr() as usize, self.cells.len() * 8, clear);
    }

    /// A table of `len` cells that children of a fork share with their parent.
    pub fn inherited(len: usize) -> Result<SharedCells, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mm::mmap_anonymous(vm::own_place(len * 8), len * 8, access, MapFlags::SHARED)?
        } as usize;
        // SAFETY: as in `anonymous`; other processes access the cells with atomic operations only.
        let cells = unsafe { std::slice::from_raw_parts(base as *const AtomicU64, len) };
        Ok(SharedCells { cells })
    }

    /// A table of `len` cells shared with whoever maps the same file; the file must be at least
    /// that long.
    pub fn shared(file: BorrowedFd<'_>, len: usize) -> Result<SharedCells, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mm::mmap(
                vm::own_place(len * 8),
                len * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        } as usize;
        // SAFETY: as in `anonymous`; other processes access the cells with atomic operations only.
        let cells = unsafe { std::slice::from_raw_parts(base as *const AtomicU64, len) };
        Ok(SharedCells { cells })
    }

    /// All cells, which are there for ever.
    pub fn all(self) -> &'static [AtomicU64] {
        self.cells
    }

    /// Puts a file (or, without one, private memory) behind the same cells. The values of the first
    /// `keep` stay, the others are what the file holds, or zero.
    ///
    /// A child of a fork does this, so that it no longer writes into its parent's file.
    pub fn replace_backing(&self, file: Option<BorrowedFd<'_>>, keep: usize) -> Result<(), Errno> {
        let values: Vec<u64> = self.iter().take(keep).map(|cell| cell.load(Relaxed)).collect();
        let (base, len) = (self.cells.as_ptr() as usize, self.cells.len() * 8);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the new mapping covers exactly the old one, page aligned, and holds valid cells
        // (zeros) at every moment; only this thread of the child exists.
        unsafe {
            match file {
                Some(file) => mm::mmap(
                    base as *mut _,
                    len,
                    access,
                    MapFlags::SHARED | MapFlags::FIXED,
                    file,
                    0,
                )?,
                None => mm::mmap_anonymous(
                    base as *mut _,
                    len,
                    access,
                    MapFlags::PRIVATE | MapFlags::FIXED,
                )?,
            };
        }
        self.iter().zip(values).for_each(|(cell, value)| cell.store(value, Relaxed));
        Ok(())
    }
}

impl Deref for SharedCells {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        self.cells
    }
}

impl fmt::Debug for SharedCells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedCells({})", self.cells.len())
    }
}
