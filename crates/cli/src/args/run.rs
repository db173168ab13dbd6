//! The options of `overspill run`, and the environment variables that stand for them.

use super::values::{parse_file, parse_memory};
use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use overspill::config::{Config, SwapList};
use overspill::units::Bytes;
use std::ffi::OsString;
use std::path::PathBuf;

/// How faults reach the engine, as the user asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum FaultDelivery {
    /// By signal where that works, else by a thread
    #[default]
    Auto,
    /// A handler thread serves faults: system calls see managed memory as any other; needs rights
    /// (see `overspill probe`)
    Thread,
    /// The faulting thread serves itself: faster, and needs fewer rights; system calls that are
    /// handed managed memory are stopped by a filter and made with memory that is safe (there is no
    /// io_uring then)
    Signal,
}

/// A budget as the user gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// What an earlier run of the command has found.
    Auto,
    Size(Bytes),
}

fn parse_budget(text: &str) -> Result<Memory, String> {
    match text {
        "auto" => Ok(Memory::Auto),
        text => parse_memory(text).map(Memory::Size),
    }
}

/// How a program's memory is managed, but for its budget.
#[derive(Debug, Args)]
pub struct Ways {
    /// Where pages go that do not fit in the budget; may be given more than once, or name several
    ///
    /// A directory (a file without a name is made there and is gone with the program), a file or a
    /// block device (what they hold is OVERWRITTEN), used up to SIZE bytes; or memory that
    /// simulates a device (ram:SIZE). What follows a path as KEY=VALUE belongs to it: see "Swap
    /// devices" below. Default: the directory $TMPDIR, or /var/tmp where that is not set or is
    /// memory itself (tmpfs).
    #[arg(
        long,
        value_name = "PATH[:SIZE][,KEY=VALUE...]",
        env = "OVERSPILL_SWAP",
        hide_env_values = true,
        value_parser = parse_swap
    )]
    pub swap: Vec<SwapList>,

    /// Use no swap device: what does not fit compressed does not fit
    #[arg(
        long,
        env = "OVERSPILL_NO_SWAP",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub no_swap: bool,

    /// How page faults are served
    #[arg(
        long,
        value_enum,
        value_name = "WAY",
        env = "OVERSPILL_FAULT",
        hide_env_values = true,
        default_value = "auto"
    )]
    pub fault: FaultDelivery,

    /// Settings of the engine, as `overspill settings` lists them; may be given more than once
    #[arg(
        long,
        value_name = "KEY=VALUE[,...]",
        env = "OVERSPILL_SET",
        hide_env_values = true,
        value_parser = parse_settings
    )]
    pub set: Vec<String>,
}

/// `overspill run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The budget in RAM, such as 512M or 1.5G
    ///
    /// It holds resident pages, compressed pages, and pages on their way in or out. Default: three
    /// quarters of what is available to the job, which is the least of its memory cgroup limits and
    /// MemAvailable. `auto` takes the least with which the command takes a tenth more time, by what
    /// `overspill size` has found of it.
    #[arg(
        long,
        value_name = "SIZE",
        env = "OVERSPILL_MEMORY",
        hide_env_values = true,
        value_parser = parse_budget
    )]
    pub memory: Option<Memory>,

    #[command(flatten)]
    pub ways: Ways,

    /// Run nothing that cannot be managed
    ///
    /// Programs that the preload library does not get into (set-user-ID ones, and static ones with
    /// faults by thread) are not executed in the job either: that fails with EPERM, and a sentence
    /// says why. The exit status is 123 if the program succeeded and more than a tenth of the
    /// budget was memory that is not managed.
    #[arg(
        long,
        env = "OVERSPILL_STRICT",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub strict: bool,

    /// Print statistics to standard error at the end
    #[arg(
        long,
        env = "OVERSPILL_STATS",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub stats: bool,

    /// Write statistics to FILE as JSON at the end; /dev/stderr works too
    #[arg(
        long,
        value_name = "FILE",
        env = "OVERSPILL_STATS_JSON",
        hide_env_values = true,
        value_parser = parse_file
    )]
    pub stats_json: Option<PathBuf>,

    /// Write how much memory it needs to FILE, as a page with a picture, see `overspill size`
    #[arg(
        long,
        value_name = "FILE",
        env = "OVERSPILL_REPORT",
        hide_env_values = true,
        value_parser = parse_file
    )]
    pub report: Option<PathBuf>,

    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

