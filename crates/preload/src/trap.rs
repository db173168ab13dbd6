//! System calls on managed memory, in signal delivery: made safe instead of failing with EFAULT.
//!
//! The filter ([`overspill_os::seccomp`]) turns every call that is handed an address of the window
//! into SIGSYS, with the registers as the program left them. [`on_sigsys`] prepares the call and
//! goes back not to the program but to [`overspill_reissue`], which makes it: on the program's own
//! stack, with the program's own signal mask. So a call that blocks is interrupted, restarted,
//! cancelled and left by siglongjmp as it would be without us.
//!
//! 1. SIGSYS. [`way`] says how the call treats its memory:
//!    - data ([`data`]): through a buffer of ours ([`bounce`]), so that nothing is lost that the
//!      kernel has taken
//!      from a socket or a queue;
//!    - structures ([`structures`]): through a copy of each, for the same reason;
//!    - requests of asynchronous I/O ([`submit`]): with their buffers locked in memory;
//!    - changes of mappings ([`crate::map`]): they are the engine's affair, and not made;
//!    - anything else ([`present`]): its pages are made present, and the call is repeated after
//!      EFAULT.
//! 2. A [`Record`] of the registers is put on the program's stack below the red zone, and the
//!    registers of the context are changed to make the call.
//! 3. The call. Most come straight back to the program; some go through SIGSYS once more
//!    ([`finish`]): to copy out, or to be repeated. Where a return follows the program's own
//!    instruction, it is that one that makes the call ([`reissue`]).
//!
//! Calls by functions of the C library's that programs use much are not stopped: the functions do
//! the same ([`around`]), and spare the signals.
//!
//! The engine's own calls are never stopped: it hands no managed memory to the kernel, but to
//! change its mappings. That is let through ([`seccomp::change_mappings`]), as is what it calls
//! through the C library. They could not be, since the engine runs with all signals blocked, and
//! not on the signal stack.
//!
//! The handler runs on the thread's own signal stack ([`altstack`]), with all signals blocked but
//! those that a faulty access raises: it reads and writes managed memory as the program does. It
//! allocates nothing and takes no lock of the program's.

use crate::memory;
use crate::signals::handlers::RAISED;
use crate::signals::registers::{RED_ZONE, Registers};
use crate::signals::{altstack, masks};
use crate::sys::failure;
use overspill_os::signal::chain;
use overspill_os::tls::Answering;
use overspill_os::{Errno, seccomp, tls};
use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::OnceLock;

pub mod around;
mod bounce;
mod data;
#[cfg(test)]
pub mod explore;
mod hooks;
mod present;
mod record;
mod structures;
mod submit;
mod way;

pub use hooks::{lead_by, map_by};
use record::{ALWAYS, Next, Record, untag};

// The call itself. The stack pointer is at the record. The frame is described as that of a function
// that was called by the program's, so that a cancellation unwinds through it.
global_asm!(
    ".pushsection .text.overspill_reissue,\"ax\",@progbits",
    ".hidden overspill_reissue",
    ".globl overspill_reissue",
    ".type overspill_reissue, @function",
    "overspill_reissue:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, {frame}",
    ".cfi_offset rip, {rip} - {frame}",
    "nop",
    "syscall",
    ".hidden overspill_reissued",
    ".globl overspill_reissued",
    "overspill_reissued:",
    "mov ecx, dword ptr [rsp + {finish}]",
    "cmp ecx, {ALWAYS}",
    "je 2f",
    "test ecx, ecx",
    "je 1f",
    "cmp rax, {EFAULT}",
    "je 2f",
    "1:",
    "push qword ptr [rsp + {flags}]",
    ".cfi_adjust_cfa_offset 8",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "mov rdi, [rsp + {arguments}]",
    "mov rsi, [rsp + {arguments} + 8]",
    "mov rdx, [rsp + {arguments} + 16]",
    "mov r10, [rsp + {arguments} + 24]",
    "mov r8, [rsp + {arguments} + 32]",
    "mov r9, [rsp + {arguments} + 40]",
    "mov rcx, [rsp + {rip}]",
    ".cfi_register rip, rcx",
    "lea rsp, [rsp + {frame}]",
    ".cfi_def_cfa rsp, 0",
    "jmp rcx",
    "2:",
    ".cfi_def_cfa rsp, {frame}",
    ".cfi_offset rip, {rip} - {frame}",
    "mov [rsp + {result}], rax",
    "xor edi, edi",
    "mov rsi, {RETURN}",
    "xor edx, edx",
    "mov r10d, 8",
    // Perhaps it has the mark of a call that is let through.
    "xor r9d, r9d",
    "mov eax, {HANDLER}",
    "syscall",
    ".hidden overspill_reissue_end",
    ".globl overspill_reissue_end",
    "overspill_reissue_end:",
    "ud2",
    ".cfi_endproc",
    ".popsection",
    frame = const RED_ZONE + size_of::<Record>(),
    rip = const offset_of!(Record, rip),
    arguments = const offset_of!(Record, arguments),
    flags = const offset_of!(Record, flags),
    finish = const offset_of!(Record, finish),
    result = const offset_of!(Record, result),
    ALWAYS = const ALWAYS,
    EFAULT = const -libc::EFAULT,
    RETURN = const seccomp::RETURN,
    HANDLER = const seccomp::HANDLER,
);

