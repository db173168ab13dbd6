//! `swap-r-rand`: how long a read of a page takes that is not in memory, by where it comes from.
//!
//! Threads read single pages at random over four times the budget ([`crate::work::swap_r_rand`]),
//! so that some pages are in memory, some in the swap cache, some compressed and some on the
//! device. Nothing is written, which shows what readahead costs where it cannot help, and what it
//! saves to keep the slots of clean pages.

use super::common::Device;
use crate::measure::*;
use crate::model::*;
use overspill::units::Bytes;
use serde_json::json;

/// What is read from, in units of the budget.
const OVERCOMMIT: u64 = 4;
/// The percentiles are told of one thread.
const ONE: Rows = With(&[("threads", "1")]);

const fn more_reads(step: &'static [&'static str], says: &'static str) -> Verdict {
    verdict(All, step, "gain_over_plain", says, Gain)
}

pub static LADDER: Ladder = Ladder {
    bench: "swap-r-rand",
    steps: &[
        Step::new("plain", "One page is read at a time; a page that was read gives its slot up")
            .set("readahead=1,clean=off"),
        Step::new("readahead", "Pages around a slot are read with it").from("plain", "readahead=8"),
        Step::new("clean", "A page that was read keeps its slot until it is written to")
            .from("plain", "clean=on"),
        Step::new("readahead-clean", "Both").from("plain", "readahead=8,clean=on"),
    ],
    groups: &["threads"],
    tables: &[
        Table {
            title: "All reads, those of pages in memory included, and what the device did for \
                    them.",
            columns: &[
                wide("reads/s", "reads_per_s", whole),
                col("p50 ns", "any.p50_ns", whole),
                col("p99 ns", "any.p99_ns", whole),
                col("p99.9 ns", "any.p999_ns", whole),
                col("written a page read", "pages_written_per_page_read", ratio),
                col("pages a read", "pages_read_per_operation", short),
                col("compressed to", "compressed_size_ratio", percent),
                col("readahead wanted", "readahead_hit_ratio", percent),
            ],
        },
        Table {
            title: "By where the page came from, with one thread: share of all reads, and ns.",
            columns: &[
                col("minor", "minor.ratio", percent),
                col("p50", "minor.p50_ns", whole),
                col("p99", "minor.p99_ns", whole),
                col("p99.9", "minor.p999_ns", whole),
                col("compressed", "compressed.ratio", percent),
                col("p50", "compressed.p50_ns", whole),
                col("p99", "compressed.p99_ns", whole),
                col("p99.9", "compressed.p999_ns", whole),
                col("device", "device.ratio", percent),
                col("p50", "device.p50_ns", whole),
                col("p99", "device.p99_ns", whole),
                col("p99.9", "device.p999_ns", whole),
            ],
        },
    ],
    comparisons: &[compare("gain_over_plain", More, "reads_per_s", Base::From)],
    verdicts: &[
        told(ONE, &["plain"], "minor.p50_ns", "ns of a minor fault"),
        told(ONE, &["plain"], "compressed.p50_ns", "ns of a compressed page"),
        told(ONE, &["plain"], "device.p50_ns", "ns of a page on the device"),
        told(ONE, &["plain"], "pages_written_per_page_read", "pages written for one read"),
        told(ONE, &["clean"], "pages_written_per_page_read", "pages written for one read"),
        more_reads(&["readahead"], "reads, readahead cannot help"),
        more_reads(&["clean"], "reads, slots are kept"),
        more_reads(&["readahead-clean"], "reads, both"),
    ],
    charts: &[chart("Reads at random", "reads_per_s", "reads a second")],
    ..Ladder::NONE
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Numbers of threads to measure with; where a page came from is told for one thread only
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    #[command(flatten)]
    to: Device,
    /// The budget; four times as much is read from
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    memory: Bytes,
    /// Reads, of all threads together; a percentile that has too few reads beyond it is not told
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    reads: u64,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let cases = LADDER.with_threads(&[], &args.threads);
    let bytes = Bytes(OVERCOMMIT * args.memory.0);
    let device = args.to.spec(bytes.0);
    let findings = LADDER.measure(&cases, rounds, |case| {
        let request = pool::Request {
            settings: LADDER.settings_of(case),
            threads: case.what,
            memory: args.memory.0,
            bytes: bytes.0,
            device: device.clone(),
            what: args.reads,
        };
        LADDER.ask(&request, 2 * bytes.pages() + args.reads)
    })?;
    Ok(findings.with(json!({
        "threads": args.threads,
        "memory_bytes": args.memory.0,
        "size_bytes": bytes.0,
        "reads": args.reads,
        "device": args.to.device.told(&device),
    })))
}
