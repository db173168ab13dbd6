//! `overspill-bench swapoff` from the outside: what it prints, and what it puts back.

mod common;

use common::{Killed, PATIENCE, bench_in_the_engine, figure, json, room, words};
use overspill_tests::{clean, skipped};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NAME: &str = "swapoff";
const PAGES: f64 = (16 << 20) as f64 / 4096.0;
#[test]
fn json_tells_what_each_step_takes_and_nothing_is_left_behind() {
    let (_room, dir) = room("swapoff-json");
    let args = format!("--size 16M --rounds 1 --json --device {}", dir.display());
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let value = json(&outcome);
    assert_eq!(
        (&value["bench"], &value["settings"]["size_bytes"]),
        (&NAME.into(), &(16 << 20).into())
    );
    let rows = value["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["workload"].as_str().unwrap(), row["step"].as_str().unwrap()))
        .collect();
    let engine = ["run-1", "run-8", "run-32", "run-256", "in-flight", "in-flight-4"];
    let kernel = value["settings"]["without_kernel"].is_null().then_some("kernel");
    if kernel.is_none() {
        skipped(&format!("the kernel's part: {}", value["settings"]["without_kernel"]));
    }
    let steps = || engine.into_iter().chain(kernel);
    let expected: Vec<_> = ["alone", "load"]
        .into_iter()
        .flat_map(|with| steps().map(move |step| (with, step)))
        .collect();
    assert_eq!(names, expected);
    for row in rows {
        assert!(figure(row, "elapsed_s") > 0.0 && figure(row, "device_mb_per_s") > 0.0, "{row}");
        assert!(figure(row, "page_ins") >= 0.9 * PAGES, "all that was written comes back: {row}");
        let loaded = row["workload"] == "load";
        assert_eq!(row["figures"]["load_slowdown"].is_number(), loaded, "{row}");
        for name in ["user_s", "sys_s", "mb_per_s", "device_ratio"] {
            figure(row, name);
        }
    }
    // A run is as long as it may be where nothing was freed in between.
    for (row, most) in rows.iter().zip([1.0, 8.0, 32.0, 256.0, 256.0]) {
        let pages = figure(row, "pages_per_operation");
        assert!(pages <= most && pages > most / 4.0, "{row}");
    }
    assert!(
        figure(&rows[4], "times_fewer_operations") > 18.0 && figure(&rows[4], "times_sooner") > 1.0,
        "{}",
        rows[4]
    );
    let references: Vec<_> =
        rows.iter().map(|row| row["reference"]["elapsed_s"].as_f64()).collect();
    assert_eq!(references[..5], [Some(47.5), None, None, Some(7.93), None]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "swap files are gone");
}

#[test]
fn without_json_it_prints_tables_what_they_show_and_a_drawing() {
    let (_room, dir) = room("swapoff-table");
    let (file, plot) = (dir.join("device"), dir.join("swapoff.svg"));
    let args = format!(
        "--size 16M --rounds 1 --steps in-flight,run-1 --load-device ram --device {} --plot {}",
        file.display(),
        plot.display()
    );
    let Some(outcome) = bench_in_the_engine(NAME, &args) else { return };
    let text = &outcome.stdout;
    assert!(
        text.contains("pages each") && text.contains("disk MB/s") && text.contains("x slower"),
        "{text}"
    );
    let said = words(&outcome);
    for what in ["alone: in-flight times as fast as a page at a time ", " 7.00", "load: run-1 "] {
        assert!(said.contains(what), "{what}: {text}");
    }
    assert!(!text.contains("the kernel  "), "{text}");
    assert!(fs::read_to_string(plot).unwrap().contains("swapoff of 16 MiB on "));
    assert!(!file.exists(), "a file that was made is removed");
}

#[test]
fn what_a_killed_measurement_of_the_kernel_changed_is_put_back() {
    let (_room, dir) = room("swapoff-killed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    command
        .args([NAME, "--steps", "kernel", "--size", "64M", "--rounds", "100", "--device"])
        .arg(&dir);
    let mut child =
        Killed(clean(&mut command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    let file = loop {
        if let Some(file) = swap_file_in(&dir) {
            break file;
        }
        if child.0.try_wait().unwrap().is_some() {
            return skipped("this needs root, and a kernel that takes a swap file");
        }
        assert!(began.elapsed() < PATIENCE, "there is a swap file at last");
    };
    drop(child);
    let name = file.file_name().unwrap().to_str().unwrap();
    let group = name.strip_prefix('.').unwrap().split_once(".").unwrap().0;
    let groups =
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(|root| Path::new(root).join(group));
    while swap_file_in(&dir).is_some() || file.exists() || groups.iter().any(|group| group.exists())
    {
        assert!(
            began.elapsed() < PATIENCE,
            "the swap file and the cgroup are gone: {file:?}, {groups:?}"
        );
        sleep(Duration::from_millis(10));
    }
}

/// The kernel's swap file in a directory.
fn swap_file_in(dir: &Path) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let files = table
        .lines()
        .skip(1)
        .filter_map(|line| Some(PathBuf::from(line.split_whitespace().next()?)));
    { files }.find(|file| file.parent() == Some(dir))
}
