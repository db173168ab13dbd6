//! fork: the child gets all of the program's memory, and an engine of its own.
//!
//! fork(), daemon(), forkpty() and whatever else goes through glibc's fork runs the handlers registered with
//! pthread_atfork. Ours are registered before all others, so that our prepare handler runs last and our parent and
//! child handlers run first: other handlers find memory that works. `_Fork` and clone(2) without CLONE_VM run no
//! handlers, and are interposed. vfork and posix_spawn share the parent's memory and need nothing.
//!
//! Prepare, in this order ([`prepare`]):
//! 1. [`FORKING`]: one fork at a time. The thread cannot be cancelled until the end.
//! 2. The list of streams ([`crate::stdio`]), which glibc's fork will want.
//! 3. The gate: nobody is inside the allocator ([`crate::gate`]). Faults are still served, so whoever is inside gets
//!    out.
//! 4. The pool stops evicting.
//! 5. What the child touches before its engine is up is made present.
//! 6. The pool freezes.
//! 7. The table of handlers, and the internal heap's lock.
//!
//! Parent and child go back in the opposite order. A fault of another thread between 6 and the end waits.
//!
//! Known limit: a thread that waits for a page while it holds glibc's name-service lock, exactly between 6 and the
//! fork, would stop the fork; step 5 makes that state present, so it takes a fault on something else under that lock.

use crate::route::split;
use crate::sys::{self, Uncancelled, real};
use crate::{gate, handlers, heap, pool, signals, stdio, trap};
use overspill_os::lock::RawLock;
use overspill_os::{PAGE_SIZE, thread, vm};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

/// Held from the beginning of a fork to its end.
static FORKING: RawLock = RawLock::new();
/// Whether the thread that forks could be cancelled before.
static CANCELLATION: AtomicI32 = AtomicI32::new(0);
/// The errno of the thread that forks, which stays as it was if there is a child.
static ERRNO: AtomicI32 = AtomicI32::new(0);
/// The thread that forks.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// How a process is about to be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// glibc's fork, which resets streams in the child.
    Full,
    /// `_Fork` or clone: nothing of glibc's state is touched, and the call may come from a signal handler.
    Bare,
}

/// Registers the handlers. Called first of all by the constructor.
pub fn register() {
    unsafe extern "C" fn before() {
        let errno = sys::errno();
        prepare(Kind::Full, 0);
        ERRNO.store(errno, Ordering::Relaxed);
        sys::restore_errno(0);
    }
    unsafe extern "C" fn parent() {
        // The C library sets errno where there is no child, before its parent handlers run, and tells them nothing else.
        let made = sys::errno() == 0;
        done_in_parent(Kind::Full, made);
        if made {
            sys::restore_errno(ERRNO.load(Ordering::Relaxed));
        }
    }
    unsafe extern "C" fn child() {
        done_in_child(Kind::Full);
        sys::restore_errno(ERRNO.load(Ordering::Relaxed));
    }
    // SAFETY: the handlers live for ever.
    unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
}

/// `child_stack`: the top of the stack that the child will run on, or 0 for a copy of this one.
fn prepare(kind: Kind, child_stack: usize) {
    let uncancelled = Uncancelled::begin().suspend();
    FORKING.lock();
    FORKER.store(thread::id(), Ordering::Relaxed);
    CANCELLATION.store(uncancelled, Ordering::Relaxed);
    if kind == Kind::Full {
        stdio::lock_list();
    }
    gate::close();
    pool::fork_prepare_begin();
    if pool::exists() {
        signals::with_sigbus_open(|| {
            if kind == Kind::Full {
                stdio::touch_streams();
                stdio::touch_name_service();
            }
            touch_stack(vm::stack_address());
            touch_stack(child_stack);
        });
    }
    pool::fork_prepare_freeze();
    handlers::fork_prepare();
    heap::fork_prepare();
}

/// `made` is whether there is a child.
fn done_in_parent(kind: Kind, made: bool) {
    heap::fork_done();
    handlers::fork_done();
    pool::fork_parent(made);
    gate::open();
    if kind == Kind::Full {
        stdio::unlock_list();
    }
    end();
}

fn done_in_child(kind: Kind) {
    trap::reset_in_child(FORKER.load(Ordering::Relaxed));
    heap::fork_done();
    handlers::fork_done();
    handlers::begin_process();
    pool::fork_child();
    gate::open_in_child();
    if kind == Kind::Full {
        stdio::reset_list();
    }
    end();
}

/// Lets the next fork in, and cancellations of this thread.
fn end() {
    let uncancelled = CANCELLATION.load(Ordering::Relaxed);
    FORKING.unlock();
    drop(Uncancelled::resume(uncancelled));
}

/// Makes present the part of a stack in managed memory that the child uses before its engine is up: some frames
/// below `address` and some above.
fn touch_stack(address: usize) {
    const BELOW: usize = 4 * PAGE_SIZE;
    const ABOVE: usize = 2 * PAGE_SIZE;
    const MADV_POPULATE_READ: i32 = 22;
    let start = address.saturating_sub(BELOW) & !(PAGE_SIZE - 1);
    let parts = split(start..start + BELOW + ABOVE, pool::window());
    for page in parts.inside.step_by(PAGE_SIZE) {
        // The kernel reads the page for us, since the stack may end before the range does. In signal delivery it
        // cannot; there the program's stacks are locked in memory (see the thread module).
        let _ = vm::advise(page..page + PAGE_SIZE, MADV_POPULATE_READ);
    }
}

/// `_Fork`(3): fork without handlers.
#[allow(non_snake_case, reason = "the C library's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Fork() -> c_int {
    bare_fork(|| {
        // SAFETY: a function without arguments.
        unsafe { real!(c"_Fork" as unsafe extern "C" fn() -> c_int)() as isize }
    }) as c_int
}

/// Runs a call that returns twice, 0 in the child, with the engine prepared. Returns what it returns.
pub fn bare_fork(call: impl FnOnce() -> isize) -> isize {
    prepare(Kind::Bare, 0);
    let pid = call();
    if pid == 0 {
        done_in_child(Kind::Bare);
    } else {
        done_in_parent(Kind::Bare, pid > 0);
    }
    pid
}

type CloneFn = extern "C" fn(*mut c_void) -> c_int;

/// What the child of [`clone`] runs.
struct ChildStart {
    function: CloneFn,
    argument: *mut c_void,
}

extern "C" fn child_start(start: *mut c_void) -> c_int {
    // SAFETY: the parent's frame, of which the child has a copy at the same address.
    let ChildStart { function, argument } = unsafe { start.cast::<ChildStart>().read() };
    done_in_child(Kind::Bare);
    function(argument)
}

/// clone(2), the C library's function. Variadic in C; arguments that were not given are passed on unread.
///
/// # Safety
///
/// As for clone(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clone(
    function: Option<CloneFn>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    type Clone = unsafe extern "C" fn(
        Option<CloneFn>,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> c_int;
    let real = real!(c"clone" as Clone);
    let copies = flags & libc::CLONE_VM == 0;
    let (true, Some(run), false) = (copies, function, stack.is_null()) else {
        // SAFETY: the caller's promise; the C library reads what the flags say.
        return unsafe { real(function, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    let mut start = ChildStart { function: run, argument };
    prepare(Kind::Bare, stack as usize);
    let start = (&raw mut start).cast();
    // SAFETY: as above; the child reads `start` from its copy of this frame.
    let pid = unsafe { real(Some(child_start), stack, flags, start, parent_tid, tls, child_tid) };
    done_in_parent(Kind::Bare, pid > 0);
    pid
}
