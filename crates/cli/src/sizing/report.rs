//! What is told of a job: its curve, where that bends, and the least budgets; a table, or JSON.

use super::model::{Measured, Model, With};
use crate::report::{duration, thousands};
use crate::rundir::Tree;
use overspill::units::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// About how many budgets the table has.
const ROWS: usize = 10;
/// How much longer it may take with the budgets that are told, in percent.
const PERCENTS: [u32; 3] = [5, 10, 25];
/// The percentage whose budget `run --memory auto` takes.
const AUTO: u32 = 10;
/// Budgets are told to so much, and never less than they are.
const GRAIN: u64 = 1 << 20;

/// What is told of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command's words.
    pub command: Vec<String>,
    /// What was measured: the budget at the end, the time, the most that the job had, and what of
    /// it was not managed.
    pub budget_bytes: u64,
    pub elapsed_s: f64,
    pub most_bytes: u64,
    pub unmanaged_bytes: u64,
    /// Pages that left memory and came back.
    pub refaults: u64,
    /// The time that it is said to take if nothing leaves memory.
    pub fastest_s: f64,
    /// Microseconds of a page that is unpacked, and of one that is read from a device.
    pub compressed_us: f64,
    pub device_us: f64,
    /// Where the curve bends, if it does.
    pub knee_bytes: Option<u64>,
    /// The least budgets.
    pub at_most: Vec<AtMost>,
    pub curve: Vec<Point>,
}

/// The least budget with which a job takes so much longer at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtMost {
    pub percent: u32,
    pub budget_bytes: u64,
}

/// A job with some budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub budget_bytes: u64,
    /// Pages that come back, and those of them that are read from devices.
    pub refaults: u64,
    pub device: u64,
    pub elapsed_s: f64,
    /// The same with a denser codec, and with a device twice as fast.
    pub denser_s: f64,
    pub faster_s: f64,
}

impl Report {
    pub fn new(command: Vec<String>, tree: &Tree, measured: Measured) -> Report {
        let model = Model::new(tree, measured);
        let point = |budget: Bytes| {
            let [same, denser, faster] = [With::Same, With::DenserCodec, With::FasterDevice]
                .map(|with| model.at(budget, with));
            Point {
                budget_bytes: budget.0,
                refaults: same.refaults as u64,
                device: same.device as u64,
                elapsed_s: same.elapsed_s,
                denser_s: denser.elapsed_s,
                faster_s: faster.elapsed_s,
            }
        };
        let at_most = PERCENTS
            .map(|percent| AtMost { percent, budget_bytes: rounded(model.at_most(percent)).0 });
        let refaults = tree.total.stack_distances.count();
        Report {
            command,
            budget_bytes: measured.budget.0,
            elapsed_s: measured.elapsed.as_secs_f64(),
            most_bytes: model.most().0,
            unmanaged_bytes: measured.unmanaged.0,
            refaults,
            fastest_s: model.own_s,
            compressed_us: model.compressed_s * 1e6,
            device_us: model.device_s * 1e6,
            knee_bytes: model.knee().map(|knee| rounded(knee).0),
            at_most: if model.has_curve() { at_most.to_vec() } else { Vec::new() },
            curve: model.budgets().into_iter().map(point).collect(),
        }
    }

    /// The budget for the next run of the same command.
    pub fn automatic(&self) -> Bytes {
        let at_most = self.at_most.iter().find(|at_most| at_most.percent == AUTO);
        at_most.map_or(rounded(Bytes(self.most_bytes)), |at_most| Bytes(at_most.budget_bytes))
    }

    /// What is to be known of a budget, but for its figures.
    fn marks(&self, budget: Bytes) -> String {
        let knee = (self.knee_bytes == Some(budget.0)).then(|| "the knee".to_owned());
        let at_most = self.at_most.iter().filter(|at_most| at_most.budget_bytes == budget.0);
        let at_most = at_most.map(|at_most| format!("at most {} % more", at_most.percent));
        knee.into_iter().chain(at_most).collect::<Vec<_>>().join(", ")
    }

    /// The point of the curve that a budget is at, or the next one above.
    pub fn at(&self, budget: Bytes) -> Option<&Point> {
        let next = self.curve.iter().find(|point| point.budget_bytes >= budget.0);
        next.or_else(|| self.curve.last())
    }

