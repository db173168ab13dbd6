//! `reclaim-storm`: many more threads than processors fault at once and find no frame.
//!
//! The work is that of hackbench: groups of twenty senders and twenty receivers, each a thread,
//! pass messages through sockets. Each takes its messages from a working set in managed memory, or
//! puts them there. All of it together is an eighth more than the budget, and goes to a device. The
//! ladder is about who reclaims: everybody at once, or a few, who look for frames before they
//! begin. Nobody does ahead of need but by default: the background thread keeps ahead of these
//! threads, which wait for one another and for the device, and then there is next to nothing left
//! to bound.
//!
//! [`run`] plans the steps and reads the results; [`work`] is one measurement, [`figures`] what it
//! tells.

mod conclusion;
mod figures;
mod plot;
mod work;

pub use work::measure_one;

use super::common::Common;
use crate::ladder;
use crate::machine::swap_device::{self, SwapDevice};
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{self, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, gain, ratio, short, whole};
use clap::ValueEnum;
use overspill::base::Bytes;
use overspill::config::Config;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use work::Request;

/// Name of the bench.
pub const NAME: &str = "reclaim-storm";

/// Longest that a measurement may take. Without a throttle it may take much longer than with it.
const LIMIT: Duration = Duration::from_secs(600);

/// Options of `overspill-bench reclaim-storm`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Groups of 20 senders and 20 receivers
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u32).range(1..=50))]
    groups: u32,
    /// The budget; what the threads use is an eighth more
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    size: Bytes,
    /// Messages that each sender sends to each receiver of its group
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// Steps to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = swap_device::RAM)]
    device: SwapDevice,
    /// Draw the figures into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The ladder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Every thread that finds no frame reclaims
    Off,
    /// Two a NUMA node; who waited more than a second looks for four times the high watermark, as
    /// first proposed
    Timed,
    /// Two a NUMA node; who waited looks for frames whenever it wakes
    Wake,
    /// The defaults: a thread reclaims ahead of need besides
    Default,
}

impl Step {
    /// The settings of its pool, beside [`work::SETTINGS`].
    fn settings(self) -> &'static str {
        match self {
            Step::Off => "background=off,reclaim.max=off",
            Step::Timed => "background=off,reclaim.max=auto,reclaim.recheck=timed",
            Step::Wake => "background=off,reclaim.max=auto,reclaim.recheck=wake",
            Step::Default => "",
        }
    }

    /// What the origin of the mechanism published: hackbench with 120 groups, before and after
    /// "improve page reclaim by throttle", Linux 2008.
    fn reference(self) -> Option<Value> {
        match self {
            Step::Off => Some(json!({
                "benchmark_s": 282.3, "sys_s": 1248, "elapsed_s": 433, "major_faults": 29_026,
                "parallel_reclaimers_max": 1298, "longest_reclaim": 70_394,
            })),
            Step::Timed => Some(json!({
                "benchmark_s": 30.4, "sys_s": 294, "elapsed_s": 118, "major_faults": 3_064,
                "parallel_reclaimers_max": 4, "longest_reclaim": 12_234,
            })),
            Step::Wake | Step::Default => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

const TABLES: &[Table] = &[
    Table {
        title: "Seconds until all messages have arrived, and how much sooner than in the first \
                step of the same round; those of the whole process, which also makes the threads \
                and fills their memory; pages read from the device.",
        columns: &[
            Column {
                title: "benchmark s",
                figure: figures::BENCHMARK,
                format: ratio,
                spread: true,
            },
            Column { title: "x sooner", figure: figures::SOONER, format: ratio, spread: true },
            Column { title: "user s", figure: figures::USER, format: ratio, spread: false },
            Column { title: "sys s", figure: figures::SYS, format: ratio, spread: false },
            Column { title: "elapsed s", figure: figures::ELAPSED, format: ratio, spread: false },
            Column { title: "major faults", figure: figures::MAJOR, format: whole, spread: true },
            Column { title: "less", figure: figures::MAJOR_LESS, format: gain, spread: true },
        ],
    },
    Table {
        title: "Most threads that reclaimed at once, the longest time that one did, and the \
                longest wait for a turn; pages evicted, those of them by threads that faulted, \
                and those that came back within a second; times that a thread reclaimed, and that \
                one had to wait.",
        columns: &[
            Column { title: "at once", figure: figures::PARALLEL, format: whole, spread: true },
            Column {
                title: "longest ms",
                figure: figures::RECLAIM_MS,
                format: short,
                spread: true,
            },
            Column { title: "wait ms", figure: figures::WAIT_MS, format: short, spread: true },
            Column { title: "evicted", figure: figures::EVICTED, format: whole, spread: true },
            Column {
                title: "directly",
                figure: figures::EVICTED_DIRECT,
                format: whole,
                spread: false,
            },
            Column { title: "back in 1 s", figure: figures::REFAULTS, format: whole, spread: true },
            Column { title: "reclaimed", figure: figures::STALLS, format: whole, spread: false },
            Column { title: "waited", figure: figures::THROTTLED, format: whole, spread: false },
        ],
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When a setting does not exist, a measurement fails, or the drawing cannot be written.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let steps = plan(args)?;
    let mut series = measure::rounds(&steps, args.common.rounds, |step| {
        let request = Request {
            settings: step.settings().to_owned(),
            groups: args.groups as usize,
            memory: args.size.0,
            messages: args.messages,
            device: args.device.spec(Bytes(2 * args.size.0)),
        };
        child::ask(NAME, &request, LIMIT)
    })?;
    compare_steps(&mut series);
    let rows: Vec<Row> = steps
        .iter()
        .zip(&series)
        .map(|(step, series)| Row::new(&step.to_string(), &[], step.reference(), series))
        .collect();
    let machine = Machine::this();
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine, args.groups), &plot::charts(&rows))?;
    }
    let conclusion = conclusion::of(&steps, &rows);
    let report =
        Report { bench: NAME, machine, settings: settings(args, &steps, series[0].len()), rows };
    Ok(Findings { report, groups: &[], tables: TABLES, conclusion, failed: None })
}

