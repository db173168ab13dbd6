//! The figures as a drawing, with those of the origin beside them.

use super::figures;
use super::step::{REFERENCE_AFTER, REFERENCE_BEFORE, REFERENCE_BYTES};
use crate::measure::host::Machine;
use crate::measure::{Sample, Spread};
use crate::plot::{Bars, Chart};
use crate::report::Row;
use overspill::base::Bytes;
use serde_json::Value;

/// What stands above the drawing.
pub fn title(machine: &Machine, size: Bytes) -> String {
    let Machine { cpus, kernel, .. } = machine;
    format!("overspill: swapoff of {size} on {cpus} CPUs, Linux {kernel}")
}

/// The charts.
pub fn charts(rows: &[Row]) -> [Chart; 3] {
    let published: Vec<Row> =
        [("theirs, before", REFERENCE_BEFORE), ("theirs, after", REFERENCE_AFTER)]
            .map(|(name, reference)| {
                let rate = REFERENCE_BYTES as f64 / 1e6 / reference.elapsed_s;
                let figures = [
                    (figures::ELAPSED.to_owned(), reference.elapsed_s),
                    (figures::MB_PER_S.to_owned(), rate),
                ];
                Row::new(name, &[], None, &vec![Sample::from(figures)])
            })
            .into();
    let mut all: Vec<&Row> = rows.iter().collect();
    all.extend(&published);
    let bars = |figure: &str, rows: &[&Row]| {
        Bars::of(rows.iter().copied(), figure, |row| {
            let workload = row
                .labels
                .get("workload")
                .and_then(Value::as_str)
                .unwrap_or("FreeBSD, 1 GiB, as published");
            (row.step.clone(), workload.to_owned())
        })
    };
    // What the disk can do is the same for all steps but for noise.
    let disk: Option<Spread> =
        rows.iter().find_map(|row| row.figures.get(figures::DEVICE_MB_PER_S)).copied();
    let of_disk = disk
        .map_or(String::new(), |disk| format!("; the disk, in sequence: {:.0} MB/s", disk.median));
    [
        Chart {
            title: "Until the device is empty (bar: median; line: lowest to highest round)"
                .to_owned(),
            axis: "seconds, log scale, lower is better",
            log: true,
            bars: bars(figures::ELAPSED, &all),
        },
        Chart {
            title: format!("Pages that come in{of_disk}"),
            axis: "MB/s, higher is better",
            log: false,
            bars: bars(figures::MB_PER_S, &all),
        },
        Chart {
            title: "How many times slower the load is meanwhile".to_owned(),
            axis: "times, lower is better",
            log: false,
            bars: bars(figures::LOAD_SLOWDOWN, &all),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::drawn;
    use serde_json::json;

    #[test]
    fn the_drawing_has_a_bar_for_each_row_and_for_what_was_published() {
        let row = |step: &str, workload: &str| {
            let sample = crate::testing::sample([
                (figures::ELAPSED, 2.0),
                (figures::MB_PER_S, 500.0),
                (figures::DEVICE_MB_PER_S, 1000.0),
            ]);
            Row::new(step, &[("workload", json!(workload))], None, &vec![sample])
        };
        let rows = [row("run-1", "alone"), row("in-flight", "alone"), row("run-1", "load")];
        let machine = Machine { cpus: 2, kernel: "6.18".to_owned(), ram_bytes: 0 };
        let text = drawn(&title(&machine, Bytes(1 << 30)), &charts(&rows)).unwrap();
        for said in [
            "swapoff of 1 GiB on 2 CPUs",
            "run-1",
            "in-flight",
            "theirs, before",
            "in sequence: 1000 MB/s",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let of_colour = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        // Two charts with bars, each with one more in the legend.
        let expected = (2 * (2 + 1), 2 * (1 + 1), 2 * (2 + 1));
        assert_eq!(
            (of_colour("#0072B2"), of_colour("#E69F00"), of_colour("#009E73")),
            expected,
            "{text}"
        );
    }
}
