//! Signals: blocking all of them around engine code, and SIGBUS as the messenger of faults.
//!
//! In signal delivery the kernel sends SIGBUS to the thread that touches an absent page. One handler serves all
//! pools of the process: `WINDOW_TABLE` tells whose address it is. What is nobody's goes to the program's own
//! SIGBUS action, kept here while ours is installed.

use crate::Errno;
use crate::lock::RawLock;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use syscalls::{Sysno, raw_syscall};

/// Bytes of the kernel's signal set.
const SIGSET_BYTES: usize = 8;
/// The two signals that glibc keeps for itself (thread cancellation, setuid of all threads) stay open, or setuid()
/// would wait for ever for an engine thread.
const RESERVED: u64 = 1 << 31 | 1 << 32;

/// All signals are blocked on this thread while it lives.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all signals.
    pub fn all() -> Blocked {
        let set = !RESERVED;
        let mut before = 0u64;
        // SAFETY: both sets are 8 bytes, alive during the call.
        unsafe {
            let (set, old) = (&set as *const u64, &mut before as *mut u64);
            raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, set, old, SIGSET_BYTES);
        }
        Blocked { before }
    }
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
        // SAFETY: as in `all`.
        unsafe {
            let (set, old) = (&self.before as *const u64, std::ptr::null_mut::<u64>());
            raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, set, old, SIGSET_BYTES);
        }
    }
}

/// Whether all signals that can be are blocked on the calling thread.
pub fn all_blocked() -> bool {
    const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let mut blocked = 0u64;
    // SAFETY: no new set is given; the old one is 8 bytes, alive during the call.
    unsafe {
        let (set, old) = (std::ptr::null::<u64>(), &mut blocked as *mut u64);
        raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, set, old, SIGSET_BYTES);
    }
    blocked | RESERVED | UNBLOCKABLE == !0
}

/// What became of a fault that was delivered by signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Served: the access is repeated.
    Served,
    /// It cannot be served: the program's own action for SIGBUS is taken.
    Failed,
}

/// Who serves the faults of a range of addresses.
pub trait SignalFaults: Sync {
    /// Serves one; runs on the faulting thread with all signals blocked.
    fn serve(&self, address: usize, write: bool) -> Outcome;
}

/// Most pools in signal delivery in one process.
const WINDOWS: usize = 16;

struct Window {
    start: AtomicUsize,
    end: AtomicUsize,
    server: OnceLock<&'static dyn SignalFaults>,
}

static WINDOW_TABLE: [Window; WINDOWS] =
    [const { Window { start: AtomicUsize::new(0), end: AtomicUsize::new(0), server: OnceLock::new() } }; WINDOWS];
static INSTALLED: Mutex<bool> = Mutex::new(false);
/// The program's own action for SIGBUS: handler, flags and mask, as the kernel's struct.
static PROGRAM_ACTION: Action = Action { lock: RawLock::new(), action: UnsafeCell::new(KernelAction::DEFAULT) };

/// An action behind a lock that is taken with all signals blocked, and held over a fork.
struct Action {
    lock: RawLock,
    action: UnsafeCell<KernelAction>,
}

// SAFETY: the cell is accessed under the lock only.
unsafe impl Sync for Action {}

impl Action {
    /// Puts `new` in its place, if there is one, and returns the action before.
    fn replace(&self, new: Option<KernelAction>) -> KernelAction {
        self.lock.with(|| {
            // SAFETY: the lock is held, and no reference leaves this closure.
            let action = unsafe { &mut *self.action.get() };
            let before = *action;
            *action = new.unwrap_or(before);
            before
        })
    }
}

/// Before a fork, all signals blocked: whoever is about the program's SIGBUS action gets done with it first.
pub fn fork_prepare() {
    PROGRAM_ACTION.lock.lock();
}

/// After a fork, in parent and child.
pub fn fork_done() {
    PROGRAM_ACTION.lock.unlock();
}

/// struct sigaction as the kernel has it (not as the C library has it).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelAction {
    /// Handler, or SIG_DFL (0) or SIG_IGN (1).
    pub handler: usize,
    /// SA_* flags.
    pub flags: u64,
    /// Return trampoline.
    pub restorer: usize,
    /// Signals blocked during the handler.
    pub mask: u64,
}

impl KernelAction {
    /// SIG_DFL.
    pub const DEFAULT: KernelAction = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
}

