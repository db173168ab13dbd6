//! The command line and the environment variables that stand for its options.

mod jobs;
mod jobs_help;
mod metrics;
mod metrics_help;
mod numbers;
mod run;
mod run_help;
pub mod settings;
mod size;
mod size_help;
mod swap;
mod swap_help;
mod values;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
pub use jobs::{ReclaimArgs, SetArgs, StatArgs, TopArgs};
pub use metrics::{Address, MetricsArgs};
pub use run::{FaultDelivery, Memory, RunArgs, Ways};
pub use size::SizeArgs;
use std::ffi::OsString;
pub use swap::{Column, Columns, SwapoffArgs, SwaponArgs};

/// Runs programs in less RAM than they need
///
/// overspill is swap as software that you run, not a host that you configure: an unmodified program
/// gets a budget of RAM, and what does not fit is compressed in RAM or goes to a swap file. It
/// needs no root, no kernel swap and no change to the program, only userfaultfd (`overspill probe`
/// tells).
#[derive(Debug, Parser)]
#[command(name = "overspill", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with its memory in a budget
    #[command(long_about = run_help::RUN_ABOUT, after_long_help = run_help::run_notes())]
    #[command(override_usage = "overspill run [OPTIONS] -- CMD [ARGS]...")]
    Run(RunArgs),
    /// Run a program in little memory, and tell how much it needs
    #[command(long_about = size_help::SIZE_ABOUT, after_long_help = size_help::size_notes())]
    #[command(override_usage = "overspill size [OPTIONS] -- CMD [ARGS]...")]
    Size(SizeArgs),
    /// Change the budget of a running job
    #[command(long_about = jobs_help::SET_ABOUT, after_long_help = jobs_help::SET_NOTES)]
    Set(SetArgs),
    /// Show what a running job does: memory, swapping, faults, waiting
    #[command(long_about = jobs_help::STAT_ABOUT, after_long_help = jobs_help::STAT_NOTES)]
    Stat(StatArgs),
    /// Watch running jobs in the terminal, and change them
    #[command(long_about = jobs_help::TOP_ABOUT, after_long_help = jobs_help::TOP_NOTES)]
    Top(TopArgs),
    /// Tell what running jobs do, as metrics for Prometheus
    #[command(long_about = metrics_help::METRICS_ABOUT)]
    #[command(after_long_help = metrics_help::METRICS_NOTES)]
    Metrics(MetricsArgs),
    /// Take pages of a running job out of memory
    #[command(long_about = jobs_help::RECLAIM_ABOUT, after_long_help = jobs_help::RECLAIM_NOTES)]
    Reclaim(ReclaimArgs),
    /// Give a running job another swap device, or show those that it has
    #[command(long_about = swap_help::SWAPON_ABOUT, after_long_help = swap_help::SWAPON_NOTES)]
    Swapon(SwaponArgs),
    /// Take swap devices of a running job out of use
    #[command(long_about = swap_help::SWAPOFF_ABOUT, after_long_help = swap_help::SWAPOFF_NOTES)]
    Swapoff(SwapoffArgs),
    /// Say what this kernel and user allow, what is used, and what to change to get more
    ///
    /// Exit status 0 where `overspill run` works, 1 where it does not.
    Probe(ProbeArgs),
    /// List the settings that `overspill run --set` takes: values, default, meaning
    Settings(SettingsArgs),
    /// Torture jobs: built with the benches, and not installed
    #[command(hide = true, disable_help_flag = true)]
    Torture {
        /// What its command line says.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// `overspill probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Print one JSON object instead of sentences
    #[arg(long)]
    pub json: bool,
}

/// `overspill settings`.
#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// Print a table in Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// The whole definition, from which manual pages and completions are made.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads the command line; on a mistake, or for help, prints and exits as clap does.
pub fn parse() -> Cli {
    try_parse(std::env::args_os()).unwrap_or_else(|error| {
        let subcommand = std::env::args().nth(1).unwrap_or_default();
        // As in clap's own way to exit: an output that is closed is no reason to do otherwise.
        let _ = error.print();
        std::process::exit(exit_status(&error, &subcommand))
    })
}

/// The exit status of a command line that says nothing to do: a mistake, or a request for help.
fn exit_status(error: &clap::Error, subcommand: &str) -> i32 {
    match subcommand {
        "swapoff" if error.use_stderr() => swap::SWAPOFF_USAGE.into(),
        _ => error.exit_code(),
    }
}

fn try_parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    match (&mut cli.command, matches.subcommand()) {
        (Command::Run(run), Some((_, matches))) => run.ways.settle_swap(matches, definition())?,
        (Command::Size(size), Some((_, matches))) => {
            size.ways.settle_swap(matches, definition())?
        }
        _ => {}
    }
    Ok(cli)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Options that commands have in common refer to what only one of them may tell.
    #[test]
    fn what_help_refers_to_below_is_there() {
        let mut command = Cli::command().term_width(80);
        command.build();
        let mut seen = 0;
        for subcommand in command.get_subcommands_mut() {
            let help = subcommand.render_long_help().to_string();
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            for (at, _) in words.match_indices("\" below") {
                let heading = words[..at].rsplit('"').next().unwrap();
                let is_there = help.lines().any(|line| line.starts_with(heading));
                assert!(is_there, "{}: there is no {heading}", subcommand.get_name());
                seen += 1;
            }
        }
        assert!(seen >= 2, "{seen} references");
    }

    #[test]
    fn the_help_of_every_command_fits_80_columns() {
        let mut command = Cli::command().term_width(80);
        command.build();
        for subcommand in command.get_subcommands_mut() {
            let help = subcommand.render_long_help().to_string();
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{}: {long:#?}", subcommand.get_name());
        }
    }
}
