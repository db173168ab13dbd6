//! `swap-w-seq`: how swap slots and the swap cache scale, step by step.
//!
//! The work is swap-w-seq of vm-scalability: threads write anonymous memory in sequence until the
//! budget is used up, and go on, so that every page written pushes one out to the device. Then they
//! read it all back, which frees the slots. All pages go to the device: nothing is compressed, and
//! a page that came back leaves by being written again.
//!
//! [`run`] plans the cases and reads the results; [`step`] is the ladder, [`work`] one measurement,
//! [`figures`] what the counters of a pool tell, [`plot`] a drawing of it.

mod conclusion;
mod figures;
mod plot;
mod step;
mod work;

pub use work::measure_one;

use super::common::Common;
use crate::ladder;
use crate::machine::swap_device::{self, SwapDevice};
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::{self, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, gain, percent, short, whole};
use figures::Phase;
use overspill::base::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use step::Step;
use work::Request;

/// Name of the bench.
pub const NAME: &str = "swap-w-seq";

/// How much larger the device is than what is written to it: slots do not get short.
const DEVICE_SPARE: u64 = 2;
/// Longest that a measurement may take: this, and what a page may take at the very worst, out and
/// in.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(1);

/// Options of `overspill-bench swap-w-seq`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,32")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = swap_device::RAM)]
    device: SwapDevice,
    /// The budget
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    memory: Bytes,
    /// What all threads together write beyond the budget
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    size: Bytes,
    /// Steps to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// Draw the ladder into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// One row.
type Case = ladder::Case<Step>;

/// Four columns for each kind of lock; what the names of their figures begin with tells the phase.
macro_rules! lock_columns {
    ($phase:literal) => {
        lock_columns!(
            $phase,
            "slots" slot_lock, "cluster" cluster_lock, "index" swap_cache_lock, "ages" swap_ages_lock, "zone" zone_lock
        )
    };
    ($phase:literal, $($title:literal $lock:ident),*) => {
        &[$(
            lock_columns!($title, $phase, $lock, "per_1000", short),
            lock_columns!("", $phase, $lock, "contended_ratio", percent),
            lock_columns!("waited", $phase, $lock, "wait_ns", whole),
            lock_columns!("held", $phase, $lock, "short_hold_ns", whole),
        )*]
    };
    ($title:literal, $phase:literal, $lock:ident, $figure:literal, $format:ident) => {
        Column {
            title: $title,
            figure: concat!($phase, "locks.", stringify!($lock), ".", $figure),
            format: $format,
            spread: false,
        }
    };
}

const TABLES: &[Table] = &[
    Table {
        title: "Throughput, and the serial time of the lock that would limit it: the time a page \
                that it is held, divided by the locks of its kind in use side by side.",
        columns: &[
            Column { title: "pages out/s", figure: figures::RATE, format: whole, spread: true },
            Column { title: "so KiB/s", figure: "so_kib_per_s", format: whole, spread: false },
            Column {
                title: "over step before",
                figure: figures::GAIN,
                format: gain,
                spread: false,
            },
            Column { title: "serial ns", figure: figures::SERIAL, format: short, spread: false },
            Column {
                title: "saturates at",
                figure: figures::SATURATION,
                format: whole,
                spread: false,
            },
            Column { title: "swap locks", figure: figures::SHARE, format: percent, spread: false },
            Column { title: "pages in/s", figure: "in.pages_per_s", format: whole, spread: true },
            Column {
                title: "serial ns",
                figure: "in.serial_ns_per_page_max",
                format: short,
                spread: false,
            },
            Column {
                title: "saturates at",
                figure: "in.saturation_pages_per_s",
                format: whole,
                spread: false,
            },
            Column {
                title: "swap locks",
                figure: "in.swap_locks_ratio",
                format: percent,
                spread: false,
            },
        ],
    },
    Table {
        title: "Locks, for 1,000 pages that go out: times taken, share contended, ns waited, ns \
                held (without the holds of more than 50 us, in which the holder was interrupted).",
        columns: lock_columns!(""),
    },
    Table { title: "The same for 1,000 pages that come in.", columns: lock_columns!("in.") },
];

