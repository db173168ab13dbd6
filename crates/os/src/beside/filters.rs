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
//! Locks: that of its request.

mod ask;

pub use self::ask::have_follow;

use super::request::Request;
use super::stack::own;
use crate::process;
use crate::report::report;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};

static CALL: Request = Request::new();
/// How many filters threads are asked to come by for.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// In the child of a fork.
pub(super) fn reset_in_child() {
    WANTED.store(0, Release);
    CALL.reset_in_child();
}

/// The last filter.
pub(super) fn last() -> u32 {
    CALL.last()
}

/// On a thread of the engine, which is in the midst of nothing: puts a new filter of the program's
/// on it. A look at one word, mostly.
#[inline]
pub fn come_by() {
    if WANTED.load(Acquire) != 0 {
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
    CALL.note_made(&stack.filter, due.change);
}
