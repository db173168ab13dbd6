//! Which signals are blocked: all of them around engine code, and what the program believes of the
//! two that are the engine's.

use crate::seccomp::exceptions::SELF_THREAD;
use crate::units::PAGE_SIZE;
use crate::{confined, seccomp, tls};
use std::sync::atomic::{AtomicBool, Ordering};
use syscalls::{Sysno, raw_syscall};

/// Bytes of the kernel's signal set.
const SIGSET_BYTES: usize = 8;
/// The two signals that glibc keeps for itself (thread cancellation, setuid of all threads) stay
/// open, or setuid() would wait for ever for an engine thread.
const RESERVED: u64 = 1 << 31 | 1 << 32;
/// The two signals that may be taken for the engine, as the kernel's set.
pub const OURS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);
/// Bytes of a thread's signal stack with the two pages below it, from [`tls::signal_stack`] on:
/// nested frames of both signals, a debug build's handlers, and those frames over which handlers
/// run on the program's stack. Memory is used only as far as it is touched, mostly two pages.
pub const STACK_BYTES: usize = (256 << 10) + 6 * PAGE_SIZE;
/// Whether [`OURS`] are never blocked, and [`tls::blocked`] says which the program believes to be.
pub(super) static SHADOWED: AtomicBool = AtomicBool::new(false);

/// From now on [`OURS`] are open on every thread of the program, and somebody else keeps
/// [`tls::blocked`]. What the calling thread has blocked it goes on to believe blocked.
pub fn shadow() {
    SHADOWED.store(true, Ordering::Relaxed);
    tls::set_blocked(change_mask(libc::SIG_UNBLOCK, OURS) & OURS);
}

/// Undoes [`shadow`]: what the calling thread believes blocked is.
pub fn unshadow() {
    SHADOWED.store(false, Ordering::Relaxed);
    change_mask(libc::SIG_BLOCK, tls::blocked());
    tls::set_blocked(0);
}

/// Sends the calling thread the signals that have come while the program believed them blocked, and
/// no longer does.
pub fn raise_pending() {
    let due = tls::pending() & !tls::blocked();
    tls::set_pending(tls::pending() & !due);
    for signal in (1..=64).filter(|signal| due & 1 << (signal - 1) != 0) {
        let _ = send_to_self(signal);
    }
}

/// Sends the calling thread a signal; whether it could be sent. Under a filter of the program's
/// that takes Linux 6.14: earlier no call sends signals to the process itself and to nobody else.
pub fn send_to_self(signal: i32) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the calls take numbers.
    let sent = unsafe {
        match confined::is_confined() {
            true => raw_syscall!(Sysno::pidfd_send_signal, SELF_THREAD, signal, 0usize, 0usize),
            false => raw_syscall!(Sysno::tgkill, pid, crate::task::id(), signal),
        }
    };
    sent == 0
}

/// Before the program's handler: what it believes blocked is in the context's mask, where it may
/// look or change it, and during the handler more is. `more` are signals that the handler is to
/// have blocked.
///
/// # Safety
///
/// `context` is what the kernel has passed to the handler.
pub unsafe fn begin_handler(context: *mut libc::c_void, more: u64) {
    let blocked = tls::blocked();
    // SAFETY: the caller's promise.
    unsafe { *context_mask(context) |= blocked };
    tls::set_blocked(blocked | more & OURS);
}

/// After the program's handler, with all signals blocked: what comes from here on comes when this
/// handler returns, and not on the stack that this one has; and so does what has come before.
///
/// # Safety
///
/// As for [`begin_handler`].
pub unsafe fn end_handler(context: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let mask = unsafe { &mut *context_mask(context) };
    tls::set_blocked(*mask & OURS);
    *mask &= !OURS;
    raise_pending();
}

/// The mask that is in force when the handler of a context returns; a sigset_t begins with the
/// kernel's 8 bytes.
///
/// # Safety
///
/// As for [`begin_handler`].
pub(super) unsafe fn context_mask(context: *mut libc::c_void) -> *mut u64 {
    // SAFETY: the caller's promise.
    unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// Changes the calling thread's mask; returns the one before. The sets may lie on a stack in
/// managed memory: the filter of system calls lets the call through, and it is repeated should
/// their page leave in this very moment.
pub fn change_mask(how: i32, set: u64) -> u64 {
    loop {
        let mut before = 0u64;
        // SAFETY: both sets are 8 bytes, alive during the call.
        let ret = unsafe {
            let (set, old) = (&raw const set as usize, &raw mut before as usize);
            seccomp::let_through(
                Sysno::rt_sigprocmask as usize,
                [how as usize, set, old, SIGSET_BYTES, 0, 0],
            )
        };
        if ret == 0 {
            return before;
        }
    }
}

/// All signals are blocked on this thread while it lives.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all signals, on the engine's threads all but those that glibc keeps for itself. A
    /// thread of the program's gets done with what it does; and there glibc's handlers would run on
    /// the thread's signal stack, which may hold the frame that the engine is to return to.
    /// [`OURS`] stay as they are there once they are open for ever: the thread's own stack, on
    /// which this begins and ends, may be managed memory.
    pub fn all() -> Blocked {
        let before = match tls::is_engine_thread() {
            true => change_mask(libc::SIG_SETMASK, !RESERVED),
            false if SHADOWED.load(Ordering::Relaxed) => change_mask(libc::SIG_BLOCK, !OURS),
            false => change_mask(libc::SIG_BLOCK, !0),
        };
        Blocked { before }
    }

    /// The same for a thread that goes over to a stack of the engine's, on which nothing touches
    /// managed memory. Where it is on its signal stack now, [`OURS`] too: the kernel would see that
    /// nobody is there, and put the frame of one that is sent over what the thread goes back to.
    pub fn all_beside_stack() -> Blocked {
        match is_on_signal_stack() {
            true => Blocked { before: change_mask(libc::SIG_BLOCK, !0) },
            false => Blocked::all(),
        }
    }
}

/// Whether the calling thread is on its signal stack.
pub fn is_on_signal_stack() -> bool {
    let base = tls::signal_stack();
    base != 0 && tls::stack_address().wrapping_sub(base) < STACK_BYTES
}

impl Blocked {
    /// Leaves the signals blocked, for [`Blocked::resume`] to end.
    pub fn suspend(self) -> u64 {
        let before = self.before;
        std::mem::forget(self);
        before
    }

    /// Takes up what [`Blocked::suspend`] left.
    pub fn resume(before: u64) -> Blocked {
        Blocked { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, self.before);
    }
}

/// Whether a mask is one of [`Blocked::all`].
pub(super) fn are_all(mask: u64) -> bool {
    const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let open = if SHADOWED.load(Ordering::Relaxed) { OURS } else { 0 };
    mask | open | RESERVED | UNBLOCKABLE == !0
}

/// Whether all signals that can be are blocked on the calling thread.
pub fn all_blocked() -> bool {
    are_all(change_mask(libc::SIG_BLOCK, 0))
}
