//! Disks that have no room for a while.
//!
//! Where the swap files lie on a small file system of their own (`--swap`), a file takes what room
//! is left there. Elsewhere others need the room, and to mount something takes a right: there the
//! processes that write a job's swap files may not write files beyond a limit (RLIMIT_FSIZE), as
//! where a quota is used up. Either way space cannot be set aside; with a limit writes fail, too.

use crate::job::Job;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Up to where files can be written meanwhile: an engine takes no smaller one for a device, and the
/// load itself writes smaller ones.
const ROOM_BYTES: u64 = 1 << 20;
/// How long there may be no room at all before processes may be killed for want of it: half of
/// `oom.wait`.
const ENDURED: Duration = Duration::from_secs(5);
/// The largest file system that is filled: one of this size is nobody else's.
const LARGEST_BYTES: u64 = 1 << 30;
/// Room is taken in steps of these.
const STEPS: [u64; 3] = [16 << 20, 1 << 20, 4096];

/// A file that takes what room there is on a file system.
#[derive(Debug)]
pub struct Ballast {
    file: File,
    bytes: u64,
}

impl Ballast {
    /// An empty one. Its name goes at once, so that its room comes back with its end.
    ///
    /// # Errors
    /// Those of the file system; where it is so large that others may use it.
    pub fn new(directory: &Path) -> io::Result<Ballast> {
        let path = directory.join(format!("overspill-ballast.{}", std::process::id()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        let system = fstatvfs(&file)?;
        if system.f_blocks.saturating_mul(system.f_frsize) > LARGEST_BYTES {
            return Err(io::Error::other(format!(
                "the file system of {} is larger than 1 GiB, and not filled: name a small one with \
                 --swap, or none",
                directory.display()
            )));
        }
        Ok(Ballast { file, bytes: 0 })
    }

    /// Takes what room there is now.
    fn fill(&mut self) {
        for step in STEPS {
            while allocate(&self.file, self.bytes, step).is_ok() {
                self.bytes += step;
            }
        }
    }
}

fn allocate(file: &File, at: u64, bytes: u64) -> Result<(), Errno> {
    fallocate(file, FallocateFlags::empty(), at, bytes)
}

/// Disks that are full.
#[derive(Debug)]
pub struct FullDisks {
    since: Instant,
    lasts: Duration,
    ballast: Option<Ballast>,
}

impl FullDisks {
    /// From now on they are, for so long.
    ///
    /// # Errors
    /// As of [`Ballast::new`].
    pub fn begin(job: &Job, lasts: Duration) -> io::Result<FullDisks> {
        let ballast = job.own_file_system().map(Ballast::new).transpose()?;
        let mut full = FullDisks { since: Instant::now(), lasts, ballast };
        full.hold(job);
        Ok(full)
    }

    pub fn is_over(&self) -> bool {
        self.since.elapsed() >= self.lasts
    }

    /// What has become free since is taken, too, and processes that have come since are limited.
    /// One without a device is left alone: it would take what it can write now for the size of the
    /// file.
    pub fn hold(&mut self, job: &Job) {
        if let Some(ballast) = &mut self.ballast {
            return ballast.fill();
        }
        let limit = Rlimit { current: Some(ROOM_BYTES), ..getrlimit(Resource::Fsize) };
        for pid in job.with_devices() {
            let _ = limit_files(pid, limit);
        }
    }

    /// There is room again. Whether that was soon enough for nobody to be killed.
    pub fn end(self, job: &Job) -> bool {
        let limit = getrlimit(Resource::Fsize);
        // A child may be made while its parent is looked for, and then has what that had.
        let mut clean_passes = if self.ballast.is_some() { 2 } else { 0 };
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
