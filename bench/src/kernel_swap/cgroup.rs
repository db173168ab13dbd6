//! A memory cgroup that bounds the measuring process, in either version of the hierarchy.

use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};

/// Where memory cgroups are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    root: PathBuf,
    limit: &'static str,
    peak: &'static str,
}

impl Hierarchy {
    /// That of this machine, whose hierarchies are mounted at `mounts`.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn find(mounts: &Path) -> Result<Hierarchy, String> {
        const V1_LIMIT: &str = "memory.limit_in_bytes";
        let v1 = mounts.join("memory");
        if v1.join(V1_LIMIT).exists() {
            return Ok(Hierarchy { root: v1, limit: V1_LIMIT, peak: "memory.max_usage_in_bytes" });
        }
        let handed_down = fs::read_to_string(mounts.join("cgroup.subtree_control")).unwrap_or_default();
        if handed_down.split_whitespace().any(|controller| controller == "memory") {
            return Ok(Hierarchy { root: mounts.to_owned(), limit: "memory.max", peak: "memory.peak" });
        }
        Err(format!("it needs memory cgroups, and '{}' has none", mounts.display()))
    }

    /// The group of a name, which need not exist.
    pub fn group(&self, name: &str) -> Cgroup {
        Cgroup { path: self.root.join(name), hierarchy: self.clone() }
    }
}

/// A group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl Cgroup {
    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, and puts this process into it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self, limit: u64) -> Result<(), Failure> {
        let failure =
            |error| Failure::new(format!("no memory cgroup can be made at '{}': {error}", self.path.display()));
        fs::create_dir(&self.path).map_err(failure)?;
        fs::write(self.path.join(self.hierarchy.limit), limit.to_string()).map_err(failure)?;
        join(&self.path).map_err(failure)
    }

    /// The most memory that it has had, in bytes; not all kernels say.
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join(self.hierarchy.peak)).ok()?.trim().parse().ok()
    }

    /// Puts this process back to the root of the hierarchy, so that the group can be removed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn leave(&self) -> Result<(), Failure> {
        join(&self.hierarchy.root).map_err(|error| Failure::new(format!("a memory cgroup cannot be left: {error}")))
    }
}

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
        assert!(Hierarchy::find(&mounts).unwrap_err().contains("has none"));
        fs::write(mounts.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        assert_eq!(
            Hierarchy::find(&mounts),
            Ok(Hierarchy { root: mounts.clone(), limit: "memory.max", peak: "memory.peak" })
        );
        fs::write(memory.join("memory.limit_in_bytes"), "1").unwrap();
        assert_eq!(Hierarchy::find(&mounts).unwrap().root, memory);
        let group = Hierarchy::find(&mounts).unwrap().group("one");
        group.enter(5 << 20).unwrap();
        assert_eq!(fs::read_to_string(memory.join("one/memory.limit_in_bytes")).unwrap(), (5 << 20).to_string());
        assert!(group.enter(5).unwrap_err().to_string().contains("no memory cgroup can be made"));
        group.leave().unwrap();
        assert_eq!(fs::read_to_string(memory.join("cgroup.procs")).unwrap(), std::process::id().to_string());
        fs::remove_dir_all(mounts).unwrap();
    }
}
