//! `overspill-bench swap-r-rand` from the outside: what it prints, and what it counts.

mod common;

use common::{bench_in_the_engine, json, words};
use serde_json::Value;

const NAME: &str = "swap-r-rand";
const SMALL: &str = "--memory 8M --reads 4000 --rounds 1";

#[test]
fn json_tells_reads_apart_by_where_their_pages_were() {
    let Some(outcome) = bench_in_the_engine(NAME, &format!("{SMALL} --threads 1,2 --json")) else {
        return;
    };
    let value = json(&outcome);
    assert_eq!(
        (&value["bench"], &value["settings"]["size_bytes"]),
        (&NAME.into(), &(32 << 20).into())
    );
    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["threads"].as_u64().unwrap(), row["step"].as_str().unwrap()))
        .collect();
    let steps = ["plain", "readahead", "clean", "readahead-clean"];
    let expected: Vec<_> =
        [1, 2].into_iter().flat_map(|threads| steps.map(|step| (threads, step))).collect();
    assert_eq!(names, expected);
    let figure = |row: &Value, group: &str, name: &str| row["figures"][group][name].as_f64();
    for row in rows {
        let p50 = figure(row, "any", "p50_ns").unwrap();
        assert!(figure(row, "any", "p99_ns").unwrap() >= p50 && p50 > 0.0, "{row}");
        // Four times the budget is read from, and a part of it is compressed at most.
        let shares = ["resident", "minor", "compressed", "device"]
            .map(|source| figure(row, source, "ratio"));
        if row["threads"] == 1 {
            assert!((shares.iter().flatten().sum::<f64>() - 1.0).abs() < 0.001, "{row}");
            assert!(shares[2] > Some(0.05) && shares[3] > Some(0.2), "{row}");
        } else {
            assert_eq!(
                shares, [None; 4],
                "with more threads it is not known whose doing a count is: {row}"
            );
        }
    }
    let written = |row: &Value| row["figures"]["pages_written_per_page_read"].as_f64().unwrap();
    assert!(written(&rows[0]) > 0.5, "a slot that was read is given up: {}", rows[0]);
    assert!(
        written(&rows[2]) < 0.3,
        "a page that keeps its slot is not written again: {}",
        rows[2]
    );
}

#[test]
fn without_json_it_prints_tables_and_what_they_show() {
    let Some(outcome) = bench_in_the_engine(NAME, &format!("{SMALL} --threads 2,1")) else {
        return;
    };
    let lines_of = |threads: &str| {
        outcome.stdout.lines().filter(|l| l.trim_start().starts_with(threads)).count()
    };
    assert_eq!((lines_of("2  "), lines_of("1  ")), (4, 2 * 4), "{}", outcome.stdout);
    let last = outcome.stdout.lines().last().unwrap();
    assert!(last.ends_with("too few rounds to tell"), "{last}");
    let said = "1 thread: clean pages written for one read ";
    assert!(words(&outcome).contains(said), "{}", outcome.stdout);
}
