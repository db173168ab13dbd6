//! The invariants of the books and of all clusters, as a checker that debug builds run.

use super::allotments::Allotment;
use super::cluster::{ClusterState, FREE_LIST, LISTS};
use super::counts::{SlotState, Tally};
use super::table::{Books, SlotTable, place_of};

/// What the clusters say, to compare with the books.
struct Found {
    tally: Tally,
    idle_allotments: u32,
    sealed_clusters: u32,
    current_clusters: usize,
    /// Clusters that say that they stand in a list, by list.
    listed: [usize; LISTS],
}

impl Found {
    fn add(&self, state: SlotState, slots: u64) {
        self.tally.begin(state, self.tally.get(state) + slots);
    }
}

impl SlotTable {
    /// Checks every invariant from the bitmaps up, when no operation is under way.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self, books: &Books) {
        // 1. Clusters, and the allotments that they make up.
        let mut found = Found {
            tally: Tally::default(),
            idle_allotments: 0,
            sealed_clusters: 0,
            current_clusters: 0,
            listed: [0; LISTS],
        };
        for index in 0..self.layout.allotments() {
            let allotment = &books.allotments[index];
            found.add(SlotState::Bad, allotment.bad.into());
            if allotment.is_ours() {
                self.check_allotment(books, index, allotment, &mut found);
            } else {
                let state = match self.is_closed() {
                    true => SlotState::Sealed,
                    false if allotment.is_anothers() => SlotState::Another,
                    false => SlotState::Ungrown,
                };
                found.add(state, self.layout.slots_of(index) - u64::from(allotment.bad));
            }
        }
        // 2. Counts of slots.
        for state in [
            SlotState::Taken,
            SlotState::Free,
            SlotState::Ungrown,
            SlotState::Sealed,
            SlotState::Another,
            SlotState::Bad,
        ] {
            assert_eq!(self.tally.get(state), found.tally.get(state), "slots that are {state:?}");
        }
        // 3. Counts of clusters, and lists of them: a table that is closed has none.
        if self.is_closed() {
            return;
        }
        assert_eq!(found.idle_allotments, books.idle_allotments, "idle allotments");
        assert_eq!(found.sealed_clusters, books.sealed_clusters, "sealed clusters");
        let currents = (0..self.owners()).filter(|owner| self.current(*owner).is_some()).count();
        assert_eq!(found.current_clusters, currents, "current clusters");
        for (list, clusters) in found.listed.into_iter().enumerate() {
            let all = books.lists.iter(&self.clusters, list);
            let standing =
                all.filter(|cluster| self.clusters.state(*cluster) == ClusterState::Listed(list));
            assert_eq!(standing.count(), clusters, "clusters of list {list}");
        }
    }

    /// Checks the clusters of an allotment that is this process's.
    fn check_allotment(&self, books: &Books, index: u32, allotment: &Allotment, found: &mut Found) {
        let mut in_free_list = 0;
        for (i, cluster) in self.layout.clusters_of(index).enumerate() {
            let cluster = self.clusters.lock(cluster);
            cluster.check();
            found.add(SlotState::Taken, cluster.used_slots());
            let free = cluster.free_slots();
            if self.is_closed() {
                found.add(SlotState::Sealed, free);
                continue;
            }
            let state = cluster.state();
            assert_eq!(i < allotment.grown as usize, state != ClusterState::Absent);
            match state {
                ClusterState::Absent => found.add(SlotState::Ungrown, free),
                ClusterState::Sealed => {
                    found.sealed_clusters += 1;
                    found.add(SlotState::Sealed, free);
                }
                ClusterState::Current => {
                    found.current_clusters += 1;
                    let index = Some(cluster.index());
                    let owners = (0..self.owners()).filter(|owner| self.current(*owner) == index);
                    assert_eq!(owners.count(), 1, "a current cluster has an owner");
                    found.add(SlotState::Free, free);
                }
                ClusterState::Full | ClusterState::Listed(_) => {
                    assert_eq!(state, place_of(&cluster), "a cluster stands where it should not");
                    found.add(SlotState::Free, free);
                    if let ClusterState::Listed(list) = state {
                        found.listed[list] += 1;
                        in_free_list += u8::from(list == FREE_LIST);
                    }
                }
            }
        }
        if !self.is_closed() {
            assert_eq!(in_free_list, allotment.free_clusters);
            found.idle_allotments += u32::from(self.is_idle(books, index));
        }
    }
}
