//! Which programs a job may execute: in a strict one (`overspill run --strict`) none that this
//! library does not get into.
//!
//! What is refused fails with EPERM, as where a policy of the system refuses it: whoever executes
//! it learns of it, and nothing runs without a budget. (EACCES would have execvp look elsewhere.)
//!
//! Not seen: what is executed by a system call that bypasses the C library, or by a program in a
//! sandbox of its own, which opens nothing. `overspill run` counts the memory of such programs.

use crate::memory::{self, strings::each, strings::environ};
use crate::sys::set_errno;
use overspill_os::executable::out_of_reach;
use overspill_os::{Errno, confined, thread};
use rustix::fs::{Access, access};
use std::ffi::{OsString, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static STRICT: AtomicBool = AtomicBool::new(false);
/// Longest path that the kernel takes, and longest variable that is looked at.
const PATH_MAX: usize = 4096;
const VARIABLE_MAX: usize = 64 << 10;
/// What execvp(3) searches where PATH is not set.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// The job is strict. Called by the constructor.
pub fn be_strict() {
    STRICT.store(true, Relaxed);
}

/// Whether the execution of a program is refused: it is said then, and errno is EPERM. The file is
/// found from a directory, or where programs are looked for; a null is the directory itself, which
/// is a descriptor of the program.
pub fn refuses(dir: c_int, file: *const c_char, search: bool) -> bool {
    if !STRICT.load(Relaxed) || confined::is_confined() {
        return false;
    }
    let path = find(dir, file, search);
    let reason = path.as_ref().and_then(|path| Some((path, out_of_reach(path)?)));
    if let Some((path, reason)) = &reason {
        let path = path.display();
        thread::report(format_args!(
            "'{path}' {reason} and cannot be managed, so it is not executed: use a build that can \
             be preloaded, or leave --strict away"
        ));
        set_errno(Errno::PERM);
    }
    reason.is_some()
}

/// The path of the file; `None` where there is none, and the kernel is to say so.
fn find(dir: c_int, file: *const c_char, search: bool) -> Option<PathBuf> {
    let name = if file.is_null() { Vec::new() } else { string(file as usize, PATH_MAX)? };
    if search && !name.contains(&b'/') {
        return looked_for(&name);
    }
    let path = PathBuf::from(OsString::from_vec(name));
    if dir == libc::AT_FDCWD || path.is_absolute() {
        return Some(path);
    }
    let base = Path::new("/proc/self/fd").join(dir.to_string());
    Some(if path.as_os_str().is_empty() { base } else { base.join(path) })
}

/// The first program of this name in the directories of PATH.
fn looked_for(name: &[u8]) -> Option<PathBuf> {
    // SAFETY: the program's environment, of which a word is read.
    let variables = unsafe { environ };
    let is_path = |at: usize| memory::read::<[u8; 5]>(at).is_some_and(|head| &head == b"PATH=");
    let variable = each(variables).map(|at| at as usize).find(|at| is_path(*at));
    let list = variable.and_then(|at| string(at, VARIABLE_MAX));
    let list = list.as_deref().and_then(|list| list.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let places = list.split(|byte| *byte == b':').map(|place| {
        let place = if place.is_empty() { b"." } else { place };
        Path::new(std::ffi::OsStr::from_bytes(place)).join(std::ffi::OsStr::from_bytes(name))
    });
    places.into_iter().find(|path| access(path, Access::EXEC_OK).is_ok())
}

/// A string of the program's, without its end; `None` where it cannot be read.
fn string(at: usize, most: usize) -> Option<Vec<u8>> {
    let len = memory::string_len(at, most).ok()?;
    let mut bytes = vec![0; len];
    (memory::read_into(at, &mut bytes) == len).then(|| {
        bytes.pop();
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_as_they_are_executed() {
        let find = |dir, file: &std::ffi::CStr, search| {
            find(dir, file.as_ptr(), search).map(|path| path.to_str().unwrap().to_owned())
        };
        let here = libc::AT_FDCWD;
        assert_eq!(find(here, c"a/b", true).as_deref(), Some("a/b"));
        assert_eq!(find(here, c"b", false).as_deref(), Some("b"));
        assert_eq!(find(7, c"b", false).as_deref(), Some("/proc/self/fd/7/b"));
        assert_eq!(find(7, c"", false).as_deref(), Some("/proc/self/fd/7"));
        assert_eq!(find(7, c"/x", false).as_deref(), Some("/x"));
        assert!(find(here, c"sh", true).unwrap().ends_with("/sh"));
        assert_eq!(find(here, c"no-such-program", true), None);
    }
}
