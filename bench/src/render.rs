//! How findings are told: as [`json`], or as a [`table`] with a [`verdict`] a line, as a drawing
//! ([`plot`]) or a page ([`html`]), all from what the bench declared.

pub mod bars;
pub mod html;
mod json;
pub mod plot;
mod table;
pub mod verdict;

use crate::measure::failure::write_line;
use crate::measure::{Failure, fail};
use crate::model::findings::Findings;
use std::path::Path;

pub fn print(findings: &Findings, as_json: bool) -> Result<(), Failure> {
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

/// Writes what the user asked for into a file.
pub fn write_file(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    if let Err(error) = std::fs::write(path, text) {
        let path = path.display();
        fail!("the {what} cannot be written to '{path}': {error}; name another file");
    }
    Ok(())
}
