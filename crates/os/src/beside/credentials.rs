//! What the program changes of its credentials, its sibling changes too: a program that gives up
//! rights must not share its memory with a process that still has them.
//!
//! A thread's credentials are its own, so each thread of the sibling makes the program's call, as
//! the C library has all threads of the program make it: in the handler of the signal that it keeps
//! for this purpose. The sibling goes first, while the program still has the right to send it
//! signals. The signal only wakes, and carries nothing: whoever else sends it does no harm.
//!
//! Locks: that of its request.

use super::request::Request;
use super::stack::own;
use crate::confined;
use crate::process;
use crate::report::report;
use crate::signal::KernelAction;
use crate::units::{Errno, check};
use std::arch::global_asm;
use std::sync::atomic::Ordering::Relaxed;
use syscalls::{Sysno, raw_syscall};

/// SIGSETXID of the C library, which no program can have a handler for.
pub const SIGNAL: i32 = 33;
/// How often the threads are looked at before they are left as they are.
const LOOKS: u32 = 1000;

static CALL: Request = Request::new();

global_asm!(
    ".pushsection .text.overspill_credentials_return,\"ax\",@progbits",
    ".hidden overspill_credentials_return",
    ".globl overspill_credentials_return",
    ".type overspill_credentials_return, @function",
    "overspill_credentials_return:",
    "mov eax, {number}",
    "syscall",
    "ud2",
    ".popsection",
    number = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn overspill_credentials_return();
}

/// In the sibling, on its first thread: the signal is expected.
pub(super) fn expect() {
    const SA_RESTORER: u64 = 0x0400_0000;
    let action = KernelAction {
        handler: on_signal as *const () as usize,
        flags: libc::SA_RESTART as u64 | SA_RESTORER,
        restorer: overspill_credentials_return as *const () as usize,
        mask: !0,
    };
    // SAFETY: the action is one, and the handler of the sibling alone, whose handlers are its own.
    unsafe {
        raw_syscall!(Sysno::rt_sigaction, SIGNAL, &raw const action, 0usize, size_of::<u64>())
    };
}

extern "C" fn on_signal(_: i32) {
    let Some(made) = own().map(|stack| &stack.change) else { return };
    let Some(due) = CALL.due(made.load(Relaxed)) else { return };
    // Whether it may is for the kernel to say, as it says to the program.
    // SAFETY: what the arguments point to is kept until all threads have made the call.
    let _ = unsafe { due.make() };
    CALL.note_made(made, due.change);
}

/// Has the sibling make a call that changes credentials, before the program makes it. What the
/// arguments point to is no managed memory.
pub fn change(call: Sysno, arguments: [usize; 3]) {
    let Ok(sibling) = process::sibling() else { return };
    // Not in a child of a vfork.
    if rustix::process::getpid() != process::program() {
        return;
    }
    if confined::is_child() {
        // The filter's exceptions do not know the sibling's number.
        return report("in a sandbox the engine's threads keep the user that the program had");
    }
    let [a, b, c] = arguments;
    let call = (call, [a, b, c, 0, 0]);
    let ask = |_, number, look| ask(sibling, number, look);
    if !CALL.have_made(call, LOOKS, |stack| &stack.change, ask) {
        report("the engine's threads keep the user that the program had");
    }
}

/// In the child of a fork.
pub(super) fn reset_in_child() {
    CALL.reset_in_child();
}

/// The last change.
pub(super) fn last() -> u32 {
    CALL.last()
}

/// Sends the signal to a thread. Again now and then, as a thread that begins has it blocked.
pub(super) fn ask(sibling: rustix::process::Pid, number: i32, look: u32) -> Result<(), Errno> {
    if !look.is_multiple_of(16) {
        return Ok(());
    }
    let group = sibling.as_raw_nonzero().get();
    // SAFETY: the call takes numbers.
    check(unsafe { raw_syscall!(Sysno::tgkill, group, number, SIGNAL) }).map(drop)
}
