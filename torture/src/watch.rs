//! Hangs: threads that have begun with nothing new for long, and what each process waits for.

use crate::table::{Slot, Table};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

/// When each thread was last seen to go on.
#[derive(Debug, Default)]
pub struct Watch(HashMap<usize, Seen>);

#[derive(Debug)]
struct Seen {
    slot: Slot,
    since: Instant,
    /// When it was started: another thread may come to have its number.
    started: Option<u64>,
}

impl Watch {
    /// The threads that have stood still for longer than `patience`.
    pub fn standing(&mut self, table: &Table, patience: Duration) -> Vec<Slot> {
        self.look(table.threads(), patience)
    }

    fn look(&mut self, threads: Vec<Slot>, patience: Duration) -> Vec<Slot> {
        let now = Instant::now();
        self.0.retain(|index, _| threads.iter().any(|slot| slot.index == *index));
        let mut standing = Vec::new();
        for slot in threads {
            let new = || Seen { slot, since: now, started: started(&slot) };
            let seen = self.0.entry(slot.index).or_insert_with(new);
            if (seen.slot.process, seen.slot.thread) != (slot.process, slot.thread) {
                *seen = new();
            } else if seen.slot != slot {
                (seen.slot, seen.since) = (slot, now);
            }
            // One that was killed is seen to be gone when its slot is needed.
            let lives = || seen.started.is_some() && started(&slot) == seen.started;
            if now.duration_since(seen.since) > patience && lives() {
                standing.push(slot);
            }
        }
        standing
    }
}

/// When a thread was started, in the kernel's ticks; None where it is gone.
fn started(slot: &Slot) -> Option<u64> {
    /// Its place behind the name in proc_pid_stat(5).
    const START_TIME: usize = 19;
    let path = format!("/proc/{}/task/{}/stat", slot.process, slot.thread);
    let stat = fs::read_to_string(path).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(START_TIME)?.parse().ok()
}

/// Every thread of some processes with what it waits for: its system call, and where in the kernel.
pub fn stacks(processes: &[i32]) -> String {
    let mut text = String::new();
    for process in processes {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let line = |name| read(name).trim().replace('\n', " < ");
            let _ = writeln!(
                text,
                "  {process}/{} {} in {}: call {} {}",
                task.file_name().to_string_lossy(),
                line("comm"),
                line("wchan"),
                line("syscall"),
                line("stack"),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whose_number_another_has_does_not_stand_still() {
        let pid = std::process::id() as i32;
        let slot = Slot { index: 3, thread: pid, process: pid, beats: 7 };
        let mut watch = Watch::default();
        let look = |watch: &mut Watch, slot| watch.look(vec![slot], Duration::ZERO).contains(&slot);
        look(&mut watch, slot);
        assert!(look(&mut watch, slot));
        let goes_on = Slot { beats: 8, ..slot };
        assert!(!look(&mut watch, goes_on) && look(&mut watch, goes_on));
        watch.0.get_mut(&3).unwrap().started = Some(1);
        assert!(!look(&mut watch, goes_on), "it was killed, and this is another");
        let gone = Slot { thread: i32::MAX, ..slot };
        assert!(!look(&mut watch, gone) && !look(&mut watch, gone));
    }
}
