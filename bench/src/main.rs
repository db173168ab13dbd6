//! `overspill-bench`: the engine's experiments, each mechanism beside its own baseline and beside
//! the kernel.
//!
//! Folders are layers; each uses only those above it in this list:
//!
//! 1. [`measure`]: cases in turn, rounds, a process for each measurement, threads that start
//!    together, the pool that is measured, counters, samples and their medians;
//! 2. [`model`]: the words in which a bench declares steps, figures, comparisons, goals and charts,
//!    and what follows from them;
//! 3. [`render`]: that as a table with verdicts, as JSON, as a drawing, as a page;
//! 4. [`machine`]: where pages go, the kernel's own swap, and that nothing of it stays;
//! 5. [`work`]: what is done and timed, in the process of one measurement;
//! 6. [`benches`]: a declaration for each bench, its options, and what it plans.
//!
//! What pages hold, and how they are accessed, is in the library [`overspill_bench`], which the
//! program that is measured has in common with this one. Nothing of it is linked into the product.
//! There are no locks here.
//!
//! To add a bench: its work in [`work`], with a request and `measure_one`; in [`benches`] a
//! [`model::declare::Ladder`], `Args` and `run`; then a line in each of [`Command`], [`run`] and
//! [`measure_one`].

#![forbid(unsafe_code)]

mod benches;
#[cfg(test)]
mod fixture;
mod machine;
mod measure;
mod model;
mod render;
mod work;

use benches::common::Common;
use benches::{
    codecs, page_fault, reclaim_storm, swap_r_rand, swap_w_seq, swapoff, vs_kernel, working_set,
    zswap,
};
use clap::{Parser, Subcommand};
use machine::{put_back, start};
use measure::{Failure, child};
use model::findings::Findings;
use std::process::ExitCode;

/// Measures the mechanisms of overspill, each beside its baseline and beside the kernel
///
/// Each bench runs its steps in turn, several rounds of them, and reports medians with the lowest
/// and the highest value. Compare within one run only: a machine is faster or slower from one
/// minute to the next.
#[derive(Debug, Parser)]
#[command(name = "overspill-bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// First writes to fresh pages: the page-frame allocator, step by step, and the kernel's own
    /// faults
    PageFault(page_fault::Args),
    /// Memory written and read in sequence on more than fits: swap slots and the swap cache, step
    /// by step
    SwapWSeq(swap_w_seq::Args),
    /// Codecs: how far they pack pages, and how long that takes
    Codecs(codecs::Args),
    /// Pages read at random on more than fits: latency by where they come from
    SwapRRand(swap_r_rand::Args),
    /// The compressed tier: what it takes to forget a slot that is given back, and which pages are
    /// worth keeping
    Zswap(zswap::Args),
    /// Many threads that fault at once and find no frame (hackbench): who reclaims, step by step
    ReclaimStorm(reclaim_storm::Args),
    /// A swap device taken out of use: a page at a time, in runs, and by the kernel; alone and
    /// beside a load
    Swapoff(swapoff::Args),
    /// Which pages stay in memory: misses beside those of FIFO, LRU and Belady's optimum on the
    /// same traces
    WorkingSet(working_set::Args),
    /// The same program on the same RAM: the kernel's zram, zswap and swap file beside overspill
    VsKernel(vs_kernel::Args),
    /// One measurement, in the process that a bench starts for it
    #[command(hide = true)]
    MeasureOne(child::Args),
    /// Waits until a measurement of the kernel has ended, and puts back what it changed
    #[command(hide = true)]
    PutBack(put_back::PutBack),
    /// Enters a cgroup and becomes the program that is measured
    #[command(hide = true)]
    Start(start::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::MeasureOne(args) => measure_one(&args),
        Command::PutBack(args) => put_back::run(&args),
        Command::Start(args) => start::run(&args),
        command => run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.say();
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    let (common, findings): (&Common, Findings) = match command {
        Command::PageFault(args) => (&args.common, page_fault::run(args)?),
        Command::SwapWSeq(args) => (&args.common, swap_w_seq::run(args)?),
        Command::Codecs(args) => (&args.common, codecs::run(args)?),
        Command::SwapRRand(args) => (&args.common, swap_r_rand::run(args)?),
        Command::Zswap(args) => (&args.common, zswap::run(args)?),
        Command::ReclaimStorm(args) => (&args.common, reclaim_storm::run(args)?),
        Command::Swapoff(args) => (&args.common, swapoff::run(args)?),
        Command::WorkingSet(args) => (&args.common, working_set::run(args)?),
        Command::VsKernel(args) => (&args.common, vs_kernel::run(args)?),
        Command::MeasureOne(_) | Command::PutBack(_) | Command::Start(_) => {
            unreachable!("main takes them")
        }
    };
    render::print(&findings, common.json)
}

fn measure_one(args: &child::Args) -> Result<(), Failure> {
    match args.bench.as_str() {
        page_fault::NAME => child::answer(args, page_fault::measure_one),
        reclaim_storm::NAME => child::answer(args, reclaim_storm::measure_one),
        swap_r_rand::NAME => child::answer(args, swap_r_rand::measure_one),
        swap_w_seq::NAME => child::answer(args, swap_w_seq::measure_one),
        swapoff::NAME => child::answer(args, swapoff::measure_one),
        vs_kernel::NAME => child::answer(args, vs_kernel::measure_one),
        working_set::NAME => child::answer(args, working_set::measure_one),
        zswap::NAME => child::answer(args, zswap::measure_one),
        other => Err(Failure::new(format!("there is no bench '{other}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
