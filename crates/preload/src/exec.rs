//! The functions that execute a program, in signal delivery: what it is started with may be managed.
//!
//! execve reads arguments and environment through arrays, which the filter does not see ([`crate::vectors`] says more); its
//! call is marked. The functions that do more than one call, or look into the arrays themselves, find all of it present, and
//! are called again after EFAULT.
//!
//! An executed program starts with the signals blocked that the program has blocked, SIGBUS and SIGSYS among them ([`with_mask`]); not
//! so what is executed by posix_spawn or by a function that takes a list of arguments.

use crate::pool;
use crate::spawn::{Copies, with_plain_environment};
use crate::sys::{errno, real};
use crate::trap::{self, strings};
use crate::vectors::looking;
use overspill_os::signal::change_mask;
use overspill_os::tls;
use std::ffi::{c_char, c_int};

/// An array of strings that ends with a null, or null.
pub type Strings = *const *const c_char;

unsafe extern "C" {
    /// The program's environment.
    pub static mut environ: Strings;
}

/// Tries before the program gets its EFAULT.
const TRIES: usize = 8;

/// The strings of an array.
///
/// # Safety
///
/// `array` is one that ends with a null, or null.
pub unsafe fn each(array: Strings) -> impl Iterator<Item = *const c_char> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise; nothing is read behind the null.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let string = *next;
            next = next.add(1);
            Some(string)
        }
    })
}

/// Whether an array of strings, or one of them, is managed.
///
/// # Safety
///
/// As for [`each`].
pub unsafe fn is_managed(array: Strings) -> bool {
    // SAFETY: the caller's promise.
    pool::contains(array as usize) || unsafe { each(array) }.any(|string| pool::contains(string as usize))
}

/// The arguments, marked if they or the environment are managed.
///
/// # Safety
///
/// As for [`each`], both.
unsafe fn marked(arguments: Strings, environment: Strings) -> Strings {
    // SAFETY: the caller's promise.
    let managed = looking() && !arguments.is_null() && unsafe { is_managed(arguments) || is_managed(environment) };
    if managed { trap::tag(arguments) } else { arguments }
}

/// execve(2).
///
/// # Safety
///
/// As for execve(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
    let real = real!(c"execve" as Execve);
    // SAFETY: the caller's promise.
    unsafe {
        with_mask(path, arguments, environment, |path, arguments, environment| real(path, arguments, environment))
            .unwrap_or_else(|| real(path, marked(arguments, environment), environment))
    }
}

/// execv(3).
///
/// # Safety
///
/// As for execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    type Execv = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        if tls::blocked() != 0 {
            return execve(path, arguments, environ);
        }
        real!(c"execv" as Execv)(path, marked(arguments, environ))
    }
}

/// fexecve(3).
///
/// # Safety
///
/// As for fexecve(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
    // SAFETY: the caller's promise.
    unsafe { real!(c"fexecve" as Fexecve)(fd, marked(arguments, environment), environment) }
}

/// execveat(2).
///
/// # Safety
///
/// As for execveat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    // SAFETY: the caller's promise.
    unsafe { real!(c"execveat" as Execveat)(dir, path, marked(arguments, environment), environment, flags) }
}

/// execvp(3).
///
/// # Safety
///
/// As for execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    type Execvp = unsafe extern "C" fn(*const c_char, Strings) -> c_int;
    // SAFETY: the caller's promise.
    unsafe {
        if tls::blocked() != 0 {
            return execvpe(file, arguments, environ);
        }
        with_present(arguments, environ, || real!(c"execvp" as Execvp)(file, arguments))
    }
}

/// execvpe(3).
///
/// # Safety
///
/// As for execvpe(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    type Execvpe = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
    let real = real!(c"execvpe" as Execvpe);
    // SAFETY: the caller's promise.
    unsafe {
        with_mask(file, arguments, environment, |file, arguments, environment| real(file, arguments, environment))
            .unwrap_or_else(|| with_present(arguments, environment, || real(file, arguments, environment)))
    }
}

/// Makes a call with arrays of strings present, and again as long as it finds a page absent.
///
/// # Safety
///
/// As for [`each`], both.
unsafe fn with_present(arguments: Strings, environment: Strings, call: impl Fn() -> c_int) -> c_int {
    if !looking() {
        return call();
    }
    let mut result = -1;
    for _ in 0..TRIES {
        // SAFETY: the caller's promise.
        unsafe {
            strings(arguments as usize);
            strings(environment as usize);
        }
        result = call();
        if errno() != libc::EFAULT {
            break;
        }
    }
    result
}

// The functions with a list of arguments: all that it names is made present, then they go to the C library as they came.
macro_rules! list_family {
    ($($(#[$doc:meta])* $symbol:ident $next:ident = $name:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $symbol() {
                std::arch::naked_asm!(
                    ".cfi_startproc",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "push rdi",
                    "sub rsp, 8",
                    ".cfi_adjust_cfa_offset 56",
                    "lea rdi, [rsp + 16]",
                    "lea rsi, [rsp + 64]",
                    "call {touch}",
                    "call {next}",
                    "add rsp, 8",
                    "pop rdi",
                    "pop rsi",
                    "pop rdx",
                    "pop rcx",
                    "pop r8",
                    "pop r9",
                    ".cfi_adjust_cfa_offset -56",
                    "mov r11, rax",
                    "xor eax, eax",
                    "jmp r11",
                    ".cfi_endproc",
                    touch = sym touch_list,
                    next = sym $next,
                );
            }

            extern "C" fn $next() -> usize {
                type List = unsafe extern "C" fn(*const c_char, *const c_char, ...) -> c_int;
                real!($name as List) as usize
            }
        )*
    };
}

list_family! {
    /// execl(3).
    execl next_execl = c"execl";
    /// execlp(3).
    execlp next_execlp = c"execlp";
    /// execle(3).
    execle next_execle = c"execle";
}

/// Makes present the strings of a list of which the first five are in one place and the rest in another, and the environment.
unsafe extern "C" fn touch_list(first: *const usize, rest: *const usize) {
    if !looking() {
        return;
    }
    for n in 0.. {
        // SAFETY: a list of arguments, which ends with a null.
        let string = unsafe { if n < 5 { *first.add(n) } else { *rest.add(n - 5) } };
        if string == 0 {
            break;
        }
        // SAFETY: an array of one string, which the list promises to be one.
        unsafe { strings([string, 0].as_ptr() as usize) };
    }
    // SAFETY: the environment; of execle's own nothing is known here but that it was used lately.
    unsafe { strings(environ as usize) };
}

/// Makes a call that executes a program, with copies of what it gets and with those signals blocked that the program believes
/// blocked: no managed memory may be touched meanwhile. None, and no call, if it believes none of ours blocked.
///
/// # Safety
///
/// A string, and as for [`each`].
unsafe fn with_mask(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    call: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
) -> Option<c_int> {
    let blocked = tls::blocked();
    if !looking() || blocked == 0 {
        return None;
    }
    let len = Copies::measure(path) + Copies::measure_all(arguments) + Copies::measure_all(environment);
    let mut copies = Copies::new(len)?;
    let (path, arguments, environment) = (copies.string(path), copies.strings(arguments), copies.strings(environment));
    Some(with_plain_environment(|| {
        let before = change_mask(libc::SIG_BLOCK, blocked);
        let result = call(path, arguments, environment);
        change_mask(libc::SIG_SETMASK, before);
        result
    }))
}
