//! The charts of a bench as templates take them: horizontal bars in groups, with the same series in
//! each. Lengths are parts of the width, so that they fit any.

use super::files::{OutFile, fill};
use super::verdict;
use crate::measure::*;
use crate::model::*;
use serde_json::{Value, json};

/// All of them, one below the other.
const PLOT: &str = include_str!("charts/plot.svg");
/// The group of what was published.
const PUBLISHED: &str = "as published";
/// Share of the width that the longest bar takes; its value is written beside it.
const LONGEST: f64 = 82.0;
/// About how many marks an axis has.
const MARKS: f64 = 4.0;
/// How many colours there are, one a series, in turn.
const COLOURS: usize = 8;

/// Draws the charts of a bench into a file, as SVG.
pub fn draw(file: OutFile, findings: &Findings) -> Result<(), Failure> {
    file.write(&drawing(findings)?)
}

fn drawing(findings: &Findings) -> Result<String, Failure> {
    let Machine { cpus, kernel, .. } = &findings.machine;
    let title = format!("overspill: {} on {cpus} CPUs, Linux {kernel}", findings.subject);
    fill(PLOT, &json!({ "title": title, "charts": charts(findings) }))
}

/// The charts that a bench declared: one for each title that rows with the figure have.
pub fn charts(findings: &Findings) -> Vec<Value> {
    let mut all = Vec::new();
    for chart in findings.ladder.charts {
        let drawn_rows = findings.rows.iter().filter(|row| chart.title_of(row).is_some());
        // A series has the same colour in each of them, whatever else is in it.
        let series = once(drawn_rows.clone().map(|row| called(findings.ladder, row)));
        let rows = drawn_rows.filter(|row| row.figures.contains_key(chart.figure));
        for (title, rows) in grouped(rows, |row| chart.title_of(row)) {
            let groups = chart.groups(findings.ladder);
            let place = |row: &Row| (row.told(groups), called(findings.ladder, row));
            let bar = |row: &&Row| Some((place(row), row.get(chart.figure)?));
            let mut bars: Vec<Bar> = rows.iter().filter_map(bar).collect();
            bars.extend(findings.ladder.steps.iter().filter_map(|step| published(chart, step)));
            let format = verdict::format_of(findings.ladder, chart.figure);
            all.push(drawn(chart, &title, bars, &series, format));
        }
    }
    all
}

/// The names of its group and its series, and what it is as long as.
type Bar = ((String, String), Spread);

/// What the step of a row is called.
fn called(ladder: &Ladder, row: &Row) -> String {
    let called = ladder.called.iter().find(|(step, _)| *step == row.step);
    called.map_or_else(|| row.step.clone(), |(_, name)| (*name).to_owned())
}

/// What was published of a step.
fn published(chart: &Chart, step: &Step) -> Option<Bar> {
    let reference = step.reference.filter(|_| chart.published)?();
    let place = (PUBLISHED.to_owned(), step.name.to_owned());
    Some((place, Spread::of(vec![reference[chart.figure].as_f64()?])))
}

fn drawn(chart: &Chart, title: &str, bars: Vec<Bar>, series: &[String], format: Format) -> Value {
    let scale = Scale::new(chart, &bars);
    let at = |value: f64| format!("{:.2}%", scale.share(value) * LONGEST);
    let named = |name: &String| {
        let colour = series.iter().position(|other| other == name).unwrap_or(series.len());
        json!({ "name": name, "class": format!("s{}", colour % COLOURS) })
    };
    // A bar with its value, and a line from the lowest to the highest of several rounds.
    let bar = |((_, series), value): &Bar| {
        let mut bar = named(series);
        bar["text"] = json!(format(value.median));
        bar["long"] = json!(at(value.median));
        bar["to"] = json!(at(value.max));
        if value.rounds > 1 {
            let long = scale.share(value.max) - scale.share(value.min);
            bar["spread"] = json!([at(value.min), format!("{:.2}%", long * LONGEST)]);
        }
        bar
    };
    let legend = once(bars.iter().map(|((_, series), _)| series.clone()));
    let group = |(name, bars): (String, Vec<Bar>)| {
        let bars: Vec<Value> = bars.iter().map(bar).collect();
        json!({ "name": name, "bars": bars })
    };
    let groups = grouped(bars, |((group, _), _)| Some(group.clone()));
    let mark = |value: f64| json!({ "at": at(value), "text": format(value) });
    json!({
        "title": title,
        "figure": chart.figure,
        "axis": chart.axis,
        "legend": legend.iter().map(named).collect::<Vec<_>>(),
        "marks": scale.marks().into_iter().map(mark).collect::<Vec<_>>(),
        "line": chart.line.map(|(value, name)| json!({ "at": at(value), "name": name })),
        "groups": groups.into_iter().map(group).collect::<Vec<_>>(),
    })
}

