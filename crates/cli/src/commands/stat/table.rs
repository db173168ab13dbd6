//! Samples as lines for people, in vmstat's layout, and times of faults as a table.

use super::sample::Sample;
use crate::report::duration;
use overspill::stats::Counter;
use overspill::units::Bytes;

/// Lines of the header.
pub const HEAD_LINES: usize = 2;

/// A column: its heading, how wide it is at least, and what is in it.
struct StatColumn {
    title: &'static str,
    width: usize,
    value: fn(&Sample) -> String,
}

/// Columns of one kind, under a heading.
struct Group {
    title: &'static str,
    columns: &'static [StatColumn],
}

const fn column(title: &'static str, width: usize, value: fn(&Sample) -> String) -> StatColumn {
    StatColumn { title, width, value }
}

const GROUPS: &[Group] = &[
    Group { title: "procs", columns: &[column("p", 5, |sample| sample.processes.to_string())] },
    Group {
        title: "memory",
        columns: &[
            column("swpd", 8, |sample| kib(sample.pages(Counter::DevicePages))),
            column("free", 7, |sample| kib(sample.free())),
            column("res", 8, |sample| kib(sample.pages(Counter::ResidentPages))),
            column("cache", 7, |sample| kib(sample.pages(Counter::SwapCachePages))),
            column("other", 6, |sample| kib(Bytes(sample.get(Counter::UnmanagedBytes)))),
        ],
    },
    Group {
        title: "zswap",
        columns: &[
            column("stored", 8, |sample| kib(sample.pages(Counter::CompressedPages))),
            column("pool", 7, |sample| kib(Bytes(sample.get(Counter::CompressedPoolBytes)))),
            column("ratio", 5, |sample| format!("{:.1}", sample.ratio())),
            column("zi", 6, |sample| kib_a_second(sample, Counter::ZswpIn)),
            column("zo", 6, |sample| kib_a_second(sample, Counter::ZswpOut)),
        ],
    },
    Group {
        title: "swap",
        columns: &[
            column("si", 6, |sample| kib_a_second(sample, Counter::PswpIn)),
            column("so", 6, |sample| kib_a_second(sample, Counter::PswpOut)),
        ],
    },
    Group {
        title: "io",
        columns: &[
            column("rd", 5, |sample| whole(sample.rate(Counter::PswpInOps))),
            column("wr", 5, |sample| whole(sample.rate(Counter::PswpOutOps))),
        ],
    },
    Group {
        title: "faults",
        columns: &[
            column("minor", 6, |sample| whole(sample.minor_rate())),
            column("major", 6, |sample| whole(sample.rate(Counter::PgMajFault))),
        ],
    },
    Group {
        title: "stall%",
        columns: &[
            column("some", 4, |sample| whole(sample.stalled_percent()[0])),
            column("full", 4, |sample| whole(sample.stalled_percent()[1])),
        ],
    },
];

/// The header.
pub fn head() -> String {
    let titles = GROUPS.iter().map(|group| {
        let width = group.columns.iter().map(|column| column.width + 1).sum::<usize>() - 1;
        format!("{:-^width$}", group.title)
    });
    let columns = GROUPS.iter().flat_map(|group| group.columns);
    let columns = columns.map(|column| format!("{:>width$}", column.title, width = column.width));
    format!("{}\n{}\n", join(titles), join(columns))
}

/// A sample as a line.
pub fn line(sample: &Sample) -> String {
    // What is too wide for its column takes from the room of those behind it, as far as they have
    // some.
    let mut over = 0;
    let cells = GROUPS.iter().flat_map(|group| group.columns).map(|column| {
        let width = column.width.saturating_sub(over);
        let cell = format!("{:>width$}", (column.value)(sample));
        over = (cell.len() + over).saturating_sub(column.width);
        cell
    });
    join(cells) + "\n"
}

