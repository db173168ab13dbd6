//! The kernel's own swap, for benches that measure beside it: memory cgroups, swap files, and the
//! commands of util-linux.
//!
//! It needs root. What a bench changes on the machine is put back by a process of its own
//! ([`super::put_back`]).

use super::cgroup::{Cgroup, Hierarchy};
use super::place::make;
use crate::measure::{Failing, Failure, fail};
use overspill::units::{Bytes, PAGE_SIZE};
use rustix::fs::FallocateFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a process needs beside the memory that is measured.
pub const PROCESS_BYTES: u64 = 16 << 20;

/// Where hierarchies of cgroups are mounted.
pub const MOUNTS: &str = "/sys/fs/cgroup";
/// A limit of a cgroup that nothing reaches: it only counts.
pub const NO_LIMIT: u64 = 1 << 50;

/// What this process calls what it makes: no other does.
pub fn name() -> String {
    format!("overspill-bench-{}", std::process::id())
}

/// A cgroup that can be made to know how much memory something takes, where this user may.
pub fn counting() -> Option<Cgroup> {
    let hierarchy =
        Hierarchy::find(Path::new(MOUNTS)).ok().filter(|_| rustix::process::geteuid().is_root());
    hierarchy.map(|hierarchy| hierarchy.group(&name()))
}

/// What is missing for the kernel to be measured, in a sentence; `None` if nothing is, as far as
/// can be told beforehand.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root".to_owned());
    }
    for name in ["mkswap", "swapon", "swapoff"] {
        if let Err(failure) = command(name, &["--version"]) {
            return Some(failure.to_string());
        }
    }
    Hierarchy::find(Path::new(MOUNTS)).err()
}

/// Makes a swap file and has the kernel use it.
pub fn swap_on(file: &Path, size: u64, priority: u32) -> Result<(), Failure> {
    let size = size / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    let allocated = rustix::fs::fallocate(make(file)?, FallocateFlags::empty(), 0, size);
    allocated.failing(format_args!("no swap file of {} can be made", Bytes(size)))?;
    use_as_swap(file, priority)
}

/// Has the kernel use a file or a block device as swap.
pub fn use_as_swap(file: &Path, priority: u32) -> Result<(), Failure> {
    command("mkswap", &[path(file)?])?;
    command("swapon", &["--priority", &priority.to_string(), path(file)?])
}

/// A path as an argument of a command.
pub fn path(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(format!("'{}' is not UTF-8: name another place", path.display()))
    })
}

pub fn command(name: &str, args: &[&str]) -> Result<(), Failure> {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output();
    match output {
        Err(error) => fail!("{name}(8) cannot be started ({error}): install it"),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            fail!("{name}(8) says: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    }
}

/// The files of /proc/swaps, with their pages in use. Spaces and what else divides fields are
/// written there as octal numbers.
pub fn swaps(table: &str) -> impl Iterator<Item = (PathBuf, u64)> {
    table.lines().skip(1).filter_map(|line| {
        // NAME TYPE SIZE USED PRIORITY, in KiB.
        let mut fields = line.split_whitespace();
        let path =
            [" ", "\t", "\n", "\\"].iter().fold(fields.next()?.to_owned(), |path, special| {
                path.replace(&format!("\\{:03o}", special.as_bytes()[0]), special)
            });
        let used_kib: u64 = fields.nth(2)?.parse().ok()?;
        Some((PathBuf::from(path), used_kib * 1024 / PAGE_SIZE as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_listed_with_their_use() {
        let table = "Filename Type Size Used Priority\n/dev/zram0 partition 4096 8 \
                     -2\n/var/my\\040tmp/.x.swap file 1024 512 5\n";
        let expected = [("/dev/zram0", 2), ("/var/my tmp/.x.swap", 128)]
            .map(|(path, used)| (PathBuf::from(path), used));
        assert_eq!(swaps(table).collect::<Vec<_>>(), expected);
        assert_eq!(swaps("").count(), 0);
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        assert!(command("no-such-command", &[]).unwrap_err().to_string().contains("install it"));
        let failure = command("ls", &["/no/such/directory"]).unwrap_err().to_string();
        assert!(failure.starts_with("ls(8) says: ls"), "{failure}");
    }
}
