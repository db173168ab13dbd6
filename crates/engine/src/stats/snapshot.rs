//! The statistics of a process as they were at one moment, and of several added up.

use super::layout::*;
use super::{
    Counter, DeviceSnapshot, Latencies, Pressure, StackDistances, SwapsOutcome, distances, latency,
};
use crate::units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// The statistics of a process at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// Process id.
    pub pid: u32,
    /// The process beside it in which its engine lives; 0 for none.
    #[serde(skip)]
    pub engine: u32,
    /// Name of the program.
    pub name: String,
    /// What `limit_bytes` is to become.
    #[serde(skip)]
    pub target: Bytes,
    /// Whether it is out of reach, because nothing more can be reclaimed.
    #[serde(skip)]
    pub stuck: bool,
    /// Number of the request of the job's table that the process follows.
    #[serde(skip)]
    pub answered: u32,
    /// Number of the request for reclaim with which the process is done.
    #[serde(skip)]
    pub reclaim_done: u32,
    /// Number of the list of swap devices with which the process is done, and how it went.
    #[serde(skip)]
    pub swaps_done: (u32, SwapsOutcome),
    /// Pages that are still to leave devices that are being taken out of use.
    #[serde(skip)]
    pub swaps_left: u64,
    /// Every counter and gauge by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// The swap devices, in the order of their numbers.
    pub devices: Vec<DeviceSnapshot>,
    /// What the frame allocator did on each processor; beyond the sixteenth they share entries.
    pub by_cpu: Vec<BTreeMap<&'static str, u64>>,
    /// Fragmentation: for each order, the share of free frames that lie in smaller blocks (0 to 1,
    /// the kernel's unusable free space index).
    pub frag_unusable: Vec<f64>,
    /// How much the process waits for memory.
    pub pressure: Pressure,
    /// Times of faults, by where their pages came from.
    pub latency: Latencies,
    /// Pages that came back, by how many pages of memory would have kept them.
    pub stack_distances: StackDistances,
    /// Time to serve a fault, median, in nanoseconds.
    pub fault_ns_p50: u64,
    /// Time to serve a fault, 99th percentile, in nanoseconds.
    pub fault_ns_p99: u64,
    /// Time spent in faults in total, in nanoseconds (from the histogram, so within an eighth).
    pub fault_ns_total: u64,
}

/// Cells of shards of `len` cells each, added up.
fn sums(cells: &[u64], len: usize) -> Vec<u64> {
    let mut sums = vec![0u64; len];
    let all = cells.chunks_exact(len).flat_map(|shard| shard.iter().enumerate());
    all.for_each(|(at, cell)| sums[at] = sums[at].wrapping_add(*cell));
    sums
}

