//! The end of the sibling, and with it of the program where that could not go on.

use crate::confined;
use crate::process::{is_here, program};
use crate::units::PAGE_SIZE;
use rustix::process::Pid;
use std::arch::global_asm;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// Ends the program when the sibling ends as it should not: by somebody's kill -9, or by a fault of
/// ours.
///
/// A pipe that only the sibling has open. When a process ends the kernel closes its files one by
/// one, and tells of the end of a pipe that is closed whoever has asked for a signal at the other:
/// by F_SETSIG any signal, by F_SETOWN any process (fcntl(2)). Both ends ask, as either may be
/// closed first. Nobody has to run for that.
pub(super) struct Guard {
    ends: [AtomicI32; 2],
}

// Unmaps all memory below this code and ends the process. With it go what the program keeps, the
// stacks of both, and the code of the C library, so that each of the program's threads ends by a
// fault that it cannot handle, also one that waits for a page. No stack is used behind that.
global_asm!(
    ".pushsection .text.overspill_take_memory,\"ax\",@progbits",
    ".hidden overspill_take_memory",
    ".globl overspill_take_memory",
    ".type overspill_take_memory, @function",
    "overspill_take_memory:",
    "lea rsi, [rip + overspill_take_memory]",
    "and rsi, -{page}",
    "mov edi, {page}",
    "sub rsi, rdi",
    "mov eax, {munmap}",
    "syscall",
    "xor edi, edi",
    "mov eax, {exit_group}",
    "syscall",
    "ud2",
    ".popsection",
    page = const PAGE_SIZE,
    munmap = const libc::SYS_munmap,
    exit_group = const libc::SYS_exit_group,
);

unsafe extern "C" {
    fn overspill_take_memory() -> !;
}

pub(super) static GUARD: Guard = Guard { ends: [const { AtomicI32::new(-1) }; 2] };

impl Guard {
    /// In the sibling. Where a filter of the program's refuses one of the calls there is no guard.
    pub(super) fn arm(&self, program: Pid) {
        const SET_SIGNAL: i32 = 10;
        let mut ends = [-1i32; 2];
        // SAFETY: the call writes two numbers.
        unsafe { raw_syscall!(Sysno::pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
        for (end, kept) in ends.into_iter().zip(&self.ends) {
            kept.store(end, Relaxed);
            control(end, SET_SIGNAL, libc::SIGKILL);
            control(end, libc::F_SETOWN, program.as_raw_nonzero().get());
            control(end, libc::F_SETFL, libc::O_ASYNC);
        }
    }

    /// In the sibling that ends as it should.
    fn disarm(&self) {
        self.ends.iter().for_each(|end| control(end.load(Relaxed), libc::F_SETFL, 0));
    }
}

fn control(fd: i32, command: i32, value: i32) {
    // SAFETY: the commands take numbers, and change no file but the sibling's own.
    unsafe { raw_syscall!(Sysno::fcntl, fd, command, value) };
}

/// Ends the sibling.
pub(super) fn end() -> ! {
    GUARD.disarm();
    // SAFETY: the call does not return.
    unsafe { raw_syscall!(Sysno::exit_group, 0) };
    unreachable!("exit_group returned")
}

/// Ends the program, from any thread of the engine's, where going on could hand out wrong data.
pub fn end_program() -> ! {
    if is_here() {
        kill_program();
        end();
    }
    std::process::abort()
}

/// Kills the program, by its number. Who was forked in a sandbox has no exception for that, and
/// ends otherwise: a thread of the program's exits with the status that a shell has for such an
/// end, and the sibling takes the memory away.
pub fn kill_program() {
    if !confined::is_child() {
        let _ = rustix::process::kill_process(program(), rustix::process::Signal::KILL);
    } else if is_here() {
        // SAFETY: it ends the sibling, and the program is to end.
        unsafe { overspill_take_memory() }
    } else {
        const KILLED: i32 = 128 + libc::SIGKILL;
        // SAFETY: the call does not return.
        unsafe { raw_syscall!(Sysno::exit_group, KILLED) };
    }
}
