//! What a bench found: rows of figures, and what is told besides.

use super::declare::Ladder;
use super::row::Row;
use crate::measure::Failure;
use crate::measure::host::Machine;
use serde_json::{Value, json};

/// Everything that a bench hands back.
#[derive(Debug)]
pub struct Findings {
    /// What was declared.
    pub ladder: &'static Ladder,
    /// Where it ran.
    pub machine: Machine,
    /// What it ran with.
    pub settings: Value,
    /// A row a case.
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

/// What a bench ran with: its own settings beside those that most benches tell, unless its own say
/// otherwise.
pub fn settings(rounds: usize, own: Value) -> Value {
    let mut all = json!({ "rounds": rounds, "pinned": true, "delivery": "signal" });
    let (Value::Object(settings), Value::Object(own)) = (&mut all, own) else {
        unreachable!("settings have names")
    };
    settings.extend(own);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_bench_count_more_than_those_of_all() {
        let expected = json!({"rounds": 3, "pinned": false, "delivery": "signal", "size": 1});
        assert_eq!(settings(3, json!({"size": 1, "pinned": false})), expected);
    }
}
