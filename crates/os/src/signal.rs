//! Signals: blocking all of them around engine code, and SIGBUS as the messenger of faults.
//!
//! In signal delivery the kernel sends SIGBUS to the thread that touches an absent page. One
//! handler serves all pools of the process: `WINDOW_TABLE` tells whose address it is. What is
//! nobody's goes to the program's own SIGBUS action, kept here while ours is installed. So is that
//! for SIGSYS, where somebody has a handler for it ([`install`]).

use crate::lock::RawLock;
use crate::tls::Answering;
use crate::units::Errno;
use crate::{copy, pointer, seccomp, tls};
use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, Ordering::Release};
use std::sync::{Mutex, OnceLock};
use syscalls::{Sysno, raw_syscall};

/// Bytes of the kernel's signal set.
const SIGSET_BYTES: usize = 8;
/// The two signals that glibc keeps for itself (thread cancellation, setuid of all threads) stay
/// open, or setuid() would wait for ever for an engine thread.
const RESERVED: u64 = 1 << 31 | 1 << 32;
/// The two signals that may be taken for the engine, as the kernel's set.
pub const OURS: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);
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
        send_to_self(signal);
    }
}

fn send_to_self(signal: i32) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes numbers.
    unsafe { raw_syscall!(Sysno::tgkill, pid, crate::task::id(), signal) };
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
    /// [`OURS`] stay open there once they are for ever: the thread's own stack, on which this
    /// begins and ends, may be managed memory.
    pub fn all() -> Blocked {
        let open = match tls::is_engine_thread() {
            true => RESERVED,
            false if SHADOWED.load(Ordering::Relaxed) => OURS,
            false => 0,
        };
        Blocked { before: change_mask(libc::SIG_SETMASK, !open) }
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
/// The program's own actions for SIGBUS and SIGSYS: handler, flags and mask, as the kernel's
/// struct.
static PROGRAM_ACTIONS: [Action; 2] =
    [const { Action { lock: RawLock::new(), action: UnsafeCell::new(KernelAction::DEFAULT) } }; 2];

fn program_action(signal: i32) -> &'static Action {
    &PROGRAM_ACTIONS[usize::from(signal == libc::SIGSYS)]
}

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

/// Before a fork, all signals blocked: whoever is about the program's own actions gets done with it
/// first.
pub fn fork_prepare() {
    PROGRAM_ACTIONS.iter().for_each(|action| action.lock.lock());
}

