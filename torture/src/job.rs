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

/// What the engines of a job count.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// The most memory that was in use at once.
    pub peak_mib: u64,
    /// Writes to devices that failed.
    pub write_errors: u64,
    /// Processes that were killed for want of room.
    pub oom_kills: u64,
}

impl Figures {
    fn of(report: &serde_json::Value) -> Option<Figures> {
        let counter = |name| report.pointer("/total/counters")?.get(name)?.as_u64();
        Some(Figures {
            peak_mib: counter("charged_peak_bytes")? >> 20,
            write_errors: counter("swap_write_errors")?,
            oom_kills: counter("oom_kill")?,
        })
    }
}

/// A job that runs, in a directory of its own; killed, and its directory removed, when dropped.
#[derive(Debug)]
pub struct Job {
    pub table: Table,
    child: Child,
    room: PathBuf,
    /// Where its first device is, and whether that is a file system of its own.
    swap: PathBuf,
    has_own: bool,
    overspill: PathBuf,
}

impl Job {
    /// Starts the load under overspill.
    pub fn start(plan: &Plan) -> io::Result<Job> {
        let name = format!("overspill-torture.{}", std::process::id());
        let room = plan.scratch.join(&name);
        let swap = plan.swap.as_ref().map_or_else(|| room.join("swap"), |swap| swap.join(&name));
        for directory in [&room, &swap] {
            let _ = fs::remove_dir_all(directory);
        }
        for directory in ["run", "more", "work"].map(|name| room.join(name)).iter().chain([&swap]) {
            fs::create_dir_all(directory)?;
        }
        // As the kernel tells of open files, and wherever the job works.
        let (room, swap) = (room.canonicalize()?, swap.canonicalize()?);
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
            .arg(&swap)
            .arg("--stats-json")
            .arg(room.join("stats.json"))
            .args(plan.settings().iter().flat_map(|set| ["--set", set]))
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
        let (has_own, overspill) = (plan.swap.is_some(), plan.overspill.clone());
        Ok(Job { table, child, room, swap, has_own, overspill })
    }

    /// Where its first device is, if that is a file system of its own.
    pub fn own_file_system(&self) -> Option<&Path> {
        self.has_own.then_some(self.swap.as_path())
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

    /// What its engines have counted, when it has ended.
    pub fn figures(&self) -> Option<Figures> {
        let text = fs::read_to_string(self.room.join("stats.json")).ok()?;
        Figures::of(&serde_json::from_str(&text).ok()?)
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

    /// Those of them that have swap files open, which are the ones that write these.
    pub fn with_devices(&self) -> Vec<i32> {
        let has_open = |pid: &i32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
            let devices = [&self.swap, &self.room.join("more"), &self.room.join("fails")];
            files.any(|file| devices.iter().any(|device| file.starts_with(device)))
        };
        self.processes().into_iter().filter(has_open).collect()
    }

    /// What of it is left although it has ended.
    pub fn left(&self) -> Vec<String> {
        let mut left: Vec<_> =
            self.processes().iter().map(|pid| format!("process {pid}")).collect();
        let directories = [&self.room.join("run"), &self.room.join("more"), &self.swap];
        left.extend(files_in(directories));
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
        for directory in [&self.room, &self.swap] {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// What lies in directories.
fn files_in(directories: [&PathBuf; 3]) -> impl Iterator<Item = String> {
    directories.into_iter().flat_map(|directory| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string())
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_job_leaves_is_found_wherever_it_lies() {
        let room = std::env::temp_dir().join(format!("overspill-left-{}", std::process::id()));
        for name in ["swap", "room/run", "room/more", "room/work"] {
            fs::create_dir_all(room.join(name)).unwrap();
        }
        let job = Job {
            table: Table::create(&room.join("table")).unwrap(),
            child: Command::new("true").spawn().unwrap(),
            room: room.join("room"),
            swap: room.join("swap"),
            has_own: true,
            overspill: "/nowhere/overspill".into(),
        };
        fs::write(room.join("room/work/of-the-load"), "").unwrap();
        assert!(job.left().is_empty(), "{:?}", job.left());
        for name in ["swap/file", "room/run/job", "room/more/file"] {
            let path = room.join(name);
            fs::write(&path, "").unwrap();
            assert_eq!(job.left(), [path.display().to_string()]);
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(room.join("room/run/7")).unwrap();
        assert_eq!(job.left().len(), 1, "a directory is left as well");
        drop(job);
        assert!(!room.join("room").exists() && !room.join("swap").exists());
        fs::remove_dir_all(&room).unwrap();
    }

    #[test]
    fn figures_are_those_of_all_processes_and_a_report_without_them_is_none() {
        let report = |counters| serde_json::json!({ "total": { "counters": counters } });
        let counters = serde_json::json!({
            "charged_peak_bytes": 9 << 20, "swap_write_errors": 2, "oom_kill": 1, "pgfault": 3
        });
        let figures = Figures::of(&report(counters)).unwrap();
        assert_eq!((figures.peak_mib, figures.write_errors, figures.oom_kills), (9, 2, 1));
        assert!(Figures::of(&report(serde_json::json!({ "oom_kill": 1 }))).is_none());
    }
}
