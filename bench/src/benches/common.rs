//! Options that benches have in common.

use crate::machine::swap_device::{RAM, SwapDevice};
use crate::measure::Failure;
use crate::model::findings::Findings;
use crate::render::plot;
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
}

/// The option of benches whose pages leave memory.
#[derive(Clone, Debug, clap::Args)]
pub struct Device {
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = RAM)]
    pub device: SwapDevice,
}

/// The option of benches that have charts.
#[derive(Clone, Debug, clap::Args)]
pub struct Plot {
    /// Draw the figures into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Plot {
    /// Draws what was found, if a file is named, and hands it on.
    pub fn draw(&self, findings: Findings) -> Result<Findings, Failure> {
        self.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &findings))?;
        Ok(findings)
    }
}
