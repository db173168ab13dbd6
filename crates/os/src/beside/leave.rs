//! The end of a program that has a sibling: the sibling ends first, so the memory, and what is
//! attached to it, is gone when the parent hears of the end.

use super::watch::{FIRST_THREAD, LEAVING};
use crate::process::{program, sibling};
use crate::units::Errno;
use crate::{descriptors, seccomp, signal};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::arch::global_asm;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

global_asm!(
    ".pushsection .text.overspill_leave,\"ax\",@progbits",
    // (status, what the watcher waits on, LEAVING, pollfd of the sibling, syscall(2), a stack):
    // wakes it until it has ended, and exits, by the C library's instruction, so that a filter of
    // the program's has its say. No memory of the program's is accessed, since nobody may be left
    // to bring a page of its stack in.
    ".hidden overspill_leave",
    ".globl overspill_leave",
    ".type overspill_leave, @function",
    "overspill_leave:",
    "mov r12d, edi",
    "mov r13, rsi",
    "mov r14, rdx",
    "mov r15, rcx",
    "mov rbp, r8",
    "mov rsp, r9",
    "mov ebx, {leave_tries}",
    "xor r10d, r10d",
    "xor r8d, r8d",
    // What the watcher waits on may lie in managed memory, and nobody serves a stopped call here.
    "mov r9, {let_through}",
    "mov dword ptr [r14], 1",
    "1:",
    "mov rdi, r14",
    "mov esi, {wake}",
    "mov edx, 0x7fffffff",
    "mov eax, {futex}",
    "syscall",
    "mov rdi, r13",
    "mov eax, {futex}",
    "syscall",
    "mov rdi, r15",
    "mov esi, 1",
    "mov edx, 1",
    "mov eax, {poll}",
    "syscall",
    "test eax, eax",
    "jg 2f",
    "dec ebx",
    "jnz 1b",
    "2:",
    "mov edi, {exit_group}",
    "mov esi, r12d",
    "call rbp",
    // Where a filter has refused it, as the C library goes on.
    "hlt",
    ".popsection",
    exit_group = const libc::SYS_exit_group,
    futex = const libc::SYS_futex,
    poll = const libc::SYS_poll,
    let_through = const seccomp::exempt(0),
    wake = const libc::FUTEX_WAKE,
    leave_tries = const LEAVE_TRIES,
);

unsafe extern "C" {
    fn overspill_leave(
        status: i32,
        word: usize,
        leaving: *const AtomicU32,
        polled: *const AtomicU64,
        call: usize,
        stack: usize,
    ) -> !;
}

/// How often a program that exits looks for a millisecond whether its sibling has ended.
const LEAVE_TRIES: u32 = 1000;

/// The pollfd by which that program sees the end: not on its stack, which may be managed memory.
static POLLED: AtomicU64 = AtomicU64::new(0);
/// What a program exits on: the words that a function of the C library's writes and reads.
static LAST_STACK: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// exit_group(2) of the calling process. Its sibling ends first: what the memory keeps attached,
/// mapped or busy is free when the parent hears of the end. A program that a signal ends is
/// outlived by its sibling, by some 100 us. `call` is the address of the C library's syscall(2).
///
/// # Safety
///
/// It is.
pub unsafe fn exit_group(status: i32, call: usize) -> ! {
    if let Ok(sibling) = sibling()
        // Not in a child of a vfork, whose memory is its parent's.
        && rustix::process::getpid() == program()
        && let Ok(end) = descriptors::open(|| pidfd_open(sibling, PidfdFlags::empty()))
    {
        let wanted = libc::pollfd { fd: end.into_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a pollfd is eight bytes without gaps.
        POLLED.store(unsafe { std::mem::transmute::<libc::pollfd, u64>(wanted) }, Relaxed);
        signal::change_mask(libc::SIG_SETMASK, !0);
        // SAFETY: the places live for ever.
        unsafe {
            let stack = (&raw const LAST_STACK).add(1) as usize - 2 * size_of::<u128>();
            overspill_leave(status, FIRST_THREAD.load(Relaxed), &LEAVING, &POLLED, call, stack)
        }
    }
    // SAFETY: the caller's promise; the call does not return.
    unsafe {
        std::mem::transmute::<usize, extern "C" fn(i64, i64)>(call)(
            libc::SYS_exit_group,
            status.into(),
        );
        std::arch::asm!("hlt", options(noreturn))
    }
}

/// Waits for the end of another process's sibling: for a second at most, as its number may be
/// somebody else's by now.
pub fn await_end(sibling: i32) {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let process = Pid::from_raw(sibling).ok_or(Errno::SRCH);
    if let Ok(end) =
        process.and_then(|pid| descriptors::open(|| pidfd_open(pid, PidfdFlags::empty())))
    {
        let _ = rustix::event::poll(
            &mut [PollFd::new(&end, PollFlags::IN)],
            Some(&Timespec { tv_sec: 1, tv_nsec: 0 }),
        );
    }
}
