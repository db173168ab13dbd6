//! malloc and its family: who serves a request, and whose a block is.
//!
//! - The program's own code, once the constructor has run: mimalloc, whose memory comes through
//!   this library's own `mmap` and so is managed memory; large blocks are mappings of their own
//!   ([`crate::alloc::large`]).
//! - The program's own code while the process is dormant ([`crate::dormant`]): the internal heap.
//! - Everybody else (engine threads, the C library inside pthread_create, constructors before
//!   ours): the internal heap ([`crate::heap`]).
//!
//! A block says by its address whose it is: inside the internal heap's range, or, with a pool,
//! inside the window of managed addresses, where all of mimalloc's memory and all large blocks lie.
//! Any other address is nobody's and is left alone. Without a pool what is not the internal heap's
//! is mimalloc's or large.
//!
//! errno follows glibc: ENOMEM with every null of these functions, EINVAL for a bad alignment,
//! unchanged by free.

use crate::sys::{errno, restore_errno, set_errno};
use crate::{dormant, gate, heap, pool};
use libmimalloc_sys as mi;
use overspill_os::{Errno, PAGE_SIZE, tls};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

pub mod entries;
pub mod large;
pub mod loader;

/// Alignment of every block, and the bytes that it has at least: mimalloc aligns less what is
/// smaller. Runtimes keep bits of their own in pointers to blocks of any size.
const ALIGN_MIN: usize = 16;

/// Set when mimalloc may be used: after the constructor.
static READY: AtomicBool = AtomicBool::new(false);

/// Options of mimalloc (version 2) by number, with the values set; see include/mimalloc.h there.
///
/// - eager_commit 1, arena_eager_commit 1, eager_commit_delay 0: memory is mapped readable and
///   writable at once, so that no mprotect follows. It costs nothing, since managed memory has no
///   page before it is touched.
/// - allow_large_os_pages, reserve_huge_os_pages, reserve_os_memory 0: neither huge pages nor
///   reserves.
/// - purge_decommits 1: freed memory goes back with MADV_DONTNEED, which also drops its swapped
///   copy.
/// - use_numa_nodes 1: no search for nodes in /sys at start.
/// - destroy_on_exit 2: nothing is collected at exit; that would bring swapped memory in to free
///   it.
const OPTIONS: &[(mi::mi_option_t, std::ffi::c_long)] =
    &[(3, 1), (4, 1), (5, 1), (6, 0), (7, 0), (9, 0), (14, 0), (16, 1), (22, 2)];

/// What mimalloc maps at once where what is mapped counts (arena_reserve, in KiB): 1 GiB elsewhere.
const ARENA_SPARE: (mi::mi_option_t, std::ffi::c_long) = (23, 32 << 10);

/// Lets the program's requests go to mimalloc from now on.
pub fn start() {
    for (option, value) in OPTIONS {
        // SAFETY: mimalloc's options may be set at any time.
        unsafe { mi::mi_option_set(*option, *value) };
    }
    // SAFETY: the process has one thread. What has been set up stays as it is.
    unsafe { _mi_auto_process_init() };
    READY.store(true, Ordering::Release);
}

/// What is mapped counts, from now on.
pub fn map_sparingly() {
    let (option, value) = ARENA_SPARE;
    // SAFETY: mimalloc's options may be set at any time.
    unsafe { mi::mi_option_set(option, value) };
}

unsafe extern "C" {
    /// mimalloc's constructor, which is not run as one (`.cargo/config.toml`).
    fn _mi_auto_process_init();
}

/// Whether this request is the program's.
#[inline(always)]
fn is_program() -> bool {
    tls::is_program() && READY.load(Ordering::Relaxed)
}

/// Sets errno when there is no block.
#[inline(always)]
fn checked(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        set_errno(Errno::NOMEM);
    }
    block
}

/// A block of `size` bytes with an alignment that is a power of two.
#[inline(always)]
fn allocate(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if !is_program() {
        return allocate_unmanaged(size, align, zeroed);
    }
    allocate_managed(size, align, zeroed)
}

/// [`allocate`] for the program, with mimalloc.
#[inline(always)]
fn allocate_managed(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let _pass = gate::enter();
    if size >= large::LARGE_MIN && align <= PAGE_SIZE {
        return checked(large::alloc(size).cast());
    }
    let size = size.max(ALIGN_MIN);
    // SAFETY: the gate has been passed; the alignment is a power of two.
    checked(unsafe {
        match (zeroed, align <= ALIGN_MIN) {
            (false, true) => mi::mi_malloc(size),
            (true, true) => mi::mi_zalloc(size),
            (false, false) => mi::mi_malloc_aligned(size, align),
            (true, false) => mi::mi_zalloc_aligned(size, align),
        }
    })
}

