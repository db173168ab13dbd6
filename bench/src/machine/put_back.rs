//! A process that puts back what a measurement changes on the machine: swap space, a cgroup,
//! settings of the kernel.
//!
//! It is told beforehand what that will be, and waits until nobody holds the other end of its
//! standard input any more: then the measurement is done or has failed, which is said there first,
//! or was killed. It is in a process group of its own, which the interrupt key of a terminal does
//! not reach. Its standard error is that of who started it, so that who reads that to its end waits
//! for both.
//!
//! Swap belongs to the whole machine: who changes it ([`PutBack::alone`]) holds a lock on the
//! kernel's table of it until it is as it was, so that a second bench waits.

use super::cgroup::Cgroup;
use super::kernel_swap::{SWAPS, command, path, read_file, swaps};
use crate::measure::child::{self, NO_PROCESS};
use crate::measure::*;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "put-back";
/// How long the kernel may take to let a cgroup go whose last process has been killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a swapon may go on of a measurement that was killed.
const LAST_STEP: Duration = Duration::from_secs(1);

/// How long another bench may have the lock of the kernel's table of swap.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(120);
/// What the process says when it has begun; otherwise it says why not.
const BEGUN: &str = "begun";
/// What it is told at the end.
const END: &str = "end";

/// Files of the kernel, and what is written to them.
type Values = Vec<(PathBuf, String)>;

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PutBack {
    /// Block devices that are taken out of use as swap.
    pub devices: Vec<PathBuf>,
    /// Files that are taken out of use as swap, and removed, and directories with all that is in
    /// them.
    pub files: Vec<PathBuf>,
    pub cgroup: Option<PathBuf>,
    /// What is written last to files of the kernel, in this order.
    pub writes: Values,
    /// Files of the kernel that get back what they hold when this begins, before the others.
    pub keep: Vec<PathBuf>,
    /// Wait until no other bench changes the machine's swap, and have others wait meanwhile.
    pub alone: bool,
}

impl PutBack {
    /// A cgroup, if there is to be one.
    pub fn cgroup(cgroup: Option<&Cgroup>) -> PutBack {
        PutBack { cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()), ..PutBack::default() }
    }

    /// Files that are removed.
    pub fn files(files: impl Into<Vec<PathBuf>>) -> PutBack {
        PutBack { files: files.into(), ..PutBack::default() }
    }
}

/// The process, for as long as there may be something to put back.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// Starts it, and waits until it has begun.
    pub fn start(what: &PutBack) -> Result<Guard, Failure> {
        let what = serde_json::to_string(what).map_err(Failure::of)?;
        let mut command = child::myself([SUBCOMMAND.as_ref(), OsStr::new(&what)])?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut guard = Guard(command.spawn().failing(NO_PROCESS)?);
        let mut said = String::new();
        let stdout = guard.0.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut said).failing(NO_PROCESS)?;
        match said.trim() {
            BEGUN => Ok(guard),
            "" => Err(Failure::new("the process that puts everything back did not begin")),
            why => Err(Failure::new(why)),
        }
    }

    /// Has a group of processes killed, should this process be killed before [`Guard::finish`].
    pub fn watch(&mut self, group: Pid) {
        // A guard that does not listen has failed, which `finish` tells.
        let _ = self.0.stdin.as_mut().map(|stdin| writeln!(stdin, "{}", group.as_raw_nonzero()));
    }

    /// Has everything put back, and waits for it.
    pub fn finish(mut self) -> Result<(), Failure> {
        // If it cannot be told that this is the end it takes a little longer.
        let _ = self.0.stdin.take().map(|mut stdin| stdin.write_all(END.as_bytes()));
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Failure::new("not everything could be put back as it was")),
        }
    }
}

/// Does something, and has everything put back that it changes. What went wrong first is told
/// first.
pub fn around<T>(
    what: &PutBack,
    work: impl FnOnce(&mut Guard) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut guard = Guard::start(what)?;
    let done = work(&mut guard);
    let put_back = guard.finish();
    let done = done?;
    put_back?;
    Ok(done)
}

