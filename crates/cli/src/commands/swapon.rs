//! `overspill swapon`: gives a running job another swap device, or shows those that it has
//! ([`show`]).

mod show;

use crate::args::SwaponArgs;
use crate::control::protocol::{Reply, Request, SwapChange, SwapOutcome};
use crate::control::{self, Found, unexpected};
use crate::failure::{Failure, say};
use crate::report::printable;
use crate::swap::survives_as_text;
use overspill::config::SwapSpec;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is asked how far the job is: processes look at the list of devices ten times a
/// second.
pub const POLL: Duration = Duration::from_millis(50);
/// How long processes may show nothing of a change before they count as stopped.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Runs the subcommand; returns the exit status.
pub fn run(args: &SwaponArgs) -> Result<u8, Failure> {
    let devices = args.devices();
    let found = match args.pid {
        Some(pid) => control::find(pid)?,
        None => control::find_only()?,
    };
    if devices.is_empty() {
        return show::run(args, &found);
    }
    let mut status = 0;
    for device in &devices {
        if let Err(failure) = add(&found, device, args.verbose) {
            say(&failure.sentence);
            status = failure.status;
        }
    }
    Ok(status)
}

fn add(found: &Found, spec: &SwapSpec, verbose: bool) -> Result<(), Failure> {
    // 1. Ask for it. The job checks it: it may be another user's, or see other files.
    let device = absolute(spec)?;
    let mut now = change(found, Request::Swapon { device: device.to_string() })?;
    // 2. Wait until every process uses it.
    let mut silence = Silence::default();
    while !now.over && !silence.lasts(&now) {
        thread::sleep(POLL);
        now = change(found, Request::SwapChange { change: now.change })?;
    }
    // 3. Say how it went.
    let name = printable(&now.device);
    if now.outcome == Some(SwapOutcome::NotOpened) {
        return Err(Failure::failed(format!(
            "no process of the job can open swap device '{name}', for reasons that they give on \
             their standard error: it is not in use"
        )));
    }
    if !now.over {
        return Err(Failure::failed(format!(
            "swap device '{name}' is in use, but {}",
            silent(&now)
        )));
    }
    if now.not_opened > 0 {
        say(&format!(
            "{} of {} processes cannot open swap device '{name}', for reasons that they give on \
             their standard error: they go on without it",
            now.not_opened, now.processes
        ));
    }
    if verbose {
        let _ = writeln!(io::stdout(), "swapon {name}");
    }
    Ok(())
}

/// With an absolute path: the job's directory is another one.
fn absolute(spec: &SwapSpec) -> Result<SwapSpec, Failure> {
    if spec.ram.is_some() {
        return Ok(spec.clone());
    }
    let path = std::path::absolute(&spec.path).map_err(|error| {
        Failure::failed(format!("cannot tell where '{}' is: {error}", spec.path.display()))
    })?;
    let spec = SwapSpec { path, ..spec.clone() };
    survives_as_text(&spec).map_err(|failure| Failure::failed(failure.sentence))?;
    Ok(spec)
}

fn change(found: &Found, request: Request) -> Result<SwapChange, Failure> {
    match control::ask(found, request)? {
        Reply::SwapChange(change) => Ok(change),
        other => Err(unexpected(other)),
    }
}

/// How long all processes that are waited for have shown nothing of a change.
#[derive(Debug, Default)]
pub struct Silence(Option<Instant>);

impl Silence {
    /// Whether it is too long to wait any longer.
    pub fn lasts(&mut self, now: &SwapChange) -> bool {
        if now.silent == 0 || now.silent + now.done < now.processes {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= SILENCE
    }
}

/// Which processes are waited for in vain.
pub fn silent(now: &SwapChange) -> String {
    let (count, s) = (now.silent, if now.silent == 1 { "process does" } else { "processes do" });
    format!(
        "{count} {s} not take note of it within {} s, and will when continued, if stopped",
        SILENCE.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_that_of_all_who_are_waited_for() {
        let now = |processes, done, silent| SwapChange {
            processes,
            done,
            silent,
            ..SwapChange::default()
        };
        let mut silence = Silence(Instant::now().checked_sub(SILENCE));
        assert!(silence.lasts(&now(3, 1, 2)));
        assert!(!silence.lasts(&now(3, 1, 1)) && silence.0.is_none(), "one of them is at it");
        assert!(!silence.lasts(&now(3, 1, 2)) && silence.0.is_some());
        assert!(!silence.lasts(&now(3, 3, 0)) && silence.0.is_none());
        assert!(silent(&now(3, 1, 2)).starts_with("2 processes do not take note"));
        assert!(silent(&now(3, 2, 1)).starts_with("1 process does not take note of it within 5 s"));
    }
}
