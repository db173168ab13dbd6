//! The directory in which the processes of a run keep their statistics, one file `stats.<pid>`
//! each.
//!
//! A long run starts more processes than it is good to keep files of: [`RunDir::sweep`] takes in
//! the files of those that have ended. The directory is removed when [`RunDir`] goes; processes
//! that outlive the run keep their mapping of a file without a name.
//!
//! A job of root's may have processes of other users, which belong to it too. So others can enter
//! the directory there, and cannot list it; what is in it lies behind a name that is not to be
//! guessed, and that only the job's processes are told. Such processes may be anybody's: what is in
//! the directory is named through its descriptor, links are not followed, and what all processes
//! share is made here, before anybody knows the name.
//!
//! [`done`] adds up what processes did, those that have ended too.
//!
//! The directory is held by a lock as long as a process of the job is there; [`leftovers`] removes
//! what a run has left that was killed.

pub mod done;
pub mod leftovers;

use crate::failure::Failure;
use crate::outside::{Most, Outside};
use crate::swap::IN_MEMORY;
use done::{Done, Sum};
use overspill::job::{self, JobTable};
use overspill::stats::{Counter, FILE_BYTES, Snapshot, Stats};
use overspill::units::Bytes;
use overspill_os::directory::Directory;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, geteuid, test_kill_process, waitpid};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most processes kept one by one; the others only count in the total. About 6 KiB each.
const PROCESSES_MAX: usize = 1000;
/// Free bytes of a file system in memory that are enough: tens of thousands of files of some 20 KiB
/// each.
const ROOM: u64 = 1 << 30;

/// A file system that keeps files in memory.
const MEMORY: &str = "/dev/shm";
/// How often the statistics of ended processes are taken in. Rarely: each time wakes a core that
/// may be idle.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Most bytes of reports that are passed on.
const REPORTS_MAX: u64 = 1 << 20;

/// A private directory for one run.
#[derive(Debug)]
pub struct RunDir {
    entry: Entry,
    directory: Directory,
    path: PathBuf,
    /// The file of the job's table, empty at first. Locked while this process is there.
    table: OwnedFd,
    /// Processes that have ended and whose files are taken in.
    ended: Vec<Snapshot>,
    /// What all processes have done, those that have ended too.
    done: Done,
    /// Processes that are not kept one by one.
    rest: Snapshot,
    rest_count: u64,
    /// Programs that ended because the process was killed that their engine lived in.
    orphaned: Vec<(String, i32)>,
    /// Memory of which its processes do not know.
    outside: Option<Outside>,
    swept: Instant,
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
    /// Whether the preload library ran in any process.
    pub begun: bool,
    /// What was not managed at most.
    pub unmanaged: Most,
}

impl RunDir {
    /// Makes the directory under `$XDG_RUNTIME_DIR`, which nobody else can enter; where that is not
    /// usable in `/dev/shm`, if there is room, or else in the directory for temporary files: a file
    /// on a disk takes a fork a quarter of its time, and is written there again and again.
    pub fn create(runtime_dir: Option<OsString>) -> Result<RunDir, Failure> {
        let memory = Path::new(MEMORY);
        let mut refusal = None;
        for parent in places(runtime_dir).filter(|dir| dir != memory || has_room(dir)) {
            match create_in(&parent) {
                Ok(run_dir) => return Ok(run_dir),
                Err(error) => refusal = Some((parent, error)),
            }
        }
        let (parent, error) = refusal.expect("at least one directory was tried");
        let parent = parent.display();
        Err(Failure::own(format!(
            "cannot make a directory in '{parent}' ({error}): set TMPDIR to a writable directory"
        )))
    }

    /// The path by which processes of the job find the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The file of the job's table.
    pub fn table(&self) -> &OwnedFd {
        &self.table
    }

    /// Has memory be looked for of which the processes do not know, in the job that has this table
    /// and this budget.
    pub fn watch(&mut self, table: JobTable, memory: Bytes) {
        self.outside = Some(Outside::new(table, &self.path.join(job::FILE_NAME), memory));
    }

    /// Does what is due; how long it is until something is.
    pub fn follow(&mut self) -> Duration {
        if self.swept.elapsed() >= SWEEP_INTERVAL {
            self.sweep();
            self.swept = Instant::now();
        }
        let sweep = SWEEP_INTERVAL.saturating_sub(self.swept.elapsed());
        self.outside.as_mut().map_or(sweep, |outside| outside.follow().min(sweep))
    }

