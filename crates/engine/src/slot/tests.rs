//! The slot map against a model that keeps a state for every slot, on a disk that does as it is
//! told.

use super::cluster::{Bitmap, find_run};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// A disk that other processes use too, and that can be full.
#[derive(Debug, Default)]
struct TestDisk {
    refuses: AtomicBool,
    full: AtomicBool,
    keeps_leases: bool,
    shared: bool,
    released: Mutex<Vec<Range<u64>>>,
}

impl Disk for TestDisk {
    fn is_shared(&self) -> bool {
        self.shared
    }

    fn lease(&self, _: Range<u64>) -> bool {
        !self.refuses.load(Relaxed)
    }

    fn gives_back(&self) -> bool {
        !self.keeps_leases
    }

    fn release(&self, bytes: Range<u64>) {
        self.released.lock().unwrap().push(bytes);
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        if self.full.load(Relaxed) { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

impl TestDisk {
    /// The extents that were given back, by the cluster that each begins with.
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
        books.lease_retry = books.lease_retry.map(|_| Instant::now());
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

fn settings() -> impl Strategy<Value = SlotSettings> {
    prop::sample::select(all_settings().collect::<Vec<_>>())
}

fn map_of(pages: u64, reserved: u64, settings: SlotSettings, cpus: usize) -> SlotMap {
    SlotMap::new(pages, reserved, settings, cpus, Stats::anonymous().unwrap()).unwrap()
}

/// A map of whole clusters for one processor, without caches.
fn map_of_clusters(clusters: u64) -> SlotMap {
    let settings = SlotSettings { cache: false, ..SlotSettings::default() };
    map_of(clusters * CLUSTER_SLOTS as u64, 0, settings, 1)
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { cpu: usize, want: usize },
    Free { cpu: usize, nth: usize, len: usize },
    Bad { nth: usize },
    Disk { refuses: bool, full: bool },
    Wait,
    Drain,
    Trim,
    Fork,
    Unseal { living: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..3, prop_oneof![1usize..=63, 1usize..=256])
            .prop_map(|(cpu, want)| Step::Alloc { cpu, want }),
        6 => (0usize..3, any::<usize>(), prop_oneof![Just(1usize), 1usize..=63, 1usize..=512])
            .prop_map(|(cpu, nth, len)| Step::Free { cpu, nth, len }),
        1 => any::<usize>().prop_map(|nth| Step::Bad { nth }),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(refuses, full)| Step::Disk { refuses, full }),
        2 => Just(Step::Wait),
        1 => Just(Step::Drain),
        1 => Just(Step::Trim),
        1 => Just(Step::Fork),
        1 => (0u64..4).prop_map(|living| Step::Unseal { living }),
    ]
}

/// A map beside its model, which has a state for every slot.
struct Model {
    map: SlotMap,
    disk: TestDisk,
    /// The slots of the device that may be used.
    usable: Range<u64>,
    used: BTreeSet<u64>,
    bad: BTreeSet<u64>,
    /// Of each cluster the last fork that it was in use at.
    seals: BTreeMap<u64, u64>,
    forks: u64,
}

impl Model {
    fn new(map: SlotMap, disk: TestDisk, usable: Range<u64>) -> Model {
        let (used, bad, seals) = Default::default();
        Model { map, disk, usable, used, bad, seals, forks: 0 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { cpu, want } => match self.map.alloc_on(cpu, want, &self.disk) {
                Some(run) => self.take(run, want),
                None => self.check_none_left(),
            },
            Step::Free { .. } | Step::Bad { .. } if self.used.is_empty() => {}
            Step::Free { cpu, nth, len } => self.free(cpu, nth, len),
            Step::Bad { nth } => {
                let slot = *self.used.iter().nth(nth % self.used.len()).unwrap();
                self.used.remove(&slot);
                self.bad.insert(slot);
                self.map.mark_bad(slot, 1);
            }
            Step::Disk { refuses, full } => {
                self.disk.refuses.store(refuses, Relaxed);
                self.disk.full.store(full, Relaxed);
            }
            Step::Wait => self.map.forget_waits(),
            Step::Drain => {
                self.map.drain(&self.disk);
                assert_eq!(self.map.counts().cached, 0);
            }
            Step::Trim => self.map.trim(&self.disk),
            Step::Fork => {
                self.forks += 1;
                self.map.seal(self.forks, &self.disk);
                let clusters = self.used.iter().map(|slot| slot / CLUSTER_SLOTS as u64);
                self.seals.extend(clusters.map(|cluster| (cluster, self.forks)));
            }
            Step::Unseal { living } => {
                let oldest = (living > 0 && self.forks >= living).then(|| self.forks + 1 - living);
                self.map.unseal(oldest);
                self.seals.retain(|_, seal| oldest.is_some_and(|oldest| *seal >= oldest));
            }
        }
        self.check_counts();
    }

    /// A run was handed out: it lies in one cluster that is not sealed, and nobody has it.
    fn take(&mut self, (offset, len): Run, want: usize) {
        let (slots, end) = (CLUSTER_SLOTS as u64, offset + len as u64);
        assert!(len >= 1 && len <= want);
        assert!(self.usable.start <= offset && end <= self.usable.end);
        assert_eq!(offset / slots, (end - 1) / slots, "crosses clusters");
        assert!(!self.seals.contains_key(&(offset / slots)), "a slot of a sealed cluster");
        for slot in offset..end {
            assert!(!self.bad.contains(&slot), "a bad slot");
            assert!(self.used.insert(slot), "handed out twice");
        }
    }

    /// Nothing was handed out: nothing is free, and the disk has no more or is not asked again yet.
    fn check_none_left(&self) {
        let counts = self.map.counts();
        assert_eq!((counts.free, counts.cached), (0, 0), "free slots, and none was handed out");
        let full = self.map.books.inspect().no_growth_until.is_some();
        let asked = full || self.disk.refuses.load(Relaxed);
        assert!(counts.ungrown == 0 || asked, "there was more of the disk");
    }

    fn free(&mut self, cpu: usize, nth: usize, len: usize) {
        let first = *self.used.iter().nth(nth % self.used.len()).unwrap();
        let run = (first..first + len as u64).take_while(|slot| self.used.remove(slot)).count();
        self.map.free_on(cpu, first, run, &self.disk);
        for bytes in self.disk.released.lock().unwrap().drain(..) {
            let range = bytes.start / PAGE_SIZE as u64..bytes.end / PAGE_SIZE as u64;
            assert_eq!(self.used.range(range).count(), 0);
        }
    }

    fn check_counts(&self) {
        let (map, counts) = (&self.map, self.map.counts());
        map.check();
        let expected = (self.used.len() as u64, self.bad.len() as u64);
        assert_eq!((counts.used, counts.bad), expected);
        assert_eq!(map.stats.get(Counter::DevicePages), counts.used);
        let growable = map.books.inspect().no_growth_until.is_none();
        let ungrown = if growable { counts.ungrown } else { 0 };
        let capacity = counts.used + counts.cached + counts.free + ungrown;
        assert_eq!(map.capacity_pages(), capacity);
        let capacity_bytes = map.stats.get(Counter::DeviceCapacityBytes);
        assert_eq!(capacity_bytes, capacity * PAGE_SIZE as u64);
    }

    /// Everything comes back, and all of it can be had.
    fn finish(mut self) {
        let map = &self.map;
        self.used.iter().for_each(|slot| {
            map.free_on(0, *slot, 1, &self.disk);
        });
        map.drain(&self.disk);
        map.unseal(None);
        (self.disk.refuses, self.disk.full) = Default::default();
        map.forget_waits();
        map.check();
        let all: BTreeSet<u64> = map.alloc_all(0, &self.disk).into_iter().collect();
        let (usable, bad) = (self.usable.end - self.usable.start, self.bad.len() as u64);
        assert_eq!(all.len() as u64, usable - bad);
        assert!(all.is_disjoint(&self.bad));
        let counts = Counts { used: all.len() as u64, bad, ..Counts::default() };
        assert_eq!(map.counts(), counts);
        map.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_map_agrees_with_a_model(
        pages in (CLUSTER_SLOTS as u64 / 2)..70 * CLUSTER_SLOTS as u64,
        reserved in 0u64..2,
        settings in settings(),
        cpus in 1usize..=3,
        shared in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let map = map_of(pages, reserved, settings, cpus);
        let disk = TestDisk { shared, ..TestDisk::default() };
        let mut model = Model::new(map, disk, reserved..pages);
        steps.into_iter().for_each(|step| model.step(step));
        model.finish();
    }

    #[test]
    fn runs_are_found_where_a_search_bit_by_bit_finds_them(
        words in prop::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()], 8),
        want in 1usize..=512,
    ) {
        let bitmap: Bitmap = words.try_into().unwrap();
        let free = |slot: usize| slot < CLUSTER_SLOTS && bitmap[slot / 64] >> (slot % 64) & 1 == 0;
        let runs: Vec<(usize, usize)> = (0..CLUSTER_SLOTS)
            .filter(|slot| free(*slot) && (*slot == 0 || !free(slot - 1)))
            .map(|start| (start, (start..).take_while(|slot| free(*slot)).count()))
            .collect();
        let expected = match runs.iter().find(|run| run.1 >= want) {
            Some((start, _)) => (*start, want),
            None => runs
                .iter()
                .copied()
                .fold((0, 0), |best, run| if run.1 > best.1 { run } else { best }),
        };
        prop_assert_eq!(find_run(&bitmap, want), expected);
    }
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
fn a_lease_given_back_is_asked_for_again() {
    let (map, disk) = (map_of_clusters(4), TestDisk::default());
    let runs: Vec<_> = (0..4).map(|_| map.alloc_on(0, 512, &disk).unwrap()).collect();
    runs.iter().for_each(|(offset, len)| {
        map.free_on(0, *offset, *len, &disk);
    });
    assert_eq!(disk.released(), [1, 2], "one idle extent is kept, and the current one");
    map.check();
    assert_eq!(map.alloc_all(0, &disk).len(), 4 * CLUSTER_SLOTS);
}

#[test]
fn a_sealed_cluster_waits_for_the_youngest_child_that_shares_it() {
    // One cluster of disk space: others use the disk too, so that an extent is leased at a time.
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
fn a_closed_map_gives_leases_back_as_extents_empty() {
    let (map, disk) =
        (map_of(128 * CLUSTER_SLOTS as u64, 1, SlotSettings::default(), 1), TestDisk::default());
    assert_eq!(map.alloc_on(0, 511, &disk), Some((1, 511)));
    assert_eq!(map.alloc_on(0, 512, &disk), Some((512, 512)));
    assert_eq!(map.alloc_on(0, 512, &disk), Some((1024, 512)));
    map.close(&disk);
    let in_use = || {
        let mut bytes = Vec::new();
        assert!(map.all_leases_in_use(|range| {
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
    fn lease(&self, bytes: Range<u64>) -> bool {
        self.disk.lease(bytes)
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
        let (map, disk) = (
            map_of(16 << 9, 1, settings, 4),
            TestDisk { keeps_leases: true, ..TestDisk::default() },
        );
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
