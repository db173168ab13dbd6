//! Descriptors: the engine's survive a program that closes what it did not open.
//!
//! They are in the program's table, at numbers out of its way ([`overspill_os::descriptors`]): to
//! the program they look closed, and directories that list its descriptors do not show them.
//!
//! Calls by number through syscall(2) come here too. Inline system calls are not guarded, nor are
//! listings by scandir(3) or the like.

use crate::sys::{check, real, to_c_int};
use crate::{calls, pool};
use overspill_os::descriptors::{self, is_engines};
use overspill_os::{Errno, tls};
use std::ffi::{CStr, c_int, c_uint};
use std::ops::RangeInclusive;
use syscalls::{Sysno, raw_syscall};

/// Whether the program names a descriptor of the engine.
#[inline(always)]
pub fn is_hidden(fd: c_int) -> bool {
    is_engines(fd) && tls::is_program()
}

/// Whether a number is above the program's limit of descriptors, where the kernel says EBADF.
fn is_above_limit(fd: c_int) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is written during the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    fd as u64 >= limit.rlim_cur
}

/// What dup2(2) over a descriptor of the engine fails with: below the limit, where its numbers are
/// only if that is high or cannot be raised, as if the number were about to be opened by another
/// thread.
fn refused(to: c_int) -> Errno {
    if is_above_limit(to) { Errno::BADF } else { Errno::BUSY }
}

/// close(2).
///
/// # Safety
///
/// As for close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_hidden(fd) {
        return to_c_int(Err(Errno::BADF));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"close" as unsafe extern "C" fn(c_int) -> c_int)(fd) }
}

/// dup(2).
///
/// # Safety
///
/// As for dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if is_hidden(fd) {
        return to_c_int(Err(Errno::BADF));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"dup" as unsafe extern "C" fn(c_int) -> c_int)(fd) }
}

macro_rules! fstat_family {
    ($($(#[$doc:meta])* $symbol:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for fstat(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(fd: c_int, stat: *mut libc::stat) -> c_int {
                type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
                if is_hidden(fd) {
                    return to_c_int(Err(Errno::BADF));
                }
                // SAFETY: 1. a function by that name has this type; 2. the caller's promise.
                unsafe {
                    std::mem::transmute::<unsafe extern "C" fn(), Fstat>(calls::$symbol)(fd, stat)
                }
            }
        )*
    };
}

fstat_family! {
    /// fstat(2): many a program asks so which descriptors are open.
    fstat;
    /// fstat64(3), which is the same on x86-64.
    fstat64;
}

/// dup2(2).
///
/// # Safety
///
/// As for dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_hidden(from) {
        return to_c_int(Err(Errno::BADF));
    }
    if is_hidden(to) {
        return to_c_int(Err(refused(to)));
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
    if is_hidden(from) {
        return to_c_int(Err(Errno::BADF));
    }
    if is_hidden(to) {
        return to_c_int(Err(refused(to)));
    }
    // SAFETY: the caller's promise.
    unsafe { real!(c"dup3" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int)(from, to, flags) }
}

/// The parts of a range of descriptors between those that `skip` names. Beyond `table_end` there
/// are none to skip.
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

