//! What the tests of all benches share.

use overspill_tests::process::{Outcome, run};
use overspill_tests::{TIME_LIMIT, clean, skipped};
use serde_json::Value;
use std::process::Command;

/// Runs a bench with arguments.
pub fn bench(name: &str, args: &str) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    run(clean(command.arg(name).args(args.split_whitespace())), TIME_LIMIT)
}

// Each test is a crate of its own, and that of `codecs` does without the engine.
#[allow(dead_code)]
/// The same where it needs userfaultfd; `None`, loudly, where there is none.
pub fn bench_in_the_engine(name: &str, args: &str) -> Option<Outcome> {
    let outcome = bench(name, args);
    if outcome.status == 1 && outcome.stderr.contains("no userfaultfd") {
        skipped(&outcome.stderr);
        return None;
    }
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    Some(outcome)
}

/// What a bench printed as JSON.
pub fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout))
}

// Each test is a crate of its own, and some print no table.
#[allow(dead_code)]
/// What a bench printed, with one space between words: columns are as wide as what is in them.
pub fn words(outcome: &Outcome) -> String {
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    outcome.stdout.lines().map(line).collect::<Vec<_>>().join("\n")
}
