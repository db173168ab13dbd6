//! What the unit tests of benches share.

use crate::measure::Sample;
use crate::measure::host::Machine;
use clap::Parser;

#[derive(Parser)]
struct Line<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// The options of a bench as a command line gives them, without its name.
pub fn parse<A: clap::Args>(line: &str) -> Result<A, clap::Error> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).map(|line| line.args)
}

/// Those of a command line that is right.
pub fn args<A: clap::Args>(line: &str) -> A {
    parse(line).unwrap_or_else(|error| panic!("{error}"))
}

/// The figures of one round.
pub fn sample<'a>(figures: impl IntoIterator<Item = (&'a str, f64)>) -> Sample {
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A machine with two processors.
pub fn machine() -> Machine {
    Machine { cpus: 2, kernel: String::new(), ram_bytes: 0 }
}
