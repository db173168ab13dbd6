//! Hangs: threads that have begun with nothing new for long, and what each process waits for.

use crate::table::{Slot, Table};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

/// When each thread was last seen to go on.
#[derive(Debug, Default)]
pub struct Watch(HashMap<usize, (Slot, Instant)>);

impl Watch {
    /// The threads that have stood still for longer than `patience`.
    pub fn standing(&mut self, table: &Table, patience: Duration) -> Vec<Slot> {
        let (threads, now) = (table.threads(), Instant::now());
        self.0.retain(|index, _| threads.iter().any(|slot| slot.index == *index));
        let mut standing = Vec::new();
        for slot in threads {
            let (seen, since) = self.0.entry(slot.index).or_insert((slot, now));
            if *seen != slot {
                (*seen, *since) = (slot, now);
            }
            // One that was killed is seen to be gone when its slot is needed.
            let lives = || fs::exists(format!("/proc/{}/task/{}", slot.process, slot.thread));
            if now.duration_since(*since) > patience && lives().unwrap_or(true) {
                standing.push(slot);
            }
        }
        standing
    }
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
