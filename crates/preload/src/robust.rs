//! Robust mutexes in managed memory stay in memory.
//!
//! When a thread ends, however it does, the kernel goes through the list of the robust mutexes that
//! it holds and marks each as one whose owner has died. It does not wait for pages then: at one
//! that is out it stops, and who waits for that mutex waits for ever. There are few such mutexes,
//! and each is made by pthread_mutex_init: its page is held from there until pthread_mutex_destroy.

use crate::pool;
use crate::route::pages_touched;
use crate::sys::real;
use overspill_os::tls;
use std::ffi::c_int;
use std::ops::Range;

/// The pages of a mutex if it is robust and managed.
///
/// # Safety
///
/// `mutex` is one that was initialized.
unsafe fn robust(mutex: *const libc::pthread_mutex_t) -> Option<Range<usize>> {
    // At its place in glibc's ABI.
    const KIND: usize = 16;
    const ROBUST: i32 = 16;
    if !pool::contains(mutex as usize) || !tls::is_program() {
        return None;
    }
    // SAFETY: the caller's promise.
    let kind = unsafe { mutex.cast::<u8>().add(KIND).cast::<i32>().read() };
    (kind & ROBUST != 0)
        .then(|| pages_touched(mutex as usize, size_of::<libc::pthread_mutex_t>()))
        .flatten()
}

/// pthread_mutex_init(3).
///
/// # Safety
///
/// As for pthread_mutex_init(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    type Init =
        unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        let result = real!(c"pthread_mutex_init" as Init)(mutex, attributes);
        if result == 0
            && let Some(pages) = robust(mutex)
        {
            // Where there is no room to keep it, it is as any other page.
            pool::hold(pages);
        }
        result
    }
}

/// pthread_mutex_destroy(3).
///
/// # Safety
///
/// As for pthread_mutex_destroy(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int {
    type Destroy = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        let pages = robust(mutex);
        let result = real!(c"pthread_mutex_destroy" as Destroy)(mutex);
        if result == 0
            && let Some(pages) = pages
        {
            pool::release(pages);
        }
        result
    }
}
