//! The ladder: the steps, their settings, and what their origin published.

use super::figures::Lock;
use clap::ValueEnum;
use overspill::slot::CLUSTER_SLOTS;
use overspill::units::PAGE_SIZE;
use serde_json::{Value, json};
use std::fmt;

/// Settings of every step: all pages go to the device, and leave again by being written.
const COMMON: &str = "compressed=0,clean=off";

/// The ladder, bottom up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Step {
    /// One lock for the slots of a device, one for the swap cache
    Baseline,
    /// A lock for each cluster of 512 slots
    ClusterLocks,
    /// A lock of the swap cache for each 64 MiB of swap space
    #[value(name = "partitions-64m")]
    Partitions64M,
    /// Each processor keeps 64 slots to hand out, and collects 64 that were freed
    SlotCaches,
    /// Each processor takes slots from a cluster of its own
    CpuClusters,
    /// A lock of the swap cache for each cluster
    #[value(name = "partitions-2m")]
    Partitions2M,
    /// Slots, and pages of the swap cache, are handled many in one hold of a lock
    Batches,
}

impl Step {
    /// The settings of its pool.
    pub fn settings(self) -> String {
        let from =
            |step: Step, on: &'static str, off: &'static str| if self >= step { on } else { off };
        let partition = match self {
            Step::Baseline | Step::ClusterLocks => "device",
            Step::Partitions64M | Step::SlotCaches | Step::CpuClusters => "64M",
            Step::Partitions2M | Step::Batches => "2M",
        };
        format!(
            "{COMMON},slot.lock={},cache.partition={partition},slot.cache={},slot.cpu_cluster={},swap.batch={}",
            from(Step::ClusterLocks, "cluster", "device"),
            from(Step::SlotCaches, "64", "off"),
            from(Step::CpuClusters, "on", "off"),
            from(Step::Batches, "on", "off"),
        )
    }

    /// The step below.
    pub fn before(self) -> Option<Step> {
        Step::value_variants().iter().copied().take_while(|step| *step < self).last()
    }

    /// Swap-out in KiB a second that the origin of the mechanism published: vm-scalability's
    /// swap-w-seq with 32 processes, "mm/swap: Regular page swap optimizations", Linux 2017. The
    /// last three steps are no part of that.
    pub fn reference_kib_per_s(self) -> Option<f64> {
        match self {
            Step::Baseline => Some(1_428_002.0),
            Step::ClusterLocks => Some(1_481_704.0),
            Step::Partitions64M => Some(2_050_097.0),
            Step::SlotCaches => Some(4_170_746.0),
            Step::CpuClusters | Step::Partitions2M | Step::Batches => None,
        }
    }

    /// The same as it stands in the row.
    pub fn reference(self) -> Option<Value> {
        let kib = self.reference_kib_per_s()?;
        Some(
            json!({ "processes": 32, "so_kib_per_s": kib, "ratio_to_baseline": kib / 1_428_002.0 }),
        )
    }

    /// How many locks of a kind are in use side by side while `running` threads swap memory in
    /// sequence: what follows from where their slots lie. Slots that go out at one time come from
    /// the current clusters: one of the device, or one of each processor; they come back in the
    /// order in which they went. So only as many locks of the swap cache's index are in use as
    /// cover the current clusters, which lie side by side, however many there are in all. Frames
    /// come from one zone, and those of all threads from the same part of it, so that one list by
    /// age is in use.
    pub fn locks_side_by_side(self, lock: Lock, running: usize) -> usize {
        let clusters = if self >= Step::CpuClusters { running } else { 1 };
        let clusters_of = |bytes: usize| bytes / (CLUSTER_SLOTS * PAGE_SIZE);
        match (lock.name, self) {
            ("cluster_lock", _) => clusters,
            ("swap_cache_lock", step) => {
                step.partition_bytes().map_or(1, |bytes| clusters.div_ceil(clusters_of(bytes)))
            }
            _ => 1,
        }
    }

    /// The same if what is swapped at one time were spread evenly over all of it, the swap space
    /// and the frames of `bytes` bytes: the most that partitions can do, where
    /// [`Step::locks_side_by_side`] is what they do here.
    pub fn locks_if_spread(self, lock: Lock, running: usize, bytes: u64) -> usize {
        match (lock.name, self.partition_bytes()) {
            ("swap_cache_lock" | "swap_ages_lock", Some(partition)) => {
                (bytes as usize).div_ceil(partition)
            }
            _ => self.locks_side_by_side(lock, running),
        }
    }

    /// How much swap space, or how many bytes of frames, share a lock of the swap cache; none if
    /// all do.
    fn partition_bytes(self) -> Option<usize> {
        match self {
            Step::Baseline | Step::ClusterLocks => None,
            Step::Partitions64M | Step::SlotCaches | Step::CpuClusters => Some(64 << 20),
            Step::Partitions2M | Step::Batches => Some(2 << 20),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no step is skipped").get_name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::LOCKS;
    use super::*;
    use overspill::config::{Config, baselines};

    #[test]
    fn each_step_is_one_setting_more_and_the_engine_has_them_all() {
        let settings: Vec<String> =
            Step::value_variants().iter().map(|step| step.settings()).collect();
        for (below, above) in settings.iter().zip(&settings[1..]) {
            let changed =
                below.split(',').zip(above.split(',')).filter(|(below, above)| below != above);
            assert_eq!(changed.count(), 1, "{below} and {above}");
        }
        for list in settings {
            baselines::apply(&mut Config::default(), &list).unwrap();
        }
    }

    #[test]
    fn steps_have_the_names_and_the_order_of_the_ladder() {
        let names: Vec<String> = Step::value_variants().iter().map(Step::to_string).collect();
        let expected = [
            "baseline",
            "cluster-locks",
            "partitions-64m",
            "slot-caches",
            "cpu-clusters",
            "partitions-2m",
            "batches",
        ];
        assert_eq!(names, expected);
        assert_eq!(
            (Step::Baseline.before(), Step::SlotCaches.before()),
            (None, Some(Step::Partitions64M))
        );
        assert!(
            (Step::SlotCaches.reference().unwrap()["ratio_to_baseline"].as_f64().unwrap() - 2.92)
                .abs()
                < 0.01
        );
    }

    #[test]
    fn only_what_lies_apart_is_used_side_by_side() {
        let of = |step: Step, running| LOCKS.map(|lock| step.locks_side_by_side(lock, running));
        assert_eq!(of(Step::Partitions64M, 16), [1, 1, 1, 1, 1]);
        assert_eq!(of(Step::CpuClusters, 16), [1, 16, 1, 1, 1]);
        assert_eq!(of(Step::CpuClusters, 40), [1, 40, 2, 1, 1]);
        assert_eq!(of(Step::Batches, 16), [1, 16, 16, 1, 1]);
        let spread = |step: Step| LOCKS.map(|lock| step.locks_if_spread(lock, 2, 128 << 20));
        assert_eq!(
            [Step::Baseline, Step::Partitions64M, Step::Partitions2M].map(spread)[0],
            [1, 1, 1, 1, 1]
        );
        assert_eq!(
            [Step::Partitions64M, Step::Batches].map(spread),
            [[1, 1, 2, 2, 1], [1, 2, 64, 64, 1]]
        );
    }
}
