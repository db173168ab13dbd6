//! What is told of running jobs, `overspill stat`, and proactive reclaim, `overspill reclaim`.

use overspill_tests::job::{Job, refused};
use overspill_tests::process::{self, Outcome, wait_until};
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

fn lines(outcome: &Outcome) -> Vec<&str> {
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    outcome.stdout.lines().collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A job that swaps all the time.
fn busy(name: &str) -> Option<Job> {
    let dir = SCRATCH.target_dir().to_str().unwrap();
    Job::churn(&SCRATCH, name, &["--memory", "16M", "--swap", dir], &["64"])
}

#[test]
fn lines_are_vmstats() {
    let Some(job) = busy("lines") else { return };
    let outcome = job.ask(&["stat", "0.3", "4"]);
    let lines = lines(&outcome);
    assert_eq!(lines.len(), 2 + 4, "{outcome:?}");
    assert!(
        lines[0].starts_with("procs ")
            && lines[0].contains("-memory-")
            && lines[0].contains("-zswap-"),
        "{lines:#?}"
    );
    let heads = words(lines[1]);
    assert_eq!(heads[..3], ["p", "swpd", "free"]);
    let sum = |head: &str| -> f64 {
        let at = heads.iter().position(|word| *word == head).unwrap();
        lines[2..].iter().map(|line| words(line)[at].parse::<f64>().unwrap()).sum()
    };
    assert!(lines[2..].iter().all(|line| words(line).len() == heads.len()), "{lines:#?}");
    assert_eq!(sum("p"), 4.0, "one process in each line: {lines:#?}");
    for head in
        ["swpd", "res", "stored", "pool", "zi", "zo", "si", "so", "rd", "wr", "minor", "major"]
    {
        assert!(sum(head) > 0.0, "{head}: {lines:#?}");
    }
    // One line without an interval; a process of the job names it as well as its `overspill run`.
    let program = job.processes()[0].0.to_string();
    let outcome = job.ask(&["stat", "--pid", &program]);
    assert_eq!(self::lines(&outcome).len(), 2 + 1, "{outcome:?}");
    job.end_churn();
}

#[test]
fn json_has_every_figure_and_they_grow() {
    let Some(job) = busy("json") else { return };
    let outcome = job.ask(&["stat", "--json", "0.3", "3"]);
    let samples: Vec<Value> =
        lines(&outcome).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(samples.len(), 3, "{outcome:?}");
    let number = |sample: &Value, path: &str| -> f64 {
        let value = path.split('/').fold(sample, |value, name| &value[name]);
        value.as_f64().unwrap_or_else(|| panic!("no {path} in {sample}"))
    };
    for (before, after) in samples.iter().zip(&samples[1..]) {
        let grew = |path: &str| number(after, path) - number(before, path);
        assert!((grew("elapsed_s") - number(after, "interval_s")).abs() < 0.01, "{after}");
        for path in ["counters/pgfault", "counters/pgmajfault", "psi/some/total_us"] {
            assert!(grew(path) > 0.0, "{path}: {before}\n{after}");
        }
        // Each fault of the interval has its time; a few may come between the reading of one cell
        // and the next.
        let (faults, timed) = (grew("counters/pgfault"), number(after, "latency/all/count"));
        assert!((faults - timed).abs() < 64.0, "{faults} faults, {timed} timed");
        assert!(
            (number(after, "per_s/pgfault") * number(after, "interval_s") / faults - 1.0).abs()
                < 0.01,
            "{after}"
        );
        assert!(
            number(after, "memory/charged_bytes") <= number(after, "memory/limit_bytes"),
            "{after}"
        );
    }
    assert_eq!(samples[0]["job"], job.pid());
    job.end_churn();
}

#[test]
fn pressure_is_told_as_the_kernel_does() {
    let Some(job) = busy("psi") else { return };
    let total = |line: &str, kind: &str| -> u64 {
        let words = words(line);
        let names: Vec<_> = words.iter().map(|word| word.split('=').next().unwrap()).collect();
        assert_eq!(names, [kind, "avg10", "avg60", "avg300", "total"]);
        words[4].split_once('=').unwrap().1.parse().unwrap()
    };
    let waits = wait_until(TIME_LIMIT, || {
        let outcome = job.ask(&["stat", "--psi"]);
        let lines = lines(&outcome);
        assert_eq!(lines.len(), 2);
        let (some, full) = (total(lines[0], "some"), total(lines[1], "full"));
        assert!(full <= some, "{lines:?}");
        some > 0 && full > 0 && !lines[0].contains("avg10=0.00")
    });
    assert!(waits, "nothing waits");
    job.end_churn();
}

#[test]
fn latencies_are_told_by_source() {
    let Some(job) = busy("latency") else { return };
    let outcome = job.ask(&["stat", "--latency"]);
    let lines = lines(&outcome);
    let rows: Vec<_> =
        lines.iter().map(|line| words(line)).filter(|words| !words.is_empty()).collect();
    let names: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(
        names,
        ["faults", "all", "minor", "major", "zero", "cache", "compressed", "device", "place"]
    );
    let count =
        |name: &str| -> u64 { rows.iter().find(|row| row[0] == name).unwrap()[1].parse().unwrap() };
    assert_eq!(count("all"), count("minor") + count("major"));
    assert!(count("zero") > 0 && count("compressed") > 0 && count("device") > 0, "{lines:#?}");
    job.end_churn();
}

#[test]
fn it_ends_with_the_job() {
    let Some(job) = busy("ends") else { return };
    let mut command = job.command(&["stat", "--json", "0.1"]);
    let mut stat = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(stat.try_wait().unwrap().is_none());
    job.end_churn();
    let mut status = None;
    let ended = wait_until(TIME_LIMIT, || {
        status = stat.try_wait().unwrap();
        status.is_some()
    });
    if !ended {
        let _ = stat.kill();
    }
    let outcome = stat.wait_with_output().unwrap();
    assert!(ended && outcome.status.code() == Some(0) && outcome.stderr.is_empty(), "{outcome:?}");
}

#[test]
fn the_only_job_needs_no_name() {
    let Some(job) = Job::churn(&SCRATCH, "only", &["--memory", "16M", "--no-swap"], &["8"]) else {
        return;
    };
    assert_eq!(lines(&job.ask(&["stat"])).len(), 3);
    let program = SCRATCH.program("churn.c");
    let second = [program.to_str().unwrap(), "8"];
    let other =
        Job::start_in(&SCRATCH, job.runtime.clone(), &["--memory", "16M", "--no-swap"], &second)
            .unwrap();
    let (first, second) = (job.pid().to_string(), other.pid().to_string());
    assert!(wait_until(TIME_LIMIT, || other
        .ask(&["stat"])
        .stderr
        .contains(&format!("{second} (churn_c)"))));
    refused(&job.ask(&["stat"]), 1, &["several jobs run", "--pid", &format!("{first} (churn_c)")]);
    assert_eq!(lines(&job.ask(&["stat", "--pid", &second])).len(), 3);
    drop(other);
    // The directory of both is gone with the second.
    refused(&job.ask(&["stat"]), 1, &["no job of yours runs", "overspill run"]);
}

#[test]
fn mistakes_are_named() {
    let Some(job) = Job::churn(&SCRATCH, "observe", &["--memory", "16M"], &["8"]) else { return };
    for arguments in [
        "stat 0",
        "stat 1 0",
        "stat --json --psi",
        "stat --pid 0",
        "reclaim 1M",
        "reclaim --pid 1 5",
    ] {
        refused(&job.ask(&arguments.split(' ').collect::<Vec<_>>()), 2, &["error"]);
    }
    let (nobody, own) = (((1 << 22) + 1).to_string(), std::process::id().to_string());
    for command in [&["stat"][..], &["reclaim", "1M"]] {
        refused(&job.ask(&[command, &["--pid", &nobody]].concat()), 1, &["there is no process"]);
        refused(
            &job.ask(&[command, &["--pid", &own]].concat()),
            1,
            &["not of a job", "OVERSPILL_RUNTIME_DIR"],
        );
    }
    job.end_churn();
}

/// Pages that were taken out of memory on request.
fn proactive(job: &Job) -> u64 {
    let sample: Value = serde_json::from_str(lines(&job.ask(&["stat", "--json"]))[0]).unwrap();
    sample["counters"]["pgsteal_proactive"].as_u64().unwrap()
}

#[test]
fn what_is_asked_for_is_reclaimed_and_the_program_goes_on() {
    for fault in ["thread", "signal"] {
        let options = ["--memory", "32M", "--fault", fault];
        let Some(job) = Job::churn(&SCRATCH, &format!("reclaim-{fault}"), &options, &["24"]) else {
            return;
        };
        let pid = job.pid().to_string();
        let outcome = job.ask(&["reclaim", "--pid", &pid, "8M"]);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        let reclaimed =
            outcome.stdout.strip_prefix("reclaimed ").unwrap_or_else(|| panic!("{outcome:?}"));
        assert!(reclaimed.ends_with(" of 8 MiB from 1 process\n"), "{outcome:?}");
        assert!(proactive(&job) >= (8 << 20) / 4096, "{}", proactive(&job));
        job.end_churn();
    }
}

#[test]
fn less_than_was_asked_for_is_status_1() {
    // Nothing takes pages that do not compress where there is no device.
    let Some(job) =
        Job::churn(&SCRATCH, "less", &["--memory", "48M", "--no-swap"], &["32", "hard"])
    else {
        return;
    };
    let pid = job.pid().to_string();
    let outcome = job.ask(&["reclaim", "--pid", &pid, "16M"]);
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(
        outcome.stdout.starts_with("reclaimed ") && outcome.stdout.contains(" of 16 MiB"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("nothing more can be reclaimed")
            && outcome.stderr.lines().count() == 1,
        "{outcome:?}"
    );
    job.end_churn();
}

#[test]
fn a_stopped_process_gives_nothing_and_the_request_is_given_up() {
    let Some(job) = Job::churn(&SCRATCH, "halted", &["--memory", "32M"], &["24"]) else { return };
    let (pid, program) = (job.pid().to_string(), job.processes()[0].0);
    job.signal_with_engines(program, Signal::STOP);
    let outcome = job.ask(&["reclaim", "--pid", &pid, "8M", "--wait", "1"]);
    assert_eq!(
        (outcome.status, outcome.stdout.as_str()),
        (1, "reclaimed 0 B of 8 MiB from 1 process\n"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("1 of 1 processes did not get there within 1 s"),
        "{outcome:?}"
    );
    job.signal_with_engines(program, Signal::CONT);
    // The next one is served, and the one that was given up is not: that would be twice as much.
    let outcome = job.ask(&["reclaim", "--pid", &pid, "4M"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(proactive(&job) < (8 << 20) / 4096, "{}", proactive(&job));
    job.end_churn();
}

/// Each process gives a part; what has ended is not waited for.
#[test]
fn all_processes_of_a_job_give() {
    let program = SCRATCH.program("churn.c");
    let script = format!("{0} 12 & {0} 12 & sleep 0.1; wait", program.display());
    let Some(job) = Job::start(&SCRATCH, "tree", &["--memory", "28M"], &["sh", "-c", &script])
    else {
        return;
    };
    let churns = || job.processes().iter().filter(|(_, name, _)| name == "churn_c").count();
    let has_begun = || {
        let budget = job.budget();
        churns() == 2 && budget["used_bytes"].as_u64().unwrap() > 22 << 20
    };
    assert!(wait_until(TIME_LIMIT, has_begun), "{}", job.budget());
    let outcome = job.ask(&["reclaim", "--pid", &job.pid().to_string(), "10M"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(
        outcome.stdout.contains(" of 10 MiB from ") && outcome.stdout.contains("processes"),
        "{outcome:?}"
    );
    assert!(proactive(&job) >= (10 << 20) / 4096, "{}", proactive(&job));
    for (pid, ..) in job.processes().into_iter().filter(|(_, name, _)| name == "churn_c") {
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::TERM).unwrap();
    }
    let (status, stdout, stderr) = job.end();
    assert!(
        status == 0 && stderr.is_empty() && stdout.matches("all ok\n").count() == 2,
        "{status} {stdout} {stderr}"
    );
}

#[test]
fn what_a_small_process_has_is_told() {
    let mark = SCRATCH.target_dir().join("small.mark");
    std::fs::write(&mark, "").unwrap();
    let script = "x=$(head -c 300000 /dev/zero | tr '\\0' a); \
        while [ -e \"$0\" ]; do sleep 0.02; done; exec sleep 600";
    let command = ["sh", "-c", script, mark.to_str().unwrap()];
    let Some(job) = Job::start(&SCRATCH, "small", &["--memory", "256M"], &command) else { return };
    let told = || {
        let outcome = job.ask(&["stat", "--json"]);
        let told: Value = serde_json::from_str(lines(&outcome)[0]).unwrap();
        (told["processes"].as_u64().unwrap(), told["counters"]["unmanaged_bytes"].as_u64().unwrap())
    };
    // In the budget, though it has no engine.
    assert!(wait_until(TIME_LIMIT, || matches!(told(), (0, 500_000..5_000_000))), "{:?}", told());
    std::fs::remove_file(mark).unwrap();
    assert!(wait_until(TIME_LIMIT, || told() == (0, 0)), "{:?}", told());
}

/// What `overspill run --memory 64M ARGS` says, does and writes down; nothing where it cannot run.
fn managed(name: &str, args: &[&str]) -> Option<(Outcome, Value)> {
    let overspill = overspill(&SCRATCH)?;
    let report = SCRATCH.target_dir().join(format!("{name}.json"));
    let mut command = Command::new(overspill);
    clean(&mut command).args(["run", "--memory", "64M", "--stats-json"]).arg(&report).args(args);
    let outcome = process::run(&mut command, TIME_LIMIT);
    Some((outcome, serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap()))
}

/// A program of this suite, compiled with these flags.
fn beyond(flags: &[&str]) -> String {
    SCRATCH.compile("beyond.c", flags).to_str().unwrap().to_owned()
}

/// The line at the end of a run: nothing else is said.
fn line_about(outcome: &Outcome) -> &str {
    let stderr = outcome.stderr.as_str();
    assert!(
        stderr.starts_with("overspill: up to ") && stderr.lines().count() == 1,
        "one line: {outcome:?}"
    );
    assert!(stderr.contains("--memory"), "what helps: {outcome:?}");
    stderr
}

#[test]
fn much_memory_that_is_not_managed_is_told_by_kind() {
    let program = beyond(&[]);
    for (kind, counter, words) in [
        ("shared", "unmanaged_shared_bytes", "MiB shared memory"),
        ("stacks", "unmanaged_stack_bytes", "MiB stacks"),
        ("brk", "unmanaged_brk_bytes", "MiB memory from brk"),
        ("direct", "unmanaged_other_bytes", "has asked the kernel for directly"),
    ] {
        let args = ["--", program.as_str(), kind, "40", "2000"];
        let Some((outcome, told)) = managed(kind, &args) else { return };
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "kept\n"), "{outcome:?}");
        assert!(line_about(&outcome).contains(words), "{kind}: {outcome:?}");
        let outside = &told["unmanaged"]["outside"]["kinds"][counter];
        let of_kind = told["total"]["counters"][counter].as_u64().max(outside.as_u64());
        assert!(of_kind > Some(30 << 20), "{kind}: {told}");
        assert!(told["unmanaged"]["peak_bytes"].as_u64() > Some(30 << 20), "{kind}: {told}");
    }
}

#[test]
fn shared_memory_of_python_is_told() {
    let script = "import mmap, time; m = mmap.mmap(-1, 100 << 20); \
        m.write(b'x' * (100 << 20)); time.sleep(1); print(1)";
    let Some((outcome, _)) = managed("mmap", &["--", "python3", "-c", script]) else { return };
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "1\n"), "{outcome:?}");
    let line = line_about(&outcome);
    assert!(line.contains("'python3'") && line.contains("MiB shared memory"), "{line}");
}

/// A program that the library does not get into is seen from outside.
#[test]
fn memory_of_static_programs_is_told() {
    let script = format!("{} heap 40 2000; true", beyond(&["-static"]));
    let args = ["--fault", "thread", "--", "sh", "-c", &script];
    let Some((outcome, told)) = managed("static", &args) else { return };
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "kept\n"), "{outcome:?}");
    assert!(line_about(&outcome).contains(", which is statically linked, had "), "{outcome:?}");
    let outside = &told["unmanaged"]["outside"];
    assert!(outside["peak_bytes"].as_u64() > Some(30 << 20), "{told}");
}

