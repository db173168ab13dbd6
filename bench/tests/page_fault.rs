//! `overspill-bench page-fault` from the outside: what it prints.

mod common;

use common::{bench_in_the_engine, json, words};
use overspill_tests::process::run;
use overspill_tests::{TIME_LIMIT, clean};
use std::process::Command;

const NAME: &str = "page-fault";

#[test]
fn json_has_a_row_a_step_with_its_figures() {
    let args = "--size 1M --rounds 1 --threads 1 --steps folios,kernel --json";
    let Some(outcome) = bench_in_the_engine(NAME, args) else { return };
    let value = json(&outcome);
    assert_eq!(value["bench"], NAME);
    assert!(
        value["machine"]["cpus"].as_u64() > Some(0)
            && value["machine"]["ram_bytes"].as_u64() > Some(1 << 20)
    );
    assert!(value["machine"]["kernel"].as_str().is_some_and(|release| release.contains('.')));
    let settings = &value["settings"];
    assert_eq!(
        (&settings["size_bytes_by_threads"]["1"], &settings["rounds"]),
        (&(1 << 20).into(), &1.into())
    );
    assert_eq!(settings["sizes_scaled_down"], false);

    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> =
        rows.iter().map(|row| (row["step"].as_str().unwrap(), row["threads"].as_u64())).collect();
    assert_eq!(names, [("kernel", Some(1)), ("folios", Some(1))]);
    for row in rows {
        let figures = row["figures"].as_object().unwrap();
        assert!(figures["faults_per_s"].as_f64() > Some(0.0), "{figures:?}");
        assert!(!figures.contains_key("faults_per_s_min"), "one round has no spread: {figures:?}");
        assert!(figures.values().all(|value| value.is_number()), "{figures:?}");
    }
    let folios = &rows[1]["figures"];
    // A sequential pass over 256 pages: folios of 1, 2, 4, 8, then 16 pages each.
    let pages_per_fault = folios["pages_per_fault"].as_f64().unwrap();
    assert!(pages_per_fault > 8.0 && pages_per_fault <= 16.0, "{folios}");
    assert!(folios["ratio_to_kernel"].as_f64() > Some(0.0), "{folios}");
}

#[test]
fn without_json_it_prints_a_table_with_the_spread_and_what_that_shows() {
    let args = "--size 64K --rounds 2 --threads 1,3 --steps kernel,folios";
    let Some(outcome) = bench_in_the_engine(NAME, args) else { return };
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(
        lines[0].starts_with("threads  step") && lines[0].contains("faults/s"),
        "{}",
        outcome.stdout
    );
    let rows: Vec<Vec<&str>> =
        lines.iter().map(|line| line.split_whitespace().take(2).collect()).collect();
    for row in [["1", "kernel"], ["1", "folios"], ["3", "kernel"], ["3", "folios"]] {
        assert!(rows.iter().any(|cells| cells == &row), "{row:?} in {}", outcome.stdout);
    }
    let table = lines.iter().take_while(|line| !line.starts_with("Medians ("));
    let spreads = table.filter(|line| line.contains(" to ")).count();
    assert_eq!(spreads, 4, "a spread a row: {}", outcome.stdout);
    let said = "3 threads: folios times the kernel's pages a second ";
    assert!(words(&outcome).contains(said), "{}", outcome.stdout);
}

#[test]
fn an_engine_that_cannot_be_made_is_one_sentence_and_status_1() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    let command = clean(
        command.args("page-fault --size 64K --rounds 1 --threads 1 --steps folios".split(' ')),
    );
    let outcome = run(command.env("OVERSPILL_SIMULATE", "no-uffd"), TIME_LIMIT);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("overspill-bench: folios, 1 thread: this kernel gives"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}
