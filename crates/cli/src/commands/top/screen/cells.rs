//! What the screen is made of: colours, texts in so many columns, figures, graphs.

use crate::commands::top::bars::Marks;
use crate::commands::top::watched::Watched;
use overspill::stats::Counter;
use overspill::units::Bytes;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// Percent of the time without anything getting on from which it is worth a look, and from which it
/// is bad.
const STALLED: [f64; 2] = [10.0, 50.0];

/// How it is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theme {
    /// Whether with colours.
    pub colours: bool,
    /// What graphs are drawn with.
    pub marks: Marks,
}

impl Theme {
    /// Of a heading.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// That colour, where there are colours.
    pub fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// By how bad it is that nothing got on for so many percent of the time.
    pub fn stalled(self, percent: f64) -> Style {
        match percent {
            percent if percent >= STALLED[1] => self.colour(Color::Red).bold(),
            percent if percent >= STALLED[0] => self.colour(Color::Yellow),
            _ => Style::new(),
        }
    }
}

/// How many columns a text takes.
pub fn columns(text: &str) -> usize {
    Line::raw(text).width()
}

/// Text in so many columns at most.
pub fn cut(text: &str, width: usize) -> String {
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if columns(&kept) > width {
            kept.pop();
            break;
        }
    }
    kept
}

/// Text in exactly so many columns, cut or filled up behind it.
pub fn cell(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let gap = width.saturating_sub(columns(&text));
    text + &" ".repeat(gap)
}

/// A figure with so many digits as it takes, or thousands of it.
pub fn count(n: f64) -> String {
    match n {
        n if n < 99_999.5 => format!("{n:.0}"),
        n if n < 99_999_500.0 => format!("{:.0}k", n / 1e3),
        _ => format!("{:.0}M", n / 1e6),
    }
}

/// A size as it is told everywhere.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A time in hours, minutes and seconds.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Graphs of a job over the last minutes.
pub fn graphs(job: &Watched, theme: Theme, width: usize) -> Vec<Line<'static>> {
    const LABEL: usize = 22;
    let room = width.saturating_sub(LABEL).min(150);
    let faults = job.history.columns(room, |point| point.faults);
    let most = faults.iter().copied().fold(0.0, f64::max);
    let [_, stalled] = job.sample.stalled_percent();
    let graph = |label: String, style, values: Vec<f64>, highest| {
        let label = Span::styled(cell(&label, LABEL), style);
        Line::from(vec![label, Span::raw(theme.marks.graph(values, highest))])
    };
    let used = job.history.columns(room, |point| point.used);
    let stalls = job.history.columns(room, |point| point.stalled);
    let rate = job.sample.rate(Counter::PgFault);
    vec![
        graph(format!("in use     {:>7.0} %", job.used() * 100.0), Style::new(), used, 1.0),
        graph(format!("faults     {:>7}/s", count(rate)), Style::new(), faults, most),
        graph(format!("stalled    {stalled:>7.0} %"), theme.stalled(stalled), stalls, 100.0),
    ]
}
