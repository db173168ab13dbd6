//! The `overspill` command, which its program calls ([`main`]).
//!
//! From the bottom up, each knowing only those before it: [`failure`] (every refusal), [`signals`],
//! [`out`] (where what is told goes), [`swap`] and [`memory`] (devices and budget), [`outside`]
//! (memory of which the job's processes do not know), [`rundir`] (where statistics are kept),
//! [`report`], [`unmanaged`] and [`ran`] (what is said at the end), [`control`] (the socket by
//! which other commands reach a job), [`sizing`] (how much memory a job needs), [`args`] (the
//! command line), [`program`] (the program and the preload library), [`mod@env`] (what the library
//! is told), [`launch`] (a program that is run), [`commands`].

#![forbid(unsafe_code)]
// Hardly anything is public; the documentation is for those who work on it.
#![allow(rustdoc::private_intra_doc_links)]

mod args;
mod commands;
mod control;
mod env;
mod failure;
mod launch;
mod limits;
mod memory;
mod out;
mod outside;
mod program;
mod ran;
mod report;
mod rundir;
mod signals;
mod sizing;
mod swap;
mod unmanaged;

pub use args::definition;
pub use control::protocol;
use failure::Failure;
use std::process::ExitCode;

/// Does what the command line says; the exit status.
pub fn main() -> ExitCode {
    let result = failure::check_simulation().and_then(|()| commands::run(args::parse().command));
    match result {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, sentence }) => {
            failure::say(&sentence);
            ExitCode::from(status)
        }
    }
}
