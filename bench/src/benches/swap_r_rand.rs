//! `swap-r-rand`: how long a read of a page takes that is not in memory, by where it comes from.
//!
//! Threads read single pages at random over four times the budget, of contents as programs have
//! them, so that some pages are in memory, some in the swap cache, some compressed and some on the
//! device. Nothing is written, which shows what readahead costs where it cannot help, and what it
//! saves to keep the slots of clean pages.
//!
//! [`run`] plans the cases and reads the results; [`work`] is one measurement, [`contents`] what
//! pages hold, [`figures`] what is made of the times.

mod contents;
mod figures;
mod work;

pub use work::measure_one;

use crate::Common;
use crate::ladder;
use crate::machine::swap_device::{self, SwapDevice};
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{self, Series, compare, verdict};
use crate::report::{
    self, Column, Findings, Report, Row, Table, gain, percent, ratio, short, whole,
};
use clap::ValueEnum;
use overspill::base::Bytes;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;
use work::Request;

/// Name of the bench.
pub const NAME: &str = "swap-r-rand";

/// What is read from, in units of the budget.
const OVERCOMMIT: u64 = 4;
/// How much larger the device is than what is read from.
const DEVICE_SPARE: u64 = 2;
/// Longest that a measurement may take: this, and what a page or a read may take at the very worst.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_READ: Duration = Duration::from_millis(1);

/// Options of `overspill-bench swap-r-rand`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Numbers of threads to measure with; where a page came from is told for one thread only
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = swap_device::RAM)]
    device: SwapDevice,
    /// The budget; four times as much is read from
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    memory: Bytes,
    /// Reads, of all threads together; a percentile that has too few reads beyond it is not told
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    reads: u64,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
enum Step {
    /// One page is read at a time; a page that was read gives its slot up
    Plain,
    /// Pages around a slot are read with it
    Readahead,
    /// A page that was read keeps its slot until it is written to
    Clean,
    /// Both
    ReadaheadClean,
}

impl Step {
    fn settings(self) -> &'static str {
        match self {
            Step::Plain => "readahead=1,clean=off",
            Step::Readahead => "readahead=8,clean=off",
            Step::Clean => "readahead=1,clean=on",
            Step::ReadaheadClean => "readahead=8,clean=on",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

/// One row.
type Case = ladder::Case<Step>;

const TABLES: &[Table] = &[
    Table {
        title: "All reads, those of pages in memory included, and what the device did for them.",
        columns: &[
            Column { title: "reads/s", figure: figures::RATE, format: whole, spread: true },
            Column { title: "p50 ns", figure: "any.p50_ns", format: whole, spread: false },
            Column { title: "p99 ns", figure: "any.p99_ns", format: whole, spread: false },
            Column { title: "p99.9 ns", figure: "any.p999_ns", format: whole, spread: false },
            Column {
                title: "written a page read",
                figure: figures::WRITTEN,
                format: ratio,
                spread: false,
            },
            Column {
                title: "pages a read",
                figure: "pages_read_per_operation",
                format: short,
                spread: false,
            },
            Column {
                title: "compressed to",
                figure: "compressed_size_ratio",
                format: percent,
                spread: false,
            },
            Column {
                title: "readahead wanted",
                figure: "readahead_hit_ratio",
                format: percent,
                spread: false,
            },
        ],
    },
    Table {
        title: "By where the page came from, with one thread: share of all reads, and ns.",
        columns: &[
            Column { title: "minor", figure: "minor.ratio", format: percent, spread: false },
            Column { title: "p50", figure: "minor.p50_ns", format: whole, spread: false },
            Column { title: "p99", figure: "minor.p99_ns", format: whole, spread: false },
            Column { title: "p99.9", figure: "minor.p999_ns", format: whole, spread: false },
            Column {
                title: "compressed",
                figure: "compressed.ratio",
                format: percent,
                spread: false,
            },
            Column { title: "p50", figure: "compressed.p50_ns", format: whole, spread: false },
            Column { title: "p99", figure: "compressed.p99_ns", format: whole, spread: false },
            Column { title: "p99.9", figure: "compressed.p999_ns", format: whole, spread: false },
            Column { title: "device", figure: "device.ratio", format: percent, spread: false },
            Column { title: "p50", figure: "device.p50_ns", format: whole, spread: false },
            Column { title: "p99", figure: "device.p99_ns", format: whole, spread: false },
            Column { title: "p99.9", figure: "device.p999_ns", format: whole, spread: false },
        ],
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When a measurement fails.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args);
    let bytes = Bytes(OVERCOMMIT * args.memory.0);
    let device = args.device.spec(Bytes(DEVICE_SPARE * bytes.0));
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let request = Request {
            settings: case.step.settings().to_owned(),
            threads: case.threads,
            memory: args.memory.0,
            bytes: bytes.0,
            reads: args.reads,
            device: device.clone(),
        };
        let reads = (2 * bytes.pages() + args.reads).min(u32::MAX.into()) as u32;
        child::ask(NAME, &request, LIMIT + LIMIT_PER_READ * reads)
    })?;
    compare_steps(&cases, &mut series);
    let row = |(case, series): (&Case, &Series)| {
        Row::new(&case.step.to_string(), &[("threads", json!(case.threads))], None, series)
    };
    let rows: Vec<Row> = cases.iter().zip(&series).map(row).collect();
    let conclusion = conclusion(&rows);
    let report = Report {
        bench: NAME,
        machine: Machine::this(),
        settings: settings(args, series[0].len(), &device),
        rows,
    };
    Ok(Findings { report, groups: &["threads"], tables: TABLES, conclusion, failed: None })
}

