//! How a program is started that is measured: in a cgroup, and not for longer than who measures it
//! lives.
//!
//! [`command`] is the command line that has this program do so: it enters the cgroup and becomes
//! the other program.

use crate::machine::cgroup::join;
use crate::measure::{Failing, Failure, child, fail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "start";

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cgroup to enter
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// A command that starts another, with a process group of its own.
pub fn command(cgroup: Option<&Path>, words: &[OsString]) -> Result<Command, Failure> {
    let mut command = child::myself([SUBCOMMAND])?;
    if let Some(cgroup) = cgroup {
        command.arg("--cgroup").arg(cgroup);
    }
    command.arg("--").args(words).process_group(0);
    Ok(command)
}

pub fn run(args: &Args) -> Result<(), Failure> {
    child::end_with_parent();
    if let Some(cgroup) = &args.cgroup {
        join(cgroup).failing(format_args!("'{}' cannot be entered", cgroup.display()))?;
    }
    let error = Command::new(&args.words[0]).args(&args.words[1..]).exec();
    fail!("'{}' cannot be started: {error}", args.words[0].to_string_lossy())
}
