//! Disks that fail, or are full.

use super::super::block_io::BlockIo;
use super::*;
use overspill_os::uring::{Data, Op};

/// A disk that fails on demand.
#[derive(Debug, Default)]
pub(super) struct FailingDisk {
    /// Operations until one fails.
    writes: AtomicI64,
    /// Operations until as many as `reads_failing` fail.
    reads: AtomicI64,
    reads_failing: AtomicI64,
    /// Bytes of disk space left to set aside.
    space: AtomicU64,
    /// Whether the filesystem cannot set space aside.
    no_fallocate: AtomicBool,
    /// Whether the disk cannot discard; how often it was asked to.
    pub(super) no_discard: AtomicBool,
    pub(super) discards: AtomicU64,
    /// What a failed write reports.
    errno: AtomicI64,
    /// Writes of this byte fail always.
    bad_byte: AtomicU64,
}

impl FailingDisk {
    pub(super) fn none(space: u64, errno: Errno) -> FailingDisk {
        FailingDisk {
            writes: AtomicI64::new(i64::MAX),
            reads: AtomicI64::new(i64::MAX),
            space: AtomicU64::new(space),
            bad_byte: AtomicU64::new(u64::MAX),
            errno: AtomicI64::new(errno.raw_os_error() as i64),
            ..FailingDisk::default()
        }
    }
}

#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) disk: Direct,
    pub(super) faults: Arc<FailingDisk>,
}

impl BlockIo for Faulty {
    fn file(&self) -> &File {
        &self.disk.file
    }

