//! `overspill-bench zswap` from the outside: what it prints, and what it counts.

mod common;

use common::{bench_in_the_engine, figure, json, room, words};
use serde_json::Value;

const NAME: &str = "zswap";
/// Pages for the smallest budget several times over: some seconds in a debug build.
const SMALL: &str = "--size 32M --rounds 1";

/// The rows of a case, each with its tier and step.
fn rows<'a>(value: &'a Value, case: &str) -> Vec<((&'a str, &'a str), &'a Value)> {
    let rows = value["rows"].as_array().unwrap().iter().filter(|row| row["case"] == case);
    rows.map(|row| ((row["tier"].as_str().unwrap(), row["step"].as_str().unwrap()), row)).collect()
}

#[test]
fn json_tells_how_often_a_lock_was_taken_for_nothing() {
    let Some(outcome) =
        bench_in_the_engine(NAME, &format!("{SMALL} --cases zero,reviewers --json"))
    else {
        return;
    };
    let value = json(&outcome);
    assert_eq!(
        (&value["bench"], &value["settings"]["size_bytes"]),
        (&NAME.into(), &(32 << 20).into())
    );
    let three = |tier: &'static str| ["always", "empty", "empty+lookup"].map(|step| (tier, step));
    let zero = rows(&value, "zero");
    let names: Vec<_> = zero.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [&three("off")[..], &three("on")[..], &[("on", "same-filled")]].concat());
    assert_eq!(zero[0].1["reference"]["swapin_us"].as_f64(), Some(1_905_000.0));
    for ((tier, step), row) in &zero {
        assert!(figure(row, "swapout_us") > 0.0 && figure(row, "swapin_us") > 0.0, "{row}");
        assert!(figure(row, "out_ratio") > 0.7, "{row}");
        let locks = ["locks", "single.locks"].map(|name| figure(row, name));
        let freed = ["freed", "single.freed"].map(|name| figure(row, name));
        match (*tier, *step) {
            // A lock for each slot, of which some may be given back together with what is written
            // meanwhile.
            (_, "always") | ("on", "empty") => assert!(locks.iter().all(|n| *n > 900.0), "{row}"),
            // Nothing is there, which is seen without a lock.
            ("off", _) => assert_eq!((locks, figure(row, "out.locks")), ([0.0; 2], 0.0), "{row}"),
            // Each entry goes, those of a folio in one hold.
            ("on", "empty+lookup") => assert!(locks[0] < 500.0 && freed[0] > 800.0, "{row}"),
            // Neither a slot nor an entry.
            ("on", "same-filled") => {
                assert_eq!(
                    (locks, freed, figure(row, "out.locks")),
                    ([0.0; 2], [0.0; 2], 0.0),
                    "{row}"
                )
            }
            other => panic!("{other:?}"),
        }
    }
    // Ranges that have an entry here and there: only the look-up tells.
    let reviewers = rows(&value, "reviewers");
    let [_, empty, lookup, own] = &reviewers[3..] else { panic!("{reviewers:?}") };
    assert_eq!(
        (empty.0, lookup.0, own.0),
        (("on", "empty"), ("on", "empty+lookup"), ("on", "slots=own"))
    );
    assert!(figure(empty.1, "locks") > 300.0, "{}", empty.1);
    assert!(
        figure(lookup.1, "locks") < 10.0 && figure(lookup.1, "lookups") > 300.0,
        "{}",
        lookup.1
    );
    // Not where they have slots of their own: no slot of the device has an entry.
    assert!(
        figure(own.1, "locks") < 10.0
            && figure(own.1, "lookups") < figure(lookup.1, "lookups") / 2.0,
        "{}",
        own.1
    );
}

#[test]
fn several_threads_read_each_page_once() {
    let Some(outcome) =
        bench_in_the_engine(NAME, &format!("{SMALL} --cases random --threads 3 --json"))
    else {
        return;
    };
    let value = json(&outcome);
    assert_eq!(value["settings"]["threads"], 3);
    for ((_, step), row) in rows(&value, "random") {
        let locks = ["locks", "single.locks"].map(|name| figure(row, name));
        assert!(figure(row, "cpu_us") > 0.0 && figure(row, "single.cpu_us") > 0.0, "{row}");
        // Each page that comes in gives its slot back once, whoever reads it.
        assert!(step != "always" || locks.iter().all(|n| (900.0..1300.0).contains(n)), "{row}");
    }
}

#[test]
fn accesses_at_random_are_told_by_what_they_cost() {
    let cases = "--cases incompressible,write-mostly,read-mostly";
    let Some(outcome) = bench_in_the_engine(NAME, &format!("--size 64M --rounds 1 {cases} --json"))
    else {
        return;
    };
    let value = json(&outcome);
    let read = rows(&value, "read-mostly");
    let names: Vec<_> = read.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [("on", "keep=off"), ("on", "keep=on"), ("on", "keep=auto")]);
    for (_, row) in &read {
        assert!(
            figure(row, "ns_per_access") > 0.0 && figure(row, "per_1000.unpacked") > 100.0,
            "{row}"
        );
    }
    assert_eq!(
        figure(read[0].1, "per_1000.left_clean"),
        0.0,
        "a page that is read gives its copy up: {}",
        read[0].1
    );
    assert!(
        figure(read[1].1, "per_1000.left_clean") > 0.0,
        "copies are kept and used: {}",
        read[1].1
    );
    assert_eq!(rows(&value, "write-mostly").len(), 3);
    let raw = rows(&value, "incompressible");
    // What does not compress comes from the device; what is kept hardly ever, where the tier was
    // full for a moment.
    let [device, kept] = [raw[0].1, raw[1].1].map(|row| figure(row, "per_1000.read"));
    assert!(device > 10.0 && kept < device / 5.0, "{raw:?}");
}

#[test]
fn without_json_it_prints_tables_and_what_they_show_and_draws_them() {
    let (_room, dir) = room(NAME);
    let path = dir.join("zswap.svg");
    let args = format!("{SMALL} --cases zero --plot {}", path.display());
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let rows =
        outcome.stdout.lines().filter(|line| line.trim_start().starts_with("zero  ")).count();
    assert_eq!(rows, 3 * 7, "a row in each table: {}", outcome.stdout);
    let text = words(&outcome);
    for said in [
        "zero, tier off: empty+lookup locks a 1,000 pages 0.0 met: 0.0 or less",
        "zero, tier on: same-filled locks a 1,000 pages out 0.0 met: 0.0 or less",
        "always: bytes 2,147,483,648, swapin_faster_than_always 0, swapin_us 1,905,000",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let drawing = std::fs::read_to_string(&path).unwrap();
    for said in
        ["<svg", "zero, tier off", "zero, tier on", "empty+lookup", "same-filled", "a 1,000 pages"]
    {
        assert!(drawing.contains(said), "{said}");
    }
}
