//! Several threads at one slot map, also while the disk is asked for space.

use super::*;

/// A disk on which to set space aside takes until somebody says so.
#[derive(Debug)]
struct SlowDisk {
    disk: TestDisk,
    asked: Mutex<Vec<Range<u64>>>,
    go: std::sync::Barrier,
}

impl Disk for SlowDisk {
    fn is_shared(&self) -> bool {
        self.disk.is_shared()
    }
    fn acquire(&self, bytes: Range<u64>) -> bool {
        self.disk.acquire(bytes)
    }
    fn gives_back(&self) -> bool {
        self.disk.gives_back()
    }
    fn release(&self, bytes: Range<u64>) {
        self.disk.release(bytes);
    }
    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let nth = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(bytes.clone());
            asked.len()
        };
        // The first growth is for the test to begin with.
        (nth > 1).then(|| (self.go.wait(), self.go.wait()));
        self.disk.allocate(bytes)
    }
}

#[test]
fn slots_come_and_go_while_the_disk_is_asked_for_space() {
    let settings = SlotSettings { cache: false, ..SlotSettings::default() };
    let map = map_of(64 << 9, 0, settings, 2);
    let disk = SlowDisk {
        disk: TestDisk::default(),
        asked: Mutex::default(),
        go: std::sync::Barrier::new(2),
    };
    // All of the first 16 MiB, so that the next run needs space.
    let runs: Vec<Run> = (0..8).map(|_| map.alloc_on(0, 512, &disk).unwrap()).collect();
    assert_eq!(
        disk.asked.lock().unwrap().as_slice(),
        std::slice::from_ref(&(0..16 << 20)),
        "in a large step"
    );
    std::thread::scope(|scope| {
        let grower = scope.spawn(|| map.alloc_on(0, 512, &disk));
        disk.go.wait();
        // It waits for the disk, and holds up nobody who needs no more of it.
        map.free_on(1, runs[3].0, runs[3].1, &disk);
        assert_eq!(map.alloc_on(1, 256, &disk), Some((runs[3].0, 256)));
        disk.go.wait();
        assert_eq!(grower.join().unwrap().map(|run| run.1), Some(512));
    });
    map.check();
    assert_eq!(disk.asked.lock().unwrap().len(), 2);
}

/// Runs `call` on as many threads, each with its number.
fn on_threads(threads: usize, call: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        let call = &call;
        (0..threads).for_each(|thread| drop(scope.spawn(move || call(thread))));
    });
}

#[test]
fn threads_never_share_a_slot() {
    for settings in all_settings() {
        // So small that clusters are fought over, and space runs out now and then.
        let (map, disk) =
            (map_of(16 << 9, 1, settings, 4), TestDisk { keeps_all: true, ..TestDisk::default() });
        let taken: Vec<AtomicU64> = (0..16 << 3).map(|_| AtomicU64::new(0)).collect();
        let claim = |(offset, len): Run| {
            for slot in offset..offset + len as u64 {
                let bit = 1 << (slot % 64);
                assert_eq!(taken[slot as usize / 64].fetch_or(bit, Relaxed) & bit, 0, "two owners");
            }
        };
        let give = |(offset, len): Run| {
            for slot in offset..offset + len as u64 {
                let bit = 1 << (slot % 64);
                assert_ne!(taken[slot as usize / 64].fetch_and(!bit, Relaxed) & bit, 0);
            }
        };
        on_threads(32, |thread| {
            let mut random = thread as u64 + 1;
            let mut owned: Vec<Run> = Vec::new();
            for _ in 0..2_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let roll = (random >> 33) as usize;
                let cpu = thread + roll % 2;
                if (roll / 2).is_multiple_of(2) && !owned.is_empty() {
                    let run = owned.swap_remove(roll / 4 % owned.len());
                    give(run);
                    // As one run, or as faults do it.
                    let parts = if (roll / 4).is_multiple_of(2) { run.1 } else { 1 };
                    (0..run.1).step_by(parts).for_each(|at| {
                        map.free_on(cpu, run.0 + at as u64, parts, &disk);
                    });
                } else {
                    let want = if (roll / 4).is_multiple_of(8) {
                        1 + roll / 32 % 256
                    } else {
                        1 + roll / 32 % 32
                    };
                    if let Some(run) = map.alloc_on(cpu, want, &disk) {
                        claim(run);
                        owned.push(run);
                    }
                }
            }
            for run in owned {
                give(run);
                map.free_on(thread, run.0, run.1, &disk);
            }
        });
        map.check();
        assert_eq!(map.counts().used, 0, "{settings:?}");
        assert_eq!(map.stats.get(Counter::DevicePages), 0);
        assert_eq!(map.alloc_all(0, &disk).len(), (16 << 9) - 1, "{settings:?}");
    }
}
