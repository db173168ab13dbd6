//! The recipes beside the packages: what of them can be tried on any machine.

use overspill_tests::process::run;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, repository, skipped};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));
const PROGRAM: &str = "print(sum(list(range(3_000_000))))";

fn recipe(path: &str) -> PathBuf {
    repository().join("packaging").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(recipe(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a command prints that has to succeed.
fn printed(command: &mut Command) -> String {
    let outcome = run(clean(command), TIME_LIMIT);
    assert_eq!(outcome.status, 0, "{command:?}: {}{}", outcome.stdout, outcome.stderr);
    outcome.stdout
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn a_program_runs_under_the_seccomp_profile() {
    let profile: Value = serde_json::from_str(&read("seccomp.json")).expect("it is JSON");
    let allows = |rule: &Value, name: &str| {
        rule["action"] == "SCMP_ACT_ALLOW"
            && rule["names"].as_array().expect("a list").iter().any(|known| known == name)
    };
    let rules = profile["syscalls"].as_array().expect("a list");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert!(rules.iter().any(|rule| allows(rule, "userfaultfd")));
    for refused in ["io_uring_setup", "bpf", "mount", "unshare", "setns", "kexec_load", "keyctl"] {
        assert!(!rules.iter().any(|rule| allows(rule, refused)), "{refused}");
    }
    if !Path::new("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").exists() {
        return skipped("there are no headers of the kernel that number its calls");
    }
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let under = |profile: &Path, args: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(recipe("tests/under_profile.py")).arg(profile).arg(overspill).args(args);
        run(clean(&mut command), TIME_LIMIT)
    };
    let profile = recipe("seccomp.json");
    let outcome = under(
        &profile,
        &["run", "--memory", "64M", "--fault", "signal", "--", "python3", "-c", PROGRAM],
    );
    assert_eq!(outcome.stdout, "4499998500000\n", "{}", outcome.stderr);

    // For root the device does too, so that this alone shows what the profile allows.
    let room = SCRATCH.room("profile");
    let without = room.path.join("without.json");
    let lines = read("seccomp.json");
    let lines: Vec<_> = lines.lines().filter(|line| !line.contains("userfaultfd")).collect();
    fs::write(&without, lines.join("\n")).unwrap();
    let has_the_call = |profile: &Path| {
        let found = under(profile, &["probe"]).stdout;
        let line = found.lines().find(|line| line.contains("userfaultfd, system call"));
        line.expect("probe says so").trim_end().ends_with("yes")
    };
    assert!(has_the_call(&profile) && !has_the_call(&without));
}

#[test]
fn the_prolog_gives_a_task_its_budget_and_its_swap() {
    let room = SCRATCH.room("prolog");
    let prolog = |variables: &[(&str, &str)]| {
        let mut sh = Command::new("sh");
        sh.arg(recipe("slurm/task-prolog.sh")).env("OVERSPILL_SCRATCH", "/nowhere");
        let outcome = run(clean(&mut sh).envs(variables.iter().copied()), TIME_LIMIT);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
        outcome.stdout
    };
    assert_eq!(prolog(&[]), "");
    assert_eq!(prolog(&[("SLURM_MEM_PER_NODE", "4096")]), "export OVERSPILL_MEMORY=3072M\n");
    assert_eq!(
        prolog(&[
            ("SLURM_MEM_PER_CPU", "1024"),
            ("SLURM_CPUS_ON_NODE", "8"),
            ("SLURM_NTASKS_PER_NODE", "2"),
        ]),
        "export OVERSPILL_MEMORY=3072M\n"
    );
    let scratch = room.path.to_str().expect("UTF-8");
    assert_eq!(
        prolog(&[("OVERSPILL_MEMORY", "1G"), ("OVERSPILL_SCRATCH", scratch)]),
        format!("export OVERSPILL_SWAP={scratch}\n")
    );
}

#[test]
fn scripts_are_scripts() {
    for path in ["install.sh", "package.sh", "as_installed.sh", "slurm/task-prolog.sh"] {
        printed(Command::new("sh").arg("-n").arg(recipe(path)));
    }
}

/// With a program that is there in the place of those that are not.
fn unit(path: &str) -> String {
    let unit = read(path);
    let lines = unit.lines().filter(|line| !line.starts_with("Documentation="));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.replace("/usr/bin/overspill", "/bin/sh") + "\n"
}

#[test]
fn systemd_takes_the_units() {
    if !is_there("systemd-analyze") {
        return skipped("there is no systemd-analyze");
    }
    let room = SCRATCH.room("systemd");
    let drop_in = room.path.join("wrapped.service.d");
    fs::create_dir(&drop_in).unwrap();
    fs::write(drop_in.join("overspill.conf"), unit("systemd/overspill.conf")).unwrap();
    let wrapped = "[Service]\nExecStart=/bin/false\nSystemCallFilter=@basic-io\n";
    fs::write(room.path.join("wrapped.service"), wrapped).unwrap();
    fs::write(room.path.join("overspill@.service"), unit("systemd/overspill@.service")).unwrap();
    fs::write(room.path.join("overspill@x.service"), unit("systemd/overspill@.service")).unwrap();
    let metrics = unit("systemd/overspill-metrics.service");
    fs::write(room.path.join("metrics.service"), metrics).unwrap();
    for name in ["wrapped.service", "overspill@x.service", "metrics.service"] {
        let mut analyze = Command::new("systemd-analyze");
        let outcome = run(analyze.arg("verify").arg(room.path.join(name)), TIME_LIMIT);
        assert_eq!(outcome.status, 0, "{name}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains(name), "{name}: {}", outcome.stderr);
    }
}

#[test]
fn what_is_yaml_is_yaml() {
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        Command::new(python).args(["-c", "import yaml"]).output().is_ok_and(|o| o.status.success())
    });
    let Some(python) = python else { return skipped("there is no python3-yaml") };
    const AS_JSON: &str = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))";
    let parsed = |path: &str| -> Value {
        let mut sh = Command::new("sh");
        sh.args(["-c", "\"$1\" -c \"$2\" <\"$3\"", "sh", python, AS_JSON]).arg(recipe(path));
        serde_json::from_str(&printed(&mut sh)).expect("it is JSON")
    };
    let pod = parsed("kubernetes/pod.yaml");
    assert_eq!(pod["spec"]["securityContext"]["seccompProfile"]["type"], "Localhost");
    assert_eq!(pod["spec"]["containers"][0]["command"][0], "overspill");
    let rules = parsed("prometheus/alerts.yml");
    let rules = rules["groups"][0]["rules"].as_array().expect("a list").len();
    let tested = parsed("prometheus/alerts_test.yml")["tests"][0]["promql_expr_test"][0].clone();
    assert_eq!(tested["exp_samples"].as_array().map(Vec::len), Some(rules), "one fires of each");
    assert_eq!(parsed("prometheus/prometheus.yml")["scrape_configs"][0]["honor_labels"], true);
    assert_eq!(parsed("ci/github.yml")["steps"].as_array().map(Vec::len), Some(2));
}