/// Serves the faults of `range` by `server`, from now on and for as long as the process lives or until
/// [`release_window`].
pub fn serve_window(range: Range<usize>, server: &'static dyn SignalFaults) -> Result<(), Errno> {
    let mut installed = INSTALLED.lock().unwrap_or_else(|e| e.into_inner());
    let free = WINDOW_TABLE.iter().find(|w| w.server.get().is_none()).ok_or(Errno::NOSPC)?;
    let _ = free.server.set(server);
    free.start.store(range.start, Ordering::Relaxed);
    free.end.store(range.end, Ordering::Release);
    if !*installed {
        // SAFETY: the handler is a function of the right type for SA_SIGINFO and lives for ever.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            let mut before: libc::sigaction = std::mem::zeroed();
            real_sigaction(&action, &mut before)?;
            before
        };
        program_sigaction(Some(before));
        *installed = true;
    }
    Ok(())
}

/// Stops serving `range`; the entry is not used again.
pub fn release_window(range: Range<usize>) {
    for window in &WINDOW_TABLE {
        if window.end.load(Ordering::Acquire) == range.end {
            window.end.store(0, Ordering::Release);
        }
    }
}

/// Sets the program's own action for SIGBUS and returns the one before.
pub fn program_sigaction(new: Option<libc::sigaction>) -> libc::sigaction {
    let _blocked = Blocked::all();
    let before = PROGRAM_ACTION.replace(new.map(|new| {
        let mut mask = [0u8; 8];
        // SAFETY: a sigset_t begins with the kernel's 8 bytes.
        unsafe { std::ptr::copy_nonoverlapping((&new.sa_mask as *const libc::sigset_t).cast(), mask.as_mut_ptr(), 8) };
        KernelAction {
            handler: new.sa_sigaction,
            flags: new.sa_flags as u32 as u64,
            restorer: 0,
            mask: u64::from_ne_bytes(mask),
        }
    }));
    // SAFETY: zero is a valid sigaction; the mask's first 8 bytes are the kernel's.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        old.sa_sigaction = before.handler;
        old.sa_flags = before.flags as i32;
        std::ptr::copy_nonoverlapping(
            (&before.mask as *const u64).cast::<u8>(),
            (&mut old.sa_mask as *mut libc::sigset_t).cast(),
            8,
        );
        old
    }
}

/// sigaction(SIGBUS) past the preload library, which interposes the libc symbol: through the next definition.
unsafe fn real_sigaction(action: &libc::sigaction, before: &mut libc::sigaction) -> Result<(), Errno> {
    type Sigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;
    // SAFETY: dlsym finds the C library's own function, whose type this is; the C library adds its own restorer.
    let ret = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
        let call: Sigaction =
            if found.is_null() { libc::sigaction } else { std::mem::transmute::<*mut libc::c_void, Sigaction>(found) };
        call(libc::SIGBUS, action, before)
    };
    if ret == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is the thread's own; the program must not see it change.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo; for SIGBUS it holds an address.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    const BUS_ADRERR: i32 = 2;
    for window in &WINDOW_TABLE {
        let end = window.end.load(Ordering::Acquire);
        if code == BUS_ADRERR
            && address < end
            && address >= window.start.load(Ordering::Relaxed)
            && let Some(server) = window.server.get()
            && server.serve(address, is_write(context)) == Outcome::Served
        {
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            return;
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    chain(signal, info, context);
}

fn is_write(context: *mut libc::c_void) -> bool {
    const ERROR_WRITE: i64 = 2;
    // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & ERROR_WRITE != 0
}

/// Does what the program asked for: its handler, or the default, which kills when the access is repeated.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = PROGRAM_ACTION.replace(None);
    match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault cannot be ignored: with the default action installed the repeated access ends the process,
            // as it does without us.
            // SAFETY: plain data on our stack; no handler is installed.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                let _ = real_sigaction(&default, &mut before);
            }
        }
        handler => {
            // The program's mask, not ours, is in force during its handler.
            let mask = action.mask;
            // SAFETY: 1. the mask is 8 bytes; 2. the handler is the program's own, called as the kernel would.
            unsafe {
                let (set, old) = (&mask as *const u64, std::ptr::null_mut::<u64>());
                raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, set, old, SIGSET_BYTES);
                if action.flags & libc::SA_SIGINFO as u64 != 0 {
                    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
                    std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal);
                }
            }
        }
    }
}
