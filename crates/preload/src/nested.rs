//! Calls that follow pointers behind their arguments, in signal delivery.
//!
//! The filter sees arguments only, and what a request of ioctl(2) or an option of a socket points
//! to is nowhere written down in one place. So a call of these kinds that fails with EFAULT has
//! what its arguments point to searched for addresses of the window, which are made present, and is
//! made again ([`crate::memory::touch::follow`]). Where an argument itself is in the window the
//! handler of SIGSYS does the same.
//!
//! Not covered: such structures outside of managed memory in calls that bypass the C library.

use crate::memory::touch::{Tries, follow, follows};
use crate::memory::vectors::looking;
use crate::sys::{self, real};
use crate::userfaultfd;
use overspill_os::Errno;
use std::ffi::{c_int, c_ulong};

/// Makes a call, and again as long as it fails with EFAULT and there is something to be made
/// present.
pub fn until_present(number: i64, arguments: [usize; 6], call: impl Fn() -> isize) -> isize {
    if number == libc::SYS_ioctl
        && let Some(result) = userfaultfd::request(arguments[0], arguments[1], arguments[2])
    {
        return sys::to_c(result);
    }
    let mut result = call();
    if !follows(number) {
        return result;
    }
    let mut tries = Tries::default();
    while !tries.are_over() {
        if result != -1 || sys::errno() != libc::EFAULT || !looking() {
            break;
        }
        if !tries.touch(|pages| follow(number, &arguments, pages)) {
            sys::set_errno(Errno::FAULT);
            break;
        }
        result = call();
    }
    result
}

/// ioctl(2). Variadic in C: the one argument is passed on.
///
/// # Safety
///
/// As for ioctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    type Ioctl = unsafe extern "C" fn(c_int, c_ulong, usize) -> c_int;
    let real = real!(c"ioctl" as Ioctl);
    let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
    // SAFETY: the caller's promise.
    until_present(libc::SYS_ioctl, arguments, || unsafe { real(fd, request, argument) } as isize)
        as c_int
}

/// setsockopt(2).
///
/// # Safety
///
/// As for setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: usize,
    len: u32,
) -> c_int {
    type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, usize, u32) -> c_int;
    let real = real!(c"setsockopt" as SetOption);
    let arguments = [fd as usize, level as usize, name as usize, value, len as usize, 0];
    // SAFETY: the caller's promise.
    until_present(libc::SYS_setsockopt, arguments, || unsafe { real(fd, level, name, value, len) }
        as isize) as c_int
}

/// getsockopt(2).
///
/// # Safety
///
/// As for getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: usize,
    len: usize,
) -> c_int {
    type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, usize, usize) -> c_int;
    let real = real!(c"getsockopt" as GetOption);
    let arguments = [fd as usize, level as usize, name as usize, value, len, 0];
    // SAFETY: the caller's promise.
    until_present(libc::SYS_getsockopt, arguments, || unsafe { real(fd, level, name, value, len) }
        as isize) as c_int
}
