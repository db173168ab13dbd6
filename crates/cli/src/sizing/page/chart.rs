//! Curves over budgets, as a picture that is as wide as there is room: lines are drawn in an SVG
//! that is stretched, and what is written stands beside it, in letters of one size.

use super::super::report::{Point, Report};
use overspill::units::Bytes;
use std::fmt::Write;

/// About how many numbers an axis has.
const MARKS: f64 = 6.0;
/// The sides of the SVG, before it is stretched.
const SIDE: f64 = 1000.0;
/// Right of this part of the width names of marks stand on the left of theirs: there is more room.
const MIDDLE: f64 = 0.4;

/// A curve: its class, what it is called, and how high it is at a point.
pub type Curve = (&'static str, &'static str, fn(&Point) -> f64);

/// Adds a line to a text.
pub fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("strings take everything");
}

/// What a picture shows.
pub struct Chart<'a> {
    pub title: &'a str,
    /// What its height is.
    pub unit: &'a str,
    /// The first is drawn last, over the others.
    pub curves: &'a [Curve],
    pub format: fn(f64) -> String,
}

impl Chart<'_> {
    /// The picture, with a legend.
    pub fn draw(&self, report: &Report) -> String {
        // A curve that is the first one all along would hide it, and tell nothing.
        let same = |of: fn(&Point) -> f64, first: fn(&Point) -> f64| {
            report.curve.iter().all(|point| (of(point) - first(point)).abs() <= 1e-9)
        };
        let (told, untold): (Vec<(usize, &Curve)>, Vec<_>) = (self.curves.iter().enumerate())
            .partition(|(at, (.., of))| *at == 0 || !same(*of, self.curves[0].2));
        let named = |(_, (class, name, _)): &(usize, &Curve)| {
            let line = "<svg viewBox=\"0 0 30 4\"><path d=\"M0 2H30\"/></svg>";
            format!("<span class=\"{class}\">{line}{name}</span>")
        };
        let mut legend: String = told.iter().map(named).collect();
        for (_, (_, name, _)) in untold {
            write!(legend, "<span>{name}: the same</span>").expect("strings take everything");
        }
        let points = || report.curve.iter();
        let highest = points().flat_map(|point| told.iter().map(move |(_, (.., of))| of(point)));
        let place = Place::new(report, highest.fold(1e-9, f64::max));
        let names = mark_names(report);
        let mut text = format!(
            "<h3>{}</h3>\n<figure>\n<p class=\"legend\">{legend}</p>\n<p class=\"unit\">{}</p>\n\
             <div class=\"plot\" style=\"margin-top:{}rem\" role=\"img\" aria-label=\"{}\">\n",
            self.title,
            self.unit,
            1.3 * names.len() as f64 + 0.3,
            self.title
        );
        self.lines(&mut text, report, &place, &told);
        self.numbers(&mut text, &place);
        marks(&mut text, &place, &names);
        text + "</div>\n<p class=\"unit middle\">budget of the job (--memory)</p>\n</figure>\n"
    }

    /// The grid and the curves.
    fn lines(&self, text: &mut String, report: &Report, place: &Place, told: &[(usize, &Curve)]) {
        line(text, &format!("<svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\">"));
        for value in round(0.0, place.highest, 10.0) {
            let y = SIDE * (1.0 - place.up(value));
            line(text, &format!("<path class=\"grid\" d=\"M0 {y:.1}H{SIDE}\"/>"));
        }
        for (_, (class, _, of)) in told.iter().rev() {
            let point = |point: &Point| {
                let (x, y) = (place.along(point.budget_bytes as f64), 1.0 - place.up(of(point)));
                format!("{:.1},{:.1}", SIDE * x, SIDE * y)
            };
            let points: Vec<String> = report.curve.iter().map(point).collect();
            line(text, &format!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
        }
        line(text, "</svg>");
    }

    /// Round numbers at the axes.
    fn numbers(&self, text: &mut String, place: &Place) {
        for value in round(0.0, place.highest, 10.0) {
            let (up, value) = (percent(place.up(value)), (self.format)(value));
            line(text, &format!("<span class=\"y\" style=\"bottom:{up}\">{value}</span>"));
        }
        for (at, value) in round(place.low, place.high, 2.0).into_iter().enumerate() {
            let (along, budget) = (percent(place.along(value)), Bytes(value as u64));
            let class = if at % 2 == 0 { "x" } else { "x odd" };
            line(text, &format!("<span class=\"{class}\" style=\"left:{along}\">{budget}</span>"));
        }
    }
}