/// [`allocate`] from the internal heap. A dormant process has all its blocks there, and wakes where
/// it would have too many.
fn allocate_unmanaged(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let block = if dormant::concerns() {
        match dormant::alloc(size, align) {
            block if !block.is_null() => block,
            _ if dormant::wake() => return allocate_managed(size, align, zeroed),
            _ if dormant::is_held_up() => heap::alloc(size, align),
            none => none,
        }
    } else {
        heap::alloc(size, align)
    };
    if zeroed && !block.is_null() {
        // SAFETY: the block has `size` bytes.
        unsafe { heap::clear(block, size) };
    }
    checked(block.cast())
}

/// Whether mimalloc made the block, when large blocks and the internal heap are ruled out.
#[inline(always)]
fn is_mimalloc(block: *mut c_void) -> bool {
    pool::contains(block as usize) || !pool::exists()
}

/// Usable bytes of a block; 0 for what is none of ours.
fn usable(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    if heap::contains(block as usize) {
        // SAFETY: the address lies in the internal heap, and the caller promises a live block.
        return unsafe { heap::usable_size(block.cast()) };
    }
    let _pass = gate::enter();
    if let Some(len) = large::size_of_block(block.cast()) {
        return len;
    }
    // SAFETY: as above, of mimalloc's.
    if is_mimalloc(block) { unsafe { mi::mi_usable_size(block) } } else { 0 }
}

/// malloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, ALIGN_MIN, false)
}

/// calloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => allocate(bytes, ALIGN_MIN, true),
        None => checked(std::ptr::null_mut()),
    }
}

/// free(3).
///
/// # Safety
///
/// `block` is null or a live block of this family.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    if heap::contains(block as usize) {
        // SAFETY: the caller's promise; the address says whose it is.
        return unsafe { heap::free(block.cast()) };
    }
    // free(3) leaves errno alone (glibc 2.33, POSIX 2024); giving memory back to the system may set
    // it.
    let errno = errno();
    let pass = gate::enter();
    // SAFETY: as above. What is nobody's is left alone, as glibc cannot be asked.
    unsafe {
        if !large::free(block.cast()) && is_mimalloc(block) {
            mi::mi_free(block);
        }
    }
    drop(pass);
    restore_errno(errno);
}

/// realloc(3).
///
/// # Safety
///
/// `block` is null or a live block of this family.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // As glibc does it.
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return std::ptr::null_mut();
    }
    if is_program() && !heap::contains(block as usize) {
        let _pass = gate::enter();
        match large::size_of_block(block.cast()) {
            Some(len) if size >= large::LARGE_MIN => {
                // SAFETY: a large block of that length; the caller uses the new address only.
                let moved = unsafe { large::resize(block.cast(), len, size) };
                return checked(moved.map_or(std::ptr::null_mut(), |moved| moved.cast()));
            }
            None if size < large::LARGE_MIN && is_mimalloc(block) => {
                // SAFETY: mimalloc's block, inside the gate.
                return checked(unsafe { mi::mi_realloc(block, size.max(ALIGN_MIN)) });
            }
            _ => {}
        }
    }
    if dormant::concerns() && heap::contains(block as usize) {
        // SAFETY: the caller's promise; the address says whose it is.
        let resized = unsafe { dormant::resize(block.cast(), size) };
        if !resized.is_null() {
            return resized.cast();
        }
    }
    // From one kind to another: copied.
    let moved = malloc(size);
    if !moved.is_null() {
        // SAFETY: both blocks have at least so many bytes and are different.
        unsafe {
            std::ptr::copy_nonoverlapping(
                block.cast::<u8>(),
                moved.cast(),
                usable(block).min(size),
            );
            free(block);
        }
    }
    moved
}

/// reallocarray(3).
///
/// # Safety
///
/// As for [`realloc`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => checked(std::ptr::null_mut()),
    }
}

/// memalign(3): an alignment that is no power of two is raised to the next one, as glibc does.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.max(ALIGN_MIN).checked_next_power_of_two() {
        // No block can be aligned to half of all addresses.
        Some(align) if align > isize::MAX as usize => checked(std::ptr::null_mut()),
        Some(align) => allocate(size, align, false),
        None => {
            set_errno(Errno::INVAL);
            std::ptr::null_mut()
        }
    }
}

/// aligned_alloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(Errno::INVAL);
        return std::ptr::null_mut();
    }
    memalign(align, size)
}

/// posix_memalign(3), which returns its error and leaves errno alone.
///
/// # Safety
///
/// `place` can be written.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(
    place: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let errno = crate::sys::errno();
    let block = memalign(align, size);
    if block.is_null() {
        crate::sys::restore_errno(errno);
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *place = block };
    0
}

/// valloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE_SIZE, size)
}

/// pvalloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE_SIZE) {
        Some(size) => memalign(PAGE_SIZE, size),
        None => checked(std::ptr::null_mut()),
    }
}

/// malloc_usable_size(3).
///
/// # Safety
///
/// `block` is null or a live block of this family.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    usable(block)
}

/// malloc_trim(3): gives free memory back. Says that it did, which cannot be known cheaply.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    if is_program() {
        let _pass = gate::enter();
        // SAFETY: inside the gate. Not forced: a forced collection walks the whole heap and brings
        // it in.
        unsafe { mi::mi_collect(false) };
    }
    1
}

