//! `page-fault`: what a first write to a fresh page costs, and what of that is the page-frame
//! allocator.
//!
//! The ladder goes from a zone lock for every frame to the engine as it is by default, beside the
//! kernel's own anonymous memory ([`crate::work::page_fault`]). Nothing is ever evicted: the budget
//! is larger than what is touched.

use crate::measure::*;
use crate::model::*;
use crate::work::page_fault::{FirstWrites, MEASURED};
use overspill::units::{Bytes, PAGE_SIZE};
use serde_json::json;
use std::collections::BTreeMap;

/// What each thread maps unless `--size` says otherwise, as page_fault1 of will-it-scale has it.
const SIZE: u64 = 128 << 20;
/// What all threads together map at most unless `--size` is given, so that a pass of many threads
/// takes no longer than one of a few and the default run stays below 50 s on two processors.
const TOTAL_BY_DEFAULT: u64 = 256 << 20;
/// Share of the available RAM that all threads together map at most.
const RAM_SHARE: u64 = 2;

/// Where locks are contended most.
const MOST: Rows = Most("threads");
const NO_PERCPU: Base = Base::Step("no-percpu");
const FOLIOS: &[&str] = &["folios"];
const PICK: &[&str] = &["pick-outside"];

pub static LADDER: Ladder = Ladder {
    bench: "page-fault",
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
            wide("faults/s", "faults_per_s", whole),
            col("x kernel", "ratio_to_kernel", ratio),
            col("pages a fault", "pages_per_fault", short),
            col("CPU ns a page", "cpu_ns_per_page", whole),
            col("zone locks a 1,000", "zone_locks_per_1000", short),
            col("contended", "zone_contended_ratio", percent),
            col("hold ns a frame", "zone_hold_ns_per_frame", short),
            col("a freed frame", "zone_free_hold_ns_per_frame", short),
            col("wait ns a frame", "zone_wait_ns_per_frame", short),
        ],
    }],
    comparisons: &[
        compare("ratio_to_kernel", Times, "faults_per_s", Base::Step("kernel")),
        compare("cpu_ratio_to_kernel", Times, "cpu_ns_per_page", Base::Step("kernel")),
        compare("zone_locks_fewer_than_no_percpu", TimesLess, "zone_locks_per_1000", NO_PERCPU),
        compare("gain_over_pick_inside", More, "faults_per_s", Base::From),
        compare("free_hold_ratio_to_pick_inside", Times, "zone_free_hold_ns_per_frame", Base::From),
    ],
    verdicts: &[
        told(MOST, FOLIOS, "ratio_to_kernel", "times the kernel's pages a second"),
        told(MOST, FOLIOS, "cpu_ratio_to_kernel", "times the kernel's processor time a page"),
        told(
            MOST,
            PICK,
            "zone_locks_fewer_than_no_percpu",
            "times fewer zone locks than no-percpu",
        ),
        verdict(MOST, PICK, "gain_over_pick_inside", "pages a second over pick-inside", Gain),
        told(MOST, PICK, "free_hold_ratio_to_pick_inside", "times the hold a freed frame of it"),
    ],
    charts: &[chart("First writes to pages", "faults_per_s", "pages a second")],
    origin: "will-it-scale page_fault1 on four machines, all processors busy, \
             \"free_pcppages_bulk: do not hold lock when picking pages to free\", Linux 2018",
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
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

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let cases = LADDER.with_threads(&args.steps, &args.threads);
    let sizes = sizes(args, host::available_bytes());
    let findings = LADDER.measure(&cases, rounds, |case| {
        let (threads, bytes) = (case.what, sizes[&case.what]);
        let settings = LADDER.step(&case.step).and_then(|step| LADDER.settings(step));
        let request = FirstWrites { settings, threads, bytes, pinned: !args.unpinned };
        LADDER.ask(&request, (threads * bytes / PAGE_SIZE) as u64)
    })?;
    let smaller = smaller(args, &sizes);
    let own = json!({
        "threads": args.threads,
        "size_bytes": wanted(args),
        "size_bytes_by_threads": by_name(sizes),
        "sizes_scaled_down": !smaller.is_empty(),
        "measured_ms": MEASURED.as_millis() as u64,
        "pinned": !args.unpinned,
    });
    let mut findings = findings.with(own);
    if !smaller.is_empty() {
        findings.notes.push(format!("Sizes were scaled down: {}.", smaller.join(", ")));
    }
    Ok(findings)
}

/// What each thread maps where there is room.
fn wanted(args: &Args) -> u64 {
    args.size.map_or(SIZE, |size| size.0)
}

/// What each of so many threads maps: whole pages, one at least.
fn sizes(args: &Args, available: u64) -> BTreeMap<usize, usize> {
    let fits = available / RAM_SHARE;
    let total = if args.size.is_some() { fits } else { fits.min(TOTAL_BY_DEFAULT) };
    let of = |threads: &u32| {
        let bytes = wanted(args).min(total / u64::from(*threads)) as usize;
        (*threads as usize, (bytes - bytes % PAGE_SIZE).max(PAGE_SIZE))
    };
    args.threads.iter().map(of).collect()
}

/// Numbers of threads that map less than was asked for, with what each maps.
fn smaller(args: &Args, sizes: &BTreeMap<usize, usize>) -> Vec<String> {
    let less = |(_, bytes): &(&usize, &usize)| (**bytes + PAGE_SIZE) as u64 <= wanted(args);
    let told = |(threads, bytes): (&usize, &usize)| {
        format!("{} each for {}", Bytes(*bytes as u64), plural(*threads as u64, "thread"))
    };
    sizes.iter().filter(less).map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shrink_to_what_fits_and_say_so() {
        let of = |line: &str, available: u64| {
            let args: Args = crate::fixture::args(line);
            let sizes = sizes(&args, available);
            (smaller(&args, &sizes).join(", "), sizes.into_values().collect::<Vec<_>>())
        };
        let told = "64 MiB each for 4 threads, 8 MiB each for 32 threads".to_owned();
        let mib = [128 << 20, 64 << 20, 8 << 20].to_vec();
        assert_eq!(of("--threads 1,4,32", 64 << 30), (told, mib));
        // What is asked for is given, as far as half of the RAM reaches, in whole pages.
        assert_eq!(of("--size 1G --threads 32", 64 << 30).1, [1 << 30]);
        assert_eq!(of("--size 1G --threads 32", 1 << 30).1, [16 << 20]);
        assert_eq!(of("--size 10000 --threads 1", 1 << 30), (String::new(), vec![8192]));
        assert_eq!(of("--size 1 --threads 1024", 0).1, [PAGE_SIZE]);
    }
}
