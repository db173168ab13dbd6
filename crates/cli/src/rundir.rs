//! The directory in which the processes of a run keep their statistics, one file `stats.<pid>`
//! each.
//!
//! A long run starts more processes than it is good to keep files of: [`RunDir::sweep`] takes in
//! the files of those that have ended. The directory is removed when [`RunDir`] goes; processes
//! that outlive the run keep their mapping of a file without a name.
//!
//! A job of root's may have processes of other users, which belong to it too. So others can enter
//! the directory there, and cannot list it; what is in it lies behind a name that is not to be
//! guessed, and that only the job's processes are told.

use crate::failure::Failure;
use crate::swap::IN_MEMORY;
use overspill::job::{self, JobTable};
use overspill::stats::{Counter, Snapshot};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, geteuid, test_kill_process, waitpid};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most processes kept one by one; the others only count in the total. About 6 KiB each.
const PROCESSES_MAX: usize = 1000;
/// Free bytes of a file system in memory that are enough: tens of thousands of files of some 20 KiB
/// each.
const ROOM: u64 = 1 << 30;

/// A private directory for one run.
#[derive(Debug)]
pub struct RunDir {
    /// What is known by the number of this process, and the directory in it.
    outer: PathBuf,
    path: PathBuf,
    /// Processes that have ended and whose files are taken in.
    ended: Vec<Snapshot>,
    /// What they have done, all together, but not what they held.
    done: Snapshot,
    /// Processes that are not kept one by one.
    rest: Snapshot,
    rest_count: u64,
    /// Programs that ended because the process was killed that their engine lived in.
    orphaned: Vec<(String, i32)>,
}

/// The statistics of a process tree.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Tree {
    /// Each process, the one with most faults first.
    pub processes: Vec<Snapshot>,
    /// All of them added up, those left out included.
    pub total: Snapshot,
    /// Processes beyond the number that is kept one by one.
    pub left_out: u64,
}

