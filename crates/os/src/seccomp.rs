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
//! Neighbours: [`arguments`] says which arguments of a call are addresses, [`exceptions`] lets the
//! engine through filters of the program's. No locks.

use crate::units::{Errno, check};
use std::ops::Range;
use syscalls::{Sysno, raw_syscall};

pub mod arguments;
pub mod exceptions;

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

/// The call that a number stands for that was put in place of its own.
pub fn replaced(number: usize) -> Option<usize> {
    (number as u32 & FOREIGN_MASK == FOREIGN as u32).then_some(number ^ FOREIGN)
}

/// What the filter hands to the signal, to tell its own from those of other filters (si_errno).
pub const MARK: u16 = 0x4f56;

/// The layout of the kernel's struct seccomp_data.
mod data {
    pub const NUMBER: u32 = 0;
    pub const ARCHITECTURE: u32 = 4;
    /// Of the instruction behind the call.
    pub const ADDRESS: u32 = 8;
    /// The lower half of argument `n`.
    pub const fn lower(n: usize) -> u32 {
        16 + 8 * n as u32
    }
    /// The upper half of argument `n`.
    pub const fn upper(n: usize) -> u32 {
        16 + 8 * n as u32 + 4
    }
}

/// AUDIT_ARCH_X86_64.
const ARCHITECTURE: u32 = 0xc000_003e;

const RET_TRAP: u32 = 0x0003_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

/// Instructions of classic BPF.
mod op {
    pub const LOAD: u16 = 0x20;
    pub const AND: u16 = 0x54;
    pub const OR: u16 = 0x44;
    pub const JUMP: u16 = 0x05;
    pub const IF_EQUAL: u16 = 0x15;
    pub const IF_AT_LEAST: u16 = 0x35;
    pub const IF_SET: u16 = 0x45;
    pub const RETURN: u16 = 0x06;
    pub const STORE: u16 = 0x02;
    pub const LOAD_CELL: u16 = 0x60;
    pub const LOAD_NUMBER: u16 = 0x00;
}

/// One instruction, as the kernel's struct sock_filter.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions to leave out if the condition holds, and if it does not.
    pub if_true: u8,
    /// See `if_true`.
    pub if_false: u8,
    /// Its constant.
    pub k: u32,
}

const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, k }
}

const fn branch(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, k }
}

