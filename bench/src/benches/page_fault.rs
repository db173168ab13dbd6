//! `page-fault`: what a first write to a fresh page costs, and what of that is the page-frame
//! allocator.
//!
//! The work is page_fault1 of will-it-scale: each thread maps memory, writes a byte to each page,
//! unmaps it, again and again. The ladder goes from a zone lock for every frame to the engine as it
//! is by default, beside the kernel's own anonymous memory. Nothing is ever evicted: the budget is
//! larger than what is touched.
//!
//! [`run`] plans the cases and reads the results; [`work`] is one measurement, [`figures`] what is
//! told by the counters of a pool.

mod conclusion;
mod figures;
mod work;

pub use work::measure_one;

use crate::Common;
use crate::ladder;
use crate::measure::child;
use crate::measure::failure::Failure;
use crate::measure::host::{self, Machine};
use crate::measure::{self, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, percent, ratio, short, whole};
use clap::ValueEnum;
use overspill::base::{Bytes, PAGE_SIZE};
use overspill::config::Config;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;
use work::Request;

/// Name of the bench.
pub const NAME: &str = "page-fault";

/// What each thread maps unless `--size` says otherwise, as page_fault1 of will-it-scale has it.
const SIZE: u64 = 128 << 20;
/// What all threads together map at most unless `--size` is given, so that a pass of many threads
/// takes no longer than one of a few and the default run stays below 50 s on two processors.
const TOTAL_BY_DEFAULT: u64 = 256 << 20;
/// Share of the available RAM that all threads together map at most.
const RAM_SHARE: u64 = 2;
/// Longest that a measurement may take: this, and what a page may take at the very worst, twice
/// over (warm-up).
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_micros(200);

/// Options of `overspill-bench page-fault`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,32")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// What each thread maps [default: 128M, and less where all together would map more than 256M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Steps to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    steps: Vec<Step>,
    /// Let threads move between processors; they are pinned otherwise
    #[arg(long)]
    unpinned: bool,
}

/// The ladder, bottom up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The kernel's own anonymous memory, without huge pages
    Kernel,
    /// Each frame is taken and given back under the zone lock
    NoPercpu,
    /// Lists of frames for each processor; what goes back is picked under the zone lock
    PickInside,
    /// What goes back is picked before the zone lock is taken
    PickOutside,
    /// The defaults: sequential faults bring in runs of pages
    Folios,
}

impl Step {
    /// The settings of its pool; the kernel has none.
    fn settings(self) -> Option<&'static str> {
        match self {
            Step::Kernel => None,
            Step::NoPercpu => Some("frame.percpu=off,folio=1"),
            Step::PickInside => Some("frame.percpu=on,frame.pick=inside,folio=1"),
            Step::PickOutside => Some("frame.percpu=on,frame.pick=outside,folio=1"),
            Step::Folios => Some(""),
        }
    }

    /// What the origin of the mechanism published about it.
    fn reference(self) -> Option<Value> {
        // will-it-scale page_fault1, all processors busy, four machines: "free_pcppages_bulk: do
        // not hold lock when picking pages to free", Linux 2018.
        (self == Step::PickOutside)
            .then(|| json!({ "gain_over_pick_inside": [0.056, 0.043, 0.030, 0.064] }))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

/// One row: a step with a number of threads.
#[derive(Clone, Debug)]
struct Case {
    step: Step,
    threads: usize,
    bytes_per_thread: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ladder::Case { step: self.step, threads: self.threads }.fmt(f)
    }
}

