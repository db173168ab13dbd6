//! The memory behind page frames: one anonymous private mapping, registered with the userfaultfd.
//!
//! A free frame is a hole, an allocated frame is present (the frame allocator of the engine hands
//! out numbers, this module holds bytes). Bytes go in and out by copy: no reference into the arena
//! is ever handed out, so that a mistake in a policy above can mix up data but not break memory
//! safety.

use crate::units::{Errno, PAGE_SIZE};
use crate::vm;
use std::ops::Range;

/// Alignment of the arena: 2 MiB, the largest order of frames.
const ALIGN: usize = 2 << 20;

/// A range of frames.
#[derive(Debug)]
pub struct Arena {
    base: usize,
    frames: usize,
}

impl Arena {
    /// Reserves room for `frames` frames, all holes and closed. The caller registers
    /// [`Arena::range`] before use.
    pub fn new(frames: usize) -> Result<Arena, Errno> {
        let len = (frames * PAGE_SIZE).next_multiple_of(ALIGN);
        let base = vm::reserve_own(len, ALIGN)?;
        vm::advise(base..base + len, libc::MADV_NOHUGEPAGE)?;
        // In a core dump compressed pages say nothing to a debugger, and the swap cache lies at no
        // address that it knows.
        vm::advise(base..base + len, vm::advice::DONTDUMP)?;
        Ok(Arena { base, frames })
    }

    /// Makes frames usable. Until then they cost address space and nothing else, also where memory
    /// must not be overcommitted.
    pub fn open(&self, frames: Range<u32>) -> Result<(), Errno> {
        vm::protect(self.frame_range(frames.start, frames.len()), vm::Prot::READ_WRITE)
    }

    /// Gives frames that are holes back to the system, until they are opened again.
    pub fn close(&self, frames: Range<u32>) -> Result<(), Errno> {
        vm::protect(self.frame_range(frames.start, frames.len()), vm::Prot::NONE)
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Addresses of the whole arena.
    pub fn range(&self) -> Range<usize> {
        self.base..self.base + (self.frames * PAGE_SIZE).next_multiple_of(ALIGN)
    }

    /// Addresses of `count` frames from frame `first`.
    pub fn frame_range(&self, first: u32, count: usize) -> Range<usize> {
        assert!(
            first as usize + count <= self.frames,
            "frames {first}+{count} lie outside the arena"
        );
        let start = self.base + first as usize * PAGE_SIZE;
        start..start + count * PAGE_SIZE
    }

    /// Copies `data` into a run of frames that begins with `first`, from byte `offset`. The frames
    /// are present.
    pub fn write(&self, first: u32, offset: usize, data: &[u8]) {
        let range = self.frame_range(first, (offset + data.len()).div_ceil(PAGE_SIZE));
        // SAFETY: 1. the destination lies in the arena, which is mapped readable and writable for
        // as long as self; 2. no Rust reference into the arena exists; 3. source and destination
        // cannot overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                (range.start + offset) as *mut u8,
                data.len(),
            )
        }
    }

    /// Copies bytes out of a run of frames that begins with `first`, from byte `offset`. The frames
    /// are present.
    pub fn read(&self, first: u32, offset: usize, out: &mut [u8]) {
        let range = self.frame_range(first, (offset + out.len()).div_ceil(PAGE_SIZE));
        // SAFETY: as in `write`, the other way round.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (range.start + offset) as *const u8,
                out.as_mut_ptr(),
                out.len(),
            )
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = vm::unmap(self.range());
    }
}
