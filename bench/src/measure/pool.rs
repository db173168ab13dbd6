//! The pool that is measured, and what it maps.

use super::failure::Failure;
use overspill::config::{Config, Delivery, baselines};
use overspill::units::Bytes;
use overspill::{Pool, Region};

/// A pool in signal delivery with a budget of `memory` bytes; `device` and `settings` are as the
/// engine reads them.
pub fn open(memory: u64, device: Option<&str>, settings: &str) -> Result<Pool, Failure> {
    let failure = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
    let device = device.map(str::parse).transpose().map_err(|error| failure(&error))?;
    let swap = device.into_iter().collect();
    let mut config =
        Config { memory: Bytes(memory), swap, delivery: Delivery::Signal, ..Config::default() };
    baselines::apply(&mut config, settings).map_err(|error| failure(&error))?;
    Pool::new(config).map_err(|error| failure(&error))
}

/// A region of so many bytes.
pub fn map(pool: &Pool, bytes: u64) -> Result<Region<'_>, Failure> {
    let failure = |errno| Failure::new(format!("the pool maps no {}: {errno}", Bytes(bytes)));
    pool.map(bytes as usize).map_err(failure)
}

/// Whether every page came back with what was written to it.
pub fn right(wrong: u64) -> Result<(), Failure> {
    let failure =
        || Failure::new(format!("{wrong} pages came back with other content than was written"));
    if wrong == 0 { Ok(()) } else { Err(failure()) }
}
