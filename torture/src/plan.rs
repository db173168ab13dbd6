//! What is to be done: classes of events, and the rest of the command line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What the load does by itself, in the words of `load/load.h`.
pub const INSIDE: [&str; 17] = [
    "touch", "map", "mremap", "advise", "protect", "lock", "files", "direct", "remote", "fork",
    "exec", "signals", "threads", "heap", "slay", "break", "hang",
];
/// What is done to it.
pub const OUTSIDE: [&str; 5] = ["kill", "stop", "budget", "devices", "errors"];
/// Not done unless asked for: they are findings, and show that these are found.
pub const FINDINGS: [&str; 2] = ["break", "hang"];

/// How page faults are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Fault {
    Signal,
    Thread,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Fault::Signal { "signal" } else { "thread" })
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub fault: Fault,
    pub seed: u64,
    pub time: Duration,
    pub patience: Duration,
    pub memory_mib: u64,
    pub processes: usize,
    pub threads: usize,
    pub process_mib: u64,
    pub classes: Vec<&'static str>,
    pub set: Option<String>,
    pub scratch: PathBuf,
    pub overspill: PathBuf,
}

impl Plan {
    pub fn does(&self, class: &str) -> bool {
        self.classes.contains(&class)
    }

    /// The classes that the load does by itself.
    pub fn inside(&self) -> String {
        let inside: Vec<_> =
            self.classes.iter().filter(|class| INSIDE.contains(class)).copied().collect();
        inside.join(",")
    }

    /// The command that does the same.
    pub fn command(&self) -> String {
        let set = self.set.as_ref().map(|set| format!(" --set {set}")).unwrap_or_default();
        format!(
            "overspill torture --seed {} --fault {} --seconds {} --memory {}M --processes {} \
             --threads {} --size {}M --only {}{set}",
            self.seed,
            self.fault,
            self.time.as_secs(),
            self.memory_mib,
            self.processes,
            self.threads,
            self.process_mib,
            self.classes.join(","),
        )
    }
}
