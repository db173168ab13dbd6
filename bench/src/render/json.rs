//! Findings as one JSON object.

use crate::measure::*;
use crate::model::*;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Digits that a figure is printed with: more than any of them is exact to.
const SIGNIFICANT_DIGITS: i32 = 6;

/// In the order in which people read it.
#[derive(Serialize)]
struct Report<'a> {
    bench: &'a str,
    machine: &'a Machine,
    settings: &'a Value,
    rows: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    step: &'a str,
    #[serde(flatten)]
    labels: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: &'a Option<Value>,
    figures: Map<String, Value>,
}

pub fn text(findings: &Findings) -> Result<String, Failure> {
    let rows = findings.rows.iter().map(|row| {
        let Row { step, labels, reference, .. } = row;
        Line { step, labels, reference, figures: figures(&row.figures) }
    });
    let Findings { ladder, machine, settings, .. } = findings;
    let report = Report { bench: ladder.bench, machine, settings, rows: rows.collect() };
    serde_json::to_string(&report).map_err(Failure::of)
}

/// Each figure's median by its name, with `_min` and `_max` beside it where it was measured more
/// than once. A name with dots is a path: `locks.slot_lock.hold_ns` is `hold_ns` of the object
/// `slot_lock` of the object `locks`.
fn figures(figures: &BTreeMap<String, Spread>) -> Map<String, Value> {
    let mut object = Map::new();
    for (path, spread) in figures {
        let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut inner = &mut object;
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            let value = inner.entry(parent).or_insert_with(|| json!({}));
            inner = value.as_object_mut().expect("no figure has the name of a group of figures");
        }
        let (min, max) = (format!("{name}_min"), format!("{name}_max"));
        let all = [(name.to_owned(), spread.median), (min, spread.min), (max, spread.max)];
        let told = if spread.rounds > 1 { 3 } else { 1 };
        inner.extend(all.into_iter().take(told).map(|(name, value)| (name, number(value))));
    }
    object
}

/// A number in JSON, without digits that say nothing.
fn number(value: f64) -> Value {
    let digits = SIGNIFICANT_DIGITS - 1 - value.abs().max(f64::MIN_POSITIVE).log10().floor() as i32;
    let text = format!("{value:.*}", digits.clamp(0, 12) as usize);
    text.parse().map_or(Value::Null, |value: f64| json!(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};

    #[test]
    fn the_object_has_the_promised_shape() {
        let kernel = row("kernel", &[("threads", json!(1))], &[("rate", &[1234567.891, 1e6, 2e6])]);
        let one: &[f64] = &[0.123456789];
        let mut folios = row("folios", &[], &[("a.b.c", one), ("a.b.d", one), ("a_all", one)]);
        folios.reference = Some(json!({"gain": [0.1]}));
        let mut findings = Findings::new(&LADDER, json!({"rounds": 3}), vec![kernel, folios]);
        findings.machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 1 };
        let value: Value = serde_json::from_str(&text(&findings).unwrap()).unwrap();
        let spread = json!({"rate": 1234568.0, "rate_min": 1000000.0, "rate_max": 2000000.0});
        let paths = json!({"a": {"b": {"c": 0.123457, "d": 0.123457}}, "a_all": 0.123457});
        let expected = json!({
            "bench": "x",
            "machine": {"cpus": 2, "kernel": "6.18", "ram_bytes": 1},
            "settings": {"rounds": 3},
            "rows": [
                {"step": "kernel", "threads": 1, "figures": spread},
                {"step": "folios", "reference": {"gain": [0.1]}, "figures": paths},
            ],
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn digits_that_say_nothing_are_left_out() {
        let numbers = [0.0, 1e-9, 123.456789, 1e12].map(number);
        assert_eq!(numbers, [0.0, 1e-9, 123.457, 1e12].map(|number| json!(number)));
    }
}
