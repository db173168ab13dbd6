//! Reads any words as the tables that the processes of a job share: the statistics of a process,
//! which are added up, and the table of the job with its account.

use arbitrary::Arbitrary;
use overspill::job::{self, JobTable};
use overspill::stats::{self, Snapshot};
use overspill::units::Bytes;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Words, and where they stand: mostly in the first part of a table.
#[derive(Arbitrary, Debug)]
struct Input {
    job: Vec<(u16, u64)>,
    stats: Vec<(u16, u64)>,
    number: u32,
    bytes: u64,
}

struct Tables {
    path: PathBuf,
    file: File,
    table: JobTable,
}

thread_local! {
    static TABLES: RefCell<Tables> = RefCell::new(Tables::new());
}

impl Tables {
    fn new() -> Tables {
        let path = std::env::temp_dir().join(format!("overspill-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        let file = path.join(job::FILE_NAME);
        let file = File::options().create(true).truncate(true).read(true).write(true).open(file);
        let file = file.expect("a file");
        let table = JobTable::create(file.as_fd()).expect("a table");
        Tables { path, file, table }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let Some(input) = crate::made_of::<Input>(bytes) else { return };
    // 1. A process's statistics, added to themselves.
    let mut bytes = vec![0; stats::FILE_BYTES];
    bytes[..8].copy_from_slice(&stats::MAGIC.to_le_bytes());
    for (at, word) in &input.stats {
        let at = 8 + usize::from(*at) * 8 % (bytes.len() - 16);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let snapshot = Snapshot::from_bytes(&bytes).expect("the first word is right");
    let mut total = snapshot.clone();
    total.merge(&snapshot);
    total.merge_done(&snapshot);
    let _ = total.latency.all().total_ns();
    assert!(total.devices.len() <= 2 * snapshot.devices.len());
    // 2. The table of a job.
    TABLES.with_borrow(|Tables { path, file, table }| {
        for (at, word) in &input.job {
            let at = 8 + u64::from(*at) * 8;
            file.write_all_at(&word.to_le_bytes(), at).expect("a file");
        }
        let same = JobTable::open_at(path).expect("the first word is right");
        assert_eq!(same.budget(), table.budget());
        let _ = (table.peak(), table.held(), table.pressure().to_string(), table.swaps());
        let _ = (table.reclaim(), table.reclaimed(input.number));
        let asked = table.ask_budget(Bytes(input.bytes));
        assert!(asked.number != 0 && asked.memory.0 <= input.bytes);
        assert_ne!(table.ask_reclaim(Bytes(input.bytes)).number, 0);
        let entry = table.hold(0, input.bytes);
        assert_eq!(table.hold(entry, 0), 0);
        // As it was.
        for (at, _) in &input.job {
            file.write_all_at(&[0; 8], 8 + u64::from(*at) * 8).expect("a file");
        }
    });
}
