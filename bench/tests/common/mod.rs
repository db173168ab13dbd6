//! What the tests of all benches share. Each is a crate of its own, which uses a part of this.

#![allow(dead_code)]

use overspill_tests::process::{Outcome, run};
use overspill_tests::scratch::Room;
use overspill_tests::{Scratch, TIME_LIMIT, clean, skipped};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Runs a bench with arguments.
pub fn bench(name: &str, args: &str) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    run(clean(command.arg(name).args(args.split_whitespace())), TIME_LIMIT)
}

/// What a bench prints; `None`, loudly, where there is no userfaultfd.
pub fn printed(name: &str, args: &str) -> Option<String> {
    let outcome = bench(name, args);
    if outcome.status == 1 && outcome.stderr.contains("no userfaultfd") {
        skipped(&outcome.stderr);
        return None;
    }
    Some(succeeded(outcome))
}

/// What was printed by what did not fail, and said nothing on standard error.
pub fn succeeded(outcome: Outcome) -> String {
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    outcome.stdout
}

/// What a bench prints as JSON.
pub fn report(name: &str, args: &str) -> Option<Value> {
    let value = json(&printed(name, &format!("{args} --json"))?);
    assert_eq!(value["bench"], name);
    Some(value)
}

/// Text as JSON.
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Text has all of these, with one space between words: columns are as wide as what is in them.
pub fn has(text: &str, all: &[&str]) {
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.lines().map(line).collect::<Vec<_>>().join("\n");
    for said in all {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// How many lines begin so, but for spaces.
pub fn lines(text: &str, begin: &str) -> usize {
    text.lines().filter(|line| line.trim_start().starts_with(begin)).count()
}

/// The rows of a report.
pub fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().unwrap()
}

/// Labels and steps of rows, as they follow one another.
pub fn names<'r>(rows: impl IntoIterator<Item = &'r Value>, labels: &[&str]) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let name = |row: &Value| {
        let labels = labels.iter().chain(&["step"]).map(|label| text(&row[label]));
        labels.collect::<Vec<_>>().join(" ")
    };
    rows.into_iter().map(name).collect()
}

/// A figure of a row, if it has it; dots lead into groups of figures.
pub fn find(row: &Value, path: &str) -> Option<f64> {
    path.split('.').fold(&row["figures"], |value, name| &value[name]).as_f64()
}

/// A figure that a row has.
pub fn figure(row: &Value, path: &str) -> f64 {
    find(row, path).unwrap_or_else(|| panic!("no {path} in {row}"))
}

/// A row has these figures, and they are more than nothing.
pub fn positive(row: &Value, figures: &[&str]) {
    figures.iter().for_each(|name| assert!(figure(row, name) > 0.0, "{name}: {row}"));
}

/// A directory of a test's own, and its path.
pub fn room(name: &str) -> (Room, PathBuf) {
    let room = Scratch::new(env!("CARGO_TARGET_TMPDIR")).room(name);
    let dir = room.path.canonicalize().unwrap();
    (room, dir)
}

/// Longest that anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is killed when it is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // One that has ended already is waited for all the same.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}
