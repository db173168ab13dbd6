//! The figures as drawings: a chart a peer and setting, with a group of bars a workload.

use super::figures;
use crate::measure::host::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;
use overspill::base::Bytes;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine, size: Bytes) -> String {
    let Machine { cpus, kernel, .. } = machine;
    format!("overspill beside the kernel's swap: {size} of memory, {cpus} CPUs, Linux {kernel}")
}

/// The charts: how long it took, one for each peer and setting.
pub fn charts(rows: &[Row]) -> Vec<Chart> {
    let chart = |(title, rows): (String, Vec<&Row>)| {
        let is_access = rows.iter().any(|row| row.figures.contains_key(figures::PER_ACCESS));
        let (figure, axis) = if is_access {
            (figures::PER_ACCESS, "nanoseconds an access, lower is better")
        } else {
            (figures::ELAPSED, "seconds, lower is better")
        };
        let place = |row: &Row| {
            (
                label(row, "workload"),
                Who::of(row).map_or(String::new(), |who| who.name().to_owned()),
            )
        };
        Chart { title, axis, log: false, bars: Bars::of(rows, figure, place) }
    };
    groups(rows).into_iter().map(chart).collect()
}

/// Rows that belong together, and what they are about: those of a peer and setting, with programs
/// by themselves.
pub fn groups(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut of: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.labels.contains_key("peer")) {
        let title = title_of(row);
        match of.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => of.push((title, vec![row])),
        }
    }
    of
}

/// What a row is compared within.
fn title_of(row: &Row) -> String {
    let (peer, overcommit, threads) = (peer(row), label(row, "overcommit"), label(row, "threads"));
    if !row.figures.contains_key(figures::PER_ACCESS) {
        return format!("Real programs, against the kernel's {peer}: {overcommit} times the RAM");
    }
    let s = if threads == "1" { "" } else { "s" };
    let contents = label(row, "contents");
    format!(
        "Accesses, against the kernel's {peer}: {overcommit} times the RAM, contents {contents}, \
         {threads} thread{s}"
    )
}

/// All peers as people call them.
pub const PEERS: [&str; 3] = ["zram", "zswap", "swap file"];

/// A peer as people call it.
pub fn peer(row: &Row) -> String {
    match label(row, "peer").as_str() {
        "file" => "swap file".to_owned(),
        other => other.to_owned(),
    }
}

/// Who did the work, as people call it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The program by itself.
    Kernel,
    /// Under `overspill run`.
    Run,
    /// The same with faults by signal.
    Signal,
    /// A process of the library.
    Library,
}

impl Who {
    /// All of them.
    pub const ALL: [Who; 4] = [Who::Kernel, Who::Run, Who::Signal, Who::Library];
    /// Those with overspill.
    pub const OURS: [Who; 3] = [Who::Run, Who::Signal, Who::Library];

    /// That of a row.
    pub fn of(row: &Row) -> Option<Who> {
        match row.step.as_str() {
            "peer" => Some(Who::Kernel),
            "overspill-thread" => Some(Who::Run),
            "overspill-signal" => Some(Who::Signal),
            "library" => Some(Who::Library),
            _ => None,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Who::Kernel => "the kernel",
            Who::Run => "overspill run",
            Who::Signal => "overspill run --fault signal",
            Who::Library => "overspill as a library",
        }
    }

    /// For styles.
    pub fn class(self) -> &'static str {
        match self {
            Who::Kernel => "kernel",
            Who::Run => "run",
            Who::Signal => "signal",
            Who::Library => "library",
        }
    }
}

/// A label of a row as text.
pub fn label(row: &Row, name: &str) -> String {
    row.labels.get(name).map_or(String::new(), |value: &Value| {
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;
    use serde_json::json;

    #[test]
    fn there_is_a_chart_for_each_peer_and_setting() {
        let row = |peer: &str, threads: u32, step: &str| {
            let labels = [
                ("workload", json!("seq-read")),
                ("peer", json!(peer)),
                ("overcommit", json!(4)),
                ("contents", json!("2.5:1")),
                ("threads", json!(threads)),
            ];
            Row::new(step, &labels, None, &vec![sample([(figures::PER_ACCESS, 7000.0)])])
        };
        let rows = [
            Row::new("floor", &[], None, &vec![sample([(figures::BARE_COPY, 1.0)])]),
            row("zram", 1, "peer"),
            row("zram", 1, "library"),
            row("file", 2, "library"),
        ];
        let titles: Vec<String> = charts(&rows).into_iter().map(|chart| chart.title).collect();
        assert_eq!(
            titles,
            [
                "Accesses, against the kernel's zram: 4 times the RAM, contents 2.5:1, 1 thread",
                "Accesses, against the kernel's swap file: 4 times the RAM, contents 2.5:1, 2 \
                 threads",
            ]
        );
        let text = crate::plot::drawn("all", &charts(&rows)).unwrap();
        assert!(text.contains("overspill as a library") && text.contains("the kernel"), "{text}");
    }
}
