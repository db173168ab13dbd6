//! `overspill run` as a program: what the child gets, and what comes back.

mod common;

use common::{overspill, runs_here, scratch, stderr, stdout};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Runs with the stand-in for the preload library; `None` where the machine or its tools do not
/// allow it.
fn run(options: &[&str], command: &[&str]) -> Option<Output> {
    run_with(options, command, &[])
}

fn run_with(options: &[&str], command: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    if !runs_here() {
        return None;
    }
    let mut overspill = overspill()?;
    overspill.arg("run").args(options).arg("--").args(command).envs(env.iter().copied());
    Some(overspill.output().unwrap())
}

#[test]
fn the_exit_status_is_the_programs() {
    let Some(done) = run(&["--memory", "64M"], &["sh", "-c", "exit 42"]) else { return };
    assert_eq!((done.status.code(), stderr(&done).as_str()), (Some(42), ""));
    assert_eq!(run(&[], &["true"]).unwrap().status.code(), Some(0));
    assert_eq!(run(&[], &["sh", "-c", "kill -TERM $$"]).unwrap().status.code(), Some(128 + 15));
    assert_eq!(run(&[], &["sh", "-c", "kill -KILL $$"]).unwrap().status.code(), Some(128 + 9));
}

#[test]
fn settings_reach_the_program_in_canonical_form() {
    let options = [
        "--memory",
        "64M",
        "--swap",
        "/var/tmp/../tmp:8M",
        "--fault",
        "signal",
        "--set",
        "folio=1",
        "--set",
        "workers=2",
    ];
    let Some(done) = run(&options, &["env"]) else { return };
    let env = stdout(&done);
    let value = |name: &str| {
        env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    assert_eq!(value("OVERSPILL_MEMORY").as_deref(), Some("67108864"));
    let var_tmp = fs::canonicalize("/var/tmp").unwrap();
    assert_eq!(value("OVERSPILL_SWAP"), Some(format!("{}:8388608", var_tmp.display())));
    assert_eq!(value("OVERSPILL_NO_SWAP"), None);
    assert_eq!(value("OVERSPILL_FAULT").as_deref(), Some("signal"));
    assert_eq!(value("OVERSPILL_SET").as_deref(), Some("folio=1,workers=2"));
    assert!(value("LD_PRELOAD").unwrap().ends_with("libstand_in.so"));
    let run_dir = value("OVERSPILL_RUN_DIR").unwrap();
    assert!(!Path::new(&run_dir).exists(), "removed afterwards");

    let options = ["--no-swap", "--memory", "64M"];
    let done =
        run_with(&options, &["env"], &[("OVERSPILL_SWAP", "/var/tmp"), ("OVERSPILL_STATS", "1")])
            .unwrap();
    let env = stdout(&done);
    assert!(env.contains("OVERSPILL_NO_SWAP=1\n"), "{env}");
    // By a thread only where signals cannot; with a thread to fall back on where that is allowed.
    assert!(
        ["auto", "signal", "thread"]
            .iter()
            .any(|way| env.contains(&format!("OVERSPILL_FAULT={way}\n"))),
        "{env}"
    );
    assert!(
        !env.contains("OVERSPILL_SWAP=")
            && !env.contains("OVERSPILL_STATS=")
            && !env.contains("OVERSPILL_SET="),
        "{env}"
    );
}

#[test]
fn options_come_from_the_environment_too() {
    let env =
        [("OVERSPILL_MEMORY", "32M"), ("OVERSPILL_NO_SWAP", "1"), ("OVERSPILL_SET", "folio=4")];
    let Some(done) = run_with(&[], &["env"], &env) else { return };
    assert!(stdout(&done).contains("OVERSPILL_MEMORY=33554432\n"), "{}", stdout(&done));
    assert!(stdout(&done).contains("OVERSPILL_SET=folio=4\n"));
    let done = run_with(&[], &["true"], &[("OVERSPILL_MEMORY", "1M")]).unwrap();
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn the_default_swap_is_a_directory_on_a_disk() {
    let Some(done) = run(&[], &["printenv", "OVERSPILL_SWAP"]) else { return };
    if done.status.code() != Some(0) {
        eprintln!("SKIPPED: /var/tmp is not usable here: {}", stderr(&done));
        return;
    }
    let own = scratch().to_str().unwrap();
    let done = run_with(&[], &["printenv", "OVERSPILL_SWAP"], &[("TMPDIR", own)]).unwrap();
    assert_eq!(Path::new(stdout(&done).trim()), fs::canonicalize(own).unwrap());
}

#[test]
fn the_run_directory_is_private_while_it_lasts() {
    let Some(done) =
        run(&[], &["sh", "-c", "stat -c %A \"$OVERSPILL_RUN_DIR\"; ls \"$OVERSPILL_RUN_DIR\""])
    else {
        return;
    };
    let text = stdout(&done);
    assert!(text.starts_with("drwx"), "{text}");
    assert!(!text[4..10].contains('r'), "nobody else can list it: {text}");
    assert!(text[10..].starts_with("\njob\nreports\nstats."), "{text}");
}

#[test]
fn a_run_in_a_run_has_one_library() {
    let Some(done) = run(
        &["--memory", "64M"],
        &[env!("CARGO_BIN_EXE_overspill"), "run", "--no-swap", "--", "env"],
    ) else {
        return;
    };
    let env = stdout(&done);
    let preload = env
        .lines()
        .find_map(|line| line.strip_prefix("LD_PRELOAD="))
        .unwrap_or_else(|| panic!("{env}"));
    assert_eq!(preload.matches(".so").count(), 1, "{preload}");
    assert!(
        env.contains("OVERSPILL_MEMORY=67108864\n") && env.contains("OVERSPILL_NO_SWAP=1\n"),
        "{env}"
    );
}

#[test]
fn statistics_are_reported_for_each_process_of_the_tree() {
    let json = scratch().join("stats.json");
    let options = ["--stats", "--stats-json", json.to_str().unwrap()];
    let Some(done) = run(&options, &["sh", "-c", "true; sleep 0; /bin/true; exit 3"]) else {
        return;
    };
    assert_eq!(done.status.code(), Some(3));
    let text = stderr(&done);
    assert!(text.starts_with("overspill: 3 processes, ") && text.contains("stand-in"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 3);
    assert_eq!(json["processes"][0]["name"], "stand-in");
    assert_eq!(json["total"]["counters"]["pgfault"], 0);

    let done = run(&["--stats-json", "/dev/stderr"], &["true"]).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    let done = run(&["--stats-json", "/no/such/place/x"], &["touch", "/no/such/place"]).unwrap();
    assert!(
        done.status.code() == Some(125)
            && stderr(&done).contains("name a file that can be written"),
        "{}",
        stderr(&done)
    );
}

#[test]
fn a_program_that_escapes_is_told_of() {
    let Some(done) = run_with(&["--stats"], &["true"], &[("STAND_IN_IDLE", "1")]) else { return };
    assert_eq!(done.status.code(), Some(0));
    assert!(
        stderr(&done).contains("ran without overspill")
            && stderr(&done).contains("; nothing of it was managed, as the dynamic loader did not"),
        "{}",
        stderr(&done)
    );
}

/// A program under overspill that has said that it is ready.
fn ready(script: &str) -> Option<Child> {
    if !runs_here() {
        return None;
    }
    let overspill = overspill()?;
    // A shell cannot trap what it was told to ignore, as what is started in the background often
    // is.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT"]).arg(overspill.get_program());
    for (name, value) in overspill.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["run", "--memory", "64M", "--", "sh", "-c", script]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some(child)
}

fn signal(child: &Child, name: &str) {
    let done = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(done.success());
}

#[test]
fn signals_are_passed_on_to_the_program() {
    for (name, status) in
        [("TERM", 41), ("HUP", 42), ("USR1", 43), ("USR2", 44), ("INT", 45), ("QUIT", 46)]
    {
        let script =
            format!("trap 'exit {status}' {name}; echo ready; while :; do sleep 0.05; done");
        let Some(mut child) = ready(&script) else { return };
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{name}");
    }
}

#[test]
fn a_signal_that_kills_the_program_is_the_exit_status() {
    let Some(mut child) = ready("echo ready; exec sleep 60") else { return };
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_program_that_stops_and_goes_on_is_waited_for() {
    let Some(mut child) =
        ready("(sleep 0.2; kill -CONT $$) & echo ready; kill -STOP $$; wait; exit 7")
    else {
        return;
    };
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn ignored_signals_stay_ignored_in_the_program() {
    if !runs_here() {
        return;
    }
    let Some(overspill) = overspill() else { return };
    let program = overspill.get_program().to_str().unwrap();
    let script =
        format!("trap '' HUP INT; exec '{program}' run --memory 64M -- cat /proc/self/status");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("OVERSPILL_PRELOAD", common::stand_in().unwrap());
    let done = shell.output().unwrap();
    let status = stdout(&done);
    let ignored = |status: &str| {
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .unwrap_or_else(|| panic!("{status}"));
        u64::from_str_radix(mask.trim(), 16).unwrap() & 0b111
    };
    // A job in the background has QUIT ignored from the start.
    let own = ignored(&fs::read_to_string("/proc/self/status").unwrap());
    assert_eq!(
        ignored(&status),
        own | 0b011,
        "HUP and INT, QUIT only if it was: {}",
        stderr(&done)
    );
}

#[test]
fn argument_zero_is_what_was_typed() {
    let Some(done) = run(&[], &["sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline"]) else { return };
    assert!(stdout(&done).starts_with("sh -c "), "{}", stdout(&done));
}

#[test]
fn a_closed_standard_error_is_no_failure() {
    if !runs_here() {
        return;
    }
    let Some(mut overspill) = overspill() else { return };
    overspill
        .args(["run", "--stats", "--", "true"])
        .stderr(fs::File::create("/dev/full").unwrap())
        .arg0("overspill");
    assert_eq!(overspill.status().unwrap().code(), Some(0));
}
