//! The options, and what is asked for with them.

use crate::model::*;
use crate::work::vs_kernel::case::{Peer, Program, Task, Variant};
use clap::ValueEnum;
use overspill::units::Bytes;
use overspill_bench::workload::Packing;
use std::fmt::Display;
use std::path::PathBuf;

/// Those of all that a word of the command line means: one by its name, or a group.
pub fn meant<T: Display>(
    all: impl IntoIterator<Item = T>,
    groups: &str,
    is_meant: impl Fn(&T) -> bool,
) -> Result<Vec<T>, String> {
    let (meant, others): (Vec<T>, Vec<T>) = all.into_iter().partition(is_meant);
    if meant.is_empty() {
        let names: Vec<String> = others.iter().map(T::to_string).collect();
        return Err(format!("give {groups}, or of these: {}", names.join(", ")));
    }
    Ok(meant)
}

fn peers(word: &str) -> Result<Vec<Peer>, String> {
    let all = Peer::value_variants().iter().copied();
    meant(all, "all", |peer| word == "all" || word == peer.to_string())
}

fn tasks(word: &str) -> Result<Vec<Task>, String> {
    meant(Task::all(), "all, accesses, programs", |task| match word {
        "all" => true,
        "accesses" => task.program().is_none(),
        "programs" => task.program().is_some(),
        "numpy" => matches!(task.program(), Some(Program::NumpySort | Program::NumpyProduct)),
        name => name == task.to_string(),
    })
}

/// What is worked on, unless the user says how much.
const SIZE_BY_DEFAULT: Bytes = Bytes(64 << 20);

/// The options of every bench that has the kernel do something and overspill the same.
#[derive(Clone, Debug, clap::Args)]
pub struct Sides {
    /// Who does it besides the peer [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub steps: Vec<Variant>,
    /// The memory that is accessed, and about what programs take; published figures are of 512M and
    /// more [default: 64M; of a command what it takes by itself]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Bytes>,
    /// Where swap files are made: a directory on a disk [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Settings of overspill, as for `overspill run --set`
    #[arg(long, value_name = "KEY=VALUE[,...]", default_value = "")]
    pub set: String,
}

impl Sides {
    /// The memory that is worked on, where no command of the user's says how much that is.
    pub fn size(&self) -> Bytes {
        self.size.unwrap_or(SIZE_BY_DEFAULT)
    }

    /// The steps that were asked for, each once and in their order. Those with which the others
    /// are compared are measured in any case.
    pub fn steps(&self) -> Vec<Variant> {
        let others = chosen(&self.steps).into_iter().filter(|step| *step != Variant::Peer);
        [Variant::Peer].into_iter().chain(others).collect()
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What is done: accesses to memory (seq-write, seq-read, rand-read, rand-write, zipf-read), or
    /// real programs (sort, numpy-sort, numpy-product, redis, cxx, make, python-pool, postgresql)
    /// that are installed; `accesses`, `programs` or `all` of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "accesses")]
    #[arg(value_parser = tasks)]
    workload: Vec<Meant<Task>>,
    /// With which swap of the kernel it is compared: all, or of zram, zswap, file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    #[arg(value_parser = peers)]
    peer: Vec<Meant<Peer>>,
    /// How many times the RAM that is
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16))]
    pub overcommit: Vec<u32>,
    /// How far LZ4 packs what pages hold, as 2.5 for 2.5:1; programs hold what they hold
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2.5")]
    pub contents: Vec<Packing>,
    /// Numbers of threads, each with a part of the memory; programs have one
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Vec<u32>,
    #[command(flatten)]
    pub sides: Sides,
    /// Write a page with the drawings and all figures, as HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The RAM that a command gets [default: a third of what it takes by itself]
    #[arg(long, value_name = "SIZE", requires = "command")]
    pub memory: Option<Bytes>,
    /// Compare this command instead, run where this is, as root: it has to do the same each time,
    /// and what it prints is compared. Of the steps it is overspill-signal unless others are named
    #[arg(last = true, value_name = "COMMAND")]
    #[arg(conflicts_with_all = ["workload", "overcommit", "contents", "threads"])]
    pub command: Vec<String>,
}

/// What one word means.
pub type Meant<T> = Vec<T>;

impl Args {
    /// What is to be done, each once and in the order of all.
    pub fn tasks(&self) -> Vec<Task> {
        in_order(self.workload.concat())
    }

    /// The peers, each once and in the order of all.
    pub fn peers(&self) -> Vec<Peer> {
        in_order(self.peer.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_names_and_groups() {
        let names = |text: &str| -> Vec<String> {
            tasks(text).unwrap().iter().map(Task::to_string).collect()
        };
        let accesses = ["seq-write", "seq-read", "rand-read", "rand-write", "zipf-read"];
        assert_eq!(names("accesses"), accesses);
        let programs = ["sort", "numpy-sort", "numpy-product", "redis", "cxx"];
        assert_eq!(names("programs")[..5], programs);
        assert_eq!(names("programs")[5..], ["make", "python-pool", "postgresql"]);
        assert_eq!((names("all").len(), names("numpy").len(), names("sort").len()), (13, 2, 1));
        assert!(tasks("busy-2").is_err(), "it is of the bench of jobs");
    }
}
