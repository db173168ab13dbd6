//! A chart of horizontal bars in HTML: it fits any width, and takes its colours from the page.

use super::escaped;
use crate::measure::Spread;
use crate::report::{short, whole};

/// Share of the width that the longest bar takes; its value is written beside it.
const LONGEST: f64 = 82.0;
/// About how many marks an axis has.
const MARKS: f64 = 4.0;

/// Bars in groups, with a scale from zero.
pub struct Chart {
    /// What the scale counts.
    pub unit: &'static str,
    /// How a value is written.
    pub format: fn(f64) -> String,
    /// Where a line is drawn, and what it is called.
    pub line: Option<(f64, &'static str)>,
    /// The groups from top to bottom.
    pub groups: Vec<Group>,
}

/// Bars with a name.
pub struct Group {
    /// What it is about.
    pub name: String,
    /// For each bar its class, who it is, and what was measured.
    pub bars: Vec<(&'static str, &'static str, Spread)>,
}

impl Chart {
    /// As HTML.
    pub fn drawn(&self) -> String {
        let values =
            || self.groups.iter().flat_map(|group| &group.bars).map(|(_, _, value)| value.max);
        let highest = values().chain(self.line.map(|(at, _)| at)).fold(f64::MIN_POSITIVE, f64::max);
        let step = mark(highest);
        let marks = || (1..).map(move |n| f64::from(n) * step).take_while(move |at| *at <= highest);
        let at = |value: f64| value / highest * LONGEST;
        let mut lines: String =
            marks().map(|mark| format!("<u style=\"left:{:.2}%\"></u>", at(mark))).collect();
        if let Some((line, _)) = self.line {
            lines += &format!("<u class=\"one\" style=\"left:{:.2}%\"></u>", at(line));
        }
        let bar = |(class, who, value): &(&str, &str, Spread)| {
            let spread = if value.rounds > 1 {
                let (from, to) = (at(value.min), at(value.max));
                format!("<s style=\"left:{from:.2}%;width:{:.2}%\"></s>", to - from)
            } else {
                String::new()
            };
            let end = if value.rounds > 1 { at(value.max) } else { at(value.median) };
            let text = (self.format)(value.median);
            format!(
                "<div class=\"bar {class}\" title=\"{who}: {text}\"><i \
                 style=\"width:{:.2}%\"></i>{spread}<em \
                 style=\"left:{end:.2}%\">{text}</em></div>",
                at(value.median)
            )
        };
        let group = |group: &Group| {
            let bars: String = group.bars.iter().map(bar).collect();
            format!("<b>{}</b><div class=\"bars\">{lines}{bars}</div>\n", escaped(&group.name))
        };
        let groups: String = self.groups.iter().map(group).collect();
        let number = |at: f64| if step < 1.0 { format!("{at:.1}") } else { whole(at) };
        let numbers: String = [0.0]
            .into_iter()
            .chain(marks())
            .map(|m| format!("<span style=\"left:{:.2}%\">{}</span>", at(m), number(m)))
            .collect();
        let line = self.line.map_or(String::new(), |(_, name)| format!("; dashed: {name}"));
        format!(
            "<div class=\"plot\">{groups}<b></b><div class=\"axis\">{numbers}</div><div \
             class=\"unit\">{}{line}</div></div>\n",
            self.unit
        )
    }
}

/// The distance of marks on a scale: 1, 2 or 5 times a power of ten.
fn mark(highest: f64) -> f64 {
    let power = 10f64.powf((highest / MARKS).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|step| highest / step <= MARKS)
        .unwrap_or(10.0 * power)
}

/// A time in microseconds, of nanoseconds.
pub fn microseconds(ns: f64) -> String {
    format!("{} µs", short(ns / 1e3))
}

/// A time in seconds.
pub fn seconds(s: f64) -> String {
    format!("{} s", short(s))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let value = |value| Spread { median: value, min: value, max: value, rounds: 1 };
        let group = Group {
            name: "a<b".to_owned(),
            bars: vec![("run", "one", value(1.0)), ("library", "two", value(2.0))],
        };
        let chart = Chart {
            unit: "ratio",
            format: short,
            line: Some((1.0, "the kernel")),
            groups: vec![group],
        };
        let text = chart.drawn();
        assert!(
            text.contains("width:41.00%")
                && text.contains("width:82.00%")
                && text.contains("a&lt;b"),
            "{text}"
        );
        assert!(
            text.contains("class=\"one\" style=\"left:41.00%\"")
                && text.contains("dashed: the kernel"),
            "{text}"
        );
    }
}
