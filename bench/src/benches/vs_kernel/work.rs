//! One measurement, in a process of its own.

use super::case::Peer;
use super::{floor, ours, peer};
use crate::failure::Failure;
use crate::measure::Sample;
use overspill_bench::workload::{Outcome, Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Who is to do it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Who {
    /// The program by itself, with the kernel's swap.
    Peer(Peer),
    /// The program under overspill, found there, with faults served so.
    Overspill {
        /// The command.
        command: PathBuf,
        /// What follows `--fault`.
        fault: String,
    },
    /// A process of the library.
    Library,
    /// The mechanisms alone.
    Floor,
}

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Who is to do it.
    pub who: Who,
    /// What is done.
    pub plan: Plan,
    /// Pages of memory.
    pub pages: u64,
    /// What fits: the limit of the cgroup, or the budget, in bytes.
    pub memory: u64,
    /// Where swap files are made.
    pub dir: PathBuf,
    /// Settings of the engine.
    pub settings: String,
}

/// Measures in this process, which does nothing else.
///
/// # Errors
/// When something that is needed is not to be had, or a page came back wrong.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    match &request.who {
        Who::Peer(peer) => peer::measure(&request, *peer),
        Who::Overspill { command, fault } => ours::run(&request, command, fault),
        Who::Library => ours::library(&request),
        Who::Floor => floor::measure(request.plan.packing),
    }
}

impl Request {
    /// The program with its arguments. It lies beside this one.
    ///
    /// # Errors
    /// When this program is not found.
    pub fn load(&self) -> Result<Vec<String>, Failure> {
        let program = beside("overspill-load")?;
        let packing = self.plan.packing.to_string();
        let words = [
            program.to_string_lossy().into_owned(),
            self.plan.workload.to_string(),
            self.pages.to_string(),
            "--contents".to_owned(),
            packing.trim_end_matches(":1").to_owned(),
            "--threads".to_owned(),
            self.plan.threads.to_string(),
        ];
        Ok(words.into())
    }
}

/// A program that is installed, or built, beside this one.
///
/// # Errors
/// When it is not there.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe().unwrap_or_default().with_file_name(name);
    if path.exists() { Ok(path) } else { Err(Failure::new(format!("there is no '{}': build it", path.display()))) }
}

/// Starts a command whose output is the program's.
///
/// # Errors
/// When it cannot be started.
pub fn start(command: &mut Command) -> Result<std::process::Child, Failure> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.map_err(|error| Failure::new(format!("{command:?} cannot be started: {error}")))
}

/// What the program printed.
///
/// # Errors
/// When it failed.
pub fn outcome(output: &Output) -> Result<Outcome, Failure> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("the program failed ({}): {}", output.status, said.trim())));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::new(format!("the program printed no figures: {error}")))
}
