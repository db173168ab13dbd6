//! `zswap`: what it takes to forget a slot that is given back, and which pages the compressed tier
//! is worth keeping ([`crate::work::zswap`]).
//!
//! Pages of different contents are swapped out and in again, which gives their slots back, and each
//! slot that is given back asks the tier to forget it: with the tier on and off, for each setting
//! of `zswap.invalidate`. Pages come in in sequence, and others singly at random. Besides, pages
//! are accessed at random, to see what it is worth to keep the compressed copies of pages that were
//! read, and to keep pages that do not compress.

use super::common::Common;
use crate::machine::room;
use crate::machine::swap_device::{self, SwapDevice};
use crate::measure::{Failure, child};
use crate::model::declare::{
    Base, Goal, How, Ladder, Rows, Step, Table, Title, Verdict, chart, col, compare, verdict, wide,
};
use crate::model::findings::{Findings, settings};
use crate::model::format::{gain, percent, short, whole};
use crate::model::ladder::chosen;
use crate::model::row::{Case, Row, by_name};
use crate::render::plot;
use crate::work::zswap::pages::Work;
use crate::work::zswap::{self as work, Request, figures};
use overspill::config::Config;
use overspill::units::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

pub use crate::work::zswap::measure_one;

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

/// By how much less time, or processor time, a page takes than with the step that it is compared
/// with: out, in, and in singly.
const OUT_FASTER: &str = "swapout_faster";
const IN_FASTER: &str = "swapin_faster";
const SINGLE_FASTER: &str = "single_faster";
const CPU_FASTER: &str = "cpu_faster";
const SINGLE_CPU_FASTER: &str = "single_cpu_faster";
/// The same of an access.
const FASTER: &str = "faster";
const CPU_LESS: &str = "cpu_less";
/// Locks in units of those that are taken where only empty ranges are passed over.
const OF_EMPTY: &str = "locks_of_empty";
const SINGLE_OF_EMPTY: &str = "single.locks_of_empty";

/// What swapping zeros in is to gain: so much time or processor time, as its origin did, or all
/// locks.
const ZEROS_GAIN: Goal = Goal::GainOf(0.039);
const OFF: Rows = Rows::With(&[("case", "zero"), ("tier", "off")]);
const ON: Rows = Rows::With(&[("case", "zero"), ("tier", "on")]);
/// Where, of many slots, few have an entry.
const FEW: Rows = Rows::With(&[("case", "reviewers"), ("tier", "on")]);

const fn of(
    rows: Rows,
    step: &'static [&'static str],
    figure: &'static str,
    says: &'static str,
    goal: Goal,
) -> Verdict {
    verdict(step, figure, says, goal).of(rows)
}

/// Microseconds that swapping 2 GiB of zeros in took at the origin.
fn origin(us: f64) -> Value {
    json!({
        "bytes": 2u64 << 30, "swapin_us": us, "swapin_faster_than_always": 1.0 - us / 1_905_000.0,
    })
}

