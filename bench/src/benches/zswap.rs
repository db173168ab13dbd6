//! `zswap`: what it takes to forget a slot that is given back, and which pages the compressed tier
//! is worth keeping.
//!
//! Pages of different contents are swapped out and in again, which gives their slots back, and each
//! slot that is given back asks the tier to forget it: with the tier on and off, for each setting
//! of `zswap.invalidate`. Pages come in in sequence, and others singly at random. Besides, pages
//! are accessed at random, to see what it is worth to keep the compressed copies of pages that were
//! read, and to keep pages that do not compress.
//!
//! [`run`] plans the cases and reads the results; [`case`] is what is measured, [`work`] one
//! measurement, [`figures`] what the counters of a pool tell, [`plot`] a drawing.

mod case;
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
use crate::measure::host::{self, Machine};
use crate::measure::{self, Series, compare};
use crate::report::{self, Column, Findings, Report, Row, Table, gain, percent, short, whole};
use case::{Case, Step, Tier, Work};
use figures::Phase;
use overspill::base::Bytes;
use overspill::config::Config;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use work::Request;

/// Name of the bench.
pub const NAME: &str = "zswap";

/// How much larger the device is than what is written to it: slots do not get short.
const DEVICE_SPARE: u64 = 2;
/// What is accessed at random, as a share of what is swapped out and in as a whole.
const ACCESSED: u64 = 2;
/// Longest that a measurement may take: this, and what a page may take at the very worst, out and
/// in.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_PAGE: Duration = Duration::from_millis(1);

/// Options of `overspill-bench zswap`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is swapped out, and in in sequence; a quarter more comes in singly
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// Threads among which the pages are divided that come in; accesses at random are those of one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// What to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cases: Vec<Work>,
    /// Where pages go: `ram` (memory that takes as long as a fast disk) or a directory, file or
    /// block device; both with options after a comma, as in `ram,latency=50us,bandwidth=500M`
    #[arg(long, value_name = "DEVICE", default_value = swap_device::RAM)]
    device: SwapDevice,
    /// Draw times and locks into a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A column without its spread.
const fn column(title: &'static str, figure: &'static str, format: fn(f64) -> String) -> Column {
    Column { title, figure, format, spread: false }
}

/// What is told of the tier's locks, each time under a title and with what the names of the phase's
/// figures begin with; other columns behind the locks, and behind all.
macro_rules! lock_columns {
    ($($title:literal $phase:literal [$($locks:expr),*] [$($all:expr),*]),*) => {
        &[$(
            column($title, concat!($phase, "locks"), short),
            column("", concat!($phase, "contended_ratio"), percent),
            column("waited", concat!($phase, "wait_ns"), whole),
            column("held", concat!($phase, "short_hold_ns"), whole),
            $($locks,)*
            column("look-ups", concat!($phase, "lookups"), short),
            column("freed", concat!($phase, "freed"), short),
            $($all,)*
        )*]
    };
}

const TABLES: &[Table] = &[
    Table {
        title: "Microseconds for all pages, and by how much less a page than the first step in \
                the same round: written, so that they leave; read in sequence, with the processor \
                time of the threads that read; a quarter as many read singly at random.",
        columns: &[
            Column { title: "out us", figure: figures::OUT_US, format: whole, spread: false },
            Column { title: "less", figure: figures::OUT_FASTER, format: gain, spread: false },
            Column { title: "in us", figure: figures::IN_US, format: whole, spread: true },
            Column { title: "less", figure: figures::IN_FASTER, format: gain, spread: true },
            Column { title: "cpu us", figure: figures::CPU_US, format: whole, spread: false },
            Column { title: "less", figure: figures::CPU_FASTER, format: gain, spread: true },
            Column { title: "singly us", figure: figures::SINGLE_US, format: whole, spread: false },
            Column { title: "less", figure: figures::SINGLE_FASTER, format: gain, spread: false },
            Column { title: "cpu us", figure: "single.cpu_us", format: whole, spread: false },
            Column {
                title: "less",
                figure: figures::SINGLE_CPU_FASTER,
                format: gain,
                spread: true,
            },
        ],
    },
    Table {
        title: "Locks of the compressed tier, for 1,000 pages that come in: times taken, share \
                contended, ns waited, ns held (without the holds of more than 50 us, in which the \
                holder was interrupted), share of the threads' processor time, look-ups, entries \
                freed, pages unpacked (others were read from the device); in sequence, then \
                singly.",
        columns: lock_columns!(
            "locks" "" [column("time", figures::SHARE, percent)] [column("unpacked", "unpacked", short)],
            "singly: locks" "single." [column("time", "single.locks_ratio", percent)]
                [column("unpacked", "single.unpacked", short)]
        ),
    },
    Table {
        title: "The same for 1,000 pages that go out; and what share of all pages was out when \
                they began to be read, and of those compressed.",
        columns: lock_columns!(
            "locks" "out." [] [
                column("out", figures::OUT, percent),
                column("compressed", figures::COMPRESSED, percent)
            ]
        ),
    },
    Table {
        title: "Accesses: ns and ns of processor time an access, and by how much less than the \
                first step; for 1,000 accesses the pages that were unpacked and packed, read and \
                written, and that left clean or were written to while they were; slots of devices \
                in use at the end, as a share of the pages.",
        columns: &[
            Column { title: "ns", figure: figures::NS, format: whole, spread: true },
            Column { title: "less", figure: figures::FASTER, format: gain, spread: true },
            Column { title: "cpu ns", figure: figures::CPU_NS, format: whole, spread: true },
            Column { title: "less", figure: figures::CPU_LESS, format: gain, spread: true },
            Column { title: "faults", figure: "per_1000.faults", format: short, spread: false },
            Column { title: "unpacked", figure: "per_1000.unpacked", format: short, spread: false },
            Column { title: "packed", figure: "per_1000.packed", format: short, spread: false },
            Column { title: "read", figure: "per_1000.read", format: short, spread: false },
            Column { title: "written", figure: "per_1000.written", format: short, spread: false },
            Column {
                title: "left clean",
                figure: "per_1000.left_clean",
                format: short,
                spread: false,
            },
            Column {
                title: "written to",
                figure: "per_1000.written_clean",
                format: short,
                spread: false,
            },
            Column { title: "slots", figure: figures::SLOTS, format: percent, spread: false },
        ],
    },
];