/// The filter.
pub fn program() -> Vec<Instruction> {
    let mut program = vec![
        plain(op::LOAD, data::ARCHITECTURE),
        branch(op::IF_EQUAL, ARCHITECTURE, 1, 0),
        plain(op::RETURN, RET_ALLOW),
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::io_uring_setup as u32, 0, 1),
        plain(op::RETURN, RET_ERRNO | libc::ENOSYS as u32),
        branch(op::IF_EQUAL, MASK as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
        plain(op::AND, FOREIGN_MASK),
        branch(op::IF_EQUAL, FOREIGN as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ];
    // 1. Most calls have no argument to look at closer.
    program.append(&mut most_calls());
    // 2. Let through?
    program.push(plain(op::LOAD, data::upper(5)));
    program.push(branch(op::IF_EQUAL, EXEMPT as u32, 0, 1));
    program.push(plain(op::RETURN, RET_ALLOW));
    // 3. Is it the question whether there is a filter?
    program.extend(answer_rule());
    // 4. Which arguments are in the window or tagged.
    mark_arguments(&mut program);
    // 5. futex(2), whose arguments depend on what it is to do.
    program.push(plain(op::LOAD, data::NUMBER));
    let mut rule = futex_rule();
    program.push(branch(op::IF_EQUAL, Sysno::futex as u32, 0, rule.len() as u8));
    program.append(&mut rule);
    // 6. mmap(2), which replaces what there is only if it is told to.
    program.push(plain(op::LOAD, data::NUMBER));
    program.push(branch(op::IF_EQUAL, Sysno::mmap as u32, 0, MAPPING_RULE.len() as u8));
    program.extend(MAPPING_RULE);
    // 7. Is one of them an address to this call? Numbers of the same answer are a run; a tree over
    //    the runs.
    program.push(plain(op::LOAD, data::NUMBER));
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for number in 0..=arguments::LAST {
        let mask = arguments::pointers(number as usize);
        if runs.last().is_none_or(|(_, last)| *last != mask) {
            runs.push((number, mask));
        }
    }
    runs.push((arguments::LAST + 1, arguments::pointers(arguments::LAST as usize + 1)));
    tree(&runs, &mut program);
    program
}

/// Lets a call through whose arguments have nothing of the window: six looks at upper halves, and
/// no more. Each hit jumps to the end of this part.
fn most_calls() -> Vec<Instruction> {
    let mut quick = Vec::new();
    for n in 0..6 {
        quick.push(plain(op::LOAD, data::upper(n)));
        if tagged(n) {
            quick.push(branch(op::IF_SET, TAG_BIT, u8::MAX, 0));
        }
        quick.push(plain(op::AND, WINDOW_MASK));
        quick.push(branch(op::IF_EQUAL, WINDOW_BITS, u8::MAX, 0));
    }
    quick.push(plain(op::RETURN, RET_ALLOW));
    let end = quick.len();
    for (at, instruction) in quick.iter_mut().enumerate().filter(|(_, i)| i.if_true == u8::MAX) {
        instruction.if_true = (end - at - 1) as u8;
    }
    quick
}

/// Answers [`IN_FORCE`].
fn answer_rule() -> [Instruction; 7] {
    [
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, HANDLER as u32, 0, 5),
        plain(op::LOAD, data::upper(1)),
        branch(op::IF_EQUAL, (IN_FORCE >> 32) as u32, 0, 3),
        plain(op::LOAD, data::lower(1)),
        branch(op::IF_EQUAL, IN_FORCE as u32, 0, 1),
        plain(op::RETURN, RET_ERRNO | YES),
    ]
}

/// Keeps in a cell which arguments are in the window or tagged, a bit each.
fn mark_arguments(program: &mut Vec<Instruction>) {
    program.push(plain(op::LOAD_NUMBER, 0));
    program.push(plain(op::STORE, 0));
    for n in 0..6 {
        program.push(plain(op::LOAD, data::upper(n)));
        if tagged(n) {
            program.push(plain(op::AND, TAG_MASK));
            program.push(branch(op::IF_EQUAL, TAG_BITS, 3, 0));
            program.push(plain(op::LOAD, data::upper(n)));
        }
        program.push(plain(op::AND, WINDOW_MASK));
        program.push(branch(op::IF_EQUAL, WINDOW_BITS, 0, 3));
        program.push(plain(op::LOAD_CELL, 0));
        program.push(plain(op::OR, 1 << n));
        program.push(plain(op::STORE, 0));
    }
}

/// futex(2): a private one that only wakes touches no memory, its key is the address. Most of the
/// others have no time, and leave whatever was in the register. Those that have one go on behind
/// the rule.
fn futex_rule() -> Vec<Instruction> {
    const LOCK_PI2: i32 = 13;
    let with_time = [
        libc::FUTEX_WAIT,
        libc::FUTEX_LOCK_PI,
        libc::FUTEX_WAIT_BITSET,
        libc::FUTEX_WAIT_REQUEUE_PI,
        LOCK_PI2,
    ];
    let wake = [
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG,
    ];
    let mut rule = vec![
        plain(op::LOAD, data::lower(1)),
        branch(op::IF_EQUAL, wake[0] as u32, 1, 0),
        branch(op::IF_EQUAL, wake[1] as u32, 0, 1),
        plain(op::RETURN, RET_ALLOW),
        plain(op::AND, !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32),
    ];
    // Without a time only the first argument counts.
    let without_time = [
        plain(op::LOAD_CELL, 0),
        branch(op::IF_SET, 1, 1, 0),
        plain(op::RETURN, RET_ALLOW),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ];
    for (n, operation) in with_time.into_iter().enumerate() {
        let to_end = with_time.len() - n - 1 + without_time.len();
        rule.push(branch(op::IF_EQUAL, operation as u32, to_end as u8, 0));
    }
    rule.extend(without_time);
    rule
}

