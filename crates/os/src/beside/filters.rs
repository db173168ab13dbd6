//! Filters of system calls that the program puts on itself, its sibling has too: it shares the
//! program's memory, and who has got hold of that could have a process without a filter do what the
//! filter keeps the program from.
//!
//! 1. From the moment at which the program is about to have a filter no thread of the engine begins
//!    with what the filter's exceptions do not allow ([`crate::confined`]).
//! 2. Once the program has it, each thread of the sibling puts it on itself, when it comes by
//!    ([`come_by`]): it is in the midst of nothing then.
//! 3. Who sleeps is woken, by a signal that does nothing ([`super::credentials`]). In a child of a
//!    sandbox, whose filter knows no such signal, it wakes by itself.
//! 4. A thread that another makes has its filters.
//!
//! Locks: `CHANGING`, which the thread holds that has the sibling put a filter on.

use super::request::Request;
use super::stack::{NOT_BEGUN, for_each_thread, own};
use super::{calls, credentials, watch};
use crate::lock::RawLock;
use crate::report::report;
use crate::units::Errno;
use crate::{confined, process};
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Release};
use syscalls::Sysno;

/// How often the threads are looked at, for a millisecond each, before they are left as they are.
const LOOKS: u32 = 5000;
const LOOK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

static CHANGING: RawLock = RawLock::new();
static CALL: Request = Request::new();
/// Whether threads are asked to come by.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Counts threads that have made a call, for the program to sleep on.
static MADE: AtomicU32 = AtomicU32::new(0);

/// In the child of a fork: another thread of its parent may have been putting one on.
pub(super) fn reset_in_child() {
    WANTED.store(false, Release);
    CHANGING.unlock();
}

/// The last filter.
pub(super) fn last() -> u32 {
    CALL.last()
}

/// On a thread of the engine, which is in the midst of nothing: puts a new filter of the program's
/// on it. A look at one word, mostly.
#[inline]
pub fn come_by() {
    if WANTED.load(Acquire) {
        follow();
    }
}

#[cold]
fn follow() {
    let Some(stack) = process::is_here().then(own).flatten() else { return };
    let Some(due) = CALL.due(stack.filter.load(Acquire)) else { return };
    // SAFETY: what the arguments point to is kept until all threads have made the call.
    if let Err(errno) = unsafe { due.make() } {
        report(format_args!("a thread of the engine is not under the program's filter ({errno})"));
    }
    stack.filter.store(due.change, Release);
    MADE.fetch_add(1, Release);
    let _ = futex::wake(&MADE, futex::Flags::empty(), 1);
}

/// Has each thread of the sibling make a call of seccomp(2) or prctl(2), which the program has
/// made; whether all have. Where not, what the arguments point to is needed for ever.
#[must_use]
pub fn have_follow(call: Sysno, arguments: [usize; 5]) -> bool {
    let Ok(sibling) = process::sibling() else { return true };
    // Not in a child of a vfork.
    if rustix::process::getpid() != process::program() {
        return true;
    }
    CHANGING.with(|| {
        let change = CALL.set(call, arguments);
        WANTED.store(true, Release);
        let is_unheard = confined::is_child();
        for look in 0..LOOKS {
            let made = MADE.load(Acquire);
            let mut left = false;
            for_each_thread(|stack, number| {
                if stack.filter.load(Acquire) != change {
                    left |= number == NOT_BEGUN
                        || is_unheard
                        || credentials::ask(sibling, number, None, look) != Err(Errno::SRCH);
                }
            });
            if !left {
                WANTED.store(false, Release);
                return true;
            }
            calls::nudge();
            watch::nudge();
            let _ = futex::wait(&MADE, futex::Flags::empty(), made, Some(&LOOK));
        }
        report("the engine's process is not under the program's filter");
        false
    })
}
