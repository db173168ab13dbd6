//! How slots are handed out, and what of it can be turned back.

/// Baseline `slot.lock`: what is locked to take slots and to put them back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlotLock {
    /// Their cluster.
    #[default]
    Cluster,
    /// The device.
    Device,
}

/// Baseline `swap.batch`: how many slots are taken or put back, how many entries of the swap cache
/// changed, and how many frames added to its lists or taken out, in one hold of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Batching {
    /// All that belong to one lock.
    #[default]
    Whole,
    /// One, as Linux did before 2017. Slot caches take and give back many at once in any case.
    Single,
}

impl Batching {
    /// The most in one hold.
    pub fn most(self) -> usize {
        match self {
            Batching::Whole => usize::MAX,
            Batching::Single => 1,
        }
    }
}

/// How a [`super::SlotMap`] works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSettings {
    /// Baseline `slot.lock`.
    pub lock: SlotLock,
    /// Baseline `slot.cache`: whether processors keep slots.
    pub cache: bool,
    /// Baseline `slot.cpu_cluster`: whether each processor takes slots from a cluster of its own.
    pub cpu_cluster: bool,
    /// Baseline `swap.batch`.
    pub batching: Batching,
    /// Whether more of the disk is taken into use while half of what there is is free, so that runs
    /// stay long; where there is no disk, that would only be more memory for tables.
    pub long_runs: bool,
}

impl Default for SlotSettings {
    fn default() -> SlotSettings {
        SlotSettings {
            lock: SlotLock::Cluster,
            cache: true,
            cpu_cluster: true,
            batching: Batching::Whole,
            long_runs: true,
        }
    }
}
