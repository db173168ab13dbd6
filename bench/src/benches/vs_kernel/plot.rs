//! The figures as drawings: a chart a peer and setting, with a group of bars a workload.

use super::figures;
use crate::machine::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;
use overspill::base::Bytes;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine, size: Bytes) -> String {
    let Machine { cpus, kernel, .. } = machine;
    format!("overspill beside the kernel's swap: {size} of memory, {cpus} CPUs, Linux {kernel}")
}

/// The charts: microseconds an access, one for each peer and setting.
pub fn charts(rows: &[Row]) -> Vec<Chart> {
    let mut of: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.figures.contains_key(figures::PER_ACCESS)) {
        let title = chart_of(row);
        match of.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => of.push((title, vec![row])),
        }
    }
    of.into_iter()
        .map(|(title, rows)| {
            let bars = Bars::of(rows, figures::PER_ACCESS, |row| (label(row, "workload"), series(row)));
            Chart { title, axis: "ns an access, lower is better", log: false, bars }
        })
        .collect()
}

/// What a row is compared within.
fn chart_of(row: &Row) -> String {
    let threads = label(row, "threads");
    format!(
        "Against the kernel's {}: {} times the RAM, contents {}, {threads} thread{}",
        peer(row),
        label(row, "overcommit"),
        label(row, "contents"),
        if threads == "1" { "" } else { "s" }
    )
}

/// A peer as people call it.
pub fn peer(row: &Row) -> String {
    match label(row, "peer").as_str() {
        "zram" => "zram (lz4)".to_owned(),
        "zswap" => "zswap (lz4)".to_owned(),
        "file" => "swap file".to_owned(),
        other => other.to_owned(),
    }
}

/// Who did the work, as people call it.
pub fn series(row: &Row) -> String {
    match row.step.as_str() {
        "peer" => "the kernel".to_owned(),
        "overspill-thread" => "overspill run".to_owned(),
        "overspill-signal" => "overspill run --fault signal".to_owned(),
        "library" => "overspill as a library".to_owned(),
        other => other.to_owned(),
    }
}

/// A label of a row as text.
pub fn label(row: &Row, name: &str) -> String {
    row.labels
        .get(name)
        .map_or(String::new(), |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
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
                "Against the kernel's zram (lz4): 4 times the RAM, contents 2.5:1, 1 thread",
                "Against the kernel's swap file: 4 times the RAM, contents 2.5:1, 2 threads",
            ]
        );
        let text = crate::plot::drawn("all", &charts(&rows)).unwrap();
        assert!(text.contains("overspill as a library") && text.contains("the kernel"), "{text}");
    }
}
