//! `zswap`: what it takes to forget a slot that is given back, and which pages the compressed tier
//! is worth keeping ([`crate::work::zswap`]).
//!
//! Pages of different contents are swapped out and in again, which gives their slots back, and each
//! slot that is given back asks the tier to forget it: with the tier on and off, for each setting
//! of `zswap.invalidate`. Pages come in in sequence, and others singly at random. Besides, pages
//! are accessed at random, to see what it is worth to keep the compressed copies of pages that were
//! read, and to keep pages that do not compress.

use super::common::Device;
use crate::machine::*;
use crate::measure::*;
use crate::model::*;
use crate::work::zswap::pages::Work;
use crate::work::zswap::{self as work, What};
use overspill::config::Config;
use overspill::units::Bytes;
use serde_json::{Value, json};

/// What is accessed at random, as a share of what is swapped out and in as a whole.
const ACCESSED: u64 = 2;

/// What swapping zeros in is to gain: so much time or processor time, as its origin did, or all
/// locks.
const ZEROS_GAIN: Goal = GainOf(0.039);
const NONE: Goal = AtMost(0.0);
const FEW: Goal = AtMost(0.01);
const LOOKUP: &[&str] = &["empty+lookup"];
const SAME: &[&str] = &["same-filled"];
const OFF: Rows = With(&[("case", "zero"), ("tier", "off")]);
const ON: Rows = With(&[("case", "zero"), ("tier", "on")]);
/// Where, of many slots, few have an entry.
const REVIEWERS: Rows = With(&[("case", "reviewers"), ("tier", "on")]);

/// Microseconds that swapping 2 GiB of zeros in took at the origin.
fn origin(us: f64) -> Value {
    json!({
        "bytes": 2u64 << 30, "swapin_us": us, "swapin_faster_than_always": 1.0 - us / 1_905_000.0,
    })
}

pub static LADDER: Ladder = Ladder {
    bench: "zswap",
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
                col("out us", "swapout_us", whole),
                col("less", "swapout_faster", gain),
                wide("in us", "swapin_us", whole),
                wide("less", "swapin_faster", gain),
                col("cpu us", "cpu_us", whole),
                wide("less", "cpu_faster", gain),
                col("singly us", "single_us", whole),
                col("less", "single_faster", gain),
                col("cpu us", "single.cpu_us", whole),
                wide("less", "single_cpu_faster", gain),
            ],
        },
        Table {
            title: "Locks of the compressed tier, for 1,000 pages that come in: times taken, \
                    share contended, ns waited, ns held (without the holds of more than 50 us, in \
                    which the holder was interrupted), share of the threads' processor time, \
                    look-ups, entries freed, pages unpacked (others were read from the device); \
                    in sequence, then singly.",
            columns: &[
                col("locks", "locks", short),
                col("", "contended_ratio", percent),
                col("waited", "wait_ns", whole),
                col("held", "short_hold_ns", whole),
                col("time", "locks_ratio", percent),
                col("look-ups", "lookups", short),
                col("freed", "freed", short),
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
                col("out", "out_ratio", percent),
                col("compressed", "compressed_ratio", percent),
            ],
        },
        Table {
            title: "Accesses: ns and ns of processor time an access, and by how much less than \
                    the first step; for 1,000 accesses the pages that were unpacked and packed, \
                    read and written, and that left clean or were written to while they were; \
                    slots of devices in use at the end, as a share of the pages.",
            columns: &[
                wide("ns", "ns_per_access", whole),
                wide("less", "faster", gain),
                wide("cpu ns", "cpu_ns_per_access", whole),
                wide("less", "cpu_less", gain),
                col("faults", "per_1000.faults", short),
                col("unpacked", "per_1000.unpacked", short),
                col("packed", "per_1000.packed", short),
                col("read", "per_1000.read", short),
                col("written", "per_1000.written", short),
                col("left clean", "per_1000.left_clean", short),
                col("written to", "per_1000.written_clean", short),
                col("slots", "slots_ratio", percent),
            ],
        },
    ],
    // By page: not the same number of pages is out each time.
    comparisons: &[
        compare("swapout_faster", Less, "out.ns_per_page", Base::From),
        compare("swapin_faster", Less, "ns_per_page", Base::From),
        compare("single_faster", Less, "single.ns_per_page", Base::From),
        compare("cpu_faster", Less, "cpu_ns_per_page", Base::From),
        compare("single_cpu_faster", Less, "single.cpu_ns_per_page", Base::From),
        compare("faster", Less, "ns_per_access", Base::From),
        compare("cpu_less", Less, "cpu_ns_per_access", Base::From),
        compare("locks_of_empty", Times, "locks", Base::Step("empty")).only("empty+lookup"),
        compare("single.locks_of_empty", Times, "single.locks", Base::Step("empty"))
            .only("empty+lookup"),
    ],
    verdicts: &[
        verdict(OFF, LOOKUP, "swapin_faster", "less time in sequence", ZEROS_GAIN),
        verdict(OFF, LOOKUP, "cpu_faster", "less processor time", ZEROS_GAIN),
        verdict(OFF, LOOKUP, "locks", "locks a 1,000 pages", NONE),
        verdict(ON, LOOKUP, "swapin_faster", "less time in sequence", ZEROS_GAIN),
        verdict(ON, LOOKUP, "cpu_faster", "less processor time", ZEROS_GAIN),
        verdict(ON, LOOKUP, "locks", "locks a 1,000 pages", NONE),
        verdict(ON, SAME, "swapin_faster", "less time in sequence", ZEROS_GAIN),
        verdict(ON, SAME, "cpu_faster", "less processor time", ZEROS_GAIN),
        verdict(ON, SAME, "locks", "locks a 1,000 pages", NONE),
        verdict(ON, SAME, "out.locks", "locks a 1,000 pages out", NONE),
        verdict(ON, SAME, "single.locks", "locks a 1,000 singly", NONE),
        verdict(REVIEWERS, LOOKUP, "locks_of_empty", "of the locks of empty", FEW),
        verdict(REVIEWERS, LOOKUP, "single.locks_of_empty", "of them, singly", FEW),
        verdict(All, &[], "faster", "less time an access", Gain),
        verdict(All, &[], "cpu_less", "less processor time an access", Gain),
    ],
    charts: &[
        chart("All pages swapped in in sequence, by contents, tier on or off", "swapin_us", "us"),
        chart("Locks that this takes", "locks", "a 1,000 pages"),
        chart("The same, singly at random", "single.locks", "a 1,000 pages"),
        chart("Accesses at random", "ns_per_access", "ns an access"),
    ],
    origin: "2 GiB of zeros, \"mm/zswap: avoid touching XArray for unnecessary invalidation\", \
             Linux 2024 (look-up only: 1,875,000 us)",
    ..Ladder::NONE
};

