//! `overspill-load`: a program that needs more memory than it gets, and says how long its accesses
//! took.
//!
//! It is an ordinary program: its memory is that of the allocator, and it knows nothing of
//! overspill.

#![forbid(unsafe_code)]

use clap::Parser;
use overspill_bench::contents::WORDS;
use overspill_bench::workload::{self, Packing, Plan, Workload};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::process::ExitCode;

/// Accesses memory, and prints how long that took as JSON
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// What is done
    workload: Workload,
    /// Pages of memory, of 4 KiB
    pages: usize,
    /// How far LZ4 packs what they hold
    #[arg(long, default_value = "2.5")]
    contents: Packing,
    /// How many threads do it, each with a part of the memory
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> ExitCode {
    // Nobody waits for the figures when who asked for them was killed. Only a kernel without prctl
    // refuses.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let Args { workload, pages, contents, threads } = Args::parse();
    let outcome =
        workload::run(Plan { workload, packing: contents, threads }, &mut vec![0; pages * WORDS]);
    println!("{}", serde_json::to_string(&outcome).expect("numbers are JSON"));
    if outcome.wrong > 0 {
        eprintln!(
            "overspill-load: {} pages held something else than was written to them",
            outcome.wrong
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
