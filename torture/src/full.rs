//! Disks that have no room for a while.
//!
//! No file system is filled, which others use too and which takes a right to mount: the processes
//! that write a job's swap files may not write files beyond a limit (RLIMIT_FSIZE), as where a
//! quota is used up. Writes fail then, and so does setting space aside.

use crate::job::Job;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::time::{Duration, Instant};

/// Up to where files can be written meanwhile: an engine takes no smaller one for a device, and the
/// load itself writes smaller ones.
const ROOM_BYTES: u64 = 1 << 20;
/// How long there may be no room at all before processes may be killed for want of it: half of
/// `oom.wait`.
const ENDURED: Duration = Duration::from_secs(5);

/// Disks that are full.
#[derive(Debug)]
pub struct FullDisks {
    since: Instant,
    lasts: Duration,
}

impl FullDisks {
    /// From now on they are, for so long.
    pub fn begin(job: &Job, lasts: Duration) -> FullDisks {
        let full = FullDisks { since: Instant::now(), lasts };
        full.hold(job);
        full
    }

    pub fn is_over(&self) -> bool {
        self.since.elapsed() >= self.lasts
    }

    /// For processes that have come since, too. One without a device is left alone: it would take
    /// what it can write now for the size of the file.
    pub fn hold(&self, job: &Job) {
        let limit = Rlimit { current: Some(ROOM_BYTES), ..getrlimit(Resource::Fsize) };
        for pid in job.with_devices() {
            let _ = limit_files(pid, limit);
        }
    }

    /// There is room again. Whether that was soon enough for nobody to be killed.
    pub fn end(self, job: &Job) -> bool {
        let limit = getrlimit(Resource::Fsize);
        // A child may be made while its parent is looked for, and then has what that had.
        let mut clean_passes = 0;
        while clean_passes < 2 {
            let lifted = |pid: &i32| limit_files(*pid, limit).is_some_and(|was| was != limit);
            let any = job.processes().iter().filter(|pid| lifted(pid)).count() > 0;
            clean_passes = if any { 0 } else { clean_passes + 1 };
        }
        self.since.elapsed() < ENDURED
    }
}

/// Sets the limit of a process; what it was, if the process is there.
fn limit_files(pid: i32, limit: Rlimit) -> Option<Rlimit> {
    prlimit(Some(Pid::from_raw(pid)?), Resource::Fsize, limit).ok()
}
