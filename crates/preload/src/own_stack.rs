//! A stack for steps of ours that must not run on the program's: that may be managed memory, or
//! have little room.

use overspill_os::signal::{Blocked, is_on_signal_stack};
use overspill_os::{PAGE_SIZE, vm};
use std::arch::global_asm;
use std::cell::UnsafeCell;

/// A stack for the engine's steps. A child of a fork has its own copy.
#[repr(align(64))]
struct OwnStack(UnsafeCell<[u8; BYTES]>);
/// Enough for a debug build's engine to begin; touched lazily.
const BYTES: usize = 512 << 10;
// SAFETY: one thread at a time uses it, as a stack: the one that forks, or that of a process which
// has one only.
unsafe impl Sync for OwnStack {}
static STACK: OwnStack = OwnStack(UnsafeCell::new([0; BYTES]));

/// Runs a step, by a thread that is the only one to do so, on memory that is never managed. Nothing
/// there touches managed memory.
pub fn run<F: FnOnce()>(step: F) {
    extern "C" fn run<F: FnOnce()>(step: *mut Option<F>) {
        // SAFETY: the step of the frame below, which is used once. That frame may be in managed
        // memory.
        if let Some(step) = unsafe { (*step).take() } {
            step();
        }
    }
    let _blocked = is_on_signal_stack().then(Blocked::all_beside_stack);
    let mut step = Some(step);
    let top = STACK.0.get() as usize + BYTES;
    // SAFETY: 1. the stack is free, and aligned; 2. the function has the type; 3. it does not
    // unwind: panics abort.
    unsafe { overspill_step_on(top, &raw mut step as usize, run::<F> as *const () as usize) };
}

/// Gives back the memory of the stack: it was used deeper than it will be.
pub fn forget() {
    let start = STACK.0.get() as usize;
    let pages = start.next_multiple_of(PAGE_SIZE)..(start + BYTES) / PAGE_SIZE * PAGE_SIZE;
    let _ = vm::advise(pages, vm::advice::DONTNEED);
}

// Calls a function on another stack.
global_asm!(
    ".pushsection .text.overspill_step_on,\"ax\",@progbits",
    ".hidden overspill_step_on",
    ".globl overspill_step_on",
    ".type overspill_step_on, @function",
    "overspill_step_on:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rsi",
    "call rdx",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn overspill_step_on(stack: usize, argument: usize, function: usize);
}
