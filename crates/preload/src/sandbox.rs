//! Sandboxes: a program that puts a filter of system calls on itself goes on to have an engine.
//!
//! Its filter gets a beginning that lets the engine's own calls through
//! ([`overspill_os::seccomp::exceptions`]). Filters come by prctl(2), or by seccomp(2), which the C
//! library has no function for: through syscall(2). Strict mode, which knows no filters, is refused
//! in signal delivery: its first fault would end the program.

use crate::sys::check;
use crate::{image, memory, pool, trap};
use overspill_os::seccomp::Instruction;
use overspill_os::seccomp::exceptions::{LONGEST, beginning};
use overspill_os::{Errno, tls};

/// The kernel's struct sock_fprog.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// Room for an instruction.
const NOTHING: Instruction = Instruction { code: 0, if_true: 0, if_false: 0, k: 0 };

/// Operations of seccomp(2).
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;

/// prctl(PR_SET_SECCOMP): `call` is the call with another program.
///
/// # Safety
///
/// As for prctl(2).
pub unsafe fn enter(
    mode: usize,
    program: usize,
    call: impl FnOnce(usize) -> usize,
) -> Result<usize, Errno> {
    const STRICT: usize = 1;
    const FILTER: usize = 2;
    match mode {
        STRICT if is_refused() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        FILTER => unsafe { with_exceptions(program, |program| check(call(program))) },
        _ => check(call(program)),
    }
}

/// seccomp(2) through syscall(2); `kernel` makes the call as it came.
///
/// # Safety
///
/// As for seccomp(2).
pub unsafe fn by_number(arguments: [usize; 3], kernel: impl FnOnce() -> isize) -> isize {
    let [operation, flags, program] = arguments;
    let result = match operation {
        SET_MODE_STRICT if is_refused() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        SET_MODE_FILTER => unsafe {
            with_exceptions(program, |program| {
                check(syscalls::raw_syscall!(syscalls::Sysno::seccomp, operation, flags, program))
            })
        },
        _ => return kernel(),
    };
    crate::sys::to_c(result)
}

fn is_refused() -> bool {
    pool::signal_delivery() && tls::is_program()
}

/// Runs `call` with a program that begins with the exceptions, or with the one that it was given
/// where there is no engine, no program or no room for more.
///
/// # Safety
///
/// `program` is the address of a program, or anything that is none.
unsafe fn with_exceptions<R>(program: usize, call: impl FnOnce(usize) -> R) -> R {
    if program == 0 || !pool::exists() || !tls::is_program() {
        return call(program);
    }
    let _internal = tls::Internal::enter();
    let Some(Program { len, filter: at }) = memory::read(program) else { return call(program) };
    let mut own = vec![NOTHING; len.into()];
    if own.is_empty() || memory::read_into(at as usize, &mut own) < size_of_val(&own[..]) {
        return call(program);
    }
    let own_code = image::of(is_refused as *const () as usize).map(|library| library.code);
    let Some(mut filter) = own_code.and_then(|code| beginning(code, trap::passed_on())) else {
        return call(program);
    };
    filter.append(&mut own);
    if filter.len() > LONGEST {
        return call(program);
    }
    let longer = Program { len: filter.len() as u16, filter: filter.as_ptr() };
    call(&raw const longer as usize)
}
