//! What is told of the work and of the kernel's swap beside it, and what is to be reached:
//! [`LADDER`] of accesses and known programs, [`OWN`] of a command of the user's.

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
                &["library"], $most,
                Rows::With(of!("workload" $workload, "peer" $peer; accesses)),
            ),)*)*
            $($other,)*
        ]
    };
}

const fn time(steps: &'static [&'static str], most: f64, rows: Rows) -> Verdict {
    verdict(steps, "ratio", "time, of the peer's", Goal::AtMost(most)).of(rows)
}

/// The median of the real programs.
const fn programs(
    step: &'static [&'static str],
    most: f64,
    labels: &'static [(&'static str, &'static str)],
) -> Verdict {
    let says = "time of programs (redis: of reads), of the peer's";
    verdict(step, "ratio", says, Goal::AtMost(most)).of(Rows::Across(labels))
}

/// What seals take of a random reader.
const fn sealed(figure: &'static str, says: &'static str, goal: Goal) -> Verdict {
    let rows = Rows::With(of!("workload" "rand-read", "peer" "file"; accesses));
    verdict(SIGNAL, figure, says, goal).of(rows)
}

const UNSEALED: Base = Base::Step("overspill-unsealed");
const THREAD: &[&str] = &["overspill-thread"];
const SIGNAL: &[&str] = &["overspill-signal"];
const ZRAM: &[(&str, &str)] = of!("peer" "zram", "overcommit" "4", "contents" "its own");
const ZSWAP: &[(&str, &str)] = of!("peer" "zswap", "overcommit" "4", "contents" "its own");
const FILE: &[(&str, &str)] = of!("peer" "file", "overcommit" "4", "contents" "its own");

const CHARTS: &[Chart] = &[
    titled(title, "ratio", "overspill's time ÷ the kernel's time")
        .line(1.0, "as fast as the kernel"),
    titled(
        |row| title(row).filter(|_| is_access(row)),
        "ns_per_access",
        "microseconds an access, lower is better",
    ),
    titled(|row| title(row).filter(|_| !is_access(row)), "elapsed_s", "seconds, lower is better"),
];

const CALLED: &[(&str, &str)] = &[
    ("peer", "the kernel"),
    ("overspill-thread", "overspill run --fault thread"),
    ("overspill-signal", "overspill run"),
    ("overspill-unsealed", "overspill run, crypt=off"),
    ("library", "overspill as a library"),
];

/// What RAM is used for, and what it does not hold.
const RAM: &[Column] = &[
    wide("RAM", "ram_bytes_peak", mib),
    col("pool", "pool_bytes_peak", mib),
    col("packed", "packed", short),
    wide("limit", "limit_bytes", mib),
    col("metadata", "metadata_bytes", short_mib),
    col("pages in", "pages_in", whole),
    col("major faults", "major_faults", whole),
    col("device MiB", "device_bytes", mib),
    col("written", "device_bytes_written", mib),
];

pub static LADDER: Ladder = Ladder {
    bench: "vs-kernel",
    groups: &["workload", "peer"],
    tables: &[
        Table {
            title: "Elapsed time of the accesses and processor time meanwhile, with that of \
                    overspill's threads; each as a ratio to the peer of the same round, lower is \
                    better; microseconds of an access: mean, median, 99th and 99.9th percentile.",
            columns: &[
                col("elapsed s", "elapsed_s", short),
                wide("ratio", "ratio", ratio),
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
            columns: RAM,
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
        compare("ratio", How::Times, "elapsed_s", Base::Step("peer")),
        compare("cpu_ratio", How::Times, "cpu_s", Base::Step("peer")),
        compare("p999_ratio", How::Times, "p999_ns", Base::Step("peer")),
        compare("seal_ratio", How::Times, "elapsed_s", UNSEALED).only("overspill-signal"),
        compare("seal_cpu_ratio", How::Times, "cpu_s", UNSEALED).only("overspill-signal"),
    ],
    verdicts: goals![
        "seq-write" ["zram" 0.45, "zswap" 0.35, "file" 0.80]
        "seq-read" ["zram" 0.35, "zswap" 0.30, "file" 0.30]
        "rand-read" ["zram" 0.40, "zswap" 0.35, "file" 0.60]
        "rand-write" ["zram" 0.50, "zswap" 0.40, "file" 0.60]
        "zipf-read" ["zram" 0.40, "zswap" 0.35, "file" 0.60];
        verdict(&["library"], "cpu_ratio", "processor time, of the peer's", Goal::AtMost(1.0))
            .of(Rows::With(of!("overcommit" "4", "contents" "2.5:1"))),
        time(THREAD, 0.80, Rows::With(of!("peer" "zram"; accesses))),
        time(SIGNAL, 0.80, Rows::With(of!("peer" "zram"; accesses))),
        sealed("seal_ratio", "time, of that with crypt=off", Goal::AtMost(1.05)),
        sealed("seal_cpu_ratio", "processor time, of that with crypt=off", Goal::Told),
        programs(THREAD, 0.80, ZRAM),
        programs(THREAD, 0.70, ZRAM),
        programs(THREAD, 0.60, ZSWAP),
        programs(THREAD, 0.50, FILE),
        programs(SIGNAL, 0.80, ZRAM),
        programs(SIGNAL, 0.70, ZRAM),
        programs(SIGNAL, 0.60, ZSWAP),
        programs(SIGNAL, 0.50, FILE),
        verdict(&["floor"], "minor_fault_ratio", "minor fault, of a bare one", Goal::AtMost(1.25)),
    ],
    charts: CHARTS,
    called: CALLED,
    ..Ladder::NONE
};

/// Whether a row is about accesses to memory, not about a program.
fn is_access(row: &Row) -> bool {
    row.figures.contains_key("ns_per_access")
}

/// What a command of the user's is told of: the tables and charts of programs, and verdicts of its
/// own.
pub static OWN: Ladder = Ladder {
    bench: "vs-kernel",
    groups: &["workload", "peer"],
    tables: &[
        Table {
            title: "Elapsed time of the command, as a ratio to the peer of the same round and to \
                    the command by itself (alone), lower is better; processor time, with that of \
                    overspill's threads, and its ratio to the peer's.",
            columns: &[
                wide("elapsed s", "elapsed_s", short),
                wide("ratio", "ratio", ratio),
                wide("of alone", "native_ratio", ratio),
                col("cpu s", "cpu_s", short),
                wide("cpu ratio", "cpu_ratio", ratio),
            ],
        },
        Table {
            title: "RAM at most in MiB, all in all; the part of it that is a compressed pool \
                    outside of the cgroup, and how far that packed; limit of the cgroup, or \
                    budget; pages brought in, faults that waited for a device (zram is one), and \
                    MiB written to and read from a device.",
            columns: RAM,
        },
    ],
    comparisons: &[
        compare("ratio", How::Times, "elapsed_s", Base::Step("peer")),
        compare("cpu_ratio", How::Times, "cpu_s", Base::Step("peer")),
    ],
    verdicts: &[
        verdict(SIGNAL, "ratio", "time, of the peer's", Goal::AtMost(1.0)),
        verdict(THREAD, "ratio", "time, of the peer's", Goal::AtMost(1.0)),
        verdict(SIGNAL, "native_ratio", "time, of that by itself", Goal::Told),
        verdict(THREAD, "native_ratio", "time, of that by itself", Goal::Told),
    ],
    charts: CHARTS,
    called: CALLED,
    ..Ladder::NONE
};

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
