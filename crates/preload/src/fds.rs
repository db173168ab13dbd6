//! Descriptors: the engine's survive a program that closes what it did not open.
//!
//! In thread delivery the engine's descriptors are in a table of their own, and these functions only pass on. In
//! signal delivery some are in the program's table: to the program they look closed.
//!
//! Calls made by number through syscall(2) are not guarded.

use crate::pool;
use crate::sys::{check, real, to_c_int};
use overspill_os::{Errno, tls};
use std::ffi::{c_int, c_uint};
use std::ops::RangeInclusive;
use syscalls::{Sysno, raw_syscall};

/// Whether the program names a descriptor of the engine.
#[inline(always)]
fn is_engines(fd: c_int) -> bool {
    pool::signal_delivery() && tls::is_program() && pool::owns_fd(fd)
}

/// close(2).
///
/// # Safety
///
/// As for close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_engines(fd) {
        return to_c_int(Err(Errno::BADF));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"close" as unsafe extern "C" fn(c_int) -> c_int)(fd) }
}

/// dup2(2).
///
/// # Safety
///
/// As for dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_engines(from) {
        return to_c_int(Err(Errno::BADF));
    }
    if is_engines(to) {
        return to_c_int(Err(Errno::BUSY));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"dup2" as unsafe extern "C" fn(c_int, c_int) -> c_int)(from, to) }
}

/// dup3(2).
///
/// # Safety
///
/// As for dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_engines(from) {
        return to_c_int(Err(Errno::BADF));
    }
    if is_engines(to) {
        return to_c_int(Err(Errno::BUSY));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"dup3" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int)(from, to, flags) }
}

/// The parts of a range of descriptors between those that `skip` names. Beyond `table_end` there are none to skip.
fn around(
    range: RangeInclusive<u32>,
    table_end: u32,
    skip: impl Fn(u32) -> bool,
    mut part: impl FnMut(u32, u32) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (first, last) = range.into_inner();
    let mut start = first;
    for fd in first..=last.min(table_end) {
        if skip(fd) {
            if fd > start {
                part(start, fd - 1)?;
            }
            start = fd + 1;
        }
    }
    if start <= last { part(start, last) } else { Ok(()) }
}

/// One above the highest descriptor that the process may have.
fn table_end() -> u32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is written during the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    // The engine's descriptors were opened at the start, under a limit of at most this.
    const MOST: u64 = 1 << 20;
    limit.rlim_max.min(MOST) as u32
}

fn close_range_kept(first: u32, last: u32, flags: c_uint) -> Result<(), Errno> {
    if first > last {
        return Err(Errno::INVAL);
    }
    around(
        first..=last,
        table_end(),
        |fd| pool::owns_fd(fd as i32),
        |first, last| {
            // SAFETY: the program gives these descriptors up.
            check(unsafe { raw_syscall!(Sysno::close_range, first, last, flags) }).map(drop)
        },
    )
}

/// close_range(2).
///
/// # Safety
///
/// As for close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if pool::signal_delivery() && tls::is_program() {
        return to_c_int(close_range_kept(first, last, flags as c_uint).map(|()| 0));
    }
    // SAFETY: the caller's promise; the C library's function does no more than this.
    to_c_int(check(unsafe { raw_syscall!(Sysno::close_range, first, last, flags) }))
}

/// closefrom(3).
///
/// # Safety
///
/// As for closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if !pool::signal_delivery() || !tls::is_program() {
        // SAFETY: the caller's promise.
        return unsafe { real!(c"closefrom" as unsafe extern "C" fn(c_int))(first) };
    }
    if close_range_kept(first as u32, u32::MAX, 0).is_err() {
        // Before Linux 5.9: one by one.
        for fd in (first..table_end() as i32).filter(|fd| !pool::owns_fd(*fd)) {
            // SAFETY: the program gives these descriptors up.
            unsafe { raw_syscall!(Sysno::close, fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_around_what_is_skipped() {
        let parts = |range, skip: &[u32]| {
            let mut parts = Vec::new();
            let push = |first, last| {
                parts.push((first, last));
                Ok(())
            };
            around(range, 100, |fd| skip.contains(&fd), push).unwrap();
            parts
        };
        assert_eq!(parts(3..=u32::MAX, &[]), [(3, u32::MAX)]);
        assert_eq!(parts(3..=u32::MAX, &[3, 4, 9]), [(5, 8), (10, u32::MAX)]);
        assert_eq!(parts(3..=9, &[2, 9, 10]), [(3, 8)]);
        assert_eq!(parts(9..=9, &[9]), []);
    }
}
