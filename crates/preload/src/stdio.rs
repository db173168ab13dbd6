//! What the C library touches in a forked child before our child handler has run.
//!
//! In the child of a process with threads, glibc resets the lock of every open stream and its
//! name-service state, and only then calls fork handlers, whose list may have outgrown its static
//! place. All that lies in memory that it got from malloc, and so perhaps in managed memory. An
//! absent page would read as zeros there, because the child's engine is not up yet. So these pages
//! are made present before the fork, after eviction has stopped.
//!
//! The program's own fork handlers have run by then, and may hold the locks of its malloc: nothing
//! here calls the C library but for the list's lock. What it has on the heap is found by the
//! pointers in its variables ([`touch_state`]).
//!
//! The list of streams is locked from before the gate closes until after the fork: its lock is
//! recursive, glibc's fork takes it again, and no thread that holds it can then be waiting for the
//! gate or for a page.

use crate::pool::KernelAccess;
use crate::{image, pool};
use overspill_os::PAGE_SIZE;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

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
const _: () = assert!(
    std::mem::offset_of!(Stream, chain) == 104 && std::mem::offset_of!(Stream, lock) == 136
);
const _: () = assert!(size_of::<Stream>() == 224);

unsafe extern "C" {
    /// The most recently opened stream.
    static _IO_list_all: *const Stream;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

/// Makes the managed pages of a range present, and writable without another fault where the program
/// may write. Called while a fork is prepared, after eviction has stopped: mappings stand still.
pub fn touch(range: Range<usize>) {
    let inside = pool::split(range).inside;
    for page in (inside.start & !(PAGE_SIZE - 1)..inside.end).step_by(PAGE_SIZE) {
        let allowed =
            |access| pool::accessible_in_fork(page..page + PAGE_SIZE, access) == PAGE_SIZE;
        // SAFETY: the page may be accessed in this way, and stays so until the fork is over. The
        // write changes nothing and is atomic, so that no other thread's is lost; the compiler does
        // not know that it adds nothing.
        unsafe {
            if allowed(KernelAccess::Write) {
                AtomicU8::from_ptr(page as *mut u8).fetch_add(black_box(0), Relaxed);
            } else if allowed(KernelAccess::Read) {
                (page as *const u8).read_volatile();
            }
        }
    }
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

/// Makes it free in the child, whatever glibc has done with it: it resets it only if the parent had
/// threads.
pub fn reset_list() {
    // SAFETY: the child has one thread, which does not use the list now.
    unsafe { _IO_list_resetlock() };
}

/// Makes present what glibc writes in the child: every stream and its lock. The list is locked.
pub fn touch_streams() {
    /// Three words.
    const LOCK_BYTES: usize = 16;
    // SAFETY: 1. the list is locked, so its members are live streams; 2. a stream's lock is live
    // with it.
    unsafe {
        let mut stream = _IO_list_all;
        while !stream.is_null() {
            touch(stream as usize..stream.add(1) as usize);
            let lock = (*stream).lock as usize;
            touch(lock..lock + LOCK_BYTES);
            stream = (*stream).chain;
        }
    }
}

/// Where the C library's variables lie.
static VARIABLES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Looks for the C library's variables. Called by the constructor: later a thread may hold the
/// loader's lock while it waits for a page.
pub fn find_state() {
    let library = image::of(libc::gnu_get_libc_version as *const () as usize).unwrap_or_default();
    VARIABLES[0].store(library.variables.start, Relaxed);
    VARIABLES[1].store(library.variables.end, Relaxed);
}

/// Makes present what the C library's variables point at, as much as any of these that matter here
/// has. glibc takes the lock of the name service after our handler, when nobody serves its faults.
pub fn touch_state() {
    /// The largest, the state of name services, has half of that.
    const BYTES: usize = 1 << 10;
    let variables = VARIABLES[0].load(Relaxed)..VARIABLES[1].load(Relaxed);
    for at in variables.step_by(size_of::<usize>()) {
        // SAFETY: a word of the C library's data. Other threads may write it: an old value does no
        // harm.
        let pointer = unsafe { (at as *const usize).read_volatile() };
        if pool::contains(pointer) {
            touch(pointer..pointer + BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_variables_are_found() {
        find_state();
        let variables = VARIABLES[0].load(Relaxed)..VARIABLES[1].load(Relaxed);
        assert!(variables.contains(&(&raw const _IO_list_all as usize)));
        // SAFETY: an address is asked for.
        let errors = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"stderr".as_ptr()) } as usize;
        assert!(variables.contains(&errors) && variables.len() < 1 << 20, "{variables:?}");
    }

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
    }
}