/// How long bars are.
struct Scale {
    highest: f64,
    /// Where a logarithmic scale begins, at a power of ten; others begin at zero.
    floor: Option<f64>,
}

impl Scale {
    fn new(chart: &Chart, bars: &[Bar]) -> Scale {
        let line = chart.line.map_or(f64::MIN_POSITIVE, |(at, _)| at);
        let highest = bars.iter().map(|(_, value)| value.max).fold(line, f64::max);
        let lows = bars.iter().map(|(_, value)| value.min).filter(|min| *min > 0.0);
        // The lowest bar is seen, too.
        let floor = || 10f64.powf((lows.fold(highest, f64::min).log10() - 0.2).floor());
        Scale { highest, floor: chart.log.then(floor) }
    }

    /// The part of the longest bar that a bar of a value is.
    fn share(&self, value: f64) -> f64 {
        let Some(floor) = self.floor else { return value / self.highest };
        (value.max(floor) / floor).log10() / (self.highest / floor).log10()
    }

    /// Round numbers: powers of ten, or multiples of 1, 2 or 5 times one.
    fn marks(&self) -> Vec<f64> {
        let all = |mark: &dyn Fn(i32) -> f64| {
            (0..).map(mark).take_while(|mark| *mark <= self.highest).collect()
        };
        if let Some(floor) = self.floor {
            return all(&|n| floor * 10f64.powi(n));
        }
        let power = 10f64.powf((self.highest / MARKS).log10().floor());
        let mut steps = [1.0, 2.0, 5.0].into_iter().map(|n| n * power);
        let step = steps.find(|step| self.highest / step <= MARKS).unwrap_or(10.0 * power);
        all(&|n| f64::from(n) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LADDER, row};

    const CHART: Chart = Chart {
        titles: Some(|row| row.labels.contains_key("peer").then(|| row.label("peer"))),
        ..chart("", "rate", "pages a second")
    };
    const LOG: Chart = Chart { log: true, ..CHART };

    #[test]
    fn marks_are_round_numbers() {
        let marks = |highest: f64, chart: Chart| {
            let bar = |value| ((String::new(), String::new()), Spread::of(vec![value]));
            Scale::new(&chart, &[bar(highest), bar(3.0)]).marks()
        };
        assert_eq!(marks(4.1, CHART), [0.0, 2.0, 4.0]);
        assert_eq!(marks(12e3, CHART), [0.0, 5e3, 10e3]);
        assert_eq!(marks(150.0, LOG), [1.0, 10.0, 100.0]);
    }

    #[test]
    fn there_is_a_chart_for_each_title_with_a_bar_for_each_row_and_what_was_published() {
        let line = Some((2.0, "the kernel"));
        let charts = Box::leak(Box::new([Chart { published: true, line, ..CHART }, LOG]));
        let steps = const { &[Step::new("one", "").published(|| json!({ "rate": 7.5 }))] };
        let called = &[("one", "number one")];
        let ladder =
            Box::leak(Box::new(Ladder { charts, called, steps, groups: &["with"], ..LADDER }));
        let row = |step, peer: &str, with: &str, figure| {
            row(step, &[("peer", json!(peer)), ("with", json!(with))], &[(figure, &[1.0, 3.0])])
        };
        let rows = vec![
            crate::fixture::row("floor", &[], &[("rate", &[1.0])]),
            row("one", "zram", "a<b", "rate"),
            row("two", "zram", "c", "rate"),
            row("two", "file", "c", "rate"),
            row("two", "zswap", "c", "other"),
        ];
        let mut findings = Findings::new(ladder, json!({}), rows);
        findings.subject = "steps".to_owned();
        findings.machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        let all = super::charts(&findings);
        let titles: Vec<&Value> = all.iter().map(|chart| &chart["title"]).collect();
        assert_eq!(titles, ["zram", "file", "zram", "file"]);
        let first = json!({ "name": "number one", "class": "s0", "text": "2", "long": "21.87%",
            "to": "32.80%", "spread": ["10.93%", "21.87%"] });
        assert_eq!(all[0]["groups"][0]["bars"][0], first);
        assert_eq!(all[0]["groups"][2]["bars"][0]["text"], "8", "as published");
        assert_eq!(all[3]["legend"], json!([{ "name": "two", "class": "s1" }]), "as in the others");
        let text = drawing(&findings).unwrap();
        let title = "overspill: steps on 2 CPUs, Linux 6.18";
        for said in [title, "pages a second", ">zram<", ">two<", ">a&lt;b<", "dashed: the kernel"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        findings.rows.clear();
        assert!(drawing(&findings).unwrap().contains("<svg"), "an empty drawing");
    }
}
