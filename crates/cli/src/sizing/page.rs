//! A report as one page that needs nothing else, with the curve as a picture.

use super::report::{Point, Report};
use crate::report::{duration, thousands};
use overspill::units::Bytes;
use std::fmt::Write;

const PAGE: &str = include_str!("page.html");
/// Where a curve is drawn, in units of the picture.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 40.0;
/// About how many marks an axis has.
const MARKS: f64 = 6.0;
/// How near to each other names of marks may stand.
const NAME: f64 = 15.0;

/// A curve: its class, what it is called, and how high it is at a point.
type Curve = (&'static str, &'static str, fn(&Point) -> f64);

const TIMES: [Curve; 3] = [
    ("same", "as it ran", |point| point.elapsed_s),
    ("denser", "with a denser codec", |point| point.denser_s),
    ("faster", "with a device twice as fast", |point| point.faster_s),
];
const PAGES: [Curve; 2] = [
    ("pages", "pages that come back", |point| point.refaults as f64),
    ("same", "of devices", |point| point.device as f64),
];

/// The page.
pub fn page(report: &Report) -> String {
    let microseconds = |us: f64| match us > 0.0 {
        true => duration((us * 1e3) as u64),
        false => "nothing, as there was none".to_owned(),
    };
    let time = |ns: f64| duration((ns * 1e9) as u64);
    let pictures = match report.at_most.is_empty() {
        true => String::new(),
        false => {
            format!(
                "<h2>Time</h2>{}<h2>Pages that come back</h2>{}",
                picture(report, &TIMES, time),
                picture(report, &PAGES, |pages| thousands(pages as u64))
            )
        }
    };
    let answer = report.answer();
    let mut letters = answer.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    [
        ("{title}", escaped(&format!("overspill: {}", report.command.join(" ")))),
        ("{version}", env!("CARGO_PKG_VERSION").to_owned()),
        ("{budget}", Bytes(report.budget_bytes).to_string()),
        ("{elapsed}", time(report.elapsed_s)),
        ("{answer}", escaped(&(first + letters.as_str()))),
        ("{pictures}", pictures),
        ("{table}", table(report)),
        ("{compressed}", microseconds(report.compressed_us)),
        ("{device}", microseconds(report.device_us)),
        // Last: it may hold anything.
        ("{command}", escaped(&report.command.join(" "))),
    ]
    .into_iter()
    .fold(PAGE.to_owned(), |page, (name, value)| page.replacen(name, &value, 1))
}

fn escaped(text: &str) -> String {
    let special = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        // So that no name of the page is in a value.
        '{' => "&#123;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(special).collect()
}