impl Snapshot {
    /// Reads a statistics file; `None` if it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Snapshot> {
        let cells: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
        (cells.len() >= CELLS && cells[0] == MAGIC).then(|| Snapshot::from_cells(&cells))
    }

    pub(super) fn from_cells(cells: &[u64]) -> Snapshot {
        let name: Vec<u8> =
            cells[CELL_NAME..CELL_NAME + NAME_CELLS].iter().flat_map(|c| c.to_le_bytes()).collect();
        let shards = || cells[HEADER..LATENCIES].chunks_exact(COUNTERS_MAX);
        let counters = sums(&cells[HEADER..LATENCIES], COUNTERS_MAX);
        let counters = Counter::ALL.iter().map(|c| (c.name(), counters[*c as usize])).collect();
        let latency = Latencies::of_cells(&sums(&cells[LATENCIES..DISTANCES], latency::CELLS));
        let refaults = sums(&cells[DISTANCES..DEVICES], distances::CELLS);
        let of_cpu = |shard: &[u64]| {
            Counter::BY_CPU.iter().map(|c| (c.name(), shard[*c as usize])).collect()
        };
        let mut snapshot = Snapshot {
            pid: cells[CELL_PID] as u32,
            engine: cells[CELL_ENGINE] as u32,
            name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
            target: Bytes(cells[CELL_TARGET]),
            stuck: cells[CELL_STUCK] != 0,
            answered: cells[CELL_ANSWERED] as u32,
            reclaim_done: cells[CELL_RECLAIM_DONE] as u32,
            swaps_done: (
                cells[CELL_SWAPS_DONE] as u32,
                SwapsOutcome::from_word(cells[CELL_SWAPS_OUTCOME]),
            ),
            swaps_left: cells[CELL_SWAPS_LEFT],
            counters,
            devices: DeviceSnapshot::read(&cells[DEVICES..CELLS]),
            by_cpu: shards().map(of_cpu).collect(),
            pressure: Pressure::of_cells(&cells[CELL_PRESSURE..]),
            latency,
            stack_distances: StackDistances::of_cells(&refaults),
            ..Snapshot::default()
        };
        snapshot.summarise();
        snapshot
    }

    fn summarise(&mut self) {
        let blocks = (Counter::BuddyFree0 as usize..=Counter::BuddyFree9 as usize)
            .map(|i| self.get(Counter::ALL[i]));
        self.frag_unusable = unusable(&blocks.collect::<Vec<_>>());
        let all = self.latency.all();
        self.fault_ns_p50 = all.within_ns(500);
        self.fault_ns_p99 = all.within_ns(990);
        self.fault_ns_total = all.total_ns();
    }

    /// Reads one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter.name()).copied().unwrap_or(0)
    }

    /// Reads a counter that holds bytes.
    pub fn bytes(&self, counter: Counter) -> Bytes {
        Bytes(self.get(counter))
    }

    /// Adds what another process has done, but not what it held: it has ended.
    pub fn merge_done(&mut self, other: &Snapshot) {
        for counter in &Counter::ALL[GAUGES..] {
            let sum = self.counters.entry(counter.name()).or_default();
            *sum = sum.saturating_add(other.get(*counter));
        }
        self.latency.merge(&other.latency);
        self.stack_distances.merge(&other.stack_distances);
        self.summarise();
    }

    /// Adds another process's statistics to these: counters, gauges and times of faults add up; of
    /// the pressure, the higher counts.
    pub fn merge(&mut self, other: &Snapshot) {
        for (name, value) in &other.counters {
            let sum = self.counters.entry(name).or_default();
            // The file is another process's: whatever is in it, the report is written.
            *sum = match Counter::MAXIMA.iter().any(|maximum| maximum.name() == *name) {
                true => *value.max(sum),
                false => sum.saturating_add(*value),
            };
        }
        DeviceSnapshot::merge_all(&mut self.devices, &other.devices);
        self.by_cpu.resize(self.by_cpu.len().max(other.by_cpu.len()), BTreeMap::new());
        for (cpu, others) in self.by_cpu.iter_mut().zip(&other.by_cpu) {
            for (name, value) in others {
                let sum = cpu.entry(name).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
        self.pressure = self.pressure.max(other.pressure);
        self.latency.merge(&other.latency);
        self.stack_distances.merge(&other.stack_distances);
        self.summarise();
    }
}

/// From the number of free blocks of each order, the share of free frames that no allocation of
/// each order can have.
fn unusable(blocks: &[u64]) -> Vec<f64> {
    let frames = |(order, n): (usize, &u64)| n.saturating_mul(1 << order);
    let sum =
        |from: usize| blocks.iter().enumerate().skip(from).map(frames).fold(0, u64::saturating_add);
    let free = sum(0);
    (0..blocks.len())
        .map(|order| if free == 0 { 0.0 } else { (free - sum(order)) as f64 / free as f64 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{FILE_BYTES, FaultSource, Stats};
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn free_frames_in_small_blocks_are_no_use_to_large_ones() {
        assert_eq!(unusable(&[4, 2, 2]), [0.0, 0.25, 0.5]);
        assert_eq!(unusable(&[0, 0]), [0.0, 0.0]);
    }

    #[test]
    fn of_a_process_that_ended_what_it_did_remains() {
        let stats = Stats::anonymous().unwrap();
        stats.add(Counter::ResidentPages, 5);
        stats.add(Counter::PgFault, 7);
        stats.fault_ns(FaultSource::Zero, 5);
        let mut total = stats.snapshot();
        total.merge_done(&stats.snapshot());
        let count = total.latency.all().count();
        assert_eq!(
            (total.get(Counter::ResidentPages), total.get(Counter::PgFault), count),
            (5, 14, 2)
        );
    }

    #[test]
    fn a_snapshot_survives_its_file_form() {
        let stats = Stats::anonymous().unwrap();
        stats.set_name("sort");
        stats.add(Counter::PgFault, 7);
        (0..98).for_each(|_| stats.fault_ns(FaultSource::Zero, 1000));
        (0..2).for_each(|_| stats.fault_ns(FaultSource::Device, 100_000));
        (0..3).for_each(|_| stats.refault(64));
        let bytes: Vec<u8> =
            stats.cells.iter().flat_map(|c| c.load(Relaxed).to_le_bytes()).collect();
        let snapshot = Snapshot::from_bytes(&bytes).unwrap();
        assert_eq!((snapshot.name.as_str(), snapshot.get(Counter::PgFault)), ("sort", 7));
        assert_eq!(snapshot.stack_distances, StackDistances::of([64; 3]));
        assert!(snapshot.fault_ns_p50 >= 1000 && snapshot.fault_ns_p50 < 1125);
        assert!(snapshot.fault_ns_p99 >= 100_000 && snapshot.fault_ns_p99 < 112_500);
        assert!(Snapshot::from_bytes(&bytes[8..]).is_none());
        // Whatever a file holds can be added up.
        let mut bytes = vec![0xff; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let mut total = Snapshot::from_bytes(&bytes).unwrap();
        total.merge(&Snapshot::from_bytes(&bytes).unwrap());
        assert_eq!(total.get(Counter::PgFault), u64::MAX);
    }
}
