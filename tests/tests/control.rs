//! Running jobs whose budget is changed: `overspill set`, and the socket by which it reaches them.
//!
//! With `OVERSPILL_TEST_FULL` set, budgets are changed ten times instead of twice, and have to be
//! kept within 5 s: for a machine that has nothing else to do.

use overspill_tests::job::{Job, refused};
use overspill_tests::process::{run, wait_until};
use overspill_tests::{Scratch, TIME_LIMIT, clean, is_root, overspill, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

const MIB: u64 = 1 << 20;
/// What a process has beyond its budget: the engine's tables, its libraries' data, stacks.
const BESIDE: u64 = 12 * MIB;

fn full() -> bool {
    std::env::var_os("OVERSPILL_TEST_FULL").is_some()
}

/// Resident bytes of a process that no file backs; 0 once it has ended.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}

/// Changes the budget of a job from 256 MiB to 96 MiB and back, again and again; each time every
/// process must come down to its share of it.
fn up_and_down(job: &Job) {
    let cycles = if full() { 10 } else { 2 };
    for cycle in 0..cycles {
        let start = Instant::now();
        let outcome =
            job.set(job.pid(), &["--memory", "96M", "--wait", if full() { "5" } else { "60" }]);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        assert!(outcome.stdout.starts_with("256 MiB -> 96 MiB, "), "{outcome:?}");
        let mut over = Vec::new();
        let follows = wait_until(if full() { Duration::from_secs(5) } else { TIME_LIMIT }, || {
            over = job.processes();
            over.retain(|(pid, _, share)| resident(*pid) > share + BESIDE);
            over.is_empty()
        });
        let took = start.elapsed();
        assert!(follows, "too much is resident after {took:?}, with these shares: {over:?}");
        eprintln!("cycle {cycle}: {} after {took:?}", outcome.stdout.trim());
        assert!(!full() || took < Duration::from_secs(5), "it took {took:?}");
        sleep(Duration::from_millis(500));
        let outcome = job.set(job.pid(), &["--memory", "256M"]);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        sleep(Duration::from_millis(1000));
    }
}

#[test]
fn a_program_goes_on_through_changes_of_its_budget() {
    for fault in ["thread", "signal"] {
        let options = ["--memory", "256M", "--fault", fault];
        let Some(job) = Job::churn(&SCRATCH, &format!("churn-{fault}"), &options, &["256"]) else {
            return;
        };
        let program = job.processes()[0].0;
        up_and_down(&job);
        // It uses what it gets, too.
        let grows = wait_until(TIME_LIMIT, || resident(program) > 150 * MIB);
        assert!(grows, "{} bytes are resident in a budget of 256 MiB", resident(program));
        job.end_churn();
    }
}

#[test]
fn stress_ng_goes_on_through_changes_of_its_budget() {
    if Command::new("stress-ng").arg("--version").output().is_err() {
        return skipped("there is no stress-ng");
    }
    let room = SCRATCH.room("stress");
    let seconds = if full() { "120s" } else { "20s" };
    let mut command = vec![
        "stress-ng",
        "--vm",
        "1",
        "--vm-bytes",
        "256M",
        "--vm-method",
        "all",
        "--verify",
        "-v",
        "-t",
    ];
    command.extend([seconds, "--temp-path", room.path.to_str().unwrap()]);
    let Some(job) = Job::start(&SCRATCH, "stress", &["--memory", "256M"], &command) else { return };
    let worker = || job.processes().into_iter().any(|(pid, ..)| resident(pid) > 32 * MIB);
    assert!(wait_until(TIME_LIMIT, worker), "it does not begin");
    up_and_down(&job);
    assert!(wait_until(TIME_LIMIT, worker), "it does not use what it gets");
    job.signal(Signal::INT);
    let (status, stdout, stderr) = job.end();
    let log = stdout + &stderr;
    let bad = ["fail:", "error:", "child died", "restart", "terminated on signal", "killed by"];
    let lines: Vec<_> =
        log.lines().filter(|line| bad.iter().any(|word| line.contains(word))).collect();
    assert!(lines.is_empty() && status == 0, "{status}: {lines:?}\n{log}");
}

#[test]
fn a_budget_eight_times_as_large() {
    let Some(job) = Job::churn(&SCRATCH, "grow", &["--memory", "16M"], &["100"]) else { return };
    let (program, ..) = job.processes()[0];
    assert!(resident(program) < 16 * MIB + BESIDE);
    // By the number of the program this time.
    let outcome = job.set(program, &["--memory", "128M"]);
    assert!(
        outcome.status == 0 && outcome.stdout.starts_with("16 MiB -> 128 MiB, "),
        "{outcome:?}"
    );
    assert!(
        wait_until(TIME_LIMIT, || resident(program) > 100 * MIB),
        "{} bytes are resident",
        resident(program)
    );
    let outcome = job.set(program, &["--memory", "16M", "--wait", "60"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(resident(program) < 16 * MIB + BESIDE, "{} bytes are resident", resident(program));
    job.end_churn();
}

#[test]
fn a_budget_that_cannot_be_kept_ends_nothing() {
    let Some(job) =
        Job::churn(&SCRATCH, "stuck", &["--memory", "48M", "--no-swap"], &["32", "hard"])
    else {
        return;
    };
    let outcome = job.set(job.pid(), &["--memory", "16M", "--wait", "4"]);
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stdout.starts_with("48 MiB -> 16 MiB, 3"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("cannot get down to it") && outcome.stderr.lines().count() == 1,
        "{outcome:?}"
    );
    sleep(Duration::from_secs(3));
    let outcome = job.set(job.pid(), &["--memory", "48M"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    job.end_churn();
}

#[test]
fn a_stopped_program_takes_note_when_it_goes_on() {
    let Some(job) = Job::churn(&SCRATCH, "stopped", &["--memory", "32M"], &["64"]) else { return };
    let program = job.processes()[0].0;
    job.signal_with_engines(program, Signal::STOP);
    let outcome = job.set(job.pid(), &["--memory", "16M", "--wait", "1"]);
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stderr.contains("1 process did not take note within 1 s"), "{outcome:?}");
    job.signal_with_engines(program, Signal::CONT);
    assert!(wait_until(TIME_LIMIT, || job.budget()["reached"] == 1), "{}", job.budget());
    job.end_churn();
}

/// All processes of a job know its budget, however and whenever they were started.
#[test]
fn every_process_of_a_tree() {
    let script = "(while :; do sleep 0.3; done) & while :; do sleep 0.3; done";
    // Each has an engine, however little it does.
    let command = ["env", "OVERSPILL_BASELINES=dormant=off", "sh", "-c", script];
    let Some(job) = Job::start(&SCRATCH, "tree", &["--memory", "64M", "--no-swap"], &command)
    else {
        return;
    };
    for mib in [64, 32, 128] {
        if mib != 64 {
            let outcome = job.set(job.pid(), &["--memory", &format!("{mib}M"), "--wait", "60"]);
            assert_eq!(outcome.status, 0, "{outcome:?}");
        }
        let mut seen = Vec::new();
        let as_it_should = wait_until(TIME_LIMIT, || {
            seen = job.processes();
            let count = |name| {
                seen.iter().filter(|(_, n, budget)| n == name && *budget == mib * MIB).count()
            };
            count("sh") == 2 && count("sleep") == 2
        });
        assert!(as_it_should, "with {mib} MiB: {seen:?}");
    }
}

#[test]
fn mistakes_are_named() {
    let Some(job) = Job::churn(&SCRATCH, "mistakes", &["--memory", "16M"], &["8"]) else { return };
    refused(&job.set(job.pid(), &["--memory", "1M"]), 2, &["the smallest possible is 4 MiB"]);
    refused(&job.set(job.pid(), &["--memory", "some"]), 2, &["'some' is not a size"]);
    refused(
        &job.set(job.pid(), &["--memory", "2T"]),
        2,
        &["more than the", "of RAM that this machine has"],
    );
    refused(&job.set(job.pid(), &[]), 2, &["--memory"]);
    refused(&job.set((1 << 22) + 1, &["--memory", "16M"]), 1, &["there is no process"]);
    refused(
        &job.set(std::process::id(), &["--memory", "16M"]),
        1,
        &["not of a job", "OVERSPILL_RUNTIME_DIR"],
    );
    // The sentence about a machine's memory comes from the job too, whoever asks.
    let request = format!(
        "{{\"version\":1,\"pid\":{},\"request\":{{\"set\":{{\"memory_bytes\":5}}}}}}\n",
        job.pid()
    );
    assert!(job.say(request.as_bytes()).contains("the smallest possible is"));
    assert_eq!(job.budget()["memory_bytes"], 16 * MIB);
    job.end_churn();
}

#[test]
fn other_users() {
    if !is_root() {
        return skipped("only root can be another user");
    }
    let Some(job) = Job::churn(&SCRATCH, "users", &["--memory", "16M"], &["8"]) else { return };
    let copy = job.runtime.with_extension("overspill");
    fs::copy(overspill(&SCRATCH).unwrap(), &copy).unwrap();
    let set_as_nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
        clean(&mut command).args(["set", "--memory", "8M", "--pid", &job.pid().to_string()]);
        run(command.env("OVERSPILL_RUNTIME_DIR", &job.runtime).current_dir("/"), TIME_LIMIT)
    };
    refused(&set_as_nobody(), 1, &["user"]);
    // With every door open it is the socket that refuses.
    fs::set_permissions(&job.runtime, PermissionsExt::from_mode(0o755)).unwrap();
    refused(&set_as_nobody(), 1, &["user"]);
    fs::set_permissions(job.socket(), PermissionsExt::from_mode(0o777)).unwrap();
    refused(&set_as_nobody(), 1, &["this job belongs to another user"]);
    fs::remove_file(copy).unwrap();
    assert_eq!(job.budget()["memory_bytes"], 16 * MIB);
    job.end_churn();
}

#[test]
fn a_job_that_was_killed_leaves_a_socket_that_is_removed() {
    let Some(mut job) = Job::churn(&SCRATCH, "killed", &["--memory", "16M"], &["8"]) else {
        return;
    };
    let program = job.processes()[0].0;
    job.signal(Signal::KILL);
    job.child.wait().unwrap();
    assert!(job.socket().exists());
    refused(&job.set(job.pid(), &["--memory", "16M"]), 1, &["has ended", "removed"]);
    assert!(!job.socket().exists());
    kill_process(Pid::from_raw(program as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn garbage_disturbs_nobody() {
    let Some(job) = Job::churn(&SCRATCH, "garbage", &["--memory", "16M"], &["32"]) else { return };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&job.runtime), mode(&job.socket())), (0o700, 0o600));
    let mut random = 1u64;
    for length in [0, 1, 7, 100, 5_000, 100_000, 3_000_000] {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (random >> 56) as u8
        })
        .take(length)
        .chain([b'\n'])
        .collect();
        // What is far too long may find the connection closed before it could read the answer.
        let answer = job.say(&bytes);
        assert!(answer.contains("refused") || length > 5_000, "{length} bytes: {answer}");
    }
    // Some who say nothing, one who speaks slowly, and some who do not listen.
    let silent: Vec<_> = (0..10).map(|_| UnixStream::connect(job.socket()).unwrap()).collect();
    let mut slow = UnixStream::connect(job.socket()).unwrap();
    slow.write_all(b"{\"version\"").unwrap();
    drop(UnixStream::connect(job.socket()).unwrap());
    let mut deaf = UnixStream::connect(job.socket()).unwrap();
    deaf.write_all(b"\n").unwrap();
    drop(deaf);
    let outcome = job.set(job.pid(), &["--memory", "24M", "--wait", "60"]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    drop((silent, slow));
    job.end_churn();
}

#[test]
fn a_directory_that_cannot_be_used() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("directory");
    let open_to_all = room.path.join("open");
    fs::create_dir(&open_to_all).unwrap();
    fs::set_permissions(&open_to_all, PermissionsExt::from_mode(0o777)).unwrap();
    for (path, reason) in
        [(open_to_all, "others may write to it"), (room.path.join("no/such"), "No such file")]
    {
        let mut command = Command::new(overspill);
        clean(&mut command).args(["run", "--memory", "16M", "--no-swap", "--", "true"]);
        let outcome = run(command.env("OVERSPILL_RUNTIME_DIR", &path), TIME_LIMIT);
        refused(&outcome, 125, &[reason, "set OVERSPILL_RUNTIME_DIR to a directory of your own"]);
    }
}
