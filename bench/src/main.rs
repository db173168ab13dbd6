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
//! [`model::declare::Ladder`], `Args` and `run`; then its command in `benches!` here.

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
use benches::*;
use clap::{Parser, Subcommand};
use machine::put_back;
use measure::{Failure, child};
use render::OutFile;
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

/// The commands of these benches, each with what its measurements do in a process of their own.
macro_rules! benches {
    ($($(#[$about:meta])* $command:ident($bench:ident $(, $measure:path)?);)*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $(
                $(#[$about])*
                $command {
                    #[command(flatten)]
                    common: Common,
                    #[command(flatten)]
                    args: $bench::Args,
                },
            )*
            /// One measurement, in the process that a bench starts for it
            #[command(hide = true)]
            MeasureOne(child::Asked),
            /// Waits until a measurement of the kernel has ended, and puts back what it changed
            #[command(hide = true)]
            PutBack {
                /// What is to be put back, as JSON
                what: String,
            },
        }

        fn run(command: &Command) -> Result<(), Failure> {
            match command {
                $(Command::$command { common: Common { rounds, json, plot }, args } => {
                    let plot = plot.as_deref().map(|path| OutFile::open("drawing", path));
                    let plot = plot.transpose()?;
                    render::print(&$bench::run(args, *rounds)?, *json, plot)
                })*
                Command::MeasureOne(asked) => measure_one(asked),
                Command::PutBack { what } => put_back::run(what),
            }
        }

        fn measure_one(asked: &child::Asked) -> Result<(), Failure> {
            $($(if asked.bench == $bench::LADDER.bench {
                return child::answer(asked, $measure);
            })?)*
            Err(Failure::new(format!("there is no bench '{}'", asked.bench)))
        }
    };
}

benches! {
    /// First writes to fresh pages: the page-frame allocator, step by step, and the kernel's own
    /// faults
    PageFault(page_fault, work::page_fault::measure_one);
    /// Memory written and read in sequence on more than fits: swap slots and the swap cache, step
    /// by step
    SwapWSeq(swap_w_seq, work::swap_w_seq::measure_one);
    /// Codecs: how far they pack pages, and how long that takes
    Codecs(codecs);
    /// Pages read at random on more than fits: latency by where they come from
    SwapRRand(swap_r_rand, work::swap_r_rand::measure_one);
    /// The compressed tier: what it takes to forget a slot that is given back, and which pages are
    /// worth keeping
    Zswap(zswap, work::zswap::measure_one);
    /// Many threads that fault at once and find no frame (hackbench): who reclaims, step by step
    ReclaimStorm(reclaim_storm, work::reclaim_storm::measure_one);
    /// A swap device taken out of use: a page at a time, in runs, and by the kernel; alone and
    /// beside a load
    Swapoff(swapoff, work::swapoff::measure_one);
    /// Which pages stay in memory: misses beside those of FIFO, LRU and Belady's optimum on the
    /// same traces
    WorkingSet(working_set, work::working_set::measure_one);
    /// Processes of one job in one budget: how they share it, and what a process costs; beside the
    /// kernel's zram
    Job(job);
    /// The same program on the same RAM: the kernel's zram, zswap and swap file beside overspill
    VsKernel(vs_kernel, work::vs_kernel::measure_one);
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.say();
            ExitCode::FAILURE
        }
    }
}
