//! The kernel's ways to swap, and real programs, by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A way in which the kernel swaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// A block device of compressed memory (lz4)
    Zram,
    /// Compressed memory (lz4) in front of a swap file
    Zswap,
    /// A swap file alone
    File,
}

overspill_bench::named!(Peer);

/// A real program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// GNU sort of lines that all are in its memory
    Sort,
    /// numpy sorts an array
    NumpySort,
    /// numpy multiplies a tall matrix by small ones
    NumpyProduct,
    /// redis-benchmark reads from a redis-server at random
    Redis,
    /// GCC's compiler proper, with a source of many templates
    Cxx,
}

overspill_bench::named!(Program);
