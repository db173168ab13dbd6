//! Counters and histograms of a pool, in memory that other processes may map.
//!
//! One table of 64-bit cells a process: a header, then for each of a few shards a cell a counter,
//! then for each of them the cells of the histograms of fault times ([`Latencies`]) and of stack
//! distances ([`StackDistances`]). Events are counted in the shard of the processor, with relaxed
//! atomic adds that no other processor is
//! after; gauges that are set lie in the first shard. So a process that does little uses few pages
//! of the table, though its counters are read often. The figures of swap devices follow. A reader
//! copies the whole, adds the shards up, and gets a [`Snapshot`]. Counters are named as in
//! /proc/vmstat where it has them.

mod counter;
mod devices;
mod distances;
mod latency;
mod layout;
mod pressure;
mod snapshot;
mod swaps;

use crate::units::Bytes;
pub use counter::Counter;
pub use devices::{DeviceFigure, DeviceFigures, DeviceIdentity, DeviceKind, DeviceSnapshot};
pub use distances::StackDistances;
pub use latency::{FaultSource, Histogram, Latencies};
use layout::*;
pub use layout::{FILE_BYTES, MAGIC};
use overspill_os::cpu::{self, Topology};
use overspill_os::directory::Directory;
use overspill_os::{Errno, table::SharedCells};
pub use pressure::{AVG_SECONDS, Pressure, Stall};
use rustix::fs::{FallocateFlags, OFlags};
pub use snapshot::Snapshot;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
pub use swaps::SwapsOutcome;

/// The gauges of a pool at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Gauges([u64; GAUGES]);

/// The live statistics of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    cells: SharedCells,
}

impl Stats {
    /// In private memory.
    pub fn anonymous() -> Result<Stats, Errno> {
        Ok(Stats { cells: SharedCells::anonymous(CELLS)? }.init())
    }

