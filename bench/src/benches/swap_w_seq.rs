//! `swap-w-seq`: how swap slots and the swap cache scale, step by step.
//!
//! Threads write anonymous memory in sequence until the budget is used up, and go on, so that every
//! page written pushes one out to the device. Then they read it all back, which frees the slots
//! ([`crate::work::swap_w_seq`]). All pages go to the device: nothing is compressed, and a page
//! that came back leaves by being written again.

use super::common::Device;
use crate::measure::*;
use crate::model::*;
use crate::work::swap_w_seq::LOCKS;
use overspill::units::Bytes;
use serde_json::{Value, json};

/// Figures with long names.
const IN_SERIAL: &str = "in.serial_ns_per_page_max";
const IN_SERIAL_LESS: &str = "in.serial_less_than_baseline";
const IN_SATURATION: &str = "in.saturation_pages_per_s";
const SATURATION_MORE: &str = "saturation_ratio_to_baseline";
const IN_SATURATION_MORE: &str = "in.saturation_ratio_to_baseline";
const SPREAD: &str = "swap_serial_ns_per_page_if_spread";
const IN_SPREAD: &str = "in.swap_serial_ns_per_page_if_spread";
const SPREAD_LESS: &str = "swap_serial_if_spread_less_than_baseline";
const IN_SPREAD_LESS: &str = "in.swap_serial_if_spread_less_than_baseline";

/// The last step, with the most threads.
const fn last(figure: &'static str, says: &'static str, least: f64) -> Verdict {
    verdict(Most("threads"), &["batches"], figure, says, AtLeast(least))
}

/// The share of the time that swap locks may take with two threads.
const fn share(figure: &'static str, says: &'static str) -> Verdict {
    verdict(With(&[("threads", "2")]), &["batches"], figure, says, AtMost(0.01))
}

const fn no_loss(figure: &'static str, says: &'static str) -> Verdict {
    verdict(All, &[], figure, says, NoLoss)
}

/// Vm-scalability's swap-w-seq with 32 processes; only the first steps are part of that.
fn origin(kib: f64) -> Value {
    json!({ "processes": 32, "so_kib_per_s": kib, "ratio_to_baseline": kib / 1_428_002.0 })
}

/// Four columns for each kind of lock; what the names of their figures begin with tells the phase.
macro_rules! locks {
    ($phase:literal, $($title:literal $lock:literal),*) => {
        &[$(
            col($title, concat!($phase, "locks.", $lock, ".per_1000"), short),
            col("", concat!($phase, "locks.", $lock, ".contended_ratio"), percent),
            col("waited", concat!($phase, "locks.", $lock, ".wait_ns"), whole),
            col("held", concat!($phase, "locks.", $lock, ".short_hold_ns"), whole),
        )*]
    };
    ($phase:literal) => {
        locks!(
            $phase, "slots" "slot_lock", "cluster" "cluster_lock", "index" "swap_cache_lock",
            "lru" "swap_ages_lock", "zone" "zone_lock"
        )
    };
}

