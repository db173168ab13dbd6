//! The options of `overspill size`.

use super::run::Ways;
use super::values::{parse_file, parse_memory};
use clap::Args;
use overspill::units::Bytes;
use std::ffi::OsString;
use std::path::PathBuf;

/// `overspill size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// The budget that it runs in, such as 512M or 1.5G: what is told begins with it [default: a
    /// third of what it has, as it goes on]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<Bytes>,

    #[command(flatten)]
    pub ways: Ways,

    /// Write what is told to FILE as JSON; /dev/stderr works too
    #[arg(long, value_name = "FILE", value_parser = parse_file)]
    pub json: Option<PathBuf>,

    /// Write what is told to FILE, as a page with pictures
    #[arg(long, value_name = "FILE", value_parser = parse_file)]
    pub report: Option<PathBuf>,

    /// Keep nothing for `overspill run --memory auto`
    #[arg(long)]
    pub no_save: bool,

    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}