    /// In a file, which is grown to [`FILE_BYTES`].
    pub fn in_file(file: std::os::fd::BorrowedFd<'_>) -> Result<Stats, Errno> {
        // A new one is all zeros and takes no memory yet.
        let used = rustix::fs::fstat(file)?.st_size > 0;
        rustix::fs::ftruncate(file, FILE_BYTES as u64)?;
        let stats = Stats { cells: SharedCells::shared(file, CELLS)? };
        // That of another program that this process was gives its memory back.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if used && rustix::fs::fallocate(file, hole, 0, FILE_BYTES as u64).is_err() {
            stats.cells.iter().for_each(|cell| cell.store(0, Relaxed));
        }
        Ok(stats.init())
    }

    /// The name of a process's file in the directory of a run.
    pub fn file_name(pid: u32) -> String {
        format!("stats.{pid}")
    }

    /// Makes this process's file in the directory of a run. Root's is writable by all: the process
    /// may change its user and execute another program, which goes on with it.
    pub(crate) fn make_file(run_dir: &Directory) -> Result<OwnedFd, Errno> {
        let name = Stats::file_name(std::process::id());
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        match run_dir.replace_file(&name, mode) {
            // That of another user cannot be removed, not even by a process of the same number.
            Err(Errno::EXIST) => run_dir.open_shared(&name, OFlags::RDWR),
            made => made,
        }
    }

    /// The process in which the engine lives that made this process's file.
    pub(crate) fn engine_in_file(run_dir: &Directory) -> Option<i32> {
        let mut cells = [[0u8; size_of::<u64>()]; CELL_ENGINE + 1];
        let name = Stats::file_name(std::process::id());
        let file = run_dir.open_file(&name, OFlags::RDONLY).ok()?;
        let read = rustix::io::read(&file, cells.as_flattened_mut()).ok()?;
        let whole = read == size_of_val(&cells) && u64::from_le_bytes(cells[0]) == MAGIC;
        whole.then(|| u64::from_le_bytes(cells[CELL_ENGINE]) as i32)
    }

    /// Says in which process beside this one the engine lives.
    pub fn set_engine(&self, pid: u32) {
        self.cells[CELL_ENGINE].store(pid.into(), Relaxed);
    }

    fn init(self) -> Stats {
        self.cells[CELL_PID].store(std::process::id() as u64, Relaxed);
        self.cells[0].store(MAGIC, Relaxed);
        self
    }

    /// Records which program this is, for people who read the statistics.
    pub fn set_name(&self, name: &str) {
        for (i, chunk) in name.as_bytes().chunks(8).take(NAME_CELLS).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.cells[CELL_NAME + i].store(u64::from_le_bytes(word), Relaxed);
        }
    }

    /// The first 16 bytes of the name.
    pub fn short_name(&self) -> [u64; 2] {
        std::array::from_fn(|i| self.cells[CELL_NAME + i].load(Relaxed))
    }

    /// Notes what `limit_bytes` is to become: less than it while a lower limit is being reached, or
    /// cannot be.
    pub fn set_target(&self, limit: Bytes) {
        self.cells[CELL_TARGET].store(limit.0, Relaxed);
    }

    /// Notes whether it is out of reach, because nothing more can be reclaimed.
    pub fn set_stuck(&self, stuck: bool) {
        self.cells[CELL_STUCK].store(stuck.into(), Relaxed);
    }

    /// Notes which request of the job's table ([`crate::control::job`]) this process follows.
    pub fn set_answered(&self, number: u32) {
        self.cells[CELL_ANSWERED].store(number.into(), Relaxed);
    }

    /// Notes with which request for reclaim of the job's table this process is done. Whoever reads
    /// it finds in the table what this process has reclaimed.
    pub fn set_reclaim_done(&self, number: u32) {
        self.cells[CELL_RECLAIM_DONE].store(number.into(), Release);
    }

    /// Notes with which list of swap devices ([`crate::device::list`]) this process is done, and
    /// how.
    pub fn set_swaps_done(&self, number: u32, outcome: SwapsOutcome) {
        self.set_swaps_outcome(outcome);
        self.cells[CELL_SWAPS_DONE].store(number.into(), Release);
    }

    /// Notes how it goes while the process is not done with its list.
    pub fn set_swaps_outcome(&self, outcome: SwapsOutcome) {
        self.cells[CELL_SWAPS_OUTCOME].store(outcome.to_word(), Relaxed);
    }

    /// Notes how many pages are still to leave devices that are being taken out of use.
    pub fn set_swaps_left(&self, pages: u64) {
        self.cells[CELL_SWAPS_LEFT].store(pages, Relaxed);
    }

    fn cell(&self, shard: usize, index: usize) -> &AtomicU64 {
        &self.cells[HEADER + shard * COUNTERS_MAX + index]
    }

    /// That of the caller's processor.
    fn near(&self, counter: Counter) -> &AtomicU64 {
        self.cell(shard(), counter as usize)
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.near(counter).fetch_add(n, Relaxed);
    }

    /// Adds one to a counter; what the caller's processor had counted before.
    pub fn count(&self, counter: Counter) -> u64 {
        self.near(counter).fetch_add(1, Relaxed)
    }

    /// Subtracts from a gauge that is added to.
    pub fn sub(&self, counter: Counter, n: u64) {
        self.near(counter).fetch_sub(n, Relaxed);
    }

    /// Sets a gauge, which is never added to.
    pub fn set(&self, counter: Counter, n: u64) {
        self.cell(0, counter as usize).store(n, Relaxed);
    }

    /// Raises a peak.
    pub fn raise(&self, counter: Counter, n: u64) {
        let cell = self.cell(0, counter as usize);
        if cell.load(Relaxed) < n {
            cell.fetch_max(n, Relaxed);
        }
    }

    /// Reads a gauge that is set, and never added to.
    pub fn gauge(&self, counter: Counter) -> u64 {
        self.cell(0, counter as usize).load(Relaxed)
    }

    /// Reads one.
    pub fn get(&self, counter: Counter) -> u64 {
        (0..shards()).fold(0, |sum, shard| {
            sum.wrapping_add(self.cell(shard, counter as usize).load(Relaxed))
        })
    }

    /// Records the time that one fault took to serve.
    pub fn fault_ns(&self, source: FaultSource, ns: u64) {
        let histograms = LATENCIES + shard() * latency::CELLS;
        self.cells[histograms + latency::cell(source, ns)].fetch_add(1, Relaxed);
    }

    /// Records that a page came back which so many pages of memory would have kept.
    pub fn refault(&self, distance: u64) {
        let histogram = DISTANCES + shard() * distances::CELLS;
        self.cells[histogram + distances::cell(distance)].fetch_add(1, Relaxed);
    }

    /// Notes how much the process waits for memory.
    pub fn set_pressure(&self, pressure: &Pressure) {
        self.cells[CELL_PRESSURE..]
            .iter()
            .zip(pressure.cells())
            .for_each(|(cell, value)| cell.store(value, Relaxed));
    }

    /// The figures of swap device number `index`.
    pub fn device(&self, index: usize) -> DeviceFigures {
        DeviceFigures::new(self.cells, DEVICES, index)
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> Snapshot {
        let cells: Vec<u64> = self.cells.iter().map(|c| c.load(Relaxed)).collect();
        Snapshot::from_cells(&cells)
    }

    /// The gauges, for [`Stats::restart`]: before a fork, when nothing changes them.
    pub fn gauges(&self) -> Gauges {
        Gauges(std::array::from_fn(|index| self.get(Counter::ALL[index])))
    }

    /// In the child of a fork: moves the table into a file of its own (or private memory), sets the
    /// gauges to what they were at the fork (the parent goes on changing its own) and begins to
    /// count events from zero, without devices.
    pub fn restart(
        &self,
        file: Option<std::os::fd::BorrowedFd<'_>>,
        gauges: &Gauges,
    ) -> Result<(), Errno> {
        if let Some(file) = file {
            // Empty first: a process of the same number may have left it.
            rustix::fs::ftruncate(file, 0)?;
            rustix::fs::ftruncate(file, FILE_BYTES as u64)?;
        }
        // The header stays, all else is zero.
        self.cells.replace_backing(file, HEADER)?;
        self.set_pressure(&Pressure::default());
        gauges
            .0
            .iter()
            .enumerate()
            .for_each(|(index, value)| self.cell(0, index).store(*value, Relaxed));
        self.set(Counter::ChargedPeakBytes, self.get(Counter::ChargedBytes));
        self.set(Counter::UnmanagedPeakBytes, self.get(Counter::UnmanagedBytes));
        Counter::UNMANAGED_KINDS.iter().for_each(|kind| self.set(*kind, 0));
        self.init();
        Ok(())
    }
}

