//! `overspill torture`: a verified load under everything that can happen to a job.
//!
//! From the bottom up: [`table`] (what the job and this program have in common), [`plan`] (what is
//! to be done), [`job`] (the job, and what of it is left), [`full`] (disks without room), [`watch`]
//! (hangs), [`events`] (what happens to it), [`run`] (a run and what came of it), [`reduce`]
//! (findings in fewer words). The load is a program in C, `load/`. There are no locks here.

#![forbid(unsafe_code)]

mod events;
mod full;
mod job;
mod plan;
mod reduce;
mod run;
mod table;
mod watch;

use clap::Parser;
use clap::builder::TypedValueParser;
use overspill::units::Bytes;
use plan::{FINDINGS, Fault, INSIDE, OUTSIDE, Plan};
use run::Outcome;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tortures jobs of overspill: a verified load under everything that can happen to it
///
/// Processes of a job work on pages of known content in every way there is, and look at each again;
/// meanwhile processes are killed and stopped, the budget changes, disks are full for a while,
/// devices come and go, and some fail. Each minute one line says how far it is. A finding is tried
/// again with less and less, and the shortest command that still finds something is printed. Not
/// every finding reproduces each time: a shorter command is tried several times before it is taken
/// to find nothing.
///
/// The pages lie in every kind of memory: mappings by themselves, beside others and in
/// reservations, large arrays, the heap, what brk gives, /dev/zero, code that is executed, copies
/// of files, what grows down, and addresses of the program's choice.
///
/// What the load does: touch, map, mremap, advise, protect, lock, files, direct (O_DIRECT), remote
/// (process_vm_readv and process_vm_writev), fork, exec, signals, threads, heap, slay (children of
/// forks are killed). What happens to it: kill (SIGKILL), stop (SIGSTOP), budget, devices (swapon
/// and swapoff), full (no disk has room for up to 2 s), writes (a device whose writes fail), errors
/// (a device loses its pages). Only where asked for: break, hang and leak, which are findings of
/// the load itself.
///
/// Direct and remote come in the second half: pages leave in fewer ways from then on.
///
/// The machine's time is not set: nothing of the engine goes by the time of day, as `make tidy`
/// checks.
///
/// Exit status: 0 if nothing was found, 1 if something was, 2 for a mistake on the command line, 3
/// if it could not be tried.
#[derive(Debug, Parser)]
#[command(name = "overspill torture", bin_name = "overspill torture", version)]
#[command(max_term_width = 100)]
struct Args {
    /// How long, each way that faults are served
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the load and what happens to it begin; printed if not given
    #[arg(long)]
    seed: Option<u64>,
    /// How faults are served; both ways one after the other if not given
    #[arg(long)]
    fault: Option<Fault>,
    /// The budget of the job, to begin with
    #[arg(long, value_name = "SIZE", default_value = "48M")]
    memory: Bytes,
    /// Processes that work; each starts others
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = up_to(64))]
    processes: u16,
    /// Threads of each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = up_to(8))]
    threads: u16,
    /// Memory of each
    #[arg(long, value_name = "SIZE", default_value = "24M")]
    size: Bytes,
    /// What is done, and nothing else
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = classes())]
    only: Vec<String>,
    /// What is not done
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = classes())]
    without: Vec<String>,
    /// How long a thread may stand still, what is asked of the job be late, and what belongs to it
    /// be there after its end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Settings of the engine, as of `overspill run`
    #[arg(long, value_name = "KEY=VALUE[,...]")]
    set: Option<String>,
    /// A small file system of its own for the first swap device; it is filled while disks are full
    #[arg(long, value_name = "DIRECTORY")]
    swap: Option<PathBuf>,
    /// Where everything else is, and the swap files as well without --swap [default: $TMPDIR, or
    /// /var/tmp]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Do not try findings again
    #[arg(long)]
    no_reduce: bool,
    /// How often a shorter command is tried that finds nothing
    #[arg(long, value_name = "N", default_value_t = reduce::TRIES, value_parser = tries())]
    tries: u32,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

/// Exit status where nothing could be tried.
const NOT_TRIED: u8 = 3;