/// Measures and says what was found.
///
/// # Errors
/// When there is not memory enough, a measurement fails, or the drawing cannot be written.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args);
    let machine = Machine::this();
    let device = args.device.spec(Bytes(DEVICE_SPARE * written(args.size)));
    enough_memory(args, host::available_bytes())?;
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        let request = request(*case, args, &device);
        let pages = (2 * Bytes(written(args.size)).pages()).min(u32::MAX.into()) as u32;
        child::ask(NAME, &request, LIMIT + LIMIT_PER_PAGE * pages)
    })?;
    compare_steps(&cases, &mut series);
    let rows: Vec<Row> =
        cases.iter().zip(&series).map(|(case, series)| row(case, series)).collect();
    if let Some(path) = &args.plot {
        crate::plot::draw(path, &plot::title(&machine), &plot::charts(&rows))?;
    }
    let conclusion = conclusion::of(&cases, &rows);
    let report =
        Report { bench: NAME, machine, settings: settings(args, series[0].len(), &device), rows };
    Ok(Findings { report, groups: &["case", "tier"], tables: TABLES, conclusion, failed: None })
}

/// The cases in the order of their rows: those that are compared one after the other.
fn plan(args: &Args) -> Vec<Case> {
    let steps =
        |work: Work| work.steps().iter().map(move |&(tier, step)| Case { work, tier, step });
    ladder::chosen(&args.cases).into_iter().flat_map(steps).collect()
}

/// What is written in all where pages are swapped out and in as a whole.
fn written(size: Bytes) -> u64 {
    size.0 + size.0 / work::SINGLE
}

/// A budget that is grown so that all pages come in, and a RAM device that holds them, must be
/// there.
fn enough_memory(args: &Args, available: u64) -> Result<(), Failure> {
    let needed = written(args.size) * if args.device.is_ram() { 3 } else { 2 };
    if needed > available {
        return Err(Failure::new(format!(
            "a --size of {} needs {} of memory and {} is available: give a smaller --size",
            args.size,
            Bytes(needed),
            Bytes(available)
        )));
    }
    Ok(())
}

fn request(case: Case, args: &Args, device: &str) -> Request {
    let Args { size, threads, .. } = *args;
    let (all, accessed) = (written(size), size.0 / ACCESSED);
    let (bytes, memory, rest) = match (case.work.writes_of_16(), case.work, case.tier) {
        (Some(_), work, _) if work.is_beyond() => (size.0, size.0 / 4, size.0 / 4),
        // So that the tier, of 9/10 of it, is less than half full, and has room for copies of pages
        // in memory.
        (Some(_), ..) => (accessed, accessed / 10 * 9, accessed),
        // So that the tier holds all pages, 2/5 of their size.
        (None, Work::Heap, Tier::On) => (size.0, all / 16 * 9, all / 2),
        (None, ..) => (size.0, all / 8, all / 32),
    };
    let [memory, rest] = [memory, rest].map(|bytes| bytes.max(Config::MEMORY_MIN.0));
    let (settings, device) = (case.settings(), device.to_owned());
    Request { work: case.work, settings, threads: threads as usize, memory, rest, bytes, device }
}

