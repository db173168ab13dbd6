//! The benches of the engine alone from the outside: what they print, draw and count. Their sizes
//! are several times the smallest budget: some seconds in a debug build.

mod common;

use common::{bench, figure, find, has, lines, names, positive, printed, report, room, rows};
use overspill_tests::process::run;
use overspill_tests::{TIME_LIMIT, clean, skipped};
use std::process::Command;

#[test]
fn codecs_has_a_row_for_each_codec_and_kind_of_contents() {
    let value = report("codecs", "--size 256K --rounds 1").unwrap();
    assert_eq!(value["settings"]["size_bytes"], 256 << 10);
    let rows = rows(&value);
    let figure = |contents: &str, step: &str, name: &str| {
        find(rows.iter().find(|row| row["contents"] == contents && row["step"] == step)?, name)
    };
    let codecs = ["none", "lz4", "zstd:-1", "zstd:1", "zstd:3", "zstd:6", "zstd:12", "zstd:19"];
    assert_eq!(rows.len(), 3 * codecs.len());
    for (codec, contents) in codecs.iter().flat_map(|c| ["heap", "random", "zero"].map(|k| (c, k)))
    {
        assert!(figure(contents, codec, "compress_ns_per_page") > Some(0.0), "{codec} {contents}");
    }
    let ratio = |contents, codec| figure(contents, codec, "ratio").unwrap();
    let heap = ["none", "lz4", "zstd:-1", "zstd:3", "zstd:19"].map(|codec| ratio("heap", codec));
    assert!(heap.is_sorted_by(|a, b| a < b) && heap[0] == 1.0, "{heap:?}");
    assert!((2.2..2.8).contains(&heap[1]), "{heap:?}");
    assert!(ratio("zero", "lz4") > 100.0 && ratio("random", "zstd:19") == 1.0);
    assert_eq!(figure("random", "lz4", "refused_ratio"), Some(1.0));
    assert_eq!(figure("random", "lz4", "decompress_ns_per_page"), None, "nothing was packed");
    assert!(rows.iter().all(|row| find(row, "ratio_min").is_none()), "one round has no spread");
    let args = "--size 256K --rounds 1 --codecs lz4,zstd --contents heap,random";
    let text = printed("codecs", args).unwrap();
    assert_eq!((lines(&text, "heap  "), lines(&text, "random  ")), (2, 2), "{text}");
    has(&text, &["heap: zstd:3 times LZ4's time to unpack ", "random: lz4 ns to see "]);
}

#[test]
fn page_fault_has_a_row_a_step_with_its_figures() {
    let args = "--size 1M --rounds 1 --threads 1 --steps folios,kernel";
    let Some(value) = report("page-fault", args) else { return };
    let machine = &value["machine"];
    assert!(machine["cpus"].as_u64() > Some(0) && machine["ram_bytes"].as_u64() > Some(1 << 20));
    assert!(machine["kernel"].as_str().is_some_and(|release| release.contains('.')));
    let settings = &value["settings"];
    assert_eq!((&settings["rounds"], &settings["sizes_scaled_down"]), (&1.into(), &false.into()));
    assert_eq!((&settings["pinned"], &settings["delivery"]), (&true.into(), &"signal".into()));
    assert_eq!(settings["size_bytes_by_threads"]["1"], 1 << 20);
    let rows = rows(&value);
    assert_eq!(names(rows, &["threads"]), ["1 kernel", "1 folios"]);
    rows.iter().for_each(|row| positive(row, &["faults_per_s", "cpu_ns_per_page"]));
    // A sequential pass over 256 pages: folios of 1, 2, 4, 8, then 16 pages each.
    let pages_per_fault = figure(&rows[1], "pages_per_fault");
    assert!(pages_per_fault > 8.0 && pages_per_fault <= 16.0, "{}", rows[1]);
    positive(&rows[1], &["ratio_to_kernel"]);
}

