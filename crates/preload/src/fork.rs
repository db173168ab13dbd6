//! fork: the child gets all of the program's memory, and an engine of its own.
//!
//! fork(), daemon(), forkpty() and whatever else goes through glibc's fork runs the handlers
//! registered with pthread_atfork. Ours are registered before all others, so that our prepare
//! handler runs last and our parent and child handlers run first: other handlers find memory that
//! works. `_Fork` and clone(2) without CLONE_VM run no handlers, and are interposed. vfork and
//! posix_spawn share the parent's memory and need nothing. A child of clone(2) with CLONE_VM shares
//! it and the thread-local memory too; in signal delivery it gets a signal stack
//! ([`crate::signals::altstack`]).
//!
//! The program's own prepare handlers have run when ours does, its parent and child handlers have
//! not: it may hold any lock of its own, and one that its malloc takes where that is in the
//! executable. So none of our handlers calls a function that could be the program's, or one of the
//! C library's that could call malloc. What the engine and the loader allocate comes from the
//! internal heap.
//!
//! Prepare, in this order ([`prepare`]):
//! 1. All signals are blocked and the thread cannot be cancelled, both until the end. [`FORKING`]:
//!    one fork at a time.
//! 2. The list of streams ([`crate::stdio`]), which glibc's fork will want.
//! 3. The gate: nobody is inside the allocator ([`crate::gate`]). Faults are still served, so
//!    whoever is inside gets out.
//! 4. The pool stops evicting.
//! 5. What is touched before the engine is up again is made present and writable: in the parent
//!    too, where a page that is protected to find the next write would fault.
//! 6. The pool freezes.
//! 7. The table of handlers, and the internal heap's lock.
//!
//! Parent and child go back in the opposite order. A fault of another thread between 6 and the end
//! waits. The engine's steps are made on a stack of their own ([`own_stack`]): the program's may
//! be managed memory, and the engine hands addresses on its stack to the kernel.
//!
//! Of a dormant process ([`crate::dormant`]) none of this is done but for the signals and the
//! internal heap's lock: the child is dormant too.
//!
//! Known limit: a thread that waits for a page while it holds glibc's name-service lock, exactly
//! between 6 and the fork, would stop the fork; step 5 makes that state present, so it takes a
//! fault on something else under that lock.

use crate::signals::{self, actions, altstack};
use crate::sys::{Uncancelled, real};
use crate::{dormant, gate, heap, kernel_words, own_stack, pool, stdio, sys, trap};
use overspill_os::lock::RawLock;
use overspill_os::signal::Blocked;
use overspill_os::{Errno, PAGE_SIZE, seccomp, thread, tls};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use syscalls::{Sysno, raw_syscall};

/// Held from the beginning of a fork to its end.
static FORKING: RawLock = RawLock::new();
/// Whether the thread that forks could be cancelled before.
static CANCELLATION: AtomicI32 = AtomicI32::new(0);
/// The errno of the thread that forks, which stays as it was if there is a child.
static ERRNO: AtomicI32 = AtomicI32::new(0);
/// The mask of the thread that forks.
static MASK: AtomicU64 = AtomicU64::new(0);
/// Whether the process was dormant when its fork was prepared: then the child is.
static PLAIN: AtomicBool = AtomicBool::new(false);
/// The thread that forks.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// How a process is about to be copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyKind {
    /// glibc's fork, which resets streams in the child.
    Full,
    /// `_Fork` or clone: nothing of glibc's state is touched, and the call may come from a signal
    /// handler.
    Bare,
}

/// Registers the handlers. Called first of all by the constructor.
pub fn register() {
    stdio::find_state();
    unsafe extern "C" fn before() {
        let errno = sys::errno();
        prepare(CopyKind::Full, [0; 3]);
        ERRNO.store(errno, Ordering::Relaxed);
        sys::restore_errno(0);
    }
    unsafe extern "C" fn parent() {
        // The C library sets errno where there is no child, before its parent handlers run, and
        // tells them nothing else.
        let made = sys::errno() == 0;
        done_in_parent(CopyKind::Full, made);
        if made {
            sys::restore_errno(ERRNO.load(Ordering::Relaxed));
        }
    }
    unsafe extern "C" fn child() {
        done_in_child(CopyKind::Full);
        sys::restore_errno(ERRNO.load(Ordering::Relaxed));
    }
    // SAFETY: the handlers live for ever, and so does this library, which names none.
    unsafe { __register_atfork(before, parent, child, std::ptr::null()) };
}

type Handler = unsafe extern "C" fn();

unsafe extern "C" {
    /// What pthread_atfork(3) calls, which each library has a copy of.
    fn __register_atfork(
        before: Handler,
        parent: Handler,
        child: Handler,
        library: *const c_void,
    ) -> c_int;
}

/// Addresses of words that the kernel writes while it makes a child, or 0.
type Words = [usize; 3];

