//! Runs a program and waits for its end: what it prints, what it takes, and that it does not take
//! for ever.

use super::figures;
use super::program::Served;
use super::request::{Job, Request};
use crate::machine::cgroup::Cgroup;
use crate::machine::kernel_swap::NO_LIMIT;
use crate::machine::put_back::Guard;
use crate::machine::start;
use crate::measure::{Failing, Failure, Sample, fail};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often RAM is looked at while the program runs.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most that is kept of what a program prints.
const KEPT_BYTES: usize = 1 << 16;

/// What is said of a program that had no memory left.
const KILLED: &str = "the program was killed, as the kernel does where a cgroup has no memory left";

/// Whether a measurement failed for that reason.
pub fn was_killed(failure: &Failure) -> bool {
    failure.to_string().starts_with(KILLED)
}

/// Runs the program of a request with `before` in front of its command line, in a cgroup or where
/// this is; `look` is called now and then. Whatever happens to this process, `guard` ends the
/// program.
pub fn run(
    request: &Request,
    before: &[OsString],
    cgroup: Option<&Cgroup>,
    guard: &mut Guard,
    mut look: impl FnMut() + Send,
) -> Result<Sample, Failure> {
    let words: Vec<OsString> =
        before.iter().cloned().chain(request.words()?.into_iter().map(Into::into)).collect();
    let mut command = start::command(cgroup.map(Cgroup::path), &words)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (usage, began) = (children(), Instant::now());
    let mut child = command.spawn().failing("no process can be started")?;
    let group = Pid::from_raw(child.id() as i32).expect("a child has a process id");
    guard.watch(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (late, runs) = (AtomicBool::new(false), AtomicBool::new(true));
    // A group that has ended already needs no end.
    let end = || _ = kill_process_group(group, Signal::KILL);
    let (ended, watch) = mpsc::channel::<()>();
    let (status, elapsed, printed, said, served) = std::thread::scope(|scope| {
        let (late, runs) = (&late, &runs);
        let printed = scope.spawn(|| Printed::of(stdout));
        let said = scope.spawn(|| Printed::of(stderr));
        scope.spawn(move || {
            now_and_then(&watch, || {
                look();
                if began.elapsed() > request.limit && !late.swap(true, Ordering::Relaxed) {
                    end();
                }
            });
        });
        let client = request.client().map(|client| {
            scope.spawn(move || {
                let served = client.work(|| runs.load(Ordering::Relaxed));
                // Without its client it has no end.
                served.inspect_err(|_| end())
            })
        });
        let status = child.wait();
        let elapsed = began.elapsed();
        runs.store(false, Ordering::Relaxed);
        drop(ended);
        let served = client.map(|client| client.join().expect("no client panics")).transpose();
        let [printed, said] =
            [printed, said].map(|thread| thread.join().expect("no reader panics"));
        (status, elapsed, printed, said, served)
    });
    if late.into_inner() {
        fail!("it did not end within {} s", request.limit.as_secs());
    }
    let status = status.failing("the program cannot be waited for")?;
    let served = served.map_err(|failure| failure.during(how(status)))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&said.kept).trim().to_owned();
        return Err(Failure::new(if said.is_empty() {
            how(status)
        } else {
            format!("{}: {said}", how(status))
        }));
    }
    sample(request, elapsed, usage, &printed, served)
}

/// The same in a cgroup that only counts, where there can be one; the figure of its peak besides.
pub fn counted(
    request: &Request,
    before: &[OsString],
    cgroup: Option<&Cgroup>,
    guard: &mut Guard,
) -> Result<(Sample, Option<(String, f64)>), Failure> {
    cgroup.map_or(Ok(()), |cgroup| cgroup.make(NO_LIMIT))?;
    let mut peak = None;
    let look = || peak = peak.max(cgroup.and_then(Cgroup::used_bytes));
    let sample = run(request, before, cgroup, guard, look)?;
    Ok((sample, peak.map(|peak| (figures::RAM.to_owned(), peak as f64))))
}

/// Calls `look` now and then, until the other side of `ended` is dropped.
pub fn now_and_then(ended: &Receiver<()>, mut look: impl FnMut()) {
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        look();
    }
}

/// The figures.
fn sample(
    request: &Request,
    elapsed: Duration,
    before: Usage,
    printed: &Printed,
    served: Option<Served>,
) -> Result<Sample, Failure> {
    if let Job::Accesses { .. } = request.job {
        let outcome = serde_json::from_slice(&printed.kept);
        return outcome
            .map(|outcome| figures::of(&outcome))
            .failing("the program printed no figures");
    }
    let after = children();
    let seconds = |of: fn(&Usage) -> nix::sys::time::TimeVal| {
        (of(&after).num_microseconds() - of(&before).num_microseconds()) as f64 / 1e6
    };
    let faults = |of: fn(&Usage) -> i64| (of(&after) - of(&before)) as f64;
    let (user, sys) = (seconds(Usage::user_time), seconds(Usage::system_time));
    let mut all = vec![
        (figures::MAJOR, faults(Usage::major_page_faults)),
        (figures::MINOR, faults(Usage::minor_page_faults)),
        // Of all children so far, in KiB: those before this one are small.
        (figures::RAM, after.max_rss() as f64 * 1024.0),
    ];
    let (elapsed, user, sys, checksum) = match served {
        Some(served) => {
            all.extend([(figures::P50, served.p50_ns), (figures::P99, served.p99_ns)]);
            (served.elapsed, served.user_s, served.sys_s, served.checksum)
        }
        None => (elapsed, user, sys, printed.checksum),
    };
    all.extend([
        (figures::ELAPSED, elapsed.as_secs_f64()),
        (figures::USER, user),
        (figures::SYS, sys),
        (figures::CPU, user + sys),
        (figures::CHECKSUM, checksum.into()),
    ]);
    Ok(all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn children() -> Usage {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("the kernel knows what children used")
}

/// How a program ended.
fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(9) => KILLED.to_owned(),
        _ => format!("the program failed ({status})"),
    }
}

/// What a program printed: the beginning of it, and a checksum of all.
struct Printed {
    kept: Vec<u8>,
    checksum: u32,
}

impl Printed {
    /// Of a stream that is read to its end.
    fn of(stream: Option<impl Read>) -> Printed {
        let (mut kept, mut checksum) = (Vec::new(), crc32fast::Hasher::new());
        let Some(mut stream) = stream else {
            return Printed { kept, checksum: checksum.finalize() };
        };
        let mut buffer = vec![0; KEPT_BYTES];
        // A stream that cannot be read any more has ended.
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            let room = KEPT_BYTES - kept.len();
            kept.extend_from_slice(&buffer[..read.min(room)]);
            checksum.update(&buffer[..read]);
        }
        Printed { kept, checksum: checksum.finalize() }
    }
}
