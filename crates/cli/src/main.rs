//! The program of the `overspill` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    overspill_cli::main()
}
