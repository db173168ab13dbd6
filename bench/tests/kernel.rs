//! The benches beside the kernel, and `overspill-load`, from the outside: what they print, what is
//! left out, what is put back.

mod common;

use common::{
    Killed, PATIENCE, figure, find, has, json, names, positive, printed, report, room, rows,
    succeeded,
};
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, process, skipped};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn swapoff_tells_what_each_step_takes_and_leaves_nothing_behind() {
    let (_room, dir) = room("swapoff-json");
    let args = format!("--size 16M --rounds 1 --device {}", dir.display());
    let Some(value) = report("swapoff", &args) else { return };
    assert_eq!(value["settings"]["size_bytes"], 16 << 20);
    let rows = rows(&value);
    let without_kernel = &value["settings"]["without_kernel"];
    let engine = ["run-1", "run-8", "run-32", "run-256", "in-flight", "in-flight-4"];
    let mut steps = engine.to_vec();
    match without_kernel.is_null() {
        true => steps.push("kernel"),
        false => skipped(&format!("the kernel's part: {without_kernel}")),
    }
    let all = |with: &str| steps.iter().map(|step| format!("{with} {step}")).collect::<Vec<_>>();
    assert_eq!(names(rows, &["workload"]), [all("alone"), all("load")].concat());
    for row in rows {
        positive(row, &["elapsed_s", "device_mb_per_s", "mb_per_s", "device_ratio"]);
        ["user_s", "sys_s"].iter().for_each(|name| _ = figure(row, name));
        let pages = f64::from(16 << 20) / 4096.0;
        assert!(figure(row, "page_ins") >= 0.9 * pages, "all that was written comes back: {row}");
        assert_eq!(find(row, "load_slowdown").is_some(), row["workload"] == "load", "{row}");
    }
    // A run is as long as it may be where nothing was freed in between.
    for (row, most) in rows.iter().zip([1.0, 8.0, 32.0, 256.0, 256.0]) {
        let pages = figure(row, "pages_per_operation");
        assert!(pages <= most && pages > most / 4.0, "{row}");
    }
    assert!(figure(&rows[4], "times_fewer_operations") > 18.0, "{}", rows[4]);
    assert!(figure(&rows[4], "times_sooner") > 1.0, "{}", rows[4]);
    let published = rows.iter().map(|row| row["reference"]["elapsed_s"].as_f64());
    let expected = [Some(47.5), None, None, Some(7.93), None];
    assert_eq!(published.take(5).collect::<Vec<_>>(), expected);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "swap files are gone");
}

#[test]
fn swapoff_prints_tables_what_they_show_and_a_drawing() {
    let (_room, dir) = room("swapoff-table");
    let (file, plot) = (dir.join("device"), dir.join("swapoff.svg"));
    let where_to = format!("--device {} --plot {}", file.display(), plot.display());
    let args = "--size 16M --rounds 1 --steps in-flight,run-1 --load-device ram";
    let Some(text) = printed("swapoff", &format!("{args} {where_to}")) else { return };
    let said = "alone: in-flight times as fast as a page at a time ";
    has(&text, &["pages each", "disk MB/s", "x slower", said, " 7.00", "load: run-1 "]);
    assert!(!text.contains("the kernel  "), "{text}");
    has(&fs::read_to_string(plot).unwrap(), &["swapoff of 16 MiB on "]);
    assert!(!file.exists(), "a file that was made is removed");
}

/// What the measurement is called whose swap file in a directory the kernel uses.
fn swaps_in(dir: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap();
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(dir.to_str()?));
    let (name, _) = lines.next()?.strip_prefix("/.")?.split_once('.')?;
    Some(name.to_owned())
}

