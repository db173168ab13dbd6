//! Runs a program and waits for its end: what it prints, what it takes, and that it does not take
//! for ever.

use super::request::{self, Measurement, told};
use super::shares::Shares;
use crate::machine::*;
use crate::measure::*;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often RAM is looked at while the program runs.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Enters the cgroup of the first argument, if it names one, and becomes the others.
const ENTER: &str = r#"[ -z "$0" ] || echo $$ > "$0/cgroup.procs" && exec "$@""#;
/// What is said of a program that had no memory left.
const KILLED: &str = "the program was killed, as the kernel does where a cgroup has no memory left";

/// What a client of a program tells of its work with it.
#[derive(Clone, Debug, Deserialize)]
pub struct Served {
    /// Seconds of the part that counts.
    elapsed_s: f64,
    /// Processor time of the program meanwhile, in user mode and in the kernel, in seconds.
    cpu_s: [f64; 2],
    /// Nanoseconds of a request: the median, and what all but one in a hundred took at most.
    percentiles_ns: Vec<f64>,
    /// Of all that the program gave back.
    checksum: u32,
}

/// Whether a measurement failed for that reason.
pub fn was_killed(failure: &Failure) -> bool {
    failure.to_string().starts_with(KILLED)
}

/// Runs the program of a request with `prefix` in front of its command line, in a cgroup or where
/// this is; `also` is called now and then. Whatever happens to this process, `guard` ends the
/// program. Fails when it fails, or takes too long.
pub fn run(
    request: &Measurement,
    prefix: &[OsString],
    cgroup: Option<&Cgroup>,
    guard: &mut Guard,
    mut also: impl FnMut() + Send,
) -> Result<Sample, Failure> {
    let mut command = command_line(request, prefix, cgroup)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (before, began) = (Usage::of(UsageWho::RUSAGE_CHILDREN), Instant::now());
    let mut child = command.spawn().failing(child::NO_PROCESS)?;
    let group = Pid::from_raw(child.id() as i32).expect("a child has a process id");
    guard.watch(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let late = AtomicBool::new(false);
    let mut shares = Shares::new();
    // A group that has ended already needs no end.
    let end = || _ = kill_process_group(group, Signal::KILL);
    let look = || {
        also();
        cgroup.inspect(|cgroup| shares.look(cgroup));
        if began.elapsed() > request.limit && !late.swap(true, Relaxed) {
            end();
        }
    };
    let client = request.program.as_ref().and_then(|job| job.client.as_ref());
    let (status, elapsed, printed, said, served) = watched(look, || {
        std::thread::scope(|scope| {
            let printed = scope.spawn(|| Printed::of(stdout));
            let said = scope.spawn(|| Printed::of(stderr));
            let client = client.map(|client| {
                // Without its client it has no end.
                scope.spawn(move || served(client, group).inspect_err(|_| end()))
            });
            let status = child.wait();
            let elapsed = began.elapsed();
            let served = client.map(|client| client.join().expect("no client panics")).transpose();
            let [printed, said] =
                [printed, said].map(|thread| thread.join().expect("no reader panics"));
            (status, elapsed, printed, said, served)
        })
    });
    if late.into_inner() {
        fail!("it did not end within {} s", request.limit.as_secs());
    }
    let status = status.failing("the program cannot be waited for")?;
    let served = served.map_err(|failure| failure.during(how(status)))?;
    if !status.success() {
        return Err(failed(status, &said, cgroup));
    }
    if request.plan().is_some() {
        let outcome = serde_json::from_slice(&printed.kept);
        return outcome.map(|outcome| told(&outcome)).failing("the program printed no figures");
    }
    let used = Usage::of(UsageWho::RUSAGE_CHILDREN) - before;
    let mut sample = of_program(elapsed, used, &printed, served);
    shares.tell(request.memory, &mut sample);
    Ok(sample)
}

/// Runs the client of a program to its end.
fn served(client: &[String], program: Pid) -> Result<Served, Failure> {
    let (name, program) = (&client[0], program.as_raw_nonzero().to_string());
    let args = client[1..].iter().chain([&program]).map(String::as_str);
    let told = command(name, &args.collect::<Vec<_>>())?;
    serde_json::from_str(&told).failing("the client printed no figures")
}

/// The command line: who runs it, the prefix, and the program, which a shell becomes that has
/// entered the cgroup. It has a process group of its own.
fn command_line(
    request: &Measurement,
    prefix: &[OsString],
    cgroup: Option<&Cgroup>,
) -> Result<Command, Failure> {
    let user = request.program.as_ref().and_then(|job| job.user.as_ref());
    let user = user.map_or(&[][..], |(words, _)| words).iter().map(Into::into);
    let words = user.chain(prefix.iter().cloned());
    let words: Vec<OsString> = words.chain(request.words()?.into_iter().map(Into::into)).collect();
    let mut command = Command::new("sh");
    command.args(["-c", ENTER]).arg(cgroup.map_or(Path::new(""), Cgroup::path));
    command.args(words).process_group(0);
    Ok(command)
}

/// The same in a cgroup that only counts, where there can be one; `more` is told then, and `files`
/// are removed.
pub fn counted(
    request: &Measurement,
    prefix: &[OsString],
    files: Vec<PathBuf>,
    more: impl FnOnce(&mut Sample) -> Result<(), Failure>,
) -> Result<Sample, Failure> {
    let cgroup = counting();
    let what = PutBack { files, ..PutBack::cgroup(cgroup.as_ref()) };
    put_back::around(&what, |guard| {
        let cgroup = cgroup.as_ref();
        cgroup.map_or(Ok(()), |cgroup| cgroup.make(NO_LIMIT))?;
        let mut peak = Peak::default();
        let mut sample = run(request, prefix, cgroup, guard, || peak.look(cgroup))?;
        more(&mut sample)?;
        peak.tell(&mut sample);
        Ok(sample)
    })
}

/// The most memory that a cgroup was seen to take, in bytes, where there is one.
#[derive(Clone, Copy, Default)]
pub struct Peak(Option<u64>);

impl Peak {
    pub fn look(&mut self, cgroup: Option<&Cgroup>) {
        self.0 = self.0.max(cgroup.and_then(Cgroup::used_bytes));
    }

    /// Tells it in place of what else is known of that.
    pub fn tell(self, sample: &mut Sample) {
        add(sample, self.0.map(|peak| ("ram_bytes_peak", peak as f64)));
    }
}

/// Does something, and calls `look` now and then meanwhile.
pub fn watched<T>(mut look: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (ended, watch) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while watch.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        });
        let done = work();
        drop(ended);
        done
    })
}

