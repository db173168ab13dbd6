//! One budget for all processes of a job: what counts in it, and that it survives whatever happens
//! to them. Who is killed when it is not enough is among the failures.

use overspill_tests::process::{Outcome, run, wait_until};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, is_root, overspill, skipped};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// `overspill run ARGS` in both deliveries, with swap files in a directory in which nothing is left
/// afterwards, and the statistics that it wrote; nothing where it cannot run.
fn both(name: &str, args: &[&str], limit: Duration, check: impl Fn(&str, &Outcome, &Report)) {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    for fault in ["thread", "signal"] {
        let room = SCRATCH.room(&format!("{name}-{fault}"));
        let (swap, report) = (room.path.join("swap"), room.path.join("stats.json"));
        fs::create_dir(&swap).unwrap();
        fs::set_permissions(&swap, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        let mut command = Command::new(overspill);
        clean(&mut command).args(["run", "--fault", fault, "--swap"]).arg(&swap);
        command.arg("--stats-json").arg(&report).args(args);
        let outcome = run(&mut command, limit);
        check(fault, &outcome, &Report::read(&report));
        assert_eq!(fs::read_dir(&swap).unwrap().count(), 0, "{fault}: swap files are left");
    }
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a path of this repository")
}

/// Shared memory is not managed, so pages that are make room for it.
#[test]
fn memory_that_is_not_managed_counts() {
    let program = SCRATCH.program("unmanaged.c");
    let args = ["--memory", "48M", "--", shown(&program), "48", "20", "64"];
    both("unmanaged", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert!(report.total("unmanaged_bytes") > 20 << 20, "{fault}: it is told");
        report.check(true);
    });
}

/// Processes that come, fork, stop and are killed at any instruction: no byte is wrong, nothing
/// hangs, and together they never had more than the budget.
#[test]
fn processes_that_are_killed_leave_nothing_behind() {
    const BUDGET_MIB: u64 = 160;
    let program = SCRATCH.program("torture.c");
    let budget = format!("{BUDGET_MIB}M");
    let seconds = std::env::var("OVERSPILL_TORTURE_SECONDS").unwrap_or("8".to_owned());
    let count: u64 = if seconds == "8" { 12 } else { 64 };
    let processes = count.to_string();
    let args = ["--memory", &budget, "--", shown(&program), &processes, "16", &seconds, "7"];
    let limit = TIME_LIMIT + Duration::from_secs(seconds.parse().unwrap());
    both("torture", &args, limit, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert_eq!(outcome.stdout, "0 wrong, 0 ended otherwise\n", "{fault}: {outcome:?}");
        assert!(report.evicted() > 0, "{fault}: nothing was evicted, so nothing was tested");
        // A process that works has 4 MiB, whatever the others have: 1 MiB each is allowed for it.
        let peak = report.total("charged_peak_bytes") >> 20;
        assert!(peak <= BUDGET_MIB * 102 / 100 + count, "{fault}: {peak} MiB at once");
        // Nor does anything that belongs to one that was killed live on, with its memory.
        let left = || overspill_tests::process::running(&program);
        assert!(wait_until(Duration::from_secs(20), || left().is_empty()), "{fault}: {:?}", left());
    });
}

/// A program that changes its user and executes another is part of the job: it has no budget of its
/// own.
#[test]
fn processes_of_other_users_belong_to_the_job() {
    if !is_root() {
        return skipped("only root's job has processes of other users");
    }
    let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); echo ${#x}";
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script];
    let args = [&["--memory", "20M", "--"], &user[..]].concat();
    both("users", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert_eq!(outcome.stdout, "30000000\n", "{fault}: {outcome:?}");
        assert!(report.total("pgfault") > 7000, "{fault}: its statistics are there");
        report.check(false);
    });
}
