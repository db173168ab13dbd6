//! What is compared: peers, and those who do the same work.

use clap::ValueEnum;
use overspill_bench::workload::{Packing, Workload};
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

/// Who does the work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The program by itself, with the kernel's swap
    Peer,
    /// The program under `overspill run`, whose faults a thread serves
    OverspillThread,
    /// The same, its faults served by signal
    OverspillSignal,
    /// The same accesses in a process of the library, served by signal
    Library,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

/// What is done, all but by whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// What is done.
    pub workload: Workload,
    /// With whom it is compared.
    pub peer: Peer,
    /// How many times the RAM is needed.
    pub overcommit: u32,
    /// What pages hold.
    pub packing: Packing,
    /// How many threads do it.
    pub threads: u32,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// What the mechanisms cost without anything around them.
    Floor,
    /// Work.
    Work(Setting, Step),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Floor => f.write_str("floor"),
            Case::Work(Setting { workload, peer, overcommit, packing, threads }, step) => {
                write!(f, "{workload}, {peer}, {overcommit}x, {packing}, {threads} threads, {step}")
            }
        }
    }
}

/// The ratio of elapsed time to reach in the library, and in `overspill run` against zram: of our time to the peer's, at 4x
/// overcommit and 2.5:1 contents.
pub fn target(workload: Workload, peer: Peer, step: Step) -> Option<f64> {
    let row = match workload {
        Workload::SeqWrite => [0.45, 0.35, 0.80],
        Workload::SeqRead => [0.35, 0.30, 0.30],
        Workload::RandRead | Workload::ZipfRead => [0.40, 0.35, 0.60],
        Workload::RandWrite => [0.50, 0.40, 0.60],
    };
    match (step, peer) {
        (Step::Library, peer) => Some(row[peer as usize]),
        (Step::OverspillThread | Step::OverspillSignal, Peer::Zram) => Some(0.80),
        _ => None,
    }
}