    /// Budgets that are worth a row, the least first: even steps, and those with a mark.
    fn budgets(&self) -> Vec<Bytes> {
        let step = self.curve.len().div_ceil(ROWS).max(1);
        let even = self.curve.iter().step_by(step).map(|point| rounded(Bytes(point.budget_bytes)));
        let marked = self.at_most.iter().map(|at_most| at_most.budget_bytes);
        let marked = marked.chain(self.knee_bytes).map(Bytes);
        let mut all: Vec<Bytes> = even.chain(marked).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The cells of the table, the heading first.
    pub fn rows(&self) -> Vec<[String; 7]> {
        let head = ["budget", "refaults", "of devices", "time", "more", "denser", "faster"];
        let mut rows = vec![head.map(str::to_owned)];
        for budget in self.budgets() {
            let Some(point) = self.at(budget) else { continue };
            let time = |seconds: f64| duration((seconds * 1e9) as u64);
            let more = 100.0 * (point.elapsed_s / self.fastest_s.max(1e-9) - 1.0);
            rows.push([
                budget.to_string(),
                thousands(point.refaults),
                thousands(point.device),
                time(point.elapsed_s),
                format!("+{more:.0} %"),
                time(point.denser_s),
                time(point.faster_s),
            ]);
        }
        rows
    }

    /// Rows with what there is to be known of each, the heading without.
    pub fn marked_rows(&self) -> Vec<([String; 7], String)> {
        let marks = self.budgets().into_iter().map(|budget| self.marks(budget));
        self.rows().into_iter().zip([String::new()].into_iter().chain(marks)).collect()
    }

    /// The sentence that answers.
    pub fn answer(&self) -> String {
        let most = Bytes(self.most_bytes);
        match self.at_most.iter().find(|at_most| at_most.percent == AUTO) {
            None => format!(
                "it had {most} at most, and all of it fitted: with less nothing is known, unless \
                 it runs with a smaller --memory"
            ),
            Some(at_most) => format!(
                "it had {most} at most; with {} it takes at most {AUTO} % more time than if all of \
                 that fits",
                Bytes(at_most.budget_bytes)
            ),
        }
    }

    /// All of it as text for people, each line ended.
    pub fn text(&self) -> String {
        let name = crate::report::printable(self.command.first().map_or("", String::as_str));
        let elapsed = duration((self.elapsed_s * 1e9) as u64);
        let mut text = format!(
            "overspill: {name} took {elapsed} in {}: {}\n",
            Bytes(self.budget_bytes),
            self.answer()
        );
        if self.at_most.is_empty() {
            return text;
        }
        let rows = self.marked_rows();
        let width = |at: usize| rows.iter().map(|(row, _)| row[at].chars().count()).max();
        let widths: [usize; 7] = std::array::from_fn(|at| width(at).unwrap_or(0));
        for (row, marks) in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
            let line = format!("  {}  {marks}", cells.collect::<Vec<_>>().join("  "));
            writeln!(text, "{}", line.trim_end()).expect("strings take everything");
        }
        text + "  (denser: the time with Zstandard; faster: with a device twice as fast)\n"
    }
}

fn rounded(budget: Bytes) -> Bytes {
    Bytes(budget.0.next_multiple_of(GRAIN))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What a loop over 64 MiB would tell.
    pub fn looped() -> Report {
        let point = |mib: u64| Point {
            budget_bytes: mib << 20,
            refaults: if mib < 68 { 80_000 } else { 0 },
            device: 0,
            elapsed_s: if mib < 68 { 2.0 } else { 1.0 },
            denser_s: if mib < 68 { 3.0 } else { 1.0 },
            faster_s: if mib < 68 { 2.0 } else { 1.0 },
        };
        Report {
            command: ["sort", "<b>"].map(str::to_owned).to_vec(),
            budget_bytes: 20 << 20,
            elapsed_s: 2.0,
            most_bytes: 68 << 20,
            unmanaged_bytes: 4 << 20,
            refaults: 80_000,
            fastest_s: 1.0,
            compressed_us: 12.0,
            device_us: 0.0,
            knee_bytes: Some(68 << 20),
            at_most: PERCENTS.map(|percent| AtMost { percent, budget_bytes: 68 << 20 }).to_vec(),
            curve: (20..80).map(point).collect(),
        }
    }

    #[test]
    fn a_table_has_the_curve_and_what_is_to_be_known_of_it() {
        let text = looped().text();
        assert!(text.starts_with("overspill: sort took 2.0 s in 20 MiB: it had 68 MiB at most; "));
        let line = text.lines().find(|line| line.trim_start().starts_with("68 MiB")).unwrap();
        let marks = "+0 %  1.0 s  1.0 s  the knee, at most 5 % more, at most 10 % more, at most";
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(line).contains(&words(marks)), "{line}");
        assert!(text.lines().any(|line| words(line).starts_with("20 MiB 80,000 0 2.0 s +100 %")));
        assert!((8..16).contains(&text.lines().count()), "{text}");
        assert_eq!(looped().automatic(), Bytes(68 << 20));
    }

    #[test]
    fn a_job_that_fitted_is_told_in_a_sentence() {
        let report = Report { at_most: Vec::new(), knee_bytes: None, ..looped() };
        assert_eq!(report.text().lines().count(), 1);
        assert!(report.text().contains("all of it fitted"), "{}", report.text());
        assert_eq!(report.automatic(), Bytes(68 << 20));
    }

    #[test]
    fn it_comes_back_from_json() {
        let text = serde_json::to_string(&looped()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), looped());
    }
}
