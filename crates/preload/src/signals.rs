//! Signals, for signal delivery: SIGBUS carries the engine's faults and SIGSYS the calls of [`crate::trap`], and neither is ever
//! blocked.
//!
//! What the program wants for them is kept ([`overspill_os::signal::program_sigaction`]) and done for those that are not
//! ours. Both are taken out of every mask that the program sets, for threads, for its handlers, and for calls that wait
//! with a mask of their own: one that comes while it is blocked would end the process. In thread delivery all of this
//! passes straight through.
//!
//! Not covered: inline system calls, and signalfd(2) and sigwait(3) for these two, which never see one.

use crate::pool;
use crate::sys::real;
use overspill_os::signal::{change_mask, program_sigaction};
use overspill_os::tls;
use std::ffi::{c_int, c_void};

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
    let before = change_mask(libc::SIG_UNBLOCK, OURS);
    call();
    change_mask(libc::SIG_SETMASK, before);
}

/// The two signals, as the kernel's set.
pub const OURS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);

fn is_ours(signal: c_int) -> bool {
    signal == libc::SIGBUS || signal == libc::SIGSYS
}

/// A set without our signals.
fn open(mut set: libc::sigset_t) -> libc::sigset_t {
    // SAFETY: a valid set and valid signals.
    unsafe {
        libc::sigdelset(&mut set, libc::SIGBUS);
        libc::sigdelset(&mut set, libc::SIGSYS);
    }
    set
}

/// Opens both on the first thread, whatever the process has inherited.
pub fn start() {
    change_mask(libc::SIG_UNBLOCK, OURS);
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
            wanted.sa_mask = open(wanted.sa_mask);
            wanted
        });
        if is_ours(signal) {
            let before = program_sigaction(signal, wanted);
            if !old.is_null() {
                old.write(before);
            }
            return 0;
        }
        real(signal, wanted.as_ref().map_or(std::ptr::null(), |wanted| wanted), old)
    }
}

/// signal(2) for a signal of ours with the flags of one of its dialects.
fn set_ours(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    // SAFETY: a zeroed action is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    program_sigaction(signal, Some(action)).sa_sigaction
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
                if is_ours(number) && guarded() {
                    return set_ours(number, handler, $flags);
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
                    if !guarded() || set.is_null() {
                        return real(how, set, old);
                    }
                    real(how, &open(set.read()), old)
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

type Set = *const libc::sigset_t;

/// Calls that have a mask while they wait: in force also during the handlers that end the wait.
macro_rules! wait_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type,)* set: Set) -> c_int {
                type Wait = unsafe extern "C" fn($($type,)* Set) -> c_int;
                // SAFETY: the caller's promise.
                unsafe {
                    if !guarded() || set.is_null() {
                        return real!($name as Wait)($($argument,)* set);
                    }
                    let set = open(set.read());
                    real!($name as Wait)($($argument,)* &set)
                }
            }
        )*
    };
}

wait_family! {
    /// sigsuspend(2).
    c"sigsuspend" sigsuspend();
    /// ppoll(2).
    c"ppoll" ppoll(list: *mut c_void, count: libc::nfds_t, timeout: *const libc::timespec);
    /// pselect(2).
    c"pselect" pselect(
        count: c_int,
        read: *mut c_void,
        write: *mut c_void,
        except: *mut c_void,
        timeout: *const libc::timespec
    );
    /// epoll_pwait(2).
    c"epoll_pwait" epoll_pwait(fd: c_int, events: *mut c_void, count: c_int, timeout: c_int);
    /// epoll_pwait2(2).
    c"epoll_pwait2" epoll_pwait2(fd: c_int, events: *mut c_void, count: c_int, timeout: *const libc::timespec);
    /// pthread_attr_setsigmask_np(3).
    c"pthread_attr_setsigmask_np" pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t);
}

/// ppoll(2) in programs built with _FORTIFY_SOURCE.
///
/// # Safety
///
/// As for ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    list: *mut c_void,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    set: Set,
    len: usize,
) -> c_int {
    type Wait = unsafe extern "C" fn(*mut c_void, libc::nfds_t, *const libc::timespec, Set, usize) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        if !guarded() || set.is_null() {
            return real!(c"__ppoll_chk" as Wait)(list, count, timeout, set, len);
        }
        let set = open(set.read());
        real!(c"__ppoll_chk" as Wait)(list, count, timeout, &set, len)
    }
}
