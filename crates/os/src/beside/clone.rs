//! The clone(2) calls that make the sibling and its threads, in assembly: the new task begins on a
//! stack of its own.

use rustix::thread::futex;
use std::arch::global_asm;
use std::sync::atomic::{AtomicI32, AtomicU32};

/// Longest sleep of the program while the sibling begins, between two looks whether it is still
/// there.
pub(super) static SETTLE_LOOK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Whether the sibling has closed its copies of the program's descriptors: then nothing of the
/// program's is kept open by it.
pub(super) static SETTLED: AtomicU32 = AtomicU32::new(0);

// Both functions prepare a child that pops its argument and its function from its new stack.
global_asm!(
    ".pushsection .text.overspill_clone,\"ax\",@progbits",
    // (flags, stack, thread pointer, word to clear at the end) -> number of the new task, or an
    // error.
    ".hidden overspill_clone",
    ".globl overspill_clone",
    ".type overspill_clone, @function",
    "overspill_clone:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov r8, rdx",
    "xor edx, edx",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    // (stack, thread pointer, place for the sibling's number, word to clear at its end) -> number
    // of the process in between, or an error. That process runs on the stack of the caller, who
    // waits (CLONE_VFORK), and leaves it as it is. It waits until the sibling has settled: whoever
    // looks at the caller meanwhile does not see it asleep, as if waiting for something of its own.
    ".hidden overspill_clone_orphan",
    ".globl overspill_clone_orphan",
    ".type overspill_clone_orphan, @function",
    "overspill_clone_orphan:",
    "mov r9, rdx",
    "mov r8, rsi",
    "mov r10, rdi",
    // Not read by the first call, as its flags say.
    "mov rdx, rcx",
    "mov edi, {between}",
    "xor esi, esi",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 1f",
    "ret",
    "1:",
    "mov edi, {beside}",
    "mov rsi, r10",
    "mov r10, rdx",
    "xor edx, edx",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "mov dword ptr [r9], eax",
    "test eax, eax",
    "js 4f",
    "mov r12, r10",
    "lea r13, [rip + {settled}]",
    "lea r14, [rip + {settle_look}]",
    "3:",
    "cmp dword ptr [r13], 0",
    "jne 4f",
    "cmp dword ptr [r12], 0",
    "je 4f",
    "mov rdi, r13",
    "mov esi, {wait}",
    "xor edx, edx",
    "mov r10, r14",
    "mov eax, {futex}",
    "syscall",
    "jmp 3b",
    "4:",
    "xor edi, edi",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    "2:",
    // Unwinding ends here.
    ".cfi_undefined rip",
    "xor ebp, ebp",
    "pop rdi",
    "pop rax",
    "call rax",
    "xor edi, edi",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".popsection",
    clone = const libc::SYS_clone,
    exit = const libc::SYS_exit,
    futex = const libc::SYS_futex,
    wait = const libc::FUTEX_WAIT,
    settled = sym SETTLED,
    settle_look = sym SETTLE_LOOK,
    between = const libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED,
    beside = const BESIDE_FLAGS,
);

unsafe extern "C" {
    pub(super) fn overspill_clone(
        flags: usize,
        stack: usize,
        thread_pointer: usize,
        cleared: *const AtomicU32,
    ) -> isize;
    pub(super) fn overspill_clone_orphan(
        stack: usize,
        thread_pointer: usize,
        number: *const AtomicI32,
        cleared: *const AtomicU32,
    ) -> isize;
}

/// The sibling: it shares the memory and nothing else; its exit signal is 0.
pub(super) const BESIDE_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_UNTRACED
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// A further thread of the sibling.
pub(super) const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_UNTRACED;