/// Whether there is a compressed tier, and the settings of that. Where there is, it may take most
/// of the budget, so that it takes whatever compresses.
const TIERS: [(&str, &str); 2] = [("off", "compressed=0"), ("on", "compressed=90")];

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

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
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
    #[command(flatten)]
    to: Device,
}

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let cases = plan(args);
    let device = args.to.spec(written(args.size));
    // A budget that is grown so that all pages come in, and a RAM device that holds them.
    let times = if args.to.device.is_ram() { 3 } else { 2 };
    memory_for(args.size, times * written(args.size))?;
    let findings = LADDER.measure(&cases, rounds, |case| {
        let pages = 2 * Bytes(written(args.size)).pages();
        LADDER.ask(&request(case, args, &device), pages)
    })?;
    Ok(findings.with(json!({
        "size_bytes": args.size.0,
        "single_bytes": args.size.0 / work::SINGLE,
        "accessed_bytes": args.size.0 / ACCESSED,
        "device": args.to.device.told(&device),
        "threads": args.threads,
        "tier": by_name(TIERS),
    })))
}

/// The cases in the order of their rows: those that are compared one after the other.
fn plan(args: &Args) -> Vec<Case<(Work, usize)>> {
    let mut cases = Vec::new();
    for work in chosen(&args.cases) {
        for (tier, steps) in steps(work).into_iter().enumerate() {
            for name in steps {
                let name_of_tier = TIERS[tier].0;
                let labels = vec![("case", json!(work.to_string())), ("tier", json!(name_of_tier))];
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
fn request(case: &Case<(Work, usize)>, args: &Args, device: &str) -> pool::Request<What> {
    let (work, tier) = case.what;
    let (name, settings) = TIERS[tier];
    let (all, accessed) = (written(args.size), args.size.0 / ACCESSED);
    let (bytes, memory, rest) = match (work.writes_of_16(), work) {
        (Some(_), work) if work.is_beyond() => (args.size.0, args.size.0 / 4, args.size.0 / 4),
        // So that the tier, of 9/10 of it, is less than half full, and has room for copies of pages
        // in memory.
        (Some(_), _) => (accessed, accessed / 10 * 9, accessed),
        // So that the tier holds all pages, 2/5 of their size.
        (None, Work::Heap) if name == "on" => (args.size.0, all / 16 * 9, all / 2),
        (None, _) => (args.size.0, all / 8, all / 32),
    };
    let [memory, rest] = [memory, rest].map(|bytes| bytes.max(Config::MEMORY_MIN.0));
    pool::Request {
        settings: format!("{settings},{}", LADDER.settings_of(case)),
        threads: args.threads as usize,
        memory,
        bytes,
        device: device.to_owned(),
        what: What { work, rest },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::args;

    #[test]
    fn the_engine_has_the_settings_of_every_case_and_a_base_is_one_setting_away() {
        for case in plan(&args("")) {
            let settings = request(&case, &args(""), "").settings;
            Config::default().apply_with_baselines(&settings).unwrap();
            let step = LADDER.step(&case.step).unwrap();
            let Some(base) = step.from else { continue };
            let measured = steps(case.what.0)[case.what.1];
            assert!(measured.contains(&base), "{case}: it is compared with what is measured");
            let expected = if ["slots=own", "same-filled"].contains(&step.name) { 2 } else { 1 };
            assert_eq!(step.settings.unwrap().split(',').count(), expected, "{case}");
        }
    }

    #[test]
    fn every_work_has_cases() {
        assert_eq!(plan(&args("")).len(), 4 * 6 + 1 + 3 + 2 * 3 + 2 + 2 * 2);
        let twice = plan(&args("--cases read-mostly,zero,read-mostly"));
        assert_eq!(twice.len(), 3 + 4 + 3, "each once");
    }
}
