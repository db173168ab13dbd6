//! What rows say about one figure, as bars in groups, with the same series in each.

use crate::measure::Spread;
use crate::model::*;

/// The series of what was published.
const PUBLISHED: &str = "as published";

#[derive(Debug, Default)]
pub struct Bars {
    pub groups: Vec<String>,
    pub series: Vec<String>,
    /// Group, series (as indices), value.
    pub bars: Vec<(usize, usize, Spread)>,
}

impl Bars {
    /// Those of all rows that have the figure; `place` names the group and the series of a row.
    pub fn of<'r>(
        rows: impl IntoIterator<Item = &'r Row>,
        figure: &str,
        place: fn(&Row) -> (String, String),
    ) -> Bars {
        let mut bars = Bars::default();
        for row in rows {
            if let Some(value) = row.get(figure) {
                bars.add(place(row), value);
            }
        }
        bars
    }

    fn add(&mut self, (group, series): (String, String), value: Spread) {
        fn index(all: &mut Vec<String>, one: String) -> usize {
            all.iter().position(|other| *other == one).unwrap_or_else(|| {
                all.push(one);
                all.len() - 1
            })
        }
        let (group, series) = (index(&mut self.groups, group), index(&mut self.series, series));
        self.bars.push((group, series, value));
    }

    pub fn highest(&self) -> Option<f64> {
        self.bars.iter().map(|(_, _, value)| value.max).max_by(f64::total_cmp)
    }
}

/// A chart with what is drawn in it.
#[derive(Debug)]
pub struct Drawn<'c> {
    /// What stands above it.
    pub title: String,
    /// How it was declared.
    pub chart: &'c Chart,
    pub bars: Bars,
}

/// The charts that a bench declared: one for each title that rows with the figure have.
pub fn charts(findings: &Findings) -> Vec<Drawn<'static>> {
    let mut all = Vec::new();
    for chart in findings.ladder.charts {
        let rows = findings.rows.iter().filter(|row| row.figures.contains_key(chart.figure));
        for (title, rows) in grouped(rows, |row| chart.title.of(row)) {
            let mut bars = Bars::of(rows, chart.figure, chart.place);
            if chart.published {
                add_published(&mut bars, findings, chart.figure);
            }
            all.push(Drawn { title, chart, bars });
        }
    }
    all
}

fn add_published(bars: &mut Bars, findings: &Findings, figure: &str) {
    for step in findings.ladder.steps {
        let reference = step.reference.map(|reference| reference());
        if let Some(value) = reference.and_then(|reference| reference[figure].as_f64()) {
            bars.add((step.name.to_owned(), PUBLISHED.to_owned()), Spread::of(vec![value]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};
    use crate::model::declare::{Ladder, Step, Title, chart};
    use serde_json::json;

    #[test]
    fn there_is_a_chart_for_each_title_with_what_was_published() {
        const CHARTS: &[Chart] = &[chart(
            Title::Of(|row| row.labels.contains_key("peer").then(|| row.label("peer"))),
            "s",
            "seconds",
            |row| (row.step.clone(), row.label("with")),
        )
        .published()];
        const STEPS: &[Step] = &[Step::new("one", "").published(|| json!({ "s": 7.5 }))];
        let ladder = Box::leak(Box::new(Ladder { charts: CHARTS, steps: STEPS, ..LADDER }));
        let row = |step, peer: &str, with: &str, figure| {
            row(step, &[("peer", json!(peer)), ("with", json!(with))], &[(figure, &[1.0, 3.0])])
        };
        let floor = crate::fixture::row("floor", &[], &[("s", &[1.0])]);
        let rows = vec![
            floor,
            row("one", "zram", "a", "s"),
            row("two", "zram", "b", "s"),
            row("two", "file", "b", "s"),
            row("two", "zswap", "b", "other"),
        ];
        let findings = Findings::new(ladder, json!({}), rows);
        let charts = charts(&findings);
        let titles: Vec<&str> = charts.iter().map(|drawn| drawn.title.as_str()).collect();
        assert_eq!(titles, ["zram", "file"]);
        let Bars { groups, series, bars } = &charts[0].bars;
        assert_eq!(
            (groups.join(" "), series.join(" ")),
            ("one two".into(), "a b as published".into())
        );
        assert_eq!(
            bars.iter().map(|bar| (bar.0, bar.1)).collect::<Vec<_>>(),
            [(0, 0), (1, 1), (0, 2)]
        );
        assert_eq!(charts[0].bars.highest(), Some(7.5));
    }
}
