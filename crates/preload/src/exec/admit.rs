//! Which programs a job may execute: in a strict one (`overspill run --strict`) none that this
//! library does not get into.
//!
//! What is refused fails with EPERM, as where a policy of the system refuses it: whoever executes
//! it learns of it, and nothing runs without a budget. (EACCES would have execvp look elsewhere.)
//!
//! Not seen: what is executed by a system call that bypasses the C library, or by a program in a
//! sandbox of its own, which opens nothing. `overspill run` counts the memory of such programs.

use super::file::Executed;
use crate::sys::set_errno;
use overspill_os::executable::out_of_reach;
use overspill_os::{Errno, confined, thread};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static STRICT: AtomicBool = AtomicBool::new(false);

/// The job is strict. Called by the constructor.
pub fn be_strict() {
    STRICT.store(true, Relaxed);
}

/// Whether the execution of a file is refused: it is said then, and errno is EPERM.
pub fn refuses(file: Executed) -> bool {
    if !STRICT.load(Relaxed) || confined::is_confined() {
        return false;
    }
    let path = file.path();
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
