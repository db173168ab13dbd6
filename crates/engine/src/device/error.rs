//! Why a device was refused, and why a page could not be read: a sentence each, that says what to
//! do.

use super::header::BadHeader;
use crate::base::sentence::error_is_a_sentence;
use crate::units::Bytes;
use overspill_os::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a swap device cannot be used.
#[derive(Clone, PartialEq, Eq)]
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
    /// It belongs to somebody else.
    OthersOwn {
        /// The device.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// Others may read or write it.
    OthersMay {
        /// The device.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Those without others.
        safe: u32,
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

    /// The device that it is about.
    fn path(&self) -> &Path {
        match self {
            SwapError::Missing(path)
            | SwapError::Denied(path)
            | SwapError::ReadOnly(path)
            | SwapError::WrongKind(path)
            | SwapError::InMemory(path)
            | SwapError::NoSpace(path)
            | SwapError::TooSmall { path, .. }
            | SwapError::FileSizeLimit { path, .. }
            | SwapError::Busy(path)
            | SwapError::InUse(path)
            | SwapError::HoldsData(path)
            | SwapError::BadHeader { path, .. }
            | SwapError::OthersOwn { path, .. }
            | SwapError::OthersMay { path, .. }
            | SwapError::NoLocks(path)
            | SwapError::TooMany(path)
            | SwapError::Lost(path)
            | SwapError::Other { path, .. } => path,
        }
    }

    /// Whether it may be there for others: another user, another root, another view of its
    /// filesystem.
    pub(super) fn is_out_of_reach(&self) -> bool {
        matches!(self, SwapError::Missing(_) | SwapError::Denied(_) | SwapError::ReadOnly(_))
    }

    /// What is wrong with which device.
    fn fmt_problem(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.path().display();
        match self {
            SwapError::Missing(_) => write!(f, "swap device '{device}' does not exist"),
            SwapError::Denied(_) => {
                write!(f, "swap device '{device}' may not be read and written by this user")
            }
            SwapError::ReadOnly(_) => {
                write!(f, "swap device '{device}' is on a read-only filesystem")
            }
            SwapError::WrongKind(_) => {
                write!(f, "swap device '{device}' is not a directory, a file or a block device")
            }
            SwapError::InMemory(_) => write!(
                f,
                "swap directory '{device}' is on a filesystem in RAM, where swapping frees no \
                 memory"
            ),
            SwapError::NoSpace(_) => write!(f, "there is no space left for swap device '{device}'"),
            SwapError::TooSmall { size, least, .. } => {
                write!(f, "swap device '{device}' would have {size} and needs at least {least}")
            }
            SwapError::FileSizeLimit { limit, .. } => write!(
                f,
                "swap device '{device}' cannot be used because this process may only write files \
                 of {limit}"
            ),
            SwapError::Busy(_) => {
                write!(f, "swap device '{device}' is in use, mounted or as kernel swap")
            }
            SwapError::InUse(_) => write!(f, "swap device '{device}' is in use already"),
            SwapError::HoldsData(_) => {
                write!(f, "swap device '{device}' holds data that swapping would overwrite")
            }
            SwapError::BadHeader { reason, .. } => {
                write!(f, "swap device '{device}' has a header that cannot be trusted ({reason})")
            }
            SwapError::OthersOwn { owner, .. } => write!(
                f,
                "swap device '{device}' belongs to user {owner}, who can read what is on it"
            ),
            SwapError::OthersMay { mode, .. } => {
                write!(f, "swap device '{device}' can be used by others (mode {mode:04o})")
            }
            SwapError::NoLocks(_) => write!(
                f,
                "swap device '{device}' is on a filesystem without file locks, which processes \
                 need to share it"
            ),
            SwapError::TooMany(_) => write!(f, "swap device '{device}' is one too many"),
            SwapError::Lost(_) => {
                write!(f, "pages on swap device '{device}' were lost to this process in a fork")
            }
            SwapError::Other { .. } => write!(f, "swap device '{device}' cannot be used"),
        }
    }

    /// What to do about it; where nothing can be done, what follows from it or caused it.
    fn fmt_remedy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self {
            SwapError::Missing(path) => {
                return write!(
                    f,
                    "create the directory, or write '{}:SIZE' to have a swap file made in an \
                     existing directory",
                    path.display()
                );
            }
            SwapError::TooSmall { path, .. } => {
                return write!(f, "give a larger size, as in '{}:1G'", path.display());
            }
            SwapError::TooMany(_) => {
                return write!(f, "use at most {}", crate::units::SlotId::DEVICES_MAX);
            }
            SwapError::OthersMay { safe, .. } => {
                return write!(f, "chmod {safe:04o} it, or allow that with insecure=on");
            }
            SwapError::Other { doing, errno, .. } => {
                return write!(f, "{doing} failed: {errno}");
            }
            SwapError::Denied(_) => "change its permissions or choose another place",
            SwapError::ReadOnly(_) => "choose a place that can be written",
            SwapError::WrongKind(_) => "choose one of these",
            SwapError::InMemory(_) => "choose a directory on a disk",
            SwapError::NoSpace(_) => "free some or choose another filesystem",
            SwapError::FileSizeLimit { .. } => "raise the limit (ulimit -f)",
            SwapError::Busy(_) => "unmount it, swapoff it, or choose another",
            SwapError::InUse(_) => "choose another",
            SwapError::HoldsData(_) => "choose another, or empty it if the data is not needed",
            SwapError::BadHeader { .. } => {
                "choose another, or zero its first 4096 bytes if what it holds is not needed"
            }
            SwapError::OthersOwn { .. } => "choose one of your own, or allow that with insecure=on",
            SwapError::NoLocks(_) => "name a directory instead, or choose another filesystem",
            SwapError::Lost(_) => "reading them will fail",
        };
        f.write_str(remedy)
    }
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_problem(f)?;
        f.write_str(": ")?;
        self.fmt_remedy(f)
    }
}

error_is_a_sentence!(SwapError);

/// Why a page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFailure {
    /// The kernel's answer; EIO where it gave none.
    Io(Errno),
    /// The device gives it back, and it is not what was written: its checksum is another.
    Checksum,
    /// The device has something else, or nothing, where a sealed page was written.
    NotAuthentic,
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
            ReadFailure::NotAuthentic => {
                write!(
                    f,
                    "what swap device '{path}' has at byte {at} is not what was written there \
                     (not authentic)"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {}
