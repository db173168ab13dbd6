//! What a bench found: rows of figures, and what is told besides.

use super::declare::Ladder;
use super::row::Row;
use crate::measure::*;
use serde_json::{Value, json};

/// Everything that a bench hands back.
#[derive(Debug)]
pub struct Findings {
    pub ladder: &'static Ladder,
    pub machine: Machine,
    pub settings: Value,
    pub rows: Vec<Row>,
    /// The labels that group the rows of tables.
    pub groups: &'static [&'static str],
    /// What drawings are about.
    pub subject: String,
    /// What the declaration does not know, a line each.
    pub notes: Vec<String>,
    /// What could not be measured that should have been, told last.
    pub failed: Option<Failure>,
}

impl Findings {
    /// What was measured with these settings, and those that most benches have unless their own
    /// say otherwise.
    pub fn of(ladder: &'static Ladder, (rows, rounds): (Vec<Row>, usize), own: Value) -> Findings {
        let mut settings = json!({ "rounds": rounds, "pinned": true, "delivery": "signal" });
        let all = settings.as_object_mut().expect("settings have names");
        all.extend(own.as_object().cloned().unwrap_or_default());
        Findings::new(ladder, settings, rows)
    }

    /// Rows, and nothing besides.
    pub fn new(ladder: &'static Ladder, settings: Value, rows: Vec<Row>) -> Findings {
        Findings {
            ladder,
            machine: Machine::this(),
            settings,
            rows,
            groups: ladder.groups,
            subject: ladder.bench.to_owned(),
            notes: Vec::new(),
            failed: None,
        }
    }
}
