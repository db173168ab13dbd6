//! Threads: what glibc allocates for them is never managed memory, and stacks that the program provides are.
//!
//! pthread_create allocates the new thread's dynamic thread vector with calloc. It runs in an internal section, so
//! that the vector comes from the internal heap: engine threads read it, and in signal delivery the SIGBUS handler
//! does. A vector that grows later, after a dlopen, is moved by a realloc on the thread itself and may then be
//! managed memory; engine threads never reach that point, because this library reaches its thread-local data
//! without the vector ([`overspill_os::tls`]) and the program's libraries never run on them.
//!
//! A stack that the program gives a thread may be managed memory. The end at which glibc keeps the thread's control
//! block is locked in memory, because the child of a fork walks the control blocks of all threads before its engine
//! is up, and the kernel writes there when a thread ends; in signal delivery the whole stack and every alternate
//! signal stack is, because a signal frame cannot be pushed onto an absent page.

use crate::route::{pages_touched, split};
use crate::sys::real;
use crate::{heap, pool, sys};
use overspill_os::tls;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// What is locked at the top of a thread's stack in thread delivery: the control block (2.3 KiB in glibc 2.36) and the
/// static thread-local data below it (glibc reserves some 4 KiB beyond what the program's libraries need).
const CONTROL_BYTES: usize = 16 << 10;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// pthread_create(3).
///
/// # Safety
///
/// As for pthread_create(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let create = real!(c"pthread_create" as Create);
    if !tls::is_program() {
        // SAFETY: the caller's promise.
        return unsafe { create_engine_thread(create, thread, attributes, EngineStart { start, argument }) };
    }
    let _internal = tls::Internal::enter();
    // SAFETY: the caller's promise.
    unsafe { create(thread, attributes, start, argument) }
}

/// What an engine thread runs.
struct EngineStart {
    start: Start,
    argument: *mut c_void,
}

/// Makes a thread that is the engine's from its first instruction: what Rust's runtime and the C library allocate on
/// it before it gets to the engine's code is no program's request either.
///
/// # Safety
///
/// As for pthread_create(3).
unsafe fn create_engine_thread(
    create: Create,
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: EngineStart,
) -> c_int {
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: written below for this thread, which frees it.
        let EngineStart { start, argument } = unsafe {
            let copy = start.cast::<EngineStart>().read();
            heap::free(start.cast());
            copy
        };
        tls::mark_engine_thread();
        start(argument)
    }
    let place = heap::alloc(size_of::<EngineStart>(), align_of::<EngineStart>()).cast::<EngineStart>();
    if place.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: 1. the block has the size and alignment; 2. the caller's promise; 3. without a thread nobody has it.
    unsafe {
        place.write(start);
        let result = create(thread, attributes, run, place.cast());
        if result != 0 {
            heap::free(place.cast());
        }
        result
    }
}

/// Locks in memory the managed part of a range; that it may fail (a budget too small) is no reason to refuse a stack.
fn lock_in_memory(range: Option<Range<usize>>) {
    let Some(range) = range else { return };
    let inside = split(range, pool::window()).inside;
    if !inside.is_empty() && tls::is_program() {
        let _ = pool::mlock(inside, false);
    }
}

/// pthread_attr_setstack(3).
///
/// # Safety
///
/// As for pthread_attr_setstack(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_attr_setstack(
    attributes: *mut libc::pthread_attr_t,
    start: *mut c_void,
    len: usize,
) -> c_int {
    type SetStack = unsafe extern "C" fn(*mut libc::pthread_attr_t, *mut c_void, usize) -> c_int;
    // SAFETY: the caller's promise.
    let result = unsafe { real!(c"pthread_attr_setstack" as SetStack)(attributes, start, len) };
    if result == 0 && pool::contains(start as usize) {
        let locked = if pool::signal_delivery() { len } else { len.min(CONTROL_BYTES) };
        lock_in_memory(pages_touched(start as usize + (len - locked), locked));
    }
    result
}

/// sigaltstack(2).
///
/// # Safety
///
/// As for sigaltstack(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    if pool::signal_delivery() && !new.is_null() {
        // SAFETY: the caller's promise.
        let stack = unsafe { new.read() };
        if stack.ss_flags & libc::SS_DISABLE == 0 {
            lock_in_memory(pages_touched(stack.ss_sp as usize, stack.ss_size));
        }
    }
    // SAFETY: as above; the C library's function does no more than this.
    sys::to_c_int(sys::check(unsafe { syscalls::raw_syscall!(syscalls::Sysno::sigaltstack, new, old) }))
}
