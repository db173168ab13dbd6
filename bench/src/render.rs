//! How findings are told: as [`json`], or as a [`table`] with a [`mod@verdict`] a line, as a
//! drawing of [`charts`] or a page ([`html`]), all from what the bench declared.

pub mod charts;
mod files;
pub mod html;
mod json;
mod table;
pub mod verdict;

use crate::measure::*;
use crate::model::*;
pub use files::OutFile;

pub fn print(findings: &Findings, as_json: bool, plot: Option<OutFile>) -> Result<(), Failure> {
    plot.map_or(Ok(()), |file| charts::draw(file, findings))?;
    let text = if as_json {
        json::text(findings)?
    } else {
        let tables = findings.ladder.tables.iter().map(|table| table::text(findings, table));
        let parts = tables.chain([verdict::text(findings)]).filter(|text| !text.is_empty());
        parts.collect::<Vec<_>>().join("\n")
    };
    write_line(&text)?;
    findings.failed.clone().map_or(Ok(()), Err)
}
