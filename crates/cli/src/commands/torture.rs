//! `overspill torture`: a program of its own beside this one, where the benches are built.

use crate::failure::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes that program.
pub fn run(args: &[OsString]) -> Result<u8, Failure> {
    let here = std::env::current_exe()
        .map_err(|error| Failure::not_found(format!("this program is not found: {error}")))?;
    let torture = here.with_file_name("overspill-torture");
    let error = Command::new(&torture).args(args).exec();
    Err(Failure::not_found(format!(
        "{} cannot be executed ({error}): the torture is built with the benches, by `make` in the \
         sources, and not installed",
        torture.display()
    )))
}
