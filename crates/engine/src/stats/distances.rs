//! How many others had left memory when a page came back: a histogram of refault distances.
//!
//! A page that came back after `d` others had left would not have left, had there been room for `d`
//! pages more: less, by those of them that were back by then. So the histogram is a curve of faults
//! against memory, from one run ([`Distances::kept_within`]). As in the kernel's mm/workingset.c
//! the distance is known from the stamp that a page leaves behind. That the part which is not back
//! yet, added up over the distance, is the room that it takes, is what Denning and Schwartz say of
//! working sets (Properties of the Working-Set Model, CACM 1972).

use super::latency::{bucket, bucket_top};
use serde::{Serialize, Serializer};

/// Doublings of the distance: stamps have 30 bits.
const OCTAVES: usize = 30;
/// Buckets, eight a doubling.
pub(super) const CELLS: usize = 8 * (OCTAVES - 2);

/// The cell of a distance.
pub(super) fn cell(distance: u64) -> usize {
    bucket(distance).min(CELLS - 1)
}

/// The lowest distance of a bucket.
fn bottom(index: usize) -> u64 {
    index.checked_sub(1).map_or(0, |below| bucket_top(below) + 1)
}

/// Pages that came back, by how many others had left meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distances {
    /// Of each bucket; none at all stands for zeros.
    counts: Vec<u64>,
}

impl Distances {
    pub(super) fn of_cells(cells: &[u64]) -> Distances {
        Distances { counts: cells.to_vec() }
    }

    /// Of pages that came back after so many others had left each.
    pub fn of(distances: impl IntoIterator<Item = u64>) -> Distances {
        let mut counts = vec![0; CELLS];
        distances.into_iter().for_each(|distance| counts[cell(distance)] += 1);
        Distances { counts }
    }

    /// How many pages came back.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds others.
    pub fn merge(&mut self, others: &Distances) {
        self.counts.resize(CELLS, 0);
        self.counts
            .iter_mut()
            .zip(&others.counts)
            .for_each(|(to, from)| *to = to.saturating_add(*from));
    }

    /// The curve: for each bucket that is not empty the most pages of memory more with which its
    /// pages would still have left, the least with which all of them would have stayed, and how
    /// many pages these are. Of those that left since, `left` in the whole run, the part is away
    /// that had not come back within that distance.
    pub fn kept_within(&self, left: u64) -> Vec<(f64, f64, u64)> {
        let (mut kept, mut back, mut curve) = (0.0, 0.0, Vec::new());
        for (index, count) in self.counts.iter().enumerate() {
            let width = (bottom(index + 1) - bottom(index)) as f64;
            let away = 1.0 - (back + *count as f64 / 2.0) / left.max(1) as f64;
            let next = kept + width * away.max(0.0);
            if *count > 0 {
                curve.push((kept, next, *count));
            }
            (kept, back) = (next, back + *count as f64);
        }
        curve
    }
}

impl Serialize for Distances {
    /// As pairs of the lowest distance of a bucket and its count.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        serializer.collect_seq(used.map(|(index, count)| (bottom(index), *count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_its_distances_and_no_others() {
        for distance in (0..5000).chain([(1 << 30) - 1, 1 << 29, (1 << 29) + 12_345]) {
            let index = cell(distance);
            assert!((bottom(index)..bottom(index + 1)).contains(&distance), "{distance}");
        }
        assert_eq!(cell(u64::MAX), CELLS - 1);
    }

    #[test]
    fn pages_of_a_loop_stay_with_as_many_pages_more_as_leave_in_a_turn() {
        let distances = Distances::of([1000; 5000]);
        let curve = distances.kept_within(6000);
        let &[(most, least, count)] = curve.as_slice() else { panic!("{curve:?}") };
        assert!((875.0..=1000.0).contains(&most) && least < 1125.0 && count == 5000, "{curve:?}");
    }

    #[test]
    fn what_came_back_meanwhile_takes_no_room() {
        // Half of what leaves is back at once: of 1,000 that have left since, 500 are away.
        let all = [3; 1000].into_iter().chain([1000; 1000]);
        let curve = Distances::of(all).kept_within(2000);
        let (most, least, count) = curve[1];
        assert!(count == 1000 && most > 400.0 && least < 520.0, "{curve:?}");
    }

    #[test]
    fn distances_add_up_and_are_told_by_their_buckets() {
        let mut sum = Distances::default();
        sum.merge(&Distances::of([5, 5, 100]));
        sum.merge(&Distances::of([5]));
        assert_eq!(sum.count(), 4);
        assert_eq!(serde_json::to_value(&sum).unwrap(), serde_json::json!([[5, 3], [96, 1]]));
    }
}
