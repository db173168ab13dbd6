//! What a thread of an evacuation works with.

use crate::slot::SlotRun;
use crate::swap::batch::Batch;
use crate::swap::settings::SwapSettings;
use overspill_os::Errno;
use overspill_os::io::IoBuffer;

/// What a thread of an evacuation works with.
#[derive(Debug)]
pub struct EvacuationBuffers {
    /// A run as it was read.
    pub buffer: IoBuffer,
    /// Its most pages.
    pub run_max: usize,
    /// For what does not fit in memory.
    pub batch: Batch,
    /// Slots on no device.
    pub fresh: Option<SlotRun>,
}

impl EvacuationBuffers {
    /// For runs of up to `run` pages, of which those that do not fit in memory are stored `batch`
    /// at a time.
    pub fn new(
        run: usize,
        batch: usize,
        settings: &SwapSettings,
    ) -> Result<EvacuationBuffers, Errno> {
        let mut batch = Batch::new(batch, settings)?;
        batch.grow(batch.growth(usize::MAX));
        Ok(EvacuationBuffers { buffer: IoBuffer::new(run)?, run_max: run, batch, fresh: None })
    }
}
