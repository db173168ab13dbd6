//! Which numbers are descriptors of the engine's: a bit for each.

use rustix::fd::RawFd;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits that are kept.
pub const BITS: usize = 1 << 14;

/// The bits.
pub static ENGINES: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];

/// Numbers that `ENGINES` has bits for.
pub const NUMBERS: Range<u32> = 0..BITS as u32;

/// Takes note whether a number is the engine's.
pub fn note(fd: RawFd, engines: bool) {
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| ENGINES.get(fd / 64)) {
        let bit = 1 << (fd % 64);
        if engines {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
    }
}

/// Whether a number is a descriptor of the engine's that was set apart. A look at one word.
#[inline(always)]
pub fn is_engines(fd: RawFd) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| ENGINES.get(fd / 64));
    word.is_some_and(|word| word.load(Relaxed) & 1 << (fd % 64) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_noted_and_forgotten() {
        // Nothing opens so many here.
        let fd = BITS as i32 - 3;
        note(fd, true);
        assert!(is_engines(fd) && !is_engines(fd + 1) && !is_engines(-1) && !is_engines(i32::MAX));
        note(fd, false);
        assert!(!is_engines(fd));
        note(i32::MAX, true);
        note(-1, true);
        assert!(!is_engines(i32::MAX) && !is_engines(-1));
    }
}
