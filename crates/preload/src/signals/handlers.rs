//! The program's handlers, in signal delivery: each is called by one of ours.
//!
//! The kernel knows [`overspill_handler`], and a [table](super::actions) has what the program has
//! set for each signal. So a handler
//!
//! - finds in its context a mask that says of SIGBUS and SIGSYS what the program has set, and may
//!   change it there;
//! - runs on the stack that the program has set by sigaltstack(2), if it has asked for that
//!   (SA_ONSTACK), also where that is managed memory, or on the thread's own if it has set none:
//!   the kernel pushes its frame onto our stack ([`crate::signals::altstack`]), and we go on to
//!   that;
//! - or runs on the stack that was interrupted, to which the frame is moved ([`super::frames`]).
//!
//! SIGSEGV is ours also while the program has no handler for it, since a fault may be one of ours:
//! we have looked at what the program has handed to a call, and there is nothing
//! ([`crate::memory`], [`crate::signals::masks`]). The default for all others is what follows then.
//!
//! While a handler runs on the program's stack ours still holds the kernel's frame. The kernel,
//! which sees that nobody is on it, would put the next one over that; so it is told of the free
//! part only, until it restores what it had found when the handler returns. Who leaves a handler by
//! siglongjmp leaves it so, and the next handler finds all of the stack free.

use crate::signals::actions::{ENTRIES, Entry, SIGNALS, Wanted, is_borrowed};
use crate::signals::{altstack, frames, masks};
use crate::{image, sys};
use overspill_os::copy;
use overspill_os::pointer::{overspill_own_pointer, overspill_programs_pointer};
use overspill_os::signal::{Interrupted, KernelAction, OURS};
use overspill_os::signal::{begin_handler, change_mask, end_handler, put_off};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use syscalls::{Sysno, raw_syscall};

/// What a handler was called with, and where it is to run. On our signal stack, where the assembler
/// below knows its layout.
#[repr(C)]
struct HandlerCall {
    /// The stack pointer for the handler, at its return address, or 0 to stay where we are.
    stack: usize,
    /// The part of our stack that the kernel may use meanwhile, and the mask that is in force then.
    free: libc::stack_t,
    mask: u64,
    handler: usize,
    signal: usize,
    info: usize,
    context: *mut c_void,
    /// Whether the thread had another thread pointer than the engine's.
    foreign: usize,
    /// A register of who has called this, if it was not the kernel.
    saved: usize,
    /// Whether the kernel's frame was moved to where the handler is to run.
    moved: usize,
}

const _: () = assert!(size_of::<HandlerCall>().is_multiple_of(16));

/// A mask with all signals.
static ALL: u64 = !0;
/// The same without those that bring pages.
static ALL_BUT_OURS: u64 = !OURS;

