//! Parts of a page: charts of horizontal bars, which fit any width and take their colours from the
//! page, and tables.

use super::bars::Bars;
use super::table;
use crate::model::declare::Column;
use crate::model::format::Format;
use crate::model::row::Row;

/// The style of a page.
pub const STYLE: &str = include_str!("html/style.css");
/// Share of the width that the longest bar takes; its value is written beside it.
const LONGEST: f64 = 82.0;
/// About how many marks an axis has.
const MARKS: f64 = 4.0;

/// How bars are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// What it counts.
    pub unit: &'static str,
    /// How a value is written.
    pub format: Format,
    /// Where a line is drawn, and what it is called.
    pub line: Option<(f64, &'static str)>,
    /// The class of a series, for styles.
    pub class: fn(&str) -> &'static str,
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A template in which each `{name}` is replaced.
pub fn filled(template: &str, values: &[(&str, String)]) -> String {
    let fill =
        |text: String, (name, value): &(&str, String)| text.replace(&format!("{{{name}}}"), value);
    values.iter().fold(template.to_owned(), fill)
}

/// A chart with its title and legend; nothing if there is nothing in it.
pub fn figure(title: &str, bars: &Bars, scale: &Scale) -> String {
    if bars.bars.is_empty() {
        return String::new();
    }
    let of = |series: &String| {
        format!("<span class=\"{}\"><i></i>{}</span>", (scale.class)(series), escaped(series))
    };
    let legend: String = bars.series.iter().map(of).collect();
    let title = escaped(title);
    let chart = chart(bars, scale);
    format!("<h3>{title}</h3><figure><div class=\"legend\">{legend}</div>{chart}</figure>\n")
}

/// Bars in groups, with a scale from zero.
fn chart(bars: &Bars, scale: &Scale) -> String {
    let line = scale.line.map_or(0.0, |(at, _)| at);
    let highest = bars.highest().unwrap_or(0.0).max(line).max(f64::MIN_POSITIVE);
    let at = |value: f64| value / highest * LONGEST;
    let step = mark(highest);
    let marks = || (1..).map(move |n| f64::from(n) * step).take_while(move |at| *at <= highest);
    let mut lines: String =
        marks().map(|mark| format!("<u style=\"left:{:.2}%\"></u>", at(mark))).collect();
    if scale.line.is_some() {
        lines += &format!("<u class=\"one\" style=\"left:{:.2}%\"></u>", at(line));
    }
    let bar =
        |(_, series, value): &(usize, usize, _)| bar(&bars.series[*series], *value, scale, at);
    let group = |(index, name): (usize, &String)| {
        let mine: String = bars.bars.iter().filter(|bar| bar.0 == index).map(bar).collect();
        format!("<b>{}</b><div class=\"bars\">{lines}{mine}</div>\n", escaped(name))
    };
    let groups: String = bars.groups.iter().enumerate().map(group).collect();
    let mark = |m: f64| format!("<span style=\"left:{:.2}%\">{}</span>", at(m), (scale.format)(m));
    let numbers: String = [0.0].into_iter().chain(marks()).map(mark).collect();
    let named = scale.line.map_or(String::new(), |(_, name)| format!("; dashed: {name}"));
    format!(
        "<div class=\"plot\">{groups}<b></b><div class=\"axis\">{numbers}</div><div \
         class=\"unit\">{}{named}</div></div>\n",
        scale.unit
    )
}

/// A bar with its value, and a line from the lowest to the highest of several rounds.
fn bar(
    series: &str,
    value: crate::measure::Spread,
    scale: &Scale,
    at: impl Fn(f64) -> f64,
) -> String {
    let (from, to) = (at(value.min), at(value.max));
    let spread = match value.rounds {
        1 => String::new(),
        _ => format!("<s style=\"left:{from:.2}%;width:{:.2}%\"></s>", to - from),
    };
    let (class, text) = ((scale.class)(series), (scale.format)(value.median));
    let (series, long) = (escaped(series), at(value.median));
    format!(
        "<div class=\"bar {class}\" title=\"{series}: {text}\"><i \
         style=\"width:{long:.2}%\"></i>{spread}<em style=\"left:{to:.2}%\">{text}</em></div>"
    )
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
) -> String {
    let told: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|row| columns.iter().any(|column| row.figures.contains_key(column.figure)))
        .collect();
    let cells = table::cells(groups, columns, told.iter().copied());
    let line = |tag: &str, line: &[String]| -> String {
        line.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    let head = line("th", &cells.lines[0]);
    let body = told.iter().zip(&cells.lines[1..]);
    let body: String = body
        .map(|(row, cells)| format!("<tr class=\"{}\">{}</tr>\n", class(row), line("td", cells)))
        .collect();
    format!(
        "<h3>{}</h3><div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>\n\
         {body}</tbody></table></div>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use crate::model::format::short;
    use serde_json::json;

    const SCALE: Scale = Scale {
        unit: "ratio",
        format: short,
        line: Some((1.0, "the kernel")),
        class: |series| if series == "one" { "run" } else { "library" },
    };

    #[test]
    fn marks_are_round_numbers() {
        for (highest, step) in
            [(1.0, 0.5), (4.1, 2.0), (0.9, 0.5), (150.0, 50.0), (12_000.0, 5000.0)]
        {
            assert!((mark(highest) - step).abs() < 1e-9, "{highest}: {}", mark(highest));
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_value_and_the_longest_leaves_room() {
        let rows =
            [("one", 1.0), ("two", 2.0)].map(|(step, value)| row(step, &[], &[("x", &[value])]));
        let bars = Bars::of(&rows, "x", |row| ("a<b".to_owned(), row.step.clone()));
        let text = figure("above", &bars, &SCALE);
        for said in [
            "width:41.00%",
            "width:82.00%",
            "<b>a&lt;b</b>",
            "class=\"one\" style=\"left:41.00%\"",
            "dashed: the kernel",
            "<span class=\"run\"><i></i>one</span>",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert_eq!(figure("above", &Bars::default(), &SCALE), "");
    }

    #[test]
    fn a_table_has_a_line_for_each_row_that_has_a_figure() {
        let of = |step: &str, figure: &str| {
            row(step, &[("threads", json!(1))], &[(figure, &[1.0, 1.0])])
        };
        let rows = [of("a&b", "rate"), of("none", "other")];
        let rows: Vec<&Row> = rows.iter().collect();
        let columns = LADDER.tables[0].columns;
        let text = table("above", &["threads"], columns, &rows, |_| "faster");
        let expected = "<tr class=\"faster\"><td>1</td><td>a&amp;b</td><td>1 (1 to 1)</td></tr>";
        assert!(text.contains(expected) && !text.contains("none"), "{text}");
    }

    #[test]
    fn names_in_braces_are_replaced() {
        let values = [("a", "1".to_owned()), ("b", "{c}".to_owned())];
        assert_eq!(filled("{a} {b} { x }", &values), "1 {c} { x }");
    }
}
