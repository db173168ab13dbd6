//! Buffers for direct I/O.

use crate::units::{Errno, PAGE_SIZE};
use rustix::mm;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Page-aligned anonymous memory of the engine, zero at first and touched lazily: a buffer for
/// direct I/O, or, seen as words, a table.
pub struct IoBuffer {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for IoBuffer {}
// SAFETY: a shared reference only gives shared access to plain bytes.
unsafe impl Sync for IoBuffer {}

impl IoBuffer {
    /// A buffer of `pages` zero pages, at least one. It gets no huge pages, since it may be touched
    /// here and there. It is in no core dump, since the program may keep what it holds out of them.
    pub fn new(pages: usize) -> Result<IoBuffer, Errno> {
        let len = pages.max(1).checked_mul(PAGE_SIZE).ok_or(Errno::NOMEM)?;
        let base = crate::vm::map_metadata(len)? as *mut u8;
        Ok(IoBuffer { base: NonNull::new(base).ok_or(Errno::NOMEM)?, len })
    }

    /// Gives its memory back: it is zero again.
    pub fn forget(&mut self) {
        let base = self.base.as_ptr() as usize;
        crate::vm::forget(base, self.len, || self.fill(0));
    }

    /// The memory as 64-bit words.
    pub fn words(&self) -> &[u64] {
        // SAFETY: 1. the mapping is len bytes, initialised (zero) and page aligned; 2. any bits are
        // a valid u64;
        // 3. `&self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// The memory as 64-bit words, to write.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }
}

impl Deref for IoBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is len bytes, initialised, and `&self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is len bytes, initialised, and `&mut self` makes the access
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for IoBuffer {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives the value.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl std::fmt::Debug for IoBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuffer({} pages)", self.len / PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_in_no_core_dump() {
        // It may hold what the program has kept out of them.
        let buffer = IoBuffer::new(3).unwrap();
        assert!(crate::vm::flags(buffer.as_ptr() as usize).contains(" dd"));
    }
}