/// Times of the faults of a sample: a line a kind.
pub fn latency(sample: &Sample) -> String {
    let mut text = format!(
        "{:<10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "faults", "count", "p50", "p90", "p99", "p99.9", "max", "together"
    );
    for (name, times) in sample.latency.kinds() {
        let within = |per_mille| {
            if times.count() == 0 { "-".to_owned() } else { duration(times.within_ns(per_mille)) }
        };
        let (max, together) = (within(1000), duration(times.total_ns()));
        text += &format!(
            "{name:<10} {:>10} {:>9} {:>9} {:>9} {:>9} {max:>9} {together:>9}\n",
            times.count(),
            within(500),
            within(900),
            within(990),
            within(999)
        );
    }
    text + "\n"
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

fn kib(bytes: Bytes) -> String {
    (bytes.0 >> 10).to_string()
}

fn kib_a_second(sample: &Sample, pages: Counter) -> String {
    whole(sample.rate(pages) * (Bytes::from_pages(1).0 >> 10) as f64)
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::stats;
    use super::*;
    use crate::control::protocol::JobStats;

    fn sample(counters: &[(Counter, u64)]) -> Sample {
        Sample::new(1, &JobStats::default(), &stats(2_000, counters))
    }

    #[test]
    fn lines_stand_under_their_header() {
        let counters = [
            (Counter::LimitBytes, 64 << 20),
            (Counter::ChargedBytes, 60 << 20),
            (Counter::ResidentPages, 10_000),
            (Counter::DevicePages, 25),
            (Counter::CompressedPages, 1024),
            (Counter::CompressedPoolBytes, 1 << 20),
            (Counter::ZswpOut, 500),
            (Counter::PswpOut, 50),
            (Counter::PswpOutOps, 4),
            (Counter::PgFault, 2_000),
            (Counter::PgMajFault, 20),
        ];
        let head = head();
        let heads: Vec<&str> = head.lines().collect();
        let line = line(&sample(&counters));
        assert_eq!(heads.len(), HEAD_LINES);
        assert!(heads.iter().all(|head| head.len() + 1 == line.len()), "{heads:#?}\n{line}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let expected = "p 1, swpd 100, free 4096, res 40000, cache 0, other 0, stored 4096, \
                        pool 1024, ratio 4.0, zi 0, zo 1000, si 0, so 100, rd 0, wr 2, minor 990, \
                        major 10, some 0, full 0";
        let shown: Vec<_> =
            words(heads[1]).iter().zip(words(&line)).map(|(a, b)| format!("{a} {b}")).collect();
        assert_eq!(shown.join(", "), expected);
        assert!(
            heads[0].contains("-memory-")
                && heads[0].contains("faults")
                && heads[0].contains("stall%"),
            "{head}"
        );
    }

    #[test]
    fn what_is_too_wide_moves_its_neighbours_as_little_as_can_be() {
        let narrow = line(&sample(&[(Counter::DevicePages, 1)]));
        let wide = line(&sample(&[(Counter::DevicePages, 1 << 30)]));
        assert!(wide.contains(" 4294967296 ") && wide.len() == narrow.len(), "{narrow}{wide}");
    }

    #[test]
    fn times_are_told_by_kind() {
        let mut now = stats(1_000, &[]);
        now.latency = vec![vec![(56, 3)], Vec::new(), Vec::new(), vec![(120, 1)]];
        let text = latency(&Sample::new(1, &JobStats::default(), &now));
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["faults", "count", "p50", "p90", "p99", "p99.9", "max", "together"]);
        let names: Vec<_> = words[1..9].iter().map(|line| (line[0], line[1])).collect();
        let expected = [
            ("all", "4"),
            ("minor", "3"),
            ("major", "1"),
            ("zero", "3"),
            ("cache", "0"),
            ("compressed", "0"),
            ("device", "1"),
        ];
        assert_eq!(names[..7], expected);
        assert_eq!(words[5][2], "-", "no time without a fault");
    }
}
