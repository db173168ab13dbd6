//! What a bench found: one JSON object, or a table with a conclusion.

use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{Series, Spread, summarise};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;

/// Digits that a figure is printed with: more than any of them is exact to.
const SIGNIFICANT_DIGITS: i32 = 6;

/// The JSON object that a bench prints.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the bench.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// What it ran with.
    pub settings: Value,
    /// A row a case.
    pub rows: Vec<Row>,
}

/// One case.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The step of the bench's ladder.
    pub step: String,
    /// What else tells this row from others, such as `threads`.
    #[serde(flatten)]
    pub labels: Map<String, Value>,
    /// Figures published by the origin of the mechanism.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Value>,
    /// What was measured.
    #[serde(serialize_with = "figures")]
    pub figures: BTreeMap<String, Spread>,
}

impl Row {
    /// A row of what was measured in all rounds.
    pub fn new(
        step: &str,
        labels: &[(&str, Value)],
        reference: Option<Value>,
        series: &Series,
    ) -> Row {
        let labels =
            labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Row { step: step.to_owned(), labels, reference, figures: summarise(series) }
    }
}

/// What a bench ran with: its own settings beside those that every bench tells, unless its own say
/// otherwise.
pub fn settings(rounds: usize, own: Value) -> Value {
    let mut all = json!({ "rounds": rounds, "pinned": true, "delivery": "signal" });
    let (Value::Object(settings), Value::Object(own)) = (&mut all, own) else {
        unreachable!("settings have names")
    };
    settings.extend(own);
    all
}

/// An object of what each step is made of, by its name.
pub fn by_name<N: ToString, V: Into<Value>>(steps: impl IntoIterator<Item = (N, V)>) -> Value {
    Value::Object(steps.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect())
}

/// Each figure's median by its name, with `_min` and `_max` beside it where it was measured more
/// than once. A name with dots is a path: `locks.slot_lock.hold_ns` is `hold_ns` of the object
/// `slot_lock` of the object `locks`.
fn figures<S: serde::Serializer>(
    figures: &BTreeMap<String, Spread>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
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
    object.serialize(serializer)
}

/// A number in JSON, without digits that say nothing.
fn number(value: f64) -> Value {
    let digits = SIGNIFICANT_DIGITS - 1 - value.abs().max(f64::MIN_POSITIVE).log10().floor() as i32;
    let text = format!("{value:.*}", digits.clamp(0, 12) as usize);
    text.parse().map_or(Value::Null, |value: f64| json!(value))
}

/// A column of the table for people.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub title: &'static str,
    /// The figure in it.
    pub figure: &'static str,
    /// How a value is written.
    pub format: fn(f64) -> String,
    /// Whether the lowest and the highest value are shown too.
    pub spread: bool,
}

/// A table for people: a line a row, with some of its figures.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// What stands above it, if anything.
    pub title: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
}

/// Everything that a bench hands back.
#[derive(Debug)]
pub struct Findings {
    /// For machines.
    pub report: Report,
    /// For people: the labels that group the rows, a column each,
    pub groups: &'static [&'static str],
    /// tables,
    pub tables: &'static [Table],
    /// and what it all shows, in sentences.
    pub conclusion: String,
    /// What could not be measured that should have been, told last.
    pub failed: Option<Failure>,
}

/// Prints findings on standard output.
///
/// # Errors
/// When standard output cannot be written, and what could not be measured.
pub fn print(findings: &Findings, json: bool) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string(&findings.report).map_err(|error| Failure::new(error.to_string()))?
    } else {
        let tables: Vec<String> =
            findings.tables.iter().map(|one| table(findings, one) + "\n").collect();
        tables.concat() + &findings.conclusion
    };
    write_line(&text)?;
    findings.failed.clone().map_or(Ok(()), Err)
}

/// Writes a line to standard output.
///
/// # Errors
/// When it cannot be written.
pub fn write_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let done = writeln!(out, "{text}").and_then(|()| out.flush());
    done.map_err(|error| Failure::new(format!("standard output cannot be written: {error}")))
}