/// After a fork, in parent and child.
pub fn fork_done() {
    PROGRAM_ACTIONS.iter().for_each(|action| action.lock.unlock());
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

/// Sets the program's own action for SIGBUS or SIGSYS, and returns the one before.
pub fn program_sigaction(signal: i32, new: Option<libc::sigaction>) -> libc::sigaction {
    let _blocked = Blocked::all();
    let before = program_action(signal).replace(new.map(|new| {
        let mut mask = [0u8; 8];
        // SAFETY: a sigset_t begins with the kernel's 8 bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&new.sa_mask as *const libc::sigset_t).cast(),
                mask.as_mut_ptr(),
                8,
            )
        };
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

/// What a signal has interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// Code of the program's, or that it has called.
    Program,
    /// A handler of the engine's, which looks what has come for the program before it ends.
    Handler,
    /// One that has looked.
    EndOfHandler,
}

/// What a signal has interrupted, by the instruction and the stack pointer that the kernel tells.
/// The kernel may begin a handler and have another signal come at once.
///
/// # Safety
///
/// As for [`chain`].
unsafe fn interrupted(context: *mut libc::c_void) -> Interrupted {
    // SAFETY: the caller's promise.
    let at = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let [mut code, stack] =
        [libc::REG_RIP, libc::REG_RSP].map(|register| at[register as usize] as usize);
    if pointer::is_either(code) {
        // SAFETY: it has its return address on the stack.
        code = unsafe { (stack as *const usize).read() };
    }
    let label = |label: unsafe extern "C" fn()| label as *const () as usize;
    let begin = overspill_signal as *const () as usize;
    if (begin..label(overspill_signal_end)).contains(&code) {
        return match code < label(overspill_signal_called) {
            true => Interrupted::Handler,
            false => Interrupted::EndOfHandler,
        };
    }
    match tls::answering() {
        Answering::Works => return Interrupted::Handler,
        Answering::Ends => return Interrupted::EndOfHandler,
        Answering::Nothing => {}
    }
    OTHER_HANDLERS.get().map_or(Interrupted::Program, |others| others(code, stack))
}

/// Who calls the program's handlers on a signal stack of the program's own; 0 for nobody.
static CALLER: AtomicUsize = AtomicUsize::new(0);

/// Tells by an instruction and a stack pointer whether a handler of the caller's is interrupted.
pub type IsInterrupted = fn(usize, usize) -> Interrupted;

static OTHER_HANDLERS: OnceLock<IsInterrupted> = OnceLock::new();

/// From now on handlers for which the program has asked for a signal stack (SA_ONSTACK) are called
/// by `caller`, which knows them, and begins and ends them ([`begin_handler`], [`end_handler`]);
/// whether a signal has interrupted that says `interrupted`.
pub fn call_on_stack_by(caller: Handler, interrupted: IsInterrupted) {
    let _ = OTHER_HANDLERS.set(interrupted);
    CALLER.store(caller as *const () as usize, Release);
}

/// Does what the program asked for: its handler, or the default, which kills. Called by the handler
/// of [`install`].
///
/// # Safety
///
/// The arguments are those that the kernel has passed to that handler.
pub unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let mut action = program_action(signal).replace(None);
    // SAFETY: the caller's promise.
    let is_sent = unsafe { (*info).si_code } <= 0;
    let bit = 1 << (signal - 1);
    // SAFETY: as above.
    let interrupted = if is_sent { unsafe { interrupted(context) } } else { Interrupted::Program };
    // SAFETY: the caller's promise.
    let mask = unsafe { &mut *context_mask(context) };
    // The engine is at work, all other signals blocked.
    let works =
        || is_sent && SHADOWED.load(Ordering::Relaxed) && !tls::is_program() && are_all(*mask);
    match interrupted {
        // It comes when that handler returns, and then on the stack that it is to have.
        Interrupted::Handler => return tls::set_pending(tls::pending() | bit),
        Interrupted::Program if !works() => {}
        // It comes when that is done.
        Interrupted::Program | Interrupted::EndOfHandler => {
            *mask |= bit;
            change_mask(libc::SIG_BLOCK, OURS);
            return send_to_self(signal);
        }
    }
    if tls::blocked() & bit != 0 {
        if is_sent {
            // It stays pending until the program unblocks it.
            return tls::set_pending(tls::pending() | bit);
        }
        // A fault while its signal is blocked ends the process, whatever the action.
        action = KernelAction::DEFAULT;
    }
    match action.handler {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault cannot be ignored: with the default action installed the repeated access ends
            // the process, as it does without us. What is not repeated is sent again, and arrives
            // when this handler returns. SAFETY: plain data on our stack; no handler is installed;
            // the call takes numbers.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                let _ = real_sigaction(signal, &default, &mut before);
                if is_sent || signal == libc::SIGSYS {
                    send_to_self(signal);
                }
            }
        }
        // SAFETY: the caller's promise.
        _ => unsafe { call_programs(signal, info, context, &action) },
    }
}

/// Calls the program's handler, as the kernel would.
///
/// # Safety
///
/// As for [`chain`]; the action has a handler.
unsafe fn call_programs(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    action: &KernelAction,
) {
    let has = |flag: i32| action.flags & flag as u64 != 0;
    if has(libc::SA_RESETHAND) {
        program_action(signal).replace(Some(KernelAction::DEFAULT));
    }
    let shadowed = SHADOWED.load(Ordering::Relaxed);
    let own = if has(libc::SA_NODEFER) { 0 } else { 1 << (signal - 1) };
    let caller = CALLER.load(Ordering::Relaxed);
    // SAFETY: 1. the caller's promise; 2. the handler is the program's own.
    unsafe {
        // The program's mask, not ours, is in force during its handler.
        let mask = *context_mask(context) | action.mask;
        if shadowed && caller != 0 && has(libc::SA_ONSTACK) {
            change_mask(libc::SIG_SETMASK, mask & !OURS);
            return std::mem::transmute::<usize, Handler>(caller)(signal, info, context);
        }
        if shadowed {
            begin_handler(context, action.mask | own);
        }
        change_mask(libc::SIG_SETMASK, if shadowed { mask & !OURS } else { mask });
        let handler = action.handler;
        pointer::with_programs_pointer(|| match has(libc::SA_SIGINFO) {
            true => std::mem::transmute::<usize, Handler>(handler)(signal, info, context),
            false => std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal),
        });
        if shadowed {
            change_mask(libc::SIG_SETMASK, !0);
            end_handler(context);
        }
    }
}
