//! How findings are told: as [`json`], or as a [`table`] with a [`mod@verdict`] a line, as a
//! drawing of [`charts`] or a page ([`html`]), all from what the bench declared.

pub mod charts;
pub mod html;
mod json;
mod table;
pub mod verdict;

use crate::measure::*;
use crate::model::*;
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::Value;
use std::path::Path;

pub fn print(findings: &Findings, as_json: bool, plot: Option<&Path>) -> Result<(), Failure> {
    plot.map_or(Ok(()), |path| charts::draw(path, findings))?;
    let text = if as_json {
        json::text(findings)?
    } else {
        let tables = findings.ladder.tables.iter();
        let tables: String = tables.map(|table| table::text(findings, table) + "\n").collect();
        tables + &verdict::text(findings)
    };
    write_line(&text)?;
    findings.failed.clone().map_or(Ok(()), Err)
}

/// A template that is filled, in which text is escaped.
fn fill(template: &str, values: &Value) -> Result<String, Failure> {
    let text = Environment::new().render_named_str("template.xml", template, Serde(values));
    text.failing("a template cannot be filled")
}

/// Writes what the user asked for into a file.
pub fn write_file(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    if let Err(error) = std::fs::write(path, text) {
        let path = path.display();
        fail!("the {what} cannot be written to '{path}': {error}; name another file");
    }
    Ok(())
}
