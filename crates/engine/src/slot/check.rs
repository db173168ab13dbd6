//! The invariants of the books and of all clusters, as a checker that debug builds run.

use super::cluster::{FREE_LIST, LISTS, Records, State};
use super::counts::{Place, Tally};
use super::table::{Books, SlotTable, place_of};

impl<R: Records> SlotTable<R> {
    /// Checks every invariant from the bitmaps up, when no operation is under way.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self, books: &Books) {
        let found = Tally::<R::Word>::default();
        let add = |place, slots| found.begin(place, found.get(place) + slots);
        let (mut idle, mut sealed_clusters, mut currents) = (0, 0, 0);
        let mut listed = [0usize; LISTS];
        for (index, extent) in (0..).zip(&books.extents) {
            add(Place::Bad, extent.bad as u64);
            if !extent.is_ours() {
                let place = match self.is_closed() {
                    true => Place::Sealed,
                    false if extent.is_anothers() => Place::Another,
                    false => Place::Ungrown,
                };
                add(place, self.layout.slots_of(index) - extent.bad as u64);
                continue;
            }
            let mut in_free_list = 0;
            for (i, cluster) in self.layout.clusters_of(index).enumerate() {
                let cluster = self.clusters.lock(cluster);
                cluster.check();
                let (used, free) = (cluster.used_slots(), cluster.free_slots());
                add(Place::Taken, used);
                if self.is_closed() {
                    add(Place::Sealed, free);
                    continue;
                }
                assert_eq!(i < extent.grown as usize, cluster.state() != State::Absent);
                match cluster.state() {
                    State::Absent => add(Place::Ungrown, free),
                    State::Sealed => {
                        sealed_clusters += 1;
                        add(Place::Sealed, free);
                    }
                    State::Current => {
                        currents += 1;
                        let owners = (0..self.owners())
                            .filter(|o| self.current(*o) == Some(cluster.index()));
                        assert_eq!(owners.count(), 1, "a current cluster has an owner");
                        add(Place::Free, free);
                    }
                    state @ (State::Full | State::Listed(_)) => {
                        assert_eq!(
                            state,
                            place_of(&cluster),
                            "a cluster stands where it should not"
                        );
                        add(Place::Free, free);
                        if let State::Listed(list) = state {
                            listed[list] += 1;
                            in_free_list += u8::from(list == FREE_LIST);
                        }
                    }
                }
            }
            if !self.is_closed() {
                assert_eq!(in_free_list, extent.free_clusters);
                idle += u32::from(self.is_idle(books, index));
            }
        }
        for place in
            [Place::Taken, Place::Free, Place::Ungrown, Place::Sealed, Place::Another, Place::Bad]
        {
            assert_eq!(self.tally.get(place), found.get(place), "slots that are {place:?}");
        }
        if !self.is_closed() {
            assert_eq!((idle, sealed_clusters), (books.idle_extents, books.sealed_clusters));
            assert_eq!(currents, (0..self.owners()).filter(|o| self.current(*o).is_some()).count());
            for (list, clusters) in listed.into_iter().enumerate() {
                let all = books.lists.iter(&self.clusters, list);
                let standing =
                    all.filter(|cluster| self.clusters.state(*cluster) == State::Listed(list));
                assert_eq!(standing.count(), clusters, "clusters of list {list}");
            }
        }
    }
}
