//! The slot map against a model that keeps a state for every slot.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

impl SlotMap {
    /// Checks every invariant from the bitmaps up.
    pub(crate) fn check(&self) {
        let mut counts = Counts::default();
        let mut idle = 0;
        let mut sealed_clusters = 0;
        let mut listed = [0usize; LISTS];
        for (index, extent) in self.extents.iter().enumerate() {
            let (mut used, mut in_free_list) = (0, 0);
            for (i, cluster) in self.clusters_of(index as u32).enumerate() {
                let state = self.table.state(cluster);
                let (cluster_used, free) = (self.table.used_slots(cluster), self.table.free_slots(cluster));
                used += cluster_used;
                counts.used += cluster_used;
                if self.closed {
                    counts.sealed += free;
                    continue;
                }
                let grown = extent.owner == Owner::Us && i < extent.grown as usize;
                assert_eq!(grown, state != State::Absent);
                assert_eq!(state == State::Current, self.current == Some(cluster));
                match state {
                    State::Absent if extent.owner == Owner::Another => counts.another += free,
                    State::Absent => counts.ungrown += free,
                    State::Sealed => counts.sealed += free,
                    _ => counts.free += free,
                }
                match state {
                    State::Sealed => sealed_clusters += 1,
                    State::Full => assert_eq!(free, 0),
                    State::Listed(FREE_LIST) => {
                        assert!(cluster_used == 0 && free > 0);
                        in_free_list += 1;
                    }
                    State::Listed(list) => {
                        let occupied = CLUSTER_SLOTS - free as usize;
                        assert!(cluster_used > 0 && free > 0 && occupied / (CLUSTER_SLOTS / 4) == list - 1);
                    }
                    State::Absent | State::Current => {}
                }
                if let State::Listed(list) = state {
                    assert!(self.table.list(list).contains(&cluster));
                    listed[list] += 1;
                }
            }
            assert_eq!(used, extent.used as u64);
            assert!(used == 0 || extent.owner == Owner::Us);
            counts.bad += extent.bad as u64;
            if !self.closed {
                assert_eq!(in_free_list, extent.free_clusters);
                idle += u32::from(self.is_idle(index));
            }
        }
        assert_eq!(counts, self.counts);
        let Counts { used, free, ungrown, sealed, another, bad } = counts;
        assert_eq!(used + free + ungrown + sealed + another + bad, self.pages - self.reserved, "a slot is lost");
        if !self.closed {
            assert_eq!((idle, sealed_clusters), (self.idle_extents, self.sealed_clusters));
            (0..LISTS).for_each(|list| assert_eq!(self.table.list(list).len(), listed[list]));
        }
    }

    /// A copy, as a fork makes one.
    pub(crate) fn copy(&self) -> SlotMap {
        SlotMap { table: self.table.copy(), extents: self.extents.clone(), ..*self }
    }
}