impl RunDir {
    /// Makes the directory under `$XDG_RUNTIME_DIR`, which nobody else can enter; where that is not
    /// usable in `/dev/shm`, if there is room, or else in the directory for temporary files: a file
    /// on a disk takes a fork a quarter of its time, and is written there again and again.
    pub fn create(runtime_dir: Option<OsString>) -> Result<RunDir, Failure> {
        let is_ours = |dir: &PathBuf| dir.is_absolute() && !geteuid().is_root();
        let runtime_dir = runtime_dir.map(PathBuf::from).filter(is_ours);
        let memory = Some(PathBuf::from("/dev/shm")).filter(|dir| has_room(dir));
        let temp_dir = std::env::temp_dir();
        let mut refusal = None;
        for parent in runtime_dir.into_iter().chain(memory).chain([temp_dir]) {
            match create_in(&parent) {
                Ok((outer, path)) => {
                    let [done, rest] = [Snapshot::default(), Snapshot::default()];
                    return Ok(RunDir {
                        outer,
                        path,
                        ended: Vec::new(),
                        done,
                        rest,
                        rest_count: 0,
                        orphaned: Vec::new(),
                    });
                }
                Err(error) => refusal = Some((parent, error)),
            }
        }
        let (parent, error) = refusal.expect("at least one directory was tried");
        let parent = parent.display();
        Err(Failure::own(format!(
            "cannot make a directory in '{parent}' ({error}): set TMPDIR to a writable directory"
        )))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes in and removes the files of processes that have ended.
    pub fn sweep(&mut self) {
        for (path, pid) in self.files() {
            if Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
                self.take_in(&path);
                // A file that cannot be removed is taken in twice at worst; it never can on a sane
                // file system.
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// A signal has ended the process `killed`. Where an engine lived in it, its program has ended
    /// with it.
    pub fn process_killed(&mut self, killed: i32) {
        let files = self.files().into_iter();
        let engines = files.filter_map(|(path, pid)| read(&path).map(|program| (program, pid)));
        if let Some((program, pid)) =
            engines.into_iter().find(|(program, _)| program.engine as i32 == killed)
        {
            self.orphaned.push((program.name, pid));
        }
    }

    /// The programs that ended because the process was killed that their engine lived in: name and
    /// number.
    pub fn orphaned(&self) -> &[(String, i32)] {
        &self.orphaned
    }

    /// What processes have reported whose standard error had become something else.
    pub fn reports(&self) -> Vec<u8> {
        fs::read(self.path.join(job::REPORTS_NAME)).unwrap_or_default()
    }

    /// Waits until the processes are gone in which the engines of ended programs lived, and reaps
    /// them: they hold swap files and memory a moment longer than the programs. Orphans of the job
    /// are children of this process.
    pub fn wait_for_engines(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        const PAUSE: Duration = Duration::from_micros(200);
        let ended = |pid: i32| {
            Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
        };
        let files = self.files().into_iter().filter(|(_, pid)| ended(*pid));
        let mut engines: Vec<Pid> =
            files.filter_map(|(path, _)| Pid::from_raw(read(&path)?.engine as i32)).collect();
        let since = Instant::now();
        while !engines.is_empty() && since.elapsed() < PATIENCE {
            engines.retain(|engine| match waitpid(Some(*engine), WaitOptions::NOHANG) {
                Ok(None) => true,
                // Neither one that was reaped, nor one that is somebody else's child, is waited
                // for.
                Err(_) => false,
                Ok(Some((_, status))) => {
                    if status.signaled() {
                        self.process_killed(engine.as_raw_nonzero().get());
                    }
                    false
                }
            });
            std::thread::sleep(PAUSE);
        }
    }

    /// What processes have done by now, and what those that live hold; and how many these are.
    pub fn now(&self, lives: impl Fn(u32) -> bool) -> (u64, Snapshot) {
        let (mut total, mut living, mut peak) = (self.done.clone(), 0, 0);
        for (path, pid) in self.files() {
            let Some(process) = read(&path) else { continue };
            peak = process.get(Counter::ChargedPeakBytes).max(peak);
            if lives(pid as u32) {
                living += 1;
                total.merge(&process);
            } else {
                total.merge_done(&process);
            }
        }
        self.note_of_job(&mut total, peak);
        (living, total)
    }

    /// Everything known about the tree, living processes included.
    pub fn finish(&mut self) -> Tree {
        for (path, _) in self.files() {
            self.take_in(&path);
        }
        self.trim(PROCESSES_MAX);
        let mut tree = Tree {
            processes: std::mem::take(&mut self.ended),
            total: std::mem::take(&mut self.rest),
            left_out: self.rest_count,
        };
        tree.processes.iter().for_each(|process| tree.total.merge(process));
        tree.total.name = "total".to_owned();
        let peaks = tree.processes.iter().map(|process| process.get(Counter::ChargedPeakBytes));
        self.note_of_job(&mut tree.total, peaks.max().unwrap_or(0));
        tree
    }

    /// What the processes say together, which does not add up; `peak` is what one of them had in
    /// use at most.
    fn note_of_job(&self, total: &mut Snapshot, peak: u64) {
        let Some(job) = JobTable::open(&self.path.join(job::FILE_NAME)) else { return };
        total.pressure = job.pressure();
        if let Some(sum) = total.counters.get_mut(Counter::ChargedPeakBytes.name()) {
            *sum = job.peak().0.max(peak).min(*sum);
        }
    }

    fn files(&self) -> Vec<(PathBuf, i32)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let pid =
            |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("stats.")?.parse().ok();
        entries.filter_map(|entry| pid(&entry).map(|pid| (entry.path(), pid))).collect()
    }

    fn take_in(&mut self, path: &Path) {
        let Some(snapshot) = read(path) else { return };
        self.done.merge_done(&snapshot);
        self.ended.push(snapshot);
        if self.ended.len() >= 2 * PROCESSES_MAX {
            self.trim(PROCESSES_MAX);
        }
    }

    /// Keeps the processes with most faults, in that order.
    fn trim(&mut self, keep: usize) {
        self.ended.sort_by_key(|process| std::cmp::Reverse(process.get(Counter::PgFault)));
        for process in self.ended.drain(keep.min(self.ended.len())..) {
            self.rest.merge(&process);
            self.rest_count += 1;
        }
    }
}

impl RunDir {
    /// Removes the directory.
    pub fn remove(&self) {
        // A process that outlives the run may make a file just now: then the directory is not empty
        // at first.
        for _ in 0..3 {
            match fs::remove_dir_all(&self.outer) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        self.remove();
    }
}

/// What a process has left there, which may be another user's: a file, if it is one.
pub fn read(path: &Path) -> Option<Snapshot> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    let mut bytes = Vec::new();
    let is_file = file.metadata().ok()?.is_file();
    is_file.then(|| file.read_to_end(&mut bytes).ok()).flatten()?;
    Snapshot::from_bytes(&bytes)
}

/// Whether a directory is on a file system in memory that has room for the files of all processes
/// which end between two sweeps: what does not fit there would be SIGBUS for whoever counts.
fn has_room(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| {
        let is_in_memory = IN_MEMORY.contains(&(fs.f_type as u64 & 0xffff_ffff));
        is_in_memory && fs.f_bavail.saturating_mul(fs.f_bsize as u64) >= ROOM
    })
}

/// Makes a directory that is known by the number of this process, and the one in it.
fn create_in(parent: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let [public, secret] =
        [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| random[at + byte])));
    let name = format!("overspill-{}-{public:016x}", std::process::id());
    let outer = std::path::absolute(parent)?.join(name);
    // Whoever knows the names may add files there, and remove his own.
    let (enter, add) = if geteuid().is_root() { (0o711, 0o1733) } else { (0o700, 0o700) };
    let path = outer.join(format!("{secret:016x}"));
    let made = create_dir(&outer, enter).and_then(|()| create_dir(&path, add));
    if made.is_err() {
        let _ = fs::remove_dir(&outer);
    }
    made.map(|()| (outer, path))
}