/// Waits for the end of standard input, and puts everything back.
pub fn run(what: &str) -> Result<(), Failure> {
    let what: PutBack = serde_json::from_str(what).failing("what is to be put back")?;
    // 1. Others wait, or this does. Who does not listen to that is gone, as is seen next.
    let begun = begin(&what);
    let say = begun.as_ref().map_or_else(|failure| failure.to_string(), |_| BEGUN.to_owned());
    let _ = write_line(&say);
    let Ok((_lock, kept)) = begun else { return Ok(()) };
    // 2. The end of the measurement. Who cannot be listened to is gone too.
    let mut said = String::new();
    let _ = std::io::stdin().lock().read_to_string(&mut said);
    if !said.ends_with(END) {
        // Those that have ended already are not there any more.
        let groups = said.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        groups.for_each(|group| _ = kill_process_group(group, Signal::KILL));
        sleep(LAST_STEP);
        wait_for_commands(&[&what.devices[..], &what.files].concat());
    }
    // 3. Everything.
    let devices = what.devices.iter().map(|device| swap_off(device));
    let files = what.files.iter().map(|file| remove_swap(file));
    let cgroup = what.cgroup.iter().map(|cgroup| remove(cgroup, |cgroup| fs::remove_dir(cgroup)));
    let writes = kept.iter().chain(&what.writes);
    let writes = writes.map(|(file, value)| write_back(file, value, &what.devices));
    // All of it, whatever goes wrong with one.
    devices.chain(files).chain(cgroup).chain(writes).collect::<Vec<_>>().into_iter().collect()
}

/// A lock that keeps others waiting, where there is to be one, and what is to be kept: only now, as
/// another may have changed that.
fn begin(what: &PutBack) -> Result<(Option<File>, Values), Failure> {
    let lock = what.alone.then(|| lock(Path::new(SWAPS), PATIENCE_WITH_OTHERS)).transpose()?;
    let kept = what.keep.iter().map(|file| Ok((file.clone(), read_file(file)?)));
    Ok((lock, kept.collect::<Result<_, Failure>>()?))
}

/// Tries something again and again, for as long as patience lasts.
fn persistently<E: Display>(
    patience: Duration,
    pause: Duration,
    what: impl Display,
    mut attempt: impl FnMut() -> Result<(), E>,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > patience => return Err(error).failing(what),
            Err(_) => sleep(pause),
        }
    }
}

/// A lock that is held for as long as the file is open.
fn lock(file: &Path, patience: Duration) -> Result<File, Failure> {
    let open = File::open(file).failing(format_args!("'{}' cannot be locked", file.display()))?;
    let busy = "another overspill-bench changes the kernel's swap: run one after the other";
    persistently(patience, Duration::from_millis(20), busy, || open.try_lock())?;
    Ok(open)
}

/// Waits until no command is at work on one of these any more: a mkswap(8) or swapon(8) outlives
/// who started it.
fn wait_for_commands(files: &[PathBuf]) {
    let began = Instant::now();
    while began.elapsed() < PATIENCE && files.iter().any(|file| is_an_argument(file)) {
        sleep(Duration::from_millis(20));
    }
}

/// Whether a process of another kind than this has a file on its command line.
fn is_an_argument(file: &Path) -> bool {
    let lines = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let names = |line: &Vec<u8>| {
        let mut words = line.split(|byte| *byte == 0);
        let is_this = words.clone().nth(1) == Some(SUBCOMMAND.as_bytes());
        !is_this && words.any(|word| word == file.as_os_str().as_encoded_bytes())
    };
    lines.into_iter().any(|line| names(&line))
}

