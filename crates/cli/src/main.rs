//! The `overspill` command.
//!
//! [`args`] reads the command line, [`run`], [`stat`], [`set`], [`reclaim`], [`swapon`],
//! [`swapoff`], [`probe`] and [`settings`] are its subcommands. `run` in the order of its steps:
//! [`probe`] (may it work here), [`memory`] and [`swap`] (budget and devices), [`preload`] (the
//! library), [`target`] (the program, with [`script`], [`elf`] and [`privileges`]), [`rundir`]
//! (where statistics are kept), [`mod@env`] (what the library is told), [`control`] (the socket by
//! which the others reach it), [`signals`] (waiting), [`report`] (what is said at the end). Every
//! refusal is a [`failure::Failure`].

#![forbid(unsafe_code)]

mod args;
mod control;
mod elf;
mod env;
mod failure;
mod memory;
mod preload;
mod privileges;
mod probe;
mod reclaim;
mod report;
mod run;
mod rundir;
mod script;
mod set;
mod settings;
mod signals;
mod stat;
mod swap;
mod swapoff;
mod swapon;
mod target;

use args::Command;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = failure::check_simulation().and_then(|()| match args::parse().command {
        Command::Run(args) => run::run(args),
        Command::Set(args) => set::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Reclaim(args) => reclaim::run(&args),
        Command::Swapon(args) => swapon::run(&args),
        Command::Swapoff(args) => swapoff::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Settings(args) => settings::run(&args),
    });
    match result {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, sentence }) => {
            failure::say(&sentence);
            ExitCode::from(status)
        }
    }
}
