//! Sandboxes: a program that puts a filter of system calls on itself goes on to have an engine.
//!
//! Its filter gets a beginning that lets the engine's own calls through
//! ([`overspill_os::seccomp::exceptions`]), and from then on the engine makes no others
//! ([`overspill_os::confined`]), also beside the program, where its threads have the filter too
//! ([`overspill_os::beside::filters`]). Filters come by prctl(2), or by
//! seccomp(2), which the C library has no function for: through syscall(2). Strict mode, which
//! knows no filters, is refused in signal delivery: its first fault would end the program.
//!
//! A dormant process wakes before it locks itself up, by a filter or otherwise: later its engine
//! might lack the calls, the files or the rights to begin.

use crate::sys::{check, real};
use crate::{dormant, image, limits, memory, pool, trap};
use overspill_os::beside::{self, filters};
use overspill_os::seccomp::Instruction;
use overspill_os::seccomp::exceptions::{LONGEST, Own, beginning};
use overspill_os::{Errno, confined, descriptors, tls};
use std::ffi::{c_char, c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// The kernel's struct sock_fprog.
#[repr(C)]
#[derive(Clone, Copy)]
struct FilterProgram {
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
        FILTER => {
            let same = |at| (Sysno::prctl, [libc::PR_SET_SECCOMP as usize, FILTER, at, 0, 0]);
            // SAFETY: the caller's promise.
            unsafe { put_on(program, call, same) }
        }
        _ => check(call(program)),
    }
}

/// seccomp(2) through syscall(2); `kernel` makes the call as it came.
///
/// # Safety
///
/// As for seccomp(2).
pub unsafe fn by_number(arguments: [usize; 3], kernel: impl FnOnce() -> isize) -> isize {
    /// Flags for a thread alone.
    const ALONE: usize =
        (libc::SECCOMP_FILTER_FLAG_LOG | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) as usize;
    let [operation, flags, program] = arguments;
    if matches!(operation, SET_MODE_STRICT | SET_MODE_FILTER) {
        dormant::wake();
    }
    let result = match operation {
        SET_MODE_STRICT if is_refused() => Err(Errno::INVAL),
        SET_MODE_FILTER => {
            let call = |at| raw_syscall!(Sysno::seccomp, SET_MODE_FILTER, flags, at);
            let same = |at| (Sysno::seccomp, [SET_MODE_FILTER, flags & ALONE, at, 0, 0]);
            // SAFETY: the caller's promise.
            unsafe { put_on(program, call, same) }
        }
        _ => return kernel(),
    };
    crate::sys::to_c(result)
}

/// The program has given up gaining rights by executing others, which is to be so for its sibling
/// before that can put on a filter.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// prctl(PR_SET_NO_NEW_PRIVS) has succeeded.
pub fn note_no_new_privileges() {
    GIVEN_UP.store(true, Relaxed);
}

/// Has the sibling give up as well what the program has.
fn give_up_privileges() {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    // By another way. A filter may not allow the question.
    if !confined::is_confined() {
        // SAFETY: the call takes numbers.
        let told = unsafe { raw_syscall!(Sysno::prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
        GIVEN_UP.fetch_or(told == 1, Relaxed);
    }
    if GIVEN_UP.swap(false, Relaxed) {
        let same = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0];
        let _ = filters::have_follow(Sysno::prctl, same);
    }
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
        libc::SYS_setrlimit => limits::change_first(arguments[0]),
        libc::SYS_prlimit64 => limits::change_first(arguments[1]),
        _ => {}
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

awake_first! {
    c"chroot" chroot(path: *const c_char) if dormant::wake();
    c"unshare" unshare(flags: c_int) if dormant::wake();
    c"setns" setns(fd: c_int, kind: c_int) if dormant::wake();
}

fn is_refused() -> bool {
    pool::signal_delivery() && tls::is_program()
}

/// Makes `call`, which puts on a filter, with a program that begins with the exceptions, and has
/// the sibling make the `same` for itself. With the program that it was given where there is no
/// engine, no program or no room for more.
///
/// # Safety
///
/// `program` is the address of a program, or anything that is none.
unsafe fn put_on(
    program: usize,
    call: impl FnOnce(usize) -> usize,
    same: impl FnOnce(usize) -> (Sysno, [usize; 5]),
) -> Result<usize, Errno> {
    let engines = program != 0 && pool::exists() && tls::is_program();
    let _internal = engines.then(tls::Internal::enter);
    if engines {
        confined::prepare();
    }
    // SAFETY: the caller's promise.
    let Some(filter) = engines.then(|| unsafe { with_exceptions(program) }).flatten() else {
        return confined::enter(|| check(call(program)));
    };
    give_up_privileges();
    let longer = Box::new(FilterProgram { len: filter.len() as u16, filter: filter.as_ptr() });
    let at = &raw const *longer as usize;
    let result = confined::enter(|| check(call(at)))?;
    let (number, arguments) = same(at);
    if !filters::have_follow(number, arguments) {
        // Somebody may still come for it.
        std::mem::forget((longer, filter));
    }
    Ok(result)
}

/// The program of a filter, behind the exceptions.
///
/// # Safety
///
/// As for [`put_on`].
unsafe fn with_exceptions(program: usize) -> Option<Vec<Instruction>> {
    let FilterProgram { len, filter: at } = memory::read(program)?;
    let mut own = vec![NOTHING; len.into()];
    if own.is_empty() || memory::read_into(at as usize, &mut own) < size_of_val(&own[..]) {
        return None;
    }
    let own_code = image::of(is_refused as *const () as usize).map(|library| library.code);
    let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get() as u32;
    let engine = Own {
        sibling: beside::sibling().ok().map(number),
        descriptors: descriptors::numbers().unwrap_or_default(),
    };
    let mut filter = own_code.and_then(|code| beginning(code, trap::passed_on(), &engine))?;
    filter.append(&mut own);
    (filter.len() <= LONGEST).then_some(filter)
}