const TABLES: &[Table] = &[Table { title: "", columns: COLUMNS }];
const COLUMNS: &[Column] = &[
    Column { title: "faults/s", figure: figures::RATE, format: whole, spread: true },
    Column { title: "x kernel", figure: figures::KERNEL_RATIO, format: ratio, spread: false },
    Column { title: "pages a fault", figure: "pages_per_fault", format: short, spread: false },
    Column { title: "CPU ns a page", figure: figures::CPU, format: whole, spread: false },
    Column { title: "zone locks a 1,000", figure: figures::LOCKS, format: short, spread: false },
    Column { title: "contended", figure: "zone_contended_ratio", format: percent, spread: false },
    Column {
        title: "hold ns a frame",
        figure: "zone_hold_ns_per_frame",
        format: short,
        spread: false,
    },
    Column { title: "a freed frame", figure: figures::FREE_HOLD, format: short, spread: false },
    Column {
        title: "wait ns a frame",
        figure: "zone_wait_ns_per_frame",
        format: short,
        spread: false,
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When a setting does not exist, or a measurement fails.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args, host::available_bytes())?;
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let request = Request {
            step: case.step,
            threads: case.threads,
            bytes: case.bytes_per_thread,
            pinned: !args.unpinned,
        };
        let pages = (case.threads * case.bytes_per_thread / PAGE_SIZE) as u32;
        child::ask(NAME, &request, LIMIT + 2 * LIMIT_PER_PAGE * pages)
    })?;
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> =
        cases.iter().zip(&series).map(|(case, series)| row(case, series)).collect();
    let machine = Machine::this();
    let conclusion = conclusion::of(&rows, &machine, &smaller(args, &cases));
    let report =
        Report { bench: NAME, machine, settings: settings(args, &cases, series[0].len()), rows };
    Ok(Findings { report, groups: &["threads"], tables: TABLES, conclusion, failed: None })
}

/// The cases in the order of their rows: all steps with as many threads, bottom up, then with the
/// next number.
fn plan(args: &Args, available: u64) -> Result<Vec<Case>, Failure> {
    let steps = ladder::chosen(&args.steps);
    for step in &steps {
        Config::default().apply_settings(step.settings().unwrap_or_default()).map_err(|error| {
            Failure::new(error.to_string()).during(format!("the engine cannot do step {step}"))
        })?;
    }
    let case = |ladder::Case { step, threads }| Case {
        step,
        threads,
        bytes_per_thread: bytes_per_thread(args.size, threads, available),
    };
    Ok(ladder::plan(&steps, &args.threads).into_iter().map(case).collect())
}

/// What each of so many threads maps: whole pages, one at least.
fn bytes_per_thread(size: Option<Bytes>, threads: usize, available: u64) -> usize {
    let fits = available / RAM_SHARE;
    let total = if size.is_some() { fits } else { fits.min(TOTAL_BY_DEFAULT) };
    let bytes = size.map_or(SIZE, |size| size.0).min(total / threads as u64) as usize;
    (bytes - bytes % PAGE_SIZE).max(PAGE_SIZE)
}

