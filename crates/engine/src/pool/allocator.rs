//! The allocator of a pool, for collections of other crates.

use super::{MapFlags, Pool};
use overspill_os::Errno;
use overspill_os::heap::{Heap, Mappings};
use overspill_os::region::OwnedRange;
use overspill_os::vm::Prot;

/// An allocator of `allocator-api2`: [`Pool::allocator`]. Clones share their memory.
pub type PoolAllocator<'a> = Heap<&'a Pool>;

impl Pool {
    /// An allocator for collections that take one of `allocator-api2`, with a heap of its own in
    /// memory of the pool. Small blocks share pages, large ones grow without being copied.
    ///
    /// ```
    /// # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
    /// use allocator_api2::vec::Vec;
    ///
    /// let pool = overspill::Pool::with_memory(16 << 20, Some("/var/tmp".as_ref()))?;
    /// let mut lines = Vec::new_in(pool.allocator());
    /// for number in 0..100_000 {
    ///     let mut line = Vec::new_in(lines.allocator().clone());
    ///     line.extend_from_slice(format!("this is line {number}").as_bytes());
    ///     lines.push(line);
    /// }
    /// assert_eq!(&lines[4711][..], b"this is line 4711");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocator(&self) -> PoolAllocator<'_> {
        Heap::new(self)
    }
}

impl Mappings for &Pool {
    fn map(&self, len: usize) -> Result<OwnedRange, Errno> {
        let start = self.mmap(None, len, Prot::READ_WRITE, MapFlags::default())?;
        Ok(OwnedRange::new(start..start + len))
    }

    fn remap(&self, old: &OwnedRange, len: usize, moves: bool) -> Result<OwnedRange, Errno> {
        let start = self.mremap(old.range(), len, moves.into(), 0)?;
        Ok(OwnedRange::new(start..start + len))
    }

    fn unmap(&self, range: OwnedRange) -> bool {
        self.munmap(range.range()).is_ok()
    }
}
