//! Empty chunks at hand.

use super::class::ORDER_MAX;

/// Frames in empty chunks that are kept for the next store of a class with chunks of that size, so
/// that one object that comes and goes does not fill and empty frames each time (20 us and more:
/// emptying frames flushes). Cost: up to 1 MiB of budget, taken from the pool's limit; a 256th of
/// that at most, but 128 KiB.
pub(super) const KEPT_FRAMES_MAX: usize = 256;
const KEPT_FRAMES_LEAST: usize = 32;

/// How many a pool with a limit of `frames` keeps.
pub(super) fn kept_max(frames: usize) -> usize {
    (frames / 256).clamp(KEPT_FRAMES_LEAST, KEPT_FRAMES_MAX)
}

/// Most chunks that so many frames can be.
const KEPT_MAX: usize = KEPT_FRAMES_MAX >> super::class::ORDER_MIN;

/// The empty chunks that are kept, the oldest first.
pub(super) struct Kept {
    chunks: [(u32, u8); KEPT_MAX],
    len: usize,
}

impl Kept {
    pub const fn new() -> Kept {
        const { assert!(KEPT_FRAMES_LEAST >= 1 << ORDER_MAX) }
        Kept { chunks: [(0, 0); KEPT_MAX], len: 0 }
    }

    /// All of them, with their orders.
    pub fn chunks(&self) -> &[(u32, u8)] {
        &self.chunks[..self.len]
    }

    pub fn frames(&self) -> usize {
        self.chunks().iter().map(|(_, order)| 1 << order).sum()
    }

    /// Keeps a chunk if there is room among `most` frames.
    pub fn push(&mut self, chunk: u32, order: u8, most: usize) -> bool {
        let room = self.frames() + (1 << order) <= most;
        if room {
            self.chunks[self.len] = (chunk, order);
            self.len += 1;
        }
        room
    }

    /// The chunk of an order that came last.
    pub fn pop(&mut self, order: u8) -> Option<u32> {
        let at = self.chunks().iter().rposition(|(_, of)| *of == order)?;
        let (chunk, _) = self.chunks[at];
        self.chunks.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(chunk)
    }

    /// Takes the older half out, or as many of it as `out` has room for; how many.
    pub fn take_older_half(&mut self, out: &mut [(u32, u8)]) -> usize {
        let count = self.len.div_ceil(2).min(out.len());
        out[..count].copy_from_slice(&self.chunks[..count]);
        self.chunks.copy_within(count..self.len, 0);
        self.len -= count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_kept_up_to_so_many_frames_and_found_by_order() {
        let mut kept = Kept::new();
        let most = kept_max(1000);
        assert!(kept.push(1, 2, most) && kept.push(2, 4, most) && kept.push(3, 2, most));
        assert!(!kept.push(4, 4, most) && kept.push(4, 3, most) && !kept.push(5, 2, most));
        assert_eq!(
            (kept.frames(), kept.pop(2), kept.pop(2), kept.pop(2)),
            (32, Some(3), Some(1), None)
        );
        let mut out = [(0, 0); 4];
        assert_eq!((kept.take_older_half(&mut out), kept.take_older_half(&mut out[1..])), (1, 1));
        assert_eq!((out, kept.take_older_half(&mut [])), ([(2, 4), (4, 3), (0, 0), (0, 0)], 0));
        (1..=5).for_each(|chunk| assert!(kept.push(chunk, 2, most)));
        assert_eq!((kept.take_older_half(&mut out), out), (3, [(1, 2), (2, 2), (3, 2), (0, 0)]));
        assert_eq!((kept.take_older_half(&mut out[..1]), kept.chunks()), (1, &[(5, 2)][..]));
        assert_eq!((kept_max(32000), kept_max(1 << 20)), (125, KEPT_FRAMES_MAX));
    }
}