#[test]
fn page_fault_prints_a_table_with_the_spread_and_what_that_shows() {
    let args = "--size 64K --rounds 2 --threads 1,3 --steps kernel,folios";
    let Some(text) = printed("page-fault", args) else { return };
    has(&text, &["threads step faults/s", "3 threads: folios times the kernel's pages a second "]);
    for row in ["1  kernel", "1  folios", "3  kernel", "3  folios"] {
        assert_eq!(lines(&text, row), 1, "{row}: {text}");
    }
    let table = text.lines().take_while(|line| !line.starts_with("Medians ("));
    assert_eq!(table.filter(|line| line.contains(" to ")).count(), 4, "a spread a row: {text}");
}

/// Ends with status 1 and one sentence that begins and goes on so.
fn fails(mut command: Command, begins: &str, says: &str) {
    let outcome = run(clean(&mut command), TIME_LIMIT);
    if outcome.stderr.contains("no userfaultfd") && !says.contains("userfaultfd") {
        return skipped(&outcome.stderr);
    }
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with(begins) && outcome.stderr.contains(says), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

#[test]
fn what_cannot_be_made_is_one_sentence_and_status_1() {
    let command = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
        clean(command.args(args.split(' ')));
        command
    };
    let mut lacking = command("page-fault --size 64K --rounds 1 --threads 1 --steps folios");
    lacking.env("OVERSPILL_SIMULATE", "no-uffd");
    fails(lacking, "overspill-bench: folios, 1 thread: this kernel gives", "userfaultfd");
    let args = "swap-w-seq --memory 8M --size 24M --rounds 1 --threads 1 --steps baseline --device \
                /nowhere/at/all";
    fails(command(args), "overspill-bench: baseline, 1 thread: ", "/nowhere/at/all");
}

#[test]
fn reclaim_storm_tells_who_reclaimed() {
    let args = "--groups 1 --size 8M --messages 20 --rounds 1";
    let Some(value) = report("reclaim-storm", args) else { return };
    assert_eq!(value["settings"]["threads"], 40);
    let used = value["settings"]["used_bytes"].as_u64().unwrap();
    assert!((9 << 20..10 << 20).contains(&used), "an eighth more than the budget: {used}");
    let rows = rows(&value);
    assert_eq!(names(rows, &[]), ["off", "timed", "wake", "default"]);
    let published = |row: &serde_json::Value| row["reference"]["parallel_reclaimers_max"].as_u64();
    let published: Vec<_> = rows.iter().map(published).collect();
    assert_eq!(published, [Some(1298), Some(4), None, None]);
    for row in rows {
        positive(row, &["benchmark_s", "elapsed_s", "major_faults", "evicted_pages"]);
        ["user_s", "sys_s", "refaults_1s"].iter().for_each(|name| _ = figure(row, name));
    }
    // Two a NUMA node, of which there are few.
    for row in &rows[1..3] {
        let most = figure(row, "parallel_reclaimers_max");
        assert!((1.0..=16.0).contains(&most) && figure(row, "reclaim_ms_max") > 0.0, "{row}");
        assert_eq!(figure(row, "evicted_pages"), figure(row, "evicted_directly_pages"), "{row}");
    }
    assert_eq!(figure(&rows[0], "throttled"), 0.0, "{}", rows[0]);
    positive(&rows[0], &["direct_reclaims"]);
    positive(&rows[2], &["times_sooner"]);
}

/// Runs a bench that prints and draws; both have these.
fn prints_and_draws(
    name: &str,
    args: &str,
    printed_too: &[&str],
    drawn: &[&str],
) -> Option<String> {
    let (_room, dir) = room(name);
    let plot = dir.join("plot.svg");
    let text = printed(name, &format!("{args} --plot {}", plot.display()))?;
    has(&text, printed_too);
    has(&std::fs::read_to_string(plot).unwrap(), drawn);
    Some(text)
}

