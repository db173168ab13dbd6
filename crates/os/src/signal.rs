//! Signals: blocking all of them around engine code (mask.rs), and SIGBUS as the messenger of
//! faults.
//!
//! In signal delivery the kernel sends SIGBUS to the thread that touches an absent page. One
//! handler serves all pools of the process: `WINDOW_TABLE` tells whose address it is. What is
//! nobody's goes to the program's own SIGBUS action, kept in `program` while ours is installed. So
//! is that for SIGSYS, where somebody has a handler for it ([`install`]).

mod entry;
mod mask;
mod program;

pub use entry::Handler;
pub use mask::{
    Blocked, OURS, STACK_BYTES, all_blocked, begin_handler, change_mask, end_handler,
    is_on_signal_stack, raise_pending, send_to_self, shadow, unshadow,
};
pub use program::{
    Interrupted, IsInterrupted, KernelAction, call_on_stack_by, chain, fork_done, fork_prepare,
    program_sigaction, put_off,
};

use crate::units::Errno;
use crate::{copy, tls};
use entry::{HANDLERS, overspill_signal, real_sigaction};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, Ordering::Release};

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

/// Most windows in signal delivery at once in one process: that of each pool, and what is managed
/// beside it.
pub const WINDOWS: usize = 64;

/// One that has no end is free. Who reads an entry while it changes asks a server about an address
/// that is not its own, which it says.
struct Window {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Null, or for ever.
    server: AtomicPtr<&'static dyn SignalFaults>,
}

impl Window {
    const fn free() -> Window {
        let server = AtomicPtr::new(null_mut());
        Window { start: AtomicUsize::new(0), end: AtomicUsize::new(0), server }
    }

    fn server(&self) -> Option<&'static dyn SignalFaults> {
        // SAFETY: null, or what `serve_window` has leaked.
        unsafe { self.server.load(Ordering::Acquire).as_ref().copied() }
    }
}

static WINDOW_TABLE: [Window; WINDOWS] = [const { Window::free() }; WINDOWS];
static INSTALLED: Mutex<bool> = Mutex::new(false);
/// Serves the faults of `range` by `server`, from now on and for as long as the process lives or
/// until [`release_window`].
///
/// # Errors
/// ENOSPC when there are [`WINDOWS`] already.
pub fn serve_window(range: Range<usize>, server: &'static dyn SignalFaults) -> Result<(), Errno> {
    let mut installed = INSTALLED.lock().unwrap_or_else(|e| e.into_inner());
    let is_free = |window: &&Window| window.end.load(Ordering::Acquire) == 0;
    let free = WINDOW_TABLE.iter().find(is_free).ok_or(Errno::NOSPC)?;
    free.server.store(Box::leak(Box::new(server)), Ordering::Release);
    free.start.store(range.start, Ordering::Relaxed);
    free.end.store(range.end, Ordering::Release);
    if !*installed {
        install(libc::SIGBUS, on_sigbus, !0)?;
        *installed = true;
    }
    Ok(())
}

/// Stops serving `range`.
pub fn release_window(range: Range<usize>) {
    for window in &WINDOW_TABLE {
        if window.end.load(Ordering::Acquire) == range.end {
            window.end.store(0, Ordering::Release);
        }
    }
}

/// Handles SIGBUS or SIGSYS, on the thread's signal stack if it has one, with these signals
/// blocked. The action before is the program's own from now on.
pub fn install(signal: i32, handler: Handler, mask: u64) -> Result<(), Errno> {
    HANDLERS[usize::from(signal == libc::SIGSYS)].store(handler as *const () as usize, Release);
    // SAFETY: it calls that, of the right type for SA_SIGINFO, and lives for ever; a sigset_t
    // begins with the kernel's 8 bytes.
    let before = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = overspill_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        (&raw mut action.sa_mask).cast::<u64>().write(mask);
        let mut before: libc::sigaction = std::mem::zeroed();
        real_sigaction(signal, &action, &mut before)?;
        before
    };
    program_sigaction(signal, Some(before));
    Ok(())
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
            && let Some(server) = window.server()
            && server.serve(address, is_write(context)) == Outcome::Served
        {
            tls::count_served();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            return;
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    // SAFETY: what the kernel has passed.
    unsafe {
        if code <= 0 || !copy::recover(context) {
            chain(signal, info, context);
        }
    }
}

fn is_write(context: *mut libc::c_void) -> bool {
    const ERROR_WRITE: i64 = 2;
    // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & ERROR_WRITE != 0
}
