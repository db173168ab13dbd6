//! The neighbours of frames in the lists that they are in.

use overspill_os::{Errno, table::ZeroTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two neighbours of each frame, 8 bytes: in a list of free blocks, or in one of the swap cache, whose frames are not free. A frame's
/// are changed with the lock of the list that it is in.
#[derive(Clone)]
pub struct FrameLinks(Arc<ZeroTable<AtomicU64>>);

impl FrameLinks {
    /// For frames below `frames`.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the table.
    pub fn new(frames: usize) -> Result<FrameLinks, Errno> {
        Ok(FrameLinks(Arc::new(ZeroTable::new(frames)?)))
    }

    /// How many frames they are for.
    pub fn frames(&self) -> usize {
        self.0.len()
    }

    /// The previous frame, and the next.
    pub fn get(&self, frame: u32) -> (u32, u32) {
        let word = self.0[frame as usize].load(Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Sets both.
    pub fn set(&self, frame: u32, previous: u32, next: u32) {
        self.0[frame as usize].store((previous as u64) << 32 | next as u64, Relaxed);
    }

    /// Sets the previous one.
    pub fn set_previous(&self, frame: u32, previous: u32) {
        self.set(frame, previous, self.get(frame).1);
    }

    /// Sets the next one.
    pub fn set_next(&self, frame: u32, next: u32) {
        self.set(frame, self.get(frame).0, next);
    }
}