/// Takes a file or device out of use, if it is in use. The kernel refuses that while it is still
/// about to come into use.
fn swap_off(file: &Path) -> Result<(), Failure> {
    persistently(PATIENCE, Duration::from_millis(100), "swap space stays in use", || {
        if swaps().iter().any(|(used, ..)| used == file) {
            command("swapoff", &[path(file)?])?;
        }
        Ok::<_, Failure>(())
    })
}

/// Takes a file out of use, if it is in use, and removes it, if it is there, or a directory.
fn remove_swap(file: &Path) -> Result<(), Failure> {
    swap_off(file)?;
    // One that is no directory is removed as a file, also a link to one.
    remove(file, |file| match fs::symlink_metadata(file)?.is_dir() {
        true => fs::remove_dir_all(file),
        false => fs::remove_file(file),
    })
}

/// Removes what is there. The kernel may have a use for a cgroup a moment longer, and a program
/// that was killed may write to a folder.
fn remove(path: &Path, remove: fn(&Path) -> io::Result<()>) -> Result<(), Failure> {
    persistently(
        PATIENCE,
        Duration::from_millis(10),
        format_args!("'{}' cannot be removed", path.display()),
        || match remove(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        },
    )
}

/// Writes a value to a file of the kernel. The kernel may have a use for it a moment longer, and a
/// device may have come into use as swap only now.
fn write_back(file: &Path, value: &str, devices: &[PathBuf]) -> Result<(), Failure> {
    let what = format!("'{value}' cannot be written to '{}'", file.display());
    persistently(PATIENCE, Duration::from_millis(10), what, || {
        fs::write(file, value)
            .inspect_err(|_| devices.iter().for_each(|device| drop(swap_off(device))))
    })
}

#[cfg(test)]
mod tests {
    use super::super::swap_dir::make;
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_there_is_removed_and_what_is_not_is_no_failure() {
        let dir = std::env::temp_dir().join(format!("overspill-put-back-{}", std::process::id()));
        let file = dir.join("swap");
        fs::create_dir_all(&dir).unwrap();
        make(&file).unwrap();
        assert!(make(&file).is_err());
        for _ in 0..2 {
            remove_swap(&file).unwrap();
            assert!(!file.exists());
        }
        make(&dir.join("input")).unwrap();
        for _ in 0..2 {
            remove_swap(&dir).unwrap();
            assert!(!dir.exists());
        }
    }

    #[test]
    fn a_command_at_work_is_seen_by_its_arguments() {
        let file = Path::new("/no/such/directory/987654321");
        assert!(!is_an_argument(file));
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000", "sh"]).arg(file).process_group(0);
        let mut shell = shell.spawn().unwrap();
        let began = Instant::now();
        let wait_until = |seen: bool| {
            while is_an_argument(file) != seen {
                assert!(began.elapsed() < PATIENCE);
            }
        };
        wait_until(true);
        kill_process_group(Pid::from_raw(shell.id() as i32).unwrap(), Signal::KILL).unwrap();
        shell.wait().unwrap();
        // A copy of the shell that was to become the other program may end a moment later.
        wait_until(false);
    }

    fn file(name: &str, holds: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("overspill-{name}-{}", std::process::id()));
        fs::write(&file, holds).unwrap();
        file
    }

    #[test]
    fn one_has_the_lock_until_it_is_done() {
        let file = file("put-back-lock", "");
        let attempt = |patience| lock(&file, patience);
        let first = attempt(PATIENCE).unwrap();
        let taken = attempt(Duration::ZERO).unwrap_err();
        assert!(taken.to_string().starts_with("another overspill-bench"));
        drop(first);
        // A process that another test makes just now has the lock until it executes its program.
        attempt(PATIENCE).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(attempt(PATIENCE).unwrap_err().to_string().contains("cannot be locked"));
    }

    #[test]
    fn what_a_file_held_is_written_back() {
        let file = file("put-back-setting", "lzo\n");
        let value = read_file(&file).unwrap();
        fs::write(&file, "lz4").unwrap();
        write_back(&file, &value, &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "lzo");
        fs::remove_file(&file).unwrap();
    }
}
