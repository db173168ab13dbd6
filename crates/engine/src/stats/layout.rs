//! Where in a table of cells each figure lies: the header, the counters of each shard, histograms,
//! devices.

use super::counter::Counter;
use super::pressure::Pressure;
use super::{devices, distances, latency};

/// Cells of the header, whole cache lines.
pub const HEADER: usize = 24;
/// Counters of a shard at most; room is left so that the layout is stable while counters are added.
pub const COUNTERS_MAX: usize = 160;
/// Shards. Processors beyond share them.
pub const SHARDS: usize = 16;
/// Where the histograms begin, of times and of distances, and the section of the devices.
pub const LATENCIES: usize = HEADER + SHARDS * COUNTERS_MAX;
pub const DISTANCES: usize = LATENCIES + SHARDS * latency::CELLS;
pub const DEVICES: usize = DISTANCES + SHARDS * distances::CELLS;
pub const CELLS: usize = DEVICES + devices::CELLS;
// Of shards, whole cache lines.
const _: () = assert!(HEADER.is_multiple_of(8));
const _: () = assert!(COUNTERS_MAX.is_multiple_of(8) && latency::CELLS.is_multiple_of(8));
const _: () = assert!(distances::CELLS.is_multiple_of(8));
const _: () = assert!(Counter::ALL.len() <= COUNTERS_MAX);
/// The gauges are the counters before this one.
pub const GAUGES: usize = Counter::PgFault as usize;

/// Size of a statistics file in bytes.
pub const FILE_BYTES: usize = CELLS * 8;
/// First cell of every table: "ovrspil" and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ovrspil\x10");
pub const CELL_PID: usize = 1;
pub const CELL_NAME: usize = 2;
pub const NAME_CELLS: usize = 4;
pub const CELL_TARGET: usize = 6;
pub const CELL_ANSWERED: usize = 7;
pub const CELL_STUCK: usize = 8;
pub const CELL_RECLAIM_DONE: usize = 9;
pub const CELL_PRESSURE: usize = 10;
/// Number of a list of swap devices, what became of it, and pages that are still to leave their
/// devices.
pub const CELL_SWAPS_DONE: usize = CELL_PRESSURE + Pressure::CELLS;
pub const CELL_SWAPS_OUTCOME: usize = CELL_SWAPS_DONE + 1;
pub const CELL_SWAPS_LEFT: usize = CELL_SWAPS_DONE + 2;
pub const CELL_ENGINE: usize = CELL_SWAPS_DONE + 3;
const _: () = assert!(CELL_ENGINE < HEADER);