/// The steps in the order of the ladder.
fn plan(args: &Args) -> Result<Vec<Step>, Failure> {
    if args.size < Config::MEMORY_MIN {
        return Err(Failure::new(format!(
            "a pool has {} at least: measure a larger --size",
            Config::MEMORY_MIN
        )));
    }
    Ok(ladder::chosen(&args.steps))
}

/// Adds what is told by two steps of the same round: each against the first.
fn compare_steps(series: &mut [Series]) {
    let (base, others) = series.split_first_mut().expect("there are steps");
    for series in others {
        compare(series, base, figures::BENCHMARK, figures::SOONER, |here, there| there / here);
        compare(series, base, figures::MAJOR, figures::MAJOR_LESS, |here, there| {
            1.0 - here / there
        });
    }
}

fn settings(args: &Args, steps: &[Step], rounds: usize) -> Value {
    let made_of =
        |step: &Step| if step.settings().is_empty() { "defaults" } else { step.settings() };
    json!({
        "groups": args.groups,
        "threads": args.groups as usize * work::GROUP_THREADS,
        "rounds": rounds,
        "size_bytes": args.size.0,
        "used_bytes": work::used_bytes(args.size.0, args.groups as usize),
        "messages": args.messages,
        "message_bytes": work::MESSAGE_BYTES,
        "device": args.device.to_string(),
        "delivery": "signal",
        "settings": work::SETTINGS,
        "steps": report::by_name(steps.iter().map(|step| (step, made_of(step)))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, sample};

    #[test]
    fn steps_come_in_the_order_of_the_ladder() {
        assert_eq!(plan(&args("--steps wake,off,wake")).unwrap(), [Step::Off, Step::Wake]);
        let names: Vec<String> = plan(&args("")).unwrap().iter().map(Step::to_string).collect();
        assert_eq!(names, ["off", "timed", "wake", "default"]);
        assert!(plan(&args("--size 1M")).unwrap_err().to_string().contains("larger --size"));
        for step in Step::value_variants() {
            Config::default().apply_settings(step.settings()).unwrap();
        }
        Config::default().apply_settings(work::SETTINGS).unwrap();
    }

    #[test]
    fn steps_are_compared_with_the_first() {
        let series = |time: f64, major: f64| -> Series {
            vec![sample([(figures::BENCHMARK, time), (figures::MAJOR, major)])]
        };
        let mut series = [series(9.0, 400.0), series(3.0, 100.0)];
        compare_steps(&mut series);
        assert_eq!(series[0][0].len(), 2);
        assert_eq!((series[1][0][figures::SOONER], series[1][0][figures::MAJOR_LESS]), (3.0, 0.75));
    }
}
