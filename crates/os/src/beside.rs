//! The sibling: a process beside the program that shares its address space and holds the engine's
//! threads.
//!
//! Linux lets a process share memory without being a thread (clone(2) with CLONE_VM and without
//! CLONE_THREAD). So the program counts its own threads only: `wait` does not see ours, and what a
//! second thread forbids works (unshare(2) of a user namespace, filters for all threads, the C
//! library's set*id functions).
//!
//! 1. The program's thread makes a short-lived process that makes the sibling and ends
//!    (`overspill_clone_orphan`). So the sibling is nobody's child but init's. Where orphans would
//!    come to the program itself (it is the init of a namespace, or a subreaper) the sibling is its
//!    child, with an exit signal of 0, which `wait` passes over.
//! 2. The sibling has a copy of the program's table of descriptors and closes all but the engine's
//!    ([`crate::descriptors`]). What either opens later is its own ([`is_here`]).
//! 3. Its threads have stacks and thread-local storage of ours (`Stack`): the layout of the first
//!    thread's, copied when the process began ([`prepare`]). No code of the C library that needs
//!    more runs on them.
//! 4. Its first thread watches over the program (`watch`). The kernel clears a word of the
//!    program's first thread when that leaves the address space, by exit or exec, and wakes who
//!    waits on it. The sibling ends when nobody is left.
//! 5. In the child of a fork it starts its threads when they are needed, or after a while
//!    ([`Nap`]): most children end, or execute a program, before.
//! 6. A sibling that is killed takes the program with it (`Guard`), which would wait for its memory
//!    for ever.
//! 7. A program that exits lets the sibling end first ([`exit_group`]): so the memory, and what is
//!    attached to it, is gone when its parent hears of it.
//!
//! The sibling is in a session of its own, blocks every signal but the one of [`credentials`], and
//! is not traced (CLONE_UNTRACED).
//!
//! What the program gives up, its sibling gives up too: rights ([`credentials`]), and system calls
//! ([`filters`]). It executes nothing, and from its beginning it would gain no rights by that. A
//! changed root it does not follow: it reads below /proc, for as long as it lives, what of the
//! program's memory is not managed.
//!
//! Locks: `STACKS` and `CALLS`, which are leaves, and `STARTING`, which the thread holds that
//! starts the sibling.

use self::clone::{BESIDE_FLAGS, SETTLE_LOOK, SETTLED, overspill_clone, overspill_clone_orphan};
use self::guard::{GUARD, end};
use self::nap::leaves_before;
use self::stack::Stack;
use self::thread::{begin_thread, made_by_program};
use crate::lock::{self, RawLock};
use crate::report::report;
use crate::units::{Errno, check};
use crate::{confined, descriptors, engine_thread, process, signal};
use rustix::process::PidfdFlags;
use rustix::thread::futex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use syscalls::{Sysno, raw_syscall};

mod calls;
mod clone;
pub mod credentials;
pub mod filters;
mod guard;
mod leave;
mod nap;
mod orphans;
mod request;
mod stack;
mod storage;
mod thread;
mod watch;

pub use self::calls::{call, serve_calls};
pub use self::filters::come_by;
pub use self::guard::{end_program, kill_program};
pub use self::leave::{await_end, exit_group};
pub use self::nap::Nap;
pub use self::orphans::reap_orphans;
pub use self::stack::forget_stack;
pub use self::storage::prepare;
pub(crate) use self::storage::{bytes as storage_bytes, control_bytes, write_storage};
pub(crate) use self::thread::spawn;
pub use crate::engine_thread::EngineThread;
pub use crate::process::{is_here, is_used, program, sibling};

/// What the sibling's first thread is given.
struct Begin {
    threads: Vec<EngineThread>,
    nap: Option<Nap>,
}

/// Number of the sibling, from the process in between; under `STARTING`.
static STARTED: AtomicI32 = AtomicI32::new(0);

/// Held by the thread that starts the sibling.
static STARTING: RawLock = RawLock::new();

