//! Options of every bench.

/// Options of every bench.
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