/// mmap(2): stopped with MAP_FIXED, unless it is let through. A wish for a place replaces nothing.
const MAPPING_RULE: [Instruction; 8] = [
    plain(op::LOAD, data::lower(3)),
    branch(op::IF_SET, libc::MAP_FIXED as u32, 0, 4),
    plain(op::LOAD_CELL, 0),
    branch(op::IF_SET, 1, 0, 2),
    plain(op::LOAD, data::upper(4)),
    branch(op::IF_EQUAL, EXEMPT as u32, 0, 1),
    plain(op::RETURN, RET_ALLOW),
    plain(op::RETURN, RET_TRAP | MARK as u32),
];

/// Whether argument `n` may be tagged.
const fn tagged(n: usize) -> bool {
    n == 1 || n == 2
}

fn tree(runs: &[(u32, u8)], program: &mut Vec<Instruction>) {
    if let [(_, mask)] = runs {
        program.push(plain(op::LOAD_CELL, 0));
        program.push(branch(op::IF_SET, (*mask).into(), 1, 0));
        program.push(plain(op::RETURN, RET_ALLOW));
        program.push(plain(op::RETURN, RET_TRAP | MARK as u32));
        return;
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    program.push(branch(op::IF_AT_LEAST, high[0].0, 0, 1));
    let jump = program.len();
    program.push(plain(op::JUMP, 0));
    tree(low, program);
    program[jump].k = (program.len() - jump - 1) as u32;
    tree(high, program);
}

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

/// Whether the filter is in force for the calling thread. Without it the kernel says that there is
/// no memory at this address.
pub fn is_in_force() -> bool {
    let set = IN_FORCE as *const u64;
    // SAFETY: the kernel reads a set at an address that no memory has.
    let result = unsafe { raw_syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, set, 0, 8) };
    result == (YES as usize).wrapping_neg()
}

/// Whether this kernel, and whoever restricts the process, allow such filters.
pub fn probe() -> Result<(), Errno> {
    const GET_ACTION_AVAIL: usize = 2;
    let action = RET_TRAP;
    // SAFETY: the kernel reads four bytes, alive during the call.
    let ret = unsafe { raw_syscall!(Sysno::seccomp, GET_ACTION_AVAIL, 0, &action as *const u32) };
    check(ret).map(drop)
}