fn plan(args: &Args) -> Vec<Case> {
    ladder::plan(Step::value_variants(), &args.threads)
}

/// Adds what each step gains over the plain one in the same round.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    for (i, case) in cases.iter().enumerate().filter(|(_, case)| case.step != Step::Plain) {
        let plain = Case { step: Step::Plain, ..*case };
        if let Some(plain) = cases.iter().position(|other| *other == plain) {
            let plain = series[plain].clone();
            compare(&mut series[i], &plain, figures::RATE, figures::GAIN, |here, plain| {
                here / plain - 1.0
            });
        }
    }
}

/// What the rows of the first number of threads show, in sentences.
fn conclusion(rows: &[Row]) -> String {
    let figure = |step: Step, name: &str| {
        let row = rows.iter().find(|row| row.step == step.to_string())?;
        row.figures.get(name).copied()
    };
    let median = |step: Step, name: &str| figure(step, name).map(|spread| spread.median);
    let mut sentences = Vec::new();
    let latencies: Vec<String> = figures::Source::ALL
        .iter()
        .filter_map(|source| {
            Some((source.name(), median(Step::Plain, &format!("{}.p50_ns", source.name()))?))
        })
        .map(|(name, ns)| format!("{name} {} ns", whole(ns)))
        .collect();
    if !latencies.is_empty() {
        sentences.push(format!(
            "A read takes, by where its page is (medians): {}.",
            latencies.join(", ")
        ));
    }
    if let (Some(off), Some(on)) =
        (median(Step::Plain, figures::WRITTEN), median(Step::Clean, figures::WRITTEN))
    {
        sentences.push(format!(
            "For a page read from the device {} are written, and {} where pages keep their slots \
             while they are clean.",
            ratio(off),
            ratio(on)
        ));
    }
    for (step, what) in [
        (Step::Readahead, "Readahead, which cannot help here"),
        (Step::Clean, "Keeping slots"),
        (Step::ReadaheadClean, "Both together"),
    ] {
        if let Some(change) = figure(step, figures::GAIN) {
            sentences.push(format!("{what}: reads {}, {}.", gain(change.median), verdict(change)));
        }
    }
    sentences.join(" ")
}

fn settings(args: &Args, rounds: usize, device: &str) -> Value {
    let own = json!({
        "threads": args.threads,
        "memory_bytes": args.memory.0,
        "size_bytes": OVERCOMMIT * args.memory.0,
        "reads": args.reads,
        "device": args.device.told(device),
        "steps": report::by_name(Step::value_variants().iter().map(|step| (step, step.settings()))),
    });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use overspill::config::Config;

    #[test]
    fn every_step_is_measured_for_each_number_of_threads_and_the_engine_has_its_settings() {
        let cases = plan(&testing::args("--threads 2,1,2"));
        let order: Vec<_> =
            cases.iter().map(|case| (case.threads, case.step.to_string())).collect();
        let steps = ["plain", "readahead", "clean", "readahead-clean"];
        let expected: Vec<_> =
            [2, 1].into_iter().flat_map(|n| steps.map(|step| (n, step.to_owned()))).collect();
        assert_eq!(order, expected);
        for step in Step::value_variants() {
            Config::default().apply_settings(step.settings()).unwrap();
        }
    }

    #[test]
    fn the_conclusion_tells_what_was_measured() {
        let row = |step: Step, figures: &[(&str, f64)]| {
            let sample = testing::sample(figures.iter().copied());
            Row::new(&step.to_string(), &[("threads", json!(1))], None, &vec![sample])
        };
        let plain = [
            ("minor.p50_ns", 2000.0),
            ("device.p50_ns", 40_000.0),
            (figures::WRITTEN, 0.9),
            (figures::RATE, 10.0),
        ];
        let rows = [
            row(Step::Plain, &plain),
            row(Step::Readahead, &[(figures::GAIN, -0.1)]),
            row(Step::Clean, &[(figures::WRITTEN, 0.1)]),
        ];
        assert_eq!(
            conclusion(&rows),
            "A read takes, by where its page is (medians): minor 2,000 ns, device 40,000 ns. For \
             a page read from the device 0.90 are written, and 0.10 where pages keep their slots \
             while they are clean. Readahead, which cannot help here: reads -10.0 %, too few \
             rounds to tell."
        );
        assert_eq!(conclusion(&rows[3..]), "");
    }
}