/// Starts threads of the engine: beside the program where that is used, else as threads of this
/// process, at once.
///
/// # Errors
/// What clone(2) or pthread_create(3) says.
pub fn start(threads: Vec<EngineThread>, nap: Option<Nap>) -> Result<(), Errno> {
    if !is_used() {
        return threads.into_iter().try_for_each(engine_thread::spawn_here);
    }
    STARTING.with(|| {
        process::set_program();
        watch::begin();
        let stack = Stack::take()?;
        stack.inherit(made_by_program());
        let begin = Box::into_raw(Box::new(Begin { threads, nap }));
        SETTLED.store(0, Relaxed);
        match start_on(stack, begin.cast()) {
            Ok(number) => {
                process::set_sibling(number);
                // Until then it would keep open what the program closes, or leaves by ending. Where
                // a process in between has waited, there is nothing to wait for.
                while SETTLED.load(Acquire) == 0 && stack.in_use.load(Relaxed) != 0 {
                    let _ = futex::wait(&SETTLED, futex::Flags::empty(), 0, Some(&SETTLE_LOOK));
                }
                Ok(())
            }
            Err(errno) => {
                stack.in_use.store(0, Release);
                // SAFETY: nobody has got the box.
                drop(unsafe { Box::from_raw(begin) });
                Err(errno)
            }
        }
    })
}

/// Makes the sibling, on `stack`; `begin` is a boxed [`Begin`] that it takes over.
fn start_on(stack: &'static Stack, begin: *mut c_void) -> Result<i32, Errno> {
    let _blocked = signal::Blocked::all();
    let thread_pointer = stack.prepare(lead, begin);
    if orphans::gets_orphans() {
        // SAFETY: the stack and the thread pointer belong to the new process alone.
        let made = unsafe {
            overspill_clone(BESIDE_FLAGS as usize, stack.top(), thread_pointer, &stack.in_use)
        };
        return check(made as usize).map(|number| number as i32);
    }
    STARTED.store(0, Relaxed);
    // SAFETY: as above; the place for the number lives for ever.
    let between = check(unsafe {
        overspill_clone_orphan(stack.top(), thread_pointer, &STARTED, &stack.in_use) as usize
    })?;
    // It has left this memory, and ends in microseconds. Where the program has taken it first,
    // there is nothing to take. SAFETY: nothing is written.
    while unsafe {
        raw_syscall!(Sysno::wait4, between, 0usize, libc::__WALL | libc::WNOHANG, 0usize)
    } == 0
    {
        rustix::thread::sched_yield();
    }
    match STARTED.load(Acquire) {
        number @ 1.. => Ok(number),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// In the child of a fork: the sibling is its parent's, and so are the threads on our stacks.
pub fn reset_in_child() {
    process::reset_in_child();
    watch::reset_in_child();
    calls::reset_in_child();
    credentials::reset_in_child();
    filters::reset_in_child();
    stack::reset_in_child();
}

/// Before a fork: nobody is at a list meanwhile.
pub fn fork_prepare() {
    stack::fork_prepare();
    calls::fork_prepare();
}

/// After a fork, in parent and child.
pub fn fork_done() {
    calls::fork_done();
    stack::fork_done();
}

/// The body of the sibling's first thread.
unsafe extern "C" fn lead(begin: *mut c_void) {
    credentials::expect();
    begin_thread(c"overspill");
    lock::when_waiting_long(watch::end_if_over);
    // SAFETY: `start` gives this process the box.
    let Begin { threads, nap } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    // 1. Out of the way: none of the program's files kept open, no signal to its group or terminal,
    //    no directory kept busy.
    descriptors::keep_engines();
    let _ = rustix::process::setsid();
    // Begun under a filter of the program's it keeps the directory, and has no guard: these calls
    // would be of use to who has got hold of the program. What executing would have given that, but
    // for its bounding set or no_new_privs, it is not to get here.
    if !confined::is_confined() {
        let _ = rustix::process::chdir(c"/");
        let _ = rustix::thread::set_no_new_privs(true);
        GUARD.arm(program());
    }
    SETTLED.store(1, Release);
    let _ = futex::wake(&SETTLED, futex::Flags::empty(), 1);
    // 2. Whoever ends meanwhile is seen.
    let program = rustix::process::pidfd_open(program(), PidfdFlags::empty());
    // 3. The engine's threads, unless the program leaves before they are needed.
    if let (Some(nap), Ok(program)) = (nap, &program) {
        (nap.first)();
        if leaves_before(nap.cell, program) {
            end();
        }
    }
    for thread in threads {
        if let Err(errno) = spawn(thread) {
            report(format_args!(
                "no thread can be made for the engine ({errno}): the program is ended"
            ));
            end_program();
        }
    }
    // 4. Until the program is gone. Its descriptor is left to the kernel: the C library would close
    //    it, from code of its own.
    if let Ok(program) = &program {
        watch::watch(program);
    }
    end();
}
