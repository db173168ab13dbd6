//! The words in which a bench says what it measures: steps, columns, comparisons, verdicts, charts.
//!
//! A [`Ladder`] is all of it. Everything that is printed or drawn is made from it, so that a bench
//! has no sentences of its own.

use super::format::{self, Format};
use super::row::Row;
use serde_json::Value;

#[derive(Debug)]
pub struct Ladder {
    pub bench: &'static str,
    /// The steps, bottom up. Empty where the user says what they are.
    pub steps: &'static [Step],
    /// The labels that group rows, a column each.
    pub groups: &'static [&'static str],
    pub tables: &'static [Table],
    /// Figures made of two rows of the same round.
    pub comparisons: &'static [Comparison],
    pub verdicts: &'static [Verdict],
    pub charts: &'static [Chart],
    /// What steps are called in them, if not by their names.
    pub called: &'static [(&'static str, &'static str)],
    /// Where the figures come from that the origin of the mechanism published.
    pub origin: &'static str,
}

impl Ladder {
    /// Without anything.
    pub const NONE: Ladder = Ladder {
        bench: "",
        steps: &[],
        groups: &[],
        tables: &[],
        comparisons: &[],
        verdicts: &[],
        charts: &[],
        called: &[],
        origin: "",
    };
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub name: &'static str,
    /// What it is, on the command line.
    pub help: &'static str,
    /// The step that it changes, and is compared with.
    pub from: Option<&'static str>,
    /// Settings of the engine: all, or what differs from that step.
    pub settings: Option<&'static str>,
    /// What is measured instead of the engine.
    pub instead: &'static str,
    /// Figures that the origin of the mechanism published.
    pub reference: Option<fn() -> Value>,
}

impl Step {
    pub const fn new(name: &'static str, help: &'static str) -> Step {
        Step { name, help, from: None, settings: None, instead: "", reference: None }
    }

    /// With settings of the engine, to which nothing is added.
    pub const fn set(self, settings: &'static str) -> Step {
        Step { settings: Some(settings), ..self }
    }

    /// With the settings of another step but for these.
    pub const fn from(self, step: &'static str, settings: &'static str) -> Step {
        Step { from: Some(step), settings: Some(settings), ..self }
    }

    /// Measured instead of the engine.
    pub const fn instead(self, what: &'static str) -> Step {
        Step { instead: what, ..self }
    }

    /// With figures that were published.
    pub const fn published(self, reference: fn() -> Value) -> Step {
        Step { reference: Some(reference), ..self }
    }
}

/// A table for people: a line a row, with some of its figures.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// What stands above it, if anything.
    pub title: &'static str,
    pub columns: &'static [Column],
}

/// A column of a table: how people read a figure.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub figure: &'static str,
    pub format: Format,
    /// Whether the lowest and the highest value are shown too.
    pub spread: bool,
}

/// A column with the median.
pub const fn col(title: &'static str, figure: &'static str, format: Format) -> Column {
    Column { title, figure, format, spread: false }
}

/// A column with the median, the lowest and the highest value.
pub const fn wide(title: &'static str, figure: &'static str, format: Format) -> Column {
    Column { title, figure, format, spread: true }
}

/// A figure that compares a row with another one of the same labels, round by round.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub name: &'static str,
    /// How both are compared.
    pub how: How,
    pub figure: &'static str,
    /// The other row.
    pub base: Base,
    /// The only step that is compared, if not all are.
    pub only: Option<&'static str>,
}

/// How two values are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// This in units of the other.
    Times,
    /// The other in units of this: how many times less this is.
    TimesLess,
    /// By what share this is more.
    More,
    /// By what share this is less.
    Less,
}

impl How {
    pub fn of(self, here: f64, there: f64) -> f64 {
        match self {
            How::Times => here / there,
            How::TimesLess => there / here,
            How::More => here / there - 1.0,
            How::Less => 1.0 - here / there,
        }
    }

    pub fn format(self) -> Format {
        match self {
            How::Times | How::TimesLess => format::ratio,
            How::More | How::Less => format::gain,
        }
    }
}

/// The row that a row is compared with: that of a step, with the same labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Of this step; a row is not compared with itself.
    Step(&'static str),
    /// Of this step, which is the measure of itself too.
    Measure(&'static str),
    /// Of the step that this one changes.
    From,
    /// Of the first step that was measured.
    First,
}

/// The figure `name`: `figure` compared with that of another row.
pub const fn compare(name: &'static str, how: How, figure: &'static str, base: Base) -> Comparison {
    Comparison { name, how, figure, base, only: None }
}

impl Comparison {
    /// Of one step only.
    pub const fn only(self, step: &'static str) -> Comparison {
        Comparison { only: Some(step), ..self }
    }
}

/// A line that says what a figure shows.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Of which step: the first of these that was measured; of all if there are none.
    pub steps: &'static [&'static str],
    pub figure: &'static str,
    pub says: &'static str,
    /// What is to be reached.
    pub goal: Goal,
    pub rows: Rows,
}

/// What is to be reached.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    Told,
    /// So much, or more.
    AtLeast(f64),
    /// So much, or less.
    AtMost(f64),
    /// More than nothing, in every round, and rounds enough to tell it from noise.
    Gain,
    /// So much, and a gain in every round.
    GainOf(f64),
    /// No round worse than all of this step: the figure is one that should be low.
    NotAbove(&'static str),
    /// All rows together: in none a loss in every round, but for what chance explains.
    NoLoss,
}

/// Which rows are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    All,
    /// Those with the largest number of a label.
    Most(&'static str),
    With(&'static [(&'static str, &'static str)]),
    /// Those that have a label at all.
    Labelled(&'static str),
    /// The median over those with these labels.
    Across(&'static [(&'static str, &'static str)]),
}

/// A line about some rows.
pub const fn verdict(
    rows: Rows,
    steps: &'static [&'static str],
    figure: &'static str,
    says: &'static str,
    goal: Goal,
) -> Verdict {
    Verdict { steps, figure, says, goal, rows }
}

/// The same where nothing is to be reached.
pub const fn told(
    rows: Rows,
    steps: &'static [&'static str],
    figure: &'static str,
    says: &'static str,
) -> Verdict {
    verdict(rows, steps, figure, says, Goal::Told)
}

#[derive(Clone, Copy, Debug)]
pub struct Chart {
    /// What stands above it.
    pub title: &'static str,
    /// Or what this says of a row: a chart for each; rows without are in none.
    pub titles: Option<fn(&Row) -> Option<String>>,
    pub figure: &'static str,
    /// What the axis counts.
    pub axis: &'static str,
    pub log: bool,
    /// Where a line is drawn, and what it is called.
    pub line: Option<(f64, &'static str)>,
    /// Whether what was published of a step is drawn too.
    pub published: bool,
}

/// A chart of all rows, grouped as those of tables are: each step is a series.
pub const fn chart(title: &'static str, figure: &'static str, axis: &'static str) -> Chart {
    Chart { title, titles: None, figure, axis, log: false, line: None, published: false }
}

impl Chart {
    /// The title of the chart that a row is in.
    pub fn title_of(&self, row: &Row) -> Option<String> {
        self.titles.map_or_else(|| Some(self.title.to_owned()), |title| title(row))
    }

    /// The labels by which rows are grouped: of charts whose titles say the others, the first.
    pub fn groups(&self, ladder: &Ladder) -> &'static [&'static str] {
        if self.titles.is_some() { &ladder.groups[..1] } else { ladder.groups }
    }
}
