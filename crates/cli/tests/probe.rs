//! `overspill probe` as a program.

mod common;

use common::{bare, overspill, scratch, stderr, stdout};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

/// With a preload library, where one can be made.
fn probe() -> Command {
    let mut command = overspill().unwrap_or_else(bare);
    command.arg("probe");
    command
}

fn json(simulate: &str) -> (Option<i32>, Value) {
    let done = probe().arg("--json").env("OVERSPILL_SIMULATE", simulate).output().unwrap();
    (
        done.status.code(),
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", stderr(&done))),
    )
}

#[test]
fn the_object_is_consistent_with_the_exit_status_and_the_text() {
    let (status, object) = json("");
    let works = object["run"]["works"].as_bool().unwrap();
    assert_eq!(status, Some(if works { 0 } else { 1 }));
    let text = stdout(&probe().output().unwrap());
    assert_eq!(text.contains("overspill run works here"), works, "{text}");
    for sentence in
        object["in_use"].as_array().unwrap().iter().chain(object["advice"].as_array().unwrap())
    {
        // MemAvailable moves between the two.
        let sentence = sentence.as_str().unwrap();
        assert!(sentence.contains("of RAM") || text.contains(sentence), "'{sentence}' in {text}");
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(object["kernel"], kernel.trim());
}

/// As `cargo install` leaves it.
#[test]
fn a_command_without_its_library_says_what_is_missing() {
    let home = scratch().join("lone");
    fs::create_dir_all(&home).unwrap();
    let lone = home.join("overspill");
    fs::copy(env!("CARGO_BIN_EXE_overspill"), &lone).unwrap();
    let ask = |words: &[&str]| -> Output {
        let mut command = Command::new(&lone);
        command.args(words).env_remove("OVERSPILL_PRELOAD").env_remove("OVERSPILL_SIMULATE");
        command.output().unwrap()
    };
    let ran = ask(&["run", "--memory", "16M", "--no-swap", "--", "true"]);
    let refusal = stderr(&ran);
    if refusal.contains("userfaultfd") {
        return eprintln!("SKIPPED: {refusal}");
    }
    assert_eq!(ran.status.code(), Some(125));
    let missing = refusal.trim_end().strip_prefix("overspill: ").unwrap();
    assert!(missing.contains("by `cargo build --release -p overspill-preload`"), "{missing}");
    let probed = ask(&["probe"]);
    let sentence = format!("overspill run does not work here: {missing}.");
    assert!(stdout(&probed).contains(&sentence), "{}", stdout(&probed));
    assert_eq!(probed.status.code(), Some(1));
}

#[test]
fn simulations_are_reported_as_missing() {
    let (status, object) = json("no-uffd");
    assert_eq!((status, &object["userfaultfd"]["syscall"]["ok"]), (Some(1), &Value::Bool(false)));
    assert!(object["run"]["fault"].is_null());
    let (status, object) = json("no-kernel-faults");
    assert_eq!((status, &object["userfaultfd"]["kernel_faults"]), (Some(0), &Value::Bool(false)));
    assert_eq!(object["run"]["fault"], "signal");
    let (_, object) = json("no-move,no-uring");
    assert_eq!(object["simulated_missing"], serde_json::json!(["no-move", "no-uring"]));
    assert_eq!(object["io_uring"]["ok"], false);
    let features = object["userfaultfd"]["features"].as_array().unwrap();
    assert!(!features.iter().any(|name| name == "move"));
}

#[test]
fn help_says_what_is_managed_and_what_is_not() {
    let help = stdout(&bare().args(["run", "--help"]).output().unwrap());
    let text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "malloc heap",
        "private anonymous mappings",
        "thread stacks, file mappings, shared memory",
        "statically linked",
        "All processes of the tree share the budget",
        "least of its memory cgroup limits and MemAvailable",
        "[env: OVERSPILL_SWAP]",
        "OVERSPILL_PRELOAD",
        "128 + N",
    ] {
        assert!(text.contains(part), "'{part}' in\n{help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
}
