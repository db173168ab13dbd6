//! What is compared: peers, and those who do the same work.

use clap::ValueEnum;
use overspill_bench::workload::{Packing, Workload};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

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

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Accesses to memory, by a program that does nothing else.
    Accesses(Workload),
    /// The work of a program.
    Program(Program),
}

impl Task {
    /// All of it: accesses first.
    pub fn all() -> Vec<Task> {
        let accesses = Workload::value_variants().iter().map(|workload| Task::Accesses(*workload));
        accesses
            .chain(Program::value_variants().iter().map(|program| Task::Program(*program)))
            .collect()
    }

    /// The program, if it is one.
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

/// A task by its name, or a group of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tasks(pub Vec<Task>);

impl FromStr for Tasks {
    type Err = String;

    fn from_str(text: &str) -> Result<Tasks, String> {
        let of = |belongs: &dyn Fn(&Task) -> bool| {
            Task::all().into_iter().filter(belongs).collect::<Vec<_>>()
        };
        let tasks = match text {
            "all" => of(&|_| true),
            "accesses" => of(&|task| task.program().is_none()),
            "programs" => of(&|task| task.program().is_some()),
            "numpy" => of(&|task| {
                matches!(task.program(), Some(Program::NumpySort | Program::NumpyProduct))
            }),
            name => of(&|task| task.to_string() == name),
        };
        if tasks.is_empty() {
            let names: Vec<String> = Task::all().iter().map(Task::to_string).collect();
            return Err(format!("give all, accesses, programs, or of these: {}", names.join(", ")));
        }
        Ok(Tasks(tasks))
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
    pub task: Task,
    /// With whom it is compared.
    pub peer: Peer,
    /// How many times the RAM is needed.
    pub overcommit: u32,
    /// What pages hold; those of programs hold what they hold.
    pub packing: Option<Packing>,
    /// How many threads do it.
    pub threads: u32,
}

impl Setting {
    /// What pages hold, for people.
    pub fn contents(&self) -> String {
        self.packing.map_or_else(|| "its own".to_owned(), |packing| packing.to_string())
    }
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// What the mechanisms cost without anything around them.
    Floor,
    /// A program with all the RAM that it takes, which says how much that is.
    Alone(Program),
    /// Work.
    Work(Setting, Step),
}

impl Case {
    /// The program that is measured, if it is one.
    pub fn program(&self) -> Option<Program> {
        match self {
            Case::Floor => None,
            Case::Alone(program) => Some(*program),
            Case::Work(setting, _) => setting.task.program(),
        }
    }

    /// What a program with faults by signal is called where it cannot be measured: system calls
    /// that are handed a page that is out may fail in it.
    pub fn by_signal(&self) -> Option<String> {
        match self {
            Case::Work(
                Setting { task: Task::Program(program), .. },
                step @ Step::OverspillSignal,
            ) => Some(format!("{program} in {step}")),
            _ => None,
        }
    }

    /// Whether it cannot be measured without what has this name: a program, or a peer of its own.
    pub fn needs(&self, name: &str) -> bool {
        let peer =
            matches!(self, Case::Work(setting, Step::Peer) if setting.peer.to_string() == name);
        peer || self.program().is_some_and(|program| program.to_string() == name)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Floor => f.write_str("floor"),
            Case::Alone(program) => write!(f, "{program}, alone"),
            Case::Work(setting, step) => {
                let Setting { task, peer, overcommit, threads, .. } = setting;
                write!(
                    f,
                    "{task}, {peer}, {overcommit}x, {}, {threads} threads, {step}",
                    setting.contents()
                )
            }
        }
    }
}

/// The ratio of elapsed time to reach in the library, and in `overspill run` against zram: of our
/// time to the peer's, at 4x overcommit and 2.5:1 contents. A program by itself has none: the
/// median of all has ([`PROGRAMS_TARGET`]).
pub fn target(task: Task, peer: Peer, step: Step) -> Option<f64> {
    let row = match task {
        Task::Accesses(Workload::SeqWrite) => [0.45, 0.35, 0.80],
        Task::Accesses(Workload::SeqRead) => [0.35, 0.30, 0.30],
        Task::Accesses(Workload::RandRead | Workload::ZipfRead) => [0.40, 0.35, 0.60],
        Task::Accesses(Workload::RandWrite) => [0.50, 0.40, 0.60],
        Task::Program(_) => return None,
    };
    match (step, peer) {
        (Step::Library, peer) => Some(row[peer as usize]),
        (Step::OverspillThread | Step::OverspillSignal, Peer::Zram) => Some(RUN_TARGET),
        _ => None,
    }
}

/// What `overspill run` is to reach against zram.
pub const RUN_TARGET: f64 = 0.80;
/// What the median of the real programs is to reach against zram, zswap and the swap file.
pub const PROGRAMS_TARGET: [f64; 3] = [0.70, 0.60, 0.50];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_names_and_groups() {
        let names = |text: &str| {
            text.parse::<Tasks>().unwrap().0.iter().map(Task::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            names("accesses"),
            ["seq-write", "seq-read", "rand-read", "rand-write", "zipf-read"]
        );
        assert_eq!(names("programs"), ["sort", "numpy-sort", "numpy-product", "redis", "cxx"]);
        assert_eq!(
            (names("all").len(), names("numpy").len(), names("sort")),
            (10, 2, vec!["sort".to_owned()])
        );
        assert!(
            "never"
                .parse::<Tasks>()
                .unwrap_err()
                .starts_with("give all, accesses, programs, or of these: seq-write")
        );
    }
}
