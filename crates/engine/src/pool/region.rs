//! Memory of a pool: a region.

use super::refusal::RegionError;
use super::{MapFlags, Plain, Pool};
use crate::units::PAGE_SIZE;
use overspill_os::region::OwnedRange;
use overspill_os::vm::{Prot, advice};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// Memory of a pool, dropped with this value. It is a slice of its values, of bytes unless others
/// were asked for ([`Pool::map_of`]).
#[derive(Debug)]
pub struct Region<'a, T = u8> {
    memory: OwnedRange,
    pool: &'a Pool,
    values: PhantomData<T>,
}

impl Pool {
    /// A region of `len` zero bytes, which may be larger than the pool's memory.
    ///
    /// # Errors
    /// [`RegionError::NoAddresses`] when the window has no room for it, [`RegionError::Empty`] for
    /// none.
    pub fn map(&self, len: usize) -> Result<Region<'_>, RegionError> {
        self.map_of(len)
    }

    /// A region of `count` values, zero at first.
    ///
    /// ```
    /// # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
    /// let pool = overspill::Pool::with_memory(16 << 20, Some("/var/tmp".as_ref()))?;
    /// let mut values = pool.map_of::<u64>(4 << 20)?; // 32 MiB
    /// for (i, value) in values.iter_mut().enumerate() {
    ///     *value = i as u64;
    /// }
    /// assert_eq!(values.iter().sum::<u64>(), (4 << 20) * ((4 << 20) - 1) / 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::map`].
    pub fn map_of<T: Plain>(&self, count: usize) -> Result<Region<'_, T>, RegionError> {
        Region::map(self, count)
    }
}

impl<'a, T: Plain> Region<'a, T> {
    /// A new one of so many values.
    fn map(pool: &'a Pool, count: usize) -> Result<Region<'a, T>, RegionError> {
        let len = Self::len_of(count);
        let start = pool.mmap(None, len, Prot::READ_WRITE, MapFlags::default());
        let start = start.map_err(|errno| RegionError::of_room(pool, len, errno))?;
        Ok(Region { memory: OwnedRange::new(start..start + len), pool, values: PhantomData })
    }

    /// The bytes of so many values; more than any window has where that is no number.
    fn len_of(count: usize) -> usize {
        count.saturating_mul(size_of::<T>())
    }

    /// Has `count` values from now on: those that there are stay, others are zero. The memory may
    /// move, which copies nothing.
    ///
    /// # Errors
    /// As [`Pool::map`]; then it is as before.
    pub fn resize(&mut self, count: usize) -> Result<(), RegionError> {
        const MAY_MOVE: u32 = 1;
        let (old, len) = (self.memory.range(), Self::len_of(count));
        let start = self.pool.mremap(old, len, MAY_MOVE, 0);
        let start = start.map_err(|errno| RegionError::of_room(self.pool, len, errno))?;
        self.memory = OwnedRange::new(start..start + len);
        Ok(())
    }
}

impl<T: Plain> Deref for Region<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.as_slice()
    }
}

impl<T: Plain> DerefMut for Region<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_mut_slice()
    }
}

impl<T> Region<'_, T> {
    /// The memory as a slice of plain values.
    pub fn as_slice<V: Plain>(&self) -> &[V] {
        self.memory.as_slice()
    }

    /// The memory as a slice of plain values, to write.
    pub fn as_mut_slice<V: Plain>(&mut self) -> &mut [V] {
        self.memory.as_mut_slice()
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        self.memory.range()
    }

    /// The addresses of a range of its bytes.
    fn part(&self, bytes: Range<usize>) -> Result<Range<usize>, RegionError> {
        let all = self.range();
        let inside = bytes.start <= bytes.end && bytes.end <= all.len();
        // Whole pages: what lies beside shares their fate.
        let start = all.start + bytes.start / PAGE_SIZE * PAGE_SIZE;
        let outside = || RegionError::Outside { bytes: bytes.clone(), len: all.len() };
        inside.then(|| start..all.start + bytes.end).ok_or_else(outside)
    }

    /// Says what is going to happen to the pages of a range of bytes; their content stays.
    ///
    /// # Errors
    /// [`RegionError::Outside`], or [`RegionError::Pinned`] where such pages are to go.
    pub fn advise(&self, bytes: Range<usize>, what: Advice) -> Result<(), RegionError> {
        let what = match what {
            Advice::Cold => advice::COLD,
            Advice::PageOut => advice::PAGEOUT,
            Advice::WillNeed => advice::WILLNEED,
        };
        self.pool.madvise(self.part(bytes)?, what).map_err(RegionError::of_advice)
    }

    /// Brings stored pages of a range of bytes into memory, as many as there is room for without
    /// reclaim: [`Advice::WillNeed`].
    ///
    /// # Errors
    /// [`RegionError::Outside`].
    pub fn prefetch(&self, bytes: Range<usize>) -> Result<(), RegionError> {
        self.advise(bytes, Advice::WillNeed)
    }

    /// Brings the pages of a range of bytes into memory and keeps them there, as mlock does.
    ///
    /// # Errors
    /// [`RegionError::Outside`]; [`RegionError::PinsTooMuch`] when more than half of the budget
    /// would be pinned, or more than RLIMIT_MEMLOCK allows.
    pub fn pin(&self, bytes: Range<usize>) -> Result<(), RegionError> {
        let pages = self.part(bytes)?;
        let len = pages.len();
        self.pool.mlock(pages, false).map_err(|errno| RegionError::of_pin(len, errno))
    }

    /// Lets them go again.
    ///
    /// # Errors
    /// [`RegionError::Outside`].
    pub fn unpin(&self, bytes: Range<usize>) -> Result<(), RegionError> {
        self.pool.munlock(self.part(bytes)?).map_err(RegionError::System)
    }
}

/// What is going to happen to pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// They are not needed soon: they leave first when room is needed (MADV_COLD).
    Cold,
    /// They are not needed for long: they leave now (MADV_PAGEOUT).
    PageOut,
    /// They are needed soon (MADV_WILLNEED).
    WillNeed,
}

impl<T> Drop for Region<'_, T> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        self.pool.check();
        let _ = self.pool.munmap(self.memory.range());
    }
}
