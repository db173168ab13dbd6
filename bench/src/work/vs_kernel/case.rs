//! What is compared: peers, and those who do the same work.

use clap::ValueEnum;
use overspill_bench::named;
use overspill_bench::workload::{Packing, Workload};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A way in which the kernel swaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
pub enum Peer {
    /// A block device of compressed memory (lz4)
    Zram,
    /// Compressed memory (lz4) in front of a swap file
    Zswap,
    /// A swap file alone
    File,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Accesses to memory, by a program that does nothing else.
    Accesses(Workload),
    Program(Program),
}

impl Task {
    /// All of it: accesses first.
    pub fn all() -> impl Iterator<Item = Task> {
        let accesses = Workload::value_variants().iter().copied().map(Task::Accesses);
        accesses.chain(Program::value_variants().iter().copied().map(Task::Program))
    }

    pub fn program(self) -> Option<Program> {
        match self {
            Task::Accesses(_) => None,
            Task::Program(program) => Some(program),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Accesses(workload) => workload.fmt(f),
            Task::Program(program) => program.fmt(f),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
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

named!(Peer, Program, Step);

/// What is done, all but by whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Setting {
    pub task: Task,
    /// With whom it is compared.
    pub peer: Peer,
    /// How many times the RAM is needed.
    pub overcommit: u32,
    /// What pages hold; those of programs hold what they hold.
    pub packing: Option<Packing>,
    pub threads: u32,
}

impl Setting {
    /// What pages hold, for people.
    pub fn contents(&self) -> String {
        self.packing.map_or_else(|| "its own".to_owned(), |packing| packing.to_string())
    }
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// What the mechanisms cost without anything around them.
    Floor,
    /// A program with all the RAM that it takes, which says how much that is.
    Alone(Program),
    Work(Setting, Step),
}

impl Kind {
    /// The program that is measured, if it is one.
    pub fn program(&self) -> Option<Program> {
        match self {
            Kind::Floor => None,
            Kind::Alone(program) => Some(*program),
            Kind::Work(setting, _) => setting.task.program(),
        }
    }

    /// What a program with faults by signal is called where it cannot be measured: system calls
    /// that are handed a page that is out may fail in it.
    pub fn by_signal(&self) -> Option<String> {
        let Kind::Work(_, step @ Step::OverspillSignal) = self else { return None };
        Some(format!("{} in {step}", self.program()?))
    }

    /// Whether it cannot be measured without what has this name: a program, or a peer of its own.
    pub fn needs(&self, name: &str) -> bool {
        let peer =
            matches!(self, Kind::Work(setting, Step::Peer) if setting.peer.to_string() == name);
        peer || self.program().is_some_and(|program| program.to_string() == name)
    }
}
