//! What the slot map promises, a case each, on a disk that does as it is told. Neighbours: the map
//! beside a model of it, and several threads at one map.

use super::*;
use std::sync::Mutex;

mod model;
mod threads;

/// A disk that other processes use too, and that can be full.
#[derive(Debug, Default)]
struct TestDisk {
    refuses: AtomicBool,
    full: AtomicBool,
    keeps_all: bool,
    shared: bool,
    released: Mutex<Vec<Range<u64>>>,
}

impl Disk for TestDisk {
    fn is_shared(&self) -> bool {
        self.shared
    }

    fn acquire(&self, _: Range<u64>) -> bool {
        !self.refuses.load(Relaxed)
    }

    fn gives_back(&self) -> bool {
        !self.keeps_all
    }

    fn release(&self, bytes: Range<u64>) {
        self.released.lock().unwrap().push(bytes);
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        if self.full.load(Relaxed) { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

impl TestDisk {
    /// The allotments that were given back, by the cluster that each begins with.
    fn released(&self) -> Vec<u64> {
        let cluster = |bytes: &Range<u64>| bytes.start / (CLUSTER_SLOTS * PAGE_SIZE) as u64;
        self.released.lock().unwrap().drain(..).map(|bytes| cluster(&bytes)).collect()
    }
}

impl SlotMap {
    /// As if the time to ask again had come.
    fn forget_waits(&self) {
        let books = &mut *self.books.inspect();
        books.no_growth_until = books.no_growth_until.map(|_| Instant::now());
        books.retry_at = books.retry_at.map(|_| Instant::now());
    }

    /// Everything that can be had.
    fn alloc_all(&self, cpu: usize, disk: &TestDisk) -> Vec<u64> {
        let runs = std::iter::from_fn(|| self.alloc_on(cpu, 256, disk));
        runs.flat_map(|(offset, len)| offset..offset + len as u64).collect()
    }
}

/// Every combination of the settings.
fn all_settings() -> impl Iterator<Item = SlotSettings> {
    let switch = |n: usize, bit: usize| n >> bit & 1 == 1;
    (0..32).map(move |n| SlotSettings {
        lock: if switch(n, 0) { SlotLock::Device } else { SlotLock::Cluster },
        cache: switch(n, 1),
        cpu_cluster: switch(n, 2),
        batching: if switch(n, 3) { Batching::Single } else { Batching::Whole },
        long_runs: switch(n, 4),
    })
}

fn map_of(pages: u64, reserved: u64, settings: SlotSettings, cpus: usize) -> SlotMap {
    SlotMap::new(pages, reserved, settings, cpus, Stats::anonymous().unwrap()).unwrap()
}

/// A map of whole clusters for one processor, without caches.
fn map_of_clusters(clusters: u64) -> SlotMap {
    let settings = SlotSettings { cache: false, ..SlotSettings::default() };
    map_of(clusters * CLUSTER_SLOTS as u64, 0, settings, 1)
}

#[test]
fn pages_evicted_together_get_neighbouring_slots() {
    let (map, disk) = (map_of_clusters(64), TestDisk::default());
    // 100 does not divide 512: the run is shortened at a cluster's end, and the next one begins
    // right after.
    let mut expected = 0;
    for _ in 0..30 {
        let (offset, len) = map.alloc_on(0, 100, &disk).unwrap();
        assert_eq!(offset, expected);
        expected += len as u64;
    }
    assert_eq!(expected, 5 * CLUSTER_SLOTS as u64);
}

#[test]
fn fragments_are_left_alone_until_needed_and_the_emptiest_goes_first() {
    let (map, disk) = (map_of_clusters(4), TestDisk::default());
    (0..8).for_each(|_| assert_eq!(map.alloc_on(0, 256, &disk).unwrap().1, 256));
    assert_eq!(map.alloc_on(0, 1, &disk), None);
    // Cluster 1 loses every other slot, cluster 2 all but eight.
    (512..1024).step_by(2).for_each(|slot| {
        map.put(pieces(slot, 1), &disk);
    });
    map.put(pieces(1024, 504), &disk);
    assert_eq!(map.alloc_on(0, 64, &disk), Some((1024, 64)));
    assert_eq!(map.alloc_on(0, 512, &disk), Some((1088, 440)), "the longest run there is");
    assert_eq!(map.alloc_on(0, 64, &disk), Some((512, 1)));
    map.check();
}

#[test]
fn a_fresh_cluster_is_begun_rather_than_a_run_cut_into_crumbs() {
    let (map, disk) = (map_of_clusters(4), TestDisk::default());
    assert_eq!(map.alloc_on(0, 505, &disk), Some((0, 505)));
    assert_eq!(map.alloc_on(0, 64, &disk), Some((512, 64)), "seven slots are no run for 64");
    assert_eq!(map.alloc_on(0, 440, &disk), Some((576, 440)));
    assert_eq!(map.alloc_on(0, 64, &disk), Some((1016, 8)), "eight are");
}

#[test]
fn clusters_of_which_slots_were_in_use_are_counted_once() {
    let (map, disk) = (map_of_clusters(4), TestDisk::default());
    assert_eq!(map.touched_clusters(), 0);
    for _ in 0..3 {
        assert_eq!(map.alloc_all(0, &disk).len(), 4 * CLUSTER_SLOTS);
        assert_eq!(map.touched_clusters(), 4);
        (0..4 * CLUSTER_SLOTS as u64).for_each(|slot| {
            map.free_on(0, slot, 1, &disk);
        });
    }
    let map = map_of_clusters(4);
    let (offset, len) = map.alloc_on(0, 300, &disk).unwrap();
    map.free_on(0, offset, len, &disk);
    assert_eq!((map.touched_clusters(), map.counts().used), (1, 0));
}

#[test]
fn an_allotment_given_back_is_asked_for_again() {
    let (map, disk) = (map_of_clusters(4), TestDisk::default());
    let runs: Vec<_> = (0..4).map(|_| map.alloc_on(0, 512, &disk).unwrap()).collect();
    runs.iter().for_each(|(offset, len)| {
        map.free_on(0, *offset, *len, &disk);
    });
    assert_eq!(disk.released(), [1, 2], "one idle allotment is kept, and the current one");
    map.check();
    assert_eq!(map.alloc_all(0, &disk).len(), 4 * CLUSTER_SLOTS);
}

#[test]
fn a_sealed_cluster_waits_for_the_youngest_child_that_shares_it() {
    // One cluster of disk space: others use the disk too, so that an allotment is acquired at a
    // time.
    let (map, disk) = (map_of_clusters(64), TestDisk { shared: true, ..TestDisk::default() });
    assert_eq!(map.alloc_on(0, 2, &disk), Some((0, 2)));
    disk.full.store(true, Relaxed);
    map.seal(1, &disk);
    assert_eq!(map.alloc_on(0, 1, &disk), None);
    map.free_on(0, 0, 1, &disk);
    map.seal(2, &disk);
    map.free_on(0, 1, 1, &disk);
    map.drain(&disk);
    assert_eq!((map.counts().free, map.counts().sealed), (0, 512));
    map.seal(3, &disk);
    map.unseal(Some(1));
    map.unseal(Some(2));
    assert_eq!(map.alloc_on(0, 1, &disk), None, "child 2 still reads slot 1");
    map.unseal(Some(3));
    assert_eq!(map.alloc_on(0, 1, &disk), Some((0, 1)), "it was not in use at fork 3");
}

#[test]
fn a_closed_map_gives_allotments_back_as_they_empty() {
    let (map, disk) =
        (map_of(128 * CLUSTER_SLOTS as u64, 1, SlotSettings::default(), 1), TestDisk::default());
    assert_eq!(map.alloc_on(0, 511, &disk), Some((1, 511)));
    assert_eq!(map.alloc_on(0, 512, &disk), Some((512, 512)));
    assert_eq!(map.alloc_on(0, 512, &disk), Some((1024, 512)));
    map.close(&disk);
    let in_use = || {
        let mut bytes = Vec::new();
        assert!(map.all_owned_in_use(|range| {
            bytes.push(range);
            true
        }));
        bytes
    };
    assert_eq!(in_use(), [0..4 << 20, 4 << 20..8 << 20]);
    assert_eq!((map.alloc_on(0, 1, &disk), map.capacity_pages()), (None, 511 + 2 * 512));
    assert!(!map.free_on(0, 1, 1023, &disk));
    assert_eq!(
        (map.capacity_pages(), map.stats.get(Counter::DeviceCapacityBytes)),
        (512, 512 * PAGE_SIZE as u64)
    );
    assert_eq!(disk.released(), [0]);
    assert_eq!(in_use().as_slice(), std::slice::from_ref(&(4 << 20..8 << 20)));
    map.check();
    assert!(map.free_on(0, 1024, 512, &disk), "nothing is left");
    assert_eq!((disk.released(), map.capacity_pages()), (vec![2], 0));
    map.check();
}

#[test]
#[should_panic(expected = "not in use was freed")]
fn freeing_twice_is_a_bug() {
    let (map, disk) = (map_of_clusters(1), TestDisk::default());
    let (offset, len) = map.alloc_on(0, 4, &disk).unwrap();
    map.free_on(0, offset, len, &disk);
    map.free_on(0, offset + 3, 1, &disk);
    map.drain(&disk);
}

#[test]
fn a_cluster_lock_spares_the_devices() {
    let locks = |lock| {
        let settings = SlotSettings { lock, ..SlotSettings::default() };
        let (map, disk) = (map_of(64 << 9, 0, settings, 1), TestDisk::default());
        for _ in 0..1000 {
            let (offset, len) = map.alloc_on(0, 64, &disk).unwrap();
            map.put(pieces(offset, len), &disk);
        }
        (map.stats.get(Counter::SlotLock), map.stats.get(Counter::ClusterLock))
    };
    // And some to take disk space into use.
    let (device, cluster) = locks(SlotLock::Device);
    assert!((2000..2020).contains(&device) && cluster == 0, "{device} {cluster}");
    let (device, cluster) = locks(SlotLock::Cluster);
    assert!(device < 100 && cluster >= 2000, "{device} {cluster}");
}

#[test]
fn caches_are_used_while_there_is_room() {
    let (map, disk) = (map_of(2048, 0, SlotSettings::default(), 1), TestDisk::default());
    let cached = || map.counts().cached;
    let take = |want| map.alloc_on(0, want, &disk).unwrap();
    // One is taken, and 63 lie ready beside it.
    assert_eq!((take(1), cached()), ((0, 1), 63));
    assert_eq!((take(5), cached()), ((1, 5), 58));
    // As many freed ones are collected, wherever they lie; then all go back at once.
    let runs: Vec<Run> = [224, 224, 256, 256, 256, 256, 256].map(take).to_vec();
    (0..63).for_each(|slot| assert!(!map.free_on(0, runs[0].0 + 3 * slot, 1, &disk)));
    assert_eq!(cached(), 58 + 63);
    map.free_on(0, runs[0].0 + 223, 1, &disk);
    assert_eq!((cached(), map.stats.get(Counter::SlotCacheReturn)), (58, 1));
    // 256 + 64 are free: below 128 what is cached goes back, and nothing is cached any more.
    (0..24).for_each(|_| assert_eq!(take(8).1, 8));
    assert_eq!((map.available(), cached(), map.stats.get(Counter::SlotCacheDrain)), (128, 58, 0));
    take(8);
    assert_eq!(
        (map.available(), cached(), map.stats.get(Counter::SlotCacheDrain)),
        (120 + 58, 0, 1)
    );
    take(1);
    map.free_on(0, runs[1].0, 1, &disk);
    assert_eq!(cached(), 0);
    // Until there is room again: for five times 64.
    map.free_on(0, runs[1].0 + 1, 142, &disk);
    take(1);
    assert_eq!((map.available(), cached()), (319, 0));
    map.free_on(0, runs[2].0, 2, &disk);
    assert_eq!(map.available(), 321);
    take(1);
    assert!(cached() > 0);
    map.check();
}

#[test]
fn the_baseline_takes_and_puts_back_slots_one_by_one_and_still_in_runs() {
    let locks = |settings: SlotSettings| {
        let (map, disk) = (map_of(64 << 9, 0, settings, 1), TestDisk::default());
        assert_eq!(map.alloc_on(0, 64, &disk), Some((0, 64)));
        assert_eq!(map.alloc_on(0, 64, &disk), Some((64, 64)));
        let counted = || map.stats.get(Counter::SlotLock) + map.stats.get(Counter::ClusterLock);
        let before = counted();
        assert_eq!(map.alloc_on(0, 64, &disk), Some((128, 64)));
        let (taken, before) = (counted() - before, counted());
        map.free_on(0, 0, 64, &disk);
        let put = counted() - before;
        map.check();
        assert_eq!(map.counts().used, 128);
        (taken, put)
    };
    let baseline = SlotSettings {
        lock: SlotLock::Device,
        cache: false,
        cpu_cluster: false,
        batching: Batching::Single,
        ..SlotSettings::default()
    };
    assert_eq!(locks(baseline), (64, 64));
    assert_eq!(locks(SlotSettings { lock: SlotLock::Cluster, ..baseline }), (64, 64));
    assert_eq!(
        locks(SlotSettings { cache: true, ..baseline }),
        (1, 1),
        "caches take and give back many at once"
    );
    assert_eq!(locks(SlotSettings { batching: Batching::Whole, ..baseline }), (1, 1));
}
