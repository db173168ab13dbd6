//! A few runs of slots, in an array: nothing is allocated on the paths of faults and evictions.

use super::cluster::CLUSTER_SLOTS;

/// First slot and number of slots, all in one cluster.
pub type Run = (u64, usize);

/// Up to `N` runs.
#[derive(Clone, Debug)]
pub struct Runs<const N: usize> {
    runs: [Run; N],
    len: usize,
}

impl<const N: usize> Runs<N> {
    /// No runs.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Runs<N> {
        Runs { runs: [(0, 0); N], len: 0 }
    }

    /// The runs, in the order in which they were added.
    pub fn as_slice(&self) -> &[Run] {
        &self.runs[..self.len]
    }

    /// Whether there is no room for another.
    pub fn is_full(&self) -> bool {
        self.len == N
    }

    /// Adds slots, to the last run if they go on where that ends, in the same cluster.
    pub fn push(&mut self, first: u64, len: usize) {
        let same_cluster =
            |before: u64| before / CLUSTER_SLOTS as u64 == first / CLUSTER_SLOTS as u64;
        if let Some(last) = self.runs[..self.len].last_mut()
            && last.0 + last.1 as u64 == first
            && same_cluster(last.0)
        {
            last.1 += len;
        } else {
            self.runs[self.len] = (first, len);
            self.len += 1;
        }
    }

    /// Takes up to `want` slots off the front of run number `at`.
    pub fn take(&mut self, at: usize, want: usize) -> Run {
        let run = &mut self.runs[..self.len][at];
        let taken = (run.0, run.1.min(want));
        *run = (run.0 + taken.1 as u64, run.1 - taken.1);
        if run.1 == 0 {
            self.runs.copy_within(at + 1..self.len, at);
            self.len -= 1;
        }
        taken
    }
}
