//! The internal heap: memory that is never managed memory.
//!
//! It serves Rust's allocations in this library (the engine's tables), malloc on engine threads,
//! malloc before the pool is ready, and what the C library allocates while it makes a thread. All
//! of it lies in two ranges of addresses, so that free() tells its blocks by two compares: a small
//! one among the library's variables ([`FIRST`]), which is all that most processes of a build need,
//! and one that is reserved when that is full.
//!
//! The allocator is dlmalloc over these, which grow and shrink at their ends, as over brk. Each
//! block has a header of 16 bytes before it that says how long it is and where its memory begins.
//!
//! Lock: [`LOCK`], a leaf; held over fork by [`crate::fork`].

use dlmalloc::{Allocator, Dlmalloc};
use overspill_os::lock::RawLock;
use overspill_os::{PAGE_SIZE, vm};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses reserved, tried in this order (a limit on address space may forbid the first): 64 GiB
/// cost nothing but addresses; 1 GiB is far more than the engine's tables and the C library's
/// thread data ever took.
const RESERVE_BYTES: [usize; 2] = [64 << 30, 1 << 30];
/// Memory is made accessible in steps of this, so that growing costs few system calls.
const COMMIT_BYTES: usize = 1 << 20;
/// An address above all that a process can have: the range before it is reserved is empty.
const NOWHERE: usize = 1 << 63;

/// Bytes of [`FIRST`].
const FIRST_BYTES: usize = 256 << 10;

#[repr(C, align(4096))]
struct First(UnsafeCell<[u8; FIRST_BYTES]>);
// SAFETY: its bytes are dlmalloc's, which hands out each of them once.
unsafe impl Sync for First {}
/// What is used first. It costs no system call, and no page tables beside those that the library's
/// variables have.
static FIRST: First = First(UnsafeCell::new([0; FIRST_BYTES]));

static START: AtomicUsize = AtomicUsize::new(NOWHERE);
static END: AtomicUsize = AtomicUsize::new(NOWHERE);
/// Bytes handed out to [`HEAP`], and how many they may be just now.
static USED: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Guards [`HEAP`] and [`LIMIT`].
static LOCK: RawLock = RawLock::new();

struct Heap(UnsafeCell<Dlmalloc<Segment>>);
// SAFETY: the cell is accessed under LOCK only.
unsafe impl Sync for Heap {}
static HEAP: Heap = Heap(UnsafeCell::new(Dlmalloc::new_with_allocator(Segment::new())));

/// What lies before each block.
#[repr(C)]
struct BlockHeader {
    /// Usable bytes.
    size: usize,
    /// Distance from the start of the memory that dlmalloc gave to the block.
    offset: usize,
}
const HEADER_BYTES: usize = size_of::<BlockHeader>();

/// Whether `address` lies in the internal heap.
#[inline(always)]
pub fn contains(address: usize) -> bool {
    address.wrapping_sub(first()) < FIRST_BYTES
        || address >= START.load(Ordering::Relaxed) && address < END.load(Ordering::Relaxed)
}

/// Where [`FIRST`] begins.
#[inline(always)]
fn first() -> usize {
    FIRST.0.get() as usize
}

/// Allocates `size` bytes aligned to `align` (a power of two); null when there is no memory.
pub fn alloc(size: usize, align: usize) -> *mut u8 {
    alloc_within(size, align, usize::MAX)
}

/// Bytes of the ranges that have been handed out, freed ones between them included.
pub fn used() -> usize {
    USED.load(Ordering::Relaxed)
}

/// Runs `call` on the heap, which does not grow beyond so many bytes meanwhile.
fn with_heap<R>(limit: usize, call: impl FnOnce(&mut Dlmalloc<Segment>) -> R) -> R {
    LOCK.with(|| {
        LIMIT.store(limit, Ordering::Relaxed);
        // SAFETY: LOCK is held, and no reference leaves the call.
        let result = call(unsafe { &mut *HEAP.0.get() });
        LIMIT.store(usize::MAX, Ordering::Relaxed);
        result
    })
}

