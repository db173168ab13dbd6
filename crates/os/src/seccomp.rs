//! A seccomp filter that stops system calls that are handed addresses of the window.
//!
//! In signal delivery a system call that meets an absent page fails with EFAULT. So the calls of a
//! program whose arguments point into the window are turned into a signal, SIGSYS, whose handler
//! makes the call with memory that is safe. All other calls pass through the filter with a look at
//! the upper halves of their arguments.
//!
//! - A filter is for ever: a process keeps it, and so does whatever it executes. So it depends on
//!   nothing of the process: it looks for all addresses that windows may have ([`WINDOW`]), of
//!   which a job has some at random ([`place`]), and a program that has no memory there, such as a
//!   static one that overspill cannot be loaded into, is never stopped.
//! - Memory of the window's kind may also lie where a program has it (annexes). The addresses
//!   depend on the process, so a filter for those must not stop what the process executes: it looks
//!   at calls of libraries only, whose places are another process's by a chance of millions
//!   ([`install_for`]).
//! - A pointer to memory outside of the window that itself holds addresses of the window (an iovec
//!   on the stack) does not show. Whoever knows of such a call marks the pointer by [`TAG`].
//! - A call is let through, whatever it is handed, with a mark in the upper half of its sixth
//!   argument, which no call that is made so reads ([`exempt`], [`let_through`]). mmap(2) reads it,
//!   and has the mark in that of its fifth, the descriptor.
//! - Calls that change mappings of the window are stopped as well: whoever makes them by
//!   instructions of its own would give memory back, and find it again.
//! - io_uring does not work here: the kernel's own threads would meet absent pages. It is answered
//!   as by a kernel without it.
//!
//! Neighbours: filter.rs is the filter, in the instructions of bpf.rs, and in_force.rs puts it on
//! the process; [`arguments`] says which arguments of a call are addresses; [`exceptions`] lets the
//! engine through filters of the program's. No locks.

use crate::units::{Errno, check};
use std::ops::Range;
use syscalls::Sysno;

pub mod arguments;
mod bpf;
pub mod exceptions;
mod filter;
mod in_force;

pub use bpf::Instruction;
pub use filter::UNIT;
pub use in_force::{install, install_for, is_in_force, probe};

/// Where windows may lie in signal delivery: 16 TiB at 64 TiB. Nothing else is put there:
///
/// - The kernel has programs begin in the first GiB or above 85 TiB, and libraries and stacks end
///   at 128 TiB and grow downwards, by at most 16 TiB of chance each. With the old layout (`setarch
///   -L`, no limit on the stack) mappings grow upwards from 42 to 58 TiB.
/// - Runtimes that choose addresses at random choose 46 bits of them, less than 64 TiB: Go from
///   1.26 on, V8, PartitionAlloc. Older ones of Go begin at 0.75 TiB, mimalloc keeps below 31 TiB.
/// - Collectors that map the heap several times (ZGC) keep below 40 TiB with heaps of up to 512
///   GiB, and shadow memory of sanitizers leaves this range free: that of addresses and leaks has
///   its heap at 80 or 96 TiB, that of threads ends at 52 TiB, that of uninitialized memory has a
///   gap here.
pub const WINDOW: Range<usize> = 0x4000_0000_0000..0x5000_0000_0000;
/// What a window begins at a multiple of: what one page of page tables maps.
const PLACE_STEP: usize = 2 << 20;

/// Where a window of `len` bytes begins, by a random number: one of 7.8 million places for one of 1
/// TiB. Where there is only one it is the first.
pub fn place(len: usize, random: u64) -> usize {
    let places = (WINDOW.len() / PLACE_STEP).saturating_sub(len.div_ceil(PLACE_STEP)).max(1);
    WINDOW.start + (random % places as u64) as usize * PLACE_STEP
}

/// Whether a window may begin there.
pub fn is_place(start: usize) -> bool {
    WINDOW.contains(&start) && start.is_multiple_of(PLACE_STEP)
}

/// The bits of the upper half of an address that tell the window, and their value there.
const WINDOW_MASK: u32 = 0xffff_f000;
const WINDOW_BITS: u32 = 0x4000;
const _: () = assert!(
    WINDOW.start >> 32 == WINDOW_BITS as usize && (WINDOW.end - 1) >> 44 == WINDOW.start >> 44
);

/// In the upper 16 bits of a pointer, which an address never has: the second or third argument of a
/// call that is to be stopped for what it points to.
pub const TAG: usize = 0x4f56 << 48;
const TAG_MASK: u32 = 0xffff_0000;
const TAG_BITS: u32 = (TAG >> 32) as u32;
/// One of the bits of [`TAG_BITS`], by which most arguments are told not to have them.
const TAG_BIT: u32 = 0x4000_0000;