// Between the change of stacks and that of the mask nothing touches memory on the program's stack,
// which may be absent: a fault would come while its signal is blocked. Nor is anything written
// there afterwards: it may be read-only by then, and a SIGSEGV that finds no room for its frame
// ends the program, where the kernel's own frame would have been in the way of none. So the return
// address is there already ([`begin`]). No frame of Rust's is on the stack while the handler runs,
// since a cancellation may unwind it.
global_asm!(
    // Makes the mask at rsi that of the thread.
    ".macro overspill_set_mask",
    "mov edi, {SETMASK}",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {SIGPROCMASK}",
    "syscall",
    ".endm",
    ".pushsection .text.overspill_handler,\"ax\",@progbits",
    ".hidden overspill_handler",
    ".globl overspill_handler",
    ".type overspill_handler, @function",
    "overspill_handler:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, {frame}",
    "movsxd rdi, edi",
    "mov [rsp + {signal}], rdi",
    "mov [rsp + {info}], rsi",
    "mov [rsp + {context}], rdx",
    "mov [rsp + {saved}], rbx",
    ".cfi_offset rbx, {saved} - {frame} - 16",
    "call {enter}",
    "mov [rsp + {foreign}], rax",
    "mov rdi, rsp",
    "call {begin}",
    "call {leave}",
    "mov rbx, rsp",
    "cmp qword ptr [rbx + {stack}], 0",
    "je 1f",
    "mov rsp, [rbx + {stack}]",
    "cmp qword ptr [rbx + {moved}], 0",
    "jne 3f",
    "lea rdi, [rbx + {free}]",
    "xor esi, esi",
    "mov eax, {SIGALTSTACK}",
    "syscall",
    "lea rsi, [rbx + {mask}]",
    "overspill_set_mask",
    "mov rdi, [rbx + {signal}]",
    "mov rsi, [rbx + {info}]",
    "mov rdx, [rbx + {context}]",
    "xor eax, eax",
    "jmp [rbx + {handler}]",
    // All of our stack is free from the change of the mask on, and what was in registers is in the
    // context.
    "3:",
    "mov r12, [rbx + {signal}]",
    "mov r13, [rbx + {info}]",
    "mov r14, [rbx + {context}]",
    "mov r15, [rbx + {handler}]",
    "lea rsi, [rbx + {mask}]",
    "overspill_set_mask",
    "mov rdi, r12",
    "mov rsi, r13",
    "mov rdx, r14",
    "xor eax, eax",
    "jmp r15",
    "1:",
    "mov rdi, [rbx + {signal}]",
    "mov rsi, [rbx + {info}]",
    "mov rdx, [rbx + {context}]",
    "xor eax, eax",
    "call [rbx + {handler}]",
    ".hidden overspill_handler_back",
    ".globl overspill_handler_back",
    "overspill_handler_back:",
    "lea rsp, [rbp - {frame}]",
    // The kernel may use what is right below, where the functions that end this have their frames:
    // from here on no signal comes.
    "lea rsi, [rip + {all}]",
    "overspill_set_mask",
    "call {enter}",
    "mov rdi, rsp",
    "call {end}",
    "cmp qword ptr [rsp + {foreign}], 0",
    "je 2f",
    "call {leave}",
    "2:",
    "mov rbx, [rsp + {saved}]",
    ".cfi_restore rbx",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    // Where a handler returns to whose frame was moved: the stack pointer is at the context. An
    // unwinder finds all registers there, as in the C library's function for that.
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6",
    ".cfi_escape 0x10, 8, 2, 0x77, 0x28",
    ".cfi_escape 0x10, 9, 2, 0x77, 0x30",
    ".cfi_escape 0x10, 10, 2, 0x77, 0x38",
    ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0",
    ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0",
    ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0",
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0",
    ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0",
    ".cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0",
    ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0",
    ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0",
    ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 1",
    ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 1",
    ".cfi_escape 0x10, 0, 3, 0x77, 0x90, 1",
    ".cfi_escape 0x10, 2, 3, 0x77, 0x98, 1",
    ".cfi_escape 0x10, 7, 3, 0x77, 0xa0, 1",
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1",
    "nop",
    ".hidden overspill_handler_moved_back",
    ".globl overspill_handler_moved_back",
    "overspill_handler_moved_back:",
    "mov rbx, rsp",
    "lea rsi, [rip + {all_but_ours}]",
    "overspill_set_mask",
    "and rsp, -16",
    "call {enter}",
    "mov r12, rax",
    "mov rdi, rbx",
    "call {to_kernel}",
    "mov rbx, rax",
    "test r12, r12",
    "je 4f",
    "call {leave}",
    "4:",
    "mov rsp, rbx",
    "mov rax, {SIGRETURN}",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".popsection",
    ".purgem overspill_set_mask",
    frame = const size_of::<HandlerCall>(),
    stack = const offset_of!(HandlerCall, stack),
    free = const offset_of!(HandlerCall, free),
    mask = const offset_of!(HandlerCall, mask),
    handler = const offset_of!(HandlerCall, handler),
    signal = const offset_of!(HandlerCall, signal),
    info = const offset_of!(HandlerCall, info),
    context = const offset_of!(HandlerCall, context),
    SIGALTSTACK = const libc::SYS_sigaltstack,
    SIGPROCMASK = const libc::SYS_rt_sigprocmask,
    SETMASK = const libc::SIG_SETMASK,
    all = sym ALL,
    foreign = const offset_of!(HandlerCall, foreign),
    moved = const offset_of!(HandlerCall, moved),
    all_but_ours = sym ALL_BUT_OURS,
    SIGRETURN = const libc::SYS_rt_sigreturn,
    to_kernel = sym frames::to_kernel,
    saved = const offset_of!(HandlerCall, saved),
    begin = sym begin,
    end = sym end,
    enter = sym overspill_own_pointer,
    leave = sym overspill_programs_pointer,
);

