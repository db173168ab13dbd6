//! Files in YAML, read by Python's module for it.

use crate::process::run;
use crate::{TIME_LIMIT, clean, repository, skipped};
use serde_json::Value;
use std::process::Command;

const AS_JSON: &str =
    "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";

/// A file of the repository. Where there is nothing to read it with, says so: the caller then
/// returns.
pub fn read(path: &str) -> Option<Value> {
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        Command::new(python).args(["-c", "import yaml"]).output().is_ok_and(|o| o.status.success())
    });
    let Some(python) = python else {
        skipped("there is no python3-yaml");
        return None;
    };
    let mut command = Command::new(python);
    command.args(["-c", AS_JSON]).arg(repository().join(path));
    let outcome = run(clean(&mut command), TIME_LIMIT);
    assert_eq!(outcome.status, 0, "{path}: {}", outcome.stderr);
    Some(serde_json::from_str(&outcome.stdout).expect("it is JSON"))
}
