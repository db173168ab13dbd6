//! What is compared: peers, and those who do the same work.

use crate::model::row::Case;
use crate::work::vs_kernel::names::{Peer, Program};
use clap::ValueEnum;
use overspill_bench::workload::{Packing, Workload};
use serde_json::json;
use std::fmt;
use std::str::FromStr;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
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

overspill_bench::named!(Step);

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
pub enum Kind {
    /// What the mechanisms cost without anything around them.
    Floor,
    /// A program with all the RAM that it takes, which says how much that is.
    Alone(Program),
    /// Work.
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
        match self {
            Kind::Work(
                Setting { task: Task::Program(program), .. },
                step @ Step::OverspillSignal,
            ) => Some(format!("{program} in {step}")),
            _ => None,
        }
    }

    /// Whether it cannot be measured without what has this name: a program, or a peer of its own.
    pub fn needs(&self, name: &str) -> bool {
        let peer =
            matches!(self, Kind::Work(setting, Step::Peer) if setting.peer.to_string() == name);
        peer || self.program().is_some_and(|program| program.to_string() == name)
    }
}

/// The case of a kind: its step and labels.
pub fn case(kind: Kind) -> Case<Kind> {
    let (step, labels) = match kind {
        Kind::Floor => ("floor".to_owned(), Vec::new()),
        Kind::Alone(program) => {
            ("alone".to_owned(), vec![("workload", json!(program.to_string()))])
        }
        Kind::Work(setting, step) => {
            let Setting { task, peer, overcommit, threads, .. } = setting;
            let labels = vec![
                ("workload", json!(task.to_string())),
                ("peer", json!(peer.to_string())),
                ("overcommit", json!(overcommit)),
                ("contents", json!(setting.contents())),
                ("threads", json!(threads)),
            ];
            (step.to_string(), labels)
        }
    };
    Case { step, labels, reference: None, what: kind }
}

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
