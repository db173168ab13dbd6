//! The file of a directory that all processes of a job use, so that they share its room.
//!
//! Whoever starts the job makes the file, which has no name, and keeps it open. A link in the
//! directory of the run says where it is to be found, as a path below /proc, and which file it is.
//! A process that opens it looks whether it is that one: in a namespace of processes of its own the
//! same path may lead to another. Where it cannot be opened, as by another user, each process has a
//! file of its own.

use overspill_os::Errno;
use overspill_os::directory::Directory;
use overspill_os::io::{File, Identity};
use std::path::Path;

/// What is between the path and the identity, in the target of the link.
const BETWEEN: char = '#';

/// A file that a job has in a directory: it goes with its link when this is dropped, as soon as no
/// process has it open any more.
#[derive(Debug)]
pub struct JobFile {
    run_dir: Directory,
    id: u32,
    _file: File,
}

/// The name of the link for the device of that number.
fn link(id: u32) -> String {
    format!("swap.{id}")
}

impl JobFile {
    /// Makes the file in `directory`, and its link in that of the run. The calling process keeps it
    /// open.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn make(directory: &Path, run_dir: &Directory, id: u32) -> Result<JobFile, Errno> {
        let (file, run_dir) = (File::anonymous_in(directory)?, run_dir.duplicate()?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.raw_fd()?);
        run_dir.remove(&link(id));
        run_dir.make_link(&format!("{path}{BETWEEN}{}", file.identity()?), &link(id))?;
        Ok(JobFile { run_dir, id, _file: file })
    }
}

impl Drop for JobFile {
    fn drop(&mut self) {
        self.run_dir.remove(&link(self.id));
    }
}

/// Opens the file of the device of that number; `None` where that cannot be.
pub fn open(run_dir: &Directory, id: u32) -> Option<File> {
    let target = run_dir.link_target(&link(id)).ok()?.into_string().ok()?;
    let (path, identity) = target.split_once(BETWEEN)?;
    let file = File::open(Path::new(path), false).ok()?;
    let is_it = file.identity().is_ok_and(|found: Identity| found.to_string() == identity);
    // Allotments of a shared file are acquired by locks.
    let locks = file.could_lock(0..1, overspill_os::io::Lock::Write).is_ok();
    (is_it && locks).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn scratch() -> std::path::PathBuf {
        // Not temp_dir(), which may be in memory.
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        path.join("../../target").join(format!("job-file.{}", std::process::id()))
    }

    #[test]
    fn a_file_is_found_by_its_link_and_is_no_other() {
        let directory = scratch();
        fs::create_dir_all(&directory).unwrap();
        let run_dir = Directory::open(&directory).unwrap();
        let link = directory.join(link(3));
        assert!(open(&run_dir, 3).is_none(), "no link");
        let kept = JobFile::make(&directory, &run_dir, 3).unwrap();
        let [first, second] = [0; 2].map(|_| open(&run_dir, 3).unwrap());
        assert_eq!(first.identity(), second.identity());
        // What the link names is another file by now.
        let target = fs::read_link(&link).unwrap().into_os_string().into_string().unwrap();
        let other = File::anonymous_in(&directory).unwrap();
        let (_, identity) = target.split_once(BETWEEN).unwrap();
        let path = format!("/proc/self/fd/{}", other.raw_fd().unwrap());
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(format!("{path}{BETWEEN}{identity}"), &link).unwrap();
        assert!(open(&run_dir, 3).is_none(), "another file");
        drop(kept);
        assert!(fs::symlink_metadata(&link).is_err(), "the link goes with the file");
        fs::remove_dir_all(directory).unwrap();
    }
}