/// What is measured, and what is told of it.
pub static LADDER: Ladder = Ladder {
    bench: NAME,
    steps: &[
        Step::new("always", "The lock is taken for every slot that is given back")
            .set(
                "zswap.slots=device,clean=off,zswap.keep=off,same_filled=off,\
                 zswap.invalidate=always",
            )
            .published(|| origin(1_905_000.0)),
        Step::new("empty", "Not if its range is empty")
            .from("always", "zswap.invalidate=empty")
            .published(|| origin(1_831_000.0)),
        Step::new("empty+lookup", "Nor if it has no entry")
            .from("always", "zswap.invalidate=empty+lookup")
            .published(|| origin(1_838_000.0)),
        Step::new("slots=own", "Only pages that go to the device have slots of it")
            .from("always", "zswap.slots=own,zswap.invalidate=empty+lookup"),
        Step::new("same-filled", "Zeros get no slot")
            .from("always", "same_filled=on,zswap.invalidate=empty+lookup"),
        Step::new("keep=off", "A page that is read gives its compressed copy up")
            .set("clean=off,zswap.keep=off"),
        Step::new("keep=on", "It keeps it until it is written to")
            .from("keep=off", "zswap.keep=on"),
        Step::new("keep=auto", "It does while there are many compressed pages for each in memory")
            .from("keep=off", "zswap.keep=auto"),
        Step::new("incompressible=device", "What does not compress goes to the device")
            .set("clean=off,zswap.keep=off,zswap.incompressible=device"),
        Step::new("incompressible=keep", "It stays in the tier as it is")
            .from("incompressible=device", "zswap.incompressible=keep"),
        Step::new("recompress=off", "What leaves the tier has a slot for itself")
            .set("compressed=20,zswap.recompress=off"),
        Step::new("recompress=zstd:1", "It is compressed more densely before, while it is cold")
            .from("recompress=off", "zswap.recompress=zstd:1"),
    ],
    groups: &["case", "tier"],
    tables: &[
        Table {
            title: "Microseconds for all pages, and by how much less a page than the first step \
                    in the same round: written, so that they leave; read in sequence, with the \
                    processor time of the threads that read; a quarter as many read singly at \
                    random.",
            columns: &[
                col("out us", figures::OUT_US, whole),
                col("less", OUT_FASTER, gain),
                wide("in us", figures::IN_US, whole),
                wide("less", IN_FASTER, gain),
                col("cpu us", figures::CPU_US, whole),
                wide("less", CPU_FASTER, gain),
                col("singly us", figures::SINGLE_US, whole),
                col("less", SINGLE_FASTER, gain),
                col("cpu us", "single.cpu_us", whole),
                wide("less", SINGLE_CPU_FASTER, gain),
            ],
        },
        Table {
            title: "Locks of the compressed tier, for 1,000 pages that come in: times taken, \
                    share contended, ns waited, ns held (without the holds of more than 50 us, in \
                    which the holder was interrupted), share of the threads' processor time, \
                    look-ups, entries freed, pages unpacked (others were read from the device); \
                    in sequence, then singly.",
            columns: &[
                col("locks", figures::LOCKS, short),
                col("", "contended_ratio", percent),
                col("waited", "wait_ns", whole),
                col("held", "short_hold_ns", whole),
                col("time", figures::SHARE, percent),
                col("look-ups", figures::LOOKUPS, short),
                col("freed", figures::FREED, short),
                col("unpacked", "unpacked", short),
                col("singly: locks", "single.locks", short),
                col("", "single.contended_ratio", percent),
                col("waited", "single.wait_ns", whole),
                col("held", "single.short_hold_ns", whole),
                col("time", "single.locks_ratio", percent),
                col("look-ups", "single.lookups", short),
                col("freed", "single.freed", short),
                col("unpacked", "single.unpacked", short),
            ],
        },
        Table {
            title: "The same for 1,000 pages that go out; and what share of all pages was out \
                    when they began to be read, and of those compressed.",
            columns: &[
                col("locks", "out.locks", short),
                col("", "out.contended_ratio", percent),
                col("waited", "out.wait_ns", whole),
                col("held", "out.short_hold_ns", whole),
                col("look-ups", "out.lookups", short),
                col("freed", "out.freed", short),
                col("out", figures::OUT, percent),
                col("compressed", figures::COMPRESSED, percent),
            ],
        },
        Table {
            title: "Accesses: ns and ns of processor time an access, and by how much less than \
                    the first step; for 1,000 accesses the pages that were unpacked and packed, \
                    read and written, and that left clean or were written to while they were; \
                    slots of devices in use at the end, as a share of the pages.",
            columns: &[
                wide("ns", figures::NS, whole),
                wide("less", FASTER, gain),
                wide("cpu ns", figures::CPU_NS, whole),
                wide("less", CPU_LESS, gain),
                col("faults", "per_1000.faults", short),
                col("unpacked", "per_1000.unpacked", short),
                col("packed", "per_1000.packed", short),
                col("read", "per_1000.read", short),
                col("written", "per_1000.written", short),
                col("left clean", "per_1000.left_clean", short),
                col("written to", "per_1000.written_clean", short),
                col("slots", figures::SLOTS, percent),
            ],
        },
    ],
    // By page: not the same number of pages is out each time.
    comparisons: &[
        compare(OUT_FASTER, How::Less, "out.ns_per_page", Base::From),
        compare(IN_FASTER, How::Less, "ns_per_page", Base::From),
        compare(SINGLE_FASTER, How::Less, "single.ns_per_page", Base::From),
        compare(CPU_FASTER, How::Less, "cpu_ns_per_page", Base::From),
        compare(SINGLE_CPU_FASTER, How::Less, "single.cpu_ns_per_page", Base::From),
        compare(FASTER, How::Less, figures::NS, Base::From),
        compare(CPU_LESS, How::Less, figures::CPU_NS, Base::From),
        compare(OF_EMPTY, How::Times, figures::LOCKS, Base::Step("empty")).only("empty+lookup"),
        compare(SINGLE_OF_EMPTY, How::Times, "single.locks", Base::Step("empty"))
            .only("empty+lookup"),
    ],
    verdicts: &[
        of(OFF, &["empty+lookup"], IN_FASTER, "less time in sequence", ZEROS_GAIN),
        of(OFF, &["empty+lookup"], CPU_FASTER, "less processor time", ZEROS_GAIN),
        of(OFF, &["empty+lookup"], figures::LOCKS, "locks a 1,000 pages", Goal::AtMost(0.0)),
        of(ON, &["empty+lookup"], IN_FASTER, "less time in sequence", ZEROS_GAIN),
        of(ON, &["empty+lookup"], CPU_FASTER, "less processor time", ZEROS_GAIN),
        of(ON, &["empty+lookup"], figures::LOCKS, "locks a 1,000 pages", Goal::AtMost(0.0)),
        of(ON, &["same-filled"], IN_FASTER, "less time in sequence", ZEROS_GAIN),
        of(ON, &["same-filled"], CPU_FASTER, "less processor time", ZEROS_GAIN),
        of(ON, &["same-filled"], figures::LOCKS, "locks a 1,000 pages", Goal::AtMost(0.0)),
        of(ON, &["same-filled"], "out.locks", "locks a 1,000 pages out", Goal::AtMost(0.0)),
        of(ON, &["same-filled"], "single.locks", "locks a 1,000 singly", Goal::AtMost(0.0)),
        of(FEW, &["empty+lookup"], OF_EMPTY, "of the locks of empty", Goal::AtMost(0.01)),
        of(FEW, &["empty+lookup"], SINGLE_OF_EMPTY, "of them, singly", Goal::AtMost(0.01)),
        verdict(&[], FASTER, "less time an access", Goal::Gain),
        verdict(&[], CPU_LESS, "less processor time an access", Goal::Gain),
    ],
    charts: &[
        chart(
            Title::Is("All pages swapped in in sequence, by contents, tier on or off"),
            figures::IN_US,
            "us",
            by_case,
        ),
        chart(Title::Is("Locks that this takes"), figures::LOCKS, "a 1,000 pages", by_case),
        chart(Title::Is("The same, singly at random"), "single.locks", "a 1,000 pages", by_case),
        chart(Title::Is("Accesses at random"), figures::NS, "ns an access", by_case),
    ],
    origin: "2 GiB of zeros, \"mm/zswap: avoid touching XArray for unnecessary invalidation\", \
             Linux 2024 (look-up only: 1,875,000 us)",
};