/// One table: a line a row, an empty line between groups; a column or a line that would be empty is
/// left out.
fn table(findings: &Findings, table: &Table) -> String {
    let rows = &findings.report.rows;
    let used = |column: &&Column| rows.iter().any(|row| row.figures.contains_key(column.figure));
    let columns: Vec<&Column> = table.columns.iter().filter(used).collect();
    let groups = findings.groups;
    let heading =
        groups.iter().copied().chain(["step"]).chain(columns.iter().map(|column| column.title));
    let mut lines: Vec<Vec<String>> = vec![heading.map(str::to_owned).collect()];
    for row in rows
        .iter()
        .filter(|row| columns.iter().any(|column| row.figures.contains_key(column.figure)))
    {
        let labels = groups.iter().map(|group| row.labels.get(*group).map_or(String::new(), label));
        let cells = columns.iter().map(|column| {
            row.figures.get(column.figure).map_or(String::new(), |figure| cell(column, figure))
        });
        lines.push(labels.chain([row.step.clone()]).chain(cells).collect());
    }
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text =
        if table.title.is_empty() { String::new() } else { format!("{}\n\n", table.title) };
    for (i, line) in lines.iter().enumerate() {
        if i > 0 && line[..groups.len()] != lines[i - 1][..groups.len()] {
            text.push('\n');
        }
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Names to the left, numbers to the right.
            let cell = if at == groups.len() {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
            text.push_str(if at == 0 { "" } else { "  " });
            text.push_str(&cell);
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// A label as people read it: text without quotes.
fn label(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn cell(column: &Column, figure: &Spread) -> String {
    let median = (column.format)(figure.median);
    if !column.spread || figure.rounds == 1 {
        return median;
    }
    format!("{median} ({} to {})", (column.format)(figure.min), (column.format)(figure.max))
}

/// A whole number, with commas between thousands.
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// One digit after the point, more for values that have nothing before it.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => whole(value),
        v if v >= 1.0 || v == 0.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// A ratio.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// A share, as percent.
pub fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A gain, as percent with its sign.
pub fn gain(value: f64) -> String {
    format!("{:+.1} %", value * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;

    fn findings() -> Findings {
        let series = |values: &[f64]| -> Series {
            values.iter().map(|value| Sample::from([("rate".to_owned(), *value)])).collect()
        };
        let rows = vec![
            Row::new(
                "kernel",
                &[("threads", json!(1))],
                None,
                &series(&[1234567.891, 1000000.0, 2000000.0]),
            ),
            Row::new(
                "folios",
                &[("threads", json!(32))],
                Some(json!({"gain": [0.1]})),
                &series(&[0.123456789]),
            ),
        ];
        let machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 1 };
        let report = Report { bench: "x", machine, settings: json!({"rounds": 3}), rows };
        const COLUMNS: &[Column] = &[
            Column { title: "rate/s", figure: "rate", format: whole, spread: true },
            Column { title: "nothing", figure: "none", format: short, spread: false },
        ];
        const TABLES: &[Table] =
            &[Table { title: "", columns: COLUMNS }, Table { title: "The same", columns: COLUMNS }];
        Findings {
            report,
            groups: &["threads"],
            tables: TABLES,
            conclusion: String::new(),
            failed: None,
        }
    }

    #[test]
    fn json_has_the_promised_shape() {
        let value = serde_json::to_value(&findings().report).unwrap();
        let expected = json!({
            "bench": "x",
            "machine": {"cpus": 2, "kernel": "6.18", "ram_bytes": 1},
            "settings": {"rounds": 3},
            "rows": [
                {"step": "kernel", "threads": 1,
                 "figures": {"rate": 1234568.0, "rate_min": 1000000.0, "rate_max": 2000000.0}},
                {"step": "folios", "threads": 32, "reference": {"gain": [0.1]}, "figures": {"rate": 0.123457}},
            ],
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn the_settings_of_a_bench_count_more_than_those_of_all() {
        let expected = json!({"rounds": 3, "pinned": false, "delivery": "signal", "size": 1});
        assert_eq!(settings(3, json!({"size": 1, "pinned": false})), expected);
    }

    #[test]
    fn a_name_with_dots_is_a_path() {
        let sample = [("locks.slot.wait_ns", 1.0), ("locks.slot.hold_ns", 2.0), ("locks_all", 3.0)];
        let sample = sample.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let row = serde_json::to_value(Row::new("x", &[], None, &vec![sample])).unwrap();
        let expected =
            json!({"locks": {"slot": {"wait_ns": 1.0, "hold_ns": 2.0}}, "locks_all": 3.0});
        assert_eq!(row["figures"], expected);
    }

    #[test]
    fn a_table_groups_its_rows_and_leaves_empty_columns_out() {
        let expected = "\
threads  step                                rate/s

      1  kernel  1,234,568 (1,000,000 to 2,000,000)

     32  folios                                   0
";
        let findings = findings();
        assert_eq!(table(&findings, &findings.tables[0]), expected);
        assert_eq!(table(&findings, &findings.tables[1]), format!("The same\n\n{expected}"));
    }

    #[test]
    fn a_row_without_any_figure_of_a_table_is_left_out_of_it() {
        let mut findings = findings();
        findings.report.rows[0].figures.clear();
        assert_eq!(table(&findings, &findings.tables[0]).matches('\n').count(), 3);
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0.0, 999.4, 1000.0, 1234567.5, -1234.0].map(whole),
            ["0", "999", "1,000", "1,234,568", "-1,234"]
        );
        assert_eq!([0.0, 0.01234, 12.34, 1234.0].map(short), ["0.0", "0.012", "12.3", "1,234"]);
        assert_eq!(
            (percent(0.0312), gain(0.056), gain(-0.01)),
            ("3.1 %".into(), "+5.6 %".into(), "-1.0 %".into())
        );
        assert_eq!(
            [0.0, 1e-9, 123.456789, 1e12].map(number),
            [json!(0.0), json!(1e-9), json!(123.457), json!(1e12)]
        );
    }
}
