//! What one measurement is asked for.

use super::names::Peer;
use super::program;
use super::program::Client;
use crate::measure::Failure;
use overspill::units::PAGE_SIZE;
use overspill_bench::workload::Plan;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

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
    /// The program by itself, with all the RAM that it takes.
    Alone,
    /// The mechanisms alone.
    Floor,
}

/// What is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Accesses to so many pages.
    Accesses {
        /// Which.
        plan: Plan,
        /// How many pages.
        pages: u64,
    },
    /// A program's work.
    Program(program::Job),
}

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Who is to do it.
    pub who: Who,
    /// What is done.
    pub job: Job,
    /// Memory that the job takes, in bytes.
    pub needs: u64,
    /// What fits: the limit of the cgroup, or the budget, in bytes.
    pub memory: u64,
    /// Longest that it may take.
    pub limit: Duration,
    /// Where swap files are made.
    pub dir: PathBuf,
    /// Settings of the engine.
    pub settings: String,
}

impl Request {
    /// The program with its arguments. That of accesses lies beside this one.
    pub fn words(&self) -> Result<Vec<String>, Failure> {
        let (plan, pages) = match &self.job {
            Job::Accesses { plan, pages } => (plan, pages),
            Job::Program(job) => return Ok(job.words.clone()),
        };
        let program = beside("overspill-load")?;
        let packing = plan.packing.to_string();
        let words = [
            program.to_string_lossy().into_owned(),
            plan.workload.to_string(),
            pages.to_string(),
            "--contents".to_owned(),
            packing.trim_end_matches(":1").to_owned(),
            "--threads".to_owned(),
            plan.threads.to_string(),
        ];
        Ok(words.into())
    }

    /// Who works with the program from outside.
    pub fn client(&self) -> Option<&Client> {
        match &self.job {
            Job::Accesses { .. } => None,
            Job::Program(job) => job.client.as_ref(),
        }
    }

    /// Pages that the job takes.
    pub fn pages(&self) -> u64 {
        self.needs.div_ceil(PAGE_SIZE as u64)
    }
}

/// A program that is installed, or built, beside this one.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe().unwrap_or_default().with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(Failure::new(format!("there is no '{}': build it", path.display())))
    }
}
