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

use super::request::Request;
use super::stack::own;
use super::{calls, credentials, watch};
use crate::report::report;
use crate::{confined, process};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use syscalls::Sysno;

/// How often the threads are looked at before they are left as they are.
const LOOKS: u32 = 5000;

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

/// Has each thread of the sibling make a call of seccomp(2) or prctl(2), which the program has
/// made; whether all have. Where not, what the arguments point to is needed for ever.
#[must_use]
pub fn have_follow(call: Sysno, arguments: [usize; 5]) -> bool {
    let Ok(sibling) = process::sibling() else { return true };
    // Not in a child of a vfork.
    if rustix::process::getpid() != process::program() {
        return true;
    }
    let is_unheard = confined::is_child();
    let ask = |_, number, look| {
        calls::nudge();
        watch::nudge();
        if is_unheard { Ok(()) } else { credentials::ask(sibling, number, look) }
    };
    WANTED.fetch_add(1, Release);
    let all = CALL.have_made((call, arguments), LOOKS, |stack| &stack.filter, ask);
    if all {
        WANTED.fetch_sub(1, Release);
    } else {
        // Who comes by later puts it on then.
        report("the engine's process is not under the program's filter");
    }
    all
}
