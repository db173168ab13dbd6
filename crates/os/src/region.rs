//! Managed memory as slices of plain values, for users of the library.

use std::ops::Range;

/// Types of which every bit pattern is a value and which hold no padding, so that zeroed memory and
/// any bytes are valid.
///
/// # Safety
/// Implement it for such types only.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: integers and floats have no invalid bit patterns and no padding.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

/// A mapped range that one value owns.
#[derive(Debug)]
pub struct OwnedRange {
    range: Range<usize>,
}

impl OwnedRange {
    /// Takes over a range: page aligned, mapped readable and writable, given to nobody else, and
    /// unmapped by the caller only after this value is gone.
    pub fn new(range: Range<usize>) -> OwnedRange {
        assert!(range.start.is_multiple_of(crate::units::PAGE_SIZE));
        OwnedRange { range }
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// As many values as fit.
    pub fn as_slice<T: Plain>(&self) -> &[T] {
        // SAFETY: 1. the range is mapped, aligned to a page and owned by self; 2. any bytes are
        // valid T; 3. pages that are not resident come back, with the same content, before an
        // access completes.
        unsafe {
            std::slice::from_raw_parts(
                self.range.start as *const T,
                self.range.len() / size_of::<T>(),
            )
        }
    }

    /// As many values as fit, to write.
    pub fn as_mut_slice<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.range.start as *mut T,
                self.range.len() / size_of::<T>(),
            )
        }
    }
}
