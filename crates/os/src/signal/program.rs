//! What the program has asked for SIGBUS and SIGSYS while handlers of the engine's are installed:
//! it is done when one comes that is none of the engine's.
//!
//! One that was sent may come while a handler of the engine's is at work, and waits for its end
//! ([`put_off`]), and so does any other that those handlers leave open.

use super::entry::{Handler, overspill_signal, overspill_signal_called, overspill_signal_end};
use super::mask::{
    Blocked, OURS, SHADOWED, are_all, begin_handler, change_mask, context_mask, end_handler,
    send_to_self,
};
use crate::lock::RawLock;
use crate::tls::Answering;
use crate::{pointer, tls};
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, Ordering::Release};
use syscalls::{Sysno, raw_syscall};

/// The program's own actions for SIGBUS and SIGSYS: handler, flags and mask, as the kernel's
/// struct.
static PROGRAM_ACTIONS: [ProgramAction; 2] = [const {
    ProgramAction { lock: RawLock::new(), action: UnsafeCell::new(KernelAction::DEFAULT) }
}; 2];

fn program_action(signal: i32) -> &'static ProgramAction {
    &PROGRAM_ACTIONS[usize::from(signal == libc::SIGSYS)]
}

/// An action behind a lock that is taken with all signals blocked, and held over a fork.
struct ProgramAction {
    lock: RawLock,
    action: UnsafeCell<KernelAction>,
}

// SAFETY: the cell is accessed under the lock only.
unsafe impl Sync for ProgramAction {}

impl ProgramAction {
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

    /// Whether a call that the signal interrupts begins again, if it can: one that is ignored
    /// interrupts none.
    fn restarts(&self) -> bool {
        let has_handler = !matches!(self.handler, libc::SIG_DFL | libc::SIG_IGN);
        !has_handler || self.flags & libc::SA_RESTART as u64 != 0
    }
}

/// Has the handler of the engine's that is installed interrupt calls as the program wants it of
/// those signals that are sent.
fn restart_calls(signal: i32, restarts: bool) {
    let mut action = KernelAction::DEFAULT;
    let (place, len) = (&raw mut action, size_of_val(&action.mask));
    // SAFETY: the kernel writes an action, and reads it with another flag.
    unsafe {
        let known = raw_syscall!(Sysno::rt_sigaction, signal, 0usize, place, len) == 0;
        let flag = libc::SA_RESTART as u64;
        if known && ((*place).flags & flag != 0) != restarts {
            (*place).flags ^= flag;
            raw_syscall!(Sysno::rt_sigaction, signal, place, 0usize, len);
        }
    }
}

/// Sets the program's own action for SIGBUS or SIGSYS, and returns the one before.
pub fn program_sigaction(signal: i32, new: Option<libc::sigaction>) -> libc::sigaction {
    let _blocked = Blocked::all();
    let new = new.map(|new| {
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
    });
    let before = program_action(signal).replace(new);
    if let Some(new) = new {
        restart_calls(signal, new.restarts());
    }
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

/// Puts off a signal that was sent and has come while a handler of the engine's is at work: it
/// comes again when that returns, and then on the stack that it is to have. Says whether it was put
/// off.
///
/// # Safety
///
/// As for [`chain`].
pub unsafe fn put_off(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    // SAFETY: the caller's promise.
    if unsafe { (*info).si_code } > 0 {
        return false;
    }
    let bit = 1 << (signal - 1);
    // SAFETY: as above.
    let (interrupted, mask) = unsafe { (interrupted(context), &mut *context_mask(context)) };
    // The engine is at work, all other signals blocked.
    let works = || SHADOWED.load(Ordering::Relaxed) && !tls::is_program() && are_all(*mask);
    match interrupted {
        Interrupted::Handler => tls::set_pending(tls::pending() | bit),
        Interrupted::Program if !works() => return false,
        Interrupted::Program | Interrupted::EndOfHandler => {
            *mask |= bit;
            change_mask(libc::SIG_BLOCK, OURS | bit);
            let _ = send_to_self(signal);
        }
    }
    true
}

/// Does what the program asked for: its handler, or the default, which kills. Called by the handler
/// of [`install`](super::install).
///
/// # Safety
///
/// The arguments are those that the kernel has passed to that handler.
pub unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    if unsafe { put_off(signal, info, context) } {
        return;
    }
    // Not before: who forks holds the lock, and has it put off.
    let mut action = program_action(signal).replace(None);
    let bit = 1 << (signal - 1);
    // SAFETY: as above.
    let is_sent = unsafe { (*info).si_code } <= 0;
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
            // when this handler returns. Not by the C library's function, which may be the
            // program's by now. SAFETY: plain data on our stack; no handler is installed; the call
            // takes numbers.
            unsafe {
                let default = KernelAction::DEFAULT;
                let (place, len) = (&raw const default, size_of_val(&default.mask));
                let _ = raw_syscall!(Sysno::rt_sigaction, signal, place, 0usize, len);
                if is_sent || signal == libc::SIGSYS {
                    let _ = send_to_self(signal);
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
