//! The interfaces of System V and BSD by which handlers are set and signals are waited for. Inside
//! the C library they do not come by the symbols of those that they are made of, so the engine
//! would not see them: they would take its handlers away, tell the program of them, and wait with
//! its signals blocked.

use super::{guarded, is_ours, sigaction, sigsuspend};
use crate::sys;
use crate::sys::real;
use overspill_os::Errno;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// What sigset(3) takes and returns in place of a handler.
const SIG_HOLD: libc::sighandler_t = 2;

/// The set of one signal; None if there is none of that number.
fn only(signal: c_int) -> Option<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set in, or nothing is made of it.
    unsafe {
        let filled = libc::sigemptyset(set.as_mut_ptr()) == 0
            && libc::sigaddset(set.as_mut_ptr(), signal) == 0;
        filled.then(|| set.assume_init())
    }
}

/// The program's action for a signal; None where there is none, as errno says.
fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: a zeroed action is valid, and lives through the call.
    unsafe {
        let found = sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
        found.then(|| action.assume_init())
    }
}

/// Sets a handler without flags; None where that fails.
fn set_plain(signal: c_int, handler: libc::sighandler_t) -> Option<()> {
    // SAFETY: 1. a zeroed action is valid; 2. it lives through the call.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        sigaction(signal, &action, std::ptr::null_mut())
    };
    (set == 0).then_some(())
}

/// Changes the mask of the thread; the one before.
fn mask(how: c_int, set: Option<&libc::sigset_t>) -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::zeroed();
    let set = set.map_or(std::ptr::null(), |set| set);
    // SAFETY: both live through the call, which fills in the second.
    unsafe {
        let changed = libc::sigprocmask(how, set, before.as_mut_ptr()) == 0;
        changed.then(|| before.assume_init())
    }
}

fn set_or_hold(signal: c_int, handler: libc::sighandler_t) -> Option<libc::sighandler_t> {
    let set = only(signal)?;
    let before = action_of(signal)?.sa_sigaction;
    let mask_before = if handler == SIG_HOLD {
        mask(libc::SIG_BLOCK, Some(&set))?
    } else {
        set_plain(signal, handler)?;
        mask(libc::SIG_UNBLOCK, Some(&set))?
    };
    // SAFETY: the set was filled in.
    let was_held = unsafe { libc::sigismember(&mask_before, signal) } == 1;
    Some(if was_held { SIG_HOLD } else { before })
}

/// sigset(3).
///
/// # Safety
///
/// As for sigset(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    type Set = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
    if guarded() {
        return set_or_hold(signal, handler).unwrap_or(libc::SIG_ERR);
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"sigset" as Set)(signal, handler) }
}

/// sigignore(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn sigignore(signal: c_int) -> c_int {
    if guarded() {
        return set_plain(signal, libc::SIG_IGN).map_or(-1, |()| 0);
    }
    // SAFETY: the call takes a number.
    unsafe { real!(c"sigignore" as unsafe extern "C" fn(c_int) -> c_int)(signal) }
}

/// siginterrupt(3). The C library's own takes note for the signal(2) calls to come.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if guarded() {
        let Some(mut action) = action_of(signal) else { return -1 };
        action.sa_flags &= !libc::SA_RESTART;
        if interrupts == 0 {
            action.sa_flags |= libc::SA_RESTART;
        }
        // SAFETY: the action was the program's, and lives through the call.
        let set = unsafe { sigaction(signal, &action, std::ptr::null_mut()) };
        if set != 0 || is_ours(signal) || signal == libc::SIGSEGV {
            return set;
        }
    }
    type Interrupt = unsafe extern "C" fn(c_int, c_int) -> c_int;
    // SAFETY: the call takes numbers.
    unsafe { real!(c"siginterrupt" as Interrupt)(signal, interrupts) }
}

/// Waits with the mask of the thread but for one signal.
fn pause_for(signal: c_int) -> c_int {
    let Some(mut set) = only(signal).and_then(|_| mask(libc::SIG_BLOCK, None)) else {
        return sys::to_c_int(Err(Errno::INVAL));
    };
    // SAFETY: the set was filled in, and lives through the call.
    unsafe {
        libc::sigdelset(&mut set, signal);
        sigsuspend(&set)
    }
}

/// Waits with a mask of 32 signals.
fn pause_with(mask: c_int) -> c_int {
    // SAFETY: 1. a zeroed set is valid, and 8 bytes at least; 2. it lives through the call.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        (&raw mut set).cast::<u64>().write(u64::from(mask as u32));
        sigsuspend(&set)
    }
}

/// sigpause(3) of System V.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __xpg_sigpause(signal: c_int) -> c_int {
    __sigpause(signal, 1)
}

/// sigpause(3) of BSD.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn sigpause(mask: c_int) -> c_int {
    __sigpause(mask, 0)
}

/// Either, as older programs have it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __sigpause(signal_or_mask: c_int, is_signal: c_int) -> c_int {
    match (guarded(), is_signal) {
        (true, 0) => pause_with(signal_or_mask),
        (true, _) => pause_for(signal_or_mask),
        // SAFETY: the call takes numbers.
        (false, _) => unsafe {
            real!(c"__sigpause" as unsafe extern "C" fn(c_int, c_int) -> c_int)(
                signal_or_mask,
                is_signal,
            )
        },
    }
}