/// Measures and says what was found.
///
/// # Errors
/// When a measurement fails, or the drawing cannot be written.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args);
    let machine = Machine::this();
    let device = args.device.spec(Bytes(DEVICE_SPARE * (args.memory.0 + args.size.0)));
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let request = Request {
            settings: case.step.settings(),
            threads: case.threads,
            memory: args.memory.0,
            beyond: args.size.0,
            device: device.clone(),
        };
        let pages = (args.memory.pages() + args.size.pages()) as u32;
        let mut sample = child::ask(NAME, &request, LIMIT + LIMIT_PER_PAGE * pages)?;
        for phase in [Phase::Out, Phase::In] {
            let (running, bytes) = (case.threads.min(machine.cpus), args.memory.0.min(args.size.0));
            figures::add_serial(&mut sample, phase, case.step, running, bytes);
        }
        Ok(sample)
    })?;
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> =
        cases.iter().zip(&series).map(|(case, series)| row(case, series)).collect();
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine), &plot::charts(&rows))?;
    }
    let conclusion = conclusion::of(&rows, &machine);
    let report = Report {
        bench: NAME,
        machine,
        settings: settings(args, &cases, series[0].len(), &device),
        rows,
    };
    Ok(Findings { report, groups: &["threads"], tables: TABLES, conclusion, failed: None })
}

fn plan(args: &Args) -> Vec<Case> {
    ladder::plan(&ladder::chosen(&args.steps), &args.threads)
}

/// Adds what is told by two steps of the same round and number of threads.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    for (i, case) in cases.iter().enumerate() {
        let mut against = |base: Option<Step>,
                           figure: &str,
                           name: &str,
                           how: fn(f64, f64) -> f64| {
            let at = |step: Step| cases.iter().position(|other| *other == Case { step, ..*case });
            if let Some(base) = base.and_then(at).filter(|base| *base != i) {
                let base = series[base].clone();
                for phase in [Phase::Out, Phase::In] {
                    compare(&mut series[i], &base, &phase.figure(figure), &phase.figure(name), how);
                }
            }
        };
        against(case.step.before(), figures::RATE, figures::GAIN, |here, before| {
            here / before - 1.0
        });
        against(Some(Step::Baseline), figures::SERIAL, figures::SERIAL_LESS, |here, base| {
            base / here
        });
        against(Some(Step::Baseline), figures::SPREAD, figures::SPREAD_LESS, |here, base| {
            base / here
        });
        against(
            Some(Step::Baseline),
            figures::SATURATION,
            figures::SATURATION_MORE,
            |here, base| here / base,
        );
    }
}

fn row(case: &Case, series: &Series) -> Row {
    Row::new(
        &case.step.to_string(),
        &[("threads", json!(case.threads))],
        case.step.reference(),
        series,
    )
}

fn settings(args: &Args, cases: &[Case], rounds: usize, device: &str) -> Value {
    let own = json!({
        "threads": ladder::threads(cases.iter().map(|case| case.threads)),
        "memory_bytes": args.memory.0,
        "size_bytes": args.size.0,
        "device": args.device.told(device),
        "steps": report::by_name(cases.iter().map(|case| (case.step, case.step.settings()))),
    });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, sample};

    #[test]
    fn steps_come_in_the_order_of_the_ladder_for_each_number_of_threads() {
        let cases = plan(&args("--steps slot-caches,baseline,slot-caches --threads 2,1,2"));
        let order: Vec<_> = cases.iter().map(|case| (case.threads, case.step)).collect();
        let steps = [Step::Baseline, Step::SlotCaches];
        let expected: Vec<_> =
            [2, 1].into_iter().flat_map(|threads| steps.map(|step| (threads, step))).collect();
        assert_eq!(order, expected);
        assert_eq!(plan(&args("")).len(), 3 * 7);
        let threads = settings(&args(""), &plan(&args("")), 3, "ram:1")["threads"].clone();
        assert_eq!(threads, json!([1, 2, 32]));
    }

    #[test]
    fn steps_are_compared_with_the_same_number_of_threads() {
        let case = |step, threads| Case { step, threads };
        let cases =
            [case(Step::Baseline, 1), case(Step::ClusterLocks, 1), case(Step::ClusterLocks, 2)];
        let round = |rate: f64, serial: f64| {
            vec![sample([
                (figures::RATE, rate),
                (figures::SERIAL, serial),
                (figures::SATURATION, 1e9 / serial),
            ])]
        };
        let mut series = vec![round(100.0, 800.0), round(110.0, 80.0), round(120.0, 80.0)];
        compare_steps(&cases, &mut series);
        assert!((series[1][0][figures::GAIN] - 0.1).abs() < 1e-9);
        assert_eq!(series[1][0][figures::SERIAL_LESS], 10.0);
        assert!((series[1][0][figures::SATURATION_MORE] - 10.0).abs() < 1e-9);
        assert_eq!(
            (series[0][0].len(), series[2][0].len()),
            (3, 3),
            "they have nothing to be compared with"
        );
    }
}