/// [`alloc`] in a heap that does not grow beyond `limit` bytes for it.
pub fn alloc_within(size: usize, align: usize, limit: usize) -> *mut u8 {
    let align = align.max(HEADER_BYTES);
    let Some(whole) = size.checked_add(align) else { return std::ptr::null_mut() };
    // SAFETY: the alignment is a power of two.
    let base = with_heap(limit, |heap| unsafe { heap.malloc(whole, align) });
    if base.is_null() {
        return base;
    }
    // SAFETY: `align` bytes lie before the block, at least a header; both are aligned to 16.
    unsafe {
        let block = base.add(align);
        block.cast::<BlockHeader>().sub(1).write(BlockHeader { size, offset: align });
        block
    }
}

/// Gives a block another size, perhaps at another address; null where the heap would grow beyond
/// `limit` bytes, or the block has a large alignment. It is as it was then.
///
/// # Safety
///
/// `block` is a live block of this heap; the caller uses only the returned address afterwards.
pub unsafe fn resize_within(block: *mut u8, size: usize, limit: usize) -> *mut u8 {
    // SAFETY: 1. every block has a header before it; 2. that belongs to the memory that dlmalloc
    // gave, and is moved with it; 3. of this alignment every address is that dlmalloc returns.
    unsafe {
        let BlockHeader { size: old, offset } = block.cast::<BlockHeader>().sub(1).read();
        let Some(whole) = size.checked_add(offset).filter(|_| offset == HEADER_BYTES) else {
            return std::ptr::null_mut();
        };
        let base =
            with_heap(limit, |heap| heap.realloc(block.sub(offset), old + offset, offset, whole));
        if base.is_null() {
            return base;
        }
        let block = base.add(offset);
        block.cast::<BlockHeader>().sub(1).write(BlockHeader { size, offset });
        block
    }
}

/// Fills a new block with zeros. Of a large one only what is used takes memory then: tables of the
/// engine are as large as they may have to be.
///
/// # Safety
///
/// `block` has `size` bytes.
pub unsafe fn clear(block: *mut u8, size: usize) {
    const LARGE: usize = 12 << 10;
    // SAFETY: the caller's promise.
    let fill = |start: usize, end: usize| unsafe { (start as *mut u8).write_bytes(0, end - start) };
    let (start, end) = (block as usize, block as usize + size);
    let pages = start.next_multiple_of(PAGE_SIZE)..end / PAGE_SIZE * PAGE_SIZE;
    if size >= LARGE && vm::advise(pages.clone(), vm::advice::DONTNEED).is_ok() {
        fill(start, pages.start);
        fill(pages.end, end);
    } else {
        fill(start, end);
    }
}

/// Usable bytes of a block.
///
/// # Safety
///
/// `block` is a live block of this heap.
pub unsafe fn usable_size(block: *mut u8) -> usize {
    // SAFETY: every block has a header before it.
    unsafe { (*block.cast::<BlockHeader>().sub(1)).size }
}

/// Frees a block.
///
/// # Safety
///
/// `block` is a live block of this heap, and nobody uses it any more.
pub unsafe fn free(block: *mut u8) {
    // SAFETY: 1. the block has a header; 2. the memory behind it began `offset` before it, with
    // that alignment.
    unsafe {
        let BlockHeader { size, offset } = block.cast::<BlockHeader>().sub(1).read();
        LOCK.with(|| (*HEAP.0.get()).free(block.sub(offset), size + offset, offset));
    }
}

/// Gives back the memory of free blocks, as far as they are large.
pub fn trim() {
    const SIZES: [usize; 6] = [256 << 10, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10];
    let mut blocks = [(std::ptr::null_mut::<u8>(), 0); 64];
    let mut count = 0;
    with_heap(used(), |heap| {
        // 1. They are taken, as far as there are some without more memory.
        for size in SIZES {
            while count < blocks.len() {
                // SAFETY: the alignment is a power of two.
                let block = unsafe { heap.malloc(size, PAGE_SIZE) };
                if block.is_null() {
                    break;
                }
                (blocks[count], count) = ((block, size), count + 1);
            }
        }
        // 2. Their pages are nobody's once they are free again, but for the first, in which
        //    dlmalloc may keep where other free blocks are.
        let blocks = &blocks[..count];
        // SAFETY: live blocks of ours, which nobody uses.
        blocks.iter().for_each(|(block, size)| unsafe { heap.free(*block, *size, PAGE_SIZE) });
        for (block, size) in blocks {
            let start = *block as usize;
            let _ = vm::advise(start + PAGE_SIZE..start + size, vm::MADV_DONTNEED);
        }
    });
}

/// Takes the heap's lock for the time of a fork.
pub fn fork_prepare() {
    LOCK.lock();
}