fn by_case(row: &Row) -> (String, String) {
    (row.told(&["case", "tier"]), row.step.clone())
}

/// Whether there is a compressed tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    /// There is.
    On,
    /// All pages go to the device.
    Off,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Tier::On => "on",
            Tier::Off => "off",
        }
    }

    /// The settings of a pool. It may take most of the budget, so that it takes whatever
    /// compresses.
    fn settings(self) -> &'static str {
        match self {
            Tier::On => "compressed=90",
            Tier::Off => "compressed=0",
        }
    }
}

/// The steps that are compared without a tier, and with it.
fn steps(work: Work) -> [&'static [&'static str]; 2] {
    const OFF: &[&str] = &["always", "empty", "empty+lookup"];
    match work {
        Work::Zero => [OFF, &["always", "empty", "empty+lookup", "same-filled"]],
        Work::Random | Work::Heap | Work::Reviewers => {
            [OFF, &["always", "empty", "empty+lookup", "slots=own"]]
        }
        Work::ReadMostly | Work::WriteMostly => [&[], &["keep=off", "keep=on", "keep=auto"]],
        Work::Incompressible => [&[], &["incompressible=device", "incompressible=keep"]],
        Work::BeyondInSequence | Work::BeyondAtRandom => {
            [&[], &["recompress=off", "recompress=zstd:1"]]
        }
    }
}

/// Options of `overspill-bench zswap`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What is swapped out, and in in sequence; a quarter more comes in singly
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Bytes,
    /// Threads among which the pages are divided that come in; accesses at random are those of one
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
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

