//! Runs of `overspill run` that are over when the call returns.

use crate::process::{Outcome, run};
use crate::{Scratch, TIME_LIMIT, binary, clean};
use std::path::Path;
use std::process::Command;

/// `overspill run ARGS` with mechanisms as these baselines are, without regard to what this machine
/// can do.
pub fn overspill_run(scratch: &Scratch, baselines: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new(binary(scratch));
    clean(&mut command).arg("run").args(args).env("OVERSPILL_BASELINES", baselines);
    run(&mut command, TIME_LIMIT)
}

/// A path as an argument of the command line.
pub fn shown(path: &Path) -> &str {
    path.to_str().expect("the target directory has a UTF-8 name")
}

/// A shell script whose mounts nobody else sees and that are gone when it ends. It exits 77 where
/// it cannot mount.
pub fn in_mount_namespace(script: &str, args: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).args(args);
    command
}
