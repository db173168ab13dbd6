//! Where a handler of the engine's begins and ends, and what puts it in its place.

use crate::units::Errno;
use crate::{pointer, tls};
use std::arch::global_asm;
use std::sync::atomic::AtomicUsize;

/// A handler with SA_SIGINFO.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// The handlers of SIGBUS and SIGSYS.
pub(super) static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

// Calls the handler of a signal with the engine's thread-local storage, whoever's the thread is.
global_asm!(
    ".pushsection .text.overspill_signal,\"ax\",@progbits",
    ".hidden overspill_signal",
    ".globl overspill_signal",
    ".type overspill_signal, @function",
    "overspill_signal:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -16",
    "sub rsp, 16",
    ".cfi_adjust_cfa_offset 16",
    "call {enter}",
    "mov ebx, eax",
    "mov r11, [rip + overspill_tls@GOTTPOFF]",
    "mov r11, fs:[r11 + {answering}]",
    "mov [rsp], r11",
    "lea rax, [rip + {handlers}]",
    "cmp edi, {SIGSYS}",
    "jne 1f",
    "add rax, 8",
    "1:",
    "call [rax]",
    ".hidden overspill_signal_called",
    ".globl overspill_signal_called",
    "overspill_signal_called:",
    "mov r11, [rip + overspill_tls@GOTTPOFF]",
    "mov rax, [rsp]",
    "mov fs:[r11 + {answering}], rax",
    "test ebx, ebx",
    "jz 2f",
    "call {leave}",
    "2:",
    "add rsp, 16",
    ".cfi_adjust_cfa_offset -16",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".hidden overspill_signal_end",
    ".globl overspill_signal_end",
    "overspill_signal_end:",
    ".popsection",
    enter = sym pointer::overspill_own_pointer,
    leave = sym pointer::overspill_programs_pointer,
    handlers = sym HANDLERS,
    answering = const tls::ANSWERING,
    SIGSYS = const libc::SIGSYS,
);

unsafe extern "C" {
    pub(super) fn overspill_signal();
    pub(super) fn overspill_signal_called();
    pub(super) fn overspill_signal_end();
}

/// sigaction past the preload library, which interposes the libc symbol: through the next
/// definition.
pub(super) unsafe fn real_sigaction(
    signal: i32,
    action: &libc::sigaction,
    before: &mut libc::sigaction,
) -> Result<(), Errno> {
    type Sigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;
    // SAFETY: dlsym finds the C library's own function, whose type this is; the C library adds its
    // own restorer.
    let ret = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr());
        let call: Sigaction = if found.is_null() {
            libc::sigaction
        } else {
            std::mem::transmute::<*mut libc::c_void, Sigaction>(found)
        };
        call(signal, action, before)
    };
    if ret == 0 { Ok(()) } else { Err(Errno::INVAL) }
}
