//! What the program may access, remembered: a system call on managed memory asks for each buffer,
//! and the map of regions lies behind a lock that is taken with all signals blocked, which costs
//! more than most of these calls.
//!
//! [`Accesses`] holds the regions that were asked for last, each with its rights and the version of
//! the map that it was read from. Whoever locks the map to change it begins a new version first, so
//! nothing is told of what is gone. A look takes no lock and blocks no signal. Notes are made under
//! the lock of the map, one at a time.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// Regions remembered: each part of the window of [`PART_SHIFT`] has one of so many places.
const PLACES: usize = 64;
/// Log2 of the pages of such a part, 32 MiB: an allocator's segment.
const PART_SHIFT: usize = 13;

/// The rights, in the lowest bits of a tag; a tag of zero is no entry.
const READ: u64 = 1;
const WRITE: u64 = 2;
const RIGHTS_SHIFT: u32 = 2;

/// One region.
#[derive(Debug)]
struct AccessCell {
    /// Version and rights.
    tag: AtomicU64,
    /// First page, and in the upper half the page behind the last one.
    span: AtomicU64,
}

/// The regions that were asked for last.
#[derive(Debug)]
pub struct Accesses {
    version: AtomicU64,
    places: [AccessCell; PLACES],
}

impl Default for Accesses {
    fn default() -> Accesses {
        let places =
            [const { AccessCell { tag: AtomicU64::new(0), span: AtomicU64::new(0) } }; PLACES];
        Accesses { version: AtomicU64::new(1), places }
    }
}

impl Accesses {
    /// The map is about to change; its lock is held.
    pub fn change(&self) {
        self.version.fetch_add(1, Release);
    }

    fn place(&self, page: usize) -> &AccessCell {
        &self.places[(page >> PART_SHIFT) % PLACES]
    }

    /// Notes that the pages of a region may be read and written; the lock of the map is held. Pages
    /// with higher numbers than are noted here (16 TiB) are not.
    pub fn note(&self, asked: usize, pages: Range<usize>, readable: bool, writable: bool) {
        if pages.end > u32::MAX as usize {
            return;
        }
        let rights = if readable { READ } else { 0 } | if writable { WRITE } else { 0 };
        let place = self.place(asked);
        place.tag.store(0, Relaxed);
        fence(Release);
        place.span.store((pages.end as u64) << 32 | pages.start as u64, Relaxed);
        place.tag.store(self.version.load(Relaxed) << RIGHTS_SHIFT | rights, Release);
    }

    /// Whether it is known that all of `pages` may be read, or written.
    pub fn allowed(&self, pages: Range<usize>, write: bool) -> bool {
        let place = self.place(pages.start);
        let tag = place.tag.load(Acquire);
        let span = place.span.load(Relaxed);
        fence(Acquire);
        // Noted meanwhile: what was read may belong to two regions. A tag that is the same again
        // has the same rights.
        if tag != place.tag.load(Relaxed) || tag >> RIGHTS_SHIFT != self.version.load(Acquire) {
            return false;
        }
        let right = if write { WRITE } else { READ };
        tag & right != 0
            && pages.start as u64 >= span & u64::from(u32::MAX)
            && pages.end as u64 <= span >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_the_map_changes() {
        let accesses = Accesses::default();
        assert!(!accesses.allowed(5..6, false));
        accesses.note(5, 3..20_000, true, false);
        assert!(accesses.allowed(3..20, false) && accesses.allowed(5..20_000, false));
        assert!(!accesses.allowed(2..4, false) && !accesses.allowed(5..20_001, false), "outside");
        assert!(!accesses.allowed(5..6, true), "not writable");
        assert!(!accesses.allowed(9000..9001, false), "a part that nobody asked for");
        accesses.note(5, 3..10, true, true);
        assert!(accesses.allowed(5..10, true) && !accesses.allowed(5..11, true));
        accesses.change();
        assert!(!accesses.allowed(5..6, false));
        accesses.note(5, 5..1 << 32, true, true);
        assert!(!accesses.allowed(5..6, false), "more than can be noted");
    }

    /// Whether it was ever known depends on the scheduler: what counts is that nothing wrong was.
    #[test]
    fn a_look_never_sees_half_of_a_note() {
        let accesses = Accesses::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        // No note covers these, writable; nor is there one for them.
                        assert!(!accesses.allowed(10..30, true) && !accesses.allowed(0..20, true));
                    }
                });
            }
            for round in 0..300_000 {
                accesses.note(10, 10..20, true, true);
                accesses.note(10, 0..40, true, false);
                accesses.note(10, 20..30, true, true);
                if round % 16 == 0 {
                    accesses.change();
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
