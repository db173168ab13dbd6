//! Parts of a page, as a template takes them: charts of horizontal bars, which fit any width and
//! take their colours from the page, and tables.

use super::bars::Bars;
use super::table;
use crate::measure::{Failing, Failure, Spread};
use crate::model::*;
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::{Value, json};

pub const STYLE: &str = include_str!("html/style.css");
/// How charts and tables are written.
const PARTS: &str = include_str!("html/parts.html");
/// Share of the width that the longest bar takes; its value is written beside it.
const LONGEST: f64 = 82.0;
/// About how many marks an axis has.
const MARKS: f64 = 4.0;

/// How bars are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub unit: &'static str,
    pub format: Format,
    /// Where a line is drawn, and what it is called.
    pub line: Option<(f64, &'static str)>,
    /// The class of a series, for styles.
    pub class: fn(&str) -> &'static str,
}

/// A page: a template that is filled, in which text is escaped.
pub fn page(template: &str, values: &Value) -> Result<String, Failure> {
    let template = format!("{PARTS}{template}");
    let values = Serde(values);
    let page = Environment::new().render_named_str("page.html", &template, values);
    page.failing("the page cannot be made")
}

/// A chart with its title and legend, and with a scale from zero; nothing if there is nothing in
/// it.
pub fn chart(title: &str, bars: &Bars, scale: &Scale) -> Option<Value> {
    let line = scale.line.map_or(0.0, |(at, _)| at);
    let highest = bars.highest()?.max(line).max(f64::MIN_POSITIVE);
    let at = |value: f64| format!("{:.2}%", value / highest * LONGEST);
    let named = |name: &String| json!({ "name": name, "class": (scale.class)(name) });
    let step = mark(highest);
    let marks = (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= highest);
    let mark = |value: f64| json!({ "at": at(value), "text": (scale.format)(value) });
    // A bar with its value, and a line from the lowest to the highest of several rounds.
    let bar = |(_, series, value): &(usize, usize, Spread)| {
        let mut bar = named(&bars.series[*series]);
        bar["text"] = json!((scale.format)(value.median));
        bar["long"] = json!(at(value.median));
        bar["to"] = json!(at(value.max));
        if value.rounds > 1 {
            bar["spread"] = json!([at(value.min), at(value.max - value.min)]);
        }
        bar
    };
    let group = |(index, name): (usize, &String)| {
        let mine = bars.bars.iter().filter(|bar| bar.0 == index).map(bar);
        json!({ "name": name, "bars": mine.collect::<Vec<_>>() })
    };
    Some(json!({
        "title": title,
        "unit": scale.unit,
        "legend": bars.series.iter().map(named).collect::<Vec<_>>(),
        "marks": marks.map(mark).collect::<Vec<_>>(),
        "line": scale.line.map(|(value, name)| json!({ "at": at(value), "name": name })),
        "groups": bars.groups.iter().enumerate().map(group).collect::<Vec<_>>(),
    }))
}

/// The distance of marks on a scale: 1, 2 or 5 times a power of ten.
fn mark(highest: f64) -> f64 {
    let power = 10f64.powf((highest / MARKS).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power);
    steps.into_iter().find(|step| highest / step <= MARKS).unwrap_or(10.0 * power)
}

/// A table of some rows; `class` is that of a row, for styles.
pub fn table(
    title: &str,
    groups: &[&str],
    columns: &[Column],
    rows: &[&Row],
    class: fn(&Row) -> &'static str,
) -> Value {
    let has = |row: &&&Row| columns.iter().any(|column| row.figures.contains_key(column.figure));
    let told: Vec<&Row> = rows.iter().filter(has).copied().collect();
    let cells = table::cells(groups, columns, told.iter().copied());
    let (head, lines) = cells.lines.split_first().expect("there is a heading");
    let line = |(row, cells): (&&Row, &Vec<String>)| json!({ "class": class(row), "cells": cells });
    let lines: Vec<Value> = told.iter().zip(lines).map(line).collect();
    json!({ "title": title, "head": head, "lines": lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use crate::model::format::short;

    #[test]
    fn marks_are_round_numbers() {
        for (highest, step) in [(1.0, 0.5), (4.1, 2.0), (0.9, 0.5), (150.0, 50.0), (12e3, 5e3)] {
            assert!((mark(highest) - step).abs() < 1e-9, "{highest}: {}", mark(highest));
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_a_table_has_a_line_for_each_row_with_a_figure() {
        let class = |series: &str| if series == "one" { "run" } else { "library" };
        let scale = Scale { unit: "x", format: short, line: Some((1.0, "the kernel")), class };
        let rows = [("one", "rate"), ("two", "rate"), ("none", "other")]
            .map(|(step, figure)| row(step, &[], &[(figure, &[step.len() as f64 - 1.0; 2])]));
        let bars = Bars::of(&rows, "rate", |row| ("a<b".to_owned(), row.step.clone()));
        let columns = LADDER.tables[0].columns;
        let table = table("", &[], columns, &rows.iter().collect::<Vec<_>>(), |_| "faster");
        let template = "{{ chart(c) }}{{ table(t) }}";
        let values = json!({ "c": chart("above", &bars, &scale), "t": table });
        let text = page(template, &values).unwrap();
        for said in [
            "width:82.00%",
            "<b>a&lt;b</b>",
            "class=\"one\" style=\"left:41.00%\"",
            "dashed: the kernel",
            "<span class=\"run\"><i></i>one</span>",
            "<tr class=\"faster\"><td>two</td><td>2 (2 to 2)</td></tr>",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains("none"), "{text}");
        assert!(chart("above", &Bars::default(), &scale).is_none());
    }
}
