//! A vector in memory of a pool.

use super::refusal::RegionError;
use super::{Plain, Pool, Region};
use std::ops::{Deref, DerefMut};

/// Fewest bytes of a vector that has any: addresses cost nothing until they are used.
const LEAST: usize = 2 << 20;

/// A vector of plain values in memory of a pool, which may become larger than the pool's budget. It
/// grows as [`Vec`] does, but nothing is copied when it moves.
///
/// ```
/// # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
/// let pool = overspill::Pool::with_memory(16 << 20, Some("/var/tmp".as_ref()))?;
/// let mut values = pool.vec::<u64>();
/// for i in 0..8 << 20 {
///     values.push(i * 7 % 5); // 64 MiB in the end
/// }
/// values.sort_unstable();
/// assert_eq!((values[0], values.last()), (0, Some(&4)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PoolVec<'a, T> {
    pool: &'a Pool,
    /// None while it has no memory.
    region: Option<Region<'a, T>>,
    len: usize,
}

impl Pool {
    /// An empty vector in memory of the pool.
    pub fn vec<T: Plain>(&self) -> PoolVec<'_, T> {
        PoolVec::new_in(self)
    }
}

impl<'a, T: Plain> PoolVec<'a, T> {
    /// An empty one, without memory yet.
    pub fn new_in(pool: &'a Pool) -> PoolVec<'a, T> {
        PoolVec { pool, region: None, len: 0 }
    }

    /// How many values there is room for.
    pub fn capacity(&self) -> usize {
        self.region.as_ref().map_or(0, |region| region.len())
    }

    /// The memory behind it, to advise about or to pin; `None` while it has none.
    pub fn region(&self) -> Option<&Region<'a, T>> {
        self.region.as_ref()
    }

    /// Makes room for `more` values beyond those that there are.
    ///
    /// # Errors
    /// [`RegionError::NoAddresses`] when the window has no room for them.
    pub fn try_reserve(&mut self, more: usize) -> Result<(), RegionError> {
        let needed = self.len.saturating_add(more);
        if needed <= self.capacity() {
            return Ok(());
        }
        let room = needed.max(2 * self.capacity()).max(LEAST / size_of::<T>());
        match &mut self.region {
            // Where there is no room for twice as much, there may be some for what is needed.
            Some(region) => region.resize(room).or_else(|_| region.resize(needed)),
            None => {
                self.region = Some(self.pool.map_of(room)?);
                Ok(())
            }
        }
    }

    /// The same.
    ///
    /// # Panics
    /// When the window has no room for them.
    pub fn reserve(&mut self, more: usize) {
        if let Err(error) = self.try_reserve(more) {
            let len = self.len;
            panic!("there is no room for {more} values more than {len}: {error}");
        }
    }

    /// Adds a value at the end.
    ///
    /// # Panics
    /// As [`PoolVec::reserve`].
    pub fn push(&mut self, value: T) {
        if self.len == self.capacity() {
            self.reserve(1);
        }
        let at = self.len;
        self.room()[at] = value;
        self.len += 1;
    }

    /// Takes the last value away.
    pub fn pop(&mut self) -> Option<T> {
        let last = *self.last()?;
        self.len -= 1;
        Some(last)
    }

    /// Adds the values of a slice at the end.
    ///
    /// # Panics
    /// As [`PoolVec::reserve`].
    pub fn extend_from_slice(&mut self, values: &[T]) {
        self.reserve(values.len());
        let at = self.len;
        self.room()[at..at + values.len()].copy_from_slice(values);
        self.len += values.len();
    }

    /// Has `len` values from now on; those that are new are `value`.
    ///
    /// # Panics
    /// As [`PoolVec::reserve`].
    pub fn resize(&mut self, len: usize, value: T) {
        self.reserve(len.saturating_sub(self.len));
        let at = self.len;
        if at < len {
            self.room()[at..len].fill(value);
        }
        self.len = len;
    }

    /// Has no more than `len` values from now on. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Has none. The memory stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Gives back what memory is not needed.
    pub fn shrink_to_fit(&mut self) {
        match &mut self.region {
            Some(_) if self.len == 0 => self.region = None,
            Some(region) => {
                // Refused, it is as large as before.
                let _ = region.resize(self.len);
            }
            None => {}
        }
    }

    /// All that there is room for.
    fn room(&mut self) -> &mut [T] {
        self.region.as_deref_mut().unwrap_or_default()
    }
}

impl<T: Plain> Deref for PoolVec<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.region.as_deref().map_or(&[], |all| &all[..self.len])
    }
}

impl<T: Plain> DerefMut for PoolVec<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let len = self.len;
        &mut self.room()[..len]
    }
}

impl<T: Plain> Extend<T> for PoolVec<'_, T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        let values = values.into_iter();
        self.reserve(values.size_hint().0);
        values.for_each(|value| self.push(value));
    }
}

impl<'b, T: Plain> IntoIterator for &'b PoolVec<'_, T> {
    type Item = &'b T;
    type IntoIter = std::slice::Iter<'b, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'b, T: Plain> IntoIterator for &'b mut PoolVec<'_, T> {
    type Item = &'b mut T;
    type IntoIter = std::slice::IterMut<'b, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