/// Makes a directory with exactly these rights.
fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

impl Tree {
    /// Whether no process kept statistics: the preload library ran nowhere.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The budget, as the processes knew it last.
    pub fn budget(&self) -> u64 {
        let budgets = self.processes.iter().map(|process| process.get(Counter::BudgetBytes));
        budgets.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill::stats::Stats;
    use std::os::unix::fs::PermissionsExt;

    /// A number that no process has: beyond the kernel's largest (PID_MAX_LIMIT, 2^22).
    const NOBODY: i32 = (1 << 22) + 1;

    fn keep(dir: &RunDir, pid: i32, faults: u64) -> PathBuf {
        let path = dir.path().join(format!("stats.{pid}"));
        let file =
            fs::OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        let stats = Stats::in_file(std::os::fd::AsFd::as_fd(&file)).unwrap();
        stats.set_name("prog");
        stats.add(Counter::PgFault, faults);
        path
    }

    #[test]
    fn the_directory_is_private_and_goes_with_the_run() {
        let dir = RunDir::create(Some("relative".into())).unwrap();
        let path = dir.path().to_owned();
        let memory = Path::new("/dev/shm");
        let expected = if has_room(memory) { memory.to_owned() } else { std::env::temp_dir() };
        assert!(path.starts_with(&expected));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let modes = if geteuid().is_root() { [0o711, 0o1733] } else { [0o700, 0o700] };
        assert_eq!([path.parent().unwrap(), &path].map(mode), modes, "nobody else can list it");
        keep(&dir, NOBODY, 1);
        drop(dir);
        assert!(!path.exists());
        let nested = RunDir::create(Some("/no/such/place".into())).unwrap();
        assert!(nested.path().starts_with(&expected));
    }

    #[test]
    fn ended_processes_are_taken_in_once() {
        let mut dir = RunDir::create(None).unwrap();
        let ended = keep(&dir, NOBODY, 5);
        let alive = keep(&dir, std::process::id() as i32, 7);
        fs::write(dir.path().join("stats.x"), "").unwrap();
        fs::write(dir.path().join(format!("stats.{}", NOBODY + 1)), "no statistics").unwrap();
        dir.sweep();
        dir.sweep();
        assert!(!ended.exists() && alive.exists());
        let tree = dir.finish();
        let faults: Vec<_> = tree.processes.iter().map(|p| p.get(Counter::PgFault)).collect();
        assert_eq!((faults, tree.total.get(Counter::PgFault), tree.left_out), (vec![7, 5], 12, 0));
        assert!(!tree.is_empty());
    }

    #[test]
    fn only_so_many_are_kept_but_all_are_counted() {
        let mut dir = RunDir::create(None).unwrap();
        let path = keep(&dir, NOBODY, 2);
        for _ in 0..2 * PROCESSES_MAX + 10 {
            dir.take_in(&path);
        }
        fs::remove_file(path).unwrap();
        let tree = dir.finish();
        assert_eq!(
            (tree.processes.len(), tree.left_out),
            (PROCESSES_MAX, PROCESSES_MAX as u64 + 10)
        );
        assert_eq!(tree.total.get(Counter::PgFault), 2 * (2 * PROCESSES_MAX as u64 + 10));
    }
}
