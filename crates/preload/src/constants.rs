//! Constants that hold addresses: the loader has written them, in each process, before they became
//! read-only. Of large programs and libraries they are megabytes (of virtual functions, mostly),
//! which no file holds as they are.
//!
//! A userfaultfd takes no mapping of a file. So a copy of the process's own takes their place, at
//! once: whoever reads them meanwhile, reads the same.

use crate::{image, pool, sys};
use overspill_os::{Errno, vm};
use std::ops::Range;

/// Has the constants among these ranges be private anonymous memory, which can be written for now.
/// Those with which that fails are left away.
pub fn take(annexes: &mut Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut constants = image::constants();
    constants.retain(|range| annexes.contains(range));
    let (taken, left): (Vec<_>, Vec<_>) =
        constants.into_iter().partition(|range| copy(range).is_ok());
    annexes.retain(|annex| !left.contains(annex));
    taken
}

/// Puts a copy in the place of a range, or leaves it as it was.
fn copy(range: &Range<usize>) -> Result<(), Errno> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new mapping replaces nothing.
    let start = unsafe { sys::mmap(0, range.len(), prot, flags, -1, 0)? };
    let copy = start..start + range.len();
    // SAFETY: whole pages that can be read, and as many that nobody else knows of.
    unsafe {
        std::ptr::copy_nonoverlapping(range.start as *const u8, start as *mut u8, range.len());
    }
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u32;
    let placed = vm::remap(copy.clone(), range.len(), flags, range.start);
    placed.map(drop).inspect_err(|_| _ = vm::unmap(copy))
}

/// Has them be read-only again, now that they are managed.
pub fn protect(constants: Vec<Range<usize>>) {
    for range in constants {
        // Where the kernel has no room for one mapping more, they can be written.
        let _ = pool::mprotect(range, libc::PROT_READ);
    }
}
