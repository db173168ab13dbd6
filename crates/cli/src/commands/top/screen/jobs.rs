//! The jobs, a line each, and the last minutes of the one that is marked.

use super::cells::{Theme, cell, count, cut, graphs, size};
use crate::commands::top::app::App;
use crate::commands::top::watched::Watched;
use overspill::stats::Counter;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// Lines of what is told of the marked job.
const BELOW: usize = 5;
/// Columns of what is no command.
const FIGURES: usize = 72;
/// Least columns of a command.
const COMMAND: usize = 8;

pub fn lines(app: &App, theme: Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let command = width.saturating_sub(FIGURES).clamp(COMMAND, 40);
    let head = format!(
        "{:>7} {} {:>3} {:>9} {:>9} {:>10} {:>5} {:>9} {:>5} {:>6}",
        "JOB",
        cell("COMMAND", command),
        "P",
        "BUDGET",
        "USED",
        "COMPRESS'D",
        "RATIO",
        "SWAP",
        "FLT/S",
        "STALL%"
    );
    let mut lines = vec![Line::from(Span::styled(
        cut(&head, width),
        Style::new().add_modifier(Modifier::BOLD),
    ))];
    // As many as there is room for, the marked one among them.
    let room = height.saturating_sub(1 + BELOW).max(1);
    let marked = app.jobs.iter().position(|job| Some(job.job) == app.marked).unwrap_or(0);
    let first = (marked + 1).saturating_sub(room);
    for job in app.jobs.iter().skip(first).take(room) {
        lines.push(line(job, theme, width, command, Some(job.job) == app.marked));
    }
    if let Some(job) = app.marked.and_then(|job| app.job(job)) {
        let about = format!("job {} ({})", job.job, job.look.command);
        let about = job.silent.clone().unwrap_or(about);
        lines.extend([Line::raw(""), Line::raw(cut(&about, width))]);
        lines.extend(graphs(job, theme, width));
    }
    lines
}

fn line(job: &Watched, theme: Theme, width: usize, command: usize, marked: bool) -> Line<'static> {
    let (look, sample) = (&job.look, &job.sample);
    let [_, stalled] = sample.stalled_percent();
    let text = format!(
        "{:>7} {} {:>3} {:>9} {:>9} {:>10} {:>5.1} {:>9} {:>5}",
        job.job,
        cell(&look.command, command),
        look.stats.processes,
        size(look.budget.memory_bytes),
        size(look.budget.used_bytes),
        size(sample.pages(Counter::CompressedPages).0),
        sample.ratio(),
        size(job.swapped()),
        count(sample.rate(Counter::PgFault)),
    );
    let text = cut(&text, width);
    let last = match &job.silent {
        Some(_) => " silent".to_owned(),
        None => format!(" {stalled:>6.0}"),
    };
    let last = cut(&last, width.saturating_sub(super::columns(&text)));
    let style = if marked { theme.head() } else { Style::new() };
    Line::from(vec![
        Span::styled(text, style),
        Span::styled(last, style.patch(theme.stalled(stalled))),
    ])
}
