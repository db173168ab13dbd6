//! The subcommands, a file each.

mod metrics;
mod probe;
mod reclaim;
mod run;
mod set;
mod settings;
mod size;
mod stat;
mod swapoff;
mod swapon;
mod top;
mod torture;

use crate::args::Command;
use crate::failure::Failure;

/// Runs a subcommand; returns the exit status.
pub fn run(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Size(args) => size::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Reclaim(args) => reclaim::run(&args),
        Command::Swapon(args) => swapon::run(&args),
        Command::Swapoff(args) => swapoff::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Settings(args) => settings::run(&args),
        Command::Torture { args } => torture::run(&args),
    }
}
