//! The ladder as a drawing: throughput, and below it the serial time of the lock that would limit
//! it.

use super::figures;
use crate::measure::host::Machine;
use crate::plot::{Bars, Chart};
use crate::report::Row;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine) -> String {
    format!("overspill: swap-w-seq on {} CPUs, Linux {}", machine.cpus, machine.kernel)
}

/// The charts.
pub fn charts(rows: &[Row]) -> [Chart; 2] {
    let bars = |figure: &str| {
        Bars::of(rows, figure, |row| {
            let threads = row.labels.get("threads").and_then(Value::as_u64).unwrap_or(0);
            (row.step.clone(), format!("{threads} thread{}", if threads == 1 { "" } else { "s" }))
        })
    };
    [
        Chart {
            title: "Pages swapped out (bar: median; line: lowest to highest round)".to_owned(),
            axis: "pages a second",
            log: false,
            bars: bars(figures::RATE),
        },
        Chart {
            title: "Time that each page out holds the lock that would limit it (less is better)"
                .to_owned(),
            axis: "ns a page, log scale",
            log: true,
            bars: bars(figures::SERIAL),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;
    use crate::plot::drawn;
    use serde_json::json;

    fn row(step: &str, threads: u64, rate: f64) -> Row {
        let sample = |scale: f64| {
            Sample::from([
                (figures::RATE.to_owned(), rate * scale),
                (figures::SERIAL.to_owned(), scale / rate),
            ])
        };
        Row::new(step, &[("threads", json!(threads))], None, &vec![sample(1.0), sample(2.0)])
    }

    #[test]
    fn a_drawing_names_axes_steps_and_threads_and_has_a_bar_for_each_row() {
        let rows = [row("baseline", 1, 1e5), row("slot-caches", 1, 2e5), row("baseline", 32, 3e5)];
        let machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        let text = drawn(&title(&machine), &charts(&rows)).unwrap();
        for said in [
            "swap-w-seq on 2 CPUs, Linux 6.18",
            "pages a second",
            "baseline",
            "slot-caches",
            "32 threads",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let of_colour = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        // Two charts; a bar a row, and one in the legend.
        assert_eq!(
            (of_colour("#0072B2"), of_colour("#E69F00")),
            (2 * (2 + 1), 2 * (1 + 1)),
            "{text}"
        );
    }
}
