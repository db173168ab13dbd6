//! What is given back when a process has come to rest, beside what the engine itself has.

use crate::beside;
use std::sync::OnceLock;

static CALL: OnceLock<fn()> = OnceLock::new();

/// Has `call` made by a thread of the engine whenever the process has come to rest.
pub fn when_at_rest(call: fn()) {
    let _ = CALL.set(call);
}

/// The process has come to rest: gives back what the calling thread, one of the engine's, does not
/// use of its stack, and what [`when_at_rest`] says.
pub fn come_to_rest() {
    if let Some(call) = CALL.get() {
        call();
    }
    beside::forget_stack();
}
