//! `overspill set`: changes the budget of a running job, and waits until it is kept.

use crate::args::SetArgs;
use crate::control::protocol::{Budget, Reply, Request};
use crate::control::{self, Found, job, unexpected};
use crate::failure::{Failure, say};
use crate::memory::mem_total;
use crate::report::printable;
use overspill::units::Bytes;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is asked how far the job is: processes look at a request ten times a second.
const POLL: Duration = Duration::from_millis(50);
/// Exit status when the budget was changed and is not kept in time.
const NOT_REACHED: u8 = 1;

/// Runs the subcommand; returns the exit status.
pub fn run(args: &SetArgs) -> Result<u8, Failure> {
    job::check(args.memory, mem_total()).map_err(Failure::usage)?;
    let found = control::find(args.pid)?;
    let limit = Duration::from_secs(args.wait.into());
    let (summary, shortfall) = apply(&found, args.memory, limit, say)?;
    // A closed standard output is no reason to fail: the budget is changed.
    let _ = writeln!(io::stdout(), "{summary}");
    match shortfall.filter(|_| args.wait > 0) {
        None => Ok(0),
        Some(sentence) => {
            say(&sentence);
            Ok(NOT_REACHED)
        }
    }
}

/// Changes the budget of a job, and waits until it is kept, for so long at most; what was done, and
/// why it is not kept. `warn` is told at once what is to be said about it.
pub fn apply(
    found: &Found,
    memory: Bytes,
    limit: Duration,
    mut warn: impl FnMut(&str),
) -> Result<(String, Option<String>), Failure> {
    // 1. Ask for it.
    let start = Instant::now();
    let asked = budget(found, Request::Set { memory_bytes: memory.0 })?;
    if let Some(warning) = &asked.warning {
        warn(&printable(warning));
    }
    // 2. Wait until it is so.
    let mut now = asked.clone();
    while !now.is_reached() && start.elapsed() < limit {
        thread::sleep(POLL);
        now = budget(found, Request::Budget)?;
    }
    // 3. Say how it went.
    let shortfall = (!now.is_reached()).then(|| shortfall(&now, start.elapsed()));
    Ok((summary(Bytes(asked.before_bytes), memory, &now), shortfall))
}

fn budget(found: &Found, request: Request) -> Result<Budget, Failure> {
    match control::ask(found, request)? {
        Reply::Budget(budget) => Ok(budget),
        other => Err(unexpected(other)),
    }
}

fn summary(before: Bytes, after: Bytes, now: &Budget) -> String {
    format!("{before} -> {after}, {} in use by {}", Bytes(now.used_bytes), processes(now.processes))
}

/// Why the budget is not kept.
fn shortfall(now: &Budget, waited: Duration) -> String {
    let silent = now.processes - now.answered;
    let late = now.answered - now.reached;
    let seconds = waited.as_secs();
    let mut reasons = Vec::new();
    if silent > 0 {
        reasons.push(format!(
            "{} did not take note within {seconds} s, and will when continued, if stopped",
            processes(silent)
        ));
    }
    if now.stuck > 0 {
        reasons.push(format!(
            "{} cannot get down to it, because nothing takes the pages: there is no swap device, \
             it is full, or the memory is locked",
            processes(now.stuck)
        ));
    }
    if late > now.stuck {
        reasons.push(format!(
            "{} did not get down to it within {seconds} s, and will in the background: wait \
             longer with --wait",
            processes(late - now.stuck)
        ));
    }
    if reasons.is_empty() {
        reasons.push(format!(
            "all together use {} after {seconds} s, and will get down to it in the background: \
             wait longer with --wait",
            Bytes(now.used_bytes)
        ));
    }
    reasons.join("; ")
}

fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_one_line() {
        let now = Budget {
            processes: 1,
            answered: 1,
            reached: 1,
            used_bytes: 90 << 20,
            ..Budget::default()
        };
        let line = summary(Bytes(256 << 20), Bytes(96 << 20), &now);
        assert_eq!(line, "256 MiB -> 96 MiB, 90 MiB in use by 1 process");
    }

    #[test]
    fn each_reason_is_told() {
        let now = Budget { processes: 6, answered: 4, reached: 1, stuck: 1, ..Budget::default() };
        let text = shortfall(&now, Duration::from_millis(5100));
        for part in [
            "2 processes did not take note within 5 s",
            "1 process cannot get down",
            "2 processes did not get",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\n'));
    }
}
