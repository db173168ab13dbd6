//! A job that runs while others look at it or change it, and the commands that do.

use crate::process::{Outcome, run, wait_until};
use crate::scratch::Scratch;
use crate::{TIME_LIMIT, clean, overspill};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A job that runs, and the directory of its socket; killed when dropped.
#[derive(Debug)]
pub struct Job {
    /// `overspill run`.
    pub child: Child,
    /// Where its socket is.
    pub runtime: PathBuf,
    overspill: &'static Path,
}

impl Job {
    /// `overspill run OPTIONS -- COMMAND`, which can be reached when this returns; `None` where
    /// nothing can be run here. Before the options there may be variables, as `NAME=VALUE`.
    pub fn start(scratch: &Scratch, name: &str, options: &[&str], command: &[&str]) -> Option<Job> {
        // Not in the target directory: the address of a socket is short, and tests make some
        // themselves.
        let runtime =
            std::env::temp_dir().join(format!("overspill-control.{}.{name}", std::process::id()));
        let _ = fs::remove_dir_all(&runtime);
        Job::start_in(scratch, runtime, options, command)
    }

    /// The same, with its socket in a directory that other jobs may use.
    pub fn start_in(
        scratch: &Scratch,
        runtime: PathBuf,
        options: &[&str],
        command: &[&str],
    ) -> Option<Job> {
        let overspill = overspill(scratch)?;
        let mut run = Command::new(overspill);
        clean(&mut run);
        let is_variable = |option: &&&str| option.starts_with("OVERSPILL_");
        let (variables, options) = options.split_at(options.iter().take_while(is_variable).count());
        run.envs(variables.iter().filter_map(|variable| variable.split_once('=')))
            .arg("run")
            .args(options)
            .arg("--")
            .args(command)
            .env("OVERSPILL_RUNTIME_DIR", &runtime);
        run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut job = Job { child: run.spawn().unwrap(), runtime, overspill };
        let ready = wait_until(TIME_LIMIT, || {
            job.socket().exists() || job.child.try_wait().unwrap().is_some()
        });
        assert!(ready, "there is no socket");
        Some(job)
    }

    /// [`start`](Job::start) with `churn` of `tests/semantics`, which has begun when this returns.
    pub fn churn(
        scratch: &Scratch,
        name: &str,
        options: &[&str],
        arguments: &[&str],
    ) -> Option<Job> {
        Job::program(scratch, name, options, "churn.c", arguments)
    }

    /// The same with another program there that says when it has begun.
    pub fn program(
        scratch: &Scratch,
        name: &str,
        options: &[&str],
        program: &str,
        arguments: &[&str],
    ) -> Option<Job> {
        let program = scratch.program(program);
        let command: Vec<_> =
            [program.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        let mut job = Job::start(scratch, name, options, &command)?;
        let mut line = String::new();
        let stdout = job.child.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        Some(job)
    }

    /// Number of its `overspill run`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join(format!("{}.sock", self.pid()))
    }

    /// `overspill ARGUMENTS`, which looks for sockets where that of this job is.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.overspill);
        clean(&mut command).args(arguments).env("OVERSPILL_RUNTIME_DIR", &self.runtime);
        command
    }

    /// How that ends.
    pub fn ask(&self, arguments: &[&str]) -> Outcome {
        run(&mut self.command(arguments), TIME_LIMIT)
    }

    /// `overspill set --pid PID ARGUMENTS`.
    pub fn set(&self, pid: u32, arguments: &[&str]) -> Outcome {
        self.ask(&[&["set", "--pid", &pid.to_string()], arguments].concat())
    }

    /// Sends bytes to the socket and reads what comes back.
    pub fn say(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// What the job says of its budget.
    pub fn budget(&self) -> Value {
        let request = format!("{{\"version\":1,\"pid\":{},\"request\":\"budget\"}}\n", self.pid());
        let answer = self.say(request.as_bytes());
        let answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in {answer}"));
        answer["reply"]["budget"].clone()
    }

    /// Process number and share of the budget of each process.
    pub fn processes(&self) -> Vec<(u32, String, u64)> {
        let budget = self.budget();
        let processes = budget["largest"].as_array().unwrap_or_else(|| panic!("{budget}"));
        let number = |value: &Value| value.as_u64().unwrap();
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        let of = |process: &Value| {
            (
                number(&process["pid"]) as u32,
                name(&process["name"]),
                number(&process["target_bytes"]),
            )
        };
        processes.iter().map(of).collect()
    }

    /// Sends a signal to a process of the job and to all processes that engines live in, as a
    /// freezer does. When it was to stop them, they stand still when this returns: one thread takes
    /// the signal for all, and gets a processor when it does.
    pub fn signal_with_engines(&self, process: u32, signal: Signal) {
        let processes: Vec<_> = self.engines().chain([process]).collect();
        for pid in &processes {
            kill_process(Pid::from_raw(*pid as i32).unwrap(), signal).unwrap();
        }
        let stopped = || processes.iter().all(|pid| stands_still(*pid));
        assert!(signal != Signal::STOP || wait_until(TIME_LIMIT, stopped), "it was not stopped");
    }

    /// The processes beside those of the job, in which their engines live: children of its
    /// `overspill run`, by that name.
    pub fn engines(&self) -> impl Iterator<Item = u32> + use<> {
        let parent = self.pid().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(
            move |pid: &u32| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                // "PID (NAME) STATE PARENT ..."
                let mut fields = stat.split(' ').skip(1);
                fields.next() == Some("(overspill)") && fields.nth(1) == Some(&parent)
            },
        )
    }

    /// Sends a signal to its `overspill run`.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the end; status, standard output and standard error.
    pub fn end(mut self) -> (i32, String, String) {
        let mut status = None;
        let ended = wait_until(TIME_LIMIT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "the job does not end");
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(!self.socket().exists(), "the socket is removed");
        (status.unwrap().code().unwrap_or(-1), stdout, stderr)
    }

    /// Ends churn by a signal that overspill passes on, and checks that it found nothing wrong.
    pub fn end_churn(self) {
        self.signal(Signal::TERM);
        let (status, stdout, stderr) = self.end();
        assert!(
            status == 0 && stdout.ends_with("all ok\n") && stderr.is_empty(),
            "{status}\n{stdout}\n{stderr}"
        );
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.pid() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// Checks that a command ended with a status and one sentence, in which all `parts` are.
pub fn refused(outcome: &Outcome, status: i32, parts: &[&str]) {
    let said = &outcome.stderr;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "'{part}' is not in: {said}"));
    assert!(status == 2 || said.lines().count() == 1, "not one sentence: {said}");
}

/// Whether all threads of a process are stopped.
fn stands_still(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.map(|thread| fs::read_to_string(thread.path().join("stat"))).all(|stat| {
        // After the name, which may have a bracket of its own.
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    })
}