fn prepare(kind: CopyKind, words: Words) {
    let mask = Blocked::all().suspend();
    PLAIN.store(dormant::is_dormant(), Ordering::Relaxed);
    if dormant::is_dormant() {
        // One thread, which holds nothing: the heap may have others by number. A handler that comes
        // meanwhile may allocate, or fork.
        MASK.store(mask, Ordering::Relaxed);
        return heap::fork_prepare();
    }
    let uncancelled = Uncancelled::begin().suspend();
    FORKING.lock();
    FORKER.store(thread::id(), Ordering::Relaxed);
    MASK.store(mask, Ordering::Relaxed);
    CANCELLATION.store(uncancelled, Ordering::Relaxed);
    if kind == CopyKind::Full {
        stdio::lock_list();
    }
    gate::close();
    own_stack::run(pool::fork_prepare_begin);
    if pool::exists() {
        signals::with_sigbus_open(|| {
            if kind == CopyKind::Full {
                stdio::touch_streams();
                stdio::touch_state();
            }
            words
                .iter()
                .for_each(|word| stdio::touch(*word..word.saturating_add(size_of::<usize>())));
            touch_stack(tls::stack_address());
        });
    }
    own_stack::run(|| {
        pool::fork_prepare_freeze();
        actions::fork_prepare();
        heap::fork_prepare();
    });
}

/// `made` is whether there is a child.
fn done_in_parent(kind: CopyKind, made: bool) {
    if PLAIN.load(Ordering::Relaxed) {
        heap::fork_done();
        return drop(Blocked::resume(MASK.load(Ordering::Relaxed)));
    }
    own_stack::run(|| {
        heap::fork_done();
        actions::fork_done();
        pool::fork_parent(made);
    });
    gate::open();
    if kind == CopyKind::Full {
        stdio::unlock_list();
    }
    end();
}

fn done_in_child(kind: CopyKind) {
    if PLAIN.load(Ordering::Relaxed) {
        heap::fork_done();
        dormant::begin_in_child();
        return drop(Blocked::resume(MASK.load(Ordering::Relaxed)));
    }
    own_stack::run(|| {
        trap::reset_in_child(FORKER.load(Ordering::Relaxed));
        heap::fork_done();
        actions::fork_done();
        actions::begin_process();
        pool::fork_child();
    });
    gate::open_in_child();
    if kind == CopyKind::Full {
        stdio::reset_list();
    }
    end();
}

/// Lets the next fork in, and cancellations and signals of this thread.
fn end() {
    let uncancelled = CANCELLATION.load(Ordering::Relaxed);
    let mask = MASK.load(Ordering::Relaxed);
    FORKING.unlock();
    drop(Uncancelled::resume(uncancelled));
    drop(Blocked::resume(mask));
}

/// Makes present the part of a stack in managed memory that is used before the engine is up again:
/// some frames below `address` and some above.
fn touch_stack(address: usize) {
    const BELOW: usize = 4 * PAGE_SIZE;
    const ABOVE: usize = 2 * PAGE_SIZE;
    stdio::touch(address.saturating_sub(BELOW)..address + ABOVE);
}

/// `_Fork`(3): fork without handlers.
#[allow(non_snake_case, reason = "the C library's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Fork() -> c_int {
    // Looked up before anything is locked: that takes the loader's lock.
    let real = real!(c"_Fork" as unsafe extern "C" fn() -> c_int);
    bare_fork([0; 3], || {
        // SAFETY: a function without arguments.
        unsafe { real() as isize }
    }) as c_int
}

/// Runs a call that returns twice, 0 in the child, with the engine prepared. Returns what it
/// returns.
pub fn bare_fork(words: Words, call: impl FnOnce() -> isize) -> isize {
    prepare(CopyKind::Bare, words);
    let pid = call();
    if pid == 0 {
        done_in_child(CopyKind::Bare);
    } else {
        done_in_parent(CopyKind::Bare, pid > 0);
    }
    pid
}

/// A thread, or a child that goes on beside its parent in the same memory, is made once there is an
/// engine; `flags` are clone(2)'s.
pub fn may_be_made(flags: u64) -> bool {
    let shares = [libc::CLONE_VM, libc::CLONE_VFORK].map(|flag| flags & flag as u64 != 0);
    shares != [true, false] || dormant::wake()
}

type CloneFn = extern "C" fn(*mut c_void) -> c_int;

/// What the child of [`clone`] that shares the memory runs. It begins on a stack of ours, since
/// nothing serves the faults of the program's yet, and goes on to that.
#[repr(C)]
struct ChildStart {
    function: CloneFn,
    argument: *mut c_void,
    stack: usize,
    lent: usize,
}

