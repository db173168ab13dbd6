//! One budget for all processes of a job: what counts in it, and that it survives whatever happens
//! to them. Who is killed when it is not enough is among the failures.

use overspill_tests::process::{Outcome, run};
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
        // The program ends as soon as it is within the budget: its last measure may have been taken
        // with up to the tolerance of its 20 MiB still to be touched.
        assert!(report.total("unmanaged_bytes") > 18 << 20, "{fault}: it is told");
        report.check(true);
    });
}

fn has_40_mib_managed(source: &str) {
    let program = SCRATCH.program(source);
    let args = ["--memory", "16M", "--", shown(&program)];
    both(source, &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert!(report.total("managed_peak_bytes") > 40 << 20, "{fault}: they are not managed");
        assert!(report.unmanaged_peak() < 8 << 20, "{fault}: {} bytes", report.unmanaged_peak());
        report.check(true);
    });
}

#[test]
fn mappings_below_2_gib_are_managed() {
    has_40_mib_managed("low.c");
}

#[test]
fn what_a_small_process_has_mapped_is_managed_when_it_has_grown() {
    has_40_mib_managed("grows.c");
}

#[test]
fn what_is_taken_of_a_terabyte_that_is_reserved_is_managed() {
    has_40_mib_managed("terabyte.c");
}

/// 3 MiB of constants leave memory, but for their first pages.
#[test]
fn constants_that_the_loader_writes_are_managed() {
    let program = SCRATCH.program("constants.c");
    let args = ["--memory", "16M", "--", shown(&program)];
    both("constants", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        let (out, most) = (report.total("zswpout"), report.unmanaged_peak());
        assert!(out > 500 && most < 2 << 20, "{fault}: {out} pages, {most} bytes");
    });
}

/// What is not managed and shared since a fork is one memory: it counts once.
#[test]
fn memory_that_is_shared_since_a_fork_counts_once() {
    let program = SCRATCH.program("divided.c");
    let args = ["--memory", "128M", "--", shown(&program), "6"];
    both("divided", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        let most = report.unmanaged_peak();
        assert!((20 << 20..80 << 20).contains(&most), "{fault}: {most} bytes");
    });
}

/// Pages that are managed and shared since a fork are one memory, too: a budget with room for two
/// copies is enough for a process and four children that read them, and nothing leaves memory.
#[test]
fn pages_that_are_shared_since_a_fork_count_once() {
    let program = SCRATCH.program("fork_shares.c");
    let args = ["--memory", "56M", "--", "env", "READ_ONLY=1", shown(&program)];
    both("fork_shares", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        for counter in ["zswpout", "pswpout", "swpcache_in"] {
            assert_eq!(report.total(counter), 0, "{fault}: {counter}");
        }
        assert!(report.total("cow_fault") < 1000, "{fault}: who only reads copies nothing");
        report.check(false);
    });
}

/// Nor do they crowd each other out where each child writes to a part of them: none leases more for
/// that than it has for itself.
#[test]
fn children_that_write_to_a_part_of_what_they_share_have_room() {
    let program = "../bench/src/work/vs_kernel/program/workers.py";
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(program);
    let bytes = (80 << 20).to_string();
    let args = ["--memory", "128M", "--", "python3", shown(&program), &bytes];
    both("workers", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        let back = report.total("zswpin") + report.total("pswpin");
        assert!(back < 500, "{fault}: {back} pages came back of what fits");
        report.check(false);
    });
}

/// What is kept of pages that lie far apart takes little beside them, and counts in the budget.
#[test]
fn tables_are_as_sparse_as_the_pages_that_are_touched() {
    let program = SCRATCH.program("sparse.c");
    let args = ["--memory", "32M", "--", shown(&program), "32", "40000"];
    both("sparse", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert!(
            report.total("metadata_bytes") < 20 << 20,
            "{fault}: {}",
            report.total("metadata_bytes")
        );
        report.check(true);
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
        assert!(report.total("pgfault") > 1000, "{fault}: its statistics are there");
        report.check(false);
    });
}

/// A job that does nothing but bring pages in, because most of its budget is not managed, says so
/// while it runs.
#[test]
fn who_does_not_get_on_is_told_at_once() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    // It goes on until the sentence is there, which is some seconds after it has begun.
    let script = "import mmap, os, sys, time\n\
                  shared = mmap.mmap(-1, 26 << 20); shared.write(b'x' * (26 << 20))\n\
                  pages = bytearray(os.urandom(1 << 20) * 48); end = time.monotonic() + 30\n\
                  said = lambda: os.stat(sys.argv[1]).st_size > 0\n\
                  while not said() and time.monotonic() < end:\n    \
                  for page in range(0, len(pages), 4096): pages[page] ^= 1\n\
                  sys.exit(not said())";
    let room = SCRATCH.room("starving");
    let said = room.path.join("said");
    let mut command = Command::new("sh");
    clean(&mut command).args(["-c", "exec \"$@\" 2> \"$0\""]).arg(&said).arg(overspill);
    command.args(["run", "--memory", "32M", "--fault", "signal", "--", "python3", "-c", script]);
    let outcome = run(command.arg(&said), TIME_LIMIT);
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(outcome.status, 0, "{outcome:?}: {said}");
    let expected =
        "overspill: this will take long, as pages go out and come back most of the time: ";
    assert!(said.starts_with(expected) && said.contains("MiB shared memory"), "{said}");
    assert_eq!(said.matches("this will take long").count(), 1, "{said}");
}

/// A process that is alone has not more of the budget than it uses: those that it starts find what
/// they need, and nothing leaves memory as long as all of them fit.
#[test]
fn a_job_that_fits_swaps_nothing() {
    let child = "import sys; b = bytearray(b'x') * (16 << 20); sys.stdin.read(); \
                 print(b.count(b'x'))";
    let parent = "import subprocess as s, sys; b = bytearray(b'y') * (16 << 20)\n\
                  start = lambda: s.Popen([sys.executable, '-c', sys.argv[1]], stdin=s.PIPE, \
                  stdout=s.PIPE)\n\
                  for child in [start() for _ in range(6)]:\n    \
                  print(child.communicate()[0].decode().strip())\n\
                  print(b.count(b'y'))";
    let args = ["--memory", "512M", "--", "python3", "-c", parent, child];
    both("fits", &args, TIME_LIMIT, |fault, outcome, report| {
        assert_eq!(outcome.status, 0, "{fault}: {outcome:?}");
        assert_eq!(outcome.stdout, "16777216\n".repeat(7), "{fault}");
        for counter in ["pgsteal_kswapd", "pgsteal_direct", "zswpout", "pswpout"] {
            assert_eq!(report.total(counter), 0, "{fault}: {counter}");
        }
    });
}
