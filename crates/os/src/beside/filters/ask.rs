//! What the program has the sibling do about a filter: all threads are woken, and waited for.

use super::{CALL, WANTED};
use crate::beside::{calls, credentials, watch};
use crate::report::report;
use crate::{confined, process};
use std::sync::atomic::Ordering::Release;
use syscalls::Sysno;

/// How often the threads are looked at before they are left as they are.
const LOOKS: u32 = 5000;

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
