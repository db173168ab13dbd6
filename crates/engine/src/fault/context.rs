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
    /// For folios of up to `folio` pages, and `around` pages read at once around a missing one;
    /// compressed by any of `codecs`.
    pub fn new(folio: usize, around: usize, codecs: &[Codec]) -> Result<FaultContext, Errno> {
        Ok(FaultContext {
            thread: 0,
            source: FaultSource::default(),
            installed: 0,
            is_ahead: false,
            buffer: IoBuffer::new(folio.max(around))?,
            packed: PageRoom::new()?,
            decompressor: Decompressor::new(codecs)?,
            frames: Vec::with_capacity(folio),
            spent: Vec::with_capacity(SPENT_MAX),
            ranges: Vec::with_capacity(SPENT_MAX),
        })
    }

    /// Gives back the memory of what is large in it, until it is used.
    pub fn forget(&mut self) {
        self.buffer.forget();
        self.packed.forget();
        self.decompressor.forget();
    }
}
