//! Tables for people: a line a row, an empty line between groups; a column or a line that would be
//! empty is left out.

use crate::measure::*;
use crate::model::*;

/// Lines of cells, the first of them the headings. The first `names` columns are what rows are
/// called; the step comes last of them.
pub struct Cells {
    /// How many columns say what a row is.
    pub names: usize,
    pub lines: Vec<Vec<String>>,
}

/// The cells of a table for some rows.
pub fn cells<'r>(
    groups: &[&str],
    columns: &[Column],
    rows: impl Iterator<Item = &'r Row> + Clone,
) -> Cells {
    let used = |column: &&Column| rows.clone().any(|row| row.figures.contains_key(column.figure));
    let columns: Vec<&Column> = columns.iter().filter(used).collect();
    let titles = columns.iter().map(|column| column.title);
    let heading = groups.iter().copied().chain(["step"]).chain(titles);
    let mut lines: Vec<Vec<String>> = vec![heading.map(str::to_owned).collect()];
    for row in rows {
        let told: Vec<String> =
            columns.iter().map(|column| cell(column, row.get(column.figure))).collect();
        if told.iter().any(|cell| !cell.is_empty()) {
            let labels = groups.iter().map(|group| row.label(group));
            lines.push(labels.chain([row.step.clone()]).chain(told).collect());
        }
    }
    Cells { names: groups.len() + 1, lines }
}

/// A table as text, without a title and a heading where nothing is below.
pub fn text(findings: &Findings, table: &Table) -> String {
    let cells = cells(findings.groups, table.columns, findings.rows.iter());
    if cells.lines.len() == 1 {
        return String::new();
    }
    let title = if table.title.is_empty() { String::new() } else { format!("{}\n\n", table.title) };
    // Names to the left, numbers to the right.
    title + &aligned(&cells.lines, |at| at + 1 == cells.names, cells.names - 1)
}

/// Lines with their cells below one another; an empty line where one of the first cells changes.
pub fn aligned(lines: &[Vec<String>], to_left: impl Fn(usize) -> bool, groups: usize) -> String {
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 && line[..groups] != lines[i - 1][..groups] {
            text.push('\n');
        }
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if to_left(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end_matches(' ');
        text.push('\n');
    }
    text
}

fn cell(column: &Column, figure: Option<Spread>) -> String {
    match figure {
        None => String::new(),
        Some(figure) if column.spread => spread(figure, column.format),
        Some(figure) => (column.format)(figure.median),
    }
}

/// A median, with the lowest and the highest value in brackets if there are several.
pub fn spread(figure: Spread, format: Format) -> String {
    let Spread { median, min, max, rounds } = figure;
    if rounds == 1 {
        return format(median);
    }
    format!("{} ({} to {})", format(median), format(min), format(max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use serde_json::json;

    fn findings() -> Findings {
        let kernel = row("kernel", &[("threads", json!(1))], &[("rate", &[1234567.891, 1e6, 2e6])]);
        let folios = row("folios", &[("threads", json!(32))], &[("rate", &[0.123456789])]);
        Findings::new(&LADDER, json!({}), vec![kernel, folios])
    }

    #[test]
    fn a_table_groups_its_rows_and_leaves_empty_columns_out() {
        let expected = "\
threads  step                                rate/s

      1  kernel  1,234,568 (1,000,000 to 2,000,000)

     32  folios                                   0
";
        assert_eq!(text(&findings(), &LADDER.tables[0]), expected);
        let titled = Table { title: "Above", ..LADDER.tables[0] };
        assert_eq!(text(&findings(), &titled), format!("Above\n\n{expected}"));
    }

    #[test]
    fn a_row_without_any_figure_of_a_table_is_left_out_of_it() {
        let mut findings = findings();
        findings.rows[0].figures.clear();
        assert_eq!(text(&findings, &LADDER.tables[0]).matches('\n').count(), 3);
        findings.rows.clear();
        assert_eq!(text(&findings, &LADDER.tables[0]), "", "and so is a table without rows");
    }
}
