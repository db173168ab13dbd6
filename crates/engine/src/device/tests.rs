//! Devices on a real disk, with faults put in between where a real disk has none to offer.

mod checksums;
mod named;
mod ram;
mod sealed;

use super::block_io::BlockIo;
use super::*;
use crate::device::spec::{SwapList, SwapSpec};
use crate::stats::Counter;
use crate::units::{Bytes, PAGE_SIZE};
use overspill_os::uring::{Data, Op};
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// An empty directory on a disk (temp_dir() may be in memory), removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let tests =
            std::env::current_exe().unwrap().parent().unwrap().join("overspill-device-tests");
        let dir = tests.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Nothing else is kept by slot.
struct NoTables;

impl SlotTables for NoTables {
    fn open(&self, _: usize, _: u64) -> bool {
        true
    }

    fn forget(&self, _: usize) {}

    fn slot_bytes(&self, _: usize) -> u64 {
        0
    }
}

fn no_tables() -> Arc<dyn SlotTables> {
    Arc::new(NoTables)
}

fn spec(path: &Path, size: impl Into<Option<u64>>) -> SwapSpec {
    SwapSpec { size: size.into().map(Bytes), ..SwapSpec::new(path) }
}

fn open(path: &Path, size: impl Into<Option<u64>>) -> SwapDevices {
    SwapDevices::open(
        &JobSwaps::first(&[spec(path, size)]),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap()
}

fn refusal(path: &Path, size: impl Into<Option<u64>>) -> SwapError {
    let error = SwapDevices::open(
        &JobSwaps::first(&[spec(path, size)]),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

/// Fills the pages of a buffer so that page `slot` of generation `generation` can be told from any
/// other.
fn fill(buffer: &mut IoBuffer, from_page: usize, run: SlotRun, generation: u64) {
    for (i, slot) in run.slots().enumerate() {
        buffer.words_mut()[(from_page + i) * 512..][..512].fill(slot.to_bits() ^ generation << 48);
    }
}

fn write(devices: &SwapDevices, run: SlotRun, generation: u64) -> Result<(), Errno> {
    let mut buffer = IoBuffer::new(run.len).unwrap();
    fill(&mut buffer, 0, run, generation);
    let mut writes =
        [RunWrite { run, buffer_page: 0, keeps_slots: false, result: Err(Errno::INVAL) }];
    devices.write(&mut buffer, &mut writes);
    writes[0].result
}

fn reads_back(devices: &SwapDevices, run: SlotRun, generation: u64) -> bool {
    let (mut expected, mut buffer) =
        (IoBuffer::new(run.len).unwrap(), IoBuffer::new(run.len).unwrap());
    fill(&mut expected, 0, run, generation);
    devices.read(run, &mut buffer).is_ok() && buffer[..] == expected[..]
}

/// Everything that can be had, in runs.
fn alloc_all(devices: &SwapDevices) -> Vec<SlotRun> {
    std::iter::from_fn(|| devices.alloc_run(RUN_MAX)).collect()
}

fn pages(runs: &[SlotRun]) -> u64 {
    runs.iter().map(|run| run.len as u64).sum()
}

#[test]
fn batches_round_trip_with_and_without_uring() {
    let dir = Dir::new("round-trip");
    for uring in [true, false] {
        let stats = Stats::anonymous().unwrap();
        // Two devices, the first so small that the batch goes on to the second.
        let specs = [spec(&dir.0, 4 << 20), spec(&dir.file("swap"), 64 << 20)];
        let devices = SwapDevices::open(
            &JobSwaps::first(&specs),
            DeviceSettings { uring, ..DeviceSettings::default() },
            no_tables(),
            stats,
        )
        .unwrap();
        assert_eq!(devices.capacity_pages(), (4 << 8) + (64 << 8) - 1);
        let runs: Vec<SlotRun> = (0..100).map(|i| devices.alloc_run(1 + i % 40).unwrap()).collect();
        assert_eq!(
            runs.iter().map(|run| run.first.device()).collect::<BTreeSet<_>>(),
            BTreeSet::from([0, 1])
        );
        let mut buffer = IoBuffer::new(pages(&runs) as usize).unwrap();
        let mut writes = Vec::new();
        let mut buffer_page = 0;
        for run in &runs {
            fill(&mut buffer, buffer_page, *run, 0);
            writes.push(RunWrite {
                run: *run,
                buffer_page,
                keeps_slots: false,
                result: Err(Errno::INVAL),
            });
            buffer_page += run.len;
        }
        devices.write(&mut buffer, &mut writes);
        assert!(writes.iter().all(|write| write.result == Ok(())));
        assert!(runs.iter().all(|run| reads_back(&devices, *run, 0)));
        assert_eq!(stats.get(Counter::PswpOutOps), 100);
        assert_eq!(
            (stats.get(Counter::PswpOut), stats.get(Counter::PswpIn)),
            (pages(&runs), pages(&runs))
        );
        assert_eq!(
            (stats.get(Counter::DevicePages), devices.used_pages()),
            (pages(&runs), pages(&runs))
        );
        runs.iter().for_each(|run| devices.free_run(*run));
        assert_eq!((stats.get(Counter::DevicePages), devices.used_pages()), (0, 0));
        assert_eq!(
            stats.get(Counter::DeviceCapacityBytes),
            devices.capacity_pages() * PAGE_SIZE as u64
        );
        assert_eq!(pages(&alloc_all(&devices)), devices.capacity_pages());
    }
}

#[test]
fn processes_that_share_a_file_never_get_the_same_slots() {
    let dir = Dir::new("lease");
    let path = dir.file("swap");
    let (one, two) = (open(&path, 128 << 20), open(&path, None));
    let mut runs = [Vec::new(), Vec::new()];
    loop {
        let before = pages(&runs[0]) + pages(&runs[1]);
        runs[0].extend((0..3).map_while(|_| one.alloc_run(RUN_MAX)));
        runs[1].extend((0..5).map_while(|_| two.alloc_run(RUN_MAX)));
        if pages(&runs[0]) + pages(&runs[1]) == before {
            break;
        }
    }
    assert!(!runs[0].is_empty() && !runs[1].is_empty());
    let mut seen = BTreeSet::new();
    assert!(runs.iter().flatten().flat_map(|run| run.slots()).all(|slot| seen.insert(slot)));
    assert_eq!(seen.len(), (128 << 8) - 1, "all of the device is used");
    assert_eq!(one.capacity_pages() + two.capacity_pages(), seen.len() as u64);
    // Leases end with their process, and are found free when asked for again; and when extents are
    // empty.
    drop(one);
    assert_eq!(two.alloc_run(1), None, "not asked again at once");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(pages(&alloc_all(&two)), pages(&runs[0]));
    runs[1].iter().for_each(|run| two.free_run(*run));
    let three = open(&path, None);
    assert!(pages(&alloc_all(&three)) > pages(&runs[1]) / 2);
}

#[test]
fn an_inherited_device_is_read_while_parent_and_child_go_on() {
    let dir = Dir::new("fork");
    let specs = [spec(&dir.0, 16 << 20), spec(&dir.file("swap"), 64 << 20)];
    let parent = SwapDevices::open(
        &JobSwaps::first(&specs),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap();
    // Fills the first device and half of the second, then gives up every third page.
    let mut slots: Vec<SlotId> =
        (0..40).flat_map(|_| parent.alloc_run(RUN_MAX).unwrap().slots()).collect();
    let one = |first| SlotRun { first, len: 1 };
    slots.iter().for_each(|slot| write(&parent, one(*slot), 1).unwrap());
    slots.iter().skip(2).step_by(3).for_each(|slot| parent.free(*slot));
    slots = slots.chunks(3).flat_map(|three| three[..three.len().min(2)].to_vec()).collect();

    let child = fork(&parent, &specs, true).0;
    parent.seal_for_child(1);
    assert_eq!(child.used_pages(), slots.len() as u64);
    // The parent frees half and both write all that they can have.
    slots.iter().step_by(2).for_each(|slot| parent.free(*slot));
    for devices in [&parent, &child] {
        for run in alloc_all(devices) {
            assert!(
                run.slots().all(|slot| slots.binary_search(&slot).is_err()),
                "a slot that is shared"
            );
            write(devices, run, 2).unwrap();
        }
    }
    assert!(slots.iter().all(|slot| reads_back(&child, one(*slot), 1)));
    assert!(slots.iter().skip(1).step_by(2).all(|slot| reads_back(&parent, one(*slot), 1)));
    // A child that lives keeps the parent from using what it freed.
    parent.unseal(Some(1));
    assert_eq!(parent.alloc_run(1), None);
    // The parent exits. A new process must not get what the child still reads.
    let freed = slots.len() as u64 / 2;
    drop(parent);
    let other = SwapDevices::open(
        &JobSwaps::first(&specs[1..]),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap();
    alloc_all(&other).into_iter().for_each(|run| write(&other, run, 3).unwrap());
    assert!(slots.iter().all(|slot| reads_back(&child, one(*slot), 1)));
    // Once the child has given it up, the inherited devices are closed and their extents are free
    // for others.
    assert_eq!(child.fds().len(), 4);
    slots.iter().for_each(|slot| child.free(*slot));
    assert_eq!(child.fds().len(), 2);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(pages(&alloc_all(&other)) > freed / 2);
}

#[test]
fn a_parent_uses_freed_slots_again_when_its_children_have_gone() {
    let dir = Dir::new("unseal");
    let parent = open(&dir.0, 8 << 20);
    let runs = alloc_all(&parent);
    assert_eq!((pages(&runs), parent.capacity_pages()), (2048, 2048));
    parent.seal_for_child(1);
    runs.iter().take(4).for_each(|run| parent.free_run(*run));
    assert_eq!((parent.alloc_run(1), parent.capacity_pages()), (None, 1024));
    parent.unseal(Some(2));
    assert_eq!(parent.capacity_pages(), 2048);
    assert_eq!(pages(&alloc_all(&parent)), 1024);
}

#[test]
fn a_child_without_descriptor_or_lease_gets_errors_and_not_foreign_data() {
    let dir = Dir::new("lost");
    let path = dir.file("swap");
    let parent = open(&path, 64 << 20);
    let run = parent.alloc_run(8).unwrap();
    write(&parent, run, 1).unwrap();
    // The parent's leases were not made shareable: the child cannot hold them.
    let (child, errors) = fork(&parent, &[spec(&path, 64 << 20)], false);
    assert_eq!(errors, [SwapError::Lost(path.clone())]);
    assert_eq!(
        child.table.get(run.first.device()).unwrap().slots().capacity_pages(),
        8,
        "nothing more can be stored there"
    );
    let error = child.read(run, &mut IoBuffer::new(8).unwrap()).unwrap_err();
    assert_eq!(
        (error.failure, error.offset_bytes),
        (ReadFailure::Io(Errno::BADF), run.first.offset() * PAGE_SIZE as u64)
    );
    // It can still swap.
    let own = child.alloc_run(8).unwrap();
    write(&child, own, 2).unwrap();
    assert!(reads_back(&child, own, 2) && reads_back(&parent, run, 1));
}

#[test]
fn a_grandchild_reads_what_its_grandparent_wrote() {
    let dir = Dir::new("grandchild");
    let parent = open(&dir.0, 8 << 20);
    let mut runs = vec![parent.alloc_run(100).unwrap()];
    write(&parent, runs[0], 0).unwrap();
    let mut processes = vec![parent];
    for generation in 1..5 {
        let child = fork(processes.last().unwrap(), &[spec(&dir.0, None)], true).0;
        let run = child.alloc_run(100).unwrap();
        write(&child, run, generation).unwrap();
        runs.push(run);
        processes.push(child);
    }
    let last = processes.pop().unwrap();
    drop(processes);
    assert_eq!(last.fds().len(), 5);
    assert!((0..5).all(|generation| reads_back(&last, runs[generation as usize], generation)));
}

impl SwapDevices {
    /// What a fork copies: every table, and descriptors whose numbers mean nothing here (in the
    /// child they would mean files of another table).
    fn copied_by_fork(&self) -> SwapDevices {
        let queue = Arc::new(Queue::new(QUEUE_DEPTH as u32, true));
        let copy = SwapDevices {
            table: DeviceTable::new(3),
            priorities: std::array::from_fn(|index| {
                AtomicI32::new(self.priorities[index].load(Relaxed))
            }),
            turn: AtomicUsize::new(self.turn.load(Relaxed)),
            opened: AtomicU64::new(100),
            closed: RankedMutex::new(Rank::ClosedDevices, Vec::new()),
            key: self.key.clone(),
            slots: self.slots,
            queue: queue.clone(),
            tables: no_tables(),
            in_memory: None,
            run_dir: None,
            make_io: Box::new(|file, queue| Box::new(Direct { file, queue })),
            stats: Stats::anonymous().unwrap(),
        };
        for gauge in [Counter::DevicePages, Counter::DeviceCapacityBytes] {
            copy.stats.set(gauge, self.stats.get(gauge));
        }
        for (index, area) in self.areas() {
            let file = File::from_fd(std::fs::File::open("/dev/null").unwrap().into());
            let io = Box::new(Direct { file, queue: queue.clone() });
            copy.table.set(
                index,
                Some(Arc::new(area.copied_by_fork(io, copy.stats.device(index), copy.stats))),
            );
        }
        copy
    }
}

/// A child and a grandchild that can open nothing by its name: they read what they inherited, and
/// write to parts of the file that the first of them made, until they are gone.
#[test]
fn children_that_can_open_nothing_go_on_in_parts_of_the_file() {
    let dir = Dir::new("parts");
    let mut processes = vec![open(&dir.0, None)];
    let mut runs = vec![processes[0].alloc_run(100).unwrap()];
    write(&processes[0], runs[0], 0).unwrap();
    std::fs::remove_dir(&dir.0).unwrap();
    for generation in 1..4 {
        let parent = processes.last().unwrap();
        let child = parent.copied_by_fork();
        parent.share_leases();
        let lend =
            |(index, area): (usize, Arc<Area>)| SwapDevices::lend(index, &area, None).unwrap().0;
        let inherited = parent.areas().map(lend).collect();
        assert_eq!(child.adopt_in_child(inherited, &JobSwaps::first(&[spec(&dir.0, None)])), []);
        parent.seal_for_child(1);
        let run = child.alloc_run(100).unwrap();
        write(&child, run, generation).unwrap();
        runs.push(run);
        processes.push(child);
        // Everybody goes on writing; nobody gets at what another has.
        processes.iter().zip(0..).for_each(|(devices, i)| {
            let run = devices.alloc_run(RUN_MAX).unwrap();
            write(devices, run, 100 + i).unwrap();
            assert!(reads_back(devices, run, 100 + i));
        });
        let youngest = processes.last().unwrap();
        assert!(
            runs.iter().zip(0..).all(|(run, generation)| reads_back(youngest, *run, generation))
        );
        assert!(
            processes
                .iter()
                .zip(&runs)
                .zip(0..)
                .all(|((devices, run), i)| reads_back(devices, *run, i))
        );
    }
    // The child of the first is gone, and all of its descendants: their disk space is free.
    let blocks = || processes[0].table.get(0).unwrap().file().len_and_allocated_bytes().unwrap().1;
    let before = blocks();
    let serial = processes[0].table.get(0).unwrap().serial();
    processes[0].give_back_part(LentPart { device: 0, serial: serial + 1, part: 1 });
    assert!(reads_back(&processes[1], runs[1], 1), "it was another device's");
    processes[0].give_back_part(LentPart { device: 0, serial, part: 1 });
    assert!(before - blocks() >= 3 * 100 * PAGE_SIZE as u64, "{before} {}", blocks());
    assert!(!reads_back(&processes[1], runs[1], 1) && !reads_back(&processes[3], runs[3], 3));
    assert!(reads_back(&processes[0], runs[0], 0));
    assert_eq!(processes[0].table.get(0).unwrap().take_part(), Some(1));
}

/// The steps of a fork, without one; leases are shared with the child only if `leases`.
fn fork(parent: &SwapDevices, specs: &[SwapSpec], leases: bool) -> (SwapDevices, Vec<SwapError>) {
    if leases {
        parent.share_leases();
    }
    let reopen = |(index, area): (usize, Arc<Area>)| {
        let file = area.file().reopen().unwrap();
        assert_eq!(area.hold_leases(&file), leases);
        InheritedDevice { index, file, own_locks: true, part: None }
    };
    let inherited = parent.areas().map(reopen).collect();
    let child = parent.copied_by_fork();
    let errors = child.adopt_in_child(inherited, &JobSwaps::first(specs));
    assert_eq!(child.stats.get(Counter::DevicePages), child.used_pages());
    assert_eq!(
        child.stats.get(Counter::DeviceCapacityBytes),
        child.capacity_pages() * PAGE_SIZE as u64
    );
    (child, errors)
}

/// A disk that fails on demand.
#[derive(Debug, Default)]
struct Faults {
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
    no_discard: AtomicBool,
    discards: AtomicU64,
    /// What a failed write reports.
    errno: AtomicI64,
    /// Writes of this byte fail always.
    bad_byte: AtomicU64,
}

impl Faults {
    fn none(space: u64, errno: Errno) -> Faults {
        Faults {
            writes: AtomicI64::new(i64::MAX),
            reads: AtomicI64::new(i64::MAX),
            space: AtomicU64::new(space),
            bad_byte: AtomicU64::new(u64::MAX),
            errno: AtomicI64::new(errno.raw_os_error() as i64),
            ..Faults::default()
        }
    }
}

#[derive(Debug)]
struct Faulty {
    disk: Direct,
    faults: Arc<Faults>,
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
fn faulty(dir: &Dir, space: u64, errno: Errno) -> (SwapDevices, Arc<Faults>, Stats) {
    let faults = Arc::new(Faults::none(space, errno));
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

#[test]
fn what_cannot_be_a_device_is_refused_with_a_reason() {
    let dir = Dir::new("refused");
    let mib = 1 << 20;
    assert_eq!(refusal(&dir.file("absent"), None), SwapError::Missing(dir.file("absent")));
    assert_eq!(refusal(&dir.file("absent/file"), mib), SwapError::Missing(dir.file("absent/file")));
    assert_eq!(refusal(Path::new("/dev/null"), mib), SwapError::WrongKind("/dev/null".into()));
    assert!(matches!(refusal(&dir.0, 4096), SwapError::TooSmall { .. }));
    let file = |name: &str, content: &[u8], len: u64| {
        let file = std::fs::File::create(dir.file(name)).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(content, 0).unwrap();
        dir.file(name)
    };
    assert!(matches!(refusal(&file("empty", b"", 0), None), SwapError::TooSmall { .. }));
    // Somebody's file, also one that is shorter than a page, is left as it is.
    for len in [7, 4096, 2 * mib] {
        let notes = file("notes", b"dear me", len);
        assert_eq!(refusal(&notes, 2 * mib), SwapError::HoldsData(notes.clone()));
        assert_eq!(std::fs::metadata(&notes).unwrap().len(), len);
        assert!(std::fs::read(&notes).unwrap().starts_with(b"dear me"));
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    if mounts.contains(" /dev/shm tmpfs") {
        assert_eq!(refusal(Path::new("/dev/shm"), mib), SwapError::InMemory("/dev/shm".into()));
    }
}

#[test]
fn a_named_file_is_made_extended_and_used_again_and_keeps_its_header() {
    let dir = Dir::new("named");
    let path = dir.file("swap");
    assert_eq!(open(&path, 2 << 20).capacity_pages(), 511);
    assert_eq!(open(&path, 4 << 20).capacity_pages(), 1023);
    let devices = open(&path, None);
    assert_eq!(devices.capacity_pages(), 1023);
    alloc_all(&devices).into_iter().for_each(|run| write(&devices, run, 1).unwrap());
    assert!(std::fs::read(&path).unwrap().starts_with(b"overspill swap device"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
}

/// RAM devices, a list of options for each.
fn ram(list: &str) -> SwapDevices {
    let SwapList(specs) = list.parse().unwrap();
    SwapDevices::open(
        &JobSwaps::first(&specs),
        DeviceSettings::default(),
        no_tables(),
        Stats::anonymous().unwrap(),
    )
    .unwrap()
}
