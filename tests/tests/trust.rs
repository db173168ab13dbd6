//! Who is trusted: the directory of a run and its sockets, swap files that others can read, what a
//! job leaves that was killed.

use overspill_tests::command::shown;
use overspill_tests::job::{Job, refused};
use overspill_tests::process::{Outcome, run, wait_until};
use overspill_tests::{Scratch, TIME_LIMIT, clean, is_root, overspill, skipped};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Another user, who has no files.
const OTHER: u32 = 65534;
const AS_OTHER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// `overspill run --memory 16M --no-swap ARGS`.
fn run_with(args: &[&str], variables: &[(&str, &Path)]) -> Option<Outcome> {
    let mut command = Command::new(overspill(&SCRATCH)?);
    clean(&mut command).args(["run", "--memory", "16M"]).args(args);
    command.env_remove("XDG_RUNTIME_DIR").envs(variables.iter().copied());
    Some(run(&mut command, TIME_LIMIT))
}

/// A directory of another user's that everybody can enter, outside of the target directory; only
/// root can give one away.
fn of_another_user(name: &str) -> Option<PathBuf> {
    if !is_root() {
        skipped("only root can give a directory away");
        return None;
    }
    let path = std::env::temp_dir().join(format!("overspill-trust.{}.{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).unwrap();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    Some(path)
}

/// Processes of other users in root's job know its directory and may add files there.
#[test]
fn links_in_the_directory_of_a_job_lead_nowhere() {
    if !is_root() {
        return skipped("only root's job has processes of other users");
    }
    let room = SCRATCH.room("links");
    let victim = room.path.join("victim");
    fs::write(&victim, "a secret of root's\n").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "cd $OVERSPILL_RUN_DIR; for name in swaps swaps.next swap.0 swap.1 reports stats.1; do \
         {AS_OTHER} ln -s {} $name 2>/dev/null; done; cd /; \
         touch {}; exec sleep 60",
        shown(&victim),
        shown(&room.path.join("planted")),
    );
    let swap = room.path.join("swap");
    fs::create_dir(&swap).unwrap();
    let options = ["--memory", "16M", "--no-swap"];
    let Some(mut job) = Job::start(&SCRATCH, "links", &options, &["sh", "-c", &script]) else {
        return;
    };
    assert!(wait_until(TIME_LIMIT, || room.path.join("planted").exists()));
    let pid = job.pid().to_string();
    let outcome = job.ask(&["swapon", "--pid", &pid, shown(&swap)]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    job.signal(Signal::TERM);
    let mut said = String::new();
    std::io::Read::read_to_string(job.child.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(!said.contains("secret"), "{said}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "a secret of root's\n");
}

#[test]
fn a_runtime_directory_of_another_user_is_passed_over() {
    let Some(theirs) = of_another_user("runtime") else { return };
    let list = ["--no-swap", "--", "ls", "-A", shown(&theirs)];
    let variables: &[(&str, &Path)] = &[("XDG_RUNTIME_DIR", &theirs)];
    let Some(outcome) = run_with(&list, variables) else { return };
    let left = fs::read_dir(&theirs).unwrap().count();
    assert_eq!((outcome.status, outcome.stdout.as_str(), left), (0, "", 0), "{outcome:?}");
    let said = "XDG_RUNTIME_DIR is not used";
    assert!(outcome.stderr.contains(said) && outcome.stderr.contains("user 65534"), "{outcome:?}");
    // So is one that everybody may write to.
    chown(&theirs, Some(0), Some(0)).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
    let outcome = run_with(&list, variables).unwrap();
    let said = outcome.stderr.contains("others may write");
    assert!(outcome.stdout.is_empty() && said, "{outcome:?}");
    // A place of one's own is used in silence.
    fs::set_permissions(&theirs, Permissions::from_mode(0o700)).unwrap();
    let outcome = run_with(&list, variables).unwrap();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("overspill\n", ""));
    fs::remove_dir_all(theirs).unwrap();
}

/// A process that is not of its user's job: the directory that its variable names is not used.
#[test]
fn the_directory_of_another_users_run_is_not_used() {
    let Some(theirs) = of_another_user("run") else { return };
    let Some(binary) = overspill(&SCRATCH) else { return };
    let library = binary.with_file_name("liboverspill_preload.so");
    if !library.exists() {
        return skipped("the library is not beside the command");
    }
    let mut command = Command::new("true");
    clean(&mut command).env("LD_PRELOAD", library).env("OVERSPILL_MEMORY", "16777216");
    command.env("OVERSPILL_NO_SWAP", "1").env("OVERSPILL_RUN_DIR", &theirs);
    let outcome = run(&mut command, TIME_LIMIT);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("belongs to user 65534"), "{outcome:?}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0, "root's process made something there");
    fs::remove_dir_all(theirs).unwrap();
}

/// The environment of a process is its user's: what it names is not to be believed.
#[test]
fn a_socket_that_is_a_link_is_not_asked() {
    let Some(theirs) = of_another_user("sockets") else { return };
    let room = std::env::temp_dir().join(format!("overspill-trust.{}.s", std::process::id()));
    let _ = fs::remove_file(&room);
    let listener = UnixListener::bind(&room).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut words = AS_OTHER.split(' ');
    let mut target = Command::new(words.next().unwrap());
    clean(&mut target).args(words).args(["sleep", "60"]).env("OVERSPILL_RUNTIME_DIR", &theirs);
    let mut target = target.stdin(Stdio::null()).current_dir("/").spawn().unwrap();
    let name = || fs::read_to_string(format!("/proc/{}/comm", target.id())).unwrap_or_default();
    assert!(wait_until(TIME_LIMIT, || name() == "sleep\n"));
    symlink(&room, theirs.join(format!("{}.sock", target.id()))).unwrap();
    let outcome = overspill(&SCRATCH).map(|binary| {
        let mut command = Command::new(binary);
        clean(&mut command).args(["set", "--memory", "16M", "--pid", &target.id().to_string()]);
        run(&mut command, TIME_LIMIT)
    });
    target.kill().unwrap();
    target.wait().unwrap();
    if let Some(outcome) = outcome {
        refused(&outcome, 1, &["not of a job"]);
        assert!(listener.accept().is_err(), "somebody else's socket was asked");
    }
    fs::remove_dir_all(theirs).unwrap();
    fs::remove_file(room).unwrap();
}

/// As swapon(8) warns: whoever can read a swap file reads the job's pages.
#[test]
fn swap_files_of_others_are_refused() {
    let room = SCRATCH.room("insecure");
    let file = room.path.join("file");
    fs::write(&file, "").unwrap();
    let run = |device: &str| run_with(&["--swap", device, "--", "true"], &[]);
    let plain = format!("{}:8M", shown(&file));
    for mode in [0o666, 0o644, 0o660, 0o602] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let Some(outcome) = run(&plain) else { return };
        let mode = format!("mode {mode:04o}");
        refused(&outcome, 125, &[&mode, "chmod 0600", "insecure=on"]);
        assert_eq!(fs::metadata(&file).unwrap().len(), 0, "it was written");
    }
    assert_eq!(run(&format!("{plain},insecure=on")).unwrap().status, 0);
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(run(&plain).unwrap().status, 0);
    assert_eq!(run(&format!("{plain},insecure=yes")).unwrap().status, 2);
    if !is_root() {
        return skipped("only root can give a swap file away");
    }
    chown(&file, Some(OTHER), None).unwrap();
    refused(&run(&plain).unwrap(), 125, &["belongs to user 65534", "insecure=on"]);
    assert_eq!(run(&format!("{plain},insecure=on")).unwrap().status, 0);
}

/// A loop device over a file, until this is dropped.
struct Loop {
    device: PathBuf,
}

impl Loop {
    /// None, and a word about it, where there can be none.
    fn over(file: &Path) -> Option<Loop> {
        if !is_root() {
            skipped("only root has block devices");
            return None;
        }
        let outcome = run(Command::new("losetup").args(["--find", "--show"]).arg(file), TIME_LIMIT);
        if outcome.status != 0 {
            skipped(&format!("there are no loop devices here: {}", outcome.stderr));
            return None;
        }
        Some(Loop { device: outcome.stdout.trim_end().into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let outcome = run(Command::new("losetup").arg("--detach").arg(&self.device), TIME_LIMIT);
        assert!(outcome.status == 0 || std::thread::panicking(), "{outcome:?}");
    }
}

/// Its group is the one that the system gives such devices to; everybody is not.
#[test]
fn block_devices_of_everybody_are_refused() {
    let room = SCRATCH.room("everybody");
    let file = room.path.join("file");
    fs::write(&file, vec![0; 8 << 20]).unwrap();
    let Some(under) = Loop::over(&file) else { return };
    // Another name of the device, whose rights are nobody else's business.
    let node = room.path.join("node");
    let number = fs::metadata(&under.device).unwrap().rdev();
    mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, number).unwrap();
    if let Err(error) = fs::File::open(&node) {
        return skipped(&format!("devices cannot be used where the tests run: {error}"));
    }
    let run = |options: &str| {
        run_with(&["--swap", &format!("{}{options}", shown(&node)), "--", "true"], &[])
    };
    for (mode, safe) in [(0o666, "chmod 0660"), (0o644, "chmod 0640"), (0o602, "chmod 0600")] {
        fs::set_permissions(&node, Permissions::from_mode(mode)).unwrap();
        let Some(outcome) = run("") else { return };
        refused(&outcome, 125, &[&format!("mode {mode:04o}"), safe, "insecure=on"]);
        assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0), "it was written");
    }
    assert_eq!(run(",insecure=on").unwrap().status, 0);
    fs::set_permissions(&node, Permissions::from_mode(0o660)).unwrap();
    let outcome = run("").unwrap();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
}

/// Entries of a place that are of the runs of a process.
fn left_in(place: &Path, launcher: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let prefix = format!("overspill-{launcher}-");
    let is_its = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&prefix);
    entries.map(|entry| entry.path()).filter(is_its).collect()
}

