//! Running jobs whose swap devices are changed and shown: `overspill swapon` and `overspill
//! swapoff`.
//!
//! With `OVERSPILL_TEST_FULL` set, devices are exchanged twenty times instead of three.

use overspill_tests::command::shown;
use overspill_tests::job::{Job, refused};
use overspill_tests::process::{Outcome, wait_until};
use overspill_tests::scratch::{Room, private_file};
use overspill_tests::{Scratch, TIME_LIMIT, skipped};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::Duration;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Everything that is evicted goes to a device.
const TO_DEVICES: [&str; 3] = ["OVERSPILL_BASELINES=same_filled=off", "--set", "compressed=0"];

/// A file to swap to, which is made as large as the device is to be when it is named with a size.
fn file(room: &Room, name: &str) -> String {
    let path = room.path.join(name);
    private_file(&path);
    shown(&path.canonicalize().unwrap()).to_owned()
}

/// `overspill swapon` or `swapoff` for a job.
fn swap(job: &Job, command: &str, arguments: &[&str]) -> Outcome {
    job.ask(&[&[command, "--pid", &job.pid().to_string()], arguments].concat())
}

fn well(outcome: &Outcome) {
    assert_eq!(
        (outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()),
        (0, "", ""),
        "{outcome:?}"
    );
}

