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

/// What a bench printed, with one space between words: columns are as wide as what is in them.
pub fn words(outcome: &Outcome) -> String {
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    outcome.stdout.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A figure of a row; dots lead into groups of figures.
pub fn figure(row: &Value, path: &str) -> f64 {
    let value = path.split('.').fold(&row["figures"], |value, name| &value[name]);
    value.as_f64().unwrap_or_else(|| panic!("no {path} in {row}"))
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