/// The upper half of the sixth argument of a call that is let through, or of mmap's fifth.
const EXEMPT: usize = 0x4f76_5370;

/// The call by which a process asks for the handler, or the filter itself: rt_sigprocmask(2), which
/// everybody may make who runs a C library, with one of the following in place of its set. They are
/// tagged, so the call is stopped; where no filter is in force it fails with EFAULT.
pub const HANDLER: usize = Sysno::rt_sigprocmask as usize;

/// To come back after a call.
pub const RETURN: usize = TAG | 1;

/// To ask whether the filter is in force, which answers itself: who asks need not have a handler.
const IN_FORCE: usize = TAG | 3;
/// The answer, an error number that the kernel does not have.
const YES: u32 = 0xf56;

/// Signals that the program has just unblocked have come before.
pub const PENDING: usize = TAG | 2;

/// The number of a call that the kernel has never had (vserver). It is always stopped: a change of
/// the signal mask by the C library, whose number was replaced.
pub const MASK: usize = 236;

/// Calls that the program makes by instructions of its own, whose numbers were replaced: that of
/// the call and this, of which the kernel has none. Always stopped.
pub const FOREIGN: usize = 0x0f56_0000;
/// The bits of a number that tell one of those.
const FOREIGN_MASK: u32 = !0x3ff;

/// The same for clone(2) where its number is loaded into a byte, as musl's does: that of a call
/// that the kernel has never had (tuxcall).
pub const FOREIGN_CLONE: usize = 184;

/// The call that a number stands for that was put in place of its own.
pub fn replaced(number: usize) -> Option<usize> {
    if number == FOREIGN_CLONE {
        return Some(Sysno::clone as usize);
    }
    (number as u32 & FOREIGN_MASK == FOREIGN as u32).then_some(number ^ FOREIGN)
}

/// What the filter hands to the signal, to tell its own from those of other filters (si_errno).
pub const MARK: u16 = 0x4f56;

/// The arguments with which the filter lets a call through, which reads at most the lower half of
/// its sixth argument, or is mmap(2).
#[inline(always)]
pub const fn marked(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> [usize; 6] {
    if number == Sysno::mmap as usize {
        [a, b, c, d, exempt(e), f]
    } else {
        [a, b, c, d, e, exempt(f)]
    }
}

/// Makes a call with [`marked`] arguments. The mark does not stay in the register, where the next
/// call that somebody makes would have it too.
///
/// # Safety
///
/// As for the system call.
#[inline(always)]
pub unsafe fn let_through(number: usize, arguments: [usize; 6]) -> usize {
    let [a, b, c, d, e, f] = marked(number, arguments);
    let result;
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            "xor r8d, r8d",
            "xor r9d, r9d",
            inout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            inout("r8") e => _,
            inout("r9") f => _,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}

/// A sixth argument with the mark.
pub const fn exempt(sixth: usize) -> usize {
    EXEMPT << 32 | sixth & 0xffff_ffff
}

/// Makes a call that may change mappings of the window, for the engine: mmap, munmap, mprotect,
/// madvise, mremap, mlock and the like.
///
/// # Safety
///
/// As for the system call.
#[inline(always)]
pub unsafe fn change_mappings<const N: usize>(
    call: Sysno,
    arguments: [usize; N],
) -> Result<usize, Errno> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    check(unsafe { let_through(call as usize, all) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_room_wherever_it_is_placed() {
        let tib = 1 << 40;
        for random in [0, 1, 7_000_000, u64::MAX] {
            let start = place(tib, random);
            assert!(is_place(start) && start + tib <= WINDOW.end, "{start:x}");
            assert_eq!([place(16 * tib, random), place(17 * tib, random)], [WINDOW.start; 2]);
        }
        assert_ne!(place(tib, 1), place(tib, 2));
        let others = [0, WINDOW.start - PLACE_STEP, WINDOW.start + 4096, WINDOW.end];
        assert!(!others.into_iter().any(is_place));
    }

    #[test]
    fn the_mark_is_where_the_call_does_not_read() {
        let (number, mark) = (libc::SYS_mmap as usize, EXEMPT << 32);
        assert_eq!(marked(number, [1; 6]), [1, 1, 1, 1, mark | 1, 1]);
        assert_eq!(marked(number + 1, [1; 6])[4..], [1, mark | 1]);
    }
}
