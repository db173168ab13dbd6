//! What others above do about calls that come here: changes of mappings, and other arguments.

use overspill_os::Errno;
use std::sync::OnceLock;

/// Does a call about mappings, if it is one.
type Mapper = unsafe fn(i64, [usize; 6]) -> Option<Result<usize, Errno>>;

static MAPPER: OnceLock<Mapper> = OnceLock::new();

/// Calls that change mappings of the window come to `mapper`, with their number and arguments.
pub fn map_by(mapper: Mapper) {
    let _ = MAPPER.set(mapper);
}

/// Does a call about mappings, if it is one.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn change_mappings(
    number: usize,
    arguments: [usize; 6],
) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's promise.
    MAPPER.get().and_then(|mapper| unsafe { mapper(number as i64, arguments) })
}

/// Other arguments for a call that executes or opens a program.
type Leader = unsafe fn(i64, [usize; 6]) -> Option<[usize; 6]>;

static LEADER: OnceLock<Leader> = OnceLock::new();

/// Calls get the arguments that `leader` has for them.
pub fn lead_by(leader: Leader) {
    let _ = LEADER.set(leader);
}

/// Other arguments for a call, where it has to have some.
///
/// # Safety
///
/// As for the system call.
pub unsafe fn led(number: usize, arguments: [usize; 6]) -> Option<[usize; 6]> {
    // SAFETY: the caller's promise.
    LEADER.get().and_then(|leader| unsafe { leader(number as i64, arguments) })
}
