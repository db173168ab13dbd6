//! What is told of the work and of the kernel's swap beside it, and what is to be reached: by
//! accesses, by known programs, and by a command of the user's, whose rows have the label `memory`.

use crate::model::*;

/// What is to be reached is about four times overcommit, and heaps of programs.
macro_rules! of {
    ($($name:literal $value:literal),*; accesses) => {
        of!($($name $value,)* "overcommit" "4", "contents" "2.5:1")
    };
    ($($name:literal $value:literal),*) => { &[$(($name, $value)),*] };
}

/// The ratio of elapsed time to reach in the library against zram, zswap and the swap file, by
/// workload; then what else is to be reached.
macro_rules! goals {
    ($($workload:literal [$($peer:literal $most:literal),*])*; $($other:expr,)*) => {
        &[
            $($(time(
                With(of!("workload" $workload, "peer" $peer; accesses)),
                &["library"], $most,
            ),)*)*
            $($other,)*
        ]
    };
}

const fn time(rows: Rows, steps: &'static [&'static str], most: f64) -> Verdict {
    verdict(rows, steps, "ratio", "time, of the peer's", AtMost(most))
}

/// The median of the real programs.
const fn programs(step: &'static [&'static str], most: f64, rows: Rows) -> Verdict {
    let says = "time of programs (redis: of reads), of the peer's";
    verdict(rows, step, "ratio", says, AtMost(most))
}

/// What seals take of a random reader.
const SEALED: Rows = With(of!("workload" "rand-read", "peer" "file"; accesses));
/// A command of the user's.
const OWN: Rows = Labelled("memory");
const ACCESSES: Rows = With(of!("overcommit" "4", "contents" "2.5:1"));
/// Accesses beside zram.
const BESIDE_ZRAM: Rows = With(of!("peer" "zram"; accesses));
const UNSEALED: Base = Base::Step("overspill-unsealed");
const THREAD: &[&str] = &["overspill-thread"];
const SIGNAL: &[&str] = &["overspill-signal"];
const ZRAM: Rows = Across(of!("peer" "zram", "overcommit" "4", "contents" "its own"));
const ZSWAP: Rows = Across(of!("peer" "zswap", "overcommit" "4", "contents" "its own"));
const FILE: Rows = Across(of!("peer" "file", "overcommit" "4", "contents" "its own"));

pub static LADDER: Ladder = Ladder {
    bench: "vs-kernel",
    groups: &["workload", "peer"],
    tables: &[
        Table {
            title: "Elapsed time of the accesses or the program and processor time meanwhile, \
                    with that of overspill's threads; each as a ratio to the peer of the same \
                    round, that of a command also to the command by itself (alone), lower is \
                    better; microseconds of an access: mean, median, 99th and 99.9th percentile.",
            columns: &[
                wide("elapsed s", "elapsed_s", short),
                wide("ratio", "ratio", ratio),
                wide("of alone", "native_ratio", ratio),
                col("cpu s", "cpu_s", short),
                wide("cpu ratio", "cpu_ratio", ratio),
                col("mean us", "ns_per_access", microseconds),
                col("p50", "p50_ns", microseconds),
                col("p99", "p99_ns", microseconds),
                col("p99.9", "p999_ns", microseconds),
            ],
        },
        Table {
            title: "RAM at most in MiB, all in all; the part of it that is a compressed pool \
                    outside of the cgroup, and how far that packed; limit of the cgroup, or \
                    budget; overspill's tables; pages brought in, faults that waited for a device \
                    (zram is one), and MiB written to and read from a device, of the whole run \
                    with what is written beforehand.",
            columns: &[
                wide("RAM", "ram_bytes_peak", mib),
                col("pool", "pool_bytes_peak", mib),
                col("packed", "packed", short),
                wide("limit", "limit_bytes", mib),
                col("metadata", "metadata_bytes", short_mib),
                col("pages in", "pages_in", whole),
                col("major faults", "major_faults", whole),
                col("device MiB", "device_bytes", mib),
                col("written", "device_bytes_written", mib),
            ],
        },
        Table {
            title: "The floor, in microseconds: a fault by signal served by a copy or by a move \
                    alone, the first access to a page of a pool with room, and for a page LZ4 and \
                    the seal that it has on devices.",
            columns: &[
                wide("bare copy", "bare_copy_fault_ns", microseconds),
                wide("bare move", "bare_move_fault_ns", microseconds),
                wide("minor fault", "minor_fault_ns", microseconds),
                wide("ratio", "minor_fault_ratio", ratio),
                col("compress", "compress_ns", microseconds),
                col("decompress", "decompress_ns", microseconds),
                col("seal", "seal_ns", microseconds),
                col("open", "open_ns", microseconds),
            ],
        },
    ],
    comparisons: &[
        compare("ratio", Times, "elapsed_s", Base::Step("peer")),
        compare("cpu_ratio", Times, "cpu_s", Base::Step("peer")),
        compare("p999_ratio", Times, "p999_ns", Base::Step("peer")),
        compare("seal_ratio", Times, "elapsed_s", UNSEALED).only("overspill-signal"),
        compare("seal_cpu_ratio", Times, "cpu_s", UNSEALED).only("overspill-signal"),
    ],
    verdicts: goals![
        "seq-write" ["zram" 0.45, "zswap" 0.35, "file" 0.80]
        "seq-read" ["zram" 0.35, "zswap" 0.30, "file" 0.30]
        "rand-read" ["zram" 0.40, "zswap" 0.35, "file" 0.60]
        "rand-write" ["zram" 0.50, "zswap" 0.40, "file" 0.60]
        "zipf-read" ["zram" 0.40, "zswap" 0.35, "file" 0.60];
        verdict(ACCESSES, &["library"], "cpu_ratio", "processor time, of the peer's", AtMost(1.0)),
        time(BESIDE_ZRAM, THREAD, 0.80),
        time(BESIDE_ZRAM, SIGNAL, 0.80),
        verdict(SEALED, SIGNAL, "seal_ratio", "time, of that with crypt=off", AtMost(1.05)),
        told(SEALED, SIGNAL, "seal_cpu_ratio", "processor time, of that with crypt=off"),
        programs(THREAD, 0.80, ZRAM),
        programs(THREAD, 0.70, ZRAM),
        programs(THREAD, 0.60, ZSWAP),
        programs(THREAD, 0.50, FILE),
        programs(SIGNAL, 0.80, ZRAM),
        programs(SIGNAL, 0.70, ZRAM),
        programs(SIGNAL, 0.60, ZSWAP),
        programs(SIGNAL, 0.50, FILE),
        verdict(All, &["floor"], "minor_fault_ratio", "minor fault, of a bare one", AtMost(1.25)),
        time(OWN, SIGNAL, 1.0),
        time(OWN, THREAD, 1.0),
        told(OWN, SIGNAL, "native_ratio", "time, of that by itself"),
        told(OWN, THREAD, "native_ratio", "time, of that by itself"),
    ],
    charts: &[
        Chart {
            titles: Some(title),
            line: Some((1.0, "as fast as the kernel")),
            ..chart("", "ratio", "overspill's time ÷ the kernel's time")
        },
        Chart {
            titles: Some(|row| title(row).filter(|_| is_access(row))),
            ..chart("", "ns_per_access", "microseconds an access, lower is better")
        },
        Chart {
            titles: Some(|row| title(row).filter(|_| !is_access(row))),
            ..chart("", "elapsed_s", "seconds, lower is better")
        },
    ],
    called: &[
        ("peer", "the kernel"),
        ("overspill-thread", "overspill run --fault thread"),
        ("overspill-signal", "overspill run"),
        ("overspill-unsealed", "overspill run, crypt=off"),
        ("library", "overspill as a library"),
    ],
    ..Ladder::NONE
};

