//! `overspill-bench vs-kernel` and `overspill-load` from the outside: what they print, what is
//! refused, what is put back.

mod common;

use common::{Killed, PATIENCE, figure, json, room, words};
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, process, skipped};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NAME: &str = "vs-kernel";
fn command(args: &str, dir: &Path) -> Option<Command> {
    let binary = overspill(&Scratch::new(env!("CARGO_TARGET_TMPDIR")))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    clean(command.arg(NAME).args(args.split_whitespace()).arg("--dir").arg(dir))
        .env("OVERSPILL_BIN", binary);
    Some(command)
}

/// The kernel's settings that a run may change, while no run does.
fn settings() -> Vec<Option<String>> {
    let swaps = fs::File::open("/proc/swaps").unwrap();
    flock(&swaps, FlockOperation::LockShared).unwrap();
    let zswap =
        ["enabled", "compressor"].map(|name| format!("/sys/module/zswap/parameters/{name}"));
    zswap.iter().map(|file| fs::read_to_string(file).ok()).collect()
}

#[test]
fn every_step_is_told_beside_its_peer_and_everything_is_put_back() {
    let (_room, dir) = room("vs-kernel-json");
    let before = settings();
    let Some(mut command) = command("--size 32M --rounds 1 --workload seq-read --json", &dir)
    else {
        return;
    };
    let outcome = process::run(&mut command, TIME_LIMIT);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    let value = json(&outcome);
    assert_eq!(
        (&value["bench"], &value["settings"]["size_bytes"]),
        (&NAME.into(), &(32 << 20).into())
    );
    let rows = value["rows"].as_array().unwrap();
    assert!(
        rows[0]["step"] == "floor" && figure(&rows[0], "bare_copy_fault_ns") > 100.0,
        "{}",
        rows[0]
    );
    for peer in ["zram", "zswap", "file"] {
        let of =
            |step: &str| rows[1..].iter().find(|row| row["peer"] == peer && row["step"] == step);
        let left_out = &value["settings"]["left_out"][peer];
        if left_out.is_null() {
            let row = of("peer").unwrap();
            assert!(
                figure(row, "major_faults") > 0.0 && figure(row, "ram_bytes_peak") > 4e6,
                "{row}"
            );
            assert_eq!(figure(row, "device_bytes") > 0.0, peer == "file", "{row}");
            assert_eq!(figure(row, "pool_bytes_peak") > 0.0, peer != "file", "{row}");
        } else {
            skipped(&format!("{peer}: {left_out}"));
        }
        for step in ["overspill-thread", "overspill-signal", "library"] {
            let row = of(step).unwrap();
            assert!(figure(row, "pages_in") > 0.0 && figure(row, "ns_per_access") > 100.0, "{row}");
            assert!(figure(row, "metadata_bytes") > 1e4, "{row}");
            assert_eq!(row["figures"]["ratio"].is_number(), left_out.is_null(), "{row}");
        }
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn without_json_it_prints_tables_and_what_is_to_be_reached() {
    let (_room, dir) = room("vs-kernel-table");
    let args = "--size 32M --rounds 1 --workload rand-read --peer file --steps library";
    let Some(mut command) = command(args, &dir) else { return };
    let outcome = process::run(&mut command, TIME_LIMIT);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    let text = &outcome.stdout;
    assert!(
        text.contains("p99.9") && text.contains("device MiB") && text.contains("bare copy"),
        "{text}"
    );
    let said = words(&outcome);
    assert!(said.contains("floor minor fault, of a bare one "), "{text}");
    assert!(
        said.contains("rand-read, file: library time, of the peer's ")
            || text.contains("The kernel's file was left out"),
        "{text}"
    );
}

#[test]
fn a_program_is_told_beside_its_peer_and_on_a_page_that_needs_nothing_else() {
    let (_room, dir) = room("vs-kernel-program");
    let page = dir.with_extension("html");
    let args = "--size 32M --overcommit 2 --rounds 1 --workload sort --peer file --steps \
                overspill-thread --json";
    let Some(mut command) = command(args, &dir) else { return };
    let outcome = process::run(command.arg("--html").arg(&page), TIME_LIMIT);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    let value = json(&outcome);
    let text = fs::read_to_string(&page).unwrap();
    fs::remove_file(&page).unwrap();
    assert!(text.contains("How to repeat it") && !text.contains("http"), "{text}");
    if let Some(why) = value["settings"]["left_out"].as_object().unwrap().values().next() {
        return skipped(&why.to_string());
    }
    let rows = value["rows"].as_array().unwrap();
    let of = |step: &str| rows.iter().find(|row| row["step"] == step).unwrap();
    // What it took alone says how much RAM is half of it; the kernel may have ended it for want of
    // more.
    let half = figure(of("alone"), "ram_bytes_peak") / 2.0;
    let limit = figure(of("peer"), "limit_bytes") / half;
    assert!(half > 16e6 && (0.99..1.7).contains(&limit), "{value}");
    let row = of("overspill-thread");
    assert!(figure(row, "elapsed_s") > 0.1 && figure(row, "ratio") > 0.0, "{row}");
    assert!(figure(row, "pages_in") > 0.0 && row["figures"]["checksum"].is_null(), "{row}");
    assert!(text.contains("Real programs, against the kernel's swap file"), "{text}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn two_benches_at_once_do_not_disturb_each_other() {
    let rooms = ["vs-kernel-one", "vs-kernel-two"].map(room);
    let before = settings();
    let args = "--size 32M --rounds 2 --workload seq-write --steps peer --json";
    let outcomes = std::thread::scope(|scope| {
        let run = |dir: &Path| {
            command(args, dir).map(|mut command| process::run(&mut command, TIME_LIMIT))
        };
        let threads = rooms.each_ref().map(|(_, dir)| scope.spawn(move || run(dir)));
        threads.map(|thread| thread.join().unwrap())
    });
    for outcome in outcomes.iter().flatten() {
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
        let left_out = json(outcome)["settings"]["left_out"].to_string();
        assert!(
            !left_out.contains("highest priority") && !left_out.contains("another"),
            "{left_out}"
        );
    }
    assert_eq!(settings(), before);
}

#[test]
fn a_program_ends_with_who_measures_it() {
    let put_back = |said: &str| {
        let mut program =
            Killed(Command::new("sleep").arg("1000").process_group(0).spawn().unwrap());
        let mut guard = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
        let mut guard = clean(guard.args(["put-back", "{}"]))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = guard.stdin.take().unwrap();
        write!(stdin, "{}\n{said}", program.0.id()).unwrap();
        drop(stdin);
        assert!(guard.wait().unwrap().success());
        sleep(Duration::from_millis(100));
        program.0.try_wait().unwrap().is_some()
    };
    assert!(put_back(""), "the measurement was killed");
    assert!(!put_back("end"), "it has ended, and the program is another's by now");
}

#[test]
fn what_a_killed_run_changed_is_put_back() {
    let (_room, dir) = room("vs-kernel-killed");
    let before = settings();
    let args = "--size 256M --workload rand-write --peer zswap --steps peer --rounds 100";
    let Some(mut command) = command(args, &dir) else { return };
    let mut child = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    let swaps_here = || fs::read_to_string("/proc/swaps").unwrap().contains(dir.to_str().unwrap());
    while !swaps_here() {
        if child.0.try_wait().unwrap().is_some() || began.elapsed() > PATIENCE {
            return skipped("this needs root, and a kernel that has zswap and takes a swap file");
        }
        sleep(Duration::from_millis(1));
    }
    drop(child);
    let killed = Instant::now();
    while swaps_here() || fs::read_dir(&dir).unwrap().count() > 0 {
        assert!(killed.elapsed() < PATIENCE, "the swap file is gone");
        sleep(Duration::from_millis(10));
    }
    assert_eq!(settings(), before);
}

#[test]
fn the_program_prints_what_its_accesses_took() {
    let load = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-load"));
        process::run(clean(command.args(args.split_whitespace())), TIME_LIMIT)
    };
    for workload in ["seq-write", "seq-read", "rand-read", "rand-write", "zipf-read"] {
        let value = json(&load(&format!("{workload} 1000 --contents 10 --threads 2")));
        assert_eq!(
            (value["accesses"].as_u64(), value["wrong"].as_u64()),
            (Some(1000), Some(0)),
            "{value}"
        );
        assert!(value["elapsed_s"].as_f64().unwrap() > 0.0, "{value}");
    }
    assert_eq!(load("seq-write").status, 2);
}
