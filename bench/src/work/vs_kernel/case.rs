//! What is compared: peers, and those who do the same work.

use clap::ValueEnum;
use overspill_bench::contents::write_name;
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
    /// make -j4 of six sources of many templates
    Make,
    /// A pool of four Python processes, each of which builds lists and sums them
    PythonPool,
    /// PostgreSQL sorts 600,000 rows in its memory
    Postgresql,
    /// A command of the user's, which has no name of its own among these
    #[value(skip)]
    Own,
    /// Two processes that write at random, each to half of the memory
    #[value(name = "busy-2")]
    Busy2,
    /// Eight such processes
    #[value(name = "busy-8")]
    Busy8,
    /// One such process beside 100 that only keep their memory, half of all
    #[value(name = "busy-idle-100")]
    BusyIdle100,
    /// A process with half of the memory forks 20 times; each child writes to 1 % of it
    Forks,
    /// A process with five eighths of the memory forks four workers, which read all of it, and each
    /// write to 5 % of it
    Workers,
    /// A shell starts /bin/true 300 times
    Short,
}

impl Program {
    /// Whether it is made to show how processes share a budget.
    pub fn is_job(self) -> bool {
        self >= Program::Busy2
    }

    /// The least RAM that it gets where `size` is what it works on. These are about what
    /// processes cost, and have more than they take.
    pub fn least(self, size: u64) -> u64 {
        match self {
            Program::Forks | Program::Workers => size,
            Program::Short => 64 << 20,
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Accesses to memory, by a program that does nothing else.
    Accesses(Workload),
    Program(Program),
}

impl Task {
    /// All of it but for jobs: accesses first.
    pub fn all() -> impl Iterator<Item = Task> {
        let accesses = Workload::value_variants().iter().copied().map(Task::Accesses);
        let programs = Program::value_variants().iter().filter(|program| !program.is_job());
        accesses.chain(programs.copied().map(Task::Program))
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
pub enum Variant {
    /// The program by itself, with the kernel's swap
    Peer,
    /// The program under `overspill run`, whose faults a thread serves
    OverspillThread,
    /// The same, its faults served by signal
    OverspillSignal,
    /// The same, and pages lie on the device as they are; beside a swap file, accesses only
    OverspillUnsealed,
    /// The same accesses in a process of the library, served by signal
    Library,
}

named!(Peer, Variant);

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Own => f.write_str("command"),
            program => write_name(program, f),
        }
    }
}

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
    /// The work by these, as far as it is measured of them. A program is not in a process of the
    /// library. What seals take is told of accesses, where there is a device on both sides.
    pub fn by(self, all: &[Variant]) -> impl Iterator<Item = Kind> {
        let accesses = self.task.program().is_none();
        let does = move |variant: &&Variant| match variant {
            Variant::Library => accesses,
            Variant::OverspillUnsealed => accesses && self.peer == Peer::File,
            _ => true,
        };
        all.iter().filter(does).map(move |variant| Kind::Work(self, *variant))
    }
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// What the mechanisms cost without anything around them.
    Floor,
    /// A program with all the RAM that it takes, which says how much that is.
    Alone(Program),
    Work(Setting, Variant),
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

    /// The peer that does it, or that it is compared with.
    pub fn peer(&self) -> Option<Peer> {
        let Kind::Work(setting, _) = self else { return None };
        Some(setting.peer)
    }

    /// What a program with faults by signal is called where it cannot be measured: system calls
    /// that are handed a page that is out may fail in it. A command of the user's is not left out
    /// for that: it fails, and that is told.
    pub fn by_signal(&self) -> Option<String> {
        let Kind::Work(_, step @ Variant::OverspillSignal) = self else { return None };
        let program = self.program().filter(|program| *program != Program::Own)?;
        Some(format!("{program} in {step}"))
    }

    /// Whether it cannot be measured without what has this name: a program, or a peer of its own.
    pub fn needs(&self, name: &str) -> bool {
        let peer =
            matches!(self, Kind::Work(setting, Variant::Peer) if setting.peer.to_string() == name);
        peer || self.program().is_some_and(|program| program.to_string() == name)
    }
}
