//! Sandboxes: a program that puts a filter of system calls on itself goes on to have an engine.
//!
//! Its filter gets a beginning that lets the engine's own calls through
//! ([`overspill_os::seccomp::exceptions`]), and from then on the engine makes no others on threads
//! under the filter ([`overspill_os::confined`]). Filters come by prctl(2), or by
//! seccomp(2), which the C library has no function for: through syscall(2). Strict mode, which
//! knows no filters, is refused in signal delivery: its first fault would end the program.
//!
//! A dormant process wakes before it locks itself up, by a filter or otherwise: later its engine
//! might lack the calls, the files or the rights to begin.

use crate::sys::{check, real};
use crate::{dormant, image, memory, pool, trap};
use overspill_os::seccomp::Instruction;
use overspill_os::seccomp::exceptions::{LONGEST, Own, beginning};
use overspill_os::{Errno, beside, confined, descriptors, tls};
use std::ffi::{c_char, c_int, c_long, c_void};

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
    dormant::wake();
    match mode {
        STRICT if is_refused() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        FILTER => unsafe {
            with_exceptions(program, |program| confined::enter(|| check(call(program))))
        },
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
    if matches!(operation, SET_MODE_STRICT | SET_MODE_FILTER) {
        dormant::wake();
    }
    let result = match operation {
        SET_MODE_STRICT if is_refused() => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        SET_MODE_FILTER => unsafe {
            with_exceptions(program, |program| {
                confined::enter(|| {
                    check(syscalls::raw_syscall!(
                        syscalls::Sysno::seccomp,
                        operation,
                        flags,
                        program
                    ))
                })
            })
        },
        _ => return kernel(),
    };
    crate::sys::to_c(result)
}

/// Calls by number after which an engine may not be able to begin, beside those that this library
/// knows as functions.
pub fn by_number_first(number: c_long, arguments: [usize; 2]) {
    match number {
        libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_landlock_restrict_self => drop(dormant::wake()),
        libc::SYS_setrlimit => limits(arguments[0], true),
        libc::SYS_prlimit64 => limits(arguments[1], true),
        _ => {}
    }
}

/// A limit is about to be changed: of what an engine takes when it begins?
fn limits(resource: usize, changes: bool) {
    let taken = [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE];
    if changes && taken.iter().any(|taken| *taken as usize == resource as u32 as usize) {
        dormant::wake();
    }
}

/// Functions after which an engine may not be able to begin: a dormant process wakes before.
macro_rules! awake_first {
    ($($name:literal $symbol:ident($($argument:ident: $type:ty),*) if $when:expr;)*) => {
        $(
            #[doc = concat!(stringify!($symbol), "(2).")]
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> c_int {
                $when;
                // SAFETY: the caller's promise.
                unsafe { real!($name as unsafe extern "C" fn($($type),*) -> c_int)($($argument),*) }
            }
        )*
    };
}

type Limit = *const c_void;

awake_first! {
    c"chroot" chroot(path: *const c_char) if dormant::wake();
    c"unshare" unshare(flags: c_int) if dormant::wake();
    c"setns" setns(fd: c_int, kind: c_int) if dormant::wake();
    c"setrlimit" setrlimit(resource: c_int, limit: Limit) if limits(resource as usize, true);
    c"setrlimit64" setrlimit64(resource: c_int, limit: Limit) if limits(resource as usize, true);
    c"prlimit" prlimit(process: c_int, resource: c_int, limit: Limit, old: *mut c_void)
        if limits(resource as usize, !limit.is_null());
    c"prlimit64" prlimit64(process: c_int, resource: c_int, limit: Limit, old: *mut c_void)
        if limits(resource as usize, !limit.is_null());
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
    let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get() as u32;
    let engine = Own {
        process: number(rustix::process::getpid()),
        sibling: beside::sibling().ok().map(number),
        descriptors: descriptors::numbers().unwrap_or_default(),
    };
    let Some(mut filter) = own_code.and_then(|code| beginning(code, trap::passed_on(), &engine))
    else {
        return call(program);
    };
    filter.append(&mut own);
    if filter.len() > LONGEST {
        return call(program);
    }
    let longer = Program { len: filter.len() as u16, filter: filter.as_ptr() };
    call(&raw const longer as usize)
}
