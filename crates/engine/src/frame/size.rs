//! How many frames the arena has: as many as the limit needs.

use super::{FrameAllocator, Mobility};
use crate::stats::Counter;
use crate::units::FrameId;
use std::ops::Range;

impl FrameAllocator {
    /// Makes the arena as large as a limit of `pages` needs. New frames are handed to `open` before
    /// they are used; surplus pageblocks are isolated, to be emptied by the owners of their frames
    /// ([`FrameAllocator::is_isolated`]) and given up with [`FrameAllocator::give_up_surplus`]. One
    /// thread at a time.
    pub fn resize<E>(
        &self,
        pages: u64,
        mut open: impl FnMut(Range<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let frames =
            Self::share(Self::span(pages), self.zones.len()).min(self.zone_frames as u64) as u32;
        for cell in &self.zones {
            let now = cell.zone.inspect().frames();
            if frames > now.len() as u32 {
                open(now.end..now.start + frames)?;
            }
            cell.zone.inspect().resize(frames);
        }
        self.publish_frames();
        Ok(())
    }

    /// Whether a frame lies in a pageblock that is to leave the arena: its owner is to exchange it
    /// for another.
    pub fn is_isolated(&self, frame: FrameId) -> bool {
        self.pageblocks.mobility(frame.0) == Mobility::Isolated
    }

    /// The frames of isolated pageblocks of which some may be in use. Far fewer than are isolated:
    /// all are that the arena could have and has not, and what is kept of these is memory that was
    /// never touched.
    pub fn surplus(&self) -> Vec<Range<u32>> {
        self.zones.iter().map(|cell| cell.zone.inspect().surplus()).collect()
    }

    /// Whether pageblocks are waiting to leave the arena.
    pub fn has_surplus(&self) -> bool {
        self.zones.iter().any(|cell| cell.zone.inspect().has_surplus())
    }

    /// Takes isolated pageblocks that are empty out of the arena and hands them to `close`.
    pub fn give_up_surplus(&self, mut close: impl FnMut(Range<u32>)) {
        self.drain();
        for cell in &self.zones {
            let frames = cell.zone.inspect().shrink();
            if !frames.is_empty() {
                self.cells.release(frames.clone());
                close(frames);
            }
        }
        self.publish_frames();
    }

    /// Frames of the arena now.
    pub fn frames(&self) -> usize {
        self.zones.iter().map(|cell| cell.zone.inspect().frames().len()).sum()
    }

    fn publish_frames(&self) {
        self.stats.set(Counter::ArenaFrames, self.frames() as u64);
    }
}
