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
//! Not covered: system calls past the C library but those of the executable's that are replaced,
//! and signalfd(2) and sigwait(3) for these two, which never see one.

use crate::memory::touch::SYS_IO_PGETEVENTS;
use crate::sys::real;
use crate::{memory, pool, redirect, sys};
use overspill_os::signal::{self, KernelAction, OURS, change_mask, program_sigaction};
use overspill_os::{Errno, tls};
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

pub mod actions;
pub mod altstack;
mod frames;
pub mod handlers;
pub mod masks;
pub mod older;
pub mod registers;

/// Whether this call needs care.
#[inline(always)]
pub fn guarded() -> bool {
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
    actions::begin_process();
    signal::shadow();
    handlers::find_own_code();
    signal::call_on_stack_by(handlers::on_programs_stack, handlers::interrupted);
    handlers::adopt(real_sigaction());
    handlers::catch_faults(real_sigaction());
}

/// Undoes [`start`] where signals cannot be used.
pub fn stop() {
    handlers::leave_faults(real_sigaction());
    signal::unshadow();
}

/// Where handlers return to that the C library's function has set; 0 while that is as it was.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Has the C library's function be ours, whoever has found it without asking for the symbol first:
/// a library with a function of that name of its own, such as Firefox's libmozsandbox.so. Called
/// while the process has one thread, with the engine's handlers in force.
pub fn take_entry() {
    // SAFETY: 1. a zeroed action is valid; 2. it lives through the call.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        raw_sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        before
    };
    let Some(restorer) = before.sa_restorer else { return };
    RESTORER.store(restorer as *const () as usize, Relaxed);
    let function = (c"sigaction", sigaction as *const () as usize);
    if !redirect::change([function], sys::c_librarys_definition) {
        RESTORER.store(0, Relaxed);
    }
}

fn real_sigaction() -> handlers::Sigaction {
    match RESTORER.load(Relaxed) {
        0 => real!(c"sigaction" as handlers::Sigaction),
        _ => as_c_librarys,
    }
}

/// What the C library's sigaction does.
unsafe extern "C" fn as_c_librarys(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    /// Its own signals, for threads that are cancelled and for changes of users.
    const INTERNAL: std::ops::RangeInclusive<c_int> = 32..=33;
    if INTERNAL.contains(&signal) {
        return sys::to_c_int(Err(Errno::INVAL));
    }
    // SAFETY: 1. the caller's promise; 2. an address, which is called by the kernel only.
    unsafe {
        let mut wanted = new.as_ref().copied();
        if let Some(wanted) = &mut wanted {
            wanted.sa_flags |= handlers::SA_RESTORER;
            wanted.sa_restorer =
                std::mem::transmute::<usize, Option<extern "C" fn()>>(RESTORER.load(Relaxed));
        }
        let new = wanted.as_ref().map_or(std::ptr::null(), |wanted| &raw const *wanted);
        raw_sigaction(signal, new, old)
    }
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

/// rt_sigaction(2), by its number or the program's own instructions.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn by_number(signal: c_int, new: usize, old: usize, len: usize) -> Result<usize, Errno> {
    if len != size_of::<u64>() {
        return Err(Errno::INVAL);
    }
    let wanted = match new {
        0 => None,
        new => Some(of_kernel(memory::read(new).ok_or(Errno::FAULT)?)),
    };
    // SAFETY: 1. a zeroed action is valid; 2. the caller's promise.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if is_ours(signal) {
            before = set_ours(signal, wanted);
        } else if handlers::set(raw_sigaction, signal, wanted, Some(&mut before)) != 0 {
            return Err(Errno::from_raw_os_error(sys::errno()));
        }
        match old == 0 || memory::write(old, as_kernel(&before)) {
            true => Ok(0),
            false => Err(Errno::FAULT),
        }
    }
}

fn of_kernel(action: KernelAction) -> libc::sigaction {
    // SAFETY: 1. a zeroed action is valid; 2. the kernel's 8 bytes of a mask are the first of a
    // sigset_t; 3. an address, which is called by the kernel only.
    unsafe {
        let mut as_c: libc::sigaction = std::mem::zeroed();
        as_c.sa_sigaction = action.handler;
        as_c.sa_flags = action.flags as c_int;
        as_c.sa_restorer = std::mem::transmute::<usize, Option<extern "C" fn()>>(action.restorer);
        (&raw mut as_c.sa_mask).cast::<u64>().write(action.mask);
        as_c
    }
}

fn as_kernel(action: &libc::sigaction) -> KernelAction {
    KernelAction {
        handler: action.sa_sigaction,
        flags: u64::from(action.sa_flags as u32),
        restorer: action.sa_restorer.map_or(0, |restorer| restorer as *const () as usize),
        // SAFETY: as in `of_kernel`.
        mask: unsafe { (&raw const action.sa_mask).cast::<u64>().read() },
    }
}

/// sigaction(2) with the program's own trampoline, in place of the C library's function.
unsafe extern "C" fn raw_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise: each is null or valid.
    unsafe {
        let wanted = new.as_ref().map(as_kernel);
        let mut before = KernelAction::DEFAULT;
        let wanted = wanted.as_ref().map_or(0, |wanted| &raw const *wanted as usize);
        let (number, place) = (Sysno::rt_sigaction, &raw mut before as usize);
        let set = sys::check(raw_syscall!(number, signal, wanted, place, size_of::<u64>()));
        if let (Ok(_), Some(old)) = (set, old.as_mut()) {
            *old = of_kernel(before);
        }
        sys::to_c_int(set)
    }
}

/// Sets the program's own action for a signal of ours, and returns the one before. The child of a
/// vfork has its parent's memory, but its actions end with it.
fn set_ours(signal: c_int, wanted: Option<libc::sigaction>) -> libc::sigaction {
    let wanted = wanted.filter(|_| !actions::is_borrowed());
    wanted.iter().for_each(|wanted| handlers::note(signal, wanted));
    program_sigaction(signal, wanted)
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

/// Which argument of a call that waits is its mask, and whether that is behind a pair.
pub fn mask_argument(number: c_long) -> Option<(usize, bool)> {
    Some(match number {
        libc::SYS_rt_sigsuspend => (0, false),
        libc::SYS_ppoll => (3, false),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => (4, false),
        libc::SYS_pselect6 | SYS_IO_PGETEVENTS => (5, true),
        _ => return None,
    })
}

/// The mask of such a call by its number, opened: for as long as the call takes.
#[derive(Default)]
pub struct OpenedMask {
    mask: u64,
    /// Where it is, and its size, for calls that have a sixth argument for both.
    pair: [usize; 2],
}

impl OpenedMask {
    /// Puts it in the place of the program's, if the call has one.
    pub fn put(&mut self, number: c_long, arguments: &mut [usize; 6]) {
        let Some((place, in_pair)) = mask_argument(number) else { return };
        if !guarded() || arguments[place] == 0 {
            return;
        }
        let mut set = arguments[place];
        if in_pair {
            // What cannot be read is for the kernel to judge, here and below.
            let Some(pair) = memory::read(set) else { return };
            self.pair = pair;
            set = self.pair[0];
        }
        let Some(mask) = open(set as Set) else { return };
        self.mask = mask;
        self.pair[0] = &raw const self.mask as usize;
        arguments[place] = if in_pair { &raw const self.pair as usize } else { self.pair[0] };
    }
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
