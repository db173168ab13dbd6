//! The options, and what is asked for with them.

use super::super::common::{Common, Plot};
use super::case::{Step, Task, Tasks};
use crate::model::ladder;
use crate::work::vs_kernel::names::Peer;
use clap::ValueEnum;
use overspill::units::Bytes;
use overspill_bench::workload::Packing;
use std::path::PathBuf;

/// One of a kind, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice<T>(Option<T>);

/// Reads a name of the kind, or `all`.
fn choice<T: ValueEnum>(text: &str) -> Result<Choice<T>, String> {
    if text == "all" {
        return Ok(Choice(None));
    }
    T::from_str(text, false).map(|one| Choice(Some(one))).map_err(|_| {
        let names = T::value_variants().iter().filter_map(T::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        format!("give all, or of these: {}", names.join(", "))
    })
}

/// Options of `overspill-bench vs-kernel`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// What is done: accesses to memory (seq-write, seq-read, rand-read, rand-write, zipf-read), or
    /// real programs (sort, numpy-sort, numpy-product, redis, cxx) that are installed; `accesses`,
    /// `programs` or `all` of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "accesses")]
    pub workload: Vec<Tasks>,
    /// With which swap of the kernel it is compared: all, or of zram, zswap, file
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    #[arg(value_parser = choice::<Peer>)]
    pub peer: Vec<Choice<Peer>>,
    /// Who does it besides the peer [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub steps: Vec<Step>,
    /// The memory that is accessed, and about what programs take; published figures are of 512M and
    /// more
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub size: Bytes,
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
    /// Where swap files are made: a directory on a disk [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Settings of overspill, as for `overspill run --set`
    #[arg(long, value_name = "KEY=VALUE[,...]", default_value = "")]
    pub set: String,
    #[command(flatten)]
    pub plot: Plot,
    /// Write a page with the drawings and all figures, as HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Args {
    /// What is to be done, each once and in the order of all.
    pub fn tasks(&self) -> Vec<Task> {
        let asked = |task: &Task| self.workload.iter().any(|tasks| tasks.0.contains(task));
        Task::all().into_iter().filter(asked).collect()
    }

    /// The peers, each once and in the order of all.
    pub fn peers(&self) -> Vec<Peer> {
        let all = self.peer.iter().any(|choice| choice.0.is_none());
        let named: Vec<Peer> = self.peer.iter().filter_map(|choice| choice.0).collect();
        ladder::chosen(if all { &[] } else { &named })
    }
}
