//! A process for each measurement.
//!
//! A pool leaves its address space and its place in the table of SIGBUS servers behind, and what
//! one step did to the heap or to the threads would be felt by the next. So a bench runs itself
//! again for each measurement: [`ask`] starts `overspill-bench measure-one`, whose [`answer`] reads
//! the request from the command line and prints the sample, both as JSON.

use super::failure::{Failing, Failure, fail};
use super::sample::Sample;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "measure-one";

/// The most that is kept of what a program prints.
const KEPT_BYTES: usize = 1 << 16;

/// What the process of one measurement is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Name of the bench
    pub bench: String,
    /// Longest that it may take
    limit_s: u64,
    /// What to measure, as JSON
    request: String,
}

/// What is said where there is no process to be had.
pub const NO_PROCESS: &str = "no process can be started";

/// The command that starts this program with these arguments.
pub fn myself(args: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<Command, Failure> {
    let myself = std::env::current_exe().failing("this program is not found")?;
    let mut command = Command::new(myself);
    command.args(args);
    Ok(command)
}

/// Has `request` measured by a new process, which gives up after `limit`.
pub fn ask(bench: &str, request: &impl Serialize, limit: Duration) -> Result<Sample, Failure> {
    let request = serde_json::to_string(request).map_err(Failure::of)?;
    let mut command = myself([SUBCOMMAND, bench, &limit.as_secs().to_string(), &request])?;
    let output = command.stdin(Stdio::null()).output().failing(NO_PROCESS)?;
    if output.status.success() {
        return serde_json::from_slice(&output.stdout)
            .failing("the measurement printed no figures");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.signal() {
        None => Err(Failure::heard(&said)),
        Some(signal) => {
            fail!("the measuring process was killed by signal {signal} {}", said.trim())
        }
    }
}

/// Measures what the command line asks for, and prints the sample.
pub fn answer<Q: DeserializeOwned>(
    asked: &Asked,
    measure: impl FnOnce(Q) -> Result<Sample, Failure>,
) -> Result<(), Failure> {
    // Nobody waits for what it finds when who started it is gone. Only a kernel without prctl
    // refuses.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let request = serde_json::from_str(&asked.request).failing("request")?;
    let limit = Duration::from_secs(asked.limit_s);
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        Failure::new(format!("the measurement did not end within {} s", limit.as_secs())).say();
        std::process::exit(1);
    });
    let sample = measure(request)?;
    let text = serde_json::to_string(&sample).map_err(Failure::of)?;
    super::failure::write_line(&text)
}

/// What a program printed: the beginning of it, and a checksum of all.
pub struct Printed {
    pub kept: Vec<u8>,
    pub checksum: u32,
}

impl Printed {
    /// Of a stream that is read to its end.
    pub fn of(mut stream: Option<impl Read>) -> Printed {
        let (mut kept, mut checksum) = (Vec::new(), crc32fast::Hasher::new());
        let mut buffer = vec![0; KEPT_BYTES];
        let mut read = |buffer: &mut [u8]| stream.as_mut().map_or(Ok(0), |from| from.read(buffer));
        // A stream that cannot be read any more has ended.
        while let Ok(read @ 1..) = read(&mut buffer) {
            let room = KEPT_BYTES - kept.len();
            kept.extend_from_slice(&buffer[..read.min(room)]);
            checksum.update(&buffer[..read]);
        }
        Printed { kept, checksum: checksum.finalize() }
    }

    /// What is kept, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).trim().to_owned()
    }
}