fn parse_swap(list: &str) -> Result<SwapList, String> {
    match list.parse() {
        Ok(SwapList(specs)) if specs.is_empty() => {
            Err("name a directory on a disk, such as /var/tmp".to_owned())
        }
        parsed => parsed.map_err(|bad: overspill::config::BadSwap| bad.to_string()),
    }
}

fn parse_settings(list: &str) -> Result<String, String> {
    Config::default().apply_settings(list).map_err(|bad| bad.to_string())?;
    Ok(list.to_owned())
}

impl Ways {
    /// `--swap` and `--no-swap` exclude each other, but the command line wins over the environment:
    /// a run inside a run finds the outer one's choice there.
    ///
    /// # Errors
    /// When both were given on the command line, the usage being that of `command`.
    pub fn settle_swap(
        &mut self,
        matches: &ArgMatches,
        mut command: clap::Command,
    ) -> Result<(), clap::Error> {
        if self.swap.is_empty() || !self.no_swap {
            return Ok(());
        }
        let by_hand = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (by_hand("swap"), by_hand("no_swap")) {
            (true, false) => self.no_swap = false,
            (false, true) => self.swap.clear(),
            _ => {
                let message = "--swap and --no-swap exclude each other: give one of them";
                return Err(command.error(ErrorKind::ArgumentConflict, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, try_parse};

    fn run(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let args = ["overspill", "run"].iter().chain(args).map(OsString::from);
        try_parse(args).map(|cli| match cli.command {
            Command::Run(run) => run,
            _ => unreachable!("the subcommand is run"),
        })
    }

    #[test]
    fn the_programs_own_options_are_left_alone() {
        let args = run(&["--memory", "64M", "--", "prog", "--memory", "1", "--", "-x"]).unwrap();
        assert_eq!(args.memory, Some(Memory::Size(Bytes(64 << 20))));
        assert_eq!(args.command, ["prog", "--memory", "1", "--", "-x"]);
        assert_eq!(run(&["prog", "--stats"]).unwrap().command, ["prog", "--stats"]);
        assert!(!run(&["prog", "--stats"]).unwrap().stats);
    }

    #[test]
    fn values_are_checked_where_they_are_read() {
        let refused = |args: &[&str]| run(args).unwrap_err().to_string();
        assert!(refused(&["--memory", "3M", "--", "x"]).contains("the smallest possible is 4 MiB"));
        assert!(refused(&["--memory", "lots", "--", "x"]).contains("'lots' is not a size"));
        let auto = run(&["--memory", "auto", "--", "x"]).unwrap();
        assert_eq!(auto.memory, Some(Memory::Auto));
        assert!(refused(&["--set", "folio=3", "--", "x"]).contains("folio cannot be '3'"));
        assert!(refused(&["--swap", "/tmp:9Q", "--", "x"]).contains("not a size"));
        assert!(refused(&["--swap", "", "--", "x"]).contains("name a directory"));
        assert!(
            refused(&["--swap", "/tmp,colour=red", "--", "x"])
                .contains("'colour=red' is not an option")
        );
        assert!(refused(&["--stats-json", "-", "--", "x"]).contains("/dev/stderr"));
        assert!(
            refused(&["--swap", "/tmp", "--no-swap", "--", "x"]).contains("exclude each other")
        );
        assert!(refused(&[]).contains("CMD"));
    }

    #[test]
    fn swaps_may_be_repeated_or_listed() {
        let args =
            run(&["--swap", "/a:1G,prio=1,/b", "--swap", "/c,discard=once", "--", "x"]).unwrap();
        let specs: Vec<_> =
            args.ways.swap.iter().flat_map(|list| &list.0).map(ToString::to_string).collect();
        assert_eq!(specs, ["/a:1073741824,prio=1", "/b", "/c,discard=once"]);
    }
}
