//! What the tests from the outside share: the program under test, compiled C programs, runs with a
//! time limit.
//!
//! [`overspill`] finds or builds the command, [`Scratch`] is where a test file compiles and runs
//! its programs, [`process::run`] runs a command and says where it hangs, [`job::Job`] is a job
//! that runs meanwhile, [`stats::Report`] reads what `--stats-json` wrote, [`yaml::read`] a file in
//! YAML. The tests themselves are in `tests/`: `semantics.rs` (programs that must not notice
//! overspill), `exec.rs` (what they execute, with any environment), `refusals.rs` (what is refused
//! before a program begins), `out_of_room.rs` (memory that cannot be held), `settings.rs` (every
//! setting), `budget.rs` and `control.rs` (budgets, and those of running jobs), `devices.rs` and
//! `swapon.rs` (swap devices, and those of running jobs), `sealed.rs` (what is on them),
//! `observe.rs` (what is told of running jobs, and proactive reclaim), `metrics.rs` (the same for
//! Prometheus), `top.rs` (the same on a terminal), `size.rs` (how much memory a program needs),
//! `trust.rs` (files and directories of others), `documents.rs` (commands and links of the
//! documentation, which [`documents`] reads).
//! The locks here are of the test process only.

#![forbid(unsafe_code)]

pub mod command;
pub mod documents;
pub mod job;
pub mod process;
pub mod scratch;
pub mod stats;
pub mod yaml;

pub use scratch::Scratch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest that one run may take. The programs end within 5 s natively, and within 40 s on a
/// machine that does nothing else; this is to find one that hangs.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the repository")
}

/// The `overspill` under test: `OVERSPILL_BIN`, or else built into the target directory that
/// `scratch` lies in.
pub fn binary(scratch: &Scratch) -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("OVERSPILL_BIN") {
        Some(path) => std::fs::canonicalize(&path)
            .unwrap_or_else(|error| panic!("OVERSPILL_BIN={path:?}: {error}")),
        None => build(scratch.target_dir()),
    })
}

fn build(target: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--release",
            "-p",
            "overspill-cli",
            "-p",
            "overspill-preload",
            "-p",
            "overspill-c",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(repository())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "overspill could not be built");
    target.join("release/overspill")
}

/// The `overspill` under test, if this machine can run anything under it. If it cannot, says so on
/// standard error: the caller then returns.
pub fn overspill(scratch: &Scratch) -> Option<&'static Path> {
    static WORKS: OnceLock<bool> = OnceLock::new();
    let binary = binary(scratch);
    let works = *WORKS.get_or_init(|| {
        let outcome = process::run(clean(Command::new(binary).arg("probe")), TIME_LIMIT);
        assert!(
            matches!(outcome.status, 0 | 1),
            "probe ended with {}: {}",
            outcome.status,
            outcome.stderr
        );
        if outcome.status != 0 {
            skipped(&format!(
                "userfaultfd cannot be had here; overspill probe says:\n{}",
                outcome.stdout
            ));
        }
        outcome.status == 0
    });
    if !works {
        skipped("this test needs userfaultfd");
    }
    works.then_some(binary)
}

/// Says that the calling test, or a part of it, is left out. Not with `eprintln!`, whose output
/// cargo shows for failed tests only.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {reason}", thread.name().unwrap_or("a test"));
}

/// Keeps the settings of the caller's environment out of a test.
pub fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OVERSPILL") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