/// Leases and grows as a device does, without disk.
fn grow(map: &mut SlotMap, clusters: u32) -> bool {
    if map.growth().is_none() {
        let Some(extent) = map.next_lease() else { return false };
        map.leased(extent);
    }
    let growth = map.growth().unwrap();
    map.grown(growth, clusters.min(growth.clusters));
    true
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { want: usize, fragments: bool },
    Free { nth: usize, len: usize },
    Bad { nth: usize },
    Grow { clusters: u32 },
    Refuse,
    ForgetRefused,
    Fork,
    Unseal { living: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1usize..=256, any::<bool>()).prop_map(|(want, fragments)| Step::Alloc { want, fragments }),
        6 => (any::<usize>(), 1usize..=256).prop_map(|(nth, len)| Step::Free { nth, len }),
        1 => any::<usize>().prop_map(|nth| Step::Bad { nth }),
        4 => (1u32..4).prop_map(|clusters| Step::Grow { clusters }),
        1 => Just(Step::Refuse),
        1 => Just(Step::ForgetRefused),
        1 => Just(Step::Fork),
        1 => (0u64..4).prop_map(|living| Step::Unseal { living }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_map_agrees_with_a_model(
        pages in (CLUSTER_SLOTS as u64 / 2)..200 * CLUSTER_SLOTS as u64,
        reserved in 0u64..2,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut map = SlotMap::new(pages, reserved).unwrap();
        // The model: slots in use, bad slots, and of each cluster the last fork that it was in use at.
        let (mut used, mut bad) = (BTreeSet::new(), BTreeSet::new());
        let mut seals: BTreeMap<u64, u64> = BTreeMap::new();
        let mut seq = 0;
        let slots = CLUSTER_SLOTS as u64;
        for step in steps {
            match step {
                Step::Alloc { want, fragments } => {
                    let free_before = map.counts().free;
                    if let Some((offset, len)) = map.alloc(want, fragments) {
                        prop_assert!(len >= 1 && len <= want && offset >= reserved && offset + len as u64 <= pages);
                        prop_assert_eq!(offset / slots, (offset + len as u64 - 1) / slots, "crosses clusters");
                        prop_assert!(!seals.contains_key(&(offset / slots)), "a slot of a sealed cluster");
                        for slot in offset..offset + len as u64 {
                            prop_assert!(!bad.contains(&slot), "a bad slot");
                            prop_assert!(used.insert(slot), "handed out twice");
                        }
                    } else {
                        prop_assert!(!fragments || free_before == 0, "free slots, and none was handed out");
                    }
                }
                Step::Free { nth, len } if !used.is_empty() => {
                    let first = *used.iter().nth(nth % used.len()).unwrap();
                    let run = (first..first + len as u64).take_while(|slot| used.remove(slot)).count();
                    map.free(first, run);
                    if let Some(extent) = map.release_idle(first) {
                        let bytes = map.extent_bytes(extent);
                        let range = bytes.start / PAGE_SIZE as u64..bytes.end / PAGE_SIZE as u64;
                        prop_assert_eq!(used.range(range).count(), 0);
                    }
                }
                Step::Bad { nth } if !used.is_empty() => {
                    let slot = *used.iter().nth(nth % used.len()).unwrap();
                    used.remove(&slot);
                    bad.insert(slot);
                    map.mark_bad(slot, 1);
                }
                Step::Free { .. } | Step::Bad { .. } => {}
                Step::Grow { clusters } => {
                    grow(&mut map, clusters);
                }
                Step::Refuse => if let Some(extent) = map.next_lease() {
                    map.refused(extent);
                },
                Step::ForgetRefused => map.forget_refused(),
                Step::Fork => {
                    seq += 1;
                    map.seal(seq);
                    seals.extend(used.iter().map(|slot| (slot / slots, seq)));
                }
                Step::Unseal { living } => {
                    let oldest = (living > 0 && seq >= living).then(|| seq + 1 - living);
                    map.unseal(oldest);
                    seals.retain(|_, seal| oldest.is_some_and(|oldest| *seal >= oldest));
                }
            }
            map.check();
            prop_assert_eq!(map.counts().used, used.len() as u64);
            prop_assert_eq!(map.counts().bad, bad.len() as u64);
        }
        // Everything comes back: nothing used, nothing sealed, all of it grown.
        let rest: Vec<u64> = used.iter().copied().collect();
        rest.iter().for_each(|slot| map.free(*slot, 1));
        map.unseal(None);
        map.forget_refused();
        while grow(&mut map, 32) {}
        map.check();
        prop_assert_eq!(map.counts().free, pages - reserved - bad.len() as u64);
    }

    #[test]
    fn runs_are_found_where_a_search_bit_by_bit_finds_them(
        words in prop::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()], 8),
        want in 1usize..=512,
    ) {
        let bitmap: cluster::Bitmap = words.try_into().unwrap();
        let free = |slot: usize| slot < CLUSTER_SLOTS && bitmap[slot / 64] >> (slot % 64) & 1 == 0;
        let runs: Vec<(usize, usize)> = (0..CLUSTER_SLOTS)
            .filter(|slot| free(*slot) && (*slot == 0 || !free(slot - 1)))
            .map(|start| (start, (start..).take_while(|slot| free(*slot)).count()))
            .collect();
        let expected = match runs.iter().find(|run| run.1 >= want) {
            Some((start, _)) => (*start, want),
            None => runs.iter().copied().fold((0, 0), |best, run| if run.1 > best.1 { run } else { best }),
        };
        prop_assert_eq!(find_run(&bitmap, want), expected);
    }
}

#[test]
fn pages_evicted_together_get_neighbouring_slots() {
    let mut map = SlotMap::new(64 * CLUSTER_SLOTS as u64, 0).unwrap();
    (0..8).for_each(|_| assert!(grow(&mut map, 1)));
    // 100 does not divide 512: the run is shortened at a cluster's end, and the next one begins right after.
    let mut expected = 0;
    for _ in 0..30 {
        let (offset, len) = map.alloc(100, false).unwrap();
        assert_eq!(offset, expected);
        expected += len as u64;
    }
    assert_eq!(expected, 5 * CLUSTER_SLOTS as u64);
}

