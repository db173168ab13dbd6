//! Robust mutexes in managed memory stay in memory.
//!
//! When a thread ends, however it does, the kernel goes through the list of the robust mutexes that
//! it holds and marks each as one whose owner has died. At a page that is out it stops, and who
//! waits for that mutex waits for ever. There are few such mutexes, and each is made by
//! pthread_mutex_init: its page becomes unmanaged ([`kernel_words`]), in the children of forks too.

use crate::kernel_words;
use crate::sys::real;
use std::ffi::c_int;

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
        if result == 0 && is_robust(mutex) {
            kernel_words::keep(mutex as usize, size_of::<libc::pthread_mutex_t>());
        }
        result
    }
}

/// # Safety
///
/// `mutex` is one that was initialized.
unsafe fn is_robust(mutex: *const libc::pthread_mutex_t) -> bool {
    // At its place in glibc's ABI.
    const KIND: usize = 16;
    const ROBUST: i32 = 16;
    // SAFETY: the caller's promise.
    unsafe { mutex.cast::<u8>().add(KIND).cast::<i32>().read() & ROBUST != 0 }
}
