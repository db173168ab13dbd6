//! Memory below 2 GiB (MAP_32BIT), which runtimes ask for whose pointers or jumps are short: Chez
//! Scheme and Racket for all that they have, Mono for its code.
//!
//! The window lies elsewhere, so such mappings are managed in a range of their own. It is reserved
//! when a process wakes that has asked for one: others have no use for it, and it costs a second
//! filter ([`crate::delivery`]). Where a process asks for its first when it is awake already, none
//! of them is managed; nor is what does not fit.

use crate::sys;
use overspill::config::Config;
use overspill_os::seccomp;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use syscalls::Sysno;

/// What is reserved: as much as there is of these. The kernel has 1 GiB for such mappings, some of
/// which the program may have, or come to have at addresses that it says.
const SIZES: [usize; 4] = [768 << 20, 512 << 20, 256 << 20, 128 << 20];

static WANTED: AtomicBool = AtomicBool::new(false);

/// The program, which has no engine yet, asks for such a mapping.
pub fn ask() {
    WANTED.store(true, Relaxed);
}

/// Reserves a range for the engine that is about to begin, if it was asked for.
pub fn reserve(config: &Config) -> Option<Range<usize>> {
    let most = config.window_bytes().0 as usize / 4;
    let sizes = SIZES.iter().filter(|size| WANTED.load(Relaxed) && **size <= most);
    let reserved = sizes.filter_map(|size| map(*size)).next()?;
    // Whole units, so that no call is stopped for what lies beside it.
    let inner = reserved.start.next_multiple_of(seccomp::UNIT)..reserved.end & !(seccomp::UNIT - 1);
    release(reserved.start..inner.start);
    release(inner.end..reserved.end);
    Some(inner)
}

fn map(size: usize) -> Option<Range<usize>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_32BIT;
    // SAFETY: a new mapping replaces nothing.
    let start = unsafe { sys::mmap(0, size, libc::PROT_NONE, flags, -1, 0) }.ok()?;
    Some(start..start + size)
}

/// Gives up what was reserved.
pub fn release(range: Range<usize>) {
    if !range.is_empty() {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { sys::on_range(Sysno::munmap, range.start, range.len(), 0) };
    }
}