/// Puts the filter on the calling thread and on all that comes of it. Without CAP_SYS_ADMIN the
/// process must give up gaining rights first (PR_SET_NO_NEW_PRIVS): set-user-ID programs that it
/// executes do not get any.
pub fn install() -> Result<(), Errno> {
    const SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Instruction,
    }
    let instructions = program();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRAP: u32 = RET_TRAP | MARK as u32;

    /// What the kernel tells a filter.
    pub struct Call {
        pub number: u32,
        pub arguments: [u64; 6],
        pub architecture: u32,
        pub address: u64,
    }

    /// Runs the filter as the kernel does, and counts its steps.
    pub fn run(program: &[Instruction], call: &Call) -> (u32, usize) {
        let load = |at: u32| match at {
            data::NUMBER => call.number,
            data::ARCHITECTURE => call.architecture,
            data::ADDRESS => call.address as u32,
            12 => (call.address >> 32) as u32,
            at => {
                let (word, upper) = ((at - 16) / 8, (at - 16) % 8 == 4);
                (call.arguments[word as usize] >> if upper { 32 } else { 0 }) as u32
            }
        };
        let (mut a, mut cell, mut at, mut steps) = (0u32, 0u32, 0, 0);
        loop {
            let Instruction { code, if_true, if_false, k } = program[at];
            at += 1;
            steps += 1;
            let mut jump = |holds: bool| at += if holds { if_true } else { if_false } as usize;
            match code {
                op::LOAD => a = load(k),
                op::LOAD_NUMBER => a = k,
                op::LOAD_CELL => a = cell,
                op::STORE => cell = a,
                op::AND => a &= k,
                op::OR => a |= k,
                op::IF_EQUAL => jump(a == k),
                op::IF_AT_LEAST => jump(a >= k),
                op::IF_SET => jump(a & k != 0),
                op::JUMP => at += k as usize,
                op::RETURN => return (k, steps),
                _ => panic!("no such instruction: {code:#x}"),
            }
        }
    }

    fn answer(number: u32, arguments: [u64; 6]) -> u32 {
        run(&program(), &Call { number, arguments, architecture: ARCHITECTURE, address: 0 }).0
    }

    const INSIDE: u64 = WINDOW.start as u64 + 12345;

    #[test]
    fn calls_are_stopped_for_their_addresses_only() {
        let read = libc::SYS_read as u32;
        assert_eq!(answer(read, [0, INSIDE, 1, 0, 0, 0]), TRAP);
        assert_eq!(answer(read, [0, WINDOW.end as u64 - 1, 1, 0, 0, 0]), TRAP);
        assert_eq!(answer(read, [0, WINDOW.end as u64, 1, 0, 0, 0]), RET_ALLOW);
        assert_eq!(answer(read, [0, WINDOW.start as u64 - 1, 1, 0, 0, 0]), RET_ALLOW);
        // What is left in a register that the call does not read.
        assert_eq!(answer(read, [INSIDE, 0, INSIDE, INSIDE, INSIDE, INSIDE]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_getpid as u32, [INSIDE; 6]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_rt_sigreturn as u32, [INSIDE; 6]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_msync as u32, [INSIDE, 4096, 4, 0, 0, 0]), RET_ALLOW);
        // futex: only calls that wait have a time.
        let futex =
            |operation| answer(libc::SYS_futex as u32, [0, operation, 1, INSIDE, INSIDE, 0]);
        assert_eq!([0, 128, 9 | 128 | 256, 6, 13, 11].map(futex), [TRAP; 6]);
        assert_eq!([1, 129, 3, 4, 5, 7 | 128, 10, 12].map(futex), [RET_ALLOW; 8]);
        let word = |operation| answer(libc::SYS_futex as u32, [INSIDE, operation, 1, 0, 0, 0]);
        assert_eq!([0, 128, 1, 10, 3 | 128, 4 | 128, 5 | 128].map(word), [TRAP; 7]);
        assert_eq!([1 | 128, 10 | 128].map(word), [RET_ALLOW; 2], "a private key is the address");
        // Unknown ones.
        assert_eq!(answer(999, [0, 0, 0, 0, 0, INSIDE]), TRAP);
        // Other architectures have other numbers.
        let other =
            Call { number: read, arguments: [INSIDE; 6], architecture: 0x4000_0003, address: 0 };
        assert_eq!(run(&program(), &other).0, RET_ALLOW);
    }

    #[test]
    fn changes_of_mappings_are_stopped_unless_they_are_let_through() {
        let mark = (EXEMPT as u64) << 32;
        let madvise = |sixth| answer(libc::SYS_madvise as u32, [INSIDE, 4096, 4, 0, 0, sixth]);
        assert_eq!([0, mark].map(madvise), [TRAP, RET_ALLOW]);
        let mremap = |old, new| answer(libc::SYS_mremap as u32, [old, 4096, 4096, 3, new, 0]);
        assert_eq!([mremap(INSIDE, 0), mremap(0, INSIDE), mremap(0, 0)], [TRAP, TRAP, RET_ALLOW]);
        let mmap = |at, flags: i32, fd| {
            answer(libc::SYS_mmap as u32, [at, 4096, 3, flags as u64, fd, INSIDE])
        };
        let nobody = u64::MAX;
        let new = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let fixed = new | libc::MAP_FIXED;
        assert_eq!(mmap(INSIDE, fixed, nobody), TRAP);
        let allowed = [
            mmap(INSIDE, fixed, mark | 7),
            mmap(INSIDE, new, nobody),
            mmap(INSIDE, new | libc::MAP_FIXED_NOREPLACE, nobody),
            mmap(0, fixed, nobody),
        ];
        assert_eq!(allowed, [RET_ALLOW; 4]);
        let number = libc::SYS_mmap as usize;
        assert_eq!(marked(number, [1; 6]), [1, 1, 1, 1, mark as usize | 1, 1]);
        assert_eq!(marked(number + 1, [1; 6])[4..], [1, mark as usize | 1]);
    }

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
    fn tags_exemptions_and_special_numbers() {
        let writev = libc::SYS_writev as u32;
        let tagged = TAG as u64 | 0x7fff_1234_5678;
        assert_eq!(answer(writev, [1, tagged, 2, 0, 0, 0]), TRAP);
        assert_eq!(answer(writev, [1, u64::MAX, 2, 0, 0, 0]), RET_ALLOW);
        assert_eq!(answer(writev, [1, INSIDE, 2, 0, 0, (EXEMPT as u64) << 32 | 7]), RET_ALLOW);
        assert_eq!(
            [RETURN, PENDING].map(|what| answer(HANDLER as u32, [0, what as u64, 0, 8, 0, 0])),
            [TRAP; 2]
        );
        assert_eq!(answer(HANDLER as u32, [0, IN_FORCE as u64, 0, 8, 0, 0]), RET_ERRNO | YES);
        assert_eq!(answer(writev, [0, IN_FORCE as u64, 0, 8, 0, 0]), TRAP);
        assert_eq!(
            [MASK - 1, MASK, MASK + 1].map(|n| answer(n as u32, [0; 6])),
            [RET_ALLOW, TRAP, RET_ALLOW]
        );
        let foreign = [FOREIGN - 1, FOREIGN, FOREIGN + 1023, FOREIGN + 1024];
        assert_eq!(foreign.map(|n| answer(n as u32, [0; 6])), [RET_ALLOW, TRAP, TRAP, RET_ALLOW]);
        assert_eq!(foreign.map(replaced), [None, Some(0), Some(1023), None]);
        assert_eq!(
            answer(libc::SYS_io_uring_setup as u32, [1, 2, 0, 0, 0, 0]),
            RET_ERRNO | libc::ENOSYS as u32
        );
    }

    #[test]
    fn it_fits_and_common_calls_take_few_steps() {
        let program = program();
        assert!(program.len() < 4096, "{}", program.len());
        let call = Call {
            number: libc::SYS_getppid as u32,
            arguments: [1; 6],
            architecture: ARCHITECTURE,
            address: 0,
        };
        let (result, steps) = run(&program, &call);
        assert!(result == RET_ALLOW && steps <= 30, "{steps}");
    }

    proptest! {
        #[test]
        fn it_does_what_it_says(number in 0u32..600, places in prop::array::uniform6(0usize..5)) {
            let values = [0, INSIDE, u64::MAX, TAG as u64 | 64, 0x7fff_ffff_f000];
            let arguments = places.map(|place| values[place]);
            let hits = (0..6)
                .filter(|n| places[*n] == 1 || places[*n] == 3 && tagged(*n))
                .fold(0, |hits, n| hits | 1u8 << n);
            let expected = match number as i64 {
                // FUTEX_WAIT in this test where the operation has no bits, in the lower half, and
                // else none that is known.
                libc::SYS_futex if arguments[1] as u32 & 0x7f != 0 && hits & 1 == 0 => RET_ALLOW,
                // Without MAP_FIXED.
                libc::SYS_mmap if arguments[3] & libc::MAP_FIXED as u64 == 0 => RET_ALLOW,
                libc::SYS_vserver => TRAP,
                libc::SYS_io_uring_setup => RET_ERRNO | libc::ENOSYS as u32,
                _ if arguments::pointers(number as usize) & hits != 0 => TRAP,
                _ => RET_ALLOW,
            };
            prop_assert_eq!(answer(number, arguments), expected);
        }
    }
}
