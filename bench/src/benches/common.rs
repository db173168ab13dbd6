//! Options that benches have in common: [`Common`] all of them, [`Device`] some.

use crate::machine::*;
use overspill::units::Bytes;
use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// How often each step is measured [default: 3, and fewer where that would take longer than 45
    /// s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw the figures into a file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// The option of benches whose pages leave memory.
#[derive(Clone, Debug, clap::Args)]
pub struct Device {
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = RAM)]
    pub device: SwapDevice,
}

impl Device {
    /// What the engine is told of one for so many bytes. It is twice as large, so that slots do not
    /// get short.
    pub fn spec(&self, bytes: u64) -> String {
        self.device.spec(Bytes(2 * bytes))
    }
}
