//! Swap devices through the command: kinds, options, priorities, and devices that fail.

use overspill_tests::command::shown;
use overspill_tests::process::{Outcome, run};
use overspill_tests::scratch::{Room, private_file};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Runs `program ARG` with 16 MiB and devices, without compression; returns what it did and its
/// statistics.
fn with_devices(
    room: &Room,
    swap: &[&str],
    more: &[&str],
    program: &str,
    arg: &str,
) -> Option<(Outcome, Report)> {
    let overspill = overspill(&SCRATCH)?;
    let report = room.path.join("stats.json");
    let mut command = Command::new(overspill);
    command
        .args(["run", "--memory", "16M", "--set", "compressed=0", "--stats-json"])
        .arg(&report)
        .args(more);
    for device in swap {
        command.args(["--swap", device]);
    }
    command.arg("--").arg(SCRATCH.program(program)).arg(arg);
    command.current_dir(&room.path).env("XDG_RUNTIME_DIR", &room.path);
    let outcome = run(clean(&mut command), TIME_LIMIT);
    let report = if report.exists() { Report::read(&report) } else { panic!("{outcome:?}") };
    Some((outcome, report))
}

fn ran_well(outcome: &Outcome) {
    assert!(outcome.status == 0 && outcome.stdout.ends_with("all ok\n"), "{outcome:?}");
    assert_eq!(outcome.stderr_without_unmanaged(), "");
}

/// One device of the report.
fn figure(report: &Report, device: usize, name: &str) -> u64 {
    report.devices()[device][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {:?}", report.devices()))
}

#[test]
fn a_ram_device_serves_programs_and_their_children() {
    let room = SCRATCH.room("ram");
    for (program, arg) in [("mixed.c", "250"), ("fork_evicted.c", "")] {
        for fault in ["thread", "signal"] {
            if program == "fork_evicted.c" && fault == "signal" {
                continue;
            }
            let more = ["--fault", fault];
            let Some((outcome, report)) =
                with_devices(&room, &["ram:1G,latency=20us"], &more, program, arg)
            else {
                return;
            };
            ran_well(&outcome);
            report.check(true);
            assert!(report.total("pswpout") > 0 && report.total("pswpin") > 0);
            assert!(
                report
                    .devices()
                    .iter()
                    .all(|device| device["kind"] == "ram" && device["path"] == "ram")
            );
        }
    }
}

#[test]
fn priorities_decide_which_device_is_filled() {
    let room = SCRATCH.room("prio");
    let file = room.path.join("file");
    private_file(&file);
    let (low, high) =
        (format!("{}:1G", shown(&room.path)), format!("{}:8M,prio=5,label=small", shown(&file)));
    let swap = format!("{low},{high},ram:64M,prio=1,ram:64M,prio=1");
    let Some((outcome, report)) = with_devices(&room, &[&swap], &[], "fills.c", "64") else {
        return;
    };
    ran_well(&outcome);
    report.check(true);
    // 48 MiB or more go out: 8 fit the file, the rest goes to both in memory, run by run, and
    // nothing to the directory.
    let written: Vec<u64> = (0..4).map(|device| figure(&report, device, "pages_written")).collect();
    let (high, equal, low) = (written[1], &written[2..], written[0]);
    assert!(low == 0 && high >= 2000, "{written:?}");
    assert!(
        equal.iter().all(|one| *one > 1000) && equal[0].abs_diff(equal[1]) < equal[0] / 2,
        "{written:?}"
    );
    let small = &report.devices()[1];
    assert_eq!(
        (small["label"].as_str(), small["kind"].as_str(), small["priority"].as_i64()),
        (Some("small"), Some("file"), Some(5))
    );
    let uuid = small["uuid"].as_str().unwrap();
    assert!(
        fs::read(&file)
            .unwrap()
            .starts_with(format!("overspill swap device 1\nuuid={uuid}\nlabel=small\n").as_bytes())
    );
}

#[test]
fn a_device_that_fails_for_the_moment_is_not_noticed() {
    let room = SCRATCH.room("transient");
    for fault in ["thread", "signal"] {
        let swap = "ram:1G,faults=0.02:eio+short+slow+flip";
        let Some((outcome, report)) =
            with_devices(&room, &[swap], &["--fault", fault], "mixed.c", "250")
        else {
            return;
        };
        ran_well(&outcome);
        report.check(true);
        assert!(report.total("swap_read_retries") > 0 && report.total("swap_checksum_errors") > 0);
        assert_eq!(report.total("swap_read_errors"), 0);
    }
}

#[test]
fn a_page_that_is_lost_is_lost_to_its_reader_alone() {
    let room = SCRATCH.room("lost");
    for fault in ["thread", "signal"] {
        let swap = "ram:1G,faults=0.5:rot";
        let Some((outcome, report)) =
            with_devices(&room, &[swap], &["--fault", fault], "unreadable.c", "64")
        else {
            return;
        };
        let numbers: Vec<u64> = outcome
            .stdout
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok())
            .collect();
        assert!(
            matches!(numbers[..], [lost, 0, 0] if lost > 0) && outcome.status == 0,
            "{outcome:?}"
        );
        let said: Vec<&str> = outcome.stderr.lines().collect();
        assert!(
            matches!(said[..], [line] if line.starts_with("overspill: a page cannot be read back")
                && line.contains("what swap device 'ram' has at byte ")
                && line.contains("is not what was written")),
            "{said:?}"
        );
        // Each page has two readers, who may come at once.
        let errors = report.total("fault_errors");
        assert!((numbers[0]..=2 * numbers[0]).contains(&errors), "{errors} of {numbers:?}");
        assert!(
            figure(&report, 0, "checksum_errors") >= 2 * numbers[0]
                && figure(&report, 0, "read_errors") >= numbers[0]
        );
    }
}