/// Gives it back, in the parent and in the child.
pub fn fork_done() {
    LOCK.unlock();
}

/// Both ranges, each of which grows and shrinks at its end. The fields are guarded by [`LOCK`].
struct Segment {
    /// Bytes of [`FIRST`] that dlmalloc has.
    first: AtomicUsize,
    /// End of what dlmalloc has of the reserved range.
    used: AtomicUsize,
    /// End of what is accessible there.
    committed: AtomicUsize,
}

impl Segment {
    const fn new() -> Segment {
        Segment {
            first: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
        }
    }

    fn reserve(&self) -> Option<()> {
        let len = *RESERVE_BYTES.iter().find(|len| match vm::reserve_own(**len, PAGE_SIZE) {
            Ok(start) => {
                self.used.store(start, Ordering::Relaxed);
                self.committed.store(start, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        })?;
        let start = self.used.load(Ordering::Relaxed);
        START.store(start, Ordering::Relaxed);
        END.store(start + len, Ordering::Relaxed);
        Some(())
    }

    fn grow(&self, size: usize) -> Option<usize> {
        let used = USED.load(Ordering::Relaxed).checked_add(size)?;
        if used > LIMIT.load(Ordering::Relaxed) {
            return None;
        }
        let start = self.grow_first(size).or_else(|| self.grow_reserved(size))?;
        USED.store(used, Ordering::Relaxed);
        Some(start)
    }

    fn grow_first(&self, size: usize) -> Option<usize> {
        let used = self.first.load(Ordering::Relaxed);
        let end = used.checked_add(size).filter(|end| *end <= FIRST_BYTES)?;
        self.first.store(end, Ordering::Relaxed);
        Some(first() + used)
    }

    fn grow_reserved(&self, size: usize) -> Option<usize> {
        if self.used.load(Ordering::Relaxed) == 0 {
            self.reserve()?;
        }
        let start = self.used.load(Ordering::Relaxed);
        let limit = END.load(Ordering::Relaxed);
        let end = start.checked_add(size).filter(|end| *end <= limit)?;
        let committed = self.committed.load(Ordering::Relaxed);
        if end > committed {
            let target = end.next_multiple_of(COMMIT_BYTES).min(limit);
            vm::protect(committed..target, vm::Prot::READ_WRITE).ok()?;
            self.committed.store(target, Ordering::Relaxed);
        }
        self.used.store(end, Ordering::Relaxed);
        Some(start)
    }

    /// Takes back the end of a range.
    fn shrink(&self, end: usize, old_end: usize) -> bool {
        let (range_end, base) = if old_end.wrapping_sub(first()) <= FIRST_BYTES {
            (&self.first, first())
        } else {
            (&self.used, 0)
        };
        if old_end != base + range_end.load(Ordering::Relaxed)
            || vm::advise(end.next_multiple_of(PAGE_SIZE)..old_end, libc::MADV_DONTNEED).is_err()
        {
            return false;
        }
        range_end.store(end - base, Ordering::Relaxed);
        USED.fetch_sub(old_end - end, Ordering::Relaxed);
        true
    }
}

// SAFETY: the memory handed out lies in the two ranges, is accessible, belongs to nobody else, and
// stays so until `free_part` takes back its end.
unsafe impl Allocator for Segment {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        self.grow(size).map_or((std::ptr::null_mut(), 0, 0), |start| (start as *mut u8, size, 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, base: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.shrink(base as usize + new_size, base as usize + old_size)
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        PAGE_SIZE
    }
}

/// Rust's allocations of this library, from the internal heap.
#[derive(Debug)]
pub struct RustHeap;

// SAFETY: blocks are aligned, of the size asked for, and belong to the caller until freed.
unsafe impl GlobalAlloc for RustHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        alloc(layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { free(block) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_inside_the_range_and_keep_their_content() {
        let blocks: Vec<_> = (0..200usize)
            .map(|i| {
                let (size, align) = (i * 37 % 9000, 1usize << (i % 14));
                let block = alloc(size, align);
                assert!((block as usize).is_multiple_of(align.max(16)) && contains(block as usize));
                // SAFETY: the block has `size` bytes and is ours.
                unsafe {
                    assert_eq!(usable_size(block), size);
                    block.write_bytes(i as u8, size);
                }
                (block as usize, size, i as u8)
            })
            .collect();
        for (block, size, fill) in blocks {
            // SAFETY: live blocks of these sizes.
            unsafe {
                assert!(
                    std::slice::from_raw_parts(block as *const u8, size)
                        .iter()
                        .all(|byte| *byte == fill)
                );
                free(block as *mut u8);
            }
        }
    }

    #[test]
    fn what_is_free_is_given_back_and_nothing_else() {
        let [kept, large, last] = [100_000, 300_000, 100].map(|size| alloc(size, 16));
        // SAFETY: live blocks of these sizes; the second is not used any more.
        unsafe {
            kept.write_bytes(7, 100_000);
            large.write_bytes(8, 300_000);
            last.write_bytes(9, 100);
            free(large);
            trim();
            assert!(std::slice::from_raw_parts(kept, 100_000).iter().all(|byte| *byte == 7));
            assert!(std::slice::from_raw_parts(last, 100).iter().all(|byte| *byte == 9));
            free(kept);
            free(last);
        }
    }

    #[test]
    fn impossible_sizes_give_null_and_freed_memory_is_used_again() {
        assert!(alloc(usize::MAX - 8, 16).is_null());
        assert!(alloc(1 << 40, 16).is_null());
        let first = alloc(64 << 20, 16);
        assert!(!first.is_null());
        // SAFETY: a live block of ours.
        unsafe { free(first) };
        let range = END.load(Ordering::Relaxed) - START.load(Ordering::Relaxed);
        // As many as would overflow the range if freed memory were lost.
        for _ in 0..=range / (64 << 20) {
            let block = alloc(64 << 20, 4096);
            assert!(!block.is_null());
            // SAFETY: a live block of ours.
            unsafe {
                block.write(1);
                free(block);
            }
        }
    }

    #[test]
    fn a_block_is_cleared_to_its_last_byte_and_no_further() {
        for size in [1, 5000, 100_000] {
            let block = alloc(size + 2 * PAGE_SIZE, 16);
            // SAFETY: a live block of ours, used within its size.
            unsafe {
                block.write_bytes(7, size + 2 * PAGE_SIZE);
                clear(block.add(PAGE_SIZE), size);
                let at = |at: usize| *block.add(at);
                assert!((PAGE_SIZE..PAGE_SIZE + size).all(|byte| at(byte) == 0));
                assert_eq!([PAGE_SIZE - 1, PAGE_SIZE + size].map(at), [7; 2]);
                free(block);
            }
        }
    }

    #[test]
    fn blocks_keep_their_content_when_they_get_another_size() {
        let mut block = alloc(100, 16);
        let other = alloc(100, 16);
        // SAFETY: live blocks of ours, used within their sizes.
        unsafe {
            block.write_bytes(7, 100);
            for size in [200, 100_000, 150, 5000] {
                block = resize_within(block, size, usize::MAX);
                assert_eq!(usable_size(block), size);
                assert!((0..100).all(|at| *block.add(at) == 7));
            }
            let limit = used();
            assert!(alloc_within(64 << 20, 16, limit).is_null());
            assert!(resize_within(block, 64 << 20, limit).is_null());
            assert!((0..100).all(|at| *block.add(at) == 7) && usable_size(block) == 5000);
            let aligned = alloc(100, 4096);
            assert!(resize_within(aligned, 10, usize::MAX).is_null());
            [block, other, aligned].into_iter().for_each(|block| free(block));
        }
    }

    #[test]
    fn threads_allocate_and_free_each_others_blocks() {
        let (send, receive) = std::sync::mpsc::channel::<usize>();
        let receive = std::sync::Mutex::new(receive);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let send = send.clone();
                scope.spawn(move || {
                    for i in 0..3000usize {
                        let size = 16 + (i * (thread + 7)) % 3000;
                        let block = alloc(size, 16);
                        // SAFETY: the block has `size` bytes.
                        unsafe { block.write_bytes(size as u8, size) };
                        send.send(block as usize).unwrap();
                    }
                });
            }
            drop(send);
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let Ok(block) = receive.lock().unwrap().recv() else { return };
                        let block = block as *mut u8;
                        // SAFETY: sent by the thread that made it, which uses it no more.
                        unsafe {
                            let size = usable_size(block);
                            assert!((0..size).all(|at| *block.add(at) == size as u8));
                            free(block);
                        }
                    }
                });
            }
        });
    }
}