fn close_range_kept(first: u32, last: u32, flags: c_uint) -> Result<(), Errno> {
    if first > last {
        return Err(Errno::INVAL);
    }
    around(
        first..=last,
        descriptors::NUMBERS.end,
        |fd| is_engines(fd as i32),
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
    if pool::exists() && tls::is_program() {
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
    if !pool::exists() || !tls::is_program() {
        // SAFETY: the caller's promise.
        return unsafe { real!(c"closefrom" as unsafe extern "C" fn(c_int))(first) };
    }
    if close_range_kept(first as u32, u32::MAX, 0).is_err() {
        // Before Linux 5.9: one by one.
        for fd in (first..descriptors::NUMBERS.end as i32).filter(|fd| !is_engines(*fd)) {
            // SAFETY: the program gives these descriptors up.
            unsafe { raw_syscall!(Sysno::close, fd) };
        }
    }
}

/// Whether an entry of a directory stands for a descriptor of the engine's, in `/proc/self/fd` or
/// one like it. A look at the name decides for nearly all.
fn is_hidden_entry(dir: *mut libc::DIR, entry: &libc::dirent64) -> bool {
    // In fd they are links, in fdinfo files; processes are directories.
    if !pool::exists() || !matches!(entry.d_type, libc::DT_LNK | libc::DT_REG) {
        return false;
    }
    // SAFETY: the name ends with a null.
    let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes();
    let Some(fd) = number(name) else { return false };
    is_hidden(fd) && lists_own_descriptors(dir)
}

fn number(name: &[u8]) -> Option<i32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Whether a directory is one of the process's own descriptors: `/proc/PID/fd`, also of one of its
/// threads, or `fdinfo`.
fn lists_own_descriptors(dir: *mut libc::DIR) -> bool {
    let mut path = [0u8; 64];
    // SAFETY: 1. the program's open directory; 2. the path is written during the call, and is long
    // enough for those that count.
    let len = unsafe {
        let link = format!("/proc/self/fd/{}\0", libc::dirfd(dir));
        check(raw_syscall!(Sysno::readlink, link.as_ptr(), path.as_mut_ptr(), path.len()))
    };
    let Ok(len) = len else { return false };
    is_own_list(&path[..len], std::process::id())
}

fn is_own_list(path: &[u8], pid: u32) -> bool {
    let mut parts = path.split(|byte| *byte == b'/').skip(1);
    let own = parts.next() == Some(b"proc") && parts.next().and_then(number) == Some(pid as i32);
    let mut last = parts.next();
    if last == Some(b"task") {
        parts.next();
        last = parts.next();
    }
    own && matches!(last, Some(b"fd" | b"fdinfo")) && parts.next().is_none()
}

/// The functions that return an entry.
macro_rules! readdir_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for readdir(3).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(dir: *mut libc::DIR) -> *mut libc::dirent64 {
                type Readdir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;
                loop {
                    // SAFETY: the caller's promise; an entry is valid until the next call.
                    unsafe {
                        let entry = real!($name as Readdir)(dir);
                        if entry.is_null() || !is_hidden_entry(dir, &*entry) {
                            return entry;
                        }
                    }
                }
            }
        )*
    };
}

readdir_family! {
    /// readdir(3).
    c"readdir" readdir;
    /// readdir64(3), which is the same on x86-64.
    c"readdir64" readdir64;
}

/// The functions that fill an entry in.
macro_rules! readdir_r_family {
    ($($(#[$doc:meta])* $name:literal $symbol:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for readdir_r(3).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol(
                dir: *mut libc::DIR,
                entry: *mut libc::dirent64,
                result: *mut *mut libc::dirent64,
            ) -> c_int {
                type Readdir = unsafe extern "C" fn(
                    *mut libc::DIR,
                    *mut libc::dirent64,
                    *mut *mut libc::dirent64,
                ) -> c_int;
                loop {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let error = real!($name as Readdir)(dir, entry, result);
                        if error != 0 || (*result).is_null() || !is_hidden_entry(dir, &**result) {
                            return error;
                        }
                    }
                }
            }
        )*
    };
}

readdir_r_family! {
    /// readdir_r(3).
    c"readdir_r" readdir_r;
    /// readdir64_r(3), which is the same on x86-64.
    c"readdir64_r" readdir64_r;
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

    #[test]
    fn lists_of_own_descriptors_are_told_by_their_path() {
        for path in
            ["/proc/17/fd", "/proc/17/fdinfo", "/proc/17/task/19/fd", "/proc/17/task/17/fdinfo"]
        {
            assert!(is_own_list(path.as_bytes(), 17), "{path}");
        }
        for path in [
            "/proc/18/fd",
            "/proc/17",
            "/proc/17/task",
            "/proc/17/fd/3",
            "/tmp/17/fd",
            "/proc/self/fd",
            "",
            "/",
        ] {
            assert!(!is_own_list(path.as_bytes(), 17), "{path}");
        }
    }
}
