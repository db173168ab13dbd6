//! Signals: blocking all of them around engine code, and SIGBUS as the messenger of faults.
//!
//! In signal delivery the kernel sends SIGBUS to the thread that touches an absent page. One
//! handler serves all pools of the process: `WINDOW_TABLE` tells whose address it is. What is
//! nobody's goes to the program's own SIGBUS action, kept in `program` while ours is installed. So
//! is that for SIGSYS, where somebody has a handler for it ([`install`]).

mod program;

pub use program::{
    Interrupted, IsInterrupted, KernelAction, call_on_stack_by, chain, fork_done, fork_prepare,
    program_sigaction, put_off,
};

use crate::seccomp::exceptions::SELF_THREAD;
use crate::units::{Errno, PAGE_SIZE};
use crate::{confined, copy, pointer, seccomp, tls};
use std::arch::global_asm;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, Ordering::Release};
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
pub const STACK_BYTES: usize = (256 << 10) + 2 * PAGE_SIZE;
/// Whether [`OURS`] are never blocked, and [`tls::blocked`] says which the program believes to be.
static SHADOWED: AtomicBool = AtomicBool::new(false);

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
unsafe fn context_mask(context: *mut libc::c_void) -> *mut u64 {
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
fn are_all(mask: u64) -> bool {
    const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let open = if SHADOWED.load(Ordering::Relaxed) { OURS } else { 0 };
    mask | open | RESERVED | UNBLOCKABLE == !0
}

/// Whether all signals that can be are blocked on the calling thread.
pub fn all_blocked() -> bool {
    are_all(change_mask(libc::SIG_BLOCK, 0))
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

/// A handler with SA_SIGINFO.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// The handlers of SIGBUS and SIGSYS.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

// Calls the handler of a signal with the engine's thread-local storage, whoever's the thread is.
global_asm!(
    ".pushsection .text.overspill_signal,\"ax\",@progbits",
    ".hidden overspill_signal",
    ".globl overspill_signal",
    ".type overspill_signal, @function",
    "overspill_signal:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -16",
    "sub rsp, 16",
    ".cfi_adjust_cfa_offset 16",
    "call {enter}",
    "mov ebx, eax",
    "mov r11, [rip + overspill_tls@GOTTPOFF]",
    "mov r11, fs:[r11 + {answering}]",
    "mov [rsp], r11",
    "lea rax, [rip + {handlers}]",
    "cmp edi, {SIGSYS}",
    "jne 1f",
    "add rax, 8",
    "1:",
    "call [rax]",
    ".hidden overspill_signal_called",
    ".globl overspill_signal_called",
    "overspill_signal_called:",
    "mov r11, [rip + overspill_tls@GOTTPOFF]",
    "mov rax, [rsp]",
    "mov fs:[r11 + {answering}], rax",
    "test ebx, ebx",
    "jz 2f",
    "call {leave}",
    "2:",
    "add rsp, 16",
    ".cfi_adjust_cfa_offset -16",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".hidden overspill_signal_end",
    ".globl overspill_signal_end",
    "overspill_signal_end:",
    ".popsection",
    enter = sym pointer::overspill_own_pointer,
    leave = sym pointer::overspill_programs_pointer,
    handlers = sym HANDLERS,
    answering = const tls::ANSWERING,
    SIGSYS = const libc::SIGSYS,
);

unsafe extern "C" {
    fn overspill_signal();
    fn overspill_signal_called();
    fn overspill_signal_end();
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
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        (&raw mut action.sa_mask).cast::<u64>().write(mask);
        let mut before: libc::sigaction = std::mem::zeroed();
        real_sigaction(signal, &action, &mut before)?;
        before
    };
    program_sigaction(signal, Some(before));
    Ok(())
}

/// sigaction past the preload library, which interposes the libc symbol: through the next
/// definition.
unsafe fn real_sigaction(
    signal: i32,
    action: &libc::sigaction,
    before: &mut libc::sigaction,
) -> Result<(), Errno> {
    type Sigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;
    // SAFETY: dlsym finds the C library's own function, whose type this is; the C library adds its
    // own restorer.
    let ret = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
        let call: Sigaction = if found.is_null() {
            libc::sigaction
        } else {
            std::mem::transmute::<*mut libc::c_void, Sigaction>(found)
        };
        call(signal, action, before)
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