/// The budgets that are to be known, the least first, each with what it is.
fn mark_names(report: &Report) -> Vec<(u64, String)> {
    let mut all: Vec<(u64, Vec<String>)> = Vec::new();
    let knee = report.knee_bytes.map(|knee| (knee, "knee".to_owned()));
    let at_most =
        report.at_most.iter().map(|one| (one.budget_bytes, format!("+{} %", one.percent)));
    for (budget, name) in knee.into_iter().chain(at_most) {
        match all.iter_mut().find(|(other, _)| *other == budget) {
            Some((_, names)) => names.push(name),
            None => all.push((budget, vec![name])),
        }
    }
    all.sort();
    all.into_iter().map(|(budget, names)| (budget, names.join(", "))).collect()
}

/// Lines at the budgets that are to be known, with their names above: each in a row of its own, so
/// that they do not overlap however near they are.
fn marks(text: &mut String, place: &Place, names: &[(u64, String)]) {
    let along = |(budget, _): &(u64, String)| place.along(*budget as f64);
    let to_right = names.iter().filter(|name| along(name) <= MIDDLE).count();
    for (at, mark) in names.iter().enumerate() {
        // The line of one is not to go through the name of another.
        let (class, row) = match at < to_right {
            true => ("mark", names.len() - at),
            false => ("mark end", at + 1 - to_right),
        };
        let (along, (budget, name)) = (along(mark), mark);
        line(
            text,
            &format!(
                "<div class=\"{class}\" style=\"left:{};top:-{:.1}rem\"><b>{}: {name}</b></div>",
                percent(along),
                1.3 * row as f64,
                Bytes(*budget)
            ),
        );
    }
}

fn percent(part: f64) -> String {
    format!("{:.2}%", 100.0 * part)
}

/// Where points of a curve are, in parts of the picture's sides.
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

    fn along(&self, budget: f64) -> f64 {
        ((budget - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn up(&self, value: f64) -> f64 {
        (value / self.highest).clamp(0.0, 1.0)
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
    use super::super::super::report::AtMost;
    use super::super::super::report::tests::looped;
    use super::*;

    #[test]
    fn marks_are_round() {
        assert_eq!(round(0.0, 2.1, 10.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
        let mib = |value: f64| value * f64::from(1 << 20);
        assert_eq!(round(mib(20.0), mib(79.0), 2.0), [32.0, 48.0, 64.0].map(mib));
        assert_eq!(round(5.0, 6.0, 2.0).len(), 5);
    }

    #[test]
    fn names_of_budgets_have_a_row_each_and_no_line_goes_through_them() {
        let at_most = [(5, 68), (10, 67), (25, 30)]
            .map(|(percent, mib)| AtMost { percent, budget_bytes: mib << 20 });
        let report = Report { at_most: at_most.to_vec(), knee_bytes: Some(25 << 20), ..looped() };
        let (names, mut text) = (mark_names(&report), String::new());
        marks(&mut text, &Place::new(&report, 1.0), &names);
        let rows: Vec<(bool, &str)> = text
            .lines()
            .map(|mark| {
                let row = mark.split_once("top:-").unwrap().1.split_once("rem").unwrap().0;
                (mark.contains("mark end"), row)
            })
            .collect();
        // Those on the left are written to the right, the first one highest; the others turned.
        assert_eq!(rows, [(false, "5.2"), (false, "3.9"), (true, "1.3"), (true, "2.6")], "{text}");
        let told: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(told, ["knee", "+25 %", "+10 %", "+5 %"]);
    }
}
