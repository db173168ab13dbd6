//! The thread pointer: that of the program's own, where a thread has one, and the engine's.
//!
//! A *foreign* thread is one whose thread pointer the program has set ([`crate::foreign`]). It has
//! storage of the engine's besides, and each handler of the engine's begins with
//! [`overspill_own_pointer`] and ends with [`overspill_programs_pointer`].
//!
//! Which storage is a thread's says the base of its GS segment, which neither the C library nor
//! runtimes that set the thread pointer use, whichever stack a handler runs on. It is looked at
//! only once there is a foreign thread, and is the address of a thread's `Words`, or it is not
//! ours. Both bases are read and written by instructions, which the kernel must allow
//! ([`is_possible`]: Linux 5.9 on processors since 2012). No locks.

use crate::tls;
use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

/// Where the words of all foreign threads lie, in how many bytes: 0 before there is one.
pub(crate) static START: AtomicUsize = AtomicUsize::new(0);
/// See [`START`].
pub(crate) static BYTES: AtomicUsize = AtomicUsize::new(0);

/// What a foreign thread's GS base points to.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Words {
    /// The thread pointer of the engine's storage.
    pub(crate) own: usize,
    /// The program's, when a handler has last come.
    pub(crate) program: usize,
    /// The signal stack that goes with the entry, for the preload library: 0 before it has one.
    pub(crate) signal_stack: AtomicUsize,
}

// `overspill_own_pointer` returns whether it has switched. Both change rax, rcx and r11 only, and
// use no stack but for their return.
global_asm!(
    ".pushsection .text.overspill_foreign,\"ax\",@progbits",
    ".hidden overspill_own_pointer",
    ".globl overspill_own_pointer",
    ".type overspill_own_pointer, @function",
    "overspill_own_pointer:",
    ".cfi_startproc",
    "xor eax, eax",
    "cmp qword ptr [rip + {bytes}], 0",
    "je 1f",
    "rdgsbase r11",
    "mov rcx, r11",
    "sub rcx, [rip + {start}]",
    "cmp rcx, [rip + {bytes}]",
    "jae 1f",
    "rdfsbase rcx",
    "cmp rcx, [r11 + {own}]",
    "je 1f",
    "mov [r11 + {program}], rcx",
    "mov rcx, [r11 + {own}]",
    "wrfsbase rcx",
    "inc eax",
    "1:",
    "ret",
    ".cfi_endproc",
    ".hidden overspill_programs_pointer",
    ".globl overspill_programs_pointer",
    ".type overspill_programs_pointer, @function",
    "overspill_programs_pointer:",
    ".cfi_startproc",
    "cmp qword ptr [rip + {bytes}], 0",
    "je 2f",
    "rdgsbase r11",
    "mov rcx, r11",
    "sub rcx, [rip + {start}]",
    "cmp rcx, [rip + {bytes}]",
    "jae 2f",
    "mov rcx, [r11 + {program}]",
    "wrfsbase rcx",
    "2:",
    "ret",
    ".cfi_endproc",
    ".hidden overspill_pointer_end",
    ".globl overspill_pointer_end",
    "overspill_pointer_end:",
    ".popsection",
    bytes = sym BYTES,
    start = sym START,
    own = const offset_of!(Words, own),
    program = const offset_of!(Words, program),
);

unsafe extern "C" {
    /// A handler of the engine's begins: the calling thread has the engine's storage from now on.
    /// Whether it had another, so that [`overspill_programs_pointer`] is to end the handler. For
    /// code in assembly: it changes rax, rcx and r11 only.
    pub fn overspill_own_pointer() -> usize;
    /// Code of the program's goes on. It changes rcx and r11 only.
    pub fn overspill_programs_pointer();
    fn overspill_pointer_end();
}

/// Whether code is one of those two, which begins with its return address on the stack and leaves
/// it there.
pub(crate) fn is_either(code: usize) -> bool {
    let start = overspill_own_pointer as *const () as usize;
    (start..overspill_pointer_end as *const () as usize).contains(&code)
}

/// Whether threads may have other thread pointers here.
pub fn is_possible() -> bool {
    /// FSGSBASE of AT_HWCAP2.
    const INSTRUCTIONS: u64 = 1 << 1;
    // SAFETY: the call takes a number.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & INSTRUCTIONS != 0 }
}

/// Calls a function of the program's in a handler of the engine's.
pub fn with_programs_pointer(call: impl FnOnce()) {
    // SAFETY: the thread has the engine's storage, and has it again afterwards.
    unsafe {
        overspill_programs_pointer();
        call();
        overspill_own_pointer();
    }
}

/// The words of the calling thread, if it is foreign.
pub(crate) fn words() -> Option<&'static Words> {
    let bytes = BYTES.load(Acquire);
    if bytes == 0 {
        return None;
    }
    let base: usize;
    // SAFETY: there are foreign threads, so the instruction is allowed; it reads a register.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, nomem, preserves_flags)) };
    let is_ours = base.wrapping_sub(START.load(Relaxed)) < bytes;
    // SAFETY: nothing else points there, and entries are never unmapped.
    is_ours.then(|| unsafe { &*(base as *const Words) })
}

/// Whether the calling thread is one.
pub fn is_foreign() -> bool {
    words().is_some()
}

pub(crate) fn set_words(words: usize) {
    // SAFETY: as in `words`; nobody else uses the register.
    unsafe { asm!("wrgsbase {}", in(reg) words, options(nostack, nomem, preserves_flags)) };
}

/// On a thread that is not foreign, and has the words of its maker's.
pub fn forget() {
    if BYTES.load(Acquire) != 0 {
        set_words(0);
    }
}

/// The thread pointer that the program's code has on the calling thread, in a handler that has
/// entered.
pub fn programs_pointer() -> usize {
    words().map_or_else(tls::thread_pointer, |words| words.program)
}