fn table(report: &Report) -> String {
    let line = |(at, (cells, marks)): (usize, ([String; 7], String))| {
        let tag = if at == 0 { "th" } else { "td" };
        let cells = cells.iter().chain([&marks]);
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    report.marked_rows().into_iter().enumerate().map(line).collect()
}

/// Curves over budgets, with a legend.
fn picture(report: &Report, curves: &[Curve], format: impl Fn(f64) -> String) -> String {
    let named = |(class, name, _): &Curve| format!("<span class=\"{class}\"><i></i>{name}</span>");
    let legend: String = curves.iter().map(named).collect();
    let highest = report.curve.iter().flat_map(|point| curves.iter().map(|(.., of)| of(point)));
    let place = Place::new(report, highest.fold(1e-9, f64::max));
    let mut text = format!(
        "<p class=\"legend\">{legend}</p>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n"
    );
    place.axes(&mut text, format);
    marks(report, &place, &mut text);
    for (class, _, of) in curves {
        let point = |point: &Point| {
            format!("{:.1},{:.1}", place.x(point.budget_bytes as f64), place.y(of(point)))
        };
        let points: Vec<String> = report.curve.iter().map(point).collect();
        line(&mut text, &format!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }
    text + "</svg>\n"
}

/// Lines at the budgets that are to be known, with their names above, which do not overlap.
fn marks(report: &Report, place: &Place, text: &mut String) {
    let named = report
        .at_most
        .iter()
        .map(|at_most| (at_most.budget_bytes, format!("{} %", at_most.percent)));
    let knee = report.knee_bytes.map(|knee| (knee, "knee".to_owned()));
    let mut all: Vec<(u64, String)> = Vec::new();
    for (budget, name) in named.chain(knee) {
        match all.iter_mut().find(|(other, _)| *other == budget) {
            Some((_, names)) => *names += &format!(", {name}"),
            None => all.push((budget, name)),
        }
    }
    all.sort();
    let budget = |budget: u64| Bytes(budget);
    for (at, (bytes, name)) in all.iter().enumerate() {
        let (x, y) = (place.x(*bytes as f64), TOP - 4.0 - NAME * (at % 3) as f64);
        line(
            text,
            &format!(
                "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y + 3.0,
                HEIGHT - BOTTOM
            ),
        );
        let to_left = x > WIDTH * 0.75;
        let (class, x) = if to_left { ("name end", x - 4.0) } else { ("name", x + 4.0) };
        line(
            text,
            &format!(
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}: {name}</text>",
                budget(*bytes)
            ),
        );
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("strings take everything");
}

/// Where points of a curve are.
struct Place {
    low: f64,
    high: f64,
    highest: f64,
}

impl Place {
    fn new(report: &Report, highest: f64) -> Place {
        let budget = |point: Option<&Point>| point.map_or(0.0, |point| point.budget_bytes as f64);
        let (low, high) = (budget(report.curve.first()), budget(report.curve.last()));
        Place { low, high: high.max(low + 1.0), highest: highest * 1.05 }
    }

    fn x(&self, budget: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (budget - self.low) / (self.high - self.low)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value / self.highest).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share
    }

    /// The axes, with round numbers at them.
    fn axes(&self, text: &mut String, format: impl Fn(f64) -> String) {
        for value in round(0.0, self.highest, 10.0) {
            let y = self.y(value);
            line(
                text,
                &format!(
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    WIDTH - RIGHT,
                    LEFT - 8.0,
                    y + 4.0,
                    format(value)
                ),
            );
        }
        for value in round(self.low, self.high, 2.0) {
            let x = self.x(value);
            line(
                text,
                &format!(
                    "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                    HEIGHT - BOTTOM + 20.0,
                    Bytes(value as u64)
                ),
            );
        }
        line(
            text,
            &format!(
                "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                WIDTH - RIGHT,
                y = HEIGHT - BOTTOM
            ),
        );
    }
}

/// Round numbers between two: multiples of 1, 2 or 5 times a power of `base`, with base 2 of a
/// power alone.
fn round(low: f64, high: f64, base: f64) -> Vec<f64> {
    let rough = ((high - low) / MARKS).max(f64::MIN_POSITIVE);
    let power = base.powf(rough.log(base).floor());
    let steps = if base == 2.0 { &[1.0, 2.0][..] } else { &[1.0, 2.0, 5.0, 10.0] };
    let step = steps.iter().map(|n| n * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil() as u64;
    (first..).map(|n| n as f64 * step).take_while(|value| *value <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::looped;
    use super::*;

    #[test]
    fn the_page_needs_nothing_else_and_shows_the_curve() {
        let text = page(&looped());
        for said in [
            "<pre>sort &lt;b&gt;</pre>",
            "<b>It had 68 MiB at most; with 68 MiB it takes 10 % more time than if all",
            "<polyline class=\"same\" points=\"90.0,",
            "68 MiB: 5 %, 10 %, 25 %, knee</text>",
            "<td>+100 %</td>",
            "<th>refaults</th>",
            "prefers-color-scheme: dark",
            "took 12.0 us, one that was read from a device nothing, as there was none",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        for elsewhere in ["http", "<script", "src=", "@import", "url("] {
            assert!(!text.contains(elsewhere), "it loads nothing: {elsewhere}");
        }
        let rest = PAGE.split('{').filter_map(|part| part.split_once('}')).map(|(name, _)| name);
        let names = rest.filter(|name| name.chars().all(|c| c.is_ascii_lowercase()));
        names.for_each(|name| assert!(!text.contains(&format!("{{{name}}}")), "{name}"));
    }

    #[test]
    fn a_command_may_hold_anything() {
        let command = vec!["{table}</pre><script>".to_owned()];
        let text = page(&Report { command, ..looped() });
        assert!(text.contains("<pre>&#123;table}&lt;/pre&gt;&lt;script&gt;</pre>"), "{text}");
        assert!(!text.contains("<script"));
        let text = page(&Report { at_most: Vec::new(), ..looped() });
        assert!(text.contains("all of it fitted") && !text.contains("<svg"), "{text}");
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(round(0.0, 2.1, 10.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
        let mib = |value: f64| value * f64::from(1 << 20);
        assert_eq!(round(mib(20.0), mib(79.0), 2.0), [32.0, 48.0, 64.0].map(mib));
        assert_eq!(round(5.0, 6.0, 2.0).len(), 5);
    }
}