    /// Takes in and removes the files of processes that have ended.
    pub fn sweep(&mut self) {
        for pid in processes(&self.directory) {
            if has_ended(pid) {
                self.take_in(pid);
                // A file that cannot be removed is taken in twice at worst; it never can on a sane
                // file system.
                self.directory.remove(&Stats::file_name(pid));
            }
        }
    }

    /// A signal has ended the process `killed`. Where an engine lived in it, its program has ended
    /// with it.
    pub fn process_killed(&mut self, killed: i32) {
        let pids = processes(&self.directory).into_iter();
        let mut engines = pids.filter_map(|pid| Some((read(&self.directory, pid)?, pid)));
        if let Some((program, pid)) = engines.find(|(program, _)| program.engine as i32 == killed) {
            self.orphaned.push((program.name, pid as i32));
        }
    }

    /// The programs that ended because the process was killed that their engine lived in: name and
    /// number.
    pub fn orphaned(&self) -> &[(String, i32)] {
        &self.orphaned
    }

    /// What processes have reported whose standard error had become something else.
    pub fn reports(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Ok(file) = self.directory.open_shared(job::REPORTS_NAME, OFlags::RDONLY) {
            let _ = File::from(file).take(REPORTS_MAX).read_to_end(&mut text);
        }
        text
    }

