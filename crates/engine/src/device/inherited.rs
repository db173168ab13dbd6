//! What the child of a fork is given of its parent's devices.

use overspill_os::io::File;

/// A device of the parent's, for the child of a fork.
#[derive(Debug)]
pub struct InheritedDevice {
    /// Its number.
    pub index: usize,
    /// The device, opened once more, or a duplicate of the parent's open file.
    pub file: File,
    /// Whether it was opened once more, and so has locks of its own. A duplicate shares its
    /// parent's: none is given back by the child.
    pub own_locks: bool,
    /// The part of its file that was taken for the child.
    pub part: Option<usize>,
}

/// A part of the file of a device that was taken for a child of a fork.
#[derive(Clone, Copy, Debug)]
pub struct LentPart {
    /// The number of the device, and which of those that had it.
    pub(super) device: usize,
    pub(super) serial: u64,
    /// The part.
    pub part: usize,
}