pub static LADDER: Ladder = Ladder {
    bench: "swap-w-seq",
    steps: &[
        Step::new("baseline", "One lock for the slots of a device, one for the swap cache")
            .set(
                "compressed=0,clean=off,slot.lock=device,cache.partition=device,slot.cache=off,\
                 slot.cpu_cluster=off,swap.batch=off",
            )
            .published(|| origin(1_428_002.0)),
        Step::new("cluster-locks", "A lock for each cluster of 512 slots")
            .from("baseline", "slot.lock=cluster")
            .published(|| origin(1_481_704.0)),
        Step::new("partitions-64m", "A lock of the swap cache for each 64 MiB of swap space")
            .from("cluster-locks", "cache.partition=64M")
            .published(|| origin(2_050_097.0)),
        Step::new(
            "slot-caches",
            "Each processor keeps 64 slots to hand out, and collects 64 that were freed",
        )
        .from("partitions-64m", "slot.cache=64")
        .published(|| origin(4_170_746.0)),
        Step::new("cpu-clusters", "Each processor takes slots from a cluster of its own")
            .from("slot-caches", "slot.cpu_cluster=on"),
        Step::new("partitions-2m", "A lock of the swap cache for each cluster")
            .from("cpu-clusters", "cache.partition=2M"),
        Step::new(
            "batches",
            "Slots, and pages of the swap cache, are handled many in one hold of a lock",
        )
        .from("partitions-2m", "swap.batch=on"),
    ],
    groups: &["threads"],
    tables: &[
        Table {
            title: "Throughput, and the serial time of the lock that would limit it: the time a \
                    page that it is held, divided by the locks of its kind in use side by side.",
            columns: &[
                wide("pages out/s", "pages_per_s", whole),
                col("so KiB/s", "so_kib_per_s", whole),
                col("over step before", "gain_over_step_before", gain),
                col("serial ns", "serial_ns_per_page_max", short),
                col("saturates at", "saturation_pages_per_s", whole),
                col("swap locks", "swap_locks_ratio", percent),
                wide("pages in/s", "in.pages_per_s", whole),
                col("serial ns", IN_SERIAL, short),
                col("saturates at", IN_SATURATION, whole),
                col("swap locks", "in.swap_locks_ratio", percent),
            ],
        },
        Table {
            title: "Locks, for 1,000 pages that go out: times taken, share contended, ns waited, \
                    ns held (without the holds of more than 50 us, in which the holder was \
                    interrupted).",
            columns: locks!(""),
        },
        Table { title: "The same for 1,000 pages that come in.", columns: locks!("in.") },
    ],
    comparisons: &[
        compare("gain_over_step_before", More, "pages_per_s", Base::From),
        compare("in.gain_over_step_before", More, "in.pages_per_s", Base::From),
        compare("serial_less_than_baseline", TimesLess, "serial_ns_per_page_max", BASELINE),
        compare(IN_SERIAL_LESS, TimesLess, IN_SERIAL, BASELINE),
        compare(SPREAD_LESS, TimesLess, SPREAD, BASELINE),
        compare(IN_SPREAD_LESS, TimesLess, IN_SPREAD, BASELINE),
        compare(SATURATION_MORE, Times, "saturation_pages_per_s", BASELINE),
        compare(IN_SATURATION_MORE, Times, IN_SATURATION, BASELINE),
    ],
    verdicts: &[
        last("serial_less_than_baseline", "out: times less at the lock that limits", 10.0),
        last(SATURATION_MORE, "out: times the pages a second that saturate it", 2.92),
        last(SPREAD_LESS, "out: times less at swap locks, used evenly", 10.0),
        last(IN_SERIAL_LESS, "in: times less at the lock that limits", 10.0),
        last(IN_SATURATION_MORE, "in: times the pages a second that saturate it", 2.92),
        last(IN_SPREAD_LESS, "in: times less at swap locks, used evenly", 10.0),
        share("swap_locks_ratio", "out: of the time in swap locks"),
        share("in.swap_locks_ratio", "in: of the time in swap locks"),
        no_loss("gain_over_step_before", "out: slower than the step before in every round"),
        no_loss("in.gain_over_step_before", "in: slower than the step before in every round"),
    ],
    charts: &[
        chart("Pages swapped out", "pages_per_s", "pages a second"),
        Chart {
            log: true,
            ..chart(
                "Time that each page out holds the lock that would limit it",
                "serial_ns_per_page_max",
                "ns a page, log scale, lower is better",
            )
        },
    ],
    origin: "\"mm/swap: Regular page swap optimizations\", Linux 2017",
    ..Ladder::NONE
};
const BASELINE: Base = Base::Step("baseline");

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Numbers of threads to measure with
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,32")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    #[command(flatten)]
    to: Device,
    /// The budget
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    memory: Bytes,
    /// What all threads together write beyond the budget
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    size: Bytes,
    /// Steps to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = LADDER.parser())]
    steps: Vec<String>,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let cases = LADDER.with_threads(&args.steps, &args.threads);
    let device = args.to.spec(args.memory.0 + args.size.0);
    let findings = LADDER.measure(&cases, rounds, |case| {
        let request = pool::Request {
            settings: LADDER.settings_of(case),
            threads: case.what,
            memory: args.memory.0,
            bytes: args.size.0,
            device: device.clone(),
            what: (),
        };
        LADDER.ask(&request, args.memory.pages() + args.size.pages())
    })?;
    let mut findings = findings.with(json!({
        "threads": args.threads,
        "memory_bytes": args.memory.0,
        "size_bytes": args.size.0,
        "device": args.to.device.told(&device),
    }));
    findings.notes = ["", "in."].iter().flat_map(|phase| limits(&findings.rows, phase)).collect();
    Ok(findings)
}

/// Which lock would limit each step of the rows with the most threads.
fn limits(rows: &[Row], phase: &str) -> Option<String> {
    let threads = |row: &Row| row.labels.get("threads").and_then(Value::as_u64);
    let most = rows.iter().filter_map(threads).max()?;
    let limit = |row: &Row| {
        let serial = |lock: &str| row.get(&format!("{phase}locks.{lock}.serial_ns_per_page"));
        let times = LOCKS.iter().filter_map(|lock| Some((serial(lock.name)?.median, lock.title)));
        let longest = times.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!("{} {}", row.step, longest.1))
    };
    let rows = rows.iter().filter(|row| threads(row) == Some(most));
    let told: Vec<String> = rows.filter_map(limit).collect();
    let way = if phase.is_empty() { "out" } else { "in" };
    (!told.is_empty()).then(|| {
        format!("What limits pages {way}, {}: {}.", plural(most, "thread"), told.join("; "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::row;

    #[test]
    fn each_step_is_one_setting_more() {
        let settings = |step: &Step| LADDER.settings(step).unwrap();
        let all: Vec<String> = LADDER.steps.iter().map(settings).collect();
        for (below, above) in all.iter().zip(&all[1..]) {
            let changed = below.split(',').zip(above.split(',')).filter(|(a, b)| a != b);
            assert_eq!(changed.count(), 1, "{below} and {above}");
        }
    }

    #[test]
    fn the_lock_with_the_longest_time_limits() {
        let of = |step, zone| {
            let slots: (&str, &[f64]) = ("locks.slot_lock.serial_ns_per_page", &[5.0]);
            let zone: (&str, &[f64]) = ("locks.zone_lock.serial_ns_per_page", zone);
            row(step, &[("threads", json!(2))], &[slots, zone])
        };
        let rows = [of("baseline", &[1.0]), of("batches", &[9.0])];
        let expected = "What limits pages out, 2 threads: baseline slots; batches zone.";
        assert_eq!(limits(&rows, "").unwrap(), expected);
        assert_eq!(limits(&rows, "in."), None);
    }
}
