//! How much memory would have kept each page that came back: a histogram of LRU stack distances.
//!
//! That is what was in memory when it came back, and the pages that had left after it and were
//! still away ([`crate::workingset::away`]). So the histogram is a curve of faults against memory,
//! from one run ([`StackDistances::curve`]): Mattson, Gecsei, Slutz and Traiger, Evaluation
//! techniques for storage hierarchies, IBM Systems Journal 1970.

use super::latency::{bucket, bucket_top};
use serde::{Serialize, Serializer};

/// Doublings of the distance.
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

/// Pages that came back, by how many pages of memory would have kept them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackDistances {
    /// Of each bucket; none at all stands for zeros.
    counts: Vec<u64>,
}

impl StackDistances {
    pub(super) fn of_cells(cells: &[u64]) -> StackDistances {
        StackDistances { counts: cells.to_vec() }
    }

    /// Of pages that so many would have kept each.
    pub fn of(distances: impl IntoIterator<Item = u64>) -> StackDistances {
        let mut counts = vec![0; CELLS];
        distances.into_iter().for_each(|distance| counts[cell(distance)] += 1);
        StackDistances { counts }
    }

    /// How many pages came back.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds others.
    pub fn merge(&mut self, others: &StackDistances) {
        self.counts.resize(CELLS, 0);
        self.counts
            .iter_mut()
            .zip(&others.counts)
            .for_each(|(to, from)| *to = to.saturating_add(*from));
    }

    /// The curve: for each bucket that is not empty its distances, from and to, and how many pages
    /// came back from there.
    pub fn curve(&self) -> impl Iterator<Item = (f64, f64, u64)> + '_ {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(index, count)| (bottom(index) as f64, bottom(index + 1) as f64, *count))
    }
}

impl Serialize for StackDistances {
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
    fn the_curve_has_each_page_in_its_bucket() {
        let curve: Vec<_> = StackDistances::of([1000; 5000]).curve().collect();
        let &[(from, to, count)] = curve.as_slice() else { panic!("{curve:?}") };
        assert!((875.0..=1000.0).contains(&from) && to > 1000.0 && to < 1125.0, "{curve:?}");
        assert_eq!(count, 5000);
    }

    #[test]
    fn distances_add_up_and_are_told_by_their_buckets() {
        let mut sum = StackDistances::default();
        sum.merge(&StackDistances::of([5, 5, 100]));
        sum.merge(&StackDistances::of([5]));
        assert_eq!(sum.count(), 4);
        assert_eq!(serde_json::to_value(&sum).unwrap(), serde_json::json!([[5, 3], [96, 1]]));
    }
}