/// Whether a row is about accesses to memory, not about a program.
fn is_access(row: &Row) -> bool {
    row.figures.contains_key("ns_per_access")
}

/// A peer as people call it.
pub fn peer(row: &Row) -> String {
    match row.label("peer").as_str() {
        "file" => "swap file".to_owned(),
        other => other.to_owned(),
    }
}

/// What a row is compared within: a peer and setting, with programs by themselves.
pub fn title(row: &Row) -> Option<String> {
    let peer = peer(row);
    if row.labels.contains_key("memory") {
        let (command, memory) = (row.label("workload"), row.label("memory"));
        return Some(format!("{command}, against the kernel's {peer}: {memory} of RAM"));
    }
    let overcommit = row.labels.get("overcommit")?;
    if !is_access(row) {
        return Some(format!(
            "Real programs, against the kernel's {peer}: {overcommit} times the RAM"
        ));
    }
    let threads = row.labels.get("threads")?.as_u64()?;
    Some(format!(
        "Accesses, against the kernel's {peer}: {overcommit} times the RAM, contents {}, {}",
        row.label("contents"),
        plural(threads, "thread")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{beside_zram, row};
    use crate::model::findings::Findings;
    use crate::render::verdict::text;
    use serde_json::json;

    #[test]
    fn each_target_is_met_or_not_with_its_figure() {
        let of = |step: &str, workload: &str, contents: &str, ratio: f64| {
            let ratios: [f64; 3] = [0.9, 1.0, 1.1].map(|scale| scale * ratio);
            let figures: [(&str, &[f64]); 2] = [("ratio", &ratios), ("cpu_ratio", &[1.2])];
            row(step, &beside_zram(workload, contents), &figures)
        };
        let mut beside_file = beside_zram("rand-read", "2.5:1");
        beside_file[1].1 = json!("file");
        let rows = vec![
            row("overspill-signal", &beside_file, &[("seal_ratio", &[1.03, 1.04, 1.2])]),
            of("overspill-thread", "seq-read", "2.5:1", 0.7),
            of("library", "seq-read", "2.5:1", 0.5),
            of("library", "seq-read", "1:1", 0.5),
            of("overspill-signal", "sort", "its own", 0.5),
            of("overspill-signal", "redis", "its own", 0.75),
            of("overspill-signal", "cxx", "its own", 2.0),
        ];
        let text = text(&Findings::new(&LADDER, json!({}), rows));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "seq-read, zram: overspill-thread time, of the peer's 0.70 (0.63 to 0.77) met: 0.80",
            "overspill-signal time, of that with crypt=off 1.04 (1.03 to 1.20) met: 1.05",
            "seq-read, zram: library time, of the peer's 0.50 (0.45 to 0.55) not met: 0.50, 0.35",
            "seq-read, zram: library processor time, of the peer's 1.20 not met: 1.20, 1.00",
            "of the peer's 0.75 (sort 0.50, redis 0.75, cxx 2.00) not met: 0.75, 0.70 at most",
            "of the peer's 0.75 (sort 0.50, redis 0.75, cxx 2.00) met: 0.80 or less",
        ] {
            assert!(words.contains(said), "{said}: {words}");
        }
        assert_eq!(text.lines().count(), 2 + 6, "nothing is said of other contents: {text}");
    }
}