#[test]
fn what_is_managed_is_not_told() {
    let heap = format!("{} heap 100 300", beyond(&[]));
    let sort = "seq 300000 | sort -n | tail -n 1";
    let list = "print(sum(list(range(5_000_000))))";
    let commands = [["sh", "-c", heap.as_str()], ["sh", "-c", sort], ["python3", "-c", list]];
    for command in commands {
        for strict in [&["--"][..], &["--strict", "--"]] {
            let args = [strict, &command[..]].concat();
            let Some((outcome, _)) = managed("well", &args) else { return };
            assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        }
    }
}

#[test]
fn a_strict_job_executes_nothing_that_cannot_be_managed() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let program = beyond(&["-static"]);
    let loaded = format!("{program} heap 40 1; exit $?");
    let by = |fault: &str, command: &[&str]| {
        let mut run = Command::new(overspill);
        let args = ["run", "--memory", "64M", "--fault", fault, "--strict", "--"];
        clean(&mut run).args(args).args(command);
        process::run(&mut run, TIME_LIMIT)
    };
    let strict = |command: &[&str]| by("thread", command);
    let outcome = strict(&[&program, "heap", "1", "1"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (125, ""), "{outcome:?}");
    assert!(outcome.stderr.contains("is statically linked, so its memory"), "{outcome:?}");
    // By signal they are loaded.
    for command in [&[program.as_str(), "heap", "40", "1"][..], &["sh", "-c", &loaded]] {
        let outcome = by("signal", command);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "kept\n"), "{outcome:?}");
        assert_eq!(outcome.stderr, "");
    }
    let python = "import os, subprocess, sys\n\
        path = sys.argv[1]\n\
        file = os.open(path, os.O_RDONLY)\n\
        for attempt in (lambda: subprocess.run([path]), lambda: os.execv(path, ['x']),\n\
        \x20       lambda: os.posix_spawn(path, ['x'], {}), lambda: os.execve(file, ['x'], {})):\n\
        \x20   try: attempt()\n\
        \x20   except PermissionError as error: print(error.errno)";
    for (command, says) in [
        (&["sh", "-c", &format!("{program} heap 1 1; echo $?")][..], "126\n"),
        (&["python3", "-c", python, &program], "1\n1\n1\n1\n"),
    ] {
        let outcome = strict(command);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, says), "{outcome:?}");
        let why = "is statically linked and cannot be managed, so it is not executed";
        let times = outcome.stderr.matches(why).count();
        assert_eq!(times, if says.len() > 4 { 4 } else { 1 }, "{outcome:?}");
    }
    // The status tells of memory of other kinds, but that of a program that fails stays.
    let shared = beyond(&[]);
    let outcome = strict(&[&shared, "shared", "40", "300"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (123, "kept\n"), "{outcome:?}");
    let outcome = strict(&["sh", "-c", &format!("{shared} shared 40 300; exit 3")]);
    assert_eq!(outcome.status, 3, "{outcome:?}");
}