#[test]
fn reclaim_storm_prints_tables_what_they_show_and_a_drawing() {
    let args = "--groups 1 --size 8M --messages 20 --rounds 1 --steps off,wake";
    let said = [
        "benchmark s",
        "back in 1 s",
        "wake times as soon ",
        "wake system time, s ",
        "parallel_reclaimers_max 1,298",
    ];
    prints_and_draws("reclaim-storm", args, &said, &["<svg", "reclaim-storm, 1 groups on "]);
}

#[test]
fn swap_r_rand_tells_reads_apart_by_where_their_pages_were() {
    let args = "--memory 8M --reads 4000 --rounds 1 --threads 1,2";
    let Some(value) = report("swap-r-rand", args) else { return };
    assert_eq!(value["settings"]["size_bytes"], 32 << 20);
    let rows = rows(&value);
    let steps = ["plain", "readahead", "clean", "readahead-clean"];
    let expected = [1, 2].map(|threads| steps.map(|step| format!("{threads} {step}")));
    assert_eq!(names(rows, &["threads"]), expected.concat());
    for row in rows {
        positive(row, &["any.p50_ns", "reads_per_s"]);
        assert!(figure(row, "any.p99_ns") >= figure(row, "any.p50_ns"), "{row}");
        // Four times the budget is read from, and a part of it is compressed at most.
        let shares = ["resident", "minor", "compressed", "device"];
        let shares = shares.map(|source| find(row, &format!("{source}.ratio")));
        if row["threads"] == 1 {
            assert!((shares.iter().flatten().sum::<f64>() - 1.0).abs() < 0.001, "{row}");
            assert!(shares[2] > Some(0.05) && shares[3] > Some(0.2), "{row}");
        } else {
            assert_eq!(shares, [None; 4], "it is not known whose doing a count is: {row}");
        }
    }
    let written = |at: usize| figure(&rows[at], "pages_written_per_page_read");
    assert!(written(0) > 0.5, "a slot that was read is given up: {}", rows[0]);
    assert!(written(2) < 0.3, "a page that keeps its slot is not written again: {}", rows[2]);
}

#[test]
fn swap_r_rand_prints_tables_and_what_they_show() {
    let args = "--memory 8M --reads 4000 --rounds 1 --threads 2,1";
    let Some(text) = printed("swap-r-rand", args) else { return };
    assert_eq!((lines(&text, "2  "), lines(&text, "1  ")), (4, 2 * 4), "{text}");
    assert!(text.trim_end().ends_with("too few rounds to tell"), "{text}");
    has(&text, &["1 thread: clean pages written for one read "]);
}

