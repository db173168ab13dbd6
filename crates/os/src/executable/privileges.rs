//! Whether starting a program switches credentials: the dynamic loader then ignores LD_PRELOAD
//! (AT_SECURE).

use rustix::fs::{Stat, StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getegid, geteuid, getgid, getuid};
use std::path::Path;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Who starts the program, and under what restrictions.
#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    euid: u32,
    gid: u32,
    egid: u32,
    /// The set-ID bits have no effect: no_new_privs, or a mount with nosuid.
    bits_ignored: bool,
    /// File capabilities have no effect: a mount with nosuid.
    capabilities_ignored: bool,
}

/// Why the loader would ignore LD_PRELOAD for this file; `None` if it would not.
pub fn switch(path: &Path, stat: &Stat) -> Option<&'static str> {
    let nosuid = statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID));
    let caller = Caller {
        uid: getuid().as_raw(),
        euid: geteuid().as_raw(),
        gid: getgid().as_raw(),
        egid: getegid().as_raw(),
        bits_ignored: nosuid || rustix::thread::no_new_privs().unwrap_or(false),
        capabilities_ignored: nosuid,
    };
    let mut capability = [0; 24];
    let len = getxattr(path, "security.capability", &mut capability[..]).unwrap_or(0);
    decide(caller, stat.st_mode, stat.st_uid, stat.st_gid, grants(&capability[..len.min(24)]))
}

fn decide(caller: Caller, mode: u32, owner: u32, group: u32, grants: bool) -> Option<&'static str> {
    let honoured = !caller.bits_ignored;
    let euid = if honoured && mode & SET_USER_ID != 0 { owner } else { caller.euid };
    // The set-group-ID bit without the execute bit of the group once meant mandatory locking.
    let set_group = mode & SET_GROUP_ID != 0 && mode & GROUP_EXECUTE != 0;
    let egid = if honoured && set_group { group } else { caller.egid };
    if euid != caller.uid {
        Some("is set-user-ID")
    } else if egid != caller.gid {
        Some("is set-group-ID")
    } else if grants && !caller.capabilities_ignored && caller.uid != 0 {
        Some("has file capabilities")
    } else {
        None
    }
}

/// Whether a security.capability attribute gives anything: its effective flag, or any permitted
/// capability.
fn grants(attribute: &[u8]) -> bool {
    // struct vfs_cap_data: a word of version and flags, then pairs of permitted and inheritable
    // words.
    let words = attribute.as_chunks::<4>().0;
    let word = |i: usize| words.get(i).map_or(0, |bytes| u32::from_le_bytes(*bytes));
    word(0) & 1 != 0 || word(1) != 0 || word(3) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller {
        uid: 1000,
        euid: 1000,
        gid: 1000,
        egid: 1000,
        bits_ignored: false,
        capabilities_ignored: false,
    };
    const ROOT: Caller = Caller { uid: 0, euid: 0, gid: 0, egid: 0, ..USER };

    #[test]
    fn set_ids_count_when_they_change_something() {
        assert_eq!(decide(USER, 0o755, 0, 0, false), None);
        assert_eq!(decide(USER, 0o4755, 0, 0, false), Some("is set-user-ID"));
        assert_eq!(decide(USER, 0o4755, 1000, 0, false), None);
        assert_eq!(decide(ROOT, 0o4755, 0, 0, false), None);
        assert_eq!(decide(ROOT, 0o4755, 1000, 0, false), Some("is set-user-ID"));
        assert_eq!(decide(USER, 0o2755, 0, 42, false), Some("is set-group-ID"));
        assert_eq!(decide(USER, 0o2745, 0, 42, false), None);
        assert_eq!(decide(Caller { bits_ignored: true, ..USER }, 0o6755, 0, 0, false), None);
        assert_eq!(decide(Caller { euid: 0, ..USER }, 0o755, 0, 0, false), Some("is set-user-ID"));
    }

    #[test]
    fn capabilities_count_for_users_but_not_for_root() {
        assert_eq!(decide(USER, 0o755, 0, 0, true), Some("has file capabilities"));
        assert_eq!(decide(ROOT, 0o755, 0, 0, true), None);
        assert_eq!(decide(Caller { capabilities_ignored: true, ..USER }, 0o755, 0, 0, true), None);
    }

    #[test]
    fn capability_attributes_are_read() {
        let attribute = |flags: u32, permitted: u32| {
            let words = [0x0200_0000 | flags, permitted, 0, 0, 0];
            words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()
        };
        assert!(grants(&attribute(1, 0)) && grants(&attribute(0, 1 << 13)));
        assert!(!grants(&attribute(0, 0)) && !grants(&[]));
    }
}
