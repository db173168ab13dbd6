//! `overspill metrics`: what running jobs do, for Prometheus.
//!
//! [`families`] is what is told, [`text`] writes it down, [`server`] answers those who ask. The
//! figures are those of `overspill stat`, asked for when they are wanted
//! ([`crate::control::look`]).

mod families;
mod server;
mod text;

use crate::args::{Address, MetricsArgs};
use crate::control::look::Source;
use crate::failure::{Failure, say};
use crate::report::printable;
use crate::signals::asked_to_end;
use server::{Listener, beside};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use text::{Format, Jobs};

/// Runs the subcommand; returns the exit status.
pub fn run(args: &MetricsArgs) -> Result<u8, Failure> {
    let source = Source::of(args.pid)?;
    match (&args.listen, &args.textfile) {
        (Some(address), _) => listen(&source, address),
        (None, Some(path)) => write_file(&source, path, args.interval),
        (None, None) => print(&source),
    }
}

/// What they say now.
fn jobs(source: &Source) -> Jobs {
    Jobs(source.looks().into_iter().map(|(job, look)| (job, look.ok())).collect())
}

fn print(source: &Source) -> Result<u8, Failure> {
    let looks = source.looks();
    if let (Source::One(_), []) = (source, looks.as_slice()) {
        return Err(Failure::failed("the job has ended meanwhile"));
    }
    for (_, failed) in &looks {
        if let Err(failure) = failed {
            say(&failure.sentence);
        }
    }
    let jobs = Jobs(looks.into_iter().map(|(job, look)| (job, look.ok())).collect());
    // A closed standard output is no reason to fail.
    let _ = io::stdout().write_all(jobs.text(Format::OpenMetrics).as_bytes());
    Ok(0)
}

fn listen(source: &Source, address: &Address) -> Result<u8, Failure> {
    let ended =
        asked_to_end().map_err(|error| Failure::own(format!("cannot catch signals: {error}")))?;
    let listener = Listener::open(address)?;
    say(&format!("metrics are at {}", printable(&listener.shown())));
    let goes_on = || !ended.load(Relaxed) && !source.is_over();
    listener.serve(&|format| jobs(source).text(format), goes_on);
    Ok(0)
}

fn write_file(source: &Source, path: &Path, interval: Option<Duration>) -> Result<u8, Failure> {
    let began = Instant::now();
    for round in 1u32.. {
        let jobs = jobs(source);
        // The last one says that there is no such job.
        let is_last = interval.is_none() || jobs.0.is_empty() && source.is_over();
        write_whole(path, &jobs.text(Format::Prometheus)).map_err(|error| {
            Failure::failed(format!(
                "cannot write metrics to '{}' ({error}): name a file in a directory that you may \
                 write to",
                path.display()
            ))
        })?;
        if is_last {
            break;
        }
        // On time, however long the jobs took to answer.
        let next = interval.unwrap_or_default() * round;
        thread::sleep(next.saturating_sub(began.elapsed()));
    }
    Ok(0)
}

/// Writes a file that other users may read, and of which nobody sees a part.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let unnamed = beside(path);
    // Left behind by a command of this number that was killed. A link is removed, not followed.
    let _ = fs::remove_file(&unnamed);
    let mut file = File::create_new(&unnamed)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&unnamed, path));
    written.inspect_err(|_| drop(fs::remove_file(&unnamed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_leaves_nothing_else() {
        let name = format!("overspill-metrics-{}-file", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.prom");
        for text in ["long before", "short"] {
            write_whole(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(write_whole(&dir.join("no/a.prom"), "").is_err());
        assert!(write_whole(&dir, "a directory").is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_is_not_whole_yet_is_passed_over() {
        let unnamed = beside(Path::new("/a/b.prom"));
        assert_eq!(unnamed.parent(), Some(Path::new("/a")));
        assert_ne!(unnamed.extension(), Some("prom".as_ref()));
    }
}
