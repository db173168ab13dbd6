//! What the unit tests of benches share.

use crate::measure::*;
use crate::model::*;
use clap::Parser;
use serde_json::{Value, json};

#[derive(Parser)]
struct CommandLine<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// The options of a bench as a command line gives them, without its name.
pub fn parse<A: clap::Args>(line: &str) -> Result<A, clap::Error> {
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    CommandLine::try_parse_from(words).map(|line| line.args)
}

/// Those of a command line that is right.
pub fn args<A: clap::Args>(line: &str) -> A {
    parse(line).unwrap_or_else(|error| panic!("{error}"))
}

/// A ladder that declares a figure.
pub const LADDER: Ladder = Ladder {
    bench: "x",
    groups: &["threads"],
    tables: &[Table {
        title: "",
        columns: &[wide("rate/s", "rate", whole), col("nothing", "none", short)],
    }],
    ..Ladder::NONE
};

/// Counters with what they say before and after.
pub fn counted(counters: &[(&'static str, u64, u64)]) -> Counted {
    Counted {
        before: counters.iter().map(|(name, before, _)| (*name, *before)).collect(),
        after: counters.iter().map(|(name, _, after)| (*name, *after)).collect(),
    }
}

/// A row; each figure has a value a round.
pub fn row(step: &str, labels: &[(&'static str, Value)], figures: &[(&str, &[f64])]) -> Row {
    let rounds = figures.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let round = |i: usize| -> Sample {
        let of = |(name, values): &(&str, &[f64])| Some(((*name).to_owned(), *values.get(i)?));
        figures.iter().filter_map(of).collect()
    };
    let series: Series = (0..rounds).map(round).collect();
    let case = Case { step: step.to_owned(), labels: labels.to_vec(), reference: None, what: () };
    Row::new(&case, &series)
}

/// The labels of work beside zram.
pub fn beside_zram(workload: &str, contents: &str) -> [(&'static str, Value); 5] {
    [
        ("workload", json!(workload)),
        ("peer", json!("zram")),
        ("overcommit", json!(4)),
        ("contents", json!(contents)),
        ("threads", json!(1)),
    ]
}
