//! The kernel's own swap, for benches that measure beside it: memory cgroups, swap files, and the
//! commands of util-linux.
//!
//! It needs root. What a bench changes on the machine is put back by a process of its own
//! ([`put_back`]).

use super::cgroup::{Cgroup, Hierarchy};
use super::put_back;
use super::util_linux::{command, path};
use crate::measure::{Failing, Failure};
use overspill::units::{Bytes, PAGE_SIZE};
use rustix::fs::FallocateFlags;
use std::path::Path;

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
    let allocated = rustix::fs::fallocate(put_back::make(file)?, FallocateFlags::empty(), 0, size);
    allocated.failing(format_args!("no swap file of {} can be made", Bytes(size)))?;
    use_as_swap(file, priority)
}

/// Has the kernel use a file or a block device as swap.
pub fn use_as_swap(file: &Path, priority: u32) -> Result<(), Failure> {
    command("mkswap", &[path(file)?])?;
    command("swapon", &["--priority", &priority.to_string(), path(file)?])
}
