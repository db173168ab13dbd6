//! What is to be measured, and how what was measured is told.

use super::case::{Kind, Task};
use super::program::{self, beside};
use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::workload::{Outcome, Packing, Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A measurement that a process of its own makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What is done, and by whom.
    pub kind: Kind,
    /// How a program is started, where it is one.
    pub program: Option<program::Job>,
    /// The `overspill` that programs run under.
    pub command: PathBuf,
    /// Memory that is accessed, in bytes.
    pub size: u64,
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

impl Measurement {
    /// The accesses, if it is about accesses.
    pub fn plan(&self) -> Option<Plan> {
        let Kind::Work(setting, _) = self.kind else { return None };
        let Task::Accesses(workload) = setting.task else { return None };
        let packing = setting.packing.unwrap_or(Packing::Heap);
        Some(Plan { workload, packing, threads: setting.threads as usize, passes: 1 })
    }

    /// Pages that are accessed.
    pub fn pages(&self) -> u64 {
        self.size / PAGE_SIZE as u64
    }

    /// The program with its arguments. That of accesses lies beside this one.
    pub fn words(&self) -> Result<Vec<String>, Failure> {
        let Some(plan) = self.plan() else {
            return Ok(self.program.as_ref().map_or(Vec::new(), |job| job.words.clone()));
        };
        let (workload, packing) = (plan.workload.to_string(), plan.packing.to_string());
        let (pages, threads) = (self.pages().to_string(), plan.threads.to_string());
        let contents = packing.trim_end_matches(":1");
        let args = [&workload, &pages, "--contents", contents, "--threads", &threads];
        let program = beside("overspill-load")?.to_string_lossy().into_owned();
        Ok([program].into_iter().chain(args.map(str::to_owned)).collect())
    }
}

/// What accesses took.
pub fn told(outcome: &Outcome) -> Sample {
    let percentiles_ns = outcome.percentiles_ns.map(|ns| ns as f64);
    let mut sample = used(outcome.elapsed_s, &outcome.used, &percentiles_ns);
    let ns_per_access = outcome.elapsed_s * 1e9 / outcome.accesses.max(1) as f64;
    add(&mut sample, [("ns_per_access", ns_per_access)]);
    sample
}

/// What work takes that anything does, with the percentiles that are known of its accesses.
pub fn used(elapsed_s: f64, usage: &Usage, percentiles_ns: &[f64]) -> Sample {
    let mut sample = figures([
        ("elapsed_s", elapsed_s),
        // Processor time of the process meanwhile; that of overspill's threads is part of it.
        ("cpu_s", usage.user_s + usage.sys_s),
        ("user_s", usage.user_s),
        ("sys_s", usage.sys_s),
        // Faults of the whole run: those that waited for a device, and others. zram is a device to
        // the kernel, and what is in zswap counts, too.
        ("major_faults", usage.major_faults as f64),
        ("minor_faults", usage.minor_faults as f64),
    ]);
    let names = ["p50_ns", "p99_ns", "p999_ns"].into_iter();
    add(&mut sample, names.zip(percentiles_ns.iter().copied()));
    sample
}

/// Adds what was counted to a sample.
pub fn count<const N: usize>(sample: &mut Sample, counts: [(&str, u64); N]) {
    add(sample, counts.map(|(name, value)| (name, value as f64)));
}