fn of_program(elapsed: Duration, used: Usage, printed: &Printed, served: Option<Served>) -> Sample {
    let served = served.unwrap_or(Served {
        elapsed_s: elapsed.as_secs_f64(),
        cpu_s: [used.user_s, used.sys_s],
        percentiles_ns: Vec::new(),
        checksum: printed.checksum,
    });
    let [user_s, sys_s] = served.cpu_s;
    let usage = Usage { user_s, sys_s, ..used };
    let mut sample = request::used(served.elapsed_s, &usage, &served.percentiles_ns);
    // Of all children so far: those before this one are small. And what it put out, to tell whether
    // that was the same each time.
    let more =
        [("ram_bytes_peak", used.ram_bytes_peak as f64), ("checksum", served.checksum.into())];
    add(&mut sample, more);
    sample
}

/// That a program failed, with what it said.
fn failed(status: ExitStatus, said: &Printed, cgroup: Option<&Cgroup>) -> Failure {
    // Of a job any process may be the one that was killed.
    let short = cgroup.is_some_and(Cgroup::was_short);
    let how = if short { KILLED.to_owned() } else { how(status) };
    match said.text().as_str() {
        "" => Failure::new(how),
        said => Failure::new(format!("{how}: {said}")),
    }
}

fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(9) => KILLED.to_owned(),
        _ => format!("the program failed ({status})"),
    }
}
