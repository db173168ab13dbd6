//! The rules of the fault path, checked in debug builds: signals are blocked on it, and the heap is
//! left alone.
//!
//! Whoever serves a fault must not wait for what the faulting program may hold: the lock of a heap,
//! or of anything else that the program's own calls take. [`FaultPath`] marks the stretch on the
//! calling thread. A test whose global allocator is [`CheckedAllocator`] ends at the first
//! allocation, growth or release in such a stretch; the engine's locks ask
//! [`FaultPath::is_marked`].
//!
//! In a release build the mark is nothing. No locks.

use crate::report::report;
use crate::signal;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// How many marks the thread has. Constant at first and without a destructor, so that nothing
    /// is registered.
    static MARKS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread is on the fault path while this lives; marks nest.
#[derive(Debug)]
pub struct FaultPath {
    /// It counts on the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl FaultPath {
    /// Marks the calling thread, on which all signals are blocked.
    #[inline(always)]
    pub fn enter() -> FaultPath {
        if cfg!(debug_assertions) {
            if MARKS.get() == 0 {
                assert!(
                    signal::all_blocked(),
                    "engine code runs on a thread where a signal handler can interrupt it"
                );
            }
            MARKS.set(MARKS.get() + 1);
        }
        FaultPath { not_send: PhantomData }
    }

    /// Whether the calling thread is marked; in a release build it never is.
    #[inline(always)]
    pub fn is_marked() -> bool {
        cfg!(debug_assertions) && MARKS.get() > 0 && !crate::tls::is_shared()
    }
}

impl Drop for FaultPath {
    #[inline(always)]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            // Where a process shares a thread's storage the marks are those of both.
            MARKS.set(MARKS.get().saturating_sub(1));
        }
    }
}

/// The system's allocator for tests: use of it on the fault path ends the process with a message. A
/// thread that panics may allocate, so that its own message is seen.
#[derive(Debug)]
pub struct CheckedAllocator;

impl CheckedAllocator {
    #[inline(always)]
    fn check(call: &str, bytes: usize) {
        if FaultPath::is_marked() && !std::thread::panicking() {
            report(format_args!("{call} of {bytes} bytes on the fault path"));
            std::process::abort();
        }
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CheckedAllocator::check("an allocation", layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CheckedAllocator::check("an allocation", layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        CheckedAllocator::check("a reallocation", bytes);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        CheckedAllocator::check("a release", layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::signal::Blocked;

    #[test]
    fn marks_nest_and_belong_to_one_thread() {
        let _blocked = Blocked::all();
        assert!(!FaultPath::is_marked());
        let outer = FaultPath::enter();
        drop(FaultPath::enter());
        assert!(FaultPath::is_marked());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!FaultPath::is_marked())).join().unwrap()
        });
        drop(outer);
        assert!(!FaultPath::is_marked());
    }

    #[test]
    #[should_panic(expected = "a signal handler can interrupt it")]
    fn the_fault_path_begins_with_signals_blocked() {
        FaultPath::enter();
    }
}
