//! Signals, for signal delivery: SIGBUS carries the engine's faults and is never blocked.
//!
//! What the program wants for SIGBUS is kept ([`overspill_os::signal::program_sigaction`]) and done for faults that
//! are not the engine's. SIGBUS is taken out of every mask that the program sets, for threads and for its handlers:
//! a fault while it is blocked would end the process. In thread delivery all of this passes straight through.
//!
//! Not covered: masks given to sigsuspend, ppoll, pselect and epoll_pwait (in force only while the call waits, in
//! which the kernel alone touches memory), signalfd, and system calls made by number.

use crate::pool;
use crate::sys::real;
use overspill_os::signal::program_sigaction;
use overspill_os::tls;
use std::ffi::c_int;
use syscalls::{Sysno, raw_syscall};

/// Whether this call needs care.
#[inline(always)]
fn guarded() -> bool {
    pool::signal_delivery() && tls::is_program()
}

/// Runs `call` with SIGBUS open, where the engine has blocked all signals: it touches managed memory.
pub fn with_sigbus_open(call: impl FnOnce()) {
    if !pool::signal_delivery() {
        return call();
    }
    let sigbus = 1u64 << (libc::SIGBUS - 1);
    let mut before = 0u64;
    let set = |how, set: *const u64, old: *mut u64| {
        // SAFETY: both sets are the kernel's 8 bytes, alive during the call, or null.
        unsafe { raw_syscall!(Sysno::rt_sigprocmask, how, set, old, size_of::<u64>()) };
    };
    set(libc::SIG_UNBLOCK, &sigbus, &mut before);
    call();
    set(libc::SIG_SETMASK, &before, std::ptr::null_mut());
}

fn without_sigbus(mut set: libc::sigset_t) -> libc::sigset_t {
    // SAFETY: a valid set and a valid signal.
    unsafe { libc::sigdelset(&mut set, libc::SIGBUS) };
    set
}

/// sigaction(2).
///
/// # Safety
///
/// As for sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    let real = real!(c"sigaction" as Sigaction);
    // SAFETY: the caller's promise: each pointer is null or valid.
    unsafe {
        if !guarded() {
            return real(signal, new, old);
        }
        let wanted = (!new.is_null()).then(|| {
            let mut wanted = new.read();
            wanted.sa_mask = without_sigbus(wanted.sa_mask);
            wanted
        });
        if signal == libc::SIGBUS {
            let before = program_sigaction(wanted);
            if !old.is_null() {
                old.write(before);
            }
            return 0;
        }
        real(signal, wanted.as_ref().map_or(std::ptr::null(), |wanted| wanted), old)
    }
}

/// signal(2) for SIGBUS with the flags of one of its dialects.
fn signal_sigbus(handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    // SAFETY: a zeroed action is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    program_sigaction(Some(action)).sa_sigaction
}

/// The dialects of signal(2).
macro_rules! signal_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident = $flags:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for signal(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
                if number == libc::SIGBUS && guarded() {
                    return signal_sigbus(handler, $flags);
                }
                type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
                // SAFETY: the caller's promise.
                unsafe { real!($name as Signal)(number, handler) }
            }
        )*
    };
}

signal_family! {
    /// signal(2).
    c"signal" signal = libc::SA_RESTART;
    /// bsd_signal(3).
    c"bsd_signal" bsd_signal = libc::SA_RESTART;
    /// sysv_signal(3).
    c"sysv_signal" sysv_signal = libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// The functions that set a thread's mask.
macro_rules! mask_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for sigprocmask(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
                type Mask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
                let real = real!($name as Mask);
                // SAFETY: the caller's promise: each pointer is null or valid.
                unsafe {
                    if !guarded() || set.is_null() || how == libc::SIG_UNBLOCK {
                        return real(how, set, old);
                    }
                    real(how, &without_sigbus(set.read()), old)
                }
            }
        )*
    };
}

mask_family! {
    /// sigprocmask(2).
    c"sigprocmask" sigprocmask;
    /// pthread_sigmask(3).
    c"pthread_sigmask" pthread_sigmask;
}
