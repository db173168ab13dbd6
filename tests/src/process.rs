//! Runs of a command with a time limit, after which it is said where every thread hangs.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How often the end of a run is looked for; adds at most this to each.
const POLL: Duration = Duration::from_millis(5);
/// How long output may stay open after the command has ended: something that it started holds it
/// then.
const OUTPUT_LIMIT: Duration = Duration::from_secs(10);

/// How a command ended and what it wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Exit status, or 128 + the signal that killed it.
    pub status: i32,
    /// Standard output; what is no UTF-8 is replaced.
    pub stdout: String,
    /// Standard error; what is no UTF-8 is replaced.
    pub stderr: String,
}

impl Outcome {
    /// What was said, but for the line about memory that is not managed: beside a budget as small
    /// as that of a test, what each process takes is soon much.
    pub fn stderr_without_unmanaged(&self) -> String {
        let lines = self.stderr.split_inclusive('\n');
        lines.filter(|line| !line.starts_with("overspill: up to ")).collect()
    }
}

/// Runs a command without input in a process group of its own.
///
/// Panics with the state of every thread when it takes longer than `limit`, after killing the
/// group.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let mut status = None;
    let ended = wait_until(limit, || {
        status = child.try_wait().expect("the child is ours");
        status.is_some()
    });
    if !ended {
        let state = state_of_tree(child.id());
        kill(&mut child);
        let [stdout, stderr] =
            [stdout, stderr].map(|pipe| pipe.recv_timeout(OUTPUT_LIMIT).unwrap_or_default());
        panic!(
            "{command:?} did not end in {limit:?}\n{state}\nstdout:\n{stdout}\nstderr:\n{stderr}"
        );
    }
    let [stdout, stderr] = [("stdout", stdout), ("stderr", stderr)].map(|(name, pipe)| {
        pipe.recv_timeout(OUTPUT_LIMIT)
            .unwrap_or_else(|_| panic!("{command:?} has ended and its {name} is still open"))
    });
    Outcome { status: status.map_or(-1, shell_status), stdout, stderr }
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        // Nobody listens any more once the run was given up.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Kills the group that [`run`] made.
fn kill(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

/// Waits until something holds; `false` if it did not within the limit.
pub fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !holds() {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Where each thread of a process and of its descendants is.
fn state_of_tree(root: u32) -> String {
    let mut text = String::new();
    let mut tree = vec![root];
    let parents: Vec<(u32, u32)> =
        numbers("/proc").filter_map(|pid| Some((pid, parent(pid)?))).collect();
    for at in 0.. {
        let Some(&pid) = tree.get(at) else { break };
        tree.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child));
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .replace('\0', " ");
        let _ = writeln!(text, "process {pid}: {command}");
        for task in numbers(&format!("/proc/{pid}/task")) {
            let [comm, wchan, syscall, stack] = ["comm", "wchan", "syscall", "stack"].map(|file| {
                let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/{file}"))
                    .unwrap_or_else(|e| e.to_string());
                text.lines().take(6).collect::<Vec<_>>().join(" < ")
            });
            let _ = writeln!(
                text,
                "  thread {task} ({comm}): wchan {wchan}; syscall {syscall}; stack {stack}"
            );
        }
    }
    text
}

/// The entries of a directory of /proc whose names are numbers.
fn numbers(dir: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    // PID (NAME) STATE PPID ...; the name may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Processes that run an executable, or have its memory.
pub fn running(executable: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let runs =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == executable);
    pids.filter(runs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn status_and_output_are_kept_apart() {
        let outcome = run(&mut sh("echo out; echo err >&2; exit 7"), Duration::from_secs(20));
        assert_eq!(
            (outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()),
            (7, "out\n", "err\n")
        );
        assert_eq!(run(&mut sh("kill -KILL $$"), Duration::from_secs(20)).status, 137);
    }

    #[test]
    fn a_run_that_hangs_is_ended_and_described() {
        let began = Instant::now();
        let panic = thread::spawn(|| {
            run(&mut sh("echo begun; sleep 55 & sleep 55"), Duration::from_millis(300))
        });
        let message = *panic.join().unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("did not end") && message.contains("begun"), "{message}");
        assert_eq!(
            message.matches("(sleep)").count(),
            2,
            "both descendants are described: {message}"
        );
        assert!(began.elapsed() < Duration::from_secs(40), "the descendants were killed");
    }
}
