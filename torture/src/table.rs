//! The table that the job and who watches it have in common: `load/load.h` has the same as a
//! structure. The job has mapped the file; here it is read and written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SLOTS: usize = 512;
const SLOT_BYTES: usize = 16;
const STOP: usize = 0;
const PAGES_MAY_BE_LOST: usize = 8;
const WRITES_MAY_GO_PAST: usize = 12;
const KILLED: usize = 16;
const LOST: usize = 20;
const WATCHER: usize = 24;
const FINDING: std::ops::Range<usize> = 28..512;

/// The table.
#[derive(Debug)]
pub struct Table(File);

/// A thread of the job that works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub index: usize,
    pub thread: i32,
    pub process: i32,
    /// How often it has begun with something.
    pub beats: u32,
}

impl Table {
    /// An empty one in a new file.
    pub fn create(path: &Path) -> io::Result<Table> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len((FINDING.end + SLOTS * SLOT_BYTES) as u64)?;
        let table = Table(file);
        table.set(WATCHER, std::process::id());
        Ok(table)
    }

    fn number(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        let _ = self.0.read_exact_at(&mut bytes, at as u64);
        u32::from_ne_bytes(bytes)
    }

    fn set(&self, at: usize, number: u32) {
        let _ = self.0.write_all_at(&number.to_ne_bytes(), at as u64);
    }

    /// It is time to end.
    pub fn stop(&self) {
        self.set(STOP, 1);
    }

    /// From now on it is nobody's fault that a page cannot be read.
    pub fn allow_lost_pages(&self) {
        self.set(PAGES_MAY_BE_LOST, 1);
    }

    /// From now on memory may be written past the page tables.
    pub fn allow_writes_past(&self) {
        self.set(WRITES_MAY_GO_PAST, 1);
    }

    /// Processes that were killed, and those that ended because a page was lost.
    pub fn ends(&self) -> [u32; 2] {
        [KILLED, LOST].map(|at| self.number(at))
    }

    /// What the job has found to be wrong.
    pub fn finding(&self) -> Option<String> {
        let mut text = [0; FINDING.end - FINDING.start];
        self.0.read_exact_at(&mut text, FINDING.start as u64).ok()?;
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        (len > 0).then(|| String::from_utf8_lossy(&text[..len]).into_owned())
    }

    /// Threads that work.
    pub fn threads(&self) -> Vec<Slot> {
        let slot = |index: usize| {
            let at = FINDING.end + index * SLOT_BYTES;
            let [thread, process] = [0, 4].map(|field| self.number(at + field) as i32);
            Slot { index, thread, process, beats: self.number(at + 12) }
        };
        (0..SLOTS).map(slot).filter(|slot| slot.thread > 0 && slot.process > 0).collect()
    }

    /// What was done in all.
    pub fn beats(&self) -> u64 {
        let beats = |index| self.number(FINDING.end + index * SLOT_BYTES + 12);
        (0..SLOTS).map(|index| u64::from(beats(index))).sum()
    }
}