/// Adds what is told by two steps of the same round and number of threads.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    let at = |step: Step, threads: usize| {
        cases.iter().position(|case| (case.step, case.threads) == (step, threads))
    };
    for (i, case) in cases.iter().enumerate() {
        let mut against = |base: Step, figure: &str, name: &str, how: fn(f64, f64) -> f64| {
            if let Some(base) = at(base, case.threads).filter(|base| *base != i) {
                let base = series[base].clone();
                compare(&mut series[i], &base, figure, name, how);
            }
        };
        against(Step::Kernel, figures::RATE, figures::KERNEL_RATIO, |here, kernel| here / kernel);
        against(Step::Kernel, figures::CPU, figures::KERNEL_CPU_RATIO, |here, kernel| {
            here / kernel
        });
        against(Step::NoPercpu, figures::LOCKS, figures::LOCKS_FEWER, |here, without| {
            without / here
        });
        if case.step == Step::PickOutside {
            against(Step::PickInside, figures::RATE, figures::PICK_GAIN, |here, inside| {
                here / inside - 1.0
            });
            against(Step::PickInside, figures::FREE_HOLD, figures::PICK_HOLD, |here, inside| {
                here / inside
            });
        }
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

/// Numbers of threads that map less than was asked for, with what each maps.
fn smaller(args: &Args, cases: &[Case]) -> Vec<(usize, Bytes)> {
    let wanted = args.size.map_or(SIZE, |size| size.0);
    let sizes = cases.iter().map(|case| (case.threads, Bytes(case.bytes_per_thread as u64)));
    let mut smaller: Vec<_> =
        sizes.filter(|(_, bytes)| bytes.0 + PAGE_SIZE as u64 <= wanted).collect();
    smaller.dedup();
    smaller
}

fn settings(args: &Args, cases: &[Case], rounds: usize) -> Value {
    let made_of = |case: &Case| match case.step.settings() {
        None => "mmap, MADV_NOHUGEPAGE",
        Some("") => "defaults",
        Some(list) => list,
    };
    let own = json!({
        "threads": ladder::threads(cases.iter().map(|case| case.threads)),
        "size_bytes": args.size.map_or(SIZE, |size| size.0),
        "size_bytes_by_threads": report::by_name(cases.iter().map(|case| (case.threads, case.bytes_per_thread))),
        "sizes_scaled_down": !smaller(args, cases).is_empty(),
        "measured_ms": work::MEASURED.as_millis() as u64,
        "pinned": !args.unpinned,
        "steps": report::by_name(cases.iter().map(|case| (case.step, made_of(case)))),
    });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, parse, sample};

    const GIB: u64 = 1 << 30;

    #[test]
    fn steps_come_in_the_order_of_the_ladder_for_each_number_of_threads() {
        let cases = plan(&args("--steps folios,kernel,folios --threads 2,1,2"), GIB).unwrap();
        let order: Vec<_> = cases.iter().map(|case| (case.threads, case.step)).collect();
        assert_eq!(
            order,
            [(2, Step::Kernel), (2, Step::Folios), (1, Step::Kernel), (1, Step::Folios)]
        );
        assert!(parse::<Args>("--threads 0").is_err());
        assert!(parse::<Args>("--steps none").is_err());
    }

    #[test]
    fn sizes_shrink_to_what_fits_and_say_so() {
        let default = args::<Args>("--steps kernel --threads 1,4,32");
        let cases = plan(&default, 64 * GIB).unwrap();
        let mib: Vec<_> = cases.iter().map(|case| case.bytes_per_thread >> 20).collect();
        assert_eq!(mib, [128, 64, 8]);
        assert_eq!(smaller(&default, &cases), [(4, Bytes(64 << 20)), (32, Bytes(8 << 20))]);
        let settings = settings(&default, &cases, 3);
        assert_eq!(
            settings["size_bytes_by_threads"],
            json!({"1": 128 << 20, "4": 64 << 20, "32": 8 << 20})
        );
        assert_eq!(settings["sizes_scaled_down"], json!(true));
        // What is asked for is given, as far as half of the RAM reaches, in whole pages.
        assert_eq!(bytes_per_thread(Some(Bytes(GIB)), 32, 64 * GIB), GIB as usize);
        assert_eq!(bytes_per_thread(Some(Bytes(GIB)), 32, GIB), 16 << 20);
        assert_eq!(bytes_per_thread(Some(Bytes(10_000)), 1, GIB), 8192);
        assert_eq!(bytes_per_thread(Some(Bytes(1)), 1024, 0), PAGE_SIZE);
    }

    #[test]
    fn every_step_has_a_name_and_the_ladder_ends_with_the_defaults() {
        let names: Vec<String> = Step::value_variants().iter().map(Step::to_string).collect();
        assert_eq!(names, ["kernel", "no-percpu", "pick-inside", "pick-outside", "folios"]);
        assert_eq!(serde_json::to_value(Step::NoPercpu).unwrap(), json!("no-percpu"));
        assert_eq!((Step::Kernel.settings(), Step::Folios.settings()), (None, Some("")));
    }

    #[test]
    fn steps_are_compared_with_the_same_number_of_threads() {
        let case = |step, threads| Case { step, threads, bytes_per_thread: PAGE_SIZE };
        let cases = [
            case(Step::Kernel, 1),
            case(Step::NoPercpu, 1),
            case(Step::PickInside, 1),
            case(Step::PickOutside, 1),
            case(Step::PickOutside, 2),
        ];
        let round = |rate: f64, locks: f64, hold: f64| {
            vec![sample([
                (figures::RATE, rate),
                (figures::LOCKS, locks),
                (figures::FREE_HOLD, hold),
            ])]
        };
        let mut series = vec![
            vec![sample([(figures::RATE, 400.0)])],
            round(100.0, 2000.0, 90.0),
            round(200.0, 50.0, 40.0),
            round(210.0, 40.0, 20.0),
            round(220.0, 40.0, 20.0),
        ];
        compare_steps(&cases, &mut series);
        assert!(!series[0][0].contains_key(figures::KERNEL_RATIO));
        assert_eq!(series[2][0][figures::KERNEL_RATIO], 0.5);
        assert_eq!(series[3][0][figures::LOCKS_FEWER], 50.0);
        assert!((series[3][0][figures::PICK_GAIN] - 0.05).abs() < 1e-9);
        assert_eq!(series[3][0][figures::PICK_HOLD], 0.5);
        assert!(!series[2][0].contains_key(figures::PICK_GAIN));
        assert_eq!(series[4][0].len(), 3, "nothing was measured with two threads to compare with");
    }
}
