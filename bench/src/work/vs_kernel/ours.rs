//! The same with overspill: the program under `overspill run`, or the accesses in a process of the
//! library.

use super::request::{Job, Request};
use super::{figures, launch};
use crate::machine::cgroup::Cgroup;
use crate::machine::kernel_swap::{self, NO_LIMIT, counting};
use crate::machine::put_back::{Guard, PutBack};
use crate::measure::pool;
use crate::measure::{Failing, Failure, Sample, fail};
use overspill::base::PAGE_SIZE;
use overspill_bench::workload;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::mpsc;

/// Runs the program under the command.
///
/// # Errors
/// When it fails.
pub fn run(request: &Request, command: &Path, fault: &str) -> Result<Sample, Failure> {
    let stats = request.dir.join(format!(".{}.json", kernel_swap::name()));
    let cgroup = counting();
    let what = PutBack {
        file: vec![stats.clone()],
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        ..PutBack::default()
    };
    let mut guard = Guard::start(&what)?;
    let measured = (|| {
        // 1. The command, without what the user set for other runs.
        let own = std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| name.to_string_lossy().starts_with("OVERSPILL_"));
        let mut words: Vec<OsString> = vec!["env".into()];
        words.extend(own.flat_map(|name| ["-u".into(), name]));
        words.extend([
            command.into(),
            "run".into(),
            "--memory".into(),
            request.memory.to_string().into(),
        ]);
        words.extend(["--fault".into(), fault.into(), "--swap".into(), request.dir.clone().into()]);
        if !request.settings.is_empty() {
            words.extend(["--set".into(), request.settings.clone().into()]);
        }
        words.extend(["--stats-json".into(), stats.clone().into(), "--".into()]);
        // 2. The program under it.
        if let Some(cgroup) = &cgroup {
            cgroup.make(NO_LIMIT)?;
        }
        let mut peak = None;
        let look = || peak = peak.max(cgroup.as_ref().and_then(Cgroup::used_bytes));
        let mut sample = launch::run(request, &words, cgroup.as_ref(), &mut guard, look)?;
        // 3. What overspill says of it.
        let text = fs::read_to_string(&stats)
            .failing(format_args!("'{}' cannot be read", stats.display()))?;
        let stats: Value = serde_json::from_str(&text).failing("the statistics are no JSON")?;
        let processes = stats["processes"].as_array().cloned().unwrap_or_default();
        let count =
            |name: &str| processes.iter().filter_map(|one| one["counters"][name].as_u64()).sum();
        counted(&mut sample, request, count);
        if let Some(peak) = peak {
            figures::add(&mut sample, [(figures::RAM, peak)]);
        }
        Ok(sample)
    })();
    let put_back = guard.finish();
    let sample = measured?;
    put_back?;
    Ok(sample)
}

/// Does the accesses in this process, with a cgroup around it to see what it takes.
///
/// # Errors
/// When there is no pool to be had, or a page came back wrong.
pub fn library(request: &Request) -> Result<Sample, Failure> {
    let cgroup = counting();
    let what = PutBack {
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        ..PutBack::default()
    };
    let guard = Guard::start(&what)?;
    let measured = cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.enter(NO_LIMIT)).and_then(|()| {
        let (ended, watch) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let cgroup = cgroup.as_ref();
            let looker = scope.spawn(move || {
                let mut peak = None;
                launch::now_and_then(&watch, || {
                    peak = peak.max(cgroup.and_then(Cgroup::used_bytes))
                });
                peak
            });
            let sample = accesses(request);
            drop(ended);
            let peak = looker.join().expect("who looks at a cgroup does not panic");
            let mut sample = sample?;
            if let Some(peak) = peak {
                figures::add(&mut sample, [(figures::RAM, peak)]);
            }
            Ok(sample)
        })
    });
    let left = cgroup.map_or(Ok(()), |cgroup| cgroup.leave());
    let put_back = guard.finish();
    let sample = measured?;
    left.and(put_back)?;
    Ok(sample)
}

/// The accesses, and what overspill counted.
fn accesses(request: &Request) -> Result<Sample, Failure> {
    let Job::Accesses { plan, pages } = &request.job else {
        return Err(Failure::new("a program is not in this process"));
    };
    let device = format!("{}:{}", request.dir.display(), 2 * request.needs);
    let pool = pool::open(request.memory, Some(&device), &request.settings)?;
    let mut region = pool::map(&pool, pages * PAGE_SIZE as u64)?;
    let outcome = workload::run(*plan, region.as_mut_slice());
    if outcome.wrong > 0 {
        fail!("{} pages came back with other content than was written", outcome.wrong);
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
            (figures::PAGES_IN, count("zswpin") + count("pswpin")),
            (figures::LIMIT, request.memory),
            (figures::METADATA, count("metadata_bytes")),
            (figures::RAM, count("charged_peak_bytes") + count("metadata_bytes")),
        ],
    );
}
