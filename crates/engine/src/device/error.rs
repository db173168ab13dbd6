//! Why a device was refused, and why a page could not be read: a sentence each, that says what to
//! do.

use super::header::BadHeader;
use crate::units::Bytes;
use overspill_os::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a swap device cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapError {
    /// Nothing has that name, and no size was given to make a file with.
    Missing(PathBuf),
    /// This user may not read and write it.
    Denied(PathBuf),
    /// It is on a filesystem mounted read-only.
    ReadOnly(PathBuf),
    /// It is no directory, file or block device.
    WrongKind(PathBuf),
    /// It is a directory of a filesystem that keeps its files in RAM.
    InMemory(PathBuf),
    /// The filesystem has no room.
    NoSpace(PathBuf),
    /// It has room for less than the least useful amount.
    TooSmall {
        /// The device.
        path: PathBuf,
        /// What it has, or was asked to have.
        size: Bytes,
        /// What it needs.
        least: Bytes,
    },
    /// The process may not write files as large as needed (RLIMIT_FSIZE).
    FileSizeLimit {
        /// The device.
        path: PathBuf,
        /// The limit.
        limit: Bytes,
    },
    /// It is mounted, or a swap area that the kernel uses.
    Busy(PathBuf),
    /// This process uses it already.
    InUse(PathBuf),
    /// It holds something that is not swap.
    HoldsData(PathBuf),
    /// Its header is damaged, or says what cannot be.
    BadHeader {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        reason: BadHeader,
    },
    /// Its filesystem has no locks, by which processes share a file.
    NoLocks(PathBuf),
    /// There are [`crate::units::SlotId::DEVICES_MAX`] devices already.
    TooMany(PathBuf),
    /// In a child of a fork: what its parent had stored there cannot be read any more.
    Lost(PathBuf),
    /// Something else went wrong.
    Other {
        /// The device.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl SwapError {
    /// There is no memory for tables of slots.
    pub(crate) fn no_tables(errno: Errno) -> SwapError {
        SwapError::new(Path::new("memory"), "getting memory for tables of slots", errno)
    }

    /// The meaning of an error number that came up while `doing` something to `path`.
    pub(super) fn new(path: &Path, doing: &'static str, errno: Errno) -> SwapError {
        let path = path.to_owned();
        match errno {
            Errno::NOENT | Errno::NOTDIR => SwapError::Missing(path),
            Errno::ACCESS | Errno::PERM => SwapError::Denied(path),
            Errno::ROFS => SwapError::ReadOnly(path),
            Errno::NOSPC | Errno::DQUOT => SwapError::NoSpace(path),
            Errno::BUSY | Errno::TXTBSY => SwapError::Busy(path),
            errno => SwapError::Other { path, doing, errno },
        }
    }

    /// Whether it may be there for others: another user, another root, another view of its
    /// filesystem.
    pub(super) fn is_out_of_reach(&self) -> bool {
        matches!(self, SwapError::Missing(_) | SwapError::Denied(_) | SwapError::ReadOnly(_))
    }
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Missing(path) => write!(
                f,
                "swap device '{0}' does not exist: create the directory, or write '{0}:SIZE' to \
                 have a swap file made in an existing directory",
                path.display()
            ),
            SwapError::Denied(path) => write!(
                f,
                "swap device '{}' may not be read and written by this user: change its \
                 permissions or choose another place",
                path.display()
            ),
            SwapError::ReadOnly(path) => write!(
                f,
                "swap device '{}' is on a read-only filesystem: choose a place that can be written",
                path.display()
            ),
            SwapError::WrongKind(path) => write!(
                f,
                "swap device '{}' is not a directory, a file or a block device: choose one of these",
                path.display()
            ),
            SwapError::InMemory(path) => write!(
                f,
                "swap directory '{}' is on a filesystem in RAM, where swapping frees no memory: \
                 choose a directory on a disk",
                path.display()
            ),
            SwapError::NoSpace(path) => write!(
                f,
                "there is no space left for swap device '{}': free some or choose another \
                 filesystem",
                path.display()
            ),
            SwapError::TooSmall { path, size, least } => write!(
                f,
                "swap device '{}' would have {size} and needs at least {least}: give a larger \
                 size, as in '{}:1G'",
                path.display(),
                path.display()
            ),
            SwapError::FileSizeLimit { path, limit } => write!(
                f,
                "swap device '{}' cannot be used because this process may only write files of \
                 {limit}: raise the limit (ulimit -f)",
                path.display()
            ),
            SwapError::Busy(path) => write!(
                f,
                "swap device '{}' is in use, mounted or as kernel swap: unmount it, swapoff it, \
                 or choose another",
                path.display()
            ),
            SwapError::InUse(path) => {
                write!(f, "swap device '{}' is in use already: choose another", path.display())
            }
            SwapError::HoldsData(path) => write!(
                f,
                "swap device '{}' holds data that swapping would overwrite: choose another, or \
                 empty it if the data is not needed",
                path.display()
            ),
            SwapError::BadHeader { path, reason } => write!(
                f,
                "swap device '{}' has a header that cannot be trusted ({reason}): choose another, \
                 or zero its first 4096 bytes if what it holds is not needed",
                path.display()
            ),
            SwapError::NoLocks(path) => write!(
                f,
                "swap device '{}' is on a filesystem without file locks, which processes need to \
                 share it: name a directory instead, or choose another filesystem",
                path.display()
            ),
            SwapError::TooMany(path) => write!(
                f,
                "swap device '{}' is one too many: use at most {}",
                path.display(),
                crate::units::SlotId::DEVICES_MAX
            ),
            SwapError::Lost(path) => write!(
                f,
                "pages on swap device '{}' were lost to this process in a fork: reading them will \
                 fail",
                path.display()
            ),
            SwapError::Other { path, doing, errno } => {
                write!(
                    f,
                    "swap device '{}' cannot be used: {doing} failed: {errno}",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for SwapError {}

/// Why a page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFailure {
    /// The kernel's answer; EIO where it gave none.
    Io(Errno),
    /// The device gives it back, and it is not what was written: its checksum is another.
    Checksum,
}

/// A page that cannot be had from its device: it is lost to whoever asks for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadError {
    /// The device.
    pub path: Arc<Path>,
    /// Where the page is on the device, in bytes.
    pub offset_bytes: u64,
    /// What is wrong.
    pub failure: ReadFailure,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, at) = (self.path.display(), self.offset_bytes);
        // Told on the fault path, where the C library's text for an error number would be
        // allocated.
        match self.failure {
            ReadFailure::Io(Errno::IO) => {
                write!(f, "reading swap device '{path}' at byte {at} failed: Input/output error")
            }
            ReadFailure::Io(errno) => {
                write!(
                    f,
                    "reading swap device '{path}' at byte {at} failed: error number {}",
                    errno.raw_os_error()
                )
            }
            ReadFailure::Checksum => {
                write!(
                    f,
                    "what swap device '{path}' has at byte {at} is not what was written there \
                     (wrong checksum)"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {}
