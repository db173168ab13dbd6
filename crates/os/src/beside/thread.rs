//! Threads of the sibling.

use super::clone::{THREAD_FLAGS, overspill_clone};
use super::stack::{self, Stack};
use super::storage::{RSEQ_BYTES, template};
use super::{credentials, filters};
use crate::engine_thread::EngineThread;
use crate::units::{Errno, check};
use crate::{pointer, signal, tls};
use std::ffi::{CStr, c_void};
use std::sync::atomic::Ordering::Release;
use syscalls::{Sysno, raw_syscall};

/// The mark that the C library registers an area of restartable sequences with.
const RSEQ_MARK: usize = 0x5305_3053;

/// Starts another thread in the sibling, from one of its threads.
pub(crate) fn spawn(started: EngineThread) -> Result<(), Errno> {
    let stack = Stack::take()?;
    // No change in between: the new thread would not know that it has it already.
    let _blocked = signal::Blocked::all();
    stack.inherit(stack::own().map_or_else(made_by_program, Stack::made));
    let started = Box::into_raw(Box::new(started));
    let thread_pointer = stack.prepare(run, started.cast());
    // SAFETY: 1. the stack and the thread pointer belong to the new thread alone; 2. the word lives
    // for ever, and says when the stack is free; 3. `run` takes the box over.
    let made = unsafe {
        overspill_clone(THREAD_FLAGS as usize, stack.top(), thread_pointer, &stack.in_use)
    };
    check(made as usize).map(drop).inspect_err(|_| {
        stack.in_use.store(0, Release);
        // SAFETY: nobody has got the box.
        drop(unsafe { Box::from_raw(started) });
    })
}

/// The last change of credentials that the program has made, and the last filter that it has.
pub(super) fn made_by_program() -> [u32; 2] {
    [credentials::last(), filters::last()]
}

/// The body of a further thread.
unsafe extern "C" fn run(started: *mut c_void) {
    // SAFETY: `spawn` gives this thread the box.
    let started = unsafe { Box::from_raw(started.cast::<EngineThread>()) };
    begin_thread(started.name);
    (started.body)();
}

/// Prepares a thread of ours: every signal blocked, a name, an area of restartable sequences.
pub(super) fn begin_thread(name: &CStr) {
    pointer::forget();
    tls::mark_engine_thread();
    signal::change_mask(libc::SIG_SETMASK, !(1 << (credentials::SIGNAL - 1)));
    let _ = rustix::thread::set_name(name);
    let rseq = template().rseq;
    if rseq != 0 {
        let area = tls::thread_pointer().wrapping_add_signed(rseq);
        // SAFETY: the area lies in this thread's own storage, which ends with the thread.
        unsafe { raw_syscall!(Sysno::rseq, area, RSEQ_BYTES, 0usize, RSEQ_MARK) };
    }
}
