//! A page: its style, charts as [`super::charts`] makes them, and tables.

use super::files::fill;
use super::table;
use crate::measure::*;
use crate::model::*;
use serde_json::{Value, json};

pub const STYLE: &str = include_str!("html/style.css");
/// How charts and tables are written.
const PARTS: &str = include_str!("html/parts.html");

/// A page: a template that is filled, which may have charts and tables in it.
pub fn page(template: &str, values: &Value) -> Result<String, Failure> {
    fill(&format!("{PARTS}{template}"), values)
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