#[test]
fn a_header_that_cannot_be_right_is_refused() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("header");
    let file = room.path.join("file");
    let device = format!("{}:4M", shown(&file));
    private_file(&file);
    let awake = ["env", "OVERSPILL_BASELINES=dormant=off", "true"];
    let run_once = || {
        run(
            clean(Command::new(overspill).args(["run", "--swap", &device, "--"]).args(awake)),
            TIME_LIMIT,
        )
    };
    assert_eq!(run_once().status, 0);
    File::options().write(true).open(&file).unwrap().write_all_at(b"x", 30).unwrap();
    let refusal = run_once();
    assert_eq!(
        (refusal.status, refusal.stdout.as_str(), refusal.stderr.lines().count()),
        (125, "", 1),
        "{refusal:?}"
    );
    assert!(refusal.stderr.contains("cannot be trusted (its checksum is wrong)"), "{refusal:?}");
}

#[test]
fn discarded_parts_of_a_device_serve_again() {
    let room = SCRATCH.room("discard");
    let file = room.path.join("file");
    private_file(&file);
    for device in [shown(&room.path), &format!("{}:512M", shown(&file)), "ram:512M"] {
        for discard in ["once", "pages"] {
            let swap = format!("{device},discard={discard}");
            let Some((outcome, report)) = with_devices(&room, &[&swap], &[], "mixed.c", "100")
            else {
                return;
            };
            ran_well(&outcome);
            report.check(true);
        }
    }
}

/// A directory's room is the job's: processes share it, and what one had who has ended serves the
/// next.
#[test]
fn a_directory_has_one_file_for_all_processes() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("one");
    let report = room.path.join("stats.json");
    // Each has 24 MiB on the device at least; of all that end, and two at a time, it is 240.
    let churn = SCRATCH.program("churn.c");
    let script = "churn() { timeout -s TERM 1 \"$churn\" 40; }; \
        for i in 1 2 3 4 5; do churn & churn; wait $!; done; \
        for fd in /proc/$PPID/fd/*; do case $(readlink $fd) in \
        *deleted*) stat -L -c '%b blocks of %B' $fd;; esac; done";
    let mut command = Command::new(overspill);
    command.args(["run", "--memory", "16M", "--set", "compressed=0", "--stats-json"]).arg(&report);
    command
        .arg("--swap")
        .arg(format!("{}:96M", shown(&room.path)))
        .args(["--", "sh", "-c", script]);
    let outcome = run(clean(&mut command).env("churn", &churn), TIME_LIMIT);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("all ok\n").count(), 10, "{outcome:?}");
    let files = outcome.stdout.lines().filter_map(|line| line.split_once(" blocks of "));
    let sizes: Vec<u64> = files
        .map(|(blocks, bytes)| blocks.parse::<u64>().unwrap() * bytes.parse::<u64>().unwrap())
        .collect();
    assert!(matches!(sizes[..], [size] if (24 << 20..97 << 20).contains(&size)), "{sizes:?}");
    assert!(Report::read(&report).total("pswpout") > (240 << 8), "{outcome:?}");
}
