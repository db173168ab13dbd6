//! Memory of processes of the job that do not say what they have.
//!
//! A process with an engine counts all that it has, and a small one what it has got from the C
//! library. The rest nobody in the job knows of: programs that the preload library is not in, such
//! as static ones, and what small processes ask the kernel for directly. All of them descend from
//! this process, as orphans come to it, so it looks now and then.
//!
//! A look costs some microseconds a process, and a hundredth of the time at most; that it is more
//! than is tolerated is made sure of by the kernel's exact figures, which are dearer. What counts
//! is what was there at two looks, one after the other: a child that is about to execute something
//! has the memory of its parent for a moment.

use overspill::job::{JobTable, Said, tolerance};
use overspill::stats::Counter;
use overspill::units::Bytes;
use overspill_os::executable::out_of_reach;
use overspill_os::smaps::{Kinds, MemoryKind};
use overspill_os::thread;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// When to look again: soon at first, as many programs are short, and in the end rarely, since each
/// time wakes a core that may be idle.
const SOON: Duration = Duration::from_millis(20);
const RARELY: Duration = Duration::from_secs(1);
/// As long as there is much to be seen.
const OFTEN: Duration = Duration::from_millis(500);
/// What part of the time looks may take.
const TIME_PART: u32 = 100;
/// Processes at most, whatever the kernel says.
const PROCESSES_MAX: usize = 100_000;
/// Name of the processes of overspill itself, beside programs and above jobs inside this one: they
/// have no memory of their own that counts.
const OWN_NAME: &str = "overspill";

/// The variable with which a program leaves the job, and what is said of it.
const LEFT: &str = "OVERSPILL=off";
pub const LEFT_REASON: &str = "has OVERSPILL=off in its environment";

/// What has been seen.
#[derive(Debug)]
pub struct Outside {
    table: JobTable,
    /// The budget that the job was started with.
    memory: Bytes,
    /// The file of the table, which every process has mapped that the preload library is in.
    mark: String,
    launcher: u32,
    next: Instant,
    pause: Duration,
    last: HashMap<u32, Bytes>,
    /// What all of them have at the moment, and whether it becomes more.
    now: Bytes,
    grows: bool,
    /// What was not managed at the last look, and the most at once, of all processes of the job.
    unmanaged: Bytes,
    peak: Bytes,
    worst: Option<Seen>,
}

/// What was not managed at most in a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Most {
    /// The budget.
    pub budget_bytes: u64,
    /// The most at once, in all processes.
    pub peak_bytes: u64,
    /// Whether that is so much that it is to be told.
    #[serde(skip)]
    pub is_much: bool,
    /// The process that had most of it of those that do not say what they have.
    pub outside: Option<Seen>,
}

/// A process that had much.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Seen {
    /// Its number.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// The most that it had.
    pub peak_bytes: u64,
    /// Why it is not managed, if that can be seen.
    pub reason: Option<String>,
    /// What it had then, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
}

impl Outside {
    /// Of the job of this process, which has this table, in a file of this path, and this budget.
    pub fn new(table: JobTable, path: &Path, memory: Bytes) -> Outside {
        Outside {
            table,
            memory,
            mark: path.display().to_string(),
            launcher: std::process::id(),
            next: Instant::now() + SOON,
            pause: SOON,
            last: HashMap::new(),
            now: Bytes(0),
            grows: false,
            unmanaged: Bytes(0),
            peak: Bytes(0),
            worst: None,
        }
    }

    /// What processes have of which nobody else knows, if it is much: less is known roughly only.
    pub fn now(&self) -> Bytes {
        if self.is_much(self.now) { self.now } else { Bytes(0) }
    }

    /// What was not managed at the last look, where it is most of the budget.
    pub fn most_of_budget(&self) -> Option<Most> {
        let (unmanaged, budget) = (self.unmanaged, self.budget());
        let most = || Most {
            budget_bytes: budget.0,
            peak_bytes: unmanaged.0,
            is_much: true,
            outside: self.worst.clone(),
        };
        (unmanaged.0 > budget.0 / 2).then(most)
    }

    /// What was not managed at most, in all processes of the job.
    pub fn most(&self) -> Most {
        let peak = self.peak.max(self.table.unmanaged_peak());
        Most {
            budget_bytes: self.budget().0,
            peak_bytes: peak.0,
            is_much: self.is_much(peak),
            outside: self.worst.clone(),
        }
    }

    /// The budget that the job has now.
    fn budget(&self) -> Bytes {
        let asked = self.table.budget();
        if asked.number == 0 { self.memory } else { asked.memory }
    }

