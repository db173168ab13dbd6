//! What threads of the program have done in the sibling, whose descriptors it needs.
//!
//! Locks: `CALLS`, a leaf.

use super::filters::come_by;
use super::thread::spawn;
use crate::engine_thread::EngineThread;
use crate::lock::RawLock;
use crate::process::is_here;
use crate::units::Errno;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use syscalls::{Sysno, raw_syscall};

/// What a thread of the program wants done in the sibling: on that thread's stack, while it waits.
struct Call {
    run: unsafe fn(*mut c_void),
    argument: *mut c_void,
    next: *mut Call,
    done: AtomicU32,
}

/// Calls that wait, the last first; [`serve_calls`] takes them.
struct Calls {
    lock: RawLock,
    last: UnsafeCell<*mut Call>,
    /// Counts calls, for the thread that serves them to sleep on.
    made: AtomicU32,
    /// Whether there is such a thread.
    served: AtomicU32,
}

// SAFETY: the cell is accessed under the lock only.
unsafe impl Sync for Calls {}

static CALLS: Calls = Calls {
    lock: RawLock::new(),
    last: UnsafeCell::new(std::ptr::null_mut()),
    made: AtomicU32::new(0),
    served: AtomicU32::new(0),
};

/// Runs `work` in the sibling, whose descriptors it needs, while the calling thread of the program
/// waits. Allocates nothing.
pub fn call<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    struct Work<F, R> {
        work: Option<F>,
        result: Option<R>,
    }
    unsafe fn run<F: FnOnce() -> R, R>(argument: *mut c_void) {
        // SAFETY: `call` passes its own work, which nobody else touches until it is done.
        let work = unsafe { &mut *argument.cast::<Work<F, R>>() };
        work.result = work.work.take().map(|work| work());
    }
    fn runner<F: FnOnce() -> R, R>(_: &Work<F, R>) -> unsafe fn(*mut c_void) {
        run::<F, R>
    }
    let mut work = Work { work: Some(work), result: None };
    let run = runner(&work);
    let mut call = Call {
        run,
        argument: (&raw mut work).cast(),
        next: std::ptr::null_mut(),
        done: AtomicU32::new(0),
    };
    CALLS.lock.with(|| {
        // SAFETY: the lock is held; the call lives until it is done.
        unsafe {
            call.next = *CALLS.last.get();
            *CALLS.last.get() = &raw mut call;
        }
    });
    nudge();
    while call.done.load(Acquire) == 0 {
        let _ = futex::wait(&call.done, futex::Flags::PRIVATE, 0, None);
    }
    work.result.expect("what is done has a result")
}

/// Has the thread that serves calls look for one.
pub(super) fn nudge() {
    CALLS.made.fetch_add(1, Release);
    let _ = futex::wake(&CALLS.made, futex::Flags::PRIVATE, 1);
}

/// In the sibling: has a thread serve the calls of the program, unless there is one.
///
/// # Errors
/// What clone(2) says.
pub fn serve_calls() -> Result<(), Errno> {
    if !is_here() || CALLS.served.swap(1, Acquire) != 0 {
        return Ok(());
    }
    spawn(EngineThread::new(c"overspill-io", || {
        loop {
            come_by();
            let made = CALLS.made.load(Acquire);
            // SAFETY: the lock is held.
            let mut next = CALLS.lock.with(|| unsafe {
                std::mem::replace(&mut *CALLS.last.get(), std::ptr::null_mut())
            });
            if next.is_null() {
                let _ = futex::wait(&CALLS.made, futex::Flags::PRIVATE, made, None);
            }
            while !next.is_null() {
                // SAFETY: a call lives until it is done, and is not looked at afterwards but to
                // wake who waits at its address.
                unsafe {
                    let call = next;
                    next = (*call).next;
                    ((*call).run)((*call).argument);
                    let done = &raw const (*call).done;
                    (*done).store(1, Release);
                    raw_syscall!(
                        Sysno::futex,
                        done,
                        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                        1
                    );
                }
            }
        }
    }))
    .inspect_err(|_| CALLS.served.store(0, Release))
}

/// Before a fork: nobody is at the list meanwhile.
pub(super) fn fork_prepare() {
    CALLS.lock.lock();
}

/// After a fork, in parent and child.
pub(super) fn fork_done() {
    CALLS.lock.unlock();
}

/// In the child of a fork: calls that waited are those of its parent's threads.
pub(super) fn reset_in_child() {
    CALLS.served.store(0, Relaxed);
    // SAFETY: the child has one thread.
    unsafe { *CALLS.last.get() = std::ptr::null_mut() };
}
