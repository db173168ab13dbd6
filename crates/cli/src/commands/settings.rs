//! `overspill settings`: what `--set` of `overspill run` takes.

use crate::args::SettingsArgs;
use crate::args::settings::{list, table};
use crate::failure::Failure;
use std::io::Write;

/// Prints the settings, as a list or as a table.
pub fn run(args: &SettingsArgs) -> Result<u8, Failure> {
    let text = if args.markdown { table() } else { list() };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}
