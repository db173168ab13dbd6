//! What all processes of a job are told: one table that each of them maps.
//!
//! Whoever started the job makes the file of the table and writes to it; the pool of each process looks at it about ten
//! times a second, and when it is made. So a process learns of a change whenever and however it was started, and no
//! process is forgotten because it was being started just then. What it has taken note of, it says in its own table
//! ([`crate::stats`]).
//!
//! No locks: a request is one atomic cell.

use crate::base::Bytes;
use overspill_os::{Errno, vm::SharedCells};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Name of the file in the directory of a run.
pub const FILE_NAME: &str = "job";
/// First cell: "ovrsjob" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"ovrsjob\x01");
const CELL_BUDGET: usize = 1;
/// Room for what else a job will be told.
const CELLS: usize = 64;
/// A request is its number and a budget in pages: 40 bits of pages are 4 PiB.
const PAGES_BITS: u32 = 40;

/// What the processes of a job are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetRequest {
    /// Tells requests apart; 0 is none. Counts modulo 2^24, so it is compared for equality only.
    pub number: u32,
    /// Budget of each process of the job.
    pub memory: Bytes,
}

/// The table of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobTable {
    cells: SharedCells,
}

impl JobTable {
    /// Makes the table in a new file.
    pub fn create(file: BorrowedFd<'_>) -> Result<JobTable, Errno> {
        rustix::fs::ftruncate(file, CELLS as u64 * 8)?;
        let cells = SharedCells::shared(file, CELLS)?;
        cells[0].store(MAGIC, Release);
        Ok(JobTable { cells })
    }

    /// Maps the table that another process made; `None` if there is none.
    pub fn open(path: &Path) -> Option<JobTable> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // Behind the end of a file that is too short there would be SIGBUS.
        if rustix::fs::fstat(&file).ok()?.st_size < CELLS as i64 * 8 {
            return None;
        }
        let cells = SharedCells::shared(file.as_fd(), CELLS).ok()?;
        (cells[0].load(Acquire) == MAGIC).then_some(JobTable { cells })
    }

    /// Asks for another budget; returns the request as the processes will see it.
    ///
    /// One caller at a time: of two at once, either may be the last.
    pub fn ask_budget(&self, memory: Bytes) -> BudgetRequest {
        let number = self.budget().number.wrapping_add(1) & ((1 << (64 - PAGES_BITS)) - 1);
        // 0 means that nothing was ever asked for.
        let number = number.max(1);
        let pages = memory.pages().min((1 << PAGES_BITS) - 1);
        self.cells[CELL_BUDGET].store(u64::from(number) << PAGES_BITS | pages, Release);
        BudgetRequest { number, memory: Bytes::from_pages(pages) }
    }

    /// The latest request.
    pub fn budget(&self) -> BudgetRequest {
        let cell = self.cells[CELL_BUDGET].load(Relaxed);
        let pages = cell & ((1 << PAGES_BITS) - 1);
        BudgetRequest { number: (cell >> PAGES_BITS) as u32, memory: Bytes::from_pages(pages) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_reach_whoever_maps_the_file() {
        let path = std::env::temp_dir().join(format!("overspill-job-{}", std::process::id()));
        assert!(JobTable::open(&path).is_none());
        let file = std::fs::File::create_new(&path).unwrap();
        assert!(JobTable::open(&path).is_none(), "an empty file");
        drop(file);
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let ours = JobTable::create(file.as_fd()).unwrap();
        let theirs = JobTable::open(&path).unwrap();
        assert_eq!(theirs.budget().number, 0);
        let asked = ours.ask_budget(Bytes((96 << 20) + 5));
        assert_eq!((asked.number, asked.memory), (1, Bytes(96 << 20)));
        assert_eq!(theirs.budget(), asked);
        assert_ne!(ours.ask_budget(asked.memory).number, asked.number, "the same budget again is another request");
        assert_eq!(ours.ask_budget(Bytes(u64::MAX)).memory, Bytes::from_pages((1 << 40) - 1));
        std::fs::write(&path, [0; 8 * CELLS]).unwrap();
        assert!(JobTable::open(&path).is_none(), "something else");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn numbers_go_on_from_one_after_the_last() {
        let table = JobTable { cells: SharedCells::anonymous(CELLS).unwrap() };
        table.cells[CELL_BUDGET].store(((1 << 24) - 1) << PAGES_BITS, Relaxed);
        assert_eq!(table.ask_budget(Bytes(4 << 20)).number, 1);
    }
}