    /// Waits until the processes are gone in which the engines of ended programs lived, and reaps
    /// them: they hold swap files and memory a moment longer than the programs. Orphans of the job
    /// are children of this process.
    pub fn wait_for_engines(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        const PAUSE: Duration = Duration::from_micros(200);
        let ended = processes(&self.directory).into_iter().filter(|pid| has_ended(*pid));
        let engine = |pid| Pid::from_raw(read(&self.directory, pid)?.engine as i32);
        let mut engines: Vec<Pid> = ended.filter_map(engine).collect();
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

    /// The processes that live where most of the budget is not managed, with what that was at the
    /// last look.
    pub fn where_little_is_managed(&self) -> Option<Tree> {
        let unmanaged = self.outside.as_ref()?.most_of_budget()?;
        let living = processes(&self.directory).into_iter();
        let processes: Vec<_> = living.filter_map(|pid| read(&self.directory, pid)).collect();
        Some(Tree { processes, unmanaged, ..Tree::default() })
    }

    /// What processes have done by now, and what those that live hold.
    pub fn now(&mut self, lives: impl Fn(u32) -> bool) -> Sum {
        for pid in processes(&self.directory) {
            if let Some(process) = read(&self.directory, pid) {
                self.done.look(pid, process);
            }
        }
        self.done.forget(|pid| self.directory.has(&Stats::file_name(pid)));
        let mut sum = self.done.sum(lives);
        self.note_of_job(&mut sum.total, sum.peak);
        let outside = self.outside.as_ref().map_or(0, |outside| outside.now().0);
        let unmanaged = sum.total.counters.entry(Counter::UnmanagedBytes.name()).or_default();
        *unmanaged = unmanaged.saturating_add(outside);
        sum
    }

    /// Everything known about the tree, living processes included.
    pub fn finish(&mut self) -> Tree {
        processes(&self.directory).into_iter().for_each(|pid| self.take_in(pid));
        self.trim(PROCESSES_MAX);
        let mut tree = Tree {
            processes: std::mem::take(&mut self.ended),
            total: std::mem::take(&mut self.rest),
            left_out: self.rest_count,
            begun: false,
            unmanaged: self.outside.as_ref().map(Outside::most).unwrap_or_default(),
        };
        tree.begun = !tree.processes.is_empty() || self.directory.has(job::BEGUN_NAME);
        tree.processes.iter().for_each(|process| tree.total.merge(process));
        tree.total.name = "total".to_owned();
        let peaks = tree.processes.iter().map(|process| process.get(Counter::ChargedPeakBytes));
        self.note_of_job(&mut tree.total, peaks.max().unwrap_or(0));
        tree
    }

    /// What the processes say together, which does not add up; `peak` is what one of them had in
    /// use at most.
    fn note_of_job(&self, total: &mut Snapshot, peak: u64) {
        let Some(job) = JobTable::open(&self.directory) else { return };
        total.pressure = job.pressure();
        if let Some(sum) = total.counters.get_mut(Counter::ChargedPeakBytes.name()) {
            *sum = job.peak().0.max(peak).min(*sum);
        }
    }

    fn take_in(&mut self, pid: u32) {
        let Some(snapshot) = read(&self.directory, pid) else { return };
        self.done.take_in(pid, snapshot.clone());
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
        self.entry.remove();
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A directory that is known by the number of a process, where it stands.
#[derive(Debug)]
struct Entry {
    parent: Directory,
    name: String,
}

impl Entry {
    fn remove(&self) {
        Entry::remove_from(&self.parent, &self.name);
    }

    /// Removes it with all that is in it. Links are removed, not followed.
    fn remove_from(parent: &Directory, name: &str) {
        // A process that outlives the run may make a file just now: then the directory is not empty
        // at first.
        for _ in 0..3 {
            match fs::remove_dir_all(parent.path().join(name)) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    }
}

/// Where directories of runs are made, the best place first.
fn places(runtime_dir: Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let is_ours = |dir: &PathBuf| dir.is_absolute() && !geteuid().is_root();
    let runtime_dir = runtime_dir.map(PathBuf::from).filter(is_ours);
    runtime_dir.into_iter().chain([PathBuf::from(MEMORY), std::env::temp_dir()])
}

/// Processes that keep statistics in a directory, and those that have.
pub fn processes(directory: &Directory) -> Vec<u32> {
    directory.names().filter_map(|name| name.strip_prefix("stats.")?.parse().ok()).collect()
}

/// What a process has left there, which may be another user's: a file, if it is one.
pub fn read(directory: &Directory, pid: u32) -> Option<Snapshot> {
    let file = directory.open_file(Stats::file_name(pid).as_str(), OFlags::RDONLY).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(FILE_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Snapshot::from_bytes(&bytes)
}

fn has_ended(pid: u32) -> bool {
    Pid::from_raw(pid as i32).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Whether a directory is on a file system in memory that has room for the files of all processes
/// which end between two sweeps: what does not fit there would be SIGBUS for whoever counts.
fn has_room(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| {
        let is_in_memory = IN_MEMORY.contains(&(fs.f_type as u64 & 0xffff_ffff));
        is_in_memory && fs.f_bavail.saturating_mul(fs.f_bsize as u64) >= ROOM
    })
}

/// Makes the directory, with what all processes share in it. It gets its name when it is locked, as
/// one of a run that was killed has that name without a lock.
fn create_in(parent: &Path) -> io::Result<RunDir> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let [public, secret] =
        [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| random[at + byte])));
    let (name, secret) =
        (format!("overspill-{}-{public:016x}", std::process::id()), format!("{secret:016x}"));
    let parent_path = fs::canonicalize(parent)?;
    let parent = Directory::trusted(parent_path.as_path())?;
    let entry = Entry { parent, name: format!(".{name}") };
    let made = fill(&entry, &secret)
        .and_then(|made| entry.parent.rename(&entry.name, &name).map(|()| made))
        .inspect_err(|_| entry.remove());
    let (directory, table) = made?;
    let path = parent_path.join(&name).join(secret);
    Ok(RunDir {
        entry: Entry { name, ..entry },
        directory,
        path,
        table,
        ended: Vec::new(),
        done: Done::default(),
        rest: Snapshot::default(),
        rest_count: 0,
        orphaned: Vec::new(),
        outside: None,
        swept: Instant::now(),
    })
}

fn fill(entry: &Entry, secret: &str) -> Result<(Directory, OwnedFd), Errno> {
    // Whoever knows the names may add files there, and remove his own.
    let (enter, add, shared) =
        if geteuid().is_root() { (0o711, 0o1733, 0o666) } else { (0o700, 0o700, 0o600) };
    let outer = entry.parent.make_directory(&entry.name, enter)?;
    let directory = outer.make_directory(secret, add)?;
    let table = directory.make_file(job::FILE_NAME, shared)?;
    JobTable::mark_attended(table.as_fd())?;
    directory.make_file(job::REPORTS_NAME, shared)?;
    Ok((directory, table))
}

impl Tree {
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
    const NOBODY: u32 = (1 << 22) + 1;

    fn keep(dir: &RunDir, pid: u32, faults: u64) -> PathBuf {
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
        let alive = keep(&dir, std::process::id(), 7);
        fs::write(dir.path().join("stats.x"), "").unwrap();
        fs::write(dir.path().join(format!("stats.{}", NOBODY + 1)), "no statistics").unwrap();
        dir.sweep();
        dir.sweep();
        assert!(!ended.exists() && alive.exists());
        let tree = dir.finish();
        let faults: Vec<_> = tree.processes.iter().map(|p| p.get(Counter::PgFault)).collect();
        assert_eq!((faults, tree.total.get(Counter::PgFault), tree.left_out), (vec![7, 5], 12, 0));
        assert!(tree.begun);
    }

    #[test]
    fn only_so_many_are_kept_but_all_are_counted() {
        let mut dir = RunDir::create(None).unwrap();
        let path = keep(&dir, NOBODY, 2);
        for _ in 0..2 * PROCESSES_MAX + 10 {
            dir.take_in(NOBODY);
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
