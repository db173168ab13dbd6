//! The kernel's ways to swap, and real programs, by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

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

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no peer is skipped").get_name())
    }
}

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

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no program is skipped").get_name())
    }
}
