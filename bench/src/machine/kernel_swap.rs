//! The kernel's own swap, for benches that measure beside it: memory cgroups, swap files, and the
//! commands of util-linux.
//!
//! It needs root. What a bench changes on the machine is put back by a process of its own
//! ([`super::put_back`]).

use super::cgroup::{Cgroup, Hierarchy};
use super::swap_dir::make;
use crate::measure::*;
use overspill::units::{Bytes, PAGE_SIZE};
use rustix::fs::FallocateFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a process needs beside the memory that is measured.
pub const PROCESS_BYTES: u64 = 16 << 20;

/// The kernel's table of swap space.
pub const SWAPS: &str = "/proc/swaps";
/// Where hierarchies of cgroups are mounted.
const MOUNTS: &str = "/sys/fs/cgroup";
/// A limit of a cgroup that nothing reaches: it only counts.
pub const NO_LIMIT: u64 = 1 << 50;

/// What this process calls what it makes: no other does.
pub fn name() -> String {
    format!("overspill-bench-{}", std::process::id())
}

/// A cgroup that this process can make.
pub fn cgroup() -> Result<Cgroup, Failure> {
    Ok(Hierarchy::find(Path::new(MOUNTS))?.group(&name()))
}

/// The same to know how much memory something takes, where this user may.
pub fn counting() -> Option<Cgroup> {
    cgroup().ok().filter(|_| rustix::process::geteuid().is_root())
}

/// What is missing for the kernel to be measured, in a sentence; `None` if nothing is, as far as
/// can be told beforehand.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root".to_owned());
    }
    let mut commands = ["mkswap", "swapon", "swapoff"].into_iter();
    let missing = commands.find_map(|name| command(name, &["--version"]).err());
    missing.or_else(|| cgroup().err()).map(|failure| failure.to_string())
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
    command("swapon", &["--priority", &priority.to_string(), path(file)?]).map(drop)
}

/// A path as an argument of a command.
pub fn path(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(format!("'{}' is not UTF-8: name another place", path.display()))
    })
}

/// What a file of the kernel, or another, holds.
pub fn read_file(file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file);
    let text = text.failing(format_args!("'{}' cannot be read", file.display()))?;
    Ok(text.trim().to_owned())
}

/// What a command prints.
pub fn command(name: &str, args: &[&str]) -> Result<String, Failure> {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output();
    match output {
        Err(error) => fail!("{name} cannot be started ({error}): install it"),
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            fail!("{name} says: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    }
}

/// What the kernel swaps to now, with the pages in use and the priority of each.
pub fn swaps() -> Vec<(PathBuf, u64, i64)> {
    listed(&fs::read_to_string(SWAPS).unwrap_or_default())
}

/// Spaces and what else divides fields are written there as octal numbers.
fn listed(table: &str) -> Vec<(PathBuf, u64, i64)> {
    let of = |line: &str| {
        // NAME TYPE SIZE USED PRIORITY, in KiB.
        let mut fields = line.split_whitespace();
        let path =
            [" ", "\t", "\n", "\\"].iter().fold(fields.next()?.to_owned(), |path, special| {
                path.replace(&format!("\\{:03o}", special.as_bytes()[0]), special)
            });
        let used_kib: u64 = fields.nth(2)?.parse().ok()?;
        let priority = fields.next()?.parse().ok()?;
        Some((PathBuf::from(path), used_kib * 1024 / PAGE_SIZE as u64, priority))
    };
    table.lines().skip(1).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_listed_with_their_use() {
        let table = "Filename Type Size Used Priority\n/dev/zram0 partition 4096 8 \
                     -2\n/var/my\\040tmp/.x.swap file 1024 512 5\n";
        let expected = [("/dev/zram0", 2, -2), ("/var/my tmp/.x.swap", 128, 5)]
            .map(|(path, used, priority)| (PathBuf::from(path), used, priority));
        assert_eq!(listed(table), expected);
        assert_eq!(listed(""), []);
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        assert!(command("no-such-command", &[]).unwrap_err().to_string().contains("install it"));
        let failure = command("ls", &["/no/such/directory"]).unwrap_err().to_string();
        assert!(failure.starts_with("ls says: ls"), "{failure}");
    }
}