unsafe extern "C" {
    fn overspill_handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void);
    fn overspill_handler_back();
    fn overspill_handler_moved_back();
}

/// The code of this library.
static OWN_CODE: OnceLock<Range<usize>> = OnceLock::new();

/// Finds the code of this library.
pub fn find_own_code() {
    if let Some(library) = image::of(ours()) {
        let _ = OWN_CODE.set(library.code);
    }
}

/// Whether a signal has interrupted [`overspill_handler`], or what it calls, on our signal stack:
/// its frame lies there too, and the program's handler would have to stay.
pub fn interrupted(code: usize, stack: usize) -> Interrupted {
    match altstack::is_on_ours(stack) {
        true if OWN_CODE.get().is_some_and(|own| own.contains(&code)) => Interrupted::Handler,
        // At the end of a call that was stopped: [`end`] blocks all signals.
        true if is_return(code) => Interrupted::EndOfHandler,
        _ => Interrupted::Program,
    }
}

/// Whether an instruction is one of those with which a handler returns to the kernel:
/// `mov rax, 15` and `syscall`.
fn is_return(code: usize) -> bool {
    const RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, libc::SYS_rt_sigreturn as u8, 0, 0, 0, 0x0f, 0x05];
    // SAFETY: code that runs just now: no byte is read behind the first that differs.
    let byte = |at: usize| unsafe { (at as *const u8).read_volatile() };
    let is = |bytes: &[u8], at: usize| {
        bytes.iter().enumerate().all(|(n, expected)| byte(at + n) == *expected)
    };
    is(&RETURN, code) || is(&RETURN[7..], code) && is(&RETURN, code - 7)
}

/// A signal of ours is handled so; those with a signal stack of the program's own are called here.
pub fn note(signal: c_int, wanted: &libc::sigaction) {
    let own = if wanted.sa_flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (signal - 1) };
    ENTRIES[signal as usize].write(Wanted {
        handler: wanted.sa_sigaction,
        flags: wanted.sa_flags,
        mask: kernels(&wanted.sa_mask) | own,
    });
}

/// [`overspill_handler`], for who has got a signal of ours.
pub extern "C" fn on_programs_stack(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: what the kernel has passed.
    unsafe { overspill_handler(signal, info, context) }
}

fn ours() -> usize {
    overspill_handler as *const () as usize
}

/// Signals that an access or an instruction raises: open in the handler of a call that was stopped.
pub const RAISED: u64 = 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGTRAP - 1);

extern "C" fn begin(call: &mut HandlerCall) {
    (call.stack, call.moved) = (0, 0);
    let Some(wanted) = wanted(call) else {
        // The program has no part in it: what it believes of its mask is not touched.
        call.handler = nothing as *const () as usize;
        return;
    };
    call.handler = wanted.handler;
    // SAFETY: the kernel has passed the context.
    unsafe { begin_handler(call.context, wanted.mask) };
    if wanted.flags & libc::SA_ONSTACK != 0 {
        // SAFETY: as above.
        let (sp, kernels) = unsafe {
            let context = &*call.context.cast::<libc::ucontext_t>();
            (context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize, context.uc_stack)
        };
        if let Some((stack, free)) =
            altstack::programs_place(sp, &kernels, &raw const *call as usize)
        {
            let place = stack - size_of::<usize>();
            // SAFETY: the top of the program's signal stack, which is its own or free below what
            // runs there. If it cannot be written that is the program's fault, and comes while we
            // are on our stack.
            unsafe {
                (place as *mut usize).write_volatile(overspill_handler_back as *const () as usize)
            };
            call.mask = change_mask(libc::SIG_SETMASK, !0);
            (call.stack, call.free) = (place, free);
        }
    } else if wanted.flags & ENGINES == 0 && is_to_move(call) {
        let back = overspill_handler_moved_back as *const () as usize;
        // SAFETY: the kernel has made the frame.
        let (stack, moved) = unsafe { frames::to_program(call.context, back) };
        call.mask = change_mask(libc::SIG_SETMASK, !0);
        call.context = call.context.wrapping_byte_add(moved);
        (call.stack, call.moved, call.info) = (stack, 1, call.info.wrapping_add(moved));
    }
}

