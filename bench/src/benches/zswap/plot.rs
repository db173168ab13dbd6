//! Times and locks as a drawing.

use super::figures;
use crate::measure::host::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine) -> String {
    format!("overspill: zswap on {} CPUs, Linux {}", machine.cpus, machine.kernel)
}

/// The charts.
pub fn charts(rows: &[Row]) -> [Chart; 4] {
    let bars = |figure: &str| {
        Bars::of(rows, figure, |row| {
            let label =
                |name: &str| row.labels.get(name).and_then(Value::as_str).unwrap_or_default();
            (format!("{}, {}", label("case"), label("tier")), row.step.clone())
        })
    };
    [
        Chart {
            title: "All pages swapped in in sequence, by contents, tier on or off (bar: median; \
                    line: lowest to highest round)"
                .to_owned(),
            axis: "us",
            log: false,
            bars: bars(figures::IN_US),
        },
        Chart {
            title: "Locks of the compressed tier that this takes".to_owned(),
            axis: "a 1,000 pages",
            log: false,
            bars: bars(figures::LOCKS),
        },
        Chart {
            title: "The same where pages come in singly, at random".to_owned(),
            axis: "a 1,000 pages",
            log: false,
            bars: bars("single.locks"),
        },
        Chart {
            title: "Accesses at random".to_owned(),
            axis: "ns an access",
            log: false,
            bars: bars(figures::NS),
        },
    ]
}