#[test]
fn what_a_killed_run_leaves_goes_with_the_next() {
    let Some(mut job) = Job::churn(&SCRATCH, "leftover", &["--memory", "16M"], &["8"]) else {
        return;
    };
    let program = Pid::from_raw(job.processes()[0].0 as i32).unwrap();
    let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let launcher = job.pid();
    let left = || places.iter().flat_map(|place| left_in(place, launcher)).count();
    assert_eq!(left(), 1, "its directory is there");
    job.signal(Signal::KILL);
    job.child.wait().unwrap();
    let next = || {
        let variables: &[(&str, &Path)] = &[("OVERSPILL_RUNTIME_DIR", &job.runtime)];
        let outcome = run_with(&["--no-swap", "--", "true"], variables).unwrap();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    };
    // Its program lives on, and may start others.
    next();
    assert_eq!(left(), 1, "a process of the job uses it");
    assert!(!job.socket().exists(), "nobody listens there any more");
    kill_process(program, Signal::KILL).unwrap();
    let gone = wait_until(TIME_LIMIT, || {
        next();
        left() == 0
    });
    assert!(gone, "the directory is still there");
}

/// Links and what belongs to others are left alone, whatever their names.
#[test]
fn what_is_not_ours_is_not_swept() {
    if !is_root() {
        return skipped("only root can give a directory away");
    }
    let nobody = (1 << 22) + 1;
    let room = SCRATCH.room("swept");
    let kept = room.path.join("kept");
    fs::create_dir_all(kept.join("0123456789abcdef")).unwrap();
    fs::write(kept.join("0123456789abcdef/job"), "").unwrap();
    let link = PathBuf::from(format!("/dev/shm/overspill-{nobody}-0000000000000001"));
    let theirs = PathBuf::from(format!("/dev/shm/overspill-{nobody}-0000000000000002"));
    let _ = (fs::remove_file(&link), fs::remove_dir_all(&theirs));
    symlink(&kept, &link).unwrap();
    fs::create_dir_all(theirs.join("0123456789abcdef")).unwrap();
    fs::write(theirs.join("0123456789abcdef/job"), "").unwrap();
    chown(&theirs, Some(OTHER), None).unwrap();
    let outcome = run_with(&["--no-swap", "--", "true"], &[]);
    let there = [link.is_symlink(), theirs.join("0123456789abcdef/job").exists()];
    let _ = (fs::remove_file(&link), fs::remove_dir_all(&theirs));
    assert!(outcome.is_none() || there == [true; 2], "{there:?}");
    assert!(kept.join("0123456789abcdef/job").exists());
}

/// The addresses that a program prints.
fn addresses(outcome: &Outcome) -> Vec<u64> {
    let address = |line: &str| u64::from_str_radix(line.trim_start_matches("0x"), 16).unwrap();
    outcome.stdout.lines().map(address).collect()
}

#[test]
fn two_runs_have_their_memory_at_different_places() {
    let program = SCRATCH.program("where.c");
    let run = || {
        let args = ["--no-swap", "--fault", "signal", "--", shown(&program)];
        run_with(&args, &[]).map(|outcome| {
            assert_eq!(outcome.status, 0, "{outcome:?}");
            addresses(&outcome)
        })
    };
    let Some(first) = run() else { return };
    let second = run().unwrap();
    // The process, the child of a fork, and what it executes.
    assert!(first.len() == 3 && second.len() == 3, "{first:x?} {second:x?}");
    for run in [&first, &second] {
        assert!(run.iter().all(|address| address.abs_diff(run[0]) < 1 << 30), "{run:x?}");
    }
    assert_ne!(first[0], second[0]);
}
