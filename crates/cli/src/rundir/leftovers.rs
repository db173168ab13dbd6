//! What a run has left whose `overspill run` was killed: its directory goes when the next command
//! begins.
//!
//! Programs outlive their `overspill run`, and start others that look for its directory. Each of
//! them holds a lock on the table of the job, whichever namespace of processes it is in. Between
//! an exec and the beginning of the new program there is none, but there is its environment.

use super::{Entry, places};
use overspill::job::{FILE_NAME, JobTable};
use overspill_os::Errno;
use overspill_os::directory::Directory;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Removes the directories of this user's runs of which no process is there any more. What cannot
/// be looked at stays.
pub fn sweep() {
    for place in places(std::env::var_os("XDG_RUNTIME_DIR")) {
        if let Ok(path) = fs::canonicalize(place)
            && let Ok(parent) = Directory::trusted(path.as_path())
        {
            sweep_in(&parent, &path);
        }
    }
}

fn sweep_in(parent: &Directory, path: &Path) {
    for name in parent.names().filter(|name| is_name(name)) {
        if is_left(parent, &name, &path.join(&name)) {
            Entry::remove_from(parent, &name);
        }
    }
}

/// Whether a name is that of a run's directory: `overspill-PID-RANDOM`.
fn is_name(name: &str) -> bool {
    let parts = name.strip_prefix("overspill-").and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok()
            && random.len() == 16
            && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn is_left(parent: &Directory, name: &str, path: &Path) -> bool {
    let is_ours = |directory: &Directory| directory.owner() == geteuid().as_raw();
    let Some(outer) = parent.directory(name).ok().filter(is_ours) else { return false };
    let mut inner = outer.names();
    let (Some(secret), None) = (inner.next(), inner.next()) else {
        // It is never seen without the one in it but while it is removed.
        return outer.names().next().is_none();
    };
    let Some(run_dir) = outer.directory(&secret).ok().filter(is_ours) else { return false };
    match run_dir.open_shared(FILE_NAME, OFlags::RDONLY) {
        Ok(table) => !JobTable::is_attended(table.as_fd()) && !is_in_an_environment(path),
        Err(error) => error == Errno::NOENT && !is_in_an_environment(path),
    }
}

/// Whether the variable of any process names a directory in this one: that which `overspill run`
/// has set, or that which the preload library has added.
fn is_in_an_environment(path: &Path) -> bool {
    let named = [&b"RUN_DIR="[..], path.as_os_str().as_bytes(), b"/"].concat();
    let names = |variable: &[u8]| {
        let name = variable.strip_prefix(b"OVERSPILL_").unwrap_or_default();
        name.strip_prefix(b"JOB_").unwrap_or(name).starts_with(&named)
    };
    let has = |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(names);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())
    };
    processes.filter(is_process).any(|entry| fs::read(entry.path().join("environ")).is_ok_and(has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_told() {
        assert!(is_name("overspill-12-0123456789abcdef"));
        for other in [
            "overspill-12",
            "overspill-x-0123456789abcdef",
            "overspill-12-0123",
            ".overspill-12-0123456789abcdef",
            "overspill-12-0123456789abcdeg",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn only_what_nobody_uses_is_swept() {
        let path = std::env::temp_dir().join(format!("overspill-left-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let parent = Directory::open(path.as_path()).unwrap();
        let name = |number: u32| format!("overspill-1-{number:016x}");
        let make = |number| {
            let outer = parent.make_directory(&name(number), 0o711).unwrap();
            outer.make_directory("in", 0o700).unwrap()
        };
        let kept = make(0).make_file(FILE_NAME, 0o600).unwrap();
        JobTable::mark_attended(kept.as_fd()).unwrap();
        make(1).make_file(FILE_NAME, 0o600).unwrap();
        // In the middle of being removed.
        make(2);
        parent.make_directory(&name(3), 0o700).unwrap();
        // What a process that has just begun will look for.
        make(4).make_file(FILE_NAME, 0o600).unwrap();
        let variable = path.join(name(4)).join("in");
        let mut begins = std::process::Command::new("sleep");
        let mut begins = begins.arg("60").env("OVERSPILL_RUN_DIR", variable).spawn().unwrap();
        symlink(path.join(name(0)), path.join(name(5))).unwrap();
        let left = || {
            sweep_in(&parent, &path);
            (0..6).filter(|number| parent.has(&name(*number))).collect::<Vec<u32>>()
        };
        assert_eq!(left(), [0, 4, 5]);
        begins.kill().unwrap();
        begins.wait().unwrap();
        drop(kept);
        assert_eq!(left(), [5], "a link stays");
        fs::remove_dir_all(path).unwrap();
    }
}
