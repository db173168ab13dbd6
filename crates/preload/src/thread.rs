//! Threads: what glibc allocates for them is never managed memory, and stacks that the program
//! provides are.
//!
//! pthread_create allocates the new thread's dynamic thread vector with calloc. It runs in an
//! internal section, so that the vector comes from the internal heap: engine threads read it, and
//! in signal delivery the SIGBUS handler does. A vector that grows later, after a dlopen, is moved
//! by a realloc on the thread itself and may then be managed memory; engine threads never reach
//! that point, because this library reaches its thread-local data without the vector
//! ([`overspill_os::tls`]) and the program's libraries never run on them.
//!
//! A stack that the program gives a thread may be managed memory. The end at which glibc keeps the
//! thread's control block becomes unmanaged where it is: the child of a fork walks the control
//! blocks of all threads before its engine is up, and the kernel writes there when it changes the
//! thread's processor (rseq) and when the thread ends or executes, which may be when nobody is left
//! to serve a fault. In signal delivery the kernel cannot push a signal frame onto an absent page
//! either, so the whole stack becomes unmanaged, and every thread gets a signal stack
//! ([`crate::signals::altstack`]).

use crate::signals::altstack;
use crate::sys::real;
use crate::{dormant, heap, kernel_words, memory, pool};
use overspill_os::{pointer, tls};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What becomes unmanaged at the top of a thread's stack in thread delivery: the control block
/// (2.3 KiB in glibc 2.36) and the static thread-local data below it (glibc reserves some 4 KiB
/// beyond what the program's libraries need).
const CONTROL_BYTES: usize = 16 << 10;

/// Threads that the program has made, or tried to.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// How many threads the program has made, or tried to.
pub fn made() -> usize {
    MADE.load(Ordering::Relaxed)
}

/// The program makes another.
pub fn note_made() {
    MADE.fetch_add(1, Ordering::Relaxed);
}

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> c_int;

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
        // A thread of the engine's, which marks itself before anything else.
        // SAFETY: the caller's promise.
        return unsafe { create(thread, attributes, start, argument) };
    }
    if !dormant::wake() {
        return libc::EAGAIN;
    }
    note_made();
    keep_given_stack(attributes);
    let _internal = tls::Internal::enter();
    let place = heap::alloc(size_of::<Started>(), align_of::<Started>()).cast::<Started>();
    if place.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: 1. the block has the size and alignment; 2. the caller's promise; 3. without a thread
    // nobody has it.
    unsafe {
        place.write(Started { start, argument });
        let result = create(thread, attributes, overspill_thread_run, place.cast());
        if result != 0 {
            heap::free(place.cast());
        }
        result
    }
}

/// Has the upper end of a stack that attributes give stay present, or all of it.
fn keep_given_stack(attributes: *const libc::pthread_attr_t) {
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: attributes of the program's, which it is about to use, and two places of ours.
    let is_given = !attributes.is_null()
        && unsafe { libc::pthread_attr_getstack(attributes, &mut start, &mut len) } == 0;
    let kept = if pool::signal_delivery() { len } else { len.min(CONTROL_BYTES) };
    if let Some(end) = (start as usize).checked_add(len).filter(|_| is_given) {
        kernel_words::keep(end - kept, kept);
    }
}

/// What a new thread of the program runs.
struct Started {
    start: Start,
    argument: *mut c_void,
}

// The first function of every thread of the program: it asks what to run and jumps there, so that
// no frame of ours is on the stack when pthread_exit or a cancellation unwinds it, which Rust's
// functions do not allow.
global_asm!(
    ".pushsection .text.overspill_thread_run,\"ax\",@progbits",
    ".hidden overspill_thread_run",
    ".globl overspill_thread_run",
    ".type overspill_thread_run, @function",
    "overspill_thread_run:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {begin}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "mov rdi, rdx",
    "jmp rax",
    ".cfi_endproc",
    ".popsection",
    begin = sym begin,
);

unsafe extern "C" {
    fn overspill_thread_run(started: *mut c_void) -> *mut c_void;
}

/// What a thread runs, in the two registers in which C returns such a pair.
#[repr(C)]
struct StartRoutine {
    start: Start,
    argument: *mut c_void,
}

/// Takes note of a new thread, and says what it runs.
extern "C" fn begin(started: *mut c_void) -> StartRoutine {
    // SAFETY: written by `pthread_create` for this thread, which frees it.
    let Started { start, argument } = unsafe {
        let copy = started.cast::<Started>().read();
        heap::free(started.cast());
        copy
    };
    if pool::signal_delivery() {
        pointer::forget();
        altstack::give();
    }
    StartRoutine { start, argument }
}

/// Functions by which the C library makes threads for itself: a dormant process wakes before.
macro_rules! thread_makers {
    ($($name:literal $symbol:ident($($argument:ident: $type:ty),*) if $when:expr;)*) => {
        $(
            #[doc = concat!(stringify!($symbol), "(3).")]
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> c_int {
                if dormant::concerns() && $when {
                    dormant::wake();
                }
                // SAFETY: the caller's promise.
                unsafe { real!($name as unsafe extern "C" fn($($type),*) -> c_int)($($argument),*) }
            }
        )*
    };
}

/// Whether a thread is to tell of an event.
fn by_thread(event: *const libc::sigevent) -> bool {
    let event = memory::read::<i32>(event as usize + offset_of!(libc::sigevent, sigev_notify));
    event == Some(libc::SIGEV_THREAD)
}

thread_makers! {
    c"timer_create" timer_create(clock: c_int, event: *const libc::sigevent, timer: *mut c_void)
        if by_thread(event);
    c"mq_notify" mq_notify(queue: c_int, event: *const libc::sigevent) if by_thread(event);
    c"aio_read" aio_read(request: *mut c_void) if true;
    c"aio_read64" aio_read64(request: *mut c_void) if true;
    c"aio_write" aio_write(request: *mut c_void) if true;
    c"aio_write64" aio_write64(request: *mut c_void) if true;
    c"aio_fsync" aio_fsync(operation: c_int, request: *mut c_void) if true;
    c"aio_fsync64" aio_fsync64(operation: c_int, request: *mut c_void) if true;
    c"lio_listio" lio_listio(mode: c_int, list: *mut c_void, count: c_int, event: *mut c_void)
        if true;
    c"lio_listio64" lio_listio64(mode: c_int, list: *mut c_void, count: c_int, event: *mut c_void)
        if true;
    c"getaddrinfo_a" getaddrinfo_a(mode: c_int, list: *mut c_void, count: c_int, event: *mut c_void)
        if true;
}