/// That of the caller's processor.
fn shard() -> usize {
    match cpu::current() {
        cpu if cpu < shards() => cpu,
        cpu => cpu % shards(),
    }
}

/// Shards in use. The others are not even looked at: that would take memory of the file.
fn shards() -> usize {
    Topology::of_machine().cpus().min(SHARDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_keeps_the_gauges_and_counts_from_zero() {
        let stats = Stats::anonymous().unwrap();
        stats.add(Counter::ResidentPages, 5);
        stats.set(Counter::ChargedBytes, 70);
        stats.set(Counter::ChargedPeakBytes, 90);
        stats.add(Counter::PgFault, 7);
        stats.fault_ns(FaultSource::Zero, 5);
        stats.set_pressure(&Pressure {
            some: Stall { avg: [1; 3], total_us: 9 },
            ..Pressure::default()
        });
        let gauges = stats.gauges();
        // As the parent does, as long as the table is shared.
        stats.add(Counter::ResidentPages, 1000);
        stats.set(Counter::ChargedBytes, 1000);
        stats.restart(None, &gauges).unwrap();
        let get = |counter| stats.get(counter);
        assert_eq!((get(Counter::ResidentPages), get(Counter::ChargedBytes)), (5, 70));
        assert_eq!((get(Counter::ChargedPeakBytes), get(Counter::PgFault)), (70, 0));
        let now = stats.snapshot();
        assert_eq!((now.latency.all().count(), now.pressure), (0, Pressure::default()));
    }
}
