//! Putting a filter on the process, and asking whether there is one.

use super::bpf::{self, Instruction};
use super::filter::{Sought, program};
use super::{IN_FORCE, YES};
use crate::units::{Errno, check};
use std::ops::Range;
use syscalls::{Sysno, raw_syscall};

/// Whether this kernel, and whoever restricts the process, allow such filters.
pub fn probe() -> Result<(), Errno> {
    const GET_ACTION_AVAIL: usize = 2;
    let action = bpf::RET_TRAP;
    // SAFETY: the kernel reads four bytes, alive during the call.
    let ret = unsafe { raw_syscall!(Sysno::seccomp, GET_ACTION_AVAIL, 0, &action as *const u32) };
    check(ret).map(drop)
}

/// Whether the filter is in force for the calling thread. Without it the kernel says that there is
/// no memory at this address.
pub fn is_in_force() -> bool {
    let set = IN_FORCE as *const u64;
    // SAFETY: the kernel reads a set at an address that no memory has.
    let result = unsafe { raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, set, 0, 8) };
    result == (YES as usize).wrapping_neg()
}

/// Puts the filter on the calling thread and on all that comes of it. Without CAP_SYS_ADMIN the
/// process must give up gaining rights first (PR_SET_NO_NEW_PRIVS): set-user-ID programs that it
/// executes do not get any.
pub fn install() -> Result<(), Errno> {
    put(Sought::Window)
}

/// Puts one more on them that stops the same calls for addresses of annexes, of whole pages, that
/// lie where they do in this process alone: for calls by `code`, that of its libraries. Whatever it
/// executes has the filter as well, and libraries elsewhere.
pub fn install_for(annexes: &[Range<usize>], code: &[Range<usize>]) -> Result<(), Errno> {
    put(Sought::Annexes { annexes, code })
}

fn put(sought: Sought<'_>) -> Result<(), Errno> {
    const SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Instruction,
    }
    let instructions = program(sought);
    let program = Program { len: instructions.len() as u16, filter: instructions.as_ptr() };
    let set = || {
        // SAFETY: the kernel copies the program during the call.
        let set = unsafe { raw_syscall!(Sysno::seccomp, SET_MODE_FILTER, 0, &raw const program) };
        check(set)
    };
    match set() {
        Err(Errno::ACCESS) => {
            const SET_NO_NEW_PRIVS: usize = 38;
            // SAFETY: plain numbers.
            check(unsafe { raw_syscall!(Sysno::prctl, SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
            set().map(drop)
        }
        result => result.map(drop),
    }
}