extern "C" fn child_start(start: *mut c_void) -> c_int {
    // SAFETY: in the block that was lent to the child.
    let ChildStart { function, argument, stack, lent } =
        unsafe { start.cast::<ChildStart>().read() };
    altstack::borrow(lent);
    // SAFETY: the stack is the program's for this function.
    unsafe { overspill_run_on(stack & !15, function, argument, end_of_sharer) }
}

/// What is done when the function has returned: what the C library does, the calling thread ends.
extern "C" fn end_of_sharer(status: c_int) -> ! {
    // SAFETY: the call does not return.
    unsafe { raw_syscall!(Sysno::exit, status) };
    unreachable!("exit returned")
}

/// Threads that the program had made when a child with a copy of its memory began.
static MADE_BEFORE: AtomicUsize = AtomicUsize::new(0);

/// The same where the child may have threads of the engine's: with no other of the program's, the
/// process ends.
extern "C" fn end_of_copy(status: c_int) -> ! {
    if crate::thread::made() == MADE_BEFORE.load(Ordering::Relaxed) {
        sys::exit_group(status)
    }
    end_of_sharer(status)
}

// Calls a function on another stack, and another with what it returns. Here a stack begins: there
// is nothing to unwind to.
global_asm!(
    ".pushsection .text.overspill_run_on,\"ax\",@progbits",
    ".hidden overspill_run_on",
    ".globl overspill_run_on",
    ".type overspill_run_on, @function",
    "overspill_run_on:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov rsp, rdi",
    "mov rbx, rcx",
    "mov rdi, rdx",
    "xor ebp, ebp",
    "call rsi",
    "mov edi, eax",
    "call rbx",
    "ud2",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn overspill_run_on(
        stack: usize,
        function: CloneFn,
        argument: *mut c_void,
        ends: extern "C" fn(c_int) -> !,
    ) -> !;
}

/// clone(2), the C library's function. Variadic in C; arguments that were not given are passed on
/// unread.
///
/// A child with a copy of the memory gets a copy of the descriptors too, also with CLONE_FILES: it
/// closes the engine's of its parent. It begins in a copy of this frame, with its engine down, and
/// then goes to the stack that was given.
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
    if !may_be_made(flags as u64) {
        return sys::to_c_int(Err(Errno::NOMEM));
    }
    kernel_words::keep_of_clone(flags as u32 as u64, parent_tid as usize, child_tid as usize);
    let copies = flags & libc::CLONE_VM == 0;
    let (Some(run), false, true) =
        (function, stack.is_null(), pool::exists() && (copies || pool::signal_delivery()))
    else {
        // SAFETY: the caller's promise; the C library reads what the flags say.
        return unsafe { real(function, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    if copies {
        let given = |flag, word: *mut c_void| if flags & flag != 0 { word as usize } else { 0 };
        let parent_word = given(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD, parent_tid);
        let child_word = given(libc::CLONE_CHILD_SETTID, child_tid);
        let plain = (flags & !libc::CLONE_FILES) as u32 as usize;
        let arguments = [plain, 0, parent_tid as usize, child_tid as usize, tls as usize, 0];
        // SAFETY: the caller's promise, for a child that goes on here.
        let pid = bare_fork([parent_word, child_word, 0], || unsafe {
            seccomp::let_through(Sysno::clone as usize, arguments) as isize
        });
        if pid == 0 {
            MADE_BEFORE.store(crate::thread::made(), Ordering::Relaxed);
            // SAFETY: the stack is the program's for this function.
            unsafe { overspill_run_on(stack as usize & !15, run, argument, end_of_copy) }
        }
        return sys::to_c_int(sys::check(pid as usize));
    }
    // SAFETY: the caller's promise.
    unsafe {
        clone_beside(
            flags,
            ChildStart { function: run, argument, stack: stack as usize, lent: 0 },
            |start, place| real(Some(start), place, flags, place, parent_tid, tls, child_tid),
        )
    }
}

/// A child that shares the memory, made by `make`, which gets what it runs and where that begins.
///
/// # Safety
///
/// As for clone(2).
unsafe fn clone_beside(
    flags: c_int,
    start: ChildStart,
    make: impl FnOnce(CloneFn, *mut c_void) -> c_int,
) -> c_int {
    if flags & (libc::CLONE_SETTLS | libc::CLONE_VFORK) == 0 {
        tls::share();
    }
    // The kernel takes the signal stack from such a child, and ours is this thread's.
    let Some(lent) = altstack::lend() else {
        sys::set_errno(Errno::NOMEM);
        return -1;
    };
    let place = altstack::first_stack(lent) - size_of::<ChildStart>().next_multiple_of(64);
    // SAFETY: the block is the child's.
    unsafe { (place as *mut ChildStart).write(ChildStart { lent, ..start }) };
    let pid = make(child_start, place as *mut c_void);
    // The child of a vfork has ended, or executes another program.
    altstack::lent_to(lent, if flags & libc::CLONE_VFORK == 0 { pid } else { -1 });
    pid
}
