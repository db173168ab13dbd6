//! How faults arrive, and what they bring in.

use super::folio::FolioMax;

/// The settings of faults.
#[derive(Clone, Debug)]
pub struct FaultSettings {
    pub delivery: Delivery,
    pub folio: FolioMax,
    /// Most pages read around one that is missing.
    pub readahead_max: usize,
    pub way_in: WayIn,
    /// Whether a thread goes ahead of long streams.
    pub ahead: bool,
    /// Whether the handler thread polls for faults that come soon.
    pub polls: bool,
}

/// How faults reach the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// A handler thread reads the userfaultfd: complete semantics, system calls included.
    #[default]
    Thread,
    /// The faulting thread serves itself in a SIGBUS handler: faster, but a system call that is
    /// handed an absent page fails with EFAULT.
    Signal,
}

/// How a stored page comes back in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayIn {
    /// The cheaper by what was measured while running.
    #[default]
    Auto,
    /// UFFDIO_COPY always.
    Copy,
    /// UFFDIO_MOVE where the content lies in a frame of its own (Linux 6.8 and later).
    Move,
}
