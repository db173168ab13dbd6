//! `overspill stat`: what a running job does, in vmstat's layout, as latencies, as pressure-stall
//! figures or as JSON.
//!
//! [`sample`] is what happened between two moments, [`table`] shows it as lines. The figures come
//! over the control socket from `overspill run`, which adds up what all processes of the job keep
//! in their statistics tables.

pub mod sample;
mod table;

use crate::args::StatArgs;
use crate::control;
use crate::control::look::stats;
use crate::control::protocol::JobStats;
use crate::failure::Failure;
use sample::Sample;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Runs the subcommand; returns the exit status. Ends when the job does, and when nobody reads what
/// is printed.
pub fn run(args: &StatArgs) -> Result<u8, Failure> {
    let found = match args.pid {
        Some(pid) => control::find(pid)?.whole(),
        None => control::find_only()?.whole(),
    };
    let began = Instant::now();
    let mut show = Show::new(args);
    let mut before = JobStats::default();
    for round in 1u32.. {
        let Some(now) = stats(&found)? else {
            return if round > 1 {
                Ok(0)
            } else {
                Err(Failure::failed("the job has ended meanwhile"))
            };
        };
        let sample = Sample::new(found.launcher(), &before, &now);
        if write(&show.text(&sample)).is_err()
            || args.interval.is_none()
            || args.count == Some(round)
        {
            break;
        }
        before = now;
        // On time, however long an answer took.
        let next = args.interval.unwrap_or_default() * round;
        thread::sleep(next.saturating_sub(began.elapsed()));
    }
    Ok(0)
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// How samples are shown.
enum Show {
    Lines { printed: usize },
    Latency,
    Pressure,
    Json,
}

impl Show {
    fn new(args: &StatArgs) -> Show {
        match args {
            StatArgs { json: true, .. } => Show::Json,
            StatArgs { latency: true, .. } => Show::Latency,
            StatArgs { psi: true, .. } => Show::Pressure,
            _ => Show::Lines { printed: 0 },
        }
    }

    fn text(&mut self, sample: &Sample) -> String {
        match self {
            Show::Lines { printed } => {
                let head = if printed.is_multiple_of(lines_a_screen()) {
                    table::head()
                } else {
                    String::new()
                };
                *printed += 1;
                head + &table::line(sample)
            }
            Show::Latency => table::latency(sample),
            Show::Pressure => format!("{}\n", sample.pressure),
            Show::Json => format!("{}\n", sample.json(now())),
        }
    }
}

/// Lines between two headers: as many as fit on the terminal with them, as vmstat does.
fn lines_a_screen() -> usize {
    const ROWS: usize = 24;
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(ROWS, |size| size.ws_row.into());
    if rows > table::HEAD_LINES + 1 { rows - table::HEAD_LINES - 1 } else { ROWS }
}

/// Time of day.
fn now() -> Duration {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