unsafe extern "C" {
    fn overspill_reissue();
    fn overspill_reissued();
    fn overspill_reissue_end();
}

/// Goes back to the program.
fn resume(registers: &mut Registers<'_>, record: &Record, result: usize) {
    let stack = record as *const Record as usize + size_of::<Record>() + RED_ZONE;
    registers.set_arguments(record.arguments);
    registers.set(libc::REG_RAX, result);
    registers.set(libc::REG_RCX, record.rip);
    registers.set(libc::REG_EFL, record.flags);
    registers.set(libc::REG_RSP, stack);
    registers.set(libc::REG_RIP, record.rip);
}

/// Goes on to make the call of a record, with these arguments.
fn reissue(registers: &mut Registers<'_>, record: &Record, arguments: [usize; 6]) {
    let place = record as *const Record as usize;
    let (stack, call) = match is_before_return(record.rip) {
        true => {
            let stack = place - size_of::<usize>();
            // SAFETY: the stack below the record is free, as that below the red zone was.
            unsafe { (stack as *mut usize).write(passed_on()) };
            (stack, record.rip - SYSCALL.len())
        }
        false => (place, overspill_reissue as *const () as usize),
    };
    registers.set_arguments(arguments);
    registers.set(libc::REG_RAX, record.number);
    registers.set(libc::REG_RSP, stack);
    registers.set(libc::REG_RIP, call);
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Whether the instruction behind a call that was stopped returns. Then it makes the call again,
/// and returns to us: where its signals come there, a C library that cancels threads (glibc from
/// 2.41 on, musl) sees that the call has not been made yet.
fn is_before_return(rip: usize) -> bool {
    const RETURN: u8 = 0xc3;
    let [first, second] = SYSCALL;
    memory::read(rip - SYSCALL.len()) == Some([first, second, RETURN])
}

/// Makes the buffers of calls.
///
/// # Errors
/// Where there is no memory for them.
pub fn make_buffers() -> Result<(), Errno> {
    bounce::start()
}

/// Makes SIGSYS ours, and puts the filter in force unless the process has inherited it.
///
/// # Errors
/// A sentence that says what is not possible here.
pub fn start() -> Result<(), String> {
    overspill_os::signal::install(libc::SIGSYS, on_sigsys, HANDLER_MASK)
        .map_err(|errno| format!("SIGSYS cannot be handled: {errno}"))?;
    if !seccomp::is_in_force() {
        seccomp::install().map_err(|errno| {
            format!("system calls cannot be filtered here (seccomp: {errno}): use --fault thread")
        })?;
    }
    Ok(())
}

/// All signals but those that an access, an instruction or a call raises.
const HANDLER_MASK: u64 = !(RAISED | overspill_os::signal::OURS);

/// What the kernel says of a call that a filter has stopped (siginfo_t for SIGSYS).
#[repr(C)]
struct Stopped {
    signal: i32,
    mark: i32,
    code: i32,
    address: usize,
    number: i32,
    architecture: u32,
}

extern "C" fn on_sigsys(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const SYS_SECCOMP: i32 = 1;
    // SAFETY: the kernel passes a siginfo, for SIGSYS of this layout.
    let stopped = unsafe { &*info.cast::<Stopped>() };
    if stopped.code != SYS_SECCOMP || stopped.mark != seccomp::MARK as i32 {
        // SAFETY: what the kernel has passed.
        return unsafe { chain(signal, info, context) };
    }
    // SAFETY: the kernel passes a ucontext, which is ours until we return.
    let whole = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    altstack::give_late(whole);
    tls::set_answering(Answering::Works);
    // SAFETY: as above.
    unsafe { answer(stopped, whole) };
    tls::set_answering(Answering::Ends);
    if tls::pending() & !tls::blocked() != 0 {
        // They come when this handler returns.
        overspill_os::signal::change_mask(libc::SIG_BLOCK, !0);
        overspill_os::signal::raise_pending();
    }
}

/// Does a call of the program's own instructions, whose number was replaced.
type Answer = unsafe fn(&mut libc::ucontext_t, usize);

static REPLACED: OnceLock<Answer> = OnceLock::new();

/// Calls whose numbers were replaced come to `answer`, which gets what the kernel has passed to the
/// handler, and the number.
pub fn answer_replaced_by(answer: Answer) {
    let _ = REPLACED.set(answer);
}

/// Does what is to be done about a stopped call.
///
/// # Safety
///
/// `whole` is what the kernel has passed to the handler.
unsafe fn answer(stopped: &Stopped, whole: &mut libc::ucontext_t) {
    if let Some(number) = seccomp::replaced(stopped.number as usize) {
        let Some(answer) = REPLACED.get() else {
            // Nobody here has replaced it.
            return whole.uc_mcontext.gregs[libc::REG_RAX as usize] = failure(libc::ENOSYS) as i64;
        };
        // SAFETY: as above.
        return unsafe { answer(whole, number) };
    }
    let mut registers = Registers(&mut whole.uc_mcontext.gregs);
    let asked =
        if stopped.number as usize == seccomp::HANDLER { registers.get(libc::REG_RSI) } else { 0 };
    if stopped.number as usize == seccomp::MASK {
        let [how, set, old, ..] = registers.arguments();
        // SAFETY: 1. as above; a sigset_t begins with the kernel's 8 bytes; 2. a call of the C
        // library's.
        let result = unsafe {
            masks::change(&mut *(&raw mut whole.uc_sigmask).cast::<u64>(), how, set, old)
        };
        registers.set(libc::REG_RAX, result);
    } else if asked == seccomp::PENDING {
        // The handler does the rest.
        registers.set(libc::REG_RAX, 0);
    } else if asked != seccomp::RETURN {
        begin(&mut registers, stopped.number as usize);
    } else if registers.get(libc::REG_RIP) == overspill_reissue_end as *const () as usize {
        // SAFETY: at that address the stack pointer is at the record, which nobody else uses.
        let record = unsafe { &mut *(registers.get(libc::REG_RSP) as *mut Record) };
        finish(&mut registers, record);
    } else {
        registers.set(libc::REG_RAX, failure(libc::EFAULT));
    }
}

/// Prepares a call that was stopped.
pub fn begin(registers: &mut Registers<'_>, number: usize) {
    let mut arguments = registers.arguments();
    untag(&mut arguments);
    let place = registers.get(libc::REG_RSP) - RED_ZONE - size_of::<Record>();
    let record = Record {
        rip: registers.get(libc::REG_RIP),
        flags: registers.get(libc::REG_EFL),
        ..Record::new(number, registers.arguments())
    };
    // SAFETY: the stack below the red zone is free, and aligned to 8 as stack pointers are. An
    // access there is the program's own: if it faults, it is served.
    let record = unsafe {
        let place = place as *mut Record;
        place.write(record);
        &mut *place
    };
    match way::begin(record, arguments) {
        Next::Call(arguments) => reissue(registers, record, arguments),
        Next::Result(result) => resume(registers, record, result),
    }
}

/// Looks at a call that was made.
fn finish(registers: &mut Registers<'_>, record: &mut Record) {
    match way::finish(record) {
        Next::Call(arguments) => reissue(registers, record, arguments),
        Next::Result(result) => {
            bounce::release(record);
            resume(registers, record, result);
        }
    }
}

/// Where a call of the program's returns to that is made with memory that is safe.
pub fn passed_on() -> usize {
    overspill_reissued as *const () as usize
}

/// In the child of a fork.
pub fn reset_in_child(parent: i32) {
    overspill_os::foreign::reset_in_child();
    bounce::reset_in_child(parent);
}