    fn run(&self, ops: &mut [Op<'_>]) {
        for op in ops {
            let (countdown, errno) = match op.data {
                Data::Read(_) => (&self.faults.reads, Errno::IO),
                Data::Write(_) => (
                    &self.faults.writes,
                    Errno::from_raw_os_error(self.faults.errno.load(Relaxed) as i32),
                ),
            };
            if let Data::Write(data) = op.data
                && (op.offset..op.offset + data.len() as u64)
                    .contains(&self.faults.bad_byte.load(Relaxed))
            {
                op.result = Err(errno);
                continue;
            }
            let failing = if matches!(op.data, Data::Read(_)) {
                self.faults.reads_failing.load(Relaxed)
            } else {
                1
            };
            match -countdown.fetch_sub(1, Relaxed) {
                n if (0..failing).contains(&n) => op.result = Err(errno),
                _ => self.disk.run(std::slice::from_mut(op)),
            }
        }
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Errno> {
        if self.faults.no_fallocate.load(Relaxed) {
            return Err(Errno::OPNOTSUPP);
        }
        let left = self
            .faults
            .space
            .load(Relaxed)
            .checked_sub(range.end - range.start)
            .ok_or(Errno::NOSPC)?;
        self.faults.space.store(left, Relaxed);
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), Errno> {
        self.faults.discards.fetch_add(1, Relaxed);
        if self.faults.no_discard.load(Relaxed) {
            return Err(Errno::OPNOTSUPP);
        }
        self.disk.discard(range)
    }
}

/// A device in `dir` of 64 MiB on a disk with `space` bytes left.
fn faulty(dir: &Dir, space: u64, errno: Errno) -> (SwapDevices, Arc<FailingDisk>, Stats) {
    let faults = Arc::new(FailingDisk::none(space, errno));
    let (ours, stats) = (faults.clone(), Stats::anonymous().unwrap());
    let make_io: MakeIo = Box::new(move |file, queue| {
        Box::new(Faulty { disk: Direct { file, queue }, faults: ours.clone() })
    });
    let devices = SwapDevices::open_with(
        &JobSwaps::first(&[spec(&dir.0, 64 << 20)]),
        DeviceSettings::default(),
        no_tables(),
        stats,
        make_io,
    )
    .unwrap();
    (devices, faults, stats)
}

#[test]
fn a_failed_write_marks_the_bad_slot_and_no_other() {
    let dir = Dir::new("bad");
    let (devices, faults, stats) = faulty(&dir, u64::MAX, Errno::IO);
    let runs: Vec<SlotRun> = (0..8).map(|_| devices.alloc_run(16).unwrap()).collect();
    let mut buffer = IoBuffer::new(8 * 16).unwrap();
    let of_run = |(i, run): (usize, &SlotRun)| RunWrite {
        run: *run,
        buffer_page: i * 16,
        keeps_slots: false,
        result: Ok(()),
    };
    let mut writes: Vec<RunWrite> = runs.iter().enumerate().map(of_run).collect();
    // What goes wrong once is no error.
    faults.writes.store(5, Relaxed);
    devices.write(&mut buffer, &mut writes);
    assert!(writes.iter().all(|write| write.result.is_ok()));
    assert_eq!((stats.get(Counter::WriteErrors), stats.get(Counter::PswpOut)), (1, 8 * 16));
    let bad = runs[5].first.advance(3);
    faults.bad_byte.store(bad.offset() * PAGE_SIZE as u64, Relaxed);
    devices.write(&mut buffer, &mut writes);
    let failed: Vec<usize> = (0..8).filter(|i| writes[*i].result.is_err()).collect();
    assert_eq!((failed.as_slice(), writes[5].result), ([5].as_slice(), Err(Errno::IO)));
    assert_eq!((stats.get(Counter::WriteErrors), stats.get(Counter::PswpOut)), (2, 15 * 16));
    assert_eq!((devices.used_pages(), devices.capacity_pages()), (7 * 16, (64 << 8) - 1));
    // Neither freeing the others nor filling the device brings the bad slot back.
    runs.iter().filter(|run| **run != runs[5]).for_each(|run| devices.free_run(*run));
    let all = alloc_all(&devices);
    assert_eq!(pages(&all), (64 << 8) - 1);
    assert!(all.iter().flat_map(|run| run.slots()).all(|slot| slot != bad));
}

#[test]
fn a_full_disk_is_found_when_slots_are_handed_out() {
    let dir = Dir::new("full");
    // Room for 9 of 32 clusters: one step of 8, then one of 1.
    let (devices, faults, stats) = faulty(&dir, 19 << 20, Errno::IO);
    assert_eq!(devices.capacity_pages(), 64 << 8);
    let runs = alloc_all(&devices);
    assert_eq!((pages(&runs), devices.capacity_pages()), (18 << 8, 18 << 8));
    assert_eq!(stats.get(Counter::DeviceCapacityBytes), 18 << 20);
    // What is freed can be had again at once; more disk space only after a while.
    devices.free_run(runs[0]);
    faults.space.store(u64::MAX, Relaxed);
    assert_eq!(pages(&alloc_all(&devices)), runs[0].len as u64);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(pages(&alloc_all(&devices)), (64 << 8) - (18 << 8));
    assert_eq!(stats.get(Counter::WriteErrors), 0);
}

#[test]
fn a_disk_that_is_full_only_when_written_is_left_alone_for_a_while() {
    let dir = Dir::new("full-late");
    let (devices, faults, stats) = faulty(&dir, 0, Errno::NOSPC);
    faults.no_fallocate.store(true, Relaxed);
    let (one, two) = (devices.alloc_run(64).unwrap(), devices.alloc_run(64).unwrap());
    faults.writes.store(1, Relaxed);
    assert_eq!((write(&devices, one, 1), write(&devices, two, 1)), (Ok(()), Err(Errno::NOSPC)));
    assert_eq!(
        (devices.used_pages(), devices.capacity_pages(), stats.get(Counter::WriteErrors)),
        (64, 64, 1)
    );
    assert_eq!(devices.alloc_run(1), None);
    assert!(reads_back(&devices, one, 1));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(pages(&alloc_all(&devices)), (64 << 8) - 64, "no slot is lost");
}

#[test]
fn a_failed_read_is_tried_again_and_names_device_and_place() {
    let dir = Dir::new("read-error");
    let (devices, faults, stats) = faulty(&dir, u64::MAX, Errno::IO);
    let run = devices.alloc_run(4).unwrap();
    write(&devices, run, 1).unwrap();
    let fail = |from: i64, count: i64| {
        faults.reads.store(from, Relaxed);
        faults.reads_failing.store(count, Relaxed);
    };
    // Trouble that is over when it is read again: the run, then each page.
    fail(0, 1);
    assert!(reads_back(&devices, run, 1));
    assert_eq!((stats.get(Counter::ReadErrors), stats.get(Counter::ReadRetries)), (0, 4));
    let second = SlotRun { first: run.first.advance(1), len: 1 };
    fail(0, 2);
    let error = devices.read(second, &mut IoBuffer::new(1).unwrap()).unwrap_err();
    let io = ReadFailure::Io(Errno::IO);
    assert_eq!((error.failure, error.offset_bytes, &*error.path), (io, 4096, dir.0.as_path()));
    assert!(error.to_string().contains("at byte 4096 failed: Input/output error"), "{error}");
    assert_eq!((stats.get(Counter::ReadErrors), stats.get(Counter::PswpIn)), (1, 4));
    assert!(reads_back(&devices, run, 1), "the next read is good");
    // A run that was never written lies beyond the end of the file: an error, not zeros.
    faults.no_fallocate.store(true, Relaxed);
    let never = devices.alloc_run(4).unwrap();
    let error = devices.read(never, &mut IoBuffer::new(4).unwrap()).unwrap_err();
    assert_eq!(error.failure, ReadFailure::NotAuthentic);
}