/// Whether the kernel has pushed its frame onto our stack although the program has not asked for
/// that, from a stack of the program's.
fn is_to_move(call: &HandlerCall) -> bool {
    // SAFETY: the kernel has passed the context.
    let sp = unsafe { (*call.context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let sp = sp[libc::REG_RSP as usize] as usize;
    altstack::is_on_ours(call.context as usize) && !altstack::is_in_block(sp)
}

/// What is called for a signal; none for one that is ours, or comes again later.
fn wanted(call: &HandlerCall) -> Option<Wanted> {
    let (signal, info) = (call.signal as c_int, call.info as *const libc::siginfo_t);
    let wanted = ENTRIES[call.signal].read();
    // SAFETY: what the kernel has passed.
    if RAISED & 1 << (signal - 1) != 0 && unsafe { put_off(signal, info, call.context) } {
        return None;
    }
    if signal != libc::SIGSEGV {
        return Some(wanted);
    }
    // SAFETY: as above.
    let is_ours = unsafe {
        (*info).si_code > 0 && (copy::recover(call.context) || masks::recover(call.context))
    };
    match wanted.handler {
        _ if is_ours => None,
        libc::SIG_DFL => {
            let handler = default_action as *const () as usize;
            Some(Wanted { handler, flags: ENGINES, mask: 0 })
        }
        _ => {
            if wanted.flags & libc::SA_RESETHAND != 0 && !is_borrowed() {
                ENTRIES[call.signal].write(Wanted { handler: libc::SIG_DFL, ..wanted });
            }
            Some(wanted)
        }
    }
}

/// In the flags of an action: it is the engine's, and stays where it is.
const ENGINES: c_int = 1 << 20;

extern "C" fn nothing(_: c_int, _: *const libc::siginfo_t) {}

/// The default, in which a fault that is met again ends the process, and so does what was sent and
/// is sent again.
extern "C" fn default_action(signal: c_int, info: *const libc::siginfo_t) {
    let default = KernelAction::DEFAULT;
    // SAFETY: 1. the kernel reads one action and its 8 bytes of mask; 2. it has passed the
    // information; 3. numbers.
    unsafe {
        let set = raw_syscall!(
            Sysno::rt_sigaction,
            signal,
            &raw const default,
            0,
            size_of_val(&default.mask)
        );
        if sys::check(set).is_err() {
            // In a sandbox: there is nothing else to be done that ends it.
            sys::exit_group(128 + signal);
        }
        if (*info).si_code <= 0 && !overspill_os::signal::send_to_self(signal) {
            sys::exit_group(128 + signal);
        }
    }
}

/// Takes over the handlers that the program has set without us.
pub fn adopt(real: Sigaction) {
    for signal in 1..SIGNALS as c_int {
        // SAFETY: actions that live through the calls; a zeroed one is valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = real(signal, std::ptr::null(), &mut action) == 0;
            if !known || matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
                continue;
            }
            match signal {
                libc::SIGBUS | libc::SIGSYS => note(signal, &action),
                _ => drop(set(real, signal, Some(action), None)),
            }
        }
    }
}

/// From now on SIGSEGV comes to us first, unless the process has been started with it ignored.
pub fn catch_faults(real: Sigaction) {
    // SAFETY: actions that live through the calls; a zeroed one is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        real(libc::SIGSEGV, std::ptr::null(), &mut action);
        if action.sa_sigaction == libc::SIG_DFL {
            set(real, libc::SIGSEGV, Some(action), None);
        }
    }
}

/// Undoes [`catch_faults`].
pub fn leave_faults(real: Sigaction) {
    // SAFETY: as above.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        real(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
}

extern "C" fn end(call: &mut HandlerCall) {
    if call.handler == nothing as *const () as usize {
        return;
    }
    // SAFETY: the kernel has passed the context.
    unsafe { end_handler(call.context) };
}

/// sigaction(2) of the C library's.
pub type Sigaction =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// The kernel's flag for an action that says where its handler returns to: the C library's do.
pub const SA_RESTORER: c_int = 0x0400_0000;

