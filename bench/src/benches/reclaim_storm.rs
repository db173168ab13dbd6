//! `reclaim-storm`: many more threads than processors fault at once and find no frame.
//!
//! The work is that of hackbench ([`crate::work::reclaim_storm`]): all working sets together are an
//! eighth more than the budget, and go to a device. The ladder is about who reclaims: everybody at
//! once, or a few, who look for frames before they begin. Nobody does ahead of need but by default:
//! the background thread keeps ahead of these threads, which wait for one another and for the
//! device, and then there is next to nothing left to bound.

use super::common::Device;
use crate::measure::*;
use crate::model::*;
use crate::work::reclaim_storm as work;
use overspill::config::Config;
use overspill::units::Bytes;
use serde_json::json;
use std::time::Duration;

/// Longest that a measurement may take. Without a throttle it may take much longer than with it.
const LIMIT: Duration = Duration::from_secs(600);

/// The steps with the throttle, the one that is judged first.
const THROTTLED: &[&str] = &["wake", "timed", "default"];

/// What the throttle must not cost.
const fn no_worse(figure: &'static str, says: &'static str) -> Verdict {
    verdict(All, THROTTLED, figure, says, NotAbove("off"))
}

pub static LADDER: Ladder = Ladder {
    bench: "reclaim-storm",
    steps: &[
        Step::new("off", "Every thread that finds no frame reclaims")
            .set("background=off,reclaim.max=off")
            .published(|| {
                json!({
                    "benchmark_s": 282.3, "sys_s": 1248, "elapsed_s": 433, "major_faults": 29_026,
                    "parallel_reclaimers_max": 1298, "longest_reclaim": 70_394,
                })
            }),
        Step::new(
            "timed",
            "Two at once; who waited more than a second looks for four times the high \
             watermark, as first proposed",
        )
        .from("off", "reclaim.max=2,reclaim.recheck=timed")
        .published(|| {
            json!({
                "benchmark_s": 30.4, "sys_s": 294, "elapsed_s": 118, "major_faults": 3_064,
                "parallel_reclaimers_max": 4, "longest_reclaim": 12_234,
            })
        }),
        Step::new("wake", "Two at once; who waited looks for frames whenever it wakes")
            .from("timed", "reclaim.recheck=wake"),
        Step::new("default", "The defaults: a thread reclaims ahead of need besides").set(""),
    ],
    tables: &[
        Table {
            title: "Seconds until all messages have arrived, and how much sooner than in the \
                    first step of the same round; those of the whole process, which also makes \
                    the threads and fills their memory; pages read from the device.",
            columns: &[
                wide("benchmark s", "benchmark_s", ratio),
                wide("x sooner", "times_sooner", ratio),
                col("user s", "user_s", ratio),
                col("sys s", "sys_s", ratio),
                col("elapsed s", "elapsed_s", ratio),
                wide("major faults", "major_faults", whole),
                wide("less", "major_faults_less", gain),
            ],
        },
        Table {
            title: "Most threads that reclaimed at once, the longest time that one did, and the \
                    longest wait for a turn; pages evicted, those of them by threads that \
                    faulted, and those that came back within a second; times that a thread \
                    reclaimed, and that one had to wait.",
            columns: &[
                wide("at once", "parallel_reclaimers_max", whole),
                wide("longest ms", "reclaim_ms_max", short),
                wide("wait ms", "throttle_wait_ms_max", short),
                wide("evicted", "evicted_pages", whole),
                col("directly", "evicted_directly_pages", whole),
                wide("back in 1 s", "refaults_1s", whole),
                col("reclaimed", "direct_reclaims", whole),
                col("waited", "throttled", whole),
            ],
        },
    ],
    comparisons: &[
        compare("times_sooner", TimesLess, "benchmark_s", Base::First),
        compare("major_faults_less", Less, "major_faults", Base::First),
    ],
    verdicts: &[
        verdict(All, THROTTLED, "times_sooner", "times as soon", AtLeast(9.0)),
        verdict(All, THROTTLED, "major_faults_less", "fewer major faults", AtLeast(0.89)),
        no_worse("benchmark_s", "benchmark time, s"),
        no_worse("user_s", "user time, s"),
        no_worse("sys_s", "system time, s"),
        no_worse("elapsed_s", "elapsed time, s"),
        no_worse("major_faults", "major faults"),
        no_worse("parallel_reclaimers_max", "parallel reclaimers"),
        no_worse("reclaim_ms_max", "longest reclaim, ms"),
        told(All, &["off"], "refaults_1s", "pages back within a second"),
        told(All, THROTTLED, "refaults_1s", "pages back within a second"),
        told(All, &["default"], "direct_reclaims", "times that a thread reclaimed"),
    ],
    charts: &[
        chart("Until all messages have arrived", "benchmark_s", "s"),
        chart("Pages read from the device", "major_faults", "major faults"),
        chart("Pages back within a second", "refaults_1s", "pages"),
        Chart {
            log: true,
            ..chart("Most threads that reclaimed at once", "parallel_reclaimers_max", "threads")
        },
    ],
    origin: "hackbench with 120 groups, \"improve page reclaim by throttle\", Linux 2008",
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Groups of 20 senders and 20 receivers
    #[arg(long, value_name = "N", default_value = "30")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=50))]
    groups: u32,
    /// The budget; what the threads use is an eighth more
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    size: Bytes,
    /// Messages that each sender sends to each receiver of its group
    #[arg(long, value_name = "N", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// Steps to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = LADDER.parser())]
    steps: Vec<String>,
    #[command(flatten)]
    to: Device,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    if args.size < Config::MEMORY_MIN {
        fail!("a pool has {} at least: measure a larger --size", Config::MEMORY_MIN);
    }
    let steps = LADDER.chosen(&args.steps);
    let cases: Vec<Case> = steps.iter().map(|step| Ladder::case(step, Vec::new(), ())).collect();
    let groups = args.groups as usize;
    let threads = groups * work::GROUP_THREADS;
    let bytes = work::used_bytes(args.size.0, groups);
    let findings = LADDER.measure(&cases, rounds, |case| {
        let request = pool::Request {
            settings: format!("{},{}", work::SETTINGS, LADDER.settings_of(case)),
            threads,
            memory: args.size.0,
            bytes,
            device: args.to.spec(args.size.0),
            what: args.messages,
        };
        child::ask(LADDER.bench, &request, LIMIT)
    })?;
    let mut findings = findings.with(json!({
        "groups": groups,
        "threads": threads,
        "size_bytes": args.size.0,
        "used_bytes": bytes,
        "messages": args.messages,
        "message_bytes": work::MESSAGE_BYTES,
        "device": args.to.device.to_string(),
        "pinned": false,
        "settings": work::SETTINGS,
    }));
    findings.subject = format!("{}, {groups} groups", LADDER.bench);
    Ok(findings)
}
