//! The same with overspill: the program under `overspill run`, or the accesses in a process of the
//! library.

use super::launch::{self, Peak};
use super::request::{Measurement, count, told};
use crate::machine::*;
use crate::measure::*;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill_bench::workload;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

/// Runs the program under the command, with these options of its device.
pub fn run(request: &Measurement, fault: &str, options: &str) -> Result<Sample, Failure> {
    let stats = request.dir.join(format!(".{}.json", kernel_swap::name()));
    let words = words(request, fault, options, &stats);
    launch::counted(request, &words, vec![stats.clone()], |sample| {
        // What overspill says of it.
        let stats: Value =
            serde_json::from_str(&read_file(&stats)?).failing("the statistics are no JSON")?;
        let processes = stats["processes"].as_array().cloned().unwrap_or_default();
        let count =
            |name: &str| processes.iter().filter_map(|one| one["counters"][name].as_u64()).sum();
        counted(sample, request, count);
        Ok(())
    })
}

/// The command with its options, without what the user set for other runs.
fn words(request: &Measurement, fault: &str, options: &str, stats: &Path) -> Vec<OsString> {
    let own = std::env::vars_os().map(|(name, _)| name);
    let own = own.filter(|name| name.to_string_lossy().starts_with("OVERSPILL_"));
    let mut words: Vec<OsString> = vec!["env".into()];
    words.extend(own.flat_map(|name| ["-u".into(), name]));
    words.extend([request.command.clone().into(), "run".into()]);
    words.extend(["--memory".into(), request.memory.to_string().into()]);
    let mut device = request.dir.clone().into_os_string();
    device.push(options);
    words.extend(["--fault".into(), fault.into(), "--swap".into(), device]);
    if !request.settings.is_empty() {
        words.extend(["--set".into(), request.settings.clone().into()]);
    }
    words.extend(["--stats-json".into(), stats.into(), "--".into()]);
    words
}

/// Does the accesses in this process, with a cgroup around it to see what it takes.
pub fn library(request: &Measurement) -> Result<Sample, Failure> {
    let cgroup = counting();
    let cgroup = cgroup.as_ref();
    put_back::around(&PutBack::cgroup(cgroup), |_| {
        let mut peak = Peak::default();
        let mut measure = || launch::watched(|| peak.look(cgroup), || accesses(request));
        let mut sample = match cgroup {
            Some(cgroup) => cgroup.inside(NO_LIMIT, measure)?,
            None => measure()?,
        };
        peak.tell(&mut sample);
        Ok(sample)
    })
}

fn accesses(request: &Measurement) -> Result<Sample, Failure> {
    let Some(plan) = request.plan() else { fail!("a program is not in this process") };
    let device = format!("{}:{}", request.dir.display(), 2 * request.needs);
    let pool = pool::open(request.memory, Some(&device), &request.settings)?;
    let mut region = pool::map(&pool, Bytes::from_pages(request.pages()).0)?;
    let outcome = workload::run(plan, region.as_mut_slice(), || ());
    pool::right(outcome.wrong)?;
    let mut sample = told(&outcome);
    let stats = pool.stats();
    counted(&mut sample, request, |name| stats.counters.get(name).copied().unwrap_or(0));
    Ok(sample)
}

/// What overspill counted, as the names of counters say.
fn counted(sample: &mut Sample, request: &Measurement, counter: impl Fn(&str) -> u64) {
    let written = counter("pswpout") * PAGE_SIZE as u64;
    let (all, major) = (counter("pgfault"), counter("pgmajfault"));
    let counts = [
        ("major_faults", major),
        ("minor_faults", all.saturating_sub(major)),
        // Bytes written to a device and read from it, in the whole run, and the part of them that
        // was written.
        ("device_bytes", written + counter("pswpin") * PAGE_SIZE as u64),
        ("device_bytes_written", written),
        // Pages of the whole run that were brought in: unpacked, or read from a device.
        ("pages_in", counter("zswpin") + counter("pswpin")),
        ("limit_bytes", request.memory),
        // Overspill's tables.
        ("metadata_bytes", counter("metadata_bytes")),
        ("ram_bytes_peak", counter("charged_peak_bytes") + counter("metadata_bytes")),
    ];
    count(sample, counts);
}
