//! The seam between a device and its disk, where tests (and a device of another kind) take the
//! disk's place.

use overspill_os::Errno;
use overspill_os::io::File;
use overspill_os::uring::{Op, Queue};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// What a device asks of its disk.
pub trait BlockIo: Send + Sync + Debug {
    /// The open file: its descriptor and its locks.
    fn file(&self) -> &File;

    /// Completes all operations, several in flight.
    fn run(&self, ops: &mut [Op<'_>]);

    /// Sets disk space aside.
    fn allocate(&self, range: Range<u64>) -> Result<(), Errno>;

    /// Says that what a range holds is not needed any more; EOPNOTSUPP where that cannot be said.
    fn discard(&self, range: Range<u64>) -> Result<(), Errno>;
}

/// Makes the way to the disk of a file just opened.
pub type MakeIo = Box<dyn Fn(File, Arc<Queue>) -> Box<dyn BlockIo> + Send + Sync>;

/// The file itself, by direct I/O.
#[derive(Debug)]
pub struct Direct {
    pub file: File,
    pub queue: Arc<Queue>,
}

impl BlockIo for Direct {
    fn file(&self) -> &File {
        &self.file
    }

    fn run(&self, ops: &mut [Op<'_>]) {
        self.queue.run(&self.file, ops);
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Errno> {
        self.file.allocate(range)
    }

    fn discard(&self, range: Range<u64>) -> Result<(), Errno> {
        self.file.discard(range)
    }
}
