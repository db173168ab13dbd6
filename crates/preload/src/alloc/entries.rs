//! The C library's own malloc is ours, whichever way it is reached, and so is its end of the
//! process.
//!
//! Most code calls malloc by its symbol, and finds ours. A library that is opened with
//! RTLD_DEEPBIND looks among its own dependencies first, and finds the C library's; so does who
//! asks dlsym for it there. But getline and strdup call malloc by the symbol, so such a library
//! frees a block of ours with the C library's free, and that ends the program. Therefore the C
//! library's functions begin with a jump to ours. dlopen could leave RTLD_DEEPBIND out instead, but
//! then the library's other symbols were bound otherwise than without us, and dlsym would still
//! find two allocators.
//!
//! The constructor does this before any other code of the process has run, so no block of the C
//! library's is about. The end of the process is taken when it has an engine, which ends first. A
//! malloc in the program's executable wins over ours; its blocks come to the C library's functions
//! as little as they do without us. A C library that dlmopen loads into a namespace of its own
//! stays as it is: there everybody calls that one. Where code may not be changed nothing is.

use crate::redirect::{self, Replacement};
use crate::{alloc, sys};
use overspill_os::beside;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The function that ends the process: exit(3) calls it by no symbol.
fn last() -> [Replacement; 1] {
    [(c"_exit", exit as *const () as usize)]
}

/// The functions that make and free blocks.
fn functions() -> [Replacement; 10] {
    [
        (c"malloc", alloc::malloc as *const () as usize),
        (c"free", alloc::free as *const () as usize),
        (c"calloc", alloc::calloc as *const () as usize),
        (c"realloc", alloc::realloc as *const () as usize),
        (c"memalign", alloc::memalign as *const () as usize),
        (c"aligned_alloc", alloc::aligned_alloc as *const () as usize),
        (c"posix_memalign", alloc::posix_memalign as *const () as usize),
        (c"valloc", alloc::valloc as *const () as usize),
        (c"pvalloc", alloc::pvalloc as *const () as usize),
        (c"malloc_usable_size", alloc::malloc_usable_size as *const () as usize),
    ]
}

/// The C library's syscall(2): not looked up at the end, when somebody may hold the loader's lock
/// for ever.
static SYSCALL: AtomicUsize = AtomicUsize::new(0);

/// _exit(2).
pub extern "C" fn exit(status: c_int) -> ! {
    // SAFETY: the C library's function, found by `start`.
    unsafe { beside::exit_group(status, SYSCALL.load(Relaxed)) }
}

/// Whether the program's malloc is ours. One in its executable wins over it, and may map memory
/// while it holds its lock.
pub fn has_ours() -> bool {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    std::ptr::eq(found, alloc::malloc as *const c_void)
}

/// Has a sanitizer's malloc begin. That of AddressSanitizer takes the stack on which it is
/// called first for that of the main thread, and misses leaks and overflows if it is another: not
/// the engine's, on which the process wakes. A program's own is left alone: it may not be ready for
/// calls before the program has begun (that of GNU Common Lisp).
pub fn begin_theirs() {
    // SAFETY: functions of these names are of these types.
    unsafe {
        let malloc = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"free".as_ptr());
        let malloc: Option<extern "C" fn(usize) -> *mut c_void> = std::mem::transmute(malloc);
        let free: Option<unsafe extern "C" fn(*mut c_void)> = std::mem::transmute(free);
        if let (Some(malloc), Some(free)) = (malloc, free) {
            free(malloc(1));
        }
    }
}

/// Changes those of blocks. Called while the process has one thread.
pub fn start() {
    SYSCALL.store(sys::next_definition(c"syscall"), Relaxed);
    let _ = redirect::change(functions(), sys::next_definition);
}

/// Changes the one that ends the process, which has an engine: that ends first. Called while the
/// process has one thread.
pub fn take_exit() {
    let _ = redirect::change(last(), sys::next_definition);
}
