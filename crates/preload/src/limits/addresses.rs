//! How much address space the program may still use under a limit of it (RLIMIT_AS).
//!
//! What the program maps in the window takes none of the kernel's account, where the whole window
//! counts from the beginning. So a request for managed memory is weighed here: what the program has
//! mapped there, and what it has mapped elsewhere, are to stay within its limit. Of the latter the
//! kernel knows the sum with the engine's; the engine's part is looked up once a process, by
//! address. Not weighed is what the program maps elsewhere itself (files, stacks of threads) until
//! the next such request.
//!
//! Two requests at once may both be admitted to the last bytes.

use super::told::{UNLIMITED, of_process};
use crate::pool;
use overspill_os::{Errno, confined};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether there is a limit, as far as is known: one that another process sets is not seen.
static LIMITED: AtomicBool = AtomicBool::new(false);
/// Managed bytes that the program has no use of: the rest of what was reserved for it.
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// Those that the heap had reserved before there was a limit.
static SPARED: AtomicU64 = AtomicU64::new(0);
/// Has the heap reserve less from now on.
static SPARING: OnceLock<fn()> = OnceLock::new();
/// What the heap has reserved at most beyond what it has handed out.
const HEAP_RESERVE: u64 = 1 << 30;

/// The process begins with a limit.
pub fn begin() {
    LIMITED.store(true, Relaxed);
}

/// What to call when a limit comes later.
pub fn spare_by(sparing: fn()) {
    let _ = SPARING.set(sparing);
}

/// Whether there is a limit.
pub fn are_limited() -> bool {
    LIMITED.load(Relaxed)
}

/// A limit is about to be set, perhaps the first one. The heap has reserved more than it has handed
/// out by then.
pub fn limit_comes() {
    if !pool::exists() || LIMITED.swap(true, Relaxed) {
        return;
    }
    SPARING.get().inspect(|sparing| sparing());
    let in_use = pool::held_bytes() + RESERVED.load(Relaxed);
    let unused = pool::managed_bytes().saturating_sub(in_use);
    SPARED.store(unused.min(HEAP_RESERVE), Relaxed);
}

/// So many bytes of managed memory are reserved for the program, and not in its use.
pub fn set_reserved(bytes: usize) {
    RESERVED.store(bytes as u64, Relaxed);
}

/// Whether the program may map so many bytes more.
///
/// # Errors
/// ENOMEM where that exceeds its limit.
pub fn admit(more: usize) -> Result<(), Errno> {
    if !LIMITED.load(Relaxed) || confined::is_confined() {
        return Ok(());
    }
    let [limit, _] = of_process(libc::RLIMIT_AS);
    // Where that cannot be seen, the kernel's limit is all there is.
    let Some(used) = used().filter(|_| limit != UNLIMITED) else { return Ok(()) };
    if used.saturating_add(more as u64) <= limit { Ok(()) } else { Err(Errno::NOMEM) }
}

/// Bytes that the program has mapped.
fn used() -> Option<u64> {
    let spared = RESERVED.load(Relaxed) + SPARED.load(Relaxed);
    let managed = pool::managed_bytes().saturating_sub(spared);
    Some(pool::bytes_beside()?.saturating_add(managed))
}
