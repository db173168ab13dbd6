//! What the C library touches in a forked child before our child handler has run.
//!
//! In the child of a process with threads, glibc resets the lock of every open stream and its name-service state,
//! and only then calls fork handlers. Both lie in memory that it got from malloc, and so in managed memory. An absent
//! page would read as zeros there, because the child's engine is not up yet. So these pages are made present before
//! the fork, after eviction has stopped.
//!
//! The list of streams is locked from before the gate closes until after the fork: its lock is recursive, glibc's
//! fork takes it again, and no thread that holds it can then be waiting for the gate or for a page.

use crate::sys;
use overspill_os::tls;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The head of glibc's struct _IO_FILE, whose layout is part of its ABI; 64-bit.
#[repr(C)]
struct Stream {
    before_chain: [usize; 13],
    chain: *const Stream,
    between: [usize; 3],
    lock: *const u8,
    after_lock: [usize; 9],
    vtable: usize,
}
const _: () = assert!(std::mem::offset_of!(Stream, chain) == 104 && std::mem::offset_of!(Stream, lock) == 136);
const _: () = assert!(size_of::<Stream>() == 224);

unsafe extern "C" {
    /// The most recently opened stream.
    static _IO_list_all: *const Stream;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

/// Reads one byte, so that its page is present.
///
/// # Safety
///
/// The address can be read.
pub unsafe fn touch(address: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { address.read_volatile() };
}

/// Locks the list of streams.
pub fn lock_list() {
    // SAFETY: a lock of the C library, given back by `unlock_list` or reset in the child.
    unsafe { _IO_list_lock() };
}

/// Gives it back, in the parent.
pub fn unlock_list() {
    // SAFETY: taken by `lock_list` on this thread.
    unsafe { _IO_list_unlock() };
}

/// Makes it free in the child, whatever glibc has done with it: it resets it only if the parent had threads.
pub fn reset_list() {
    // SAFETY: the child has one thread, which does not use the list now.
    unsafe { _IO_list_resetlock() };
}

/// Makes present what glibc writes in the child: every stream and its lock. The list is locked.
pub fn touch_streams() {
    // SAFETY: 1. the list is locked, so its members are live streams; 2. a stream's lock is live with it.
    unsafe {
        let mut stream = _IO_list_all;
        while !stream.is_null() {
            touch(stream.cast());
            touch(stream.cast::<u8>().add(size_of::<Stream>() - 1));
            let lock = (*stream).lock;
            if !lock.is_null() {
                // Three words: a lock may lie over the edge of a page.
                touch(lock);
                touch(lock.add(15));
            }
            stream = (*stream).chain;
        }
    }
}

/// Makes present glibc's name-service state, by a look-up that takes its lock and reads it. Where glibc has not made
/// that state yet, it makes it now, in the internal heap.
pub fn touch_name_service() {
    static LOOKUP: AtomicUsize = AtomicUsize::new(1);
    let mut lookup = LOOKUP.load(Ordering::Relaxed);
    if lookup == 1 {
        lookup = sys::next_definition(c"__nss_database_get");
        LOOKUP.store(lookup, Ordering::Relaxed);
    }
    if lookup == 0 {
        return;
    }
    let _internal = tls::Internal::enter();
    let mut actions: *mut c_void = std::ptr::null_mut();
    // The first database, "aliases": any will do.
    const ALIASES: i32 = 0;
    // SAFETY: glibc 2.34 and later define it with this type; it writes one pointer.
    unsafe {
        let lookup = std::mem::transmute::<usize, unsafe extern "C" fn(i32, *mut *mut c_void) -> bool>(lookup);
        lookup(ALIASES, &mut actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_holds_the_streams_that_are_open() {
        // SAFETY: plain use of stdio.
        let file = unsafe { libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr()) };
        assert!(!file.is_null());
        lock_list();
        let mut found = false;
        // SAFETY: the list is locked.
        unsafe {
            let mut stream = _IO_list_all;
            while !stream.is_null() {
                found |= std::ptr::eq(stream.cast(), file);
                assert!(!(*stream).lock.is_null());
                stream = (*stream).chain;
            }
        }
        touch_streams();
        unlock_list();
        assert!(found);
        // SAFETY: opened above.
        unsafe { libc::fclose(file) };
        touch_name_service();
    }
}
