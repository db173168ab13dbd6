//! Devices on a real disk, with faults put in between where a real disk has none to offer.

mod checksums;
mod failing;
mod forks;
mod named;
mod ram;
mod sealed;

use super::*;
use crate::device::spec::{SwapList, SwapSpec};
use crate::stats::Counter;
use crate::units::{Bytes, PAGE_SIZE};
use failing::{FailingDisk, Faulty};
use forks::fork;
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

    fn has_entries(&self, _: usize) -> bool {
        false
    }

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