    /// Looks if it is time; how long it is until then.
    pub fn follow(&mut self) -> Duration {
        let now = Instant::now();
        if now >= self.next {
            let began = thread::cpu_time(thread::id());
            self.look();
            let took = thread::cpu_time(thread::id()).saturating_sub(began);
            let most = match self.is_much(self.now) {
                _ if self.grows => SOON,
                true => OFTEN,
                false => RARELY,
            };
            let pause = self.pause.min(most).max(took * TIME_PART);
            self.next = Instant::now() + pause;
            self.pause = (2 * pause).min(RARELY);
        }
        self.next.saturating_duration_since(now)
    }

    fn is_much(&self, memory: Bytes) -> bool {
        memory > tolerance(self.budget())
    }

    fn look(&mut self) {
        let said: HashMap<u32, Said> =
            self.table.tell_of_themselves().into_iter().map(|said| (said.pid, said)).collect();
        let processes = tree(self.launcher);
        let told = processes.iter().filter_map(|process| said.get(&process.inner_pid));
        let told = Bytes(told.map(|said| said.unmanaged.0).sum());
        let beyond = |process: &OutsideProcess, memory: Bytes| match said.get(&process.inner_pid) {
            Some(said) if said.has_engine => Bytes(0),
            Some(said) => Bytes(memory.0.saturating_sub(said.unmanaged.0)),
            None => memory,
        };
        let mut found: Vec<(&OutsideProcess, Bytes)> =
            processes.iter().map(|process| (process, beyond(process, process.memory))).collect();
        if self.is_much(sum(&found)) {
            for (process, memory) in found.iter_mut().filter(|(_, memory)| memory.0 > 0) {
                let exact = if process.is_borrowed() { Bytes(0) } else { process.share() };
                *memory = beyond(process, exact).min(*memory);
            }
        }
        let last =
            |process: &OutsideProcess| self.last.get(&process.pid).copied().unwrap_or_default();
        let lasting: Vec<(&OutsideProcess, Bytes)> =
            found.iter().map(|(process, memory)| (*process, last(process).min(*memory))).collect();
        self.grows = self.is_much(sum(&found)) && sum(&found).0 / 5 > sum(&lasting).0 / 4;
        self.now = sum(&lasting);
        self.unmanaged = Bytes(self.now.0 + told.0);
        self.peak = self.peak.max(self.unmanaged);
        if self.is_much(self.now) {
            self.note_worst(&lasting);
        }
        self.last = found.iter().map(|(process, memory)| (process.pid, *memory)).collect();
    }

    fn note_worst(&mut self, lasting: &[(&OutsideProcess, Bytes)]) {
        let Some((process, memory)) = lasting.iter().max_by_key(|(_, memory)| memory.0) else {
            return;
        };
        let had = self.worst.as_ref().map_or(0, |worst| worst.peak_bytes);
        // What it is has not changed much as long as it has not become much more.
        if memory.0 <= had + had / 4 {
            let same = self.worst.as_mut().filter(|worst| worst.pid == process.pid);
            same.into_iter().for_each(|worst| worst.peak_bytes = memory.0.max(had));
            return;
        }
        let smaps = read(process.pid, "smaps");
        if smaps.is_empty() {
            return;
        }
        let kinds = kinds(process.pid, &smaps);
        // It may have become more by now. What the engine's own are for was told.
        let told = kinds.get(Counter::UnmanagedEngineBytes.name()).copied().unwrap_or(0);
        let more = (kinds.values().sum::<u64>() - told).saturating_sub(memory.0);
        self.peak = self.peak.max(Bytes(self.now.0 + more));
        self.worst = Some(Seen {
            pid: process.pid,
            name: process.name.clone(),
            peak_bytes: memory.0 + more,
            reason: self.reason(process.pid, &smaps),
            kinds,
        });
    }

    /// Why a process with these mappings is not managed, if it is not.
    fn reason(&self, pid: u32, smaps: &str) -> Option<String> {
        if smaps.contains(&self.mark) {
            return None;
        }
        let executable = format!("/proc/{pid}/exe");
        if let Some(reason) = out_of_reach(Path::new(&executable)) {
            return Some(reason.to_string());
        }
        let has_left = read(pid, "environ").split('\0').any(|variable| variable == LEFT);
        let reason = if has_left { LEFT_REASON } else { "was started without the preload library" };
        Some(reason.to_owned())
    }
}