#[test]
fn swap_w_seq_has_the_ladder_with_its_locks() {
    let steps = "--steps batches,baseline,cluster-locks,slot-caches";
    let args = format!("--memory 8M --size 24M --rounds 1 --threads 2 {steps}");
    let Some(value) = report("swap-w-seq", &args) else { return };
    assert_eq!(value["settings"]["memory_bytes"], 8 << 20);
    let rows = rows(&value);
    let steps = ["2 baseline", "2 cluster-locks", "2 slot-caches", "2 batches"];
    assert_eq!(names(rows, &["threads"]), steps);
    for row in rows {
        positive(row, &["pages_per_s", "in.pages_per_s"]);
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
    let [baseline, cluster_locks, slot_caches, batches] = rows else { panic!("{value}") };
    assert_eq!(baseline["reference"]["so_kib_per_s"].as_f64(), Some(1_428_002.0));
    assert!(batches.get("reference").is_none());
    // What each step is about, in counts: they do not depend on the machine.
    let device = |row| figure(row, "in.locks.slot_lock.per_1000");
    let clusters = |row| figure(row, "in.locks.cluster_lock.per_1000");
    // 1. The baseline locks the device for every free, and no cluster ever.
    assert!(device(baseline) > 500.0 && clusters(baseline) == 0.0, "{baseline}");
    // 2. With locks of clusters the device's is for clusters that change hands.
    assert!(10.0 * device(cluster_locks) < device(baseline), "{cluster_locks}");
    assert!(clusters(cluster_locks) > 500.0, "{cluster_locks}");
    // 3. With caches, slots go back to clusters many at a time.
    assert!(3.0 * clusters(slot_caches) < clusters(cluster_locks), "{slot_caches}");
    // 4. Smaller partitions of the swap cache are not locked many times more often than there are
    //    pages.
    assert!(figure(batches, "locks.swap_cache_lock.per_1000") < 4_000.0, "{batches}");
    assert!(figure(batches, "in.locks.swap_cache_lock.per_1000") < 8_000.0, "{batches}");
}

#[test]
fn swap_w_seq_prints_tables_and_what_they_show_and_draws_the_ladder() {
    let steps = "--threads 1 --steps baseline,partitions-2m,batches";
    let args = format!("--memory 8M --size 24M --rounds 1 {steps}");
    let said = [
        "1 thread: batches out: times less at the lock that limits ",
        " 10.00",
        " 2.92",
        "too few rounds to tell",
        "slot-caches: processes 32, ratio_to_baseline 2.921, so_kib_per_s 4,170,746",
        "What limits pages in, 1 thread: baseline ",
    ];
    let drawn = ["<svg", "pages a second", "baseline", "batches", "1 thread", "ns a page"];
    let Some(text) = prints_and_draws("swap-w-seq", &args, &said, &drawn) else { return };
    assert_eq!(lines(&text, "1  baseline"), 3, "a row in each table: {text}");
}

#[test]
fn zswap_tells_how_often_a_lock_was_taken_for_nothing() {
    let args = "--size 32M --rounds 1 --cases zero,reviewers";
    let Some(value) = report("zswap", args) else { return };
    assert_eq!(value["settings"]["size_bytes"], 32 << 20);
    let (zero, reviewers) = rows(&value).split_at(7);
    let steps = ["always", "empty", "empty+lookup"];
    let expected = ["off", "on"].map(|tier| steps.map(|step| format!("{tier} {step}"))).concat();
    assert_eq!(names(&zero[..6], &["tier"]), expected);
    assert_eq!(names(&zero[6..], &["case", "tier"]), ["zero on same-filled"]);
    assert_eq!(zero[0]["reference"]["swapin_us"].as_f64(), Some(1_905_000.0));
    for row in zero {
        positive(row, &["swapout_us", "swapin_us"]);
        assert!(figure(row, "out_ratio") > 0.7, "{row}");
        let locks = ["locks", "single.locks"].map(|name| figure(row, name));
        let freed = ["freed", "single.freed"].map(|name| figure(row, name));
        let out = figure(row, "out.locks");
        match (row["tier"].as_str().unwrap(), row["step"].as_str().unwrap()) {
            // A lock for each slot, of which some may be given back together with what is written
            // meanwhile.
            (_, "always") | ("on", "empty") => assert!(locks.iter().all(|n| *n > 900.0), "{row}"),
            // Nothing is there, which is seen without a lock.
            ("off", _) => assert_eq!((locks, out), ([0.0; 2], 0.0), "{row}"),
            // Each entry goes, those of a folio in one hold.
            ("on", "empty+lookup") => assert!(locks[0] < 500.0 && freed[0] > 800.0, "{row}"),
            // Neither a slot nor an entry.
            _ => assert_eq!((locks, freed, out), ([0.0; 2], [0.0; 2], 0.0), "{row}"),
        }
    }
    // Ranges that have an entry here and there: only the look-up tells.
    let [empty, lookup, own] = &reviewers[4..] else { panic!("{reviewers:?}") };
    assert_eq!(names([empty, lookup, own], &[]), ["empty", "empty+lookup", "slots=own"]);
    assert!(figure(empty, "locks") > 300.0, "{empty}");
    assert!(figure(lookup, "locks") < 10.0 && figure(lookup, "lookups") > 300.0, "{lookup}");
    // Not where they have slots of their own: no slot of the device has an entry.
    assert!(figure(own, "locks") < 10.0, "{own}");
    assert!(figure(own, "lookups") < figure(lookup, "lookups") / 2.0, "{own}");
}

#[test]
fn zswap_has_several_threads_read_each_page_once() {
    let args = "--size 32M --rounds 1 --cases random --threads 3";
    let Some(value) = report("zswap", args) else { return };
    assert_eq!(value["settings"]["threads"], 3);
    for row in rows(&value) {
        positive(row, &["cpu_us", "single.cpu_us"]);
        // Each page that comes in gives its slot back once, whoever reads it.
        let locks = ["locks", "single.locks"].map(|name| figure(row, name));
        let once = locks.iter().all(|n| (900.0..1300.0).contains(n));
        assert!(row["step"] != "always" || once, "{row}");
    }
}

#[test]
fn zswap_tells_accesses_at_random_by_what_they_cost() {
    let args = "--size 64M --rounds 1 --cases incompressible,write-mostly,read-mostly";
    let Some(value) = report("zswap", args) else { return };
    let of = |case: &'static str| rows(&value).iter().filter(move |row| row["case"] == case);
    assert_eq!(names(of("read-mostly"), &["tier"]), ["on keep=off", "on keep=on", "on keep=auto"]);
    let left_clean: Vec<f64> =
        of("read-mostly").map(|row| figure(row, "per_1000.left_clean")).collect();
    assert_eq!(left_clean[0], 0.0, "a page that is read gives its copy up");
    assert!(left_clean[1] > 0.0, "copies are kept and used");
    for row in of("read-mostly") {
        positive(row, &["ns_per_access"]);
        assert!(figure(row, "per_1000.unpacked") > 100.0, "{row}");
    }
    assert_eq!(of("write-mostly").count(), 3);
    // What does not compress comes from the device; what is kept hardly ever, where the tier was
    // full for a moment.
    let read: Vec<f64> = of("incompressible").map(|row| figure(row, "per_1000.read")).collect();
    assert!(read[0] > 10.0 && read[1] < read[0] / 5.0, "{read:?}");
}

#[test]
fn zswap_prints_tables_and_what_they_show_and_draws_them() {
    let said = [
        "zero, tier off: empty+lookup locks a 1,000 pages 0.0 met: 0.0 or less",
        "zero, tier on: same-filled locks a 1,000 pages out 0.0 met: 0.0 or less",
        "always: bytes 2,147,483,648, swapin_faster_than_always 0, swapin_us 1,905,000",
    ];
    let drawn = ["<svg", "zero, tier off", "zero, tier on", "empty+lookup", "same-filled"];
    let args = "--size 32M --rounds 1 --cases zero";
    let Some(text) = prints_and_draws("zswap", args, &said, &drawn) else { return };
    assert_eq!(lines(&text, "zero  "), 3 * 7, "a row in each table: {text}");
}

#[test]
fn working_set_compares_the_engine_with_policies_on_each_trace() {
    let args = "--size 32M --rounds 1 --traces loop";
    let Some(value) = report("working-set", args) else { return };
    assert_eq!(value["settings"]["pinned"], false, "its own count more than those of all benches");
    let rows = rows(&value);
    let steps = ["fifo", "lru", "belady", "overspill", "overspill-less-free"];
    assert_eq!(names(rows, &["trace"]), steps.map(|step| format!("loop {step}")));
    assert_eq!(figure(&rows[1], "misses_per_1000"), 1000.0, "a loop defeats LRU");
    assert!(figure(&rows[2], "misses_per_1000") < 250.0, "{}", rows[2]);
    positive(&rows[3], &["ratio_to_lru", "resident_ratio", "charged_ratio"]);
    let outcome = bench("working-set", "--traces none");
    assert_eq!(outcome.status, 2, "{}", outcome.stderr);
}