/// Adds what is told by two steps of the same round.
fn compare_steps(cases: &[Case], series: &mut [Series]) {
    for (i, case) in cases.iter().enumerate() {
        let mut against = |base: Step, figure: &str, name: &str, how: fn(f64, f64) -> f64| {
            if let Some(base) =
                cases.iter().position(|other| *other == Case { step: base, ..*case })
            {
                let base = series[base].clone();
                compare(&mut series[i], &base, figure, name, how);
            }
        };
        if let Some(base) = case.step.base() {
            // By page: not the same number of pages is out each time.
            let page_ns = |phase: Phase| phase.figure(figures::PAGE_NS);
            let page_cpu_ns = |phase: Phase| phase.figure(figures::PAGE_CPU_NS);
            for (figure, name) in [
                (page_ns(Phase::Out), figures::OUT_FASTER),
                (page_ns(Phase::In), figures::IN_FASTER),
                (page_ns(Phase::Single), figures::SINGLE_FASTER),
                (page_cpu_ns(Phase::In), figures::CPU_FASTER),
                (page_cpu_ns(Phase::Single), figures::SINGLE_CPU_FASTER),
                (figures::NS.to_owned(), figures::FASTER),
                (figures::CPU_NS.to_owned(), figures::CPU_LESS),
            ] {
                against(base, &figure, name, |here, base| 1.0 - here / base);
            }
        }
        if case.step == Step::EmptyLookup {
            for phase in [Phase::In, Phase::Single] {
                let [figure, name] =
                    [figures::LOCKS, figures::OF_EMPTY].map(|name| phase.figure(name));
                against(Step::Empty, &figure, &name, |here, empty| here / empty);
            }
        }
    }
}

fn row(case: &Case, series: &Series) -> Row {
    let labels = [("case", json!(case.work.to_string())), ("tier", json!(case.tier.to_string()))];
    Row::new(case.step.name(), &labels, case.reference(), series)
}

fn settings(args: &Args, rounds: usize, device: &str) -> Value {
    let own = json!({
        "size_bytes": args.size.0,
        "single_bytes": args.size.0 / work::SINGLE,
        "accessed_bytes": args.size.0 / ACCESSED,
        "device": args.device.told(device),
        "threads": args.threads,
        "steps": report::by_name(Step::ALL.iter().map(|step| (step.name(), step.settings()))),
        "tier": report::by_name([Tier::On, Tier::Off].map(|tier| (tier, tier.settings()))),
    });
    report::settings(rounds, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{args, sample};

    #[test]
    fn what_is_compared_is_measured_one_after_the_other() {
        let cases = plan(&args("--cases read-mostly,zero,read-mostly"));
        let order: Vec<String> = cases.iter().map(Case::to_string).collect();
        let of = |work: &str, tier: &str, steps: &[&str]| -> Vec<String> {
            steps.iter().map(|step| format!("{work}, tier {tier}, {step}")).collect()
        };
        let three = ["always", "empty", "empty+lookup"];
        let mut expected = of("zero", "off", &three);
        expected.extend(of("zero", "on", &[&three[..], &["same-filled"]].concat()));
        expected.extend(of("read-mostly", "on", &["keep=off", "keep=on", "keep=auto"]));
        assert_eq!(order, expected);
        assert_eq!(plan(&args("")).len(), 4 * 6 + 1 + 3 + 2 * 3 + 2 + 2 * 3);
    }

    #[test]
    fn steps_are_compared_with_those_of_the_same_case_and_tier() {
        let cases = plan(&args("--cases zero,random"));
        let figures = [(figures::PAGE_NS, 1000.0), (figures::LOCKS, 10.0)];
        let round = |i: usize| sample(figures.map(|(name, value)| (name, value / (i + 1) as f64)));
        let mut series: Vec<Series> = (0..cases.len()).map(|i| vec![round(i)]).collect();
        compare_steps(&cases, &mut series);
        let at = |i: usize, name: &str| series[i][0].get(name).copied();
        assert_eq!((at(0, figures::IN_FASTER), at(3, figures::IN_FASTER)), (None, None));
        assert_eq!(
            (at(1, figures::IN_FASTER), at(4, figures::IN_FASTER)),
            (Some(0.5), Some(1.0 - 4.0 / 5.0))
        );
        assert_eq!((at(1, figures::OF_EMPTY), at(5, figures::OF_EMPTY)), (None, Some(5.0 / 6.0)));
    }

    #[test]
    fn what_does_not_fit_the_machine_is_refused_in_a_sentence() {
        assert!(enough_memory(&args("--size 1G"), 4 << 30).is_ok());
        let failure = enough_memory(&args("--size 1G"), 3 << 30).unwrap_err().to_string();
        assert!(
            failure.starts_with("a --size of 1") && failure.ends_with("give a smaller --size"),
            "{failure}"
        );
        assert!(enough_memory(&args("--size 1G --device /d"), 3 << 30).is_ok());
    }
}
