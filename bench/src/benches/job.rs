//! `job`: processes of one job in one budget, beside a memory cgroup with zram.
//!
//! Everything is measured as `vs-kernel` does ([`super::vs_kernel::compared`]): natively, with the
//! kernel's zram, and with overspill, on the same RAM. Two rows are about what a process costs, and
//! have more memory than they take.

use super::vs_kernel::{self, Meant, Sides, meant};
use crate::measure::*;
use crate::model::*;
use crate::work::vs_kernel::case::{Kind, Peer, Program, Setting, Task};
use clap::ValueEnum;
use serde_json::json;

/// How many times the RAM it is that busy processes work on.
const OVERCOMMIT: u32 = 2;

/// Who is judged: the way that `overspill run` takes by default, or the other.
const RUN: &[&str] = &["overspill-signal", "overspill-thread"];

pub static LADDER: Ladder = Ladder {
    bench: "job",
    groups: &["workload"],
    tables: &[
        Table {
            title: "Seconds of the whole job, as a ratio to zram's of the same round and to those \
                    natively (alone), lower is better; processor time of all processes.",
            columns: &[
                wide("elapsed s", "elapsed_s", short),
                wide("of zram", "ratio", ratio),
                wide("of native", "native_ratio", ratio),
                col("cpu s", "cpu_s", short),
            ],
        },
        Table {
            title: "What the busy process with the least and the one with the most have in memory \
                    in the first 5 s on average, of the RAM that there is, and the difference as \
                    a part of the mean; in MiB: RAM of all processes at most, of it zram's pool, \
                    the limit of the cgroup or the budget; pages brought in.",
            columns: &[
                wide("least", "share_min", ratio),
                wide("most", "share_max", ratio),
                wide("spread", "share_spread", ratio),
                wide("RAM", "ram_bytes_peak", mib),
                col("pool", "pool_bytes_peak", mib),
                col("limit", "limit_bytes", mib),
                col("pages in", "pages_in", whole),
            ],
        },
    ],
    comparisons: &[
        compare("ratio", Times, "elapsed_s", Base::Step("peer")),
        compare("native_ratio", Times, "elapsed_s", Base::Step("alone")),
    ],
    verdicts: &[
        verdict(All, RUN, "ratio", "time, of zram's", AtMost(0.80)),
        told(All, RUN, "native_ratio", "time, of native"),
        told(All, RUN, "share_spread", "spread of shares"),
    ],
    charts: &[chart("Processes of one job", "elapsed_s", "seconds, lower is better")],
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What the processes do
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    #[arg(value_parser = jobs)]
    workload: Vec<Meant<Program>>,
    #[command(flatten)]
    sides: Sides,
}

fn jobs(word: &str) -> Result<Vec<Program>, String> {
    let all = Program::value_variants().iter().copied().filter(|program| program.is_job());
    meant(all, "all", |job| word == "all" || word == job.to_string())
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    Ok(vs_kernel::compared(&LADDER, &args.sides, rounds, plan(args), None)?.0)
}

/// Each job natively, then with zram and with overspill.
fn plan(args: &Args) -> Vec<Case<Kind>> {
    let steps = args.sides.steps();
    let kinds = in_order(args.workload.concat()).into_iter().flat_map(|job| {
        let overcommit = if job.least(1) > 0 { 1 } else { OVERCOMMIT };
        let (task, peer) = (Task::Program(job), Peer::Zram);
        let setting = Setting { task, peer, overcommit, packing: None, threads: 1 };
        [Kind::Alone(job)].into_iter().chain(setting.by(&steps))
    });
    let labels = |kind: &Kind| vec![("workload", json!(kind.program().map(|job| job.to_string())))];
    kinds.map(|kind| Case { labels: labels(&kind), ..vs_kernel::case(kind) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{args, parse};
    use crate::work::vs_kernel::case::Variant;

    #[test]
    fn each_job_is_measured_natively_and_beside_zram() {
        let names =
            |line: &str| -> Vec<String> { plan(&args(line)).iter().map(Case::to_string).collect() };
        assert_eq!(names("").len(), 6 * 4);
        let expected = ["alone, short", "peer, short", "overspill-signal, short"];
        assert_eq!(names("--workload short --steps overspill-signal,library"), expected);
        assert!(parse::<Args>("--workload sort").unwrap_err().to_string().contains("busy-8"));
    }

    #[test]
    fn busy_processes_have_half_of_what_they_need_and_others_more_than_they_take() {
        let overcommit = |case: &Case<Kind>| match case.what {
            Kind::Work(setting, Variant::Peer) => Some(setting.overcommit),
            _ => None,
        };
        let all: Vec<u32> = plan(&args("")).iter().filter_map(overcommit).collect();
        assert_eq!(all, [2, 2, 2, 1, 1, 1]);
    }
}
