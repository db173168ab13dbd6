//! `page-fault`: what a first write to a fresh page costs, and what of that is the page-frame
//! allocator.
//!
//! The ladder goes from a zone lock for every frame to the engine as it is by default, beside the
//! kernel's own anonymous memory ([`crate::work::page_fault`]). Nothing is ever evicted: the budget
//! is larger than what is touched.

use super::common::Common;
use crate::measure::{Failure, child, host};
use crate::model::declare::{
    Base, Goal, How, Ladder, Rows, Step, Table, Verdict, col, compare, verdict, wide,
};
use crate::model::findings::{Findings, settings};
use crate::model::format::{percent, plural, ratio, short, whole};
use crate::model::row::{Case, by_name};
use crate::work::page_fault::{CPU, FREE_HOLD, LOCKS, MEASURED, RATE, Request};
use overspill::units::{Bytes, PAGE_SIZE};
use serde_json::{Value, json};
use std::time::Duration;

pub use crate::work::page_fault::measure_one;

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

/// [`RATE`] and [`CPU`] in units of the kernel's.
const KERNEL_RATIO: &str = "ratio_to_kernel";
const KERNEL_CPU_RATIO: &str = "cpu_ratio_to_kernel";
/// [`LOCKS`] without lists, in units of those here.
const LOCKS_FEWER: &str = "zone_locks_fewer_than_no_percpu";
/// What [`RATE`] gains by picking outside the lock, and [`FREE_HOLD`] in units of that inside.
const PICK_GAIN: &str = "gain_over_pick_inside";
const PICK_HOLD: &str = "free_hold_ratio_to_pick_inside";

/// Where locks are contended most.
const fn most(step: &'static [&'static str], figure: &'static str, says: &'static str) -> Verdict {
    verdict(step, figure, says, Goal::Told).of(Rows::Most("threads"))
}

/// What is measured, and what is told of it.
pub static LADDER: Ladder = Ladder {
    bench: NAME,
    steps: &[
        Step::new("kernel", "The kernel's own anonymous memory, without huge pages")
            .instead("mmap, MADV_NOHUGEPAGE"),
        Step::new("no-percpu", "Each frame is taken and given back under the zone lock")
            .set("frame.percpu=off,folio=1"),
        Step::new(
            "pick-inside",
            "Lists of frames for each processor; what goes back is picked under the zone lock",
        )
        .set("frame.percpu=on,frame.pick=inside,folio=1"),
        Step::new("pick-outside", "What goes back is picked before the zone lock is taken")
            .from("pick-inside", "frame.pick=outside")
            .published(|| json!({ "gain_over_pick_inside": [0.056, 0.043, 0.030, 0.064] })),
        Step::new("folios", "The defaults: sequential faults bring in runs of pages").set(""),
    ],
    groups: &["threads"],
    tables: &[Table {
        title: "",
        columns: &[
            wide("faults/s", RATE, whole),
            col("x kernel", KERNEL_RATIO, ratio),
            col("pages a fault", "pages_per_fault", short),
            col("CPU ns a page", CPU, whole),
            col("zone locks a 1,000", LOCKS, short),
            col("contended", "zone_contended_ratio", percent),
            col("hold ns a frame", "zone_hold_ns_per_frame", short),
            col("a freed frame", FREE_HOLD, short),
            col("wait ns a frame", "zone_wait_ns_per_frame", short),
        ],
    }],
    comparisons: &[
        compare(KERNEL_RATIO, How::Times, RATE, Base::Step("kernel")),
        compare(KERNEL_CPU_RATIO, How::Times, CPU, Base::Step("kernel")),
        compare(LOCKS_FEWER, How::TimesLess, LOCKS, Base::Step("no-percpu")),
        compare(PICK_GAIN, How::More, RATE, Base::From),
        compare(PICK_HOLD, How::Times, FREE_HOLD, Base::From),
    ],
    verdicts: &[
        most(&["folios"], KERNEL_RATIO, "times the kernel's pages a second"),
        most(&["folios"], KERNEL_CPU_RATIO, "times the kernel's processor time a page"),
        most(&["pick-outside"], LOCKS_FEWER, "times fewer zone locks than without lists"),
        verdict(&["pick-outside"], PICK_GAIN, "pages a second over pick-inside", Goal::Gain)
            .of(Rows::Most("threads")),
        most(&["pick-outside"], PICK_HOLD, "times the hold a freed frame of pick-inside"),
    ],
    charts: &[],
    origin: "will-it-scale page_fault1 on four machines, all processors busy, \
             \"free_pcppages_bulk: do not hold lock when picking pages to free\", Linux 2018",
};

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
    #[arg(value_parser = LADDER.parser())]
    steps: Vec<String>,
    /// Let threads move between processors; they are pinned otherwise
    #[arg(long)]
    unpinned: bool,
}