/// Kills a bench once the kernel has a swap file in a directory, and waits until there is none, nor
/// any other file, nor the cgroup.
fn killed_while_it_swaps(mut command: Command, dir: &Path) {
    let mut child = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let began = Instant::now();
    let name = loop {
        if let Some(name) = swaps_in(dir) {
            break name;
        }
        if child.0.try_wait().unwrap().is_some() || began.elapsed() > PATIENCE {
            return skipped("this needs root, and a kernel that takes a swap file (in zswap)");
        }
        sleep(Duration::from_millis(1));
    };
    drop(child);
    let killed = Instant::now();
    let groups =
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(|root| Path::new(root).join(&name));
    let is_left = || {
        let files = fs::read_dir(dir).unwrap().count();
        files > 0 || swaps_in(dir).is_some() || groups.iter().any(|group| group.exists())
    };
    while is_left() {
        assert!(killed.elapsed() < PATIENCE, "the swap file and the cgroup are gone: {name}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_killed_measurement_of_the_kernels_swapoff_changed_is_put_back() {
    let (_room, dir) = room("swapoff-killed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    let args = "swapoff --steps kernel --size 64M --rounds 100 --device";
    clean(command.args(args.split(' ')).arg(&dir));
    killed_while_it_swaps(command, &dir);
}

/// The command of a bench that runs `overspill`.
fn command(bench: &str, args: &str, dir: &Path) -> Option<Command> {
    let binary = overspill(&Scratch::new(env!("CARGO_TARGET_TMPDIR")))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
    command.arg(bench).args(args.split_whitespace()).arg("--dir").arg(dir);
    clean(&mut command).env("OVERSPILL_BIN", binary);
    Some(command)
}

/// What `vs-kernel` prints.
fn compared(args: &str, dir: &Path) -> Option<String> {
    Some(succeeded(process::run(&mut command("vs-kernel", args, dir)?, TIME_LIMIT)))
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
    let args = "--size 32M --rounds 1 --workload seq-read --json";
    let Some(text) = compared(args, &dir) else { return };
    let value = json(&text);
    assert_eq!(
        (&value["bench"], rows(&value)[0]["step"].as_str()),
        (&"vs-kernel".into(), Some("floor"))
    );
    assert_eq!(value["settings"]["size_bytes"], 32 << 20);
    let floor = ["bare_copy_fault_ns", "minor_fault_ns", "compress_ns", "decompress_ns", "seal_ns"];
    for name in floor.iter().chain(&["open_ns"]) {
        assert!(figure(&rows(&value)[0], name) > 100.0, "{name}: {}", rows(&value)[0]);
    }
    for peer in ["zram", "zswap", "file"] {
        let is = |row: &&Value, step: &str| row["peer"] == peer && row["step"] == step;
        let of = |step: &str| rows(&value).iter().find(|row| is(row, step)).unwrap();
        let left_out = &value["settings"]["left_out"][peer];
        if left_out.is_null() {
            let row = of("peer");
            positive(row, &["major_faults"]);
            assert!(figure(row, "ram_bytes_peak") > 4e6, "{row}");
            assert_eq!(figure(row, "device_bytes") > 0.0, peer == "file", "{row}");
            assert_eq!(figure(row, "pool_bytes_peak") > 0.0, peer != "file", "{row}");
        } else {
            skipped(&format!("{peer}: {left_out}"));
        }
        // What is not sealed is measured where the kernel has a device too.
        let unsealed = (peer == "file").then_some("overspill-unsealed");
        let steps = ["overspill-thread", "overspill-signal", "library"].into_iter().chain(unsealed);
        for row in steps.map(of) {
            positive(row, &["pages_in"]);
            assert!(figure(row, "ns_per_access") > 100.0, "{row}");
            assert!(figure(row, "metadata_bytes") > 1e4, "{row}");
            assert_eq!(find(row, "ratio").is_some(), left_out.is_null(), "{row}");
        }
        let compared = find(of("overspill-signal"), "seal_ratio").is_some();
        assert_eq!(compared, unsealed.is_some(), "{peer}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn without_json_it_prints_tables_and_what_is_to_be_reached() {
    let (_room, dir) = room("vs-kernel-table");
    let args = "--size 32M --rounds 1 --workload rand-read --peer file --steps library";
    let Some(text) = compared(args, &dir) else { return };
    let floor = "floor minor fault, of a bare one ";
    has(&text, &["p99.9", "device MiB", "bare copy", floor]);
    if !text.contains("The kernel's file was left out") {
        has(&text, &["rand-read, file: library time, of the peer's "]);
    }
}

#[test]
fn a_program_is_told_beside_its_peer_and_on_a_page_that_needs_nothing_else() {
    let (_room, dir) = room("vs-kernel-program");
    let page = dir.with_extension("html");
    let args = "--size 32M --overcommit 2 --rounds 1 --workload sort --peer file --steps \
                overspill-thread --json --html";
    let Some(text) = compared(&format!("{args} {}", page.display()), &dir) else { return };
    let value = json(&text);
    let text = fs::read_to_string(&page).unwrap();
    fs::remove_file(&page).unwrap();
    assert!(text.contains("How to repeat it") && !text.contains("http"), "{text}");
    if let Some(why) = value["settings"]["left_out"].as_object().unwrap().values().next() {
        return skipped(&why.to_string());
    }
    let of = |step: &str| rows(&value).iter().find(|row| row["step"] == step).unwrap();
    // What it took alone says how much RAM is half of it; the kernel may have ended it for want of
    // more.
    let half = figure(of("alone"), "ram_bytes_peak") / 2.0;
    let limit = figure(of("peer"), "limit_bytes") / half;
    assert!(half > 16e6 && (0.99..1.7).contains(&limit), "{value}");
    let row = of("overspill-thread");
    positive(row, &["elapsed_s", "ratio", "pages_in"]);
    assert!(find(row, "checksum").is_none(), "{row}");
    has(&text, &["Real programs, against the kernel", "swap file: 2 times the RAM"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_program_with_a_client_is_told_by_what_the_client_saw() {
    let (_room, dir) = room("vs-kernel-client");
    let args = "--size 32M --overcommit 2 --rounds 1 --workload redis --peer file --steps peer";
    let Some(text) = compared(&format!("{args} --json"), &dir) else { return };
    let value = json(&text);
    if let Some(why) = value["settings"]["left_out"].as_object().unwrap().values().next() {
        return skipped(&why.to_string());
    }
    let rows = &rows(&value)[1..];
    assert_eq!(names(rows, &["workload"]), ["redis alone", "redis peer"]);
    for row in rows {
        positive(row, &["elapsed_s", "cpu_s", "p50_ns"]);
        assert!(figure(row, "p99_ns") >= figure(row, "p50_ns"), "{row}");
        assert!(find(row, "checksum").is_none(), "{row}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
}

/// A command of Python that goes through some 75 MiB in sequence: what is accessed at random the
/// kernel may end for want of memory.
const GOES_THROUGH: &str = "\
    import zlib\n\
    data = bytes(range(256)) * (300 << 10)\n\
    print([zlib.crc32(data) for _ in range(4)])";

/// Runs `vs-kernel` with a command of Python; the status, and what it said.
fn with_command(args: &str, script: &str, dir: &Path) -> Option<process::Outcome> {
    let mut command = command("vs-kernel", args, dir)?;
    let outcome = process::run(command.args(["--", "python3", "-c", script]), TIME_LIMIT);
    let lacks = ["it needs root", "memory cgroups", "cannot be started", "no userfaultfd"];
    if outcome.status == 1 && lacks.iter().any(|why| outcome.stderr.contains(why)) {
        skipped(&outcome.stderr);
        return None;
    }
    Some(outcome)
}

#[test]
fn a_command_of_the_users_is_told_beside_the_kernels_swap() {
    let (_room, dir) = room("vs-kernel-own");
    let before = settings();
    let page = dir.with_extension("html");
    let args = format!("--rounds 1 --peer file --json --html {}", page.display());
    let Some(outcome) = with_command(&args, GOES_THROUGH, &dir) else { return };
    let value = json(&succeeded(outcome));
    let text = fs::read_to_string(&page).unwrap();
    fs::remove_file(&page).unwrap();
    has(&text, &["python3, against the kernel&#x27;s swap file: ", "What it printed was the same"]);
    let told = &value["settings"];
    assert_eq!(told["command"][0], "python3");
    assert_eq!(told["same_output"], true, "{value}");
    if let Some(why) = told["left_out"].as_object().unwrap().values().next() {
        return skipped(&why.to_string());
    }
    assert_eq!(names(rows(&value), &[]), ["alone", "peer", "overspill-signal"]);
    let third = told["size_bytes"].as_f64().unwrap() / 3.0;
    let memory = told["memory_bytes"].as_f64().unwrap();
    assert!(third > 11e6 && (third - memory).abs() < 2.0, "{told}");
    positive(&rows(&value)[2], &["elapsed_s", "ratio", "native_ratio", "cpu_ratio", "pages_in"]);
    positive(&rows(&value)[1], &["elapsed_s", "native_ratio", "major_faults"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn a_command_whose_output_differs_is_told_loudly_and_everything_is_put_back() {
    let (_room, dir) = room("vs-kernel-differs");
    let before = settings();
    // Under overspill it has another library, and says so.
    let script = format!("{GOES_THROUGH}\nprint('overspill' in open('/proc/self/maps').read())");
    let args = "--rounds 1 --peer file --size 64M --memory 24M";
    let Some(outcome) = with_command(args, &script, &dir) else { return };
    assert_eq!(outcome.status, 1, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("WHAT IT PRINTED IS NOT WHAT IT PRINTS BY ITSELF: "));
    let says = "overspill-signal, python3, file, 24 MiB: what it put out is not what";
    assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn a_command_that_cannot_be_compared_is_one_sentence_and_status_1() {
    let (_room, dir) = room("vs-kernel-refused");
    let before = settings();
    let fails = "import sys\nsys.exit('a reason\\nof two lines')";
    for (args, script, says) in [
        ("--rounds 1 --peer file", fails, "the command fails by itself, so there is nothing to"),
        ("--rounds 1 --peer file --size 64M", fails, "alone, python3: the command fails by itself"),
        ("--rounds 1 --peer file", "pass", " by itself, too little to tell anything"),
        ("--peer file --memory 1M", "pass", "no program runs in so little: give --memory 8 MiB"),
    ] {
        let Some(outcome) = with_command(args, script, &dir) else { return };
        assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{says}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
    let Some(mut none) = command("vs-kernel", "", &dir) else { return };
    let outcome = process::run(none.args(["--", "no-such-command"]), TIME_LIMIT);
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("there is no command 'no-such-command'"), "{}", outcome.stderr);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn jobs_are_told_beside_zram_and_natively() {
    let (_room, dir) = room("job-json");
    let before = settings();
    let args = "--size 32M --rounds 1 --workload busy-2,forks --steps overspill-signal --json";
    let Some(mut command) = command("job", args, &dir) else { return };
    let value = json(&succeeded(process::run(&mut command, TIME_LIMIT)));
    assert_eq!(value["bench"], "job");
    let left_out = value["settings"]["left_out"].as_object().unwrap();
    left_out.iter().for_each(|(what, why)| skipped(&format!("{what}: {why}")));
    let rows_of = |step: &'static str| rows(&value).iter().filter(move |row| row["step"] == step);
    assert!(rows_of("alone").count() > 0, "the processes that are busy need nothing: {value}");
    for row in rows_of("overspill-signal") {
        positive(row, &["elapsed_s", "native_ratio", "cpu_s", "ram_bytes_peak", "limit_bytes"]);
        assert!(find(row, "ratio").is_some() || left_out.contains_key("zram"), "{row}");
        if row["workload"] == "busy-2" {
            positive(row, &["pages_in", "share_min"]);
            assert!(figure(row, "share_min") <= figure(row, "share_max"), "{row}");
            assert!(figure(row, "share_spread") < 2.0, "both have some: {row}");
        }
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(settings(), before);
}

#[test]
fn two_benches_at_once_do_not_disturb_each_other() {
    let rooms = ["vs-kernel-one", "vs-kernel-two"].map(room);
    let before = settings();
    let args = "--size 32M --rounds 2 --workload seq-write --steps peer --json";
    let printed = std::thread::scope(|scope| {
        let threads = rooms.each_ref().map(|(_, dir)| scope.spawn(|| compared(args, dir)));
        threads.map(|thread| thread.join().unwrap())
    });
    for text in printed.iter().flatten() {
        let left_out = json(text)["settings"]["left_out"].to_string();
        let disturbed = left_out.contains("highest priority") || left_out.contains("another");
        assert!(!disturbed, "{left_out}");
    }
    assert_eq!(settings(), before);
}

#[test]
fn a_program_ends_with_who_measures_it() {
    let put_back = |said: &str| {
        let mut program =
            Killed(Command::new("sleep").arg("1000").process_group(0).spawn().unwrap());
        let mut guard = Command::new(env!("CARGO_BIN_EXE_overspill-bench"));
        clean(guard.args(["put-back", "{}"])).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut guard = guard.spawn().unwrap();
        write!(guard.stdin.take().unwrap(), "{}\n{said}", program.0.id()).unwrap();
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
    let Some(command) = command("vs-kernel", args, &dir) else { return };
    killed_while_it_swaps(command, &dir);
    assert_eq!(settings(), before);
}

#[test]
fn the_program_prints_what_its_accesses_took() {
    let load = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overspill-load"));
        process::run(clean(command.args(args.split_whitespace())), TIME_LIMIT)
    };
    for workload in ["seq-write", "seq-read", "rand-read", "rand-write", "zipf-read"] {
        let value = json(&succeeded(load(&format!("{workload} 1000 --contents 10 --threads 2"))));
        assert_eq!((&value["accesses"], &value["wrong"]), (&1000.into(), &0.into()), "{value}");
        assert!(value["elapsed_s"].as_f64() > Some(0.0), "{value}");
    }
    assert_eq!(
        succeeded(load("rand-write 900 --passes 3 --processes 3 --idle 2")),
        "2700 accesses\n"
    );
    assert_eq!(load("seq-write").status, 2);
}
