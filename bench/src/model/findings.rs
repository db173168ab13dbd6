//! What a bench found: rows of figures, and what is told besides.

use super::declare::Ladder;
use super::row::Row;
use crate::measure::*;
use serde_json::Value;

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
    /// With settings that this bench has besides, or in place of others.
    pub fn with(mut self, own: Value) -> Findings {
        let all = self.settings.as_object_mut().expect("settings have names");
        all.extend(own.as_object().cloned().unwrap_or_default());
        self
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
