//! Frames of the kernel's that are moved to the program's stack.
//!
//! The kernel cannot push a frame onto an absent page, so that a handler without SA_ONSTACK that
//! comes to a thread on a stack in managed memory, such as a coroutine's, would end the program. So
//! it pushes every frame onto a stack of ours, and this copies it to where it would be: the handler
//! finds itself, its context and all that was in registers on the stack that it has interrupted. It
//! may switch coroutines, never return, or look for pointers there as collectors of garbage do, and
//! nothing of it is left on ours.
//!
//! When it returns, the frame is copied again, to memory that is always there, as the kernel reads
//! it then.

use super::altstack;
use super::registers::RED_ZONE;
use overspill_os::signal::end_handler;
use std::ffi::c_void;
use std::ops::Range;

/// Where the kernel's frame begins, which has its return address and the context.
const CONTEXT: usize = size_of::<usize>();
/// The registers of the processor's units are aligned so.
const ALIGNED: usize = 64;

/// The frame with a context.
///
/// # Safety
///
/// The kernel has made it, or it is a copy.
unsafe fn frame(context: *const libc::ucontext_t) -> Range<usize> {
    /// Says that there is more than the first registers have, and how much; where that stands.
    const MAGIC: u32 = 0x4650_5853;
    const MAGIC_AT: usize = 464;
    const LEGACY_BYTES: usize = 512;
    // SAFETY: the caller's promise.
    unsafe {
        let registers = (*context).uc_mcontext.fpregs as usize;
        let words = (registers + MAGIC_AT) as *const u32;
        let bytes = if *words == MAGIC { *words.add(1) as usize } else { LEGACY_BYTES };
        context as usize - CONTEXT..registers + bytes
    }
}

/// Copies a frame to a place below `end`, with what in it points to itself. Where its context is
/// then.
///
/// # Safety
///
/// As for [`frame`], and the memory below `end` is free.
unsafe fn copy(context: *mut c_void, end: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        let from = frame(context.cast());
        let phase = from.start % ALIGNED;
        let to = ((end - from.len() - phase) & !(ALIGNED - 1)) + phase;
        let moved = to.wrapping_sub(from.start);
        std::ptr::copy_nonoverlapping(from.start as *const u8, to as *mut u8, from.len());
        let copy = context.wrapping_byte_add(moved);
        let registers = &mut (*copy.cast::<libc::ucontext_t>()).uc_mcontext.fpregs;
        *registers = registers.wrapping_byte_add(moved);
        copy
    }
}

/// Copies a frame to the stack that was interrupted, with the return address `back`: the stack
/// pointer for the handler, and how far the frame was moved.
///
/// # Safety
///
/// The kernel has made the frame.
pub unsafe fn to_program(context: *mut c_void, back: usize) -> (usize, usize) {
    // SAFETY: below the red zone the stack is free. If it cannot be written that is the program's
    // fault, as the kernel would find it.
    unsafe {
        let sp = (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RSP as usize];
        let copy = copy(context, sp as usize - RED_ZONE);
        let stack = copy as usize - CONTEXT;
        (stack as *mut usize).write(back);
        (stack, (copy as usize).wrapping_sub(context as usize))
    }
}

/// A handler has returned whose frame is on the program's stack: where it is to be read from.
///
/// # Safety
///
/// All signals but ours are blocked, and what the handler has left of the context is right.
pub unsafe extern "C" fn to_kernel(context: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        end_handler(context);
        match altstack::frame_room() {
            Some(room) if frame(context.cast()).len() + 2 * ALIGNED <= room.len() => {
                copy(context, room.end)
            }
            _ => context,
        }
    }
}