/// What a case is measured with.
#[derive(Clone, Copy, Debug)]
struct Size {
    threads: usize,
    /// Bytes that each thread maps.
    bytes: usize,
}

/// Measures.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args, host::available_bytes());
    let (rows, rounds) = LADDER.measure(&cases, args.common.rounds, |case| {
        let Size { threads, bytes } = case.what;
        let settings = LADDER.step(&case.step).and_then(|step| LADDER.settings(step));
        let request = Request { settings, threads, bytes, pinned: !args.unpinned };
        let pages = (threads * bytes / PAGE_SIZE) as u32;
        child::ask(NAME, &request, LIMIT + 2 * LIMIT_PER_PAGE * pages)
    })?;
    let settings = settings(rounds, own_settings(args, &cases));
    let mut findings = Findings::new(&LADDER, settings, rows);
    let sizes = smaller(args, &cases)
        .into_iter()
        .map(|(threads, bytes)| format!("{bytes} each for {}", plural(threads as u64, "thread")));
    let sizes: Vec<String> = sizes.collect();
    if !sizes.is_empty() {
        findings.notes.push(format!("Sizes were scaled down: {}.", sizes.join(", ")));
    }
    Ok(findings)
}

/// The cases in the order of their rows: all steps with as many threads, bottom up, then with the
/// next number.
fn plan(args: &Args, available: u64) -> Vec<Case<Size>> {
    let sized = |case: Case<usize>| {
        let Case { step, labels, reference, what: threads } = case;
        let bytes = bytes_per_thread(args.size, threads, available);
        Case { step, labels, reference, what: Size { threads, bytes } }
    };
    let steps = LADDER.chosen(&args.steps);
    Ladder::with_threads(&steps, &args.threads).into_iter().map(sized).collect()
}

/// What each of so many threads maps: whole pages, one at least.
fn bytes_per_thread(size: Option<Bytes>, threads: usize, available: u64) -> usize {
    let fits = available / RAM_SHARE;
    let total = if size.is_some() { fits } else { fits.min(TOTAL_BY_DEFAULT) };
    let bytes = size.map_or(SIZE, |size| size.0).min(total / threads as u64) as usize;
    (bytes - bytes % PAGE_SIZE).max(PAGE_SIZE)
}

/// Numbers of threads that map less than was asked for, with what each maps.
fn smaller(args: &Args, cases: &[Case<Size>]) -> Vec<(usize, Bytes)> {
    let wanted = args.size.map_or(SIZE, |size| size.0);
    let sizes = cases.iter().map(|case| (case.what.threads, Bytes(case.what.bytes as u64)));
    let mut smaller: Vec<_> =
        sizes.filter(|(_, bytes)| bytes.0 + PAGE_SIZE as u64 <= wanted).collect();
    smaller.dedup();
    smaller
}

fn own_settings(args: &Args, cases: &[Case<Size>]) -> Value {
    let sizes = by_name(cases.iter().map(|case| (case.what.threads, case.what.bytes)));
    let mut threads: Vec<usize> = cases.iter().map(|case| case.what.threads).collect();
    threads.dedup();
    json!({
        "threads": threads,
        "size_bytes": args.size.map_or(SIZE, |size| size.0),
        "size_bytes_by_threads": sizes,
        "sizes_scaled_down": !smaller(args, cases).is_empty(),
        "measured_ms": MEASURED.as_millis() as u64,
        "pinned": !args.unpinned,
        "steps": LADDER.made_of(&LADDER.chosen(&args.steps)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{args, parse};

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_shrink_to_what_fits_and_say_so() {
        let default = args::<Args>("--steps kernel --threads 1,4,32");
        let cases = plan(&default, 64 * GIB);
        let mib: Vec<_> = cases.iter().map(|case| case.what.bytes >> 20).collect();
        assert_eq!(mib, [128, 64, 8]);
        assert_eq!(smaller(&default, &cases), [(4, Bytes(64 << 20)), (32, Bytes(8 << 20))]);
        let settings = own_settings(&default, &cases);
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
    fn numbers_of_threads_and_names_of_steps_are_checked() {
        assert!(parse::<Args>("--threads 0").is_err() && parse::<Args>("--steps none").is_err());
    }
}
