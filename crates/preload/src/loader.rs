//! The loader's memory is never managed memory.
//!
//! The loader keeps its data by the malloc that it finds when the program starts, which is ours: the list of libraries, and each
//! thread's vector of thread-local blocks. The vectors of threads that the C library makes for itself (asynchronous I/O, timers) are
//! among them, and those that grow after a dlopen. A handler of SIGBUS that reaches a thread-local variable by an absent
//! vector would fault itself; so these requests go to the internal heap ([`crate::heap`]).
//!
//! The loader calls malloc by addresses among its constants, which are replaced.

use crate::{alloc, image};
use overspill_os::{Errno, tls};
use std::ffi::c_void;

extern "C" fn malloc(size: usize) -> *mut c_void {
    let _internal = tls::Internal::enter();
    alloc::malloc(size)
}

extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let _internal = tls::Internal::enter();
    alloc::calloc(count, size)
}

unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let _internal = tls::Internal::enter();
    // SAFETY: the caller's promise.
    unsafe { alloc::realloc(block, size) }
}

/// What the loader has found, and what it is to call instead.
fn pairs() -> [(usize, usize); 3] {
    [
        (alloc::malloc as *const () as usize, malloc as *const () as usize),
        (alloc::calloc as *const () as usize, calloc as *const () as usize),
        (alloc::realloc as *const () as usize, realloc as *const () as usize),
    ]
}

unsafe extern "C" {
    /// A function of the loader's.
    fn __tls_get_addr(index: *const c_void) -> *mut c_void;
}

/// Replaces them. Called while the process has one thread.
///
/// # Errors
/// When the loader's data cannot be changed.
pub fn start() -> Result<(), Errno> {
    image::of(__tls_get_addr as *const () as usize).map_or(Ok(()), |loader| loader.replace(&pairs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn the_loader_keeps_the_addresses_of_all_three() {
        let loader = image::of(__tls_get_addr as *const () as usize).unwrap();
        for name in [c"malloc", c"calloc", c"realloc"] {
            assert_eq!(loader.count(sys::next_definition(name)), 1, "{name:?}");
        }
    }
}
