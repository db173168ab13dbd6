//! Stacks of the sibling's threads, with their thread-local storage.
//!
//! Locks: `STACKS`, a leaf.

use super::storage::{self, write_storage};
use crate::lock::RawLock;
use crate::units::{Errno, PAGE_SIZE};
use crate::{tls, vm};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Bytes of a thread's stack: deep enough for debug builds; touched lazily.
const STACK_BYTES: usize = 256 << 10;

/// In place of the number of a thread that has not begun.
pub(super) const NOT_BEGUN: i32 = 1;

/// Calls `each` with the stack of every thread of the sibling, and the thread's number.
pub(super) fn for_each_thread(mut each: impl FnMut(&'static Stack, i32)) {
    STACKS.lock.with(|| {
        for stack in STACKS.iter() {
            match stack.in_use.load(Acquire) {
                0 => {}
                number => each(stack, number as i32),
            }
        }
    });
}

/// Stack and thread-local storage of a thread of ours, one behind the other; never unmapped, used
/// again by later threads.
pub(super) struct Stack {
    /// The lowest address: a guard page.
    base: usize,
    /// Its bytes, thread-local storage included.
    bytes: usize,
    /// The number of the thread that is on it, [`NOT_BEGUN`] before it has, 0 for none: the kernel
    /// sets it and clears it.
    pub(super) in_use: AtomicU32,
    /// The last change of credentials that the thread has made, and the last filter of the
    /// program's that it has.
    pub(super) change: AtomicU32,
    pub(super) filter: AtomicU32,
    next: Option<&'static Stack>,
}

/// All stacks there are: the list grows at its head, under the lock, and never shrinks.
struct Stacks {
    lock: RawLock,
    first: AtomicPtr<Stack>,
}

static STACKS: Stacks =
    Stacks { lock: RawLock::new(), first: AtomicPtr::new(std::ptr::null_mut()) };

impl Stacks {
    /// The stacks; no lock is needed to go over them.
    fn iter(&self) -> impl Iterator<Item = &'static Stack> {
        std::iter::successors(self.first(), |stack| stack.next)
    }

    fn first(&self) -> Option<&'static Stack> {
        // SAFETY: what is in the list was leaked, and published when it was whole.
        unsafe { self.first.load(Acquire).as_ref() }
    }
}

/// Before a fork: nobody is at the list meanwhile.
pub(super) fn fork_prepare() {
    STACKS.lock.lock();
}

/// After a fork, in parent and child.
pub(super) fn fork_done() {
    STACKS.lock.unlock();
}

/// That of the calling thread, if it is one of ours. It takes no lock: handlers ask too.
pub(super) fn own() -> Option<&'static Stack> {
    let here = tls::stack_address();
    STACKS.iter().find(|stack| stack.range().contains(&here))
}

/// Gives back what the calling thread does not use of its stack, if that is one of ours: it was
/// deeper before.
pub fn forget_stack() {
    // The page below is for the calls that do it.
    let end = (tls::stack_address() & !(PAGE_SIZE - 1)).saturating_sub(PAGE_SIZE);
    let unused = own().map(|stack| stack.range().start..end);
    if let Some(unused) = unused.filter(|unused| !unused.is_empty()) {
        let _ = vm::advise(unused, vm::MADV_DONTNEED);
    }
}

/// In the child of a fork: the threads on our stacks are its parent's.
pub(super) fn reset_in_child() {
    for stack in STACKS.iter() {
        stack.in_use.store(0, Relaxed);
    }
}

impl Stack {
    /// A stack that nobody is on, for the caller alone.
    pub(super) fn take() -> Result<&'static Stack, Errno> {
        STACKS.lock.with(|| {
            let free =
                |stack: &&Stack| stack.in_use.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
            if let Some(stack) = STACKS.iter().find(free) {
                return Ok(stack);
            }
            let storage = storage::bytes() + storage::control_bytes();
            let bytes = (PAGE_SIZE + STACK_BYTES + storage).next_multiple_of(PAGE_SIZE);
            let base = vm::map_metadata(bytes)?;
            vm::protect(base..base + PAGE_SIZE, vm::Prot::NONE)?;
            let next = STACKS.first();
            let in_use = AtomicU32::new(NOT_BEGUN as u32);
            let (change, filter) = (AtomicU32::new(0), AtomicU32::new(0));
            let stack: &'static Stack =
                Box::leak(Box::new(Stack { base, bytes, in_use, change, filter, next }));
            STACKS.first.store(std::ptr::from_ref(stack).cast_mut(), Release);
            Ok(stack)
        })
    }

    /// The stack itself.
    fn range(&self) -> Range<usize> {
        self.base + PAGE_SIZE..self.thread_pointer() - storage::bytes()
    }

    /// The storage lies at the end, so that a thread that does little has it in the page in which
    /// its stack begins.
    fn thread_pointer(&self) -> usize {
        self.base + self.bytes - storage::control_bytes()
    }

    /// The last change of credentials that the thread on it has made, and the last filter that it
    /// has.
    pub(super) fn made(&self) -> [u32; 2] {
        [&self.change, &self.filter].map(|cell| cell.load(Relaxed))
    }

    /// For a thread that begins with what its maker has made.
    pub(super) fn inherit(&self, [change, filter]: [u32; 2]) {
        self.change.store(change, Relaxed);
        self.filter.store(filter, Relaxed);
    }

    /// Where a new thread's stack pointer is: two words below the thread-local storage.
    pub(super) fn top(&self) -> usize {
        self.range().end - 2 * size_of::<usize>()
    }

    /// Writes what a new thread pops, and its thread-local storage; returns its thread pointer.
    pub(super) fn prepare(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> usize {
        let thread_pointer = self.thread_pointer();
        // SAFETY: 1. the words lie in this stack's mapping, which only the caller uses; 2. so does
        // the storage, whose room `take` has made.
        unsafe {
            (self.top() as *mut [usize; 2])
                .write([argument as usize, function as *const () as usize]);
            write_storage(thread_pointer);
        }
        thread_pointer
    }
}
