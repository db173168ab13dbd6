//! The end of the sibling, and with it of the program where that could not go on.

use crate::process::{is_here, program};
use crate::{confined, descriptors};
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::process::Pid;
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

pub(super) static GUARD: Guard = Guard { ends: [const { AtomicI32::new(-1) }; 2] };

impl Guard {
    /// In the sibling. Where a filter of the program's refuses one of the calls there is no guard.
    pub(super) fn arm(&self, program: Pid) {
        const SET_SIGNAL: i32 = 10;
        let mut ends = [-1i32; 2];
        // SAFETY: the call writes two numbers.
        unsafe { raw_syscall!(Sysno::pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
        for (end, kept) in ends.into_iter().zip(&self.ends) {
            let end = match end {
                // SAFETY: the number is a new descriptor.
                0.. => descriptors::take(unsafe { OwnedFd::from_raw_fd(end) }),
                _ => end,
            };
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

/// Kills the program, by its number. Who is confined has no exception for that. There a thread of
/// the program's exits, with the status that a shell has for such an end, and so does the sibling,
/// whose guard kills. One that began in a sandbox has no guard: whether it may kill is for the
/// program's filter to say.
pub fn kill_program() {
    const KILLED: i32 = 128 + libc::SIGKILL;
    if confined::is_confined() && !(is_here() && confined::is_child()) {
        // SAFETY: the call does not return.
        unsafe { raw_syscall!(Sysno::exit_group, KILLED) };
    }
    let _ = rustix::process::kill_process(program(), rustix::process::Signal::KILL);
}
