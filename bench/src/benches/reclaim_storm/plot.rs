//! The figures as a drawing.

use super::figures;
use crate::measure::host::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;

/// What stands above the drawing.
pub fn title(machine: &Machine, groups: u32) -> String {
    let Machine { cpus, kernel, .. } = machine;
    format!("overspill: reclaim-storm, {groups} groups on {cpus} CPUs, Linux {kernel}")
}

/// The charts.
pub fn charts(rows: &[Row]) -> [Chart; 4] {
    let bars = |figure: &str, name: &str| {
        Bars::of(rows, figure, |row| (row.step.clone(), name.to_owned()))
    };
    [
        Chart {
            title: "Until all messages have arrived (bar: median; line: lowest to highest round)"
                .to_owned(),
            axis: "s",
            log: false,
            bars: bars(figures::BENCHMARK, "benchmark"),
        },
        Chart {
            title: "Pages read from the device".to_owned(),
            axis: "major faults",
            log: false,
            bars: bars(figures::MAJOR, "major faults"),
        },
        Chart {
            title: "Pages evicted that came back within a second".to_owned(),
            axis: "pages",
            log: false,
            bars: bars(figures::REFAULTS, "refaults"),
        },
        Chart {
            title: "Most threads that reclaimed at once".to_owned(),
            axis: "threads",
            log: true,
            bars: bars(figures::PARALLEL, "at once"),
        },
    ]
}
