//! A heap over mappings that somebody else makes: for collections in managed memory.
//!
//! The allocator is dlmalloc. What is large has a mapping of its own, which grows without a copy;
//! small blocks share some, in which dlmalloc keeps its own words too.
//!
//! Lock: one over the heap, in which its memory may be touched. It is not for code that serves
//! faults.

use crate::region::OwnedRange;
use crate::units::{Errno, PAGE_SIZE};
use allocator_api2::alloc::{AllocError, Allocator, Layout};
use dlmalloc::Dlmalloc;
use std::fmt;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who makes the mappings of a heap.
pub trait Mappings: Send {
    /// A mapping of `len` zero bytes, whole pages.
    ///
    /// # Errors
    /// ENOMEM.
    fn map(&self, len: usize) -> Result<OwnedRange, Errno>;

    /// Has a mapping, or a part of one, be `len` bytes long, elsewhere only if it `moves`.
    ///
    /// # Errors
    /// ENOMEM: then it is as before.
    fn remap(&self, old: &OwnedRange, len: usize, moves: bool) -> Result<OwnedRange, Errno>;

    /// Gives a mapping back, or a part of one. Whether it is gone.
    fn unmap(&self, range: OwnedRange) -> bool;
}

/// What dlmalloc has its memory from.
struct Source<M>(M);

fn range(start: *mut u8, len: usize) -> OwnedRange {
    OwnedRange::new(start.expose_provenance()..start.addr() + len)
}

fn start(range: &OwnedRange) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(range.range().start)
}

// SAFETY: what is handed out is a mapping that nobody else has, as `OwnedRange` says of each.
unsafe impl<M: Mappings> dlmalloc::Allocator for Source<M> {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        self.0.map(size).map_or((null_mut(), 0, 0), |range| (start(&range), size, 0))
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let remapped = self.0.remap(&range(at, old), new, can_move);
        remapped.map_or(null_mut(), |range| start(&range))
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        self.free(at.wrapping_add(new), old - new)
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        self.0.unmap(range(at, size))
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_SIZE
    }
}

/// The heap, shared by all clones. What was allocated and not freed stays mapped when the last of
/// them is gone.
pub struct Heap<M>(Arc<Mutex<Dlmalloc<Source<M>>>>);

impl<M: Mappings> Heap<M> {
    /// An empty one.
    pub fn new(mappings: M) -> Heap<M> {
        Heap(Arc::new(Mutex::new(Dlmalloc::new_with_allocator(Source(mappings)))))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Source<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Clone for Heap<M> {
    fn clone(&self) -> Heap<M> {
        Heap(self.0.clone())
    }
}

impl<M> fmt::Debug for Heap<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

/// A block as a slice, if there is one.
fn block(at: *mut u8, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    let at = NonNull::new(at).ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(at, size))
}

/// What stands for a block of no bytes.
fn nothing(layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    block(without_provenance_mut(layout.align()), 0)
}

// SAFETY: 1. blocks are dlmalloc's, which hands out each byte once until it is freed; 2. they stay
// where they are when the heap moves, and clones share it.
unsafe impl<M: Mappings> Allocator for Heap<M> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return nothing(layout);
        }
        // SAFETY: the size is not 0, and the alignment a power of two.
        block(unsafe { self.lock().malloc(layout.size(), layout.align()) }, layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return nothing(layout);
        }
        // SAFETY: as above.
        block(unsafe { self.lock().calloc(layout.size(), layout.align()) }, layout.size())
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller's promise: the block is of this heap, with this layout.
            unsafe { self.lock().free(at.as_ptr(), layout.size(), layout.align()) }
        }
    }

    unsafe fn grow(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.change(at, old, new) }
    }

    unsafe fn shrink(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.change(at, old, new) }
    }
}

impl<M: Mappings> Heap<M> {
    /// Makes a block larger or smaller.
    ///
    /// # Safety
    /// It is a block of this heap, with the old layout.
    unsafe fn change(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.align() == new.align() && old.size() > 0 && new.size() > 0 {
            // SAFETY: the caller's promise; the new size is not 0.
            let moved =
                unsafe { self.lock().realloc(at.as_ptr(), old.size(), old.align(), new.size()) };
            return block(moved, new.size());
        }
        let made = self.allocate(new)?;
        let len = old.size().min(new.size());
        // SAFETY: both blocks have so many bytes, and one is new; then the caller's promise.
        unsafe {
            at.as_ptr().copy_to_nonoverlapping(made.as_ptr().cast(), len);
            self.deallocate(at, old);
        }
        Ok(made)
    }
}
