//! What a thread that serves faults works with.

use crate::stats::FaultSource;
use crate::units::FrameId;
use overspill_os::Errno;
use overspill_os::codec::{Codec, Decompressor};
use overspill_os::io::IoBuffer;
use overspill_os::table::PageRoom;
use overspill_os::vm::IoVec;

/// Frames that were copied from and wait to be dropped together, one flush for so many, and how
/// many do in all contexts together: well below the reserve.
pub const SPENT_MAX: usize = 32;
pub const SPENT_IN_ALL: usize = 64;

/// What a thread that serves faults works with; made with the pool.
#[derive(Debug)]
pub struct FaultContext {
    /// The thread whose fault is served.
    pub thread: i32,
    /// Where its page comes from.
    pub source: FaultSource,
    /// How many pages it brought in.
    pub installed: usize,
    /// Whether no thread waits for it.
    pub is_ahead: bool,
    /// Pages as they come from a device, or out of a compressed copy.
    pub buffer: IoBuffer,
    /// How many pages of it there are for now, at first, and at most.
    pages: usize,
    least: usize,
    most: usize,
    /// A compressed page.
    pub packed: PageRoom,
    /// What decompresses it.
    pub decompressor: Decompressor,
    /// Frames taken for the pages of the fault.
    pub frames: Vec<FrameId>,
    /// Frames that were copied from, to be dropped together.
    pub spent: Vec<FrameId>,
    /// Room for the ranges of these.
    pub ranges: Vec<IoVec>,
}

impl FaultContext {
    /// For `least` pages that come in together, up to `most`; compressed by any of `codecs`.
    pub fn new(least: usize, most: usize, codecs: &[Codec]) -> Result<FaultContext, Errno> {
        Ok(FaultContext {
            thread: 0,
            source: FaultSource::default(),
            installed: 0,
            is_ahead: false,
            buffer: IoBuffer::new(most)?,
            pages: least,
            least,
            most,
            packed: PageRoom::new()?,
            decompressor: Decompressor::new(codecs)?,
            frames: Vec::with_capacity(most),
            spent: Vec::with_capacity(SPENT_MAX),
            ranges: Vec::with_capacity(SPENT_MAX),
        })
    }

    /// Most pages that come in together.
    pub fn capacity(&self) -> usize {
        self.pages
    }

    /// How many more pages it is to have where `share` are worth their memory.
    pub fn growth(&self, share: usize) -> usize {
        share.min(self.most).saturating_sub(self.pages)
    }

    /// Grows by so many pages.
    pub fn grow(&mut self, by: usize) {
        self.pages += by;
    }

    /// Gives back the memory of what is large in it, until it is used, and returns by how many
    /// pages it had grown.
    pub fn forget(&mut self) -> usize {
        self.buffer.forget();
        self.packed.forget();
        self.decompressor.forget();
        std::mem::replace(&mut self.pages, self.least) - self.least
    }
}
