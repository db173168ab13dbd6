//! The example of the library runs as it is.

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples beside the tests of their crate.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(example.exists(), "{} is not built: cargo build --examples", example.display());
    example
}

#[test]
fn more_than_the_memory_is_right() {
    let mut command = Command::new(example("larger_than_ram"));
    let output = command.args(["16", env!("CARGO_TARGET_TMPDIR")]).output().unwrap();
    let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (says(&output.stdout), says(&output.stderr));
    if errors.contains("no userfaultfd") {
        return eprintln!("skipped: {errors}");
    }
    assert!(output.status.success(), "{errors}");
    assert!(out.starts_with("0 wrong of 64 MiB in 16 MiB, after "), "{out}");
}

#[test]
fn a_budget_that_is_too_small_is_a_sentence() {
    let output = Command::new(example("larger_than_ram")).arg("1").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("a budget of 1 MiB is too small"), "{errors}");
}
