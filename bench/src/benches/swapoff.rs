//! `swapoff`: how long it takes to empty a swap device that is taken out of use.
//!
//! A page at a time, in runs, with several runs in flight, and by the kernel, each alone and beside
//! a load ([`crate::work::swapoff`]). What the disk can do is measured at the same time.
//! [`crate::machine::put_back`] sees to it that nothing is left behind.

use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::swapoff::{Evacuation, engine, load_device_bytes};
use overspill::units::Bytes;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Longest that a measurement may take: this, and what a page may take at the very worst.
const LIMIT: Duration = Duration::from_secs(120);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(2);
/// The least that tells anything: a few operations of the largest size.
const SIZE_MIN: Bytes = Bytes(16 << 20);
/// The load's memory, as a share of what comes back, and at most.
const LOAD_SHARE: u64 = 8;
const LOAD_MAX: u64 = 64 << 20;

/// The defaults, or the best that was measured.
const BEST: &[&str] = &["in-flight", "run-256", "run-32", "run-8"];
const ALONE: Rows = With(&[("workload", "alone")]);
const LOAD: Rows = With(&[("workload", "load")]);

pub static LADDER: Ladder = Ladder {
    bench: "swapoff",
    steps: &[
        Step::new("run-1", "A page is read at a time")
            .set("swapoff.run=1,swapoff.depth=1")
            .published(|| json!({ "elapsed_s": 47.50, "sys_s": 11.35, "operations": 263_858 })),
        Step::new("run-8", "Up to 8 pages with one operation").from("run-1", "swapoff.run=8"),
        Step::new("run-32", "Up to 32").from("run-1", "swapoff.run=32"),
        Step::new("run-256", "Up to 256: 1 MiB").from("run-1", "swapoff.run=256").published(|| {
            json!({
                "elapsed_s": 7.93, "sys_s": 0.77, "operations": 14_596,
                "pages_per_operation": 18.3,
            })
        }),
        Step::new("in-flight", "The same with two operations in flight: the defaults")
            .from("run-256", "swapoff.depth=2"),
        Step::new("in-flight-4", "With four").from("run-256", "swapoff.depth=4"),
        Step::new("kernel", "The kernel's swapoff of a swap file on the same disk")
            .instead("swapoff(8)"),
    ],
    groups: &["workload"],
    tables: &[
        Table {
            title: "Seconds until the device was empty, processor time of it (not that of the \
                    load), pages and read operations (the kernel's with all others of the disk); \
                    how many times as fast, and with how many times fewer operations a page, as \
                    the first step of the same round.",
            columns: &[
                wide("elapsed s", "elapsed_s", short),
                col("user s", "user_s", short),
                col("sys s", "sys_s", short),
                col("page-ins", "page_ins", whole),
                col("operations", "operations", whole),
                col("pages each", "pages_per_operation", short),
                wide("x faster", "times_sooner", ratio),
                col("x fewer", "times_fewer_operations", ratio),
            ],
        },
        Table {
            title: "MB of pages a second, what a file on the same disk gave in sequence at the \
                    same time, and the share of it; how many times as fast as the kernel's \
                    swapoff of the same round; ns of the first access to a page afterwards.",
            columns: &[
                wide("MB/s", "mb_per_s", whole),
                wide("disk MB/s", "device_mb_per_s", whole),
                wide("share", "device_ratio", percent),
                wide("x kernel", "times_kernel", ratio),
                col("access ns", "first_access_ns", whole),
            ],
        },
        Table {
            title: "The load: accesses a second before and during the evacuation, how many times \
                    slower it was, the seconds of its work that were lost by that, and the \
                    longest access before and during.",
            columns: &[
                col("before/s", "load_ops_per_s_before", whole),
                col("during/s", "load_ops_per_s", whole),
                wide("x slower", "load_slowdown", ratio),
                wide("lost s", "load_lost_s", short),
                col("longest ms", "load_longest_ms_before", short),
                wide("during", "load_longest_ms", short),
            ],
        },
    ],
    comparisons: &[
        compare("times_sooner", Times, "mb_per_s", Base::Step("run-1")),
        compare("times_fewer_operations", Times, "pages_per_operation", Base::Step("run-1")),
        compare("times_kernel", Times, "mb_per_s", Base::Step("kernel")),
    ],
    verdicts: &[
        verdict(ALONE, BEST, "times_sooner", "times as fast as a page at a time", AtLeast(7.0)),
        verdict(ALONE, BEST, "times_fewer_operations", "times fewer operations", AtLeast(18.0)),
        verdict(ALONE, BEST, "device_ratio", "of the disk's sequential rate", AtLeast(0.7)),
        verdict(ALONE, BEST, "times_kernel", "times as fast as the kernel", AtLeast(5.0)),
        told(LOAD, BEST, "load_slowdown", "times slower the load"),
        told(LOAD, &["run-1"], "load_slowdown", "times slower the load"),
        told(LOAD, &["kernel"], "load_slowdown", "times slower the load"),
    ],
    charts: &[
        Chart {
            log: true,
            published: true,
            ..chart("Until the device is empty", "elapsed_s", "seconds, log scale, lower is better")
        },
        chart("Pages that come in", "mb_per_s", "MB/s, higher is better"),
        chart(
            "How many times slower the load is meanwhile",
            "load_slowdown",
            "times, lower is better",
        ),
    ],
    origin: "\"swapoff to release multiple swap blocks at a time\", FreeBSD, 1 GiB, before and \
             after",
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What is written, pushed out and brought back; published figures are of 1G
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// Where pages go: a directory on a disk, a file that is made and removed, or a swap file of
    /// overspill, which is used in place. The kernel's swap file is made beside it [default:
    /// $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Where the load's pages go: `ram` (memory that takes as long as a fast disk) or a directory,
    /// file or block device; both with options after a comma, as in
    /// `ram,latency=50us,bandwidth=500M`. Those of the kernel's load go to the disk of the other
    /// device in any case [default: the disk of the other device]
    #[arg(long, value_name = "DEVICE")]
    load_device: Option<SwapDevice>,
    /// Steps to measure [default: all; the kernel as root only]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = LADDER.parser())]
    steps: Vec<String>,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let steps = LADDER.chosen(&args.steps);
    let cases = plan(&steps);
    let swap_dir = SwapDir::find(args.device.as_deref())?;
    if args.size < SIZE_MIN {
        fail!("{} is too little to tell anything: give --size {SIZE_MIN} or more", args.size);
    }
    // Whole runs of what the load pushes out at once.
    let load = (args.size.0 / LOAD_SHARE).min(LOAD_MAX) >> 20 << 20;
    let load_device = args.load_device.clone().unwrap_or_else(|| SwapDevice::at(&swap_dir.dir));
    let beside_load = Evacuation {
        settings: None,
        dir: swap_dir.dir.clone(),
        file: swap_dir.file.clone(),
        load_device: load_device.spec(Bytes(load_device_bytes(load))),
        size: Bytes::from_pages(args.size.pages()).0,
        load,
    };
    let alone = Evacuation { load: 0, ..beside_load.clone() };
    // What both allocations keep in memory at once is bounded by the budget, and what the engine
    // keeps of it by less than this.
    memory_for(args.size, beside_load.memory() + beside_load.memory() / 4)?;
    swap_dir.has_room(args.size, beside_load.disk(), "--device")?;
    let with_kernel = steps.iter().any(|step| step.name == "kernel");
    let mut without_kernel = kernel_swap::missing().filter(|_| with_kernel);
    let findings = LADDER.measure(&cases, rounds, |case| {
        let limit = LIMIT + LIMIT_PER_PAGE * args.size.pages().min(u32::MAX.into()) as u32;
        let settings = LADDER.step(&case.step).and_then(|step| LADDER.settings(step));
        let of_kernel = settings.is_none();
        if of_kernel && without_kernel.is_some() {
            return Ok(Sample::new());
        }
        let request = if case.what { &beside_load } else { &alone };
        let request = Evacuation { settings, ..request.clone() };
        child::ask(LADDER.bench, &request, limit).or_else(|failure| {
            if !of_kernel {
                return Err(failure);
            }
            without_kernel = Some(failure.to_string());
            Ok(Sample::new())
        })
    })?;
    let mut findings = findings.with(json!({
        "size_bytes": args.size.0,
        "memory_bytes": alone.memory(),
        "load_bytes": load,
        "device": swap_dir.to_string(),
        "load_device": load_device.to_string(),
        "pinned": false,
        "settings": engine::SETTINGS,
        "without_kernel": without_kernel,
    }));
    findings.subject = format!("{} of {}", LADDER.bench, args.size);
    findings.notes.extend(without_kernel.map(|why| format!("The kernel was left out: {why}.")));
    Ok(findings)
}

/// The cases in the order of their rows; what tells a case is whether there is a load.
fn plan(steps: &[&'static Step]) -> Vec<Case<bool>> {
    let with = |(workload, load): (&'static str, bool)| {
        let labels = move || vec![("workload", json!(workload))];
        steps.iter().map(move |step| Ladder::case(step, labels(), load))
    };
    [("alone", false), ("load", true)].into_iter().flat_map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::config::Config;

    #[test]
    fn the_best_step_is_the_default() {
        let mut config = Config::default();
        config.apply_with_baselines(engine::SETTINGS).unwrap();
        let default = Config::default();
        let best = LADDER.settings(LADDER.step("in-flight").unwrap()).unwrap();
        config.apply_with_baselines(&best).unwrap();
        let of = |config: &Config| (config.baselines.swapoff_run, config.baselines.swapoff_depth);
        assert_eq!(of(&config), of(&default));
    }
}
