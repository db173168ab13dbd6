//! Page frames: who may have memory, and how much.
//!
//! **A frame is the right to one page of memory, and a place of the arena that goes with it.**
//! Every page in memory owns one: a page of the program while it is mapped (then its place in the
//! arena is a hole), a page of the swap cache, a part of the zpool. A free frame is a
//! hole: no memory lies behind it. So the arena has more frames than the budget has pages,
//! fragmentation costs address space and not memory, and the budget is a **limit** on the frames
//! that are handed out, with the watermarks of the kernel.
//!
//! [`FrameAllocator`] has two layers, a file each:
//! - [`percpu`]: lists that each processor keeps, with which most calls end;
//! - [`zone`]: a buddy system a NUMA node, behind one lock, from which lists are filled and to
//!   which they give back in bulk. What goes back is **picked before the lock is taken**, and made
//!   into blocks as large as it makes up; under it blocks are only merged with what is there.
//!   [`FramePick::Inside`] is the baseline.
//!
//! Frames are taken in `alloc` and given back in `free`. Beside these, the limit and what counts
//! (`budget`), a zone's lock (`locked`) and what is measured of a hold of it (`hold`), and the size
//! of the arena (`size`).
//!
//! Frames that come back in runs longer than lists have are blocks already: they go past the lists.
//!
//! Locks: a processor's lists (`Rank::CpuLists`) -> a zone (`Rank::FrameZone`, a leaf). Lists are
//! tried, and the zone is asked directly when they are somebody else's just now. A hold of a zone's
//! lock is bounded by [`percpu::HOLD_BLOCKS`] blocks.

mod alloc;
mod budget;
pub mod cells;
mod free;
mod hold;
mod locked;
mod mobility;
pub mod percpu;
mod settings;
mod size;
pub mod watermarks;
pub mod zone;

use crate::base::counted::CountedMutex;
use crate::base::lockdep::Rank;
use crate::base::sync::RankedMutex;
use crate::stats::Stats;
use crate::units::Bytes;
use cells::{FrameCells, NO_FRAME};
use locked::{LockedZone, ZONE_LOCK};
use mobility::ORDERS;
pub use mobility::{MAX_ORDER, Mobility, PAGEBLOCK};
use overspill_os::Errno;
use overspill_os::cpu::Topology;
use percpu::{CpuLists, ListMarks};
pub use settings::{FramePick, FrameSettings};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
pub use watermarks::{Mark, Watermarks};
use zone::{Pageblocks, Zone};

/// The largest arena: what entries of slots and of the compressed tier tell the frames of apart.
pub const ARENA_MAX: Bytes = Bytes(4 << 40);

/// How far into the budget a request may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A fault: never the reserve below the min watermark.
    Fault,
    /// Reclaim, which needs a few frames in order to free many: all, also what is promised. A
    /// buffer that is charged then exceeds the limit for a moment.
    Reclaim,
    /// Whatever the limit: while reclaim is frozen for a fork.
    Over,
}

/// Lists on cache lines of their own.
#[repr(align(128))]
struct CpuCell(RankedMutex<CpuLists>);

/// Hands out the frames of an arena within a limit; shared by all threads.
pub struct FrameAllocator {
    zones: Box<[LockedZone]>,
    lists: Box<[CpuCell]>,
    /// Frames that each zone may ever have.
    zone_frames: u32,
    pageblocks: Pageblocks,
    cells: FrameCells,
    topology: Topology,
    limit: AtomicU64,
    /// Pages of the limit that other processes have as well.
    shared: AtomicU64,
    /// Pages of memory that are no frames and count like them; and those that are kept free for
    /// more of them.
    charged: AtomicU64,
    promised: AtomicU64,
    /// Frames handed out when the tables were trimmed last.
    trimmed: AtomicU64,
    settings: FrameSettings,
    stats: Stats,
}

impl FrameAllocator {
    /// Frames of address space for each page of the limit: twice, so that runs are found in spite
    /// of fragmentation.
    const SPAN_FACTOR: u64 = 2;

    /// For a limit of `limit` pages, which may grow up to `limit_max`; without frames until
    /// [`FrameAllocator::resize`].
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the tables.
    pub fn new(
        limit: u64,
        limit_max: u64,
        settings: FrameSettings,
        topology: Topology,
        stats: Stats,
    ) -> Result<FrameAllocator, Errno> {
        let share = Self::share(Self::span(limit.max(limit_max)), topology.nodes()) as u32;
        let frames = share as usize * topology.nodes();
        assert!(
            frames < NO_FRAME as usize,
            "an arena has fewer than {NO_FRAME} frames, not {frames}"
        );
        let (pageblocks, cells) = (Pageblocks::new(frames)?, FrameCells::new(frames)?);
        let zone = |node: usize| {
            let zone = Zone::new(
                node as u32 * share..(node as u32 + 1) * share,
                pageblocks.clone(),
                cells.clone(),
            )?;
            let zone = CountedMutex::new(Rank::FrameZone, &ZONE_LOCK, zone);
            Ok(LockedZone { zone, used: AtomicU32::new(0), limit: AtomicU64::new(0) })
        };
        let lists = || {
            CpuCell(RankedMutex::new(
                Rank::CpuLists,
                CpuLists::new(ListMarks::of(limit, topology.cpus())),
            ))
        };
        let allocator = FrameAllocator {
            zones: (0..topology.nodes()).map(zone).collect::<Result<_, Errno>>()?,
            lists: (0..topology.cpus()).map(|_| lists()).collect(),
            zone_frames: share,
            pageblocks,
            cells,
            limit: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            topology,
            settings,
            stats,
        };
        allocator.set_limit(limit);
        Ok(allocator)
    }

    /// Frames of the arena for a limit.
    fn span(limit: u64) -> u64 {
        (limit * Self::SPAN_FACTOR).max(PAGEBLOCK as u64)
    }

    /// Of `frames`, one node's: whole pageblocks.
    fn share(frames: u64, nodes: usize) -> u64 {
        frames.div_ceil(nodes as u64).next_multiple_of(PAGEBLOCK as u64)
    }

    /// Frames that the arena may ever have.
    pub fn frames_max(&self) -> usize {
        self.zone_frames as usize * self.zones.len()
    }

    /// What is kept of each frame; of one that is handed out it is for whoever has it.
    pub fn cells(&self) -> &FrameCells {
        &self.cells
    }

    /// The zone of a frame.
    fn zone_of(&self, frame: u32) -> &LockedZone {
        &self.zones[(frame / self.zone_frames) as usize]
    }

    /// The zones, the nearest to a processor first.
    fn zones_of(&self, cpu: usize) -> impl Iterator<Item = &LockedZone> {
        let first = self.topology.node(cpu);
        self.zones[first..].iter().chain(&self.zones[..first])
    }

    /// Free blocks of each order, without what processors keep.
    pub fn free_blocks(&self) -> [u64; ORDERS] {
        let mut sum = [0; ORDERS];
        for cell in &self.zones {
            let blocks = cell.zone.inspect().free_blocks();
            sum.iter_mut().zip(blocks).for_each(|(sum, blocks)| *sum += blocks as u64);
        }
        sum
    }

    /// Checks every invariant, in time proportional to the arena; for tests and debugging.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        for cell in &self.zones {
            let zone = cell.zone.inspect();
            zone.check();
            assert_eq!(cell.used.load(Relaxed), zone.used(), "the copy of the count");
        }
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
