//! Signals, for signal delivery: SIGBUS carries the engine's faults and SIGSYS the calls of
//! [`crate::trap`], and neither is ever blocked.
//!
//! What the program wants for them is kept ([`overspill_os::signal::program_sigaction`]) and done
//! for those that are not ours; other handlers are called by one of ours ([`handlers`]). Both are
//! taken out of every mask that reaches the kernel ([`masks`] for those of threads, here those of
//! handlers and of calls that wait with a mask of their own), since one that
//! comes while it is blocked would end the process. That the program believes them blocked is kept
//! for each thread: it reads back what it has set, one that is sent to it waits until it is
//! unblocked, and a fault of its own ends it. In thread delivery all of this passes straight
//! through.
//!
//! Not covered: inline system calls, and signalfd(2) and sigwait(3) for these two, which never see
//! one.

use crate::sys::real;
use crate::{memory, pool};
use overspill_os::signal::{self, OURS, change_mask, program_sigaction};
use overspill_os::tls;
use std::ffi::{c_int, c_void};

pub mod altstack;
pub mod handlers;
pub mod masks;
pub mod registers;

/// Whether this call needs care.
#[inline(always)]
fn guarded() -> bool {
    pool::signal_delivery() && tls::is_program()
}

/// Runs `call` with SIGBUS open, where the engine has blocked all signals: it touches managed
/// memory.
pub fn with_sigbus_open(call: impl FnOnce()) {
    if !pool::signal_delivery() {
        return call();
    }
    let before = change_mask(libc::SIG_UNBLOCK, OURS);
    call();
    change_mask(libc::SIG_SETMASK, before);
}

fn is_ours(signal: c_int) -> bool {
    signal == libc::SIGBUS || signal == libc::SIGSYS
}

/// The part of a set that the kernel looks at, without our signals; None where it cannot be read.
fn open(set: Set) -> Option<u64> {
    memory::read::<u64>(set as usize).map(|mask| mask & !OURS)
}

/// What a call is handed for a set: the opened one, or, for the kernel to judge, the program's.
fn opened(mask: &Option<u64>, set: Set) -> Set {
    mask.as_ref().map_or(set, |mask| (&raw const *mask).cast())
}

/// Opens both on the first thread, whatever the process has inherited or blocked, and takes over
/// the handlers that it has.
pub fn start() {
    handlers::begin_process();
    signal::shadow();
    handlers::adopt(real_sigaction());
    handlers::catch_faults(real_sigaction());
}

/// Undoes [`start`] where signals cannot be used.
pub fn stop() {
    handlers::leave_faults(real_sigaction());
    signal::unshadow();
}

fn real_sigaction() -> handlers::Sigaction {
    real!(c"sigaction" as handlers::Sigaction)
}

/// sigaction(2).
///
/// # Safety
///
/// As for sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let real = real_sigaction();
    // SAFETY: the caller's promise: each pointer is null or valid.
    unsafe {
        if !guarded() {
            return real(signal, new, old);
        }
        let wanted = (!new.is_null()).then(|| new.read());
        if is_ours(signal) {
            let before = set_ours(signal, wanted);
            if !old.is_null() {
                old.write(before);
            }
            return 0;
        }
        handlers::set(real, signal, wanted, old.as_mut())
    }
}

/// Sets the program's own action for a signal of ours, and returns the one before. The child of a
/// vfork has its parent's memory, but its actions end with it.
fn set_ours(signal: c_int, wanted: Option<libc::sigaction>) -> libc::sigaction {
    program_sigaction(signal, wanted.filter(|_| !handlers::is_borrowed()))
}

/// signal(2) for a signal of ours, or one that comes to us first, with the flags of one of its
/// dialects.
fn set_to(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    // SAFETY: 1. a zeroed action is valid; 2. both live through the call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before = action;
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut action.sa_mask, signal);
        }
        if sigaction(signal, &action, &mut before) == 0 {
            before.sa_sigaction
        } else {
            libc::SIG_ERR
        }
    }
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
            pub unsafe extern "C" fn $symbol(
                number: c_int,
                handler: libc::sighandler_t,
            ) -> libc::sighandler_t {
                if (is_ours(number) || number == libc::SIGSEGV) && guarded() {
                    return set_to(number, handler, $flags);
                }
                type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
                let before = handlers::handler_of(number);
                // SAFETY: the caller's promise.
                handlers::reported(unsafe { real!($name as Signal)(number, handler) }, before)
            }
        )*
    };
}

signal_family! {
    /// signal(2).
    c"signal" signal = libc::SA_RESTART;
    /// bsd_signal(3).
    c"bsd_signal" bsd_signal = libc::SA_RESTART;
    /// ssignal(3).
    c"ssignal" ssignal = libc::SA_RESTART;
    /// sysv_signal(3).
    c"sysv_signal" sysv_signal = libc::SA_RESETHAND | libc::SA_NODEFER;
    /// sysv_signal(3), by the name that signal(2) has without _DEFAULT_SOURCE.
    c"__sysv_signal" __sysv_signal = libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// sigpending(2).
///
/// # Safety
///
/// As for sigpending(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigpending(set: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's promise; the kernel's 8 bytes are the first of a set.
    unsafe {
        let result =
            real!(c"sigpending" as unsafe extern "C" fn(*mut libc::sigset_t) -> c_int)(set);
        if result == 0 && guarded() {
            *set.cast::<u64>() |= tls::pending();
        }
        result
    }
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
                    let mask = open(set);
                    real!($name as Wait)($($argument,)* opened(&mask, set))
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
    c"epoll_pwait2" epoll_pwait2(
        fd: c_int,
        events: *mut c_void,
        count: c_int,
        timeout: *const libc::timespec
    );
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
    type Wait =
        unsafe extern "C" fn(*mut c_void, libc::nfds_t, *const libc::timespec, Set, usize) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        if !guarded() || set.is_null() {
            return real!(c"__ppoll_chk" as Wait)(list, count, timeout, set, len);
        }
        let mask = open(set);
        real!(c"__ppoll_chk" as Wait)(list, count, timeout, opened(&mask, set), len)
    }
}
