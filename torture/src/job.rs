//! The job: `overspill run` with the load, the commands that other terminals would give it, and
//! what of it is left at the end.

use crate::plan::Plan;
use crate::table::Table;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The load, compiled.
const LOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/load"));

/// A job that runs, in a directory of its own; killed, and its directory removed, when dropped.
#[derive(Debug)]
pub struct Job {
    pub table: Table,
    child: Child,
    room: PathBuf,
    overspill: PathBuf,
}

impl Job {
    /// Starts the load under overspill.
    pub fn start(plan: &Plan) -> io::Result<Job> {
        let room = plan.scratch.join(format!("overspill-torture.{}", std::process::id()));
        let _ = fs::remove_dir_all(&room);
        for name in ["run", "swap", "more", "work"] {
            fs::create_dir_all(room.join(name))?;
        }
        let load = room.join("load");
        let mut file =
            fs::File::options().write(true).create(true).truncate(true).mode(0o755).open(&load)?;
        io::Write::write_all(&mut file, LOAD)?;
        drop(file);
        let table = room.join("table");
        let mut command = Command::new(&plan.overspill);
        command
            .args(["run", "--fault", &plan.fault.to_string()])
            .args(["--memory", &format!("{}M", plan.memory_mib), "--swap"])
            .arg(room.join("swap"))
            .arg("--stats-json")
            .arg(room.join("stats.json"))
            .args(plan.set.iter().flat_map(|set| ["--set", set]))
            .arg("--")
            .arg(&load)
            .arg(&table)
            .args([plan.processes.to_string(), plan.process_mib.to_string()])
            .args([plan.threads.to_string(), plan.seed.to_string(), plan.inside()])
            .current_dir(room.join("work"))
            .env("OVERSPILL_RUNTIME_DIR", room.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(room.join("stderr"))?);
        let table = Table::create(&table)?;
        let child = command.spawn()?;
        Ok(Job { table, child, room, overspill: plan.overspill.clone() })
    }

    pub fn room(&self) -> &Path {
        &self.room
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits so long for its end.
    pub fn await_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        await_end(&mut self.child, limit)
    }

    /// What it said on standard error last.
    pub fn said(&self) -> String {
        let text = fs::read_to_string(self.room.join("stderr")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join("\n")
    }

    /// Gives the job a command; its exit status and what it said, or none if it did not end in
    /// time.
    pub fn control(&self, command: &str, args: &[&str], limit: Duration) -> Option<(i32, String)> {
        let said = self.room.join("said");
        let mut control = Command::new(&self.overspill);
        control
            .args([command, "--pid", &self.child.id().to_string()])
            .args(args)
            .env("OVERSPILL_RUNTIME_DIR", self.room.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).ok()?);
        let mut child = control.spawn().ok()?;
        let status = await_end(&mut child, limit);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let said = fs::read_to_string(&said).unwrap_or_default().trim().to_owned();
        status.map(|status| (status.code().unwrap_or(128 + status.signal().unwrap_or(0)), said))
    }

    /// The most memory that was in use at once, in MiB, when it has ended.
    pub fn peak_mib(&self) -> Option<u64> {
        let text = fs::read_to_string(self.room.join("stats.json")).ok()?;
        let report: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(report.pointer("/total/counters/charged_peak_bytes")?.as_u64()? >> 20)
    }

    /// All processes of the job, those beside its programs too.
    pub fn processes(&self) -> Vec<i32> {
        let load = self.room.join("load");
        let is_load = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).next() == Some(load.as_os_str().as_encoded_bytes())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_load).collect()
    }

    /// What of it is left although it has ended.
    pub fn left(&self) -> Vec<String> {
        let mut left: Vec<_> =
            self.processes().iter().map(|pid| format!("process {pid}")).collect();
        for name in ["run", "swap", "more"] {
            let entries = fs::read_dir(self.room.join(name)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left
    }

    /// Kills what is left of it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        for _ in 0..100 {
            let processes = self.processes();
            for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            if processes.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.room);
    }
}

fn await_end(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended => return ended.ok().flatten(),
        }
    }
}
