//! Why a pool could not be made: one sentence each, saying what to do.

use crate::base::sentence::error_is_a_sentence;
use crate::device::SwapError;
use crate::device::spec::BadSwap;
use crate::frame::Watermarks;
use crate::memory::{MEMORY_MAX, MEMORY_MIN, WINDOW_MAX};
use crate::units::Bytes;
use overspill_os::Errno;
use overspill_os::signal::WINDOWS;
use std::fmt;

/// Why a pool could not be made.
pub enum Error {
    /// The budget is below [`crate::config::Config::MEMORY_MIN`].
    BudgetTooSmall {
        /// What was asked for.
        memory: Bytes,
    },
    /// The budget is above [`crate::config::Config::MEMORY_MAX`].
    BudgetTooLarge {
        /// What was asked for.
        memory: Bytes,
    },
    /// The window is above [`crate::config::Config::WINDOW_MAX`].
    WindowTooLarge {
        /// What was asked for.
        window: Bytes,
    },
    /// No room for the window of managed addresses or the tables over it.
    AddressSpace {
        /// Size of the window asked for.
        window: Bytes,
    },
    /// The kernel does not give this user a userfaultfd.
    NoUserfaultfd {
        /// What the kernel said.
        errno: Errno,
    },
    /// The process has as many pools in signal delivery as it can have.
    TooManyPools,
    /// A lower watermark is as high as a higher one.
    Watermarks {
        /// As set.
        watermarks: Watermarks,
        /// For this budget.
        memory: Bytes,
    },
    /// Moving was asked for and the kernel cannot.
    NoMove,
    /// A thread could not be started.
    Thread,
    /// A swap device could not be opened.
    Swap(SwapError),
    /// The text that names swap devices cannot be read.
    BadSwap(BadSwap),
    /// There is no such setting, or it has no such value: the sentence.
    BadSetting(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BudgetTooSmall { memory } => {
                write!(
                    f,
                    "a budget of {memory} is too small: the smallest possible is {}",
                    MEMORY_MIN
                )
            }
            Error::BudgetTooLarge { memory } => {
                write!(
                    f,
                    "a budget of {memory} is too large: the largest possible is {}",
                    MEMORY_MAX
                )
            }
            Error::WindowTooLarge { window } => {
                write!(
                    f,
                    "a window of {window} is too large: the largest possible is {}",
                    WINDOW_MAX
                )
            }
            Error::AddressSpace { window } if overspill_os::vm::commits_strictly() => write!(
                f,
                "this system promises only memory that it has (vm.overcommit_memory=2), and has \
                 too little left for tables over {window}: raise vm.overcommit_ratio, or set a \
                 smaller window (setting window=SIZE)"
            ),
            Error::AddressSpace { window } => write!(
                f,
                "there is no address space for a window of {window}: raise the limit (ulimit -v) \
                 or set a smaller one (setting window=SIZE)"
            ),
            Error::NoUserfaultfd { errno } => write!(
                f,
                "this kernel gives this user no userfaultfd ({errno}): see `overspill probe` for \
                 what to change"
            ),
            Error::TooManyPools => write!(
                f,
                "this process has {WINDOWS} pools in signal delivery, which is the most: drop one, \
                 or make one pool with more memory"
            ),
            Error::Watermarks { watermarks, memory } => write!(
                f,
                "watermark={watermarks} does not rise for a budget of {memory}: make the first \
                 the lowest, and the last the highest"
            ),
            Error::NoMove => {
                f.write_str("out=move needs UFFDIO_MOVE, which came with Linux 6.8: use out=auto")
            }
            Error::Thread => f.write_str(
                "a thread could not be started: raise the limit of processes (ulimit -u)",
            ),
            Error::Swap(error) => error.fmt(f),
            Error::BadSwap(error) => error.fmt(f),
            Error::BadSetting(sentence) => f.write_str(sentence),
        }
    }
}

error_is_a_sentence!(Error);

impl From<BadSwap> for Error {
    fn from(error: BadSwap) -> Error {
        Error::BadSwap(error)
    }
}

impl From<SwapError> for Error {
    fn from(error: SwapError) -> Error {
        Error::Swap(error)
    }
}
