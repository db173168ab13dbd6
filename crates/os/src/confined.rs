//! Whether a filter of the program's holds for the calling thread.
//!
//! The engine has exceptions from such a filter ([`crate::seccomp::exceptions`]), but not for what
//! opens, removes, connects, executes, or touches another process: whoever has got hold of the
//! program could make such a call from the engine's code. So a confined thread of the engine does
//! without it, and asks before ([`allows_paths`]): the filter may kill for what it does not allow.
//! The sibling is under the filter too ([`crate::beside::filters`]). No locks.

use crate::process::program;
use crate::units::Errno;
use rustix::process::getpid;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The process that put the first filter on itself, which its children have too; 0 for none.
struct First(AtomicI32);

static FIRST: First = First(AtomicI32::new(0));

impl First {
    fn enter<R>(&self, call: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let own = getpid().as_raw_nonzero().get();
        let is_first = self.0.compare_exchange(0, own, Relaxed, Relaxed).is_ok();
        call().inspect_err(|_| {
            if is_first {
                self.0.store(0, Relaxed);
            }
        })
    }

    fn is_there(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Whether `process` was forked by one that had a filter.
    fn is_before(&self, process: i32) -> bool {
        ![0, process].contains(&self.0.load(Relaxed))
    }
}

fn own_program() -> i32 {
    program().as_raw_nonzero().get()
}

/// The process puts a filter on itself by `call`, or fails to. What the child of a vfork puts on
/// itself is not for its parent, whose memory it has.
pub fn enter<R>(call: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    if getpid() == program() { FIRST.enter(call) } else { call() }
}

/// Whether the process has a filter of the program's. Threads that the filter was not put on are
/// taken for confined as well.
pub fn is_confined() -> bool {
    FIRST.is_there()
}

/// Whether the process was forked by one that had a filter: then the filter's exceptions do not
/// know its number.
pub fn is_child() -> bool {
    FIRST.is_there() && FIRST.is_before(own_program())
}

/// Fails on a confined thread, which is not to open, look for or remove anything.
pub fn allows_paths() -> Result<(), Errno> {
    if is_confined() { Err(Errno::PERM) } else { Ok(()) }
}

/// Has libraries make the calls now that they make once, when they are first used: the filter may
/// kill for them. Before the process puts its first filter on itself.
pub fn prepare() {
    // Where the kernel has put the vDSO (PR_GET_AUXV), and its functions.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let _ = rustix::thread::sched_getcpu();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_filter_and_who_has_not() {
        let first = First(AtomicI32::new(0));
        let own = getpid().as_raw_nonzero().get();
        assert!(!first.is_there() && !first.is_before(own));
        assert_eq!(first.enter(|| Err::<(), _>(Errno::INVAL)), Err(Errno::INVAL));
        assert!(!first.is_there());
        assert_eq!(first.enter(|| Ok(first.is_there())), Ok(true));
        // A further filter that cannot be put on takes nothing away.
        assert_eq!(first.enter(|| Err::<(), _>(Errno::INVAL)), Err(Errno::INVAL));
        assert!(first.is_there() && !first.is_before(own));
        // A child that was forked afterwards.
        assert!(first.is_before(own + 1));
    }

    #[test]
    fn without_a_filter_everything_is_opened() {
        assert_eq!(allows_paths(), Ok(()));
    }
}