/// Measures.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args);
    let device = args.device.spec(Bytes(DEVICE_SPARE * written(args.size)));
    // A budget that is grown so that all pages come in, and a RAM device that holds them.
    let times = if args.device.is_ram() { 3 } else { 2 };
    room::memory(args.size, times * written(args.size))?;
    let (rows, rounds) = LADDER.measure(&cases, args.common.rounds, |case| {
        let pages = (2 * Bytes(written(args.size)).pages()).min(u32::MAX.into()) as u32;
        child::ask(NAME, &request(case, args, &device), LIMIT + LIMIT_PER_PAGE * pages)
    })?;
    let own = json!({
        "size_bytes": args.size.0,
        "single_bytes": args.size.0 / work::SINGLE,
        "accessed_bytes": args.size.0 / ACCESSED,
        "device": args.device.told(&device),
        "threads": args.threads,
        "steps": LADDER.made_of(&LADDER.chosen(&[])),
        "tier": by_name([Tier::On, Tier::Off].map(|tier| (tier.name(), tier.settings()))),
    });
    let settings = settings(rounds, own);
    let findings = Findings::new(&LADDER, settings, rows);
    plot::draw(args.plot.as_deref(), &findings)?;
    Ok(findings)
}

/// The cases in the order of their rows: those that are compared one after the other.
fn plan(args: &Args) -> Vec<Case<(Work, Tier)>> {
    let mut cases = Vec::new();
    for work in chosen(&args.cases) {
        for (tier, steps) in [Tier::Off, Tier::On].into_iter().zip(steps(work)) {
            for name in steps {
                let labels = vec![("case", json!(work.to_string())), ("tier", json!(tier.name()))];
                let step = LADDER.step(name).expect("the steps of a case are declared");
                let case = Ladder::case(step, labels, (work, tier));
                // The origin swapped zeros.
                let reference = case.reference.clone().filter(|_| work == Work::Zero);
                cases.push(Case { reference, ..case });
            }
        }
    }
    cases
}

/// What is written in all where pages are swapped out and in as a whole.
fn written(size: Bytes) -> u64 {
    size.0 + size.0 / work::SINGLE
}

/// What the process of a measurement is told.
fn request(case: &Case<(Work, Tier)>, args: &Args, device: &str) -> Request {
    let (work, tier) = case.what;
    let Args { size, threads, .. } = *args;
    let (all, accessed) = (written(size), size.0 / ACCESSED);
    let (bytes, memory, rest) = match (work.writes_of_16(), work, tier) {
        (Some(_), work, _) if work.is_beyond() => (size.0, size.0 / 4, size.0 / 4),
        // So that the tier, of 9/10 of it, is less than half full, and has room for copies of pages
        // in memory.
        (Some(_), ..) => (accessed, accessed / 10 * 9, accessed),
        // So that the tier holds all pages, 2/5 of their size.
        (None, Work::Heap, Tier::On) => (size.0, all / 16 * 9, all / 2),
        (None, ..) => (size.0, all / 8, all / 32),
    };
    let [memory, rest] = [memory, rest].map(|bytes| bytes.max(Config::MEMORY_MIN.0));
    let settings = format!("{},{}", tier.settings(), LADDER.settings_of(case));
    let device = device.to_owned();
    Request { work, settings, threads: threads as usize, memory, rest, bytes, device }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::args;
    use clap::ValueEnum;
    use overspill::config::baselines;

    #[test]
    fn the_engine_has_the_settings_of_every_case_and_a_base_is_one_setting_away() {
        for case in plan(&args("")) {
            let settings = request(&case, &args(""), "").settings;
            baselines::apply(&mut Config::default(), &settings).unwrap();
            let step = LADDER.step(&case.step).unwrap();
            let Some(base) = step.from else { continue };
            let [off, on] = steps(case.what.0);
            let measured = if case.what.1 == Tier::Off { off } else { on };
            assert!(measured.contains(&base), "{case}: it is compared with what is measured");
            let expected = if ["slots=own", "same-filled"].contains(&step.name) { 2 } else { 1 };
            assert_eq!(step.settings.unwrap().split(',').count(), expected, "{case}");
        }
    }

    #[test]
    fn what_is_compared_is_measured_one_after_the_other() {
        let cases = plan(&args("--cases read-mostly,zero,read-mostly"));
        let order: Vec<String> = cases.iter().map(Case::to_string).collect();
        let of = |work: &str, tier: &str, steps: &[&str]| -> Vec<String> {
            steps.iter().map(|step| format!("{step}, {work}, tier {tier}")).collect()
        };
        let three = ["always", "empty", "empty+lookup"];
        let mut expected = of("zero", "off", &three);
        expected.extend(of("zero", "on", &[&three[..], &["same-filled"]].concat()));
        expected.extend(of("read-mostly", "on", &["keep=off", "keep=on", "keep=auto"]));
        assert_eq!(order, expected);
        assert_eq!(plan(&args("")).len(), 4 * 6 + 1 + 3 + 2 * 3 + 2 + 2 * 2);
        assert_eq!(Work::value_variants().len(), 9);
    }
}
