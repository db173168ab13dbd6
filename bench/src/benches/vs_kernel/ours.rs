//! The same with overspill: the program under `overspill run`, or the accesses in a process of the library.

use super::figures;
use super::work::{self, Request};
use crate::failure::Failure;
use crate::kernel_swap::Hierarchy;
use crate::measure::Sample;
use crate::pool;
use crate::put_back::{Guard, PutBack};
use overspill::base::PAGE_SIZE;
use overspill_bench::workload;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A limit of a cgroup that nothing reaches: it only counts.
const NO_LIMIT: u64 = 1 << 50;

/// Runs the program under the command.
///
/// # Errors
/// When it fails.
pub fn run(request: &Request, command: &Path, fault: &str) -> Result<Sample, Failure> {
    let name = format!("overspill-bench-{}", std::process::id());
    let stats = request.dir.join(format!(".{name}.json"));
    // How much memory it takes all in all is known where a cgroup can be made.
    let root = rustix::process::geteuid().is_root();
    let hierarchy = root.then(|| Hierarchy::find(Path::new("/sys/fs/cgroup")).ok()).flatten();
    let cgroup = hierarchy.map(|hierarchy| hierarchy.group(&name));
    let what = PutBack {
        file: vec![stats.clone()],
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        ..PutBack::default()
    };
    let guard = Guard::start(&what)?;
    let measured = (|| {
        let mut program = Command::new(command);
        let own = std::env::vars_os().map(|(name, _)| name);
        own.filter(|name| name.to_string_lossy().starts_with("OVERSPILL_"))
            .for_each(|name| _ = program.env_remove(name));
        program
            .arg("run")
            .args(["--memory", &request.memory.to_string(), "--fault", fault, "--swap"])
            .arg(&request.dir);
        if !request.settings.is_empty() {
            program.args(["--set", &request.settings]);
        }
        program.arg("--stats-json").arg(&stats).arg("--").args(request.load()?);
        if let Some(cgroup) = &cgroup {
            cgroup.enter(NO_LIMIT)?;
        }
        let output = work::start(&mut program)
            .and_then(|child| child.wait_with_output().map_err(|error| Failure::new(error.to_string())));
        let left = cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.leave());
        let outcome = work::outcome(&output?)?;
        left?;
        let mut sample = figures::of(&outcome);
        let text = fs::read_to_string(&stats)
            .map_err(|error| Failure::new(format!("'{}' cannot be read: {error}", stats.display())))?;
        let stats: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("the statistics are no JSON: {error}")))?;
        let processes = stats["processes"].as_array().cloned().unwrap_or_default();
        let count = |name: &str| processes.iter().filter_map(|one| one["counters"][name].as_u64()).sum();
        counted(&mut sample, request, count);
        if let Some(peak) = cgroup.as_ref().and_then(|cgroup| cgroup.peak_bytes()) {
            figures::add(&mut sample, [(figures::RAM, peak)]);
        }
        Ok(sample)
    })();
    let put_back = guard.finish();
    let sample = measured?;
    put_back?;
    Ok(sample)
}

/// Does the accesses in this process.
///
/// # Errors
/// When there is no pool to be had, or a page came back wrong.
pub fn library(request: &Request) -> Result<Sample, Failure> {
    let device = format!("{}:{}", request.dir.display(), 2 * request.pages * PAGE_SIZE as u64);
    let pool = pool::open(request.memory, Some(&device), &request.settings)?;
    let mut region = pool::map(&pool, request.pages * PAGE_SIZE as u64)?;
    let outcome = workload::run(request.plan, region.as_mut_slice());
    if outcome.wrong > 0 {
        return Err(Failure::new(format!("{} pages came back with other content than was written", outcome.wrong)));
    }
    let mut sample = figures::of(&outcome);
    let stats = pool.stats();
    counted(&mut sample, request, |name| stats.counters.get(name).copied().unwrap_or(0));
    Ok(sample)
}

/// What overspill counted.
fn counted(sample: &mut Sample, request: &Request, count: impl Fn(&str) -> u64) {
    let written = count("pswpout") * PAGE_SIZE as u64;
    let (all, major) = (count("pgfault"), count("pgmajfault"));
    figures::add(
        sample,
        [
            (figures::MAJOR, major),
            (figures::MINOR, all.saturating_sub(major)),
            (figures::DEVICE, written + count("pswpin") * PAGE_SIZE as u64),
            (figures::WRITTEN, written),
            (figures::LIMIT, request.memory),
            (figures::RAM, count("charged_peak_bytes") + count("metadata_bytes")),
        ],
    );
}
