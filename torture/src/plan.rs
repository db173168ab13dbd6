//! What is to be done: classes of events, and the rest of the command line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What the load does by itself, in the words of `load/load.h`.
pub const INSIDE: [&str; 18] = [
    "touch", "map", "mremap", "advise", "protect", "lock", "files", "direct", "remote", "fork",
    "exec", "signals", "threads", "heap", "slay", "break", "hang", "leak",
];
/// What is done to it.
pub const OUTSIDE: [&str; 7] = ["kill", "stop", "budget", "devices", "full", "writes", "errors"];
/// Not done unless asked for: they are findings, and show that these are found.
pub const FINDINGS: [&str; 3] = ["break", "hang", "leak"];

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
    /// A file system of its own for the first device.
    pub swap: Option<PathBuf>,
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

    /// Settings of the engine. While no disk has room nothing can be reclaimed, which is not to be
    /// taken for a program that has no room.
    pub fn settings(&self) -> Vec<&str> {
        let patient = self.does("full").then_some("oom.wait=10s");
        patient.into_iter().chain(self.set.as_deref()).collect()
    }

    /// The command that does the same.
    pub fn command(&self) -> String {
        let set = self.set.as_ref().map(|set| format!(" --set {set}")).unwrap_or_default();
        let swap = self.swap.as_ref().map(|swap| format!(" --swap {}", swap.display()));
        format!(
            "overspill torture --seed {} --fault {} --seconds {} --patience {} --memory {}M \
             --processes {} --threads {} --size {}M --only {}{set}{}",
            self.seed,
            self.fault,
            self.time.as_secs(),
            self.patience.as_secs(),
            self.memory_mib,
            self.processes,
            self.threads,
            self.process_mib,
            self.classes.join(","),
            swap.unwrap_or_default(),
        )
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// All there is, of two threads in each of four processes.
    pub fn plan() -> Plan {
        Plan {
            fault: Fault::Signal,
            seed: 1,
            time: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            memory_mib: 48,
            processes: 4,
            threads: 2,
            process_mib: 24,
            classes: [&INSIDE[..], &OUTSIDE].concat(),
            set: None,
            swap: None,
            scratch: "/nowhere".into(),
            overspill: "/nowhere/overspill".into(),
        }
    }

    #[test]
    fn the_command_says_all_that_a_run_follows_from() {
        let mut plan = Plan { patience: Duration::from_secs(3), ..plan() };
        plan.classes = vec!["touch", "full"];
        plan.swap = Some("/small".into());
        assert_eq!(
            plan.command(),
            "overspill torture --seed 1 --fault signal --seconds 60 --patience 3 --memory 48M \
             --processes 4 --threads 2 --size 24M --only touch,full --swap /small"
        );
    }

    #[test]
    fn what_is_set_comes_after_what_full_disks_need() {
        let mut plan = plan();
        plan.set = Some("oom.wait=1s".to_owned());
        assert_eq!(plan.settings(), ["oom.wait=10s", "oom.wait=1s"]);
        plan.classes.retain(|class| *class != "full");
        assert_eq!(plan.settings(), ["oom.wait=1s"]);
    }
}
