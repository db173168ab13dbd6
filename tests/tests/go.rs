//! Programs that make system calls by their own instructions: Go's runtime without the C library.
//! They behave as they do natively, and their memory is managed.

use overspill_tests::process::{Outcome, run, running};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

const BUDGET: &str = "64M";
/// What the program has beside pages of the budget for a moment: what is counted twenty times a
/// second may have grown meanwhile.
const TOLERANCE: u64 = 16 << 20;

/// `tests/semantics/SOURCE`, built as a program that the loader starts, without the C library; each
/// test has its own, to tell who runs it.
fn built(source: &str, test: &str) -> Option<PathBuf> {
    built_with("0", &[source], test)
}

/// The same of several sources, with cgo or without.
fn built_with(cgo: &str, sources: &[&str], test: &str) -> Option<PathBuf> {
    let name = format!("{test}_{}", sources[0].replace('.', "_"));
    let program = SCRATCH.go_program(&name, sources, cgo, &["-buildmode=pie"])?;
    let bytes = std::fs::read(&program).unwrap();
    if !bytes.windows(8).any(|bytes| bytes == b"ld-linux") {
        skipped("this Go builds static programs only");
        return None;
    }
    Some(program)
}

/// Runs a command, and looks how much memory who runs `program` has resident at most.
fn watched(command: &mut Command, program: &Path) -> (Outcome, u64) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Relaxed) {
                most = running(program).into_iter().filter_map(resident).fold(most, u64::max);
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let outcome = run(command, TIME_LIMIT);
        ended.store(true, Relaxed);
        (outcome, watch.join().unwrap())
    })
}

/// Bytes of a process that are resident and its own.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

fn under(overspill: &Path, fault: &str, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(overspill);
    clean(&mut command).args(["run", "--memory", BUDGET, "--fault", fault]);
    command.args(arguments).arg("--").arg(program);
    command
}

#[test]
fn goroutines_are_managed_and_do_as_they_do() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let Some(program) = built("goroutines.go", "signal") else { return };
    let native = run(clean(&mut Command::new(&program)), TIME_LIMIT);
    assert!(native.status == 0 && !native.stdout.contains("WRONG"), "{native:?}");
    let room = SCRATCH.room("goroutines");
    let report = room.path.join("stats.json");
    let arguments = ["--stats-json", report.to_str().unwrap()];
    for collect in ["100", "25"] {
        let mut command = under(overspill, "signal", &program, &arguments);
        command.env("GOGC", collect);
        let (outcome, most) = watched(&mut command, &program);
        assert_eq!(outcome.stdout, native.stdout, "{}", outcome.stderr);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
        let budget = 64 << 20;
        assert!(most > 16 << 20 && most <= budget + TOLERANCE, "{} MiB", most >> 20);
        let report = Report::read(&report);
        report.check(true);
        let unmanaged = report.total("unmanaged_bytes");
        assert!(unmanaged < 24 << 20, "{} MiB are not managed", unmanaged >> 20);
    }
}

/// With faults by thread its memory is not managed, and the end of the run says so.
#[test]
fn by_thread_they_are_told_of() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let Some(program) = built("goroutines.go", "thread") else { return };
    let native = run(clean(&mut Command::new(&program)), TIME_LIMIT);
    let outcome = run(&mut under(overspill, "thread", &program, &[]), TIME_LIMIT);
    if outcome.status == 125 {
        return skipped("faults cannot be served by a thread here");
    }
    assert_eq!((outcome.status, &outcome.stdout), (0, &native.stdout), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("overspill: up to "), "{}", outcome.stderr);
}

/// With cgo Go maps memory by the C library's functions, and gives it back by its own calls: what
/// is given back must not come again.
#[test]
fn what_is_given_back_by_other_calls_does_not_come_again() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let Some(program) = built_with("1", &["goroutines.go", "cgo.go"], "cgo") else { return };
    let native = run(clean(&mut Command::new(&program)), TIME_LIMIT);
    assert_eq!(native.status, 0, "{native:?}");
    for fault in ["signal", "thread"] {
        let outcome = run(&mut under(overspill, fault, &program, &[]), TIME_LIMIT);
        assert_eq!((outcome.status, &outcome.stdout), (0, &native.stdout), "{fault}: {outcome:?}");
        let is_told = outcome.stderr.starts_with("overspill: up to ");
        assert_eq!(is_told, fault == "thread", "{fault}: {}", outcome.stderr);
    }
}
