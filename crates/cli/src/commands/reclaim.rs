//! `overspill reclaim`: takes pages of a running job out of memory, as memory.reclaim of a memory
//! cgroup does.

use crate::args::ReclaimArgs;
use crate::control::protocol::{ReclaimProgress, Reply, Request};
use crate::control::{self, Found, unexpected};
use crate::failure::{Failure, say};
use overspill::units::Bytes;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is asked how far the job is: processes look at a request ten times a second.
const POLL: Duration = Duration::from_millis(20);
/// Exit status when less was reclaimed than was asked for.
const LESS: u8 = 1;

/// Runs the subcommand; returns the exit status.
pub fn run(args: &ReclaimArgs) -> Result<u8, Failure> {
    let found = control::find(args.pid)?;
    let limit = Duration::from_secs(args.wait.into());
    let (summary, shortfall) = apply(&found, args.size, limit)?;
    // A closed standard output is no reason to fail.
    let _ = writeln!(io::stdout(), "{summary}");
    match shortfall {
        None => Ok(0),
        Some(sentence) => {
            say(&sentence);
            Ok(LESS)
        }
    }
}

/// Takes so much of a job out of memory, for so long at most; what was done, and why it is less.
pub fn apply(
    found: &Found,
    size: Bytes,
    limit: Duration,
) -> Result<(String, Option<String>), Failure> {
    // 1. Ask for it.
    let start = Instant::now();
    let mut now = reclaim(found, Request::Reclaim { bytes: size.0 })?;
    let number = now.number;
    // 2. Wait until it is so, or cannot be.
    while !is_over(&now) && start.elapsed() < limit {
        thread::sleep(POLL);
        now = reclaim(found, Request::Reclaimed { number })?;
    }
    let late = !is_over(&now);
    if late {
        // Nobody waits for the rest any more.
        reclaim(found, Request::Reclaim { bytes: 0 })?;
    }
    // 3. Say how it went.
    let (reclaimed, processes) = (Bytes(now.reclaimed_bytes), now.processes);
    let of = if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
    let shortfall = (reclaimed < size).then(|| shortfall(&now, late, size, limit));
    Ok((format!("reclaimed {reclaimed} of {size} from {of}"), shortfall))
}

fn reclaim(found: &Found, request: Request) -> Result<ReclaimProgress, Failure> {
    match control::ask(found, request)? {
        Reply::Reclaim(reclaim) => Ok(reclaim),
        other => Err(unexpected(other)),
    }
}

/// Whether nothing more will come.
fn is_over(now: &ReclaimProgress) -> bool {
    now.replaced || now.done == now.processes || now.reclaimed_bytes >= now.wanted_bytes
}

/// Why it is less than was asked for.
fn shortfall(now: &ReclaimProgress, late: bool, size: Bytes, limit: Duration) -> String {
    if now.replaced {
        return "another `overspill reclaim` has taken its place: one at a time counts".to_owned();
    }
    if late {
        return format!(
            "{} of {} processes did not get there within {} s: wait longer with --wait; a stopped \
             process gives nothing",
            now.processes - now.done,
            now.processes,
            limit.as_secs()
        );
    }
    if now.wanted_bytes < size.0 && now.reclaimed_bytes >= now.wanted_bytes {
        return format!("no more than {} was in use", Bytes(now.wanted_bytes));
    }
    "nothing more can be reclaimed: what is left is locked, or nothing takes it, because there is \
     no swap device or it is full"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_enough_is_reclaimed_or_nobody_has_more() {
        let now = ReclaimProgress {
            number: 1,
            wanted_bytes: 100,
            processes: 2,
            ..ReclaimProgress::default()
        };
        assert!(
            !is_over(&now)
                && !is_over(&ReclaimProgress { done: 1, reclaimed_bytes: 99, ..now.clone() })
        );
        assert!(is_over(&ReclaimProgress { reclaimed_bytes: 101, ..now.clone() }));
        assert!(
            is_over(&ReclaimProgress { done: 2, ..now.clone() })
                && is_over(&ReclaimProgress { replaced: true, ..now })
        );
        assert!(is_over(&ReclaimProgress::default()), "all processes have ended");
    }

    #[test]
    fn each_reason_is_told() {
        let shortfall = |now: &ReclaimProgress, late| {
            shortfall(now, late, Bytes(1 << 20), Duration::from_secs(5))
        };
        let now = ReclaimProgress {
            wanted_bytes: 1 << 20,
            processes: 3,
            done: 1,
            ..ReclaimProgress::default()
        };
        assert!(shortfall(&now, true).starts_with("2 of 3 processes did not get there within 5 s"));
        assert!(shortfall(&now, false).starts_with("nothing more can be reclaimed"));
        let all = ReclaimProgress { wanted_bytes: 4096, reclaimed_bytes: 4096, ..now.clone() };
        assert_eq!(shortfall(&all, false), "no more than 4 KiB was in use");
        assert!(
            shortfall(&ReclaimProgress { replaced: true, ..now }, true).contains("taken its place")
        );
    }
}