/// A mask as the kernel has it: its 8 bytes are the first of a sigset_t.
fn kernels(set: &libc::sigset_t) -> u64 {
    // SAFETY: a sigset_t is larger, and aligned as a word.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

/// sigaction(2) for a signal that is not one of ours.
///
/// # Safety
///
/// As for sigaction(2).
pub unsafe fn set(
    real: Sigaction,
    signal: c_int,
    new: Option<libc::sigaction>,
    old: Option<&mut libc::sigaction>,
) -> c_int {
    let entry = usize::try_from(signal).ok().and_then(|signal| ENTRIES.get(signal));
    let before = entry.map(Entry::read);
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    let wanted = new.map(|new| {
        let mut wanted = new;
        // SAFETY: a valid set and valid signals.
        unsafe {
            libc::sigdelset(&mut wanted.sa_mask, libc::SIGBUS);
            libc::sigdelset(&mut wanted.sa_mask, libc::SIGSYS);
        }
        let is_handler = match new.sa_sigaction {
            libc::SIG_DFL => signal == libc::SIGSEGV,
            handler => handler != libc::SIG_IGN,
        };
        if let (Some(entry), true, false) = (entry, is_handler, is_borrowed()) {
            entry.write(Wanted {
                handler: new.sa_sigaction,
                flags: new.sa_flags,
                mask: kernels(&new.sa_mask),
            });
            wanted.sa_sigaction = ours();
            wanted.sa_flags |= libc::SA_SIGINFO;
            if signal == libc::SIGSEGV {
                // Not after a fault of ours: it is ours to do.
                wanted.sa_flags &= !libc::SA_RESETHAND;
            }
            // The thread's own stack may be absent, or what the fault is about.
            wanted.sa_flags |= libc::SA_ONSTACK;
        }
        wanted
    });
    // SAFETY: both are null or valid.
    let result = unsafe {
        real(signal, wanted.as_ref().map_or(std::ptr::null(), |wanted| wanted), found.as_mut_ptr())
    };
    if result != 0 {
        if let (Some(entry), Some(before), true) = (entry, before, new.is_some()) {
            entry.write(before);
        }
    } else if let Some(old) = old {
        // SAFETY: filled in, or zeros, which are valid.
        *old = unsafe { found.assume_init() };
        if let (true, Some(before)) = (old.sa_sigaction == ours(), before) {
            old.sa_sigaction = before.handler;
            // As the C library has it.
            let restorer =
                if before.handler == libc::SIG_DFL { 0 } else { old.sa_flags & SA_RESTORER };
            old.sa_flags = before.flags | restorer;
            // SAFETY: the first 8 bytes of a set.
            unsafe { (&raw mut old.sa_mask).cast::<u64>().write(before.mask) };
        }
    }
    result
}

/// What the program is told of the handler before, where the C library has reported it: `handler`
/// was in the table then.
pub fn reported(found: usize, handler: Option<usize>) -> usize {
    if found == ours() { handler.unwrap_or(found) } else { found }
}

/// The handler that the table has for a signal.
pub fn handler_of(signal: c_int) -> Option<usize> {
    Some(ENTRIES.get(usize::try_from(signal).ok()?)?.read().handler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::actions::begin_process;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    static CALLED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn handler(signal: c_int) {
        CALLED.fetch_add(signal as usize, Relaxed);
    }

    fn action(handler: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: a zeroed action is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        action
    }

    #[test]
    fn handlers_are_called_and_reported_as_they_were_set() {
        begin_process();
        let flags = libc::SA_RESTART;
        let mut old = action(0, 0);
        // SAFETY: actions that live through the calls; the handler only counts.
        unsafe {
            let set_to = |new, old: &mut libc::sigaction| {
                set(libc::sigaction, libc::SIGUSR2, new, Some(old))
            };
            assert_eq!(set_to(Some(action(handler as *const () as usize, flags)), &mut old), 0);
            assert_eq!(old.sa_sigaction, libc::SIG_DFL);
            libc::raise(libc::SIGUSR2);
            assert_eq!(CALLED.load(Relaxed), libc::SIGUSR2 as usize);
            assert_eq!(set_to(Some(action(libc::SIG_IGN, 0)), &mut old), 0);
            assert_eq!(
                (old.sa_sigaction, old.sa_flags & flags),
                (handler as *const () as usize, flags)
            );
            assert_eq!(set_to(Some(action(libc::SIG_DFL, 0)), &mut old), 0);
            assert_eq!(old.sa_sigaction, libc::SIG_IGN);
            assert_eq!(set(libc::sigaction, 1000, None, Some(&mut old)), -1);
        }
    }
}
