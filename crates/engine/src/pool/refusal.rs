//! Why a region could not be made, or not be done something with: one sentence each.

use super::Pool;
use crate::base::sentence::error_is_a_sentence;
use crate::units::Bytes;
use overspill_os::Errno;
use std::fmt;
use std::ops::Range;

/// Why a region could not be made, changed, advised about or pinned.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionError {
    /// It would have no bytes.
    Empty,
    /// The pool's window has no room for it.
    NoAddresses {
        /// Its size, the largest number if that is more.
        bytes: Bytes,
        /// Size of the window.
        window: Bytes,
    },
    /// The bytes do not lie in the region.
    Outside {
        /// What was asked for.
        bytes: Range<usize>,
        /// Length of the region, in bytes.
        len: usize,
    },
    /// Pages that are pinned cannot leave.
    Pinned,
    /// So much cannot be pinned.
    PinsTooMuch {
        /// What was to be pinned.
        bytes: Bytes,
    },
    /// Something else, that the kernel said.
    System(Errno),
}

impl RegionError {
    /// Why there is no memory for a region of so many bytes.
    pub(super) fn of_room(pool: &Pool, bytes: usize, errno: Errno) -> RegionError {
        match errno {
            Errno::INVAL if bytes == 0 => RegionError::Empty,
            Errno::NOMEM => RegionError::NoAddresses {
                bytes: Bytes(bytes as u64),
                window: Bytes(pool.window().len() as u64),
            },
            other => RegionError::System(other),
        }
    }

    /// The number that a system call would give.
    pub fn errno(&self) -> Errno {
        match *self {
            RegionError::Empty | RegionError::Outside { .. } | RegionError::Pinned => Errno::INVAL,
            RegionError::NoAddresses { .. } | RegionError::PinsTooMuch { .. } => Errno::NOMEM,
            RegionError::System(errno) => errno,
        }
    }

    /// Why pages cannot be told something.
    pub(super) fn of_advice(errno: Errno) -> RegionError {
        if errno == Errno::INVAL { RegionError::Pinned } else { RegionError::System(errno) }
    }

    /// Why so many bytes cannot be pinned.
    pub(super) fn of_pin(bytes: usize, errno: Errno) -> RegionError {
        match errno {
            Errno::NOMEM | Errno::PERM => RegionError::PinsTooMuch { bytes: Bytes(bytes as u64) },
            other => RegionError::System(other),
        }
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Empty => f.write_str("a region has one value at least"),
            RegionError::NoAddresses { bytes, window } => write!(
                f,
                "the pool's window of {window} has no room for a region of {bytes}: drop regions, \
                 or make the pool with a larger one (setting window=SIZE)"
            ),
            RegionError::Outside { bytes: Range { start, end }, len } => write!(
                f,
                "bytes {start} to {end} do not lie in a region of {len}: name a part of it"
            ),
            RegionError::Pinned => {
                f.write_str("pages of these are pinned and cannot leave: unpin them before")
            }
            RegionError::PinsTooMuch { bytes } => write!(
                f,
                "{bytes} cannot be pinned: half of the pool's memory can be at most, and what the \
                 limit of locked memory (ulimit -l) allows"
            ),
            RegionError::System(errno) => write!(f, "the kernel refuses that ({errno})"),
        }
    }
}

error_is_a_sentence!(RegionError);
