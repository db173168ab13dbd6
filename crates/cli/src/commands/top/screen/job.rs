//! One job: its memory, its waiting, its faults by where pages came from, its devices, its
//! processes.

use super::cells::{Theme, cell, clock, count, cut, graphs, size};
use crate::commands::top::app::App;
use crate::commands::top::watched::Watched;
use crate::report::{duration, printable};
use overspill::stats::{AVG_SECONDS, Counter, FaultSource, Histogram};
use overspill::units::Bytes;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// Columns of the histogram: powers of two of nanoseconds, from one microsecond to half a second.
const OCTAVES: std::ops::Range<u32> = 10..29;
/// Most lines of devices where there is little room.
const DEVICES: usize = 3;

pub fn lines(
    app: &App,
    job: &Watched,
    theme: Theme,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let mut lines = memory(job, theme);
    lines.extend(graphs(job, theme, width));
    lines.extend(faults(job, theme));
    lines.extend(devices(job, height));
    let left = height.saturating_sub(lines.len());
    lines.extend(processes(app, job, left));
    // Nothing is longer than the screen, which would take the rest of it for the next line.
    lines.into_iter().map(|line| shortened(line, width)).collect()
}

fn shortened(line: Line<'static>, width: usize) -> Line<'static> {
    let mut left = width;
    let spans = line.spans.into_iter().map(|span| {
        let text = cut(&span.content, left);
        left -= super::columns(&text);
        Span::styled(text, span.style)
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn bold(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
}

/// What it is, and what it holds.
fn memory(job: &Watched, theme: Theme) -> Vec<Line<'static>> {
    let (look, sample) = (&job.look, &job.sample);
    let (budget, stats) = (&look.budget, &look.stats);
    let processes = match stats.processes {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let elapsed = clock(Duration::from_micros(stats.elapsed_us));
    let title = format!("job {} ({}), {processes}, for {elapsed}", job.job, look.command);
    let pages = |counter| size(sample.pages(counter).0);
    let bytes = |counter| size(sample.get(counter));
    let pressure = stats.pressure();
    let [some, full] = sample.stalled_percent();
    let averages = AVG_SECONDS.iter().zip(pressure.full.avg);
    let averages: Vec<_> = averages
        .map(|(seconds, avg)| format!("avg{seconds} {}.{:02}", avg / 100, avg % 100))
        .collect();
    let bar = theme.marks.bar(job.used(), 20);
    vec![
        bold(job.silent.as_ref().map_or(title, |why| printable(why))),
        Line::raw(format!(
            "budget     {} {bar} {} in use, {} not managed",
            size(budget.memory_bytes),
            size(budget.used_bytes),
            bytes(Counter::UnmanagedBytes)
        )),
        Line::raw(format!(
            "resident   {}, cache {}, compressed {} in {} ({:.1}:1)",
            pages(Counter::ResidentPages),
            pages(Counter::SwapCachePages),
            pages(Counter::CompressedPages),
            bytes(Counter::CompressedPoolBytes),
            sample.ratio()
        )),
        Line::from(Span::styled(
            format!("waiting    some {some:.0} %, all {full:.0} %; {}", averages.join(", ")),
            theme.stalled(full),
        )),
    ]
}

/// Faults by where their page came from, with how long they took.
fn faults(job: &Watched, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![bold(format!(
        "{:<10} {:>6} {:>9} {:>9} {:>9}  {:<19}",
        "FAULTS", "PER S", "P50", "P99", "MAX", "1 us ... 0.5 s"
    ))];
    let seconds = job.sample.seconds();
    for source in FaultSource::ALL {
        let times = job.sample.latency.of(source);
        let within = |per_mille| match times.count() {
            0 => "-".to_owned(),
            _ => duration(times.within_ns(per_mille)),
        };
        lines.push(Line::raw(format!(
            "  {:<10} {:>4} {:>9} {:>9} {:>9}  {}",
            source.name(),
            count(times.count() as f64 / seconds),
            within(500),
            within(990),
            within(1000),
            histogram(times, theme)
        )));
    }
    lines
}

fn histogram(times: &Histogram, theme: Theme) -> String {
    // The first column has all that was faster, the last all that was slower.
    let below = |octave| match octave {
        octave if octave == OCTAVES.end - 1 => times.count(),
        octave => times.count_below(2u64 << octave),
    };
    let mut before = 0;
    let counts: Vec<f64> = OCTAVES
        .map(|octave| {
            let now = below(octave);
            (now - std::mem::replace(&mut before, now)) as f64
        })
        .collect();
    let most = counts.iter().copied().fold(0.0, f64::max);
    theme.marks.graph(counts, most)
}

fn devices(job: &Watched, height: usize) -> Vec<Line<'static>> {
    let all = &job.look.swaps;
    let few = if height == usize::MAX { all.len() } else { DEVICES };
    if all.is_empty() {
        return vec![bold("DEVICE     none".to_owned())];
    }
    let head = format!(
        "{} {:>4} {:>9} {:>9} {:>9} {:>9} {:>6}",
        cell("DEVICE", 28),
        "PRIO",
        "USED",
        "SIZE",
        "READ",
        "WRITTEN",
        "ERRORS"
    );
    let mut lines = vec![bold(head)];
    for device in all.iter().take(few) {
        let done = job.look.stats.devices.get(&device.id).copied().unwrap_or_default();
        let errors = done.read_errors.saturating_add(done.write_errors);
        lines.push(Line::raw(format!(
            "{} {:>4} {:>9} {:>9} {:>9} {:>9} {:>6}{}",
            cell(&printable(&device.path), 28),
            device.priority,
            size(device.used_bytes),
            size(device.size_bytes),
            size(done.read_bytes),
            size(done.written_bytes),
            errors.saturating_add(done.checksum_errors),
            if device.leaving { " leaving" } else { "" }
        )));
    }
    if all.len() > few {
        lines.push(Line::raw(format!("  and {} more", all.len() - few)));
    }
    lines
}

fn processes(app: &App, job: &Watched, room: usize) -> Vec<Line<'static>> {
    let head = format!(
        "{:>7} {} {:>9} {:>9} {:>9} {:>10} {:>9} {:>6}",
        "PROCESS",
        cell("COMMAND", 12),
        "USED",
        "MAY HAVE",
        "RESIDENT",
        "COMPRESS'D",
        "SWAP",
        "FLT/S"
    );
    let line = |one: &&crate::control::protocol::Process| {
        let figures = &one.figures;
        Line::raw(format!(
            "{:>7} {} {:>9} {:>9} {:>9} {:>10} {:>9} {:>6}",
            one.pid,
            cell(&printable(&one.name), 12),
            size(one.used_bytes),
            Bytes(one.limit_bytes).to_string(),
            size(figures.resident_bytes),
            size(figures.compressed_bytes),
            size(figures.swap_bytes),
            count(job.faults.get(&one.pid).copied().unwrap_or(0.0))
        ))
    };
    let all = app.processes(job);
    // A job says less of its smaller processes than how many there are.
    let count = all.len().max(job.look.budget.processes as usize);
    let room = room.saturating_sub(1);
    let fit = if count <= room { count } else { room.saturating_sub(1) };
    let shown = all.iter().take(fit).map(line);
    let mut lines: Vec<_> = [bold(head)].into_iter().chain(shown).collect();
    let more = count - all.len().min(fit);
    if more > 0 {
        lines.push(Line::raw(format!("  and {more} more")));
    }
    lines
}
