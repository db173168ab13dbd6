//! The recipes beside the packages: what of them can be tried on any machine.

use overspill_tests::process::run;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill, repository, skipped};
use serde_json::{Value, json};
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
        if is_there("shellcheck") {
            printed(Command::new("shellcheck").arg("--severity=warning").arg(recipe(path)));
        }
    }
    if !is_there("shellcheck") {
        skipped("there is no shellcheck");
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
fn what_is_yaml_says_what_it_is_to_say() {
    let parsed = |path: &str| overspill_tests::yaml::read(&format!("packaging/{path}"));
    let Some(pod) = parsed("kubernetes/pod.yaml") else { return };
    assert_eq!(pod["spec"]["securityContext"]["seccompProfile"]["type"], "Localhost");
    let Some(rules) = parsed("prometheus/alerts.yml") else { return };
    let rules = rules["groups"][0]["rules"].as_array().expect("a list").len();
    let Some(tested) = parsed("prometheus/alerts_test.yml") else { return };
    let tested = &tested["tests"][0]["promql_expr_test"][0];
    assert_eq!(tested["exp_samples"].as_array().map(Vec::len), Some(rules), "one fires of each");
    let Some(scraped) = parsed("prometheus/prometheus.yml") else { return };
    assert_eq!(scraped["scrape_configs"][0]["honor_labels"], true);
}

/// A program of PyPI: on the search path, or where `tests/programs/install.sh` puts it.
fn from_pypi(name: &str) -> Option<PathBuf> {
    let own = SCRATCH.target_dir().join("programs/venv/bin").join(name);
    let found = [PathBuf::from(name), own].into_iter();
    let found = found.into_iter().find(|path| Command::new(path).arg("--version").output().is_ok());
    if found.is_none() {
        skipped(&format!("there is no {name} (pip install {name})"));
    }
    found
}

#[test]
fn the_schema_of_kubernetes_takes_the_pod() {
    let Some(validate) = from_pypi("kubernetes-validate") else { return };
    printed(Command::new(validate).arg("--strict").arg(recipe("kubernetes/pod.yaml")));
}

#[test]
fn the_schema_of_github_takes_the_steps() {
    let Some(steps) = overspill_tests::yaml::read("packaging/ci/github.yml") else { return };
    let Some(check) = from_pypi("check-jsonschema") else { return };
    let job = json!({ "runs-on": "ubuntu-24.04", "steps": steps["steps"] });
    let room = SCRATCH.room("workflow");
    let workflow = room.path.join("workflow.json");
    fs::write(&workflow, json!({ "on": "push", "jobs": { "test": job } }).to_string()).unwrap();
    let mut command = Command::new(check);
    printed(command.args(["--builtin-schema", "vendor.github-workflows"]).arg(&workflow));
}

/// A tarball with what the steps of CI need of the one that `make packages` builds.
fn tarball(room: &Path, overspill: &Path) {
    let name = "overspill-0.0.0-x86_64-linux";
    let tree = room.join(name);
    for directory in ["bin", "lib/overspill", "include", "share"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    let library = "liboverspill_preload.so";
    fs::copy(overspill, tree.join("bin/overspill")).unwrap();
    fs::copy(overspill.with_file_name(library), tree.join("lib/overspill").join(library)).unwrap();
    fs::copy(recipe("install.sh"), tree.join("install.sh")).unwrap();
    let file = format!("{name}.tar.gz");
    printed(Command::new("tar").args(["-czf", &file, name]).current_dir(room));
    fs::remove_dir_all(tree).unwrap();
}

#[test]
fn the_steps_of_ci_install_overspill_and_test_in_a_budget() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let Some(steps) = overspill_tests::yaml::read("packaging/ci/github.yml") else { return };
    if !is_there("make") || !is_there("bash") {
        return skipped("there is no make, or no bash");
    }
    let room = SCRATCH.room("ci");
    let prefix = room.path.join("usr");
    tarball(&room.path, overspill);
    let makefile = format!("test:\n\t@python3 -c '{PROGRAM}'\n");
    fs::write(room.path.join("Makefile"), makefile).unwrap();
    // In the place of sudo and ldconfig, so that nothing is written into the machine.
    fs::create_dir_all(prefix.join("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/true", prefix.join("bin/ldconfig")).unwrap();
    let sudo = format!("#!/bin/sh\nexec env DESTDIR= PREFIX='{}' \"$@\"\n", prefix.display());
    fs::write(prefix.join("bin/sudo"), sudo).unwrap();
    printed(Command::new("chmod").arg("+x").arg(prefix.join("bin/sudo")));
    let path = format!("{}:/usr/bin:/bin", prefix.join("bin").display());
    let step = |step: &Value| {
        // As a runner does it.
        let mut bash = Command::new("bash");
        clean(&mut bash).args(["--noprofile", "--norc", "-eo", "pipefail", "-c"]);
        bash.arg(step["run"].as_str().expect("text")).current_dir(&room.path).env("PATH", &path);
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            let value = value.as_str().expect("text");
            let room = room.path.to_str().expect("UTF-8");
            bash.env(name, value.replace("${{ runner.temp }}", room));
        }
        let outcome = run(&mut bash, TIME_LIMIT);
        assert_eq!(outcome.status, 0, "{step}: {}{}", outcome.stdout, outcome.stderr);
        outcome
    };
    let [install, test] = [0, 1].map(|at| step(&steps["steps"][at]));
    assert!(install.stdout.contains("overspill run works here"), "{}", install.stdout);
    assert_eq!(test.stdout, "4499998500000\n");
    let budget = test.stderr.lines().find(|line| line.contains("budget of the job"));
    assert!(budget.is_some_and(|line| line.contains("4 GiB")), "{}", test.stderr);
}
