//! `overspill-bench reclaim-storm` from the outside: what it prints.

mod common;

use common::{bench_in_the_engine, figure, json, room, words};

const NAME: &str = "reclaim-storm";
/// Forty threads over a small budget: some seconds in a debug build.
const SMALL: &str = "--groups 1 --size 8M --messages 20 --rounds 1";

#[test]
fn json_tells_who_reclaimed() {
    let Some(outcome) = bench_in_the_engine(NAME, &format!("{SMALL} --json")) else { return };
    let value = json(&outcome);
    assert_eq!((&value["bench"], &value["settings"]["threads"]), (&NAME.into(), &40.into()));
    let used = value["settings"]["used_bytes"].as_u64().unwrap();
    assert!((9 << 20..10 << 20).contains(&used), "an eighth more than the budget: {used}");
    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["off", "timed", "wake", "default"]);
    let references: Vec<_> =
        rows.iter().map(|row| row["reference"]["parallel_reclaimers_max"].as_u64()).collect();
    assert_eq!(references, [Some(1298), Some(4), None, None]);
    for row in rows {
        for name in ["benchmark_s", "elapsed_s", "major_faults", "evicted_pages"] {
            assert!(figure(row, name) > 0.0, "{name}: {row}");
        }
        for name in ["user_s", "sys_s", "refaults_1s"] {
            figure(row, name);
        }
    }
    // Two a NUMA node, of which there are few.
    let [off, timed, wake, _] = [0, 1, 2, 3].map(|at| &rows[at]);
    for row in [timed, wake] {
        let most = figure(row, "parallel_reclaimers_max");
        assert!((1.0..=16.0).contains(&most) && figure(row, "reclaim_ms_max") > 0.0, "{row}");
        assert_eq!(figure(row, "evicted_pages"), figure(row, "evicted_directly_pages"), "{row}");
    }
    assert_eq!(figure(off, "throttled"), 0.0, "{off}");
    assert!(
        figure(off, "direct_reclaims") > 0.0 && wake["figures"]["times_sooner"].is_number(),
        "{off} {wake}"
    );
}

#[test]
fn without_json_it_prints_tables_what_they_show_and_a_drawing() {
    let (_room, dir) = room("storm");
    let plot = dir.join("storm.svg");
    let args = format!("{SMALL} --steps off,wake --plot {}", plot.display());
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let text = &outcome.stdout;
    assert!(text.contains("benchmark s") && text.contains("back in 1 s"), "{text}");
    for said in ["wake times as soon ", "wake system time, s ", "parallel_reclaimers_max 1,298"] {
        assert!(words(&outcome).contains(said), "{said}: {text}");
    }
    assert!(std::fs::read_to_string(plot).unwrap().contains("reclaim-storm, 1 groups on "));
}