fn up_to(most: i64) -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=most)
}

fn tries() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=1000)
}

fn classes() -> Vec<&'static str> {
    [&INSIDE[..], &OUTSIDE].concat()
}

fn main() -> ExitCode {
    let args = Args::parse();
    match torture(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("overspill torture: {error}");
            ExitCode::from(NOT_TRIED)
        }
    }
}

/// Tortures as the command line says; how many findings there are.
fn torture(args: &Args) -> std::io::Result<usize> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(now.as_secs());
    let both = [Fault::Signal, Fault::Thread];
    let mut findings = 0;
    for fault in both.into_iter().filter(|fault| args.fault.is_none_or(|only| only == *fault)) {
        let plan = plan_of(args, fault, seed)?;
        eprintln!("{}", plan.command());
        let mut outcome = run::run(&plan)?;
        let mut shortest = plan.clone();
        if outcome.finding.is_some() && !args.no_reduce {
            eprintln!("found, and tried with less: {}", outcome.finding.as_deref().unwrap_or(""));
            (shortest, outcome) = reduce::reduce(plan, outcome, args.tries, run::run)?;
        }
        findings += usize::from(outcome.finding.is_some());
        print(args.json, &shortest, &outcome);
    }
    Ok(findings)
}

fn plan_of(args: &Args, fault: Fault, seed: u64) -> std::io::Result<Plan> {
    let is_wanted = |class: &&str| match args.only.as_slice() {
        [] => !FINDINGS.contains(class),
        only => only.iter().any(|wanted| wanted == class),
    };
    let classes: Vec<_> = classes()
        .into_iter()
        .filter(is_wanted)
        .filter(|class| !args.without.iter().any(|unwanted| unwanted == class))
        .collect();
    if !classes.iter().any(|class| INSIDE.contains(class)) {
        return Err(std::io::Error::other(
            "the load has nothing to do: name one of its classes with --only",
        ));
    }
    let temporary = || std::env::var_os("TMPDIR").map_or("/var/tmp".into(), PathBuf::from);
    let overspill = std::env::current_exe()?.with_file_name("overspill");
    if !overspill.exists() {
        let missing = format!("there is no {}: build it with `make`", overspill.display());
        return Err(std::io::Error::other(missing));
    }
    // What would be refused during the run is so before.
    if let Some(swap) = &args.swap {
        full::Ballast::new(swap)?;
    }
    Ok(Plan {
        fault,
        seed,
        time: Duration::from_secs(args.seconds),
        patience: Duration::from_secs(args.patience),
        memory_mib: args.memory.0 >> 20,
        processes: args.processes.into(),
        threads: args.threads.into(),
        process_mib: (args.size.0 >> 20).max(1),
        classes,
        set: args.set.clone(),
        swap: args.swap.clone(),
        scratch: args.dir.clone().unwrap_or_else(temporary),
        overspill,
    })
}

fn print(as_json: bool, plan: &Plan, outcome: &Outcome) {
    let [killed, lost] = outcome.ends;
    let figures = outcome.figures.unwrap_or_default();
    if as_json {
        let object = json!({
            "fault": plan.fault.to_string(),
            "seed": plan.seed,
            "seconds": outcome.time.as_secs_f64(),
            "operations": outcome.beats,
            "killed": killed,
            "lost_page_ends": lost,
            "peak_mib": figures.peak_mib,
            "write_errors": figures.write_errors,
            "oom_kills": figures.oom_kills,
            "budget_mib": outcome.budget_mib,
            "finding": outcome.finding,
            "command": plan.command(),
        });
        return println!("{object}");
    }
    println!(
        "{}: {} operations in {} s, {killed} processes killed, {lost} ended by a lost page, {} \
         writes failed, {} of {} MiB in use at most: {}",
        plan.fault,
        outcome.beats,
        outcome.time.as_secs(),
        figures.write_errors,
        figures.peak_mib,
        outcome.budget_mib,
        outcome.finding.as_deref().unwrap_or("nothing found"),
    );
    if outcome.finding.is_some() {
        println!("again: {}", plan.command());
    }
}
