//! How much memory the job may use: its memory cgroup limits and what the machine has available.

use overspill::units::{Bytes, PAGE_SIZE};
use std::fs;
use std::path::{Path, PathBuf};

/// Limits of 4 EiB and more are how version 1 writes "no limit".
const UNLIMITED: u64 = 1 << 62;

/// What bounds the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryLimits {
    /// The least limit of the own memory cgroup and those above it.
    pub cgroup: Option<Bytes>,
    /// MemAvailable of /proc/meminfo.
    pub available: Option<Bytes>,
}

impl MemoryLimits {
    /// Reads them for this process.
    pub fn read() -> MemoryLimits {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let read = |path: &Path| fs::read_to_string(path).ok();
        MemoryLimits {
            cgroup: cgroup_limit(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), read),
            available: meminfo(&text("/proc/meminfo"), "MemAvailable:"),
        }
    }

    /// Three quarters of what the job may use, the rest being for stacks, files and the engine's
    /// tables.
    pub fn default_budget(self) -> Option<Bytes> {
        let least = [self.cgroup, self.available].into_iter().flatten().min()?;
        Some(Bytes(least.0 / 4 * 3 / PAGE_SIZE as u64 * PAGE_SIZE as u64))
    }
}

/// The RAM of this machine.
pub fn mem_total() -> Option<Bytes> {
    meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

fn meminfo(text: &str, field: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok().map(|kib: u64| Bytes(kib << 10))
}

/// The least limit from the own cgroup up to the top of what is mounted, in both versions.
fn cgroup_limit(
    cgroup: &str,
    mountinfo: &str,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<Bytes> {
    let mut least: Option<u64> = None;
    for line in cgroup.lines() {
        // A line is HIERARCHY:CONTROLLERS:PATH; version 2 has hierarchy 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let unified = hierarchy == "0" && controllers.is_empty();
        if !unified && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let files: &[&str] =
            if unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let Some(mount) = mountinfo.lines().find_map(|line| memory_mount(line, unified)) else {
            continue;
        };
        for dir in mount.directories(path) {
            let limits = files.iter().filter_map(|file| read(&dir.join(file))?.trim().parse().ok());
            least = limits.chain(least).min();
        }
    }
    least.filter(|limit| *limit < UNLIMITED).map(Bytes)
}

/// A mounted hierarchy.
struct Mount {
    /// The cgroup that the mount point shows.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
}

impl Mount {
    /// Directories of `cgroup` and of those above it, as far as they are to be seen here.
    fn directories(&self, cgroup: &str) -> Vec<PathBuf> {
        // In a container the own cgroup's path may be the host's: then the mount point is the own
        // cgroup.
        let below = Path::new(cgroup).strip_prefix(&self.root).unwrap_or(Path::new(""));
        let own =
            if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) };
        own.ancestors().take_while(|dir| dir.starts_with(&self.point)).map(Path::to_owned).collect()
    }
}

/// The hierarchy that a line of mountinfo mounts, if it is the one that limits memory.
fn memory_mount(line: &str, unified: bool) -> Option<Mount> {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let (kind, _, options) = (right.next()?, right.next()?, right.next().unwrap_or(""));
    let wanted = if unified {
        kind == "cgroup2"
    } else {
        kind == "cgroup" && options.split(',').any(|o| o == "memory")
    };
    let mut left = left.split(' ').skip(3);
    wanted.then_some(Mount { root: left.next()?.into(), point: left.next()?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    fn limit(cgroup: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        cgroup_limit(cgroup, mounts, read).map(|b| b.0)
    }

    #[test]
    fn version_1_takes_the_least_up_to_the_mount_point() {
        let files = [
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "8000\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(limit("4:memory:/a/b\n1:cpu:/c\n0::/", MOUNTS, &files), Some(5000));
        assert_eq!(limit("4:memory:/x\n", MOUNTS, &files), None);
        assert_eq!(limit("4:cpu:/a/b\n", MOUNTS, &files), None);
    }

    #[test]
    fn version_2_counts_max_and_high() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let files = [
            ("/sys/fs/cgroup/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/job/memory.high", "7000\n"),
            ("/sys/fs/cgroup/memory.max", "9000\n"),
        ];
        assert_eq!(limit("0::/job", mounts, &files), Some(7000));
        assert_eq!(limit("0::/other", mounts, &files), Some(9000));
    }

    #[test]
    fn a_containers_own_cgroup_is_its_mount_point() {
        let mounts = "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000")];
        assert_eq!(limit("4:memory:/docker/1", mounts, &files), Some(6000));
        assert_eq!(limit("4:memory:/elsewhere", mounts, &files), Some(6000));
        let files = [("/sys/fs/cgroup/memory/in/memory.limit_in_bytes", "5000")];
        assert_eq!(limit("4:memory:/docker/1/in", mounts, &files), Some(5000));
    }

    #[test]
    fn the_default_is_three_quarters_of_the_least() {
        let limits = MemoryLimits {
            cgroup: Some(Bytes(1 << 30)),
            available: meminfo("MemAvailable:  16777216 kB\n", "MemAvailable:"),
        };
        assert_eq!(limits.available, Some(Bytes(16 << 30)));
        assert_eq!(limits.default_budget(), Some(Bytes(768 << 20)));
        assert_eq!(MemoryLimits::default().default_budget(), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(MemoryLimits::read().default_budget().is_some());
        assert!(mem_total() >= MemoryLimits::read().available);
    }
}