/// The other names of the family: old ones, and those under which glibc exports its own.
macro_rules! aliases {
    ($(
        $(#[$doc:meta])*
        $alias:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $name:ident;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the function it names.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $alias($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's promise.
                #[allow(unused_unsafe)]
                unsafe { $name($($argument),*) }
            }
        )*
    };
}

aliases! {
    /// free under its old name.
    cfree(block: *mut c_void) = free;
    /// glibc's own name of malloc.
    __libc_malloc(size: usize) -> *mut c_void = malloc;
    /// glibc's own name of calloc.
    __libc_calloc(count: usize, size: usize) -> *mut c_void = calloc;
    /// glibc's own name of realloc.
    __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void = realloc;
    /// glibc's own name of free.
    __libc_free(block: *mut c_void) = free;
    /// glibc's own name of memalign.
    __libc_memalign(align: usize, size: usize) -> *mut c_void = memalign;
    /// glibc's own name of valloc.
    __libc_valloc(size: usize) -> *mut c_void = valloc;
    /// glibc's own name of pvalloc.
    __libc_pvalloc(size: usize) -> *mut c_void = pvalloc;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mimalloc_have_the_numbers_we_think() {
        // Defaults that tell the entries apart: purge_delay before use_numa_nodes, arena_reserve
        // (in KiB) after destroy_on_exit, guarded_max near the end. SAFETY: reading options is
        // always allowed.
        let value = |option| unsafe { mi::mi_option_get(option) };
        assert_eq!((value(15), value(23), value(31)), (10, 1 << 20, 1 << 30));
        assert_eq!((value(19), value(21), value(24)), (32, 10, 10));
    }

    /// The routes between the heaps, before and after start, as an engine thread and as the
    /// program.
    #[test]
    fn blocks_find_their_heap_and_move_between_heaps() {
        crate::gate::init();
        let early = malloc(100);
        assert!(heap::contains(early as usize));
        start();
        // SAFETY: live blocks, used within their sizes and given up once.
        unsafe {
            early.cast::<u8>().write_bytes(7, 100);
            let moved = realloc(early, 200).cast::<u8>();
            assert!(!heap::contains(moved as usize));
            assert!((0..100).all(|i| *moved.add(i) == 7));
            let grown = realloc(moved.cast(), large::LARGE_MIN).cast::<u8>();
            assert_eq!(malloc_usable_size(grown.cast()), large::LARGE_MIN);
            assert!((0..100).all(|i| *grown.add(i) == 7) && *grown.add(large::LARGE_MIN - 1) == 0);
            let small = realloc(grown.cast(), 50).cast::<u8>();
            assert!((0..50).all(|i| *small.add(i) == 7));
            let section = tls::Internal::enter();
            let inner = realloc(small.cast(), 60).cast::<u8>();
            assert!(heap::contains(inner as usize) && (0..50).all(|i| *inner.add(i) == 7));
            drop(section);
            free(inner.cast());
            assert!(realloc(malloc(5), 0).is_null());
            free(std::ptr::null_mut());
        }
        for (align, size) in
            [(16, 1), (64, 100), (4096, 5000), (1 << 20, 10), (1 << 21, large::LARGE_MIN)]
        {
            let block = memalign(align, size);
            assert!(
                !block.is_null() && (block as usize).is_multiple_of(align),
                "{block:?} {align} {size}"
            );
            // SAFETY: a live block.
            unsafe {
                assert!(malloc_usable_size(block) >= size);
                free(block);
            }
        }
    }

    #[test]
    fn errors_are_those_of_glibc() {
        let errno = |block: *mut c_void| block.is_null().then(crate::sys::errno);
        assert_eq!(errno(malloc(usize::MAX)), Some(libc::ENOMEM));
        assert_eq!(errno(calloc(usize::MAX / 2, 3)), Some(libc::ENOMEM));
        assert_eq!(errno(aligned_alloc(3, 8)), Some(libc::EINVAL));
        assert_eq!(errno(memalign(usize::MAX, 8)), Some(libc::EINVAL));
        assert_eq!(errno(pvalloc(usize::MAX)), Some(libc::ENOMEM));
        let mut place = std::ptr::null_mut();
        // SAFETY: the place can be written, and the block is freed once.
        unsafe {
            assert_eq!(
                errno(reallocarray(std::ptr::null_mut(), usize::MAX, 2)),
                Some(libc::ENOMEM)
            );
            assert_eq!(posix_memalign(&mut place, 4, 8), libc::EINVAL);
            assert_eq!(posix_memalign(&mut place, 24, 8), libc::EINVAL);
            for before in [0, libc::EAGAIN] {
                crate::sys::restore_errno(before);
                assert_eq!(posix_memalign(&mut place, 16, usize::MAX / 2), libc::ENOMEM);
                assert_eq!(crate::sys::errno(), before);
            }
            assert_eq!(posix_memalign(&mut place, 32, 8), 0);
            free(place);
        }
    }
}
