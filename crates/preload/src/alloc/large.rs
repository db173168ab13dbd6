//! Blocks of 32 MiB and more: mappings of their own, so that realloc moves page tables and not
//! bytes.
//!
//! A growing vector of some gigabytes would otherwise be copied at every step, through memory that
//! is mostly on swap. glibc treats large blocks the same way, and stops at the same size: below it,
//! mapping and unmapping costs more than the copy.
//!
//! A block begins at the start of its mapping, so that only page-aligned pointers are looked up in
//! the table.
//!
//! Lock: [`TABLE`], a leaf; taken inside the gate only, so that fork never finds it held.

use crate::map;
use overspill_os::PAGE_SIZE;
use overspill_os::lock::RawLock;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smallest block with a mapping of its own (glibc: DEFAULT_MMAP_THRESHOLD_MAX).
pub const LARGE_MIN: usize = 32 << 20;

struct Table(RawLock, UnsafeCell<BTreeMap<usize, usize>>);
// SAFETY: the cell is accessed under the lock only.
unsafe impl Sync for Table {}
/// Address and length of each block.
static TABLE: Table = Table(RawLock::new(), UnsafeCell::new(BTreeMap::new()));
/// Entries of the table, read before the lock is taken.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn with_table<R>(call: impl FnOnce(&mut BTreeMap<usize, usize>) -> R) -> R {
    TABLE.0.with(|| {
        // SAFETY: the lock is held, and the table does not escape the closure.
        let table = unsafe { &mut *TABLE.1.get() };
        let result = call(table);
        COUNT.store(table.len(), Ordering::Relaxed);
        result
    })
}

/// Whether a block can only have come from here or from mimalloc: false means it is not large.
#[inline(always)]
fn may_be_large(block: usize) -> bool {
    block & (PAGE_SIZE - 1) == 0 && COUNT.load(Ordering::Relaxed) != 0
}

fn page_round(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(PAGE_SIZE).filter(|len| *len <= isize::MAX as usize)
}

/// Allocates zeros, page aligned; null when there is no memory.
pub fn alloc(size: usize) -> *mut u8 {
    let Some(len) = page_round(size) else { return std::ptr::null_mut() };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's or the pool's choice replaces nothing.
    let Ok(start) = (unsafe { map::mmap(0, len, prot, flags, -1, 0) }) else {
        return std::ptr::null_mut();
    };
    with_table(|table| table.insert(start, len));
    start as *mut u8
}

/// Length of the block if it is a large one.
#[inline(always)]
pub fn size_of_block(block: *mut u8) -> Option<usize> {
    may_be_large(block as usize)
        .then(|| with_table(|table| table.get(&(block as usize)).copied()))
        .flatten()
}

/// Frees the block if it is a large one, and says whether it was.
///
/// # Safety
///
/// As for free(3).
#[inline(always)]
pub unsafe fn free(block: *mut u8) -> bool {
    if !may_be_large(block as usize) {
        return false;
    }
    let Some(len) = with_table(|table| table.remove(&(block as usize))) else { return false };
    // SAFETY: the table says that this mapping is a block's, and the caller gives it up.
    let _ = unsafe { map::munmap(block as usize, len) };
    true
}

/// Gives a large block of `old_len` bytes another size, itself large, perhaps at another address.
/// None when there is no memory; the block is then unchanged.
///
/// # Safety
///
/// `block` is a large block of that length, and the caller uses only the returned address
/// afterwards.
pub unsafe fn resize(block: *mut u8, old_len: usize, size: usize) -> Option<*mut u8> {
    let new_len = page_round(size)?;
    if new_len == old_len {
        return Some(block);
    }
    // The entry goes first: once the old addresses are free, another thread's block may get them.
    with_table(|table| table.remove(&(block as usize)));
    // SAFETY: the mapping is the block's, and the caller gives up the old addresses.
    match unsafe { map::mremap(block as usize, old_len, new_len, libc::MREMAP_MAYMOVE, 0) } {
        Ok(start) => {
            with_table(|table| table.insert(start, new_len));
            Some(start as *mut u8)
        }
        Err(_) => {
            with_table(|table| table.insert(block as usize, old_len));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_content_when_they_grow_and_shrink() {
        let block = alloc(LARGE_MIN + 5);
        assert_eq!(size_of_block(block), Some(LARGE_MIN + PAGE_SIZE));
        // SAFETY: the block is ours, and long enough at each step.
        unsafe {
            assert_eq!(*block.add(LARGE_MIN), 0);
            block.write(1);
            block.add(LARGE_MIN).write(2);
            let grown = resize(block, LARGE_MIN + PAGE_SIZE, 3 * LARGE_MIN).unwrap();
            assert_eq!((*grown, *grown.add(LARGE_MIN), *grown.add(3 * LARGE_MIN - 1)), (1, 2, 0));
            let shrunk = resize(grown, 3 * LARGE_MIN, LARGE_MIN).unwrap();
            assert_eq!((*shrunk, size_of_block(shrunk)), (1, Some(LARGE_MIN)));
            assert!(!free(shrunk.add(PAGE_SIZE)), "no block begins there");
            assert!(free(shrunk));
            assert!(!free(shrunk));
        }
        assert!(alloc(usize::MAX).is_null());
    }
}
