//! Which process the calling thread is in, of the two that share this memory: the program, or its
//! sibling ([`crate::beside`]), where there is one. No locks.

use crate::tls;
use crate::units::Errno;
use rustix::process::{Pid, getpid};
use std::sync::atomic::{
    AtomicBool, AtomicI32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Whether the engine's threads live beside the program.
static USED: AtomicBool = AtomicBool::new(false);
/// The program whose sibling this address space has; 0 where the engine's threads are threads of
/// the process itself.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// The sibling; 0 for none.
static SIBLING: AtomicI32 = AtomicI32::new(0);

/// Whether the engine's threads live beside the program.
pub fn is_used() -> bool {
    USED.load(Acquire)
}

/// Whether the calling thread is one of the sibling's: it has a table of descriptors of its own.
pub fn is_here() -> bool {
    is_used() && tls::is_engine_thread()
}

/// The process that the engine works for: the program, also where its sibling asks.
pub fn program() -> Pid {
    Pid::from_raw(PROGRAM.load(Relaxed)).unwrap_or_else(getpid)
}

/// The sibling's number; ESRCH while there is none.
pub fn sibling() -> Result<Pid, Errno> {
    Pid::from_raw(SIBLING.load(Relaxed)).ok_or(Errno::SRCH)
}

/// From now on the engine's threads live beside the program.
pub(crate) fn set_used() {
    USED.store(true, Release);
}

/// On a thread of the program: this process is it.
pub(crate) fn set_program() {
    PROGRAM.store(getpid().as_raw_nonzero().get(), Relaxed);
}

/// The sibling has begun.
pub(crate) fn set_sibling(number: i32) {
    SIBLING.store(number, Release);
}

/// In the child of a fork: the sibling is its parent's.
pub(crate) fn reset_in_child() {
    SIBLING.store(0, Relaxed);
    if is_used() {
        set_program();
    }
}