/// Bytes of memory of a process by kind, named as one does that counts its own.
fn kinds(pid: u32, smaps: &str) -> BTreeMap<&'static str, u64> {
    use Counter::*;
    let pages = Kinds::of_text(smaps);
    let named = [
        (UnmanagedStackBytes, MemoryKind::Stacks),
        (UnmanagedBrkBytes, MemoryKind::Brk),
        (UnmanagedDataBytes, MemoryKind::Data),
        (UnmanagedFileBytes, MemoryKind::Files),
        (UnmanagedCodeBytes, MemoryKind::Code),
        (UnmanagedOtherBytes, MemoryKind::Other),
        (UnmanagedEngineBytes, MemoryKind::Own),
    ]
    .map(|(name, kind)| (name.name(), Bytes::from_pages(pages.get(kind)).0));
    let shared = kib(&read(pid, "smaps_rollup"), "Pss_Shmem");
    named.into_iter().chain([(UnmanagedSharedBytes.name(), shared)]).collect()
}

/// A process of the job.
#[derive(Debug)]
struct OutsideProcess {
    pid: u32,
    parent: u32,
    /// The number that it has for itself, in a container within the job.
    inner_pid: u32,
    name: String,
    /// Pages that no file holds: those that others share count in full.
    memory: Bytes,
}

impl OutsideProcess {
    fn read(pid: u32) -> Option<OutsideProcess> {
        OutsideProcess::parse(pid, &read(pid, "status"))
    }

    fn parse(pid: u32, status: &str) -> Option<OutsideProcess> {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let number = |text: &str| text.split_whitespace().last()?.parse().ok();
        Some(OutsideProcess {
            pid,
            parent: field("PPid").and_then(number)?,
            inner_pid: field("NSpid").and_then(number).unwrap_or(pid),
            name: field("Name")?.to_owned(),
            memory: Bytes(kib(status, "RssAnon") + kib(status, "RssShmem")),
        })
    }

    /// Its share of that, by the kernel's exact figures.
    fn share(&self) -> Bytes {
        let text = read(self.pid, "smaps_rollup");
        Bytes(kib(&text, "Pss_Anon") + kib(&text, "Pss_Shmem"))
    }

    /// Whether its memory is its parent's: after vfork(2).
    fn is_borrowed(&self) -> bool {
        thread::share_memory(self.pid as i32, self.parent as i32)
    }
}

/// A file that the kernel has about a process; empty where it may not be read.
fn read(pid: u32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    // Names and variables may be anything.
    String::from_utf8_lossy(&bytes).into_owned()
}

fn sum(found: &[(&OutsideProcess, Bytes)]) -> Bytes {
    Bytes(found.iter().map(|(_, memory)| memory.0).sum())
}

/// Bytes of a field of a file in /proc.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1 << 10)
}

/// All that descend from a process, but for those of overspill and what these have started: that is
/// of jobs of their own.
fn tree(root: u32) -> Vec<OutsideProcess> {
    let mut found = Vec::new();
    let mut left = children(root);
    while let Some(pid) = left.pop() {
        let Some(process) = OutsideProcess::read(pid) else { continue };
        if process.name == OWN_NAME || found.len() >= PROCESSES_MAX {
            continue;
        }
        left.extend(children(pid));
        found.push(process);
    }
    found
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let numbers = |list: String| {
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
    };
    lists.flatten().flat_map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_status_of_a_process_is_read() {
        let status = "Name:\tmy prog\nPid:\t7\nPPid:\t3\nNSpid:\t7\t2\nVmRSS:\t   900 kB\n\
            RssAnon:\t     400 kB\nRssFile:\t 300 kB\nRssShmem:\t       8 kB\n";
        let process = OutsideProcess::parse(7, status).unwrap();
        assert_eq!((process.parent, process.inner_pid, process.memory), (3, 2, Bytes(408 << 10)));
        assert_eq!(process.name, "my prog");
        // A zombie has no memory; no process says nothing.
        assert_eq!(OutsideProcess::parse(7, "Name:\tx\nPPid:\t3\n").unwrap().memory, Bytes(0));
        assert!(OutsideProcess::parse(7, "").is_none());
    }

    #[test]
    fn all_that_descend_from_a_process_are_found() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let found = tree(std::process::id());
        let names: Vec<_> = found.iter().map(|process| process.name.as_str()).collect();
        assert!(names.contains(&"sh") || names.contains(&"dash"), "{names:?}");
        let sleep = found.iter().find(|process| process.parent == shell.id()).expect("its child");
        assert!(sleep.share().0 > 0 && !sleep.is_borrowed());
        let _ = Command::new("kill").arg(sleep.pid.to_string()).status();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
