//! Misses as a drawing.

use super::figures;
use crate::measure::host::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine) -> String {
    format!("overspill: working sets on {} CPUs, Linux {}", machine.cpus, machine.kernel)
}

/// The charts.
pub fn charts(rows: &[Row]) -> [Chart; 2] {
    let bars = |figure: &str| {
        Bars::of(rows, figure, |row| {
            let trace = row.labels.get("trace").and_then(Value::as_str).unwrap_or_default();
            (trace.to_owned(), row.step.clone())
        })
    };
    [
        Chart {
            title: "Misses by trace (bar: median; line: lowest to highest round)".to_owned(),
            axis: "of 1,000 accesses",
            log: false,
            bars: bars(figures::MISSES),
        },
        Chart {
            title: "Misses of hot pages during one pass over four times the memory".to_owned(),
            axis: "of 1,000 accesses",
            log: false,
            bars: bars(figures::HOT_MISSES),
        },
    ]
}
