//! `overspill-load`: a program that needs more memory than it gets, and says how long its accesses
//! took.
//!
//! It is an ordinary program: its memory is that of the allocator, and it knows nothing of
//! overspill. With `--processes` or `--idle` it is a job: it starts itself for each process, and
//! only waits.

#![forbid(unsafe_code)]

use clap::Parser;
use overspill_bench::contents::WORDS;
use overspill_bench::workload::{self, Outcome, Packing, Plan, Workload};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

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
    /// How many times as many accesses as there are pages
    #[arg(long, default_value_t = 1)]
    passes: u64,
    /// How many processes do it, each with a part of the memory; prints how many accesses these
    /// were in all
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
    /// Processes besides that have as much memory together, and only keep it
    #[arg(long, value_name = "N", default_value_t = 0, requires = "processes")]
    idle: usize,
    /// Say when what is accessed is written, and wait for a line; without one, do nothing more
    #[arg(long, conflicts_with = "processes")]
    wait: bool,
}

fn main() -> ExitCode {
    // Nobody waits for the figures when who asked for them was killed. Only a kernel without prctl
    // refuses.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args = Args::parse();
    let done = match args.processes {
        Some(processes) => job(&args, processes),
        None => alone(&args),
    };
    if let Err(error) = done {
        eprintln!("overspill-load: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Accesses memory, and prints what that took.
fn alone(args: &Args) -> io::Result<()> {
    let Args { workload, pages, contents: packing, threads, passes, .. } = *args;
    // It is all there until the process is gone, for who looks from outside.
    let memory = vec![0; pages * WORDS].leak();
    let plan = Plan { workload, packing, threads, passes };
    let outcome = workload::run(plan, memory, || {
        if args.wait {
            println!("ready");
            if io::stdin().read_line(&mut String::new()).is_ok_and(|read| read == 0) {
                std::process::exit(0);
            }
        }
    });
    println!("{}", serde_json::to_string(&outcome)?);
    match outcome.wrong {
        0 => Ok(()),
        wrong => Err(io::Error::other(format!(
            "{wrong} pages held something else than was written to them"
        ))),
    }
}

/// Starts processes that do, and prints how often all of them did.
fn job(args: &Args, processes: usize) -> io::Result<()> {
    // 1. All of them have their memory when the first begins.
    let passes = args.passes.to_string();
    let mut idle = started(args, Workload::SeqRead, args.idle, &[])?;
    let mut busy = started(args, args.workload, processes, &["--passes", &passes])?;
    idle.iter_mut().chain(&mut busy).try_for_each(|process| process.line().map(drop))?;
    // 2. The accesses, all at once.
    busy.iter_mut().try_for_each(|process| process.stdin.write_all(b"\n"))?;
    let accesses = |process: &mut Process| -> io::Result<u64> {
        Ok(serde_json::from_str::<Outcome>(&process.line()?)?.accesses)
    };
    let accesses = busy.iter_mut().map(accesses).sum::<io::Result<u64>>()?;
    // 3. The end of their standard input is that of those that wait.
    for Process { mut child, stdin, .. } in idle.into_iter().chain(busy) {
        drop(stdin);
        let status = child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a process failed ({status})")));
        }
    }
    println!("{accesses} accesses");
    Ok(())
}

/// A process of a job.
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// The next line that it prints.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Err(io::Error::other("a process ended too soon")),
            _ => Ok(line),
        }
    }
}

/// So many processes, each with a part of the pages.
fn started(args: &Args, work: Workload, count: usize, more: &[&str]) -> io::Result<Vec<Process>> {
    let myself = std::env::current_exe()?;
    let pages = (args.pages / count.max(1)).to_string();
    let contents = args.contents.to_string();
    let start = |_| {
        let mut command = Command::new(&myself);
        command.args([&work.to_string(), &pages, "--contents", contents.trim_end_matches(":1")]);
        command.arg("--wait").args(more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).expect("both are pipes");
        Ok(Process { child, stdin, stdout: BufReader::new(stdout) })
    };
    (0..count).map(start).collect()
}