/// The devices of a job as JSON, with all columns and in bytes.
fn devices(job: &Job) -> Vec<Value> {
    let outcome = swap(job, "swapon", &["--output-all", "--json", "--bytes"]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    let value: Value = serde_json::from_str(&outcome.stdout).unwrap();
    value["swapdevices"].as_array().unwrap().clone()
}

fn names(job: &Job) -> Vec<String> {
    devices(job).iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

fn used(job: &Job, name: &str) -> u64 {
    let devices = devices(job);
    let device = devices.iter().find(|device| device["name"] == name || device["label"] == name);
    device.map_or(0, |device| device["used"].as_u64().unwrap())
}

/// Whether a program has a file open, or one of the processes in which the engines of its job live.
fn is_open(job: &Job, program: u32, file: &str) -> bool {
    job.engines().chain([program]).any(|pid| has_open(pid, file))
}

/// Whether a process has a file open.
fn has_open(pid: u32, file: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let links =
        tasks.flat_map(|task| fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten());
    links
        .into_iter()
        .any(|link| fs::read_link(link.path()).is_ok_and(|target| target == Path::new(file)))
}

#[test]
fn devices_are_exchanged_under_a_program_that_goes_on() {
    let rounds = if std::env::var_os("OVERSPILL_TEST_FULL").is_some() { 20 } else { 3 };
    for fault in ["thread", "signal"] {
        let room = SCRATCH.room(&format!("exchange-{fault}"));
        let (mut there, mut other) = (file(&room, "first"), file(&room, "second"));
        let device = format!("{there}:512M");
        let options =
            [&TO_DEVICES[..], &["--memory", "32M", "--fault", fault, "--swap", &device]].concat();
        let Some(job) = Job::churn(&SCRATCH, &format!("exchange-{fault}"), &options, &["128"])
        else {
            return;
        };
        let program = job.processes()[0].0;
        assert!(
            used(&job, &there) > 64 << 20 && is_open(&job, program, &there),
            "{:?}",
            devices(&job)
        );
        for round in 0..rounds {
            well(&swap(&job, "swapon", &["-p", "7", &format!("{other}:512M")]));
            assert_eq!(names(&job), [there.as_str(), &other]);
            assert!(is_open(&job, program, &there) && is_open(&job, program, &other));
            // While it is written to, and soon after.
            if round > 0 {
                assert!(wait_until(TIME_LIMIT, || used(&job, &other) > 0), "{:?}", devices(&job));
            }
            well(&swap(&job, "swapoff", &[&there]));
            assert_eq!(names(&job), [other.as_str()]);
            // What the program began with it closes when it comes to the engine next: by thread
            // with a mapping call only.
            let closed = || !is_open(&job, program, &there) || fault == "thread";
            assert!(wait_until(TIME_LIMIT, closed), "it is still open");
            assert!(!job.engines().any(|pid| has_open(pid, &there)), "it is still open beside");
            assert!(used(&job, &other) > 32 << 20, "{:?}", devices(&job));
            std::mem::swap(&mut there, &mut other);
        }
        job.end_churn();
    }
}

#[test]
fn the_last_device_stays_where_memory_is_too_small() {
    for fault in ["thread", "signal"] {
        let room = SCRATCH.room(&format!("last-{fault}"));
        let there = file(&room, "only");
        let device = format!("{there}:512M,label=only");
        let options =
            [&TO_DEVICES[..], &["--memory", "16M", "--fault", fault, "--swap", &device]].concat();
        let Some(job) = Job::churn(&SCRATCH, &format!("last-{fault}"), &options, &["64"]) else {
            return;
        };
        refused(
            &swap(&job, "swapoff", &["LABEL=only"]),
            2,
            &["not enough memory", "it stays in use"],
        );
        assert_eq!(names(&job), [there.as_str()]);
        assert!(used(&job, &there) > 32 << 20);
        refused(&swap(&job, "swapoff", &["-a"]), 32, &["not enough memory", "it stays in use"]);
        // With enough memory it goes.
        let outcome = job.set(job.pid(), &["--memory", "128M"]);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        well(&swap(&job, "swapoff", &["-a"]));
        assert_eq!(names(&job), [""; 0]);
        well(&swap(&job, "swapoff", &["-a"]));
        job.end_churn();
    }
}

#[test]
fn compressed_memory_takes_what_fits() {
    let room = SCRATCH.room("compressed");
    let there = file(&room, "file");
    let options = ["--memory", "32M", "--swap", &format!("{there}:512M")];
    let Some(job) = Job::churn(&SCRATCH, "compressed", &options, &["40"]) else { return };
    let outcome = job.set(job.pid(), &["--memory", "64M"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    well(&swap(&job, "swapoff", &[&there]));
    assert_eq!(names(&job), [""; 0]);
    job.end_churn();
}

#[test]
fn every_process_of_a_tree_takes_part() {
    let room = SCRATCH.room("tree");
    let (first, second) = (file(&room, "first"), file(&room, "second"));
    let churn = SCRATCH.program("churn.c");
    // One that goes on, and one that begins anew again and again, as do the small ones, which have
    // engines here, too; the shell's children fork.
    let script = format!(
        "trap 'over=1' TERM; {0} 48 >one & (while :; do timeout 0.5 {0} 32 || exit 1; done) & \
         while [ -z \"$over\" ]; do sleep 0.2; done; kill -TERM -- $(jobs -p); wait %1; cat one",
        shown(&churn)
    );
    let device = format!("{first}:1G");
    let options = [&TO_DEVICES[..], &["--memory", "16M", "--swap", &device]].concat();
    let Some(job) = Job::start(
        &SCRATCH,
        "tree",
        &options,
        &[
            "env",
            "OVERSPILL_BASELINES=dormant=off",
            "bash",
            "-c",
            &format!("cd {}; {script}", shown(&room.path)),
        ],
    ) else {
        return;
    };
    assert!(wait_until(TIME_LIMIT, || used(&job, &first) > 24 << 20), "{:?}", devices(&job));
    well(&swap(&job, "swapon", &[&format!("{second}:1G")]));
    well(&swap(&job, "swapoff", &[&first]));
    assert_eq!(names(&job), [second.as_str()]);
    // Whatever runs now, or begins later, has the new list.
    let mut seen = Vec::new();
    for _ in 0..20 {
        for (pid, name, _) in job.processes() {
            assert!(
                wait_until(TIME_LIMIT, || !has_open(pid, &first)),
                "{name} ({pid}) has it open"
            );
            seen.push((pid, name));
        }
        sleep(Duration::from_millis(100));
    }
    seen.sort();
    seen.dedup();
    assert!(seen.len() >= 8 && seen.iter().any(|(_, name)| name == "sleep"), "{seen:?}");
    assert!(wait_until(TIME_LIMIT, || used(&job, &second) > 24 << 20), "{:?}", devices(&job));
    job.signal(Signal::TERM);
    let (_, stdout, stderr) = job.end();
    assert!(stdout.ends_with("all ok\n"), "{stdout}\n{stderr}");
}

#[test]
fn two_devices_leave_at_once() {
    let room = SCRATCH.room("two");
    let files: Vec<String> = ["a", "b", "c"].map(|name| file(&room, name)).into();
    let list = files.iter().map(|path| format!("{path}:256M,prio=1")).collect::<Vec<_>>().join(",");
    let options = [&TO_DEVICES[..], &["--memory", "32M", "--swap", &list]].concat();
    let Some(job) = Job::churn(&SCRATCH, "two", &options, &["128"]) else { return };
    assert!(files.iter().all(|path| used(&job, path) > 8 << 20), "{:?}", devices(&job));
    let pid = job.pid().to_string();
    let off = |path: &str| {
        let mut command = job.command(&["swapoff", "--pid", &pid, path]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in [off(&files[0]), off(&files[1])] {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    assert_eq!(names(&job), [files[2].as_str()]);
    assert!(used(&job, &files[2]) > 64 << 20, "{:?}", devices(&job));
    job.end_churn();
}

/// A job whose device takes seconds to be taken out of use, page by page.
fn slow(name: &str) -> Option<Job> {
    let baselines = format!("{},swapoff.run=1,swapoff.depth=1", TO_DEVICES[0]);
    let list = "ram:512M,latency=1ms,prio=2,label=slow,ram:512M,label=other";
    let options = [&[&*baselines], &TO_DEVICES[1..], &["--memory", "16M", "--swap", list]].concat();
    Job::churn(&SCRATCH, name, &options, &["40"])
}

/// Whether a signal is ignored by this process, and so by what it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn it_can_be_interrupted_and_taken_up_again() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        if is_ignored(signal) {
            skipped(&format!(
                "{signal:?} is ignored here, as in jobs that a shell runs in the background"
            ));
            continue;
        }
        let Some(job) = slow(&format!("interrupted-{status}")) else { return };
        let before = used(&job, "slow");
        let pid = job.pid().to_string();
        let mut command = job.command(&["swapoff", "--pid", &pid, "-v", "slow"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It is at it, and can be seen.
        assert!(
            wait_until(TIME_LIMIT, || used(&job, "slow") + (1 << 20) < before),
            "{:?}",
            devices(&job)
        );
        sleep(Duration::from_millis(1500));
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let ended = child.wait().unwrap();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((ended.code(), stdout.as_str()), (Some(status), "swapoff ram\n"), "{stderr}");
        let lines: Vec<&str> = stderr.lines().collect();
        let (last, progress) = lines.split_last().unwrap();
        assert!(last.contains("was interrupted") && last.contains("in use as before"), "{stderr}");
        assert!(
            !progress.is_empty() && progress.iter().all(|line| line.contains(" pages left, ")),
            "{stderr}"
        );
        // It is written to again, and what had left it need not leave it once more.
        assert_eq!(names(&job).len(), 2);
        assert!(used(&job, "slow") > 0);
        well(&swap(&job, "swapoff", &["slow"]));
        assert_eq!(devices(&job)[0]["label"], "other");
        assert_eq!(devices(&job).len(), 1);
        job.end_churn();
    }
}

#[test]
fn whoever_is_killed_leaves_a_swapoff_that_goes_on() {
    let Some(job) = slow("killed") else { return };
    let pid = job.pid().to_string();
    let mut child =
        job.command(&["swapoff", "--pid", &pid, "slow"]).stdin(Stdio::null()).spawn().unwrap();
    let before = used(&job, "slow");
    assert!(
        wait_until(TIME_LIMIT, || used(&job, "slow") + (1 << 20) < before),
        "{:?}",
        devices(&job)
    );
    child.kill().unwrap();
    child.wait().unwrap();
    refused(&swap(&job, "swapon", &["ram:4M,label=seventeen-letters"]), 2, &["label"]);
    // Who asks for the same waits for its end.
    well(&swap(&job, "swapoff", &["slow"]));
    assert_eq!(devices(&job).len(), 1);
    job.end_churn();
}

#[test]
fn a_stopped_program_does_its_part_when_it_goes_on() {
    let room = SCRATCH.room("stopped");
    let (first, second) = (file(&room, "first"), file(&room, "second"));
    let list = format!("{first}:256M,{second}:256M");
    let options = [&TO_DEVICES[..], &["--memory", "16M", "--swap", &list]].concat();
    let Some(job) = Job::churn(&SCRATCH, "stopped", &options, &["48"]) else { return };
    let program = job.processes()[0].0;
    let signal = |signal| job.signal_with_engines(program, signal);
    signal(Signal::STOP);
    let said = ["1 process does not take note of it within 5 s"];
    refused(&swap(&job, "swapoff", &[&first]), 4, &said);
    refused(&swap(&job, "swapon", &["ram:4M"]), 1, &said);
    signal(Signal::CONT);
    assert!(wait_until(TIME_LIMIT, || !is_open(&job, program, &first)), "it is still open");
    assert_eq!(names(&job), [second.as_str(), "ram"]);
    job.end_churn();
}

#[test]
fn pages_that_cannot_be_read_are_lost_to_their_readers_alone() {
    for fault in ["thread", "signal"] {
        let list = "ram:512M,prio=2,faults=0.05:rot,ram:512M";
        let options =
            [&TO_DEVICES[..], &["--memory", "16M", "--fault", fault, "--swap", list]].concat();
        let name = format!("lost-{fault}");
        let Some(job) = Job::program(&SCRATCH, &name, &options, "unreadable.c", &["64", "wait"])
        else {
            return;
        };
        // The one that leaves is the one with errors.
        let pid = job.pid().to_string();
        let listed = devices(&job);
        assert_eq!((listed.len(), &listed[0]["prio"]), (2, &json!(2)), "{listed:?}");
        refused(&swap(&job, "swapoff", &["ram"]), 4, &["is 2 swap devices"]);
        let outcome = job.ask(&["swapoff", "--pid", &pid, "-a"]);
        // Memory is too small for what is on the other then.
        assert_eq!(outcome.status, 64, "{outcome:?}");
        let lost =
            outcome.stderr.lines().find_map(|line| line.split(" is out of use, but ").nth(1));
        let lost: u64 = lost
            .unwrap_or_else(|| panic!("{outcome:?}"))
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(lost > 0 && devices(&job).len() == 1, "{outcome:?}");
        job.signal(Signal::TERM);
        let (status, stdout, stderr) = job.end();
        assert_eq!(
            (status, stdout),
            (0, format!("{lost} unreadable, 0 wrong, 0 strange\n")),
            "{stderr}"
        );
    }
}

#[test]
fn devices_are_shown_as_util_linux_shows_them() {
    let room = SCRATCH.room("show");
    let swap_file = file(&room, "file");
    let list = format!("{swap_file}:64M,prio=5,label=fast disk,{}:1G,ram:4M", shown(&room.path));
    let Some(job) = Job::churn(&SCRATCH, "show", &["--memory", "16M", "--swap", &list], &["8"])
    else {
        return;
    };
    let devices = devices(&job);
    let keys: Vec<_> = devices[0].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 7, "{keys:?}");
    let column = |key: &str| devices.iter().map(|device| device[key].clone()).collect::<Vec<_>>();
    assert_eq!(column("type"), ["file", "directory", "ram"]);
    assert_eq!(column("prio"), [5, -2, -3]);
    assert_eq!(column("label"), [json!("fast disk"), Value::Null, Value::Null]);
    assert_eq!((&devices[0]["size"], &devices[2]["size"]), (&json!(64 << 20), &json!(4 << 20)));
    let uuid = devices[0]["uuid"].as_str().unwrap();
    assert!(fs::read(&swap_file).unwrap().windows(36).any(|part| part == uuid.as_bytes()));
    // The only job need not be named.
    let show = |arguments: &[&str]| {
        let outcome = job.ask(&[&["swapon"], arguments].concat());
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        outcome.stdout
    };
    let table = show(&["--show"]);
    assert_eq!(table, show(&[]));
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "TYPE", "SIZE", "USED", "PRIO"]);
    assert_eq!(rows[1][..3], [swap_file.as_str(), "file", "64M"]);
    assert_eq!((rows[3][0], rows[3][1], rows[3][2], rows[3][4]), ("ram", "ram", "4M", "-3"));
    assert_eq!(show(&["--show=PRIO,label", "--noheadings", "--raw"]), "5 fast disk\n-2 \n-3 \n");
    assert_eq!(show(&["--show=UUID", "--noheadings"]).lines().next(), Some(uuid));
    let summary = show(&["-s"]);
    let rows: Vec<Vec<&str>> =
        summary.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (rows[0][0], rows[1][1], rows[1][2], rows[1][4]),
        ("Filename", "file", "65536", "5")
    );
    job.end_churn();
}

#[test]
fn mistakes_are_named() {
    let room = SCRATCH.room("mistakes");
    let (there, data) = (file(&room, "there"), room.path.join("data"));
    fs::write(&data, "somebody's").unwrap();
    let small = file(&room, "small");
    let options = ["--memory", "16M", "--swap", &format!("{there}:64M,label=only")];
    let Some(job) = Job::churn(&SCRATCH, "mistakes", &options, &["8"]) else { return };
    let on = |device: &str, status: i32, part: &str| {
        refused(&swap(&job, "swapon", &[device]), status, &[part])
    };
    on(&format!("{there}:1G"), 1, "is in use by this job already");
    on(
        &format!(
            "{}/../{}/there",
            shown(&room.path),
            room.path.file_name().unwrap().to_str().unwrap()
        ),
        1,
        "already",
    );
    on(&small, 1, "at least");
    on(&format!("{}:64M", shown(&data)), 1, "holds data");
    on("/no/such/place:1G", 1, "name an existing directory");
    on("/dev/null", 1, "neither a directory");
    on("ram", 1, "name an existing directory");
    on("/tmp:9Q", 2, "not a size");
    on("/tmp,colour=red", 2, "'colour=red' is not an option");
    let off = |names: &[&str], status: i32, part: &str| {
        refused(&swap(&job, "swapoff", names), status, &[part])
    };
    off(&["/no/such/place"], 4, "it has '");
    off(&["-L", "fast"], 4, "'LABEL=fast' is no swap device of this job: it has '");
    off(&["-U", "fast"], 4, "(only)");
    let outcome = swap(&job, "swapoff", &[]);
    assert!(outcome.status == 16 && outcome.stderr.contains("Usage"), "{outcome:?}");
    let nobody = ((1 << 22) + 1).to_string();
    refused(&job.ask(&["swapoff", "--pid", &nobody, "-a"]), 4, &["there is no process"]);
    refused(&job.ask(&["swapon", "--pid", &nobody, "ram:4M"]), 1, &["there is no process"]);
    assert_eq!(names(&job), [there.as_str()]);
    job.end_churn();
}
