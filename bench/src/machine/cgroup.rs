//! A memory cgroup that bounds a process, in either version of the hierarchy.

use crate::measure::*;
use std::fs;
use std::path::{Path, PathBuf};

/// Where memory cgroups are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    root: PathBuf,
    limit: &'static str,
    peak: &'static str,
    /// Entries of its statistics that are memory which the kernel cannot take back; and the file of
    /// the kernel's own, where that is none of them.
    used: &'static [&'static str],
    kernel: Option<&'static str>,
}

impl Hierarchy {
    /// That of this machine, whose hierarchies are mounted at `mounts`.
    pub fn find(mounts: &Path) -> Result<Hierarchy, Failure> {
        const V1_LIMIT: &str = "memory.limit_in_bytes";
        let v1 = mounts.join("memory");
        if v1.join(V1_LIMIT).exists() {
            return Ok(Hierarchy {
                root: v1,
                limit: V1_LIMIT,
                peak: "memory.max_usage_in_bytes",
                used: &["total_rss ", "total_shmem "],
                kernel: Some("memory.kmem.usage_in_bytes"),
            });
        }
        let handed_down =
            fs::read_to_string(mounts.join("cgroup.subtree_control")).unwrap_or_default();
        if handed_down.split_whitespace().any(|controller| controller == "memory") {
            return Ok(Hierarchy {
                root: mounts.to_owned(),
                limit: "memory.max",
                peak: "memory.peak",
                used: &["anon ", "shmem ", "kernel "],
                kernel: None,
            });
        }
        fail!("it needs memory cgroups, and '{}' has none", mounts.display())
    }

    /// The group of a name, which need not exist.
    pub fn group(&self, name: &str) -> Cgroup {
        Cgroup { path: self.root.join(name), hierarchy: self.clone() }
    }
}

#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl Cgroup {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn make(&self, limit: u64) -> Result<(), Failure> {
        fs::create_dir(&self.path)
            .and_then(|()| fs::write(self.path.join(self.hierarchy.limit), limit.to_string()))
            .map_err(|error| self.failure(error))
    }

    /// Makes it, does something in it, and leaves it, so that it can be removed.
    pub fn inside<T>(
        &self,
        limit: u64,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.make(limit)?;
        join(&self.path).map_err(|error| self.failure(error))?;
        let done = work();
        let left = join(&self.hierarchy.root).failing("a memory cgroup cannot be left");
        done.and_then(|done| left.map(|()| done))
    }

    fn failure(&self, error: std::io::Error) -> Failure {
        Failure::new(format!("no memory cgroup can be made at '{}': {error}", self.path.display()))
    }

    /// The memory that it has now, in bytes, but for the pages of files, which the kernel takes
    /// back when it needs memory. Not what is charged less these: the statistics lag behind that,
    /// by tens of megabytes while a file is read.
    pub fn used_bytes(&self) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(self.path.join(name)).ok();
        let stat = read("memory.stat")?;
        let of = |name: &&str| entry::<u64>(&stat, name);
        let entries: u64 = self.hierarchy.used.iter().map(of).sum::<Option<u64>>()?;
        let kernel =
            self.hierarchy.kernel.map_or(Some(0), |file| read(file)?.trim().parse().ok())?;
        Some(entries + kernel)
    }

    /// Whether the kernel has killed a process of it, for want of memory.
    pub fn was_short(&self) -> bool {
        // One file a version.
        ["memory.oom_control", "memory.events"].iter().any(|file| {
            let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
            entry::<u64>(&text, "oom_kill ").is_some_and(|kills| kills > 0)
        })
    }

    /// The processes that are in it now.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The most memory that it has had, in bytes; not all kernels say.
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join(self.hierarchy.peak)).ok()?.trim().parse().ok()
    }
}

/// Puts this process into a group.
fn join(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_is_found_by_its_files() {
        let mounts = std::env::temp_dir().join(format!("overspill-cgroup-{}", std::process::id()));
        let memory = mounts.join("memory");
        fs::create_dir_all(&memory).unwrap();
        assert!(Hierarchy::find(&mounts).unwrap_err().to_string().contains("has none"));
        fs::write(mounts.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        let v2 = Hierarchy::find(&mounts).unwrap();
        assert_eq!((&v2.root, v2.limit, v2.peak), (&mounts, "memory.max", "memory.peak"));
        fs::write(memory.join("memory.limit_in_bytes"), "1").unwrap();
        let v1 = Hierarchy::find(&mounts).unwrap();
        assert_eq!(v1.root, memory);
        // What is used, where the statistics tell.
        let [v1, v2] = [v1.group("one"), v2.group("two")];
        v2.make(5 << 20).unwrap();
        assert_eq!(v2.used_bytes(), None);
        let stat = "anon 500\nfile 300\nkernel 40\nkernel_stack 7\nshmem 100\n";
        fs::write(v2.path().join("memory.stat"), stat).unwrap();
        assert_eq!((v2.used_bytes(), v2.was_short()), (Some(640), false));
        fs::write(v2.path().join("memory.events"), "oom 2\noom_kill 1\n").unwrap();
        assert!(v2.was_short());
        let read = |file: &str| fs::read_to_string(memory.join(file)).unwrap();
        v1.inside(5 << 20, || {
            assert_eq!(read("one/memory.limit_in_bytes"), (5 << 20).to_string());
            assert_eq!(v1.processes(), [std::process::id()]);
            let stat = "rss 1\ncache 2\ntotal_cache 300\ntotal_rss 500\ntotal_shmem 100\n";
            fs::write(v1.path().join("memory.stat"), stat).unwrap();
            assert_eq!(v1.used_bytes(), None, "without the kernel's own it is not known");
            fs::write(v1.path().join("memory.kmem.usage_in_bytes"), "40\n").unwrap();
            assert_eq!(v1.used_bytes(), Some(640));
            Ok(())
        })
        .unwrap();
        assert_eq!(read("cgroup.procs"), std::process::id().to_string());
        assert!(v1.make(5).unwrap_err().to_string().contains("no memory cgroup can be made"));
        fs::remove_dir_all(mounts).unwrap();
    }
}
