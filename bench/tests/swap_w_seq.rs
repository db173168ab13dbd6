//! `overspill-bench swap-w-seq` from the outside: what it prints, and what it counts.

mod common;

use common::{bench, bench_in_the_engine, figure, json, room, words};
use serde_json::Value;

const NAME: &str = "swap-w-seq";
/// A budget and as much again several times over: some seconds in a debug build.
const SMALL: &str = "--memory 8M --size 24M --rounds 1";

#[test]
fn json_has_the_ladder_with_its_locks() {
    let args =
        format!("{SMALL} --threads 2 --steps batches,baseline,cluster-locks,slot-caches --json");
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let value = json(&outcome);
    assert_eq!(value["bench"], NAME);
    assert_eq!(
        (&value["settings"]["memory_bytes"], &value["settings"]["rounds"]),
        (&(8 << 20).into(), &1.into())
    );
    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> =
        rows.iter().map(|row| (row["step"].as_str().unwrap(), row["threads"].as_u64())).collect();
    let two = Some(2);
    let steps = ["baseline", "cluster-locks", "slot-caches", "batches"];
    assert_eq!(names, steps.map(|step| (step, two)));
    for row in rows {
        // All that was written beyond the budget has gone out, but for what the swap cache held
        // back.
        assert!(figure(row, "pages_per_s") > 0.0 && figure(row, "in.pages_per_s") > 0.0, "{row}");
        let kib = figure(row, "so_kib_per_s") / figure(row, "pages_per_s");
        assert!((kib - 4.0).abs() < 0.001, "{row}");
        let serial = figure(row, "serial_ns_per_page_max") * figure(row, "saturation_pages_per_s");
        assert!((serial / 1e9 - 1.0).abs() < 0.001, "{row}");
        for lock in ["swap_cache_lock", "swap_ages_lock", "zone_lock"] {
            for name in ["per_1000", "contended_ratio", "wait_ns", "hold_ns"] {
                figure(row, &format!("locks.{lock}.{name}"));
                figure(row, &format!("in.locks.{lock}.{name}"));
            }
        }
    }
    let [baseline, cluster_locks, slot_caches, partitions] = rows.as_slice() else {
        panic!("{names:?}")
    };
    assert_eq!(baseline["reference"]["so_kib_per_s"].as_f64(), Some(1_428_002.0));
    assert!(partitions.get("reference").is_none());

    // What each step is about, in counts: they do not depend on the machine.
    // 1. The baseline locks the device for every free, and no cluster ever.
    assert!(figure(baseline, "in.locks.slot_lock.per_1000") > 500.0, "{baseline}");
    assert_eq!(figure(baseline, "in.locks.cluster_lock.per_1000"), 0.0, "{baseline}");
    // 2. With locks of clusters the device's is for clusters that change hands.
    let device = |row: &Value| figure(row, "in.locks.slot_lock.per_1000");
    assert!(10.0 * device(cluster_locks) < device(baseline), "{cluster_locks}");
    assert!(figure(cluster_locks, "in.locks.cluster_lock.per_1000") > 500.0, "{cluster_locks}");
    // 3. With caches, slots go back to clusters many at a time.
    let clusters = |row: &Value| figure(row, "in.locks.cluster_lock.per_1000");
    assert!(3.0 * clusters(slot_caches) < clusters(cluster_locks), "{slot_caches}");
    // 4. Smaller partitions of the swap cache are not locked many times more often than there are
    //    pages.
    for (phase, most) in [("", 4_000.0), ("in.", 8_000.0)] {
        assert!(
            figure(partitions, &format!("{phase}locks.swap_cache_lock.per_1000")) < most,
            "{partitions}"
        );
    }
}

#[test]
fn without_json_it_prints_tables_and_what_they_show_and_draws_the_ladder() {
    let (_room, dir) = room(NAME);
    let path = dir.join("ladder.svg");
    let args = format!(
        "{SMALL} --threads 1 --steps baseline,partitions-2m,batches --plot {}",
        path.display()
    );
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let rows =
        outcome.stdout.lines().filter(|line| line.trim_start().starts_with("1  baseline")).count();
    assert_eq!(rows, 3, "a row in each table: {}", outcome.stdout);
    let text = words(&outcome);
    for said in [
        "1 thread: batches out: times less at the lock that limits ",
        " 10.00",
        " 2.92",
        "too few rounds to tell",
        "slot-caches: processes 32, ratio_to_baseline 2.921, so_kib_per_s 4,170,746",
        "What limits pages in, 1 thread: baseline ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let drawing = std::fs::read_to_string(&path).unwrap();
    for said in ["<svg", "pages a second", "baseline", "batches", "1 thread", "ns a page"] {
        assert!(drawing.contains(said), "{said}");
    }
}

#[test]
fn a_device_that_is_not_there_is_one_sentence_and_status_1() {
    let outcome =
        bench(NAME, &format!("{SMALL} --threads 1 --steps baseline --device /nowhere/at/all"));
    if outcome.stderr.contains("no userfaultfd") {
        return overspill_tests::skipped(&outcome.stderr);
    }
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("overspill-bench: baseline, 1 thread: "),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("/nowhere/at/all") && outcome.stderr.lines().count() == 1,
        "{}",
        outcome.stderr
    );
}
