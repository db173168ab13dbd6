//! Copies from and to memory that the program names, which may not be there.
//!
//! The kernel says EFAULT where a program hands it an address that is none. Whoever reads for the
//! program what it hands to the kernel must be able to say so too. So such reads and writes are
//! made here, and a fault in the middle ends the copy, not the program: whoever handles the signal
//! of the fault asks [`recover`]. That costs nothing where there is no fault. A fault that the
//! engine serves is no fault here.

use std::arch::global_asm;
use std::ffi::c_void;

// Words, then bytes. What is left to copy is in rcx all the time, so that a fault may go to the end
// from anywhere.
global_asm!(
    ".pushsection .text.overspill_copy,\"ax\",@progbits",
    ".hidden overspill_copy",
    ".globl overspill_copy",
    ".type overspill_copy, @function",
    "overspill_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "2:",
    "cmp rcx, 8",
    "jb 3f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rcx, 8",
    "jmp 2b",
    "3:",
    "test rcx, rcx",
    "jz overspill_copied",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rcx",
    "jmp 3b",
    ".hidden overspill_copied",
    ".globl overspill_copied",
    "overspill_copied:",
    "mov rax, rcx",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    /// Returns the bytes that were not copied.
    fn overspill_copy(to: usize, from: usize, len: usize) -> usize;
    fn overspill_copied();
}

/// Copies bytes as far as both sides can be accessed, by words; returns how many.
///
/// # Safety
///
/// What can be written at `to` may be overwritten. Faults are signals whose handler asks
/// [`recover`].
pub unsafe fn copy(to: usize, from: usize, len: usize) -> usize {
    // SAFETY: the caller's promise. The function touches nothing else, and a fault ends it.
    len - unsafe { overspill_copy(to, from, len) }
}

/// In the handler of a fault: whether a copy has met it. The copy ends when the handler returns.
///
/// # Safety
///
/// `context` is what the kernel has passed to the handler.
pub unsafe fn recover(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let end = overspill_copied as *const () as usize;
    let met = (overspill_copy as *const () as usize..end)
        .contains(&(registers[libc::REG_RIP as usize] as usize));
    if met {
        registers[libc::REG_RIP as usize] = end as i64;
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PAGE_SIZE;

    extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel has passed.
        assert!(unsafe { recover(context) });
    }

    #[test]
    fn copies_end_where_memory_does() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: 1. a handler that lives for ever; 2. two new pages, the second of which cannot be
        // accessed; 3. copies between the first and arrays of ours.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(std::ptr::null_mut(), 2 * PAGE_SIZE, prot, flags, -1, 0) as usize;
            let end = page + PAGE_SIZE;
            libc::mprotect(end as *mut c_void, PAGE_SIZE, libc::PROT_NONE);
            let from: Vec<u8> = (0..100).collect();
            let mut to = vec![0u8; 100];
            let (from_at, to_at) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
            for len in 0..40 {
                assert_eq!(copy(end - len, from_at, len), len);
                to.fill(0);
                assert_eq!(copy(to_at, end - len, 100), len / 8 * 8, "words");
                assert_eq!((&to[..len / 8 * 8], to[len]), (&from[..len / 8 * 8], 0));
                assert_eq!(copy(to_at, end - len, len), len);
                assert_eq!(to[..len], from[..len]);
                assert_eq!(copy(end - len, from_at, 64), len / 8 * 8);
            }
            assert_eq!(
                (copy(to_at, 1, 1), copy(1, from_at, 9), copy(usize::MAX - 3, from_at, 9)),
                (0, 0, 0)
            );
            libc::munmap(page as *mut c_void, 2 * PAGE_SIZE);
        }
    }
}