#[test]
fn fragments_are_left_alone_until_asked_for_and_the_emptiest_goes_first() {
    let mut map = SlotMap::new(4 * CLUSTER_SLOTS as u64, 0).unwrap();
    (0..4).for_each(|_| assert!(grow(&mut map, 1)));
    (0..8).for_each(|_| assert_eq!(map.alloc(256, false).unwrap().1, 256));
    assert_eq!(map.alloc(1, true), None);
    // Cluster 1 loses every other slot, cluster 2 all but eight.
    (512..1024).step_by(2).for_each(|slot| map.free(slot, 1));
    map.free(1024, 504);
    assert_eq!(map.alloc(64, false), None);
    assert_eq!(map.alloc(64, true), Some((1024, 64)));
    assert_eq!(map.alloc(512, true), Some((1088, 440)), "the longest run there is");
    assert_eq!(map.alloc(64, true), Some((512, 1)));
    map.check();
}

#[test]
fn a_fresh_cluster_is_begun_rather_than_a_run_cut_into_crumbs() {
    let mut map = SlotMap::new(4 * CLUSTER_SLOTS as u64, 0).unwrap();
    (0..4).for_each(|_| assert!(grow(&mut map, 1)));
    assert_eq!(map.alloc(505, false), Some((0, 505)));
    assert_eq!(map.alloc(64, false), Some((512, 64)), "seven slots are no run for 64");
    assert_eq!(map.alloc(440, false), Some((576, 440)));
    assert_eq!(map.alloc(64, false), Some((1016, 8)), "eight are");
}

#[test]
fn a_lease_given_back_is_asked_for_again() {
    let mut map = SlotMap::new(4 * CLUSTER_SLOTS as u64, 0).unwrap();
    (0..4).for_each(|_| assert!(grow(&mut map, 1)));
    assert!(map.next_lease().is_none());
    let runs: Vec<_> = (0..4).map(|_| map.alloc(512, false).unwrap()).collect();
    let released: Vec<_> = runs
        .iter()
        .filter_map(|(offset, len)| {
            map.free(*offset, *len);
            map.release_idle(*offset)
        })
        .collect();
    assert_eq!(released, [1, 2], "one idle extent is kept, and the current one");
    map.check();
    assert!(grow(&mut map, 1) && grow(&mut map, 1) && !grow(&mut map, 1));
    assert_eq!(map.counts(), Counts { free: 4 * 512, ..Counts::default() });
}

#[test]
fn a_sealed_cluster_waits_for_the_youngest_child_that_shares_it() {
    let mut map = SlotMap::new(64 * CLUSTER_SLOTS as u64, 0).unwrap();
    grow(&mut map, 1);
    assert_eq!(map.alloc(2, false), Some((0, 2)));
    map.seal(1);
    assert_eq!(map.alloc(1, true), None);
    map.free(0, 1);
    map.seal(2);
    map.free(1, 1);
    assert_eq!((map.counts().free, map.counts().sealed), (0, 512));
    map.seal(3);
    map.unseal(Some(1));
    map.unseal(Some(2));
    assert_eq!(map.alloc(1, true), None, "child 2 still reads slot 1");
    map.unseal(Some(3));
    assert_eq!(map.alloc(1, true), Some((0, 1)), "it was not in use at fork 3");
}

#[test]
fn a_closed_map_gives_leases_back_as_extents_empty() {
    let mut map = SlotMap::new(128 * CLUSTER_SLOTS as u64, 1).unwrap();
    (0..2).for_each(|_| assert!(grow(&mut map, 2)));
    assert_eq!(map.alloc(511, false), Some((1, 511)));
    assert_eq!(map.alloc(512, false), Some((512, 512)));
    assert_eq!(map.alloc(512, false), Some((1024, 512)));
    map.close();
    assert_eq!(map.extents_in_use().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(map.alloc(1, true), None);
    map.free(1, 1023);
    assert_eq!((map.release_idle(1), map.release_idle(1024)), (Some(0), None));
    assert_eq!(map.extents_in_use().collect::<Vec<_>>(), [1]);
    map.check();
}

#[test]
#[should_panic(expected = "not in use was freed")]
fn freeing_twice_is_a_bug() {
    let mut map = SlotMap::new(CLUSTER_SLOTS as u64, 0).unwrap();
    grow(&mut map, 1);
    let (offset, len) = map.alloc(4, false).unwrap();
    map.free(offset, len);
    map.free(offset + 3, 1);
}
