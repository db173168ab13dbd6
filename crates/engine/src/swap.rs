//! Where pages are that have left memory: the swap cache, the compressed tier, and devices.
//!
//! The swap cache is copies of pages in frames of the arena, where a touch finds them without I/O.
//! Two kinds of pages are there. A page that was *moved out* lies in its frame and nowhere else
//! yet; its page word names the frame. A page that was *read ahead* from a device is found by its
//! slot, in the [`index`]. Both grow older in the lists of [`lru`], whose oldest the second hand of
//! the clock takes: it stores what was moved out, and drops what was read ahead.
//!
//! It owns these, which slots have a compressed copy ([`zswap`]), the zpool with the copies, and
//! the devices. A batch of pages is stored, and a page is loaded, in [`store`].
//!
//! Locks: those of the partitions of the index and of the lists, counted separately, and those of
//! zswap's ranges; nothing is taken under one. Callers hold the locks of the pages.
//!
//! Below it: memory, devices, the zpool, slots; the working set decides what it keeps.

pub mod batch;
pub mod clean;
pub mod fill;
mod follow;
pub mod index;
pub mod lru;
pub mod settings;
pub mod store;
pub mod zswap;

use crate::base::Base;
use crate::device::list::JobSwaps;
use crate::device::{DeviceSettings, SlotTables, SwapDevices, SwapError};
use crate::memory::Memory;
use crate::stats::{Counter, Stats};
use crate::units::PAGE_SHIFT;
use crate::workingset::WorkingSet;
use crate::zpool::Zpool;
pub use index::{Entry, GivenUp, SlotIndex, Stamp};
pub use lru::LruLists;
use overspill_os::backing::{AnonPrivate, Backing};
use settings::SwapSettings;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use zswap::Zswap;

/// Where pages are that have left memory.
pub struct Swap<B = AnonPrivate> {
    base: Arc<Base>,
    stats: Stats,
    /// How pages are stored, and what of them is kept.
    pub settings: SwapSettings,
    memory: Arc<Memory<B>>,
    workingset: Arc<WorkingSet>,
    /// The LRU lists of the swap cache.
    pub lru: LruLists,
    /// What is known of each slot.
    pub index: Arc<SlotIndex>,
    /// Which slots have a compressed copy in memory.
    pub zswap: Arc<Zswap>,
    /// The compressed pages themselves.
    pub zpool: Zpool,
    /// Whether the compressed tier had no room for more.
    pub compressed_full: AtomicBool,
    /// The swap devices that are open.
    pub devices: SwapDevices,
    /// Threads that write to devices now.
    writing: AtomicUsize,
}

impl<B: Backing> Swap<B> {
    /// With the devices of a list, and nothing stored yet.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn new(
        base: &Arc<Base>,
        memory: &Arc<Memory<B>>,
        workingset: &Arc<WorkingSet>,
        settings: SwapSettings,
        (list, of_devices): (&JobSwaps, DeviceSettings),
        stats: Stats,
    ) -> Result<Swap<B>, SwapError> {
        let frames = memory.budget().frames_max();
        let index = SlotIndex::new(settings.partition, settings.batching, frames, stats)
            .map_err(SwapError::no_tables)?;
        let (index, zswap) = (Arc::new(index), Arc::new(Zswap::new(settings.invalidate, stats)));
        let tables = SwapTables { index: index.clone(), zswap: zswap.clone() };
        let devices = SwapDevices::open(list, of_devices, Arc::new(tables), stats)?;
        let cells = memory.cells().clone();
        let frames = workingset.tier_size.frames(memory.budget().limit());
        Ok(Swap {
            base: base.clone(),
            stats,
            memory: memory.clone(),
            workingset: workingset.clone(),
            lru: LruLists::new(cells.clone(), settings.partition, settings.batching, stats),
            index,
            zswap,
            zpool: Zpool::new(cells, frames),
            compressed_full: AtomicBool::new(false),
            devices,
            writing: AtomicUsize::new(0),
            settings,
        })
    }

    /// Pages are being written to devices, until the value is dropped.
    pub fn begin_writing(&self) -> Writing<'_> {
        self.writing.fetch_add(1, Relaxed);
        Writing(&self.writing)
    }

    /// Whether pages are being written to devices.
    pub fn is_writing(&self) -> bool {
        self.writing.load(Relaxed) > 0
    }

    /// Changes what this process may have, and the limit of the compressed tier with it.
    pub fn set_limit(&self, pages: u64) {
        self.memory.set_lease(pages);
        self.follow_limit();
    }

    /// Has the limit of the compressed tier follow what this process may have.
    pub fn follow_limit(&self) {
        let pages = self.memory.budget().limit();
        self.zpool.set_limit(self.workingset.tier_size.frames(pages));
    }

    /// Brings the metadata figure up to date: what the tables take up that have an entry a page, a
    /// frame or a slot, of all that were ever in use. Not what few have: 4 bytes a frame that was
    /// read ahead into.
    pub fn publish_metadata(&self) {
        let pages = self.memory.table_bytes();
        // Its cells, and its tag.
        let frames = (self.stats.get(Counter::ChargedPeakBytes) >> PAGE_SHIFT) * (16 + 1);
        self.stats.set(Counter::MetadataBytes, pages + frames + self.devices.table_bytes());
    }
}

/// What is kept by slot beside the devices.
struct SwapTables {
    index: Arc<SlotIndex>,
    zswap: Arc<Zswap>,
}

impl SlotTables for SwapTables {
    fn open(&self, device: usize, slots: u64) -> bool {
        self.index.open(device, slots) && self.zswap.open(device, slots)
    }

    fn forget(&self, device: usize) {
        self.index.forget(device);
        self.zswap.forget(device);
    }

    fn has_entries(&self, device: usize) -> bool {
        self.zswap.had_entries(device)
    }

    fn slot_bytes(&self, device: usize) -> u64 {
        let zswap = if self.zswap.had_entries(device) { Zswap::SLOT_BYTES } else { 0 };
        SlotIndex::SLOT_BYTES + zswap
    }
}

/// See [`Swap::begin_writing`].
pub struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
