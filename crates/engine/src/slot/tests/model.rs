//! The slot map against a model that keeps a state for every slot.

use super::super::cluster::{Bitmap, find_run};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn settings() -> impl Strategy<Value = SlotSettings> {
    prop::sample::select(all_settings().collect::<Vec<_>>())
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
