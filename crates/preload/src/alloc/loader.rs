//! The loader's memory is never managed memory.
//!
//! The loader keeps its data by the malloc that it finds when the program starts, ours or the
//! program's own: the list of libraries, and each thread's vector of thread-local blocks. The
//! vectors of threads that the C library makes for itself (asynchronous I/O, timers) are among
//! them, and those that grow after a dlopen. A handler of SIGBUS that reaches a thread-local
//! variable by an absent vector would fault itself; and a thread that the engine makes in the child
//! of a fork must not wait for a lock of the program's malloc. So these requests go to the internal
//! heap ([`crate::heap`]).
//!
//! The loader calls malloc by addresses among its constants, which are replaced. It frees what it
//! has allocated, and nothing else; what is not the internal heap's is from before, and goes where
//! it came from. The C library frees some of that too, as it gives the stack of a thread that has
//! ended to another: by its own `free`, which is the program's if its executable has one. That
//! would get a block that it does not know, so the C library's address of it is replaced as well.

use super::entries;
use crate::{alloc, heap, image};
use overspill_os::{Errno, tls};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the loader has found.
static FREE: AtomicUsize = AtomicUsize::new(0);
static REALLOC: AtomicUsize = AtomicUsize::new(0);

extern "C" fn malloc(size: usize) -> *mut c_void {
    let _internal = tls::Internal::enter();
    alloc::malloc(size)
}

extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let _internal = tls::Internal::enter();
    alloc::calloc(count, size)
}

unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    if !block.is_null() && !heap::contains(block as usize) {
        // SAFETY: the function by which the loader got the block.
        return unsafe {
            std::mem::transmute::<usize, Realloc>(REALLOC.load(Relaxed))(block, size)
        };
    }
    let _internal = tls::Internal::enter();
    // SAFETY: the caller's promise.
    unsafe { alloc::realloc(block, size) }
}

unsafe extern "C" fn free(block: *mut c_void) {
    type Free = unsafe extern "C" fn(*mut c_void);
    if block.is_null() || heap::contains(block as usize) {
        // SAFETY: the caller's promise.
        return unsafe { alloc::free(block) };
    }
    // SAFETY: as in `realloc`.
    unsafe { std::mem::transmute::<usize, Free>(FREE.load(Relaxed))(block) }
}

/// What the loader has found, and what it is to call instead.
fn pairs() -> [(usize, usize); 4] {
    // SAFETY: the names are C strings; this is how the loader looks for them.
    let found = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    FREE.store(found(c"free"), Relaxed);
    REALLOC.store(found(c"realloc"), Relaxed);
    [
        (found(c"malloc"), malloc as *const () as usize),
        (found(c"calloc"), calloc as *const () as usize),
        (REALLOC.load(Relaxed), realloc as *const () as usize),
        (FREE.load(Relaxed), free as *const () as usize),
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
    let pairs = pairs();
    let replace =
        |at: usize, pairs: &[_]| image::of(at).map_or(Ok(()), |library| library.replace(pairs));
    replace(__tls_get_addr as *const () as usize, &pairs)?;
    if entries::has_ours() {
        return Ok(());
    }
    let [.., free] = pairs;
    replace(libc::gnu_get_libc_version as *const () as usize, &[free])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_keeps_the_addresses_of_all_four() {
        let loader = image::of(__tls_get_addr as *const () as usize).unwrap();
        for (found, _) in pairs() {
            assert_eq!(loader.count(found), 1);
        }
    }
}
