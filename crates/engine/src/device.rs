//! Swap devices: files and block devices that hold the pages that no longer fit in memory.
//!
//! [`SwapDevices`] is the table of them. A device is named by a
//! [`SwapSpec`](crate::device::spec::SwapSpec): in a directory an unlinked file is made, a file or
//! block device is used in place, and a RAM device is memory that behaves like one. Slots are
//! handed out in runs ([`SwapDevices::alloc_run`]), written several runs at a time and read a run
//! at a time. What goes wrong stays where it happened: a failed write marks its slots bad and the
//! caller keeps the pages, a failed read is told to the reader, as is a page that comes back other
//! than it was written (every page is sealed, or has a checksum), a full disk makes a device count
//! as full.
//!
//! Neighbours: [`crate::slot`] keeps the tables, [`overspill_os::io`] and [`overspill_os::uring`]
//! do the I/O; reclaim allocates and writes, faults read and free.
//!
//! Locks, in order: an entry of the table (`Rank::DeviceTable`), then those of the device's slots
//! ([`crate::slot`]), which may be held over system calls that acquire and grow but never over
//! reads and writes. A ring is only tried.

mod area;
mod block_io;
mod change;
mod discard;
mod error;
mod faults;
mod fork;
pub mod header;
mod inherited;
pub mod job_file;
pub mod list;
mod marks;
mod model;
mod open;
mod parts;
mod ram;
pub mod spec;
mod table;
#[cfg(test)]
mod tests;
mod transfer;

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock, point};
use crate::device::list::{JobSwaps, ListedSwap};
use crate::slot::{CLUSTER_BYTES, CLUSTER_SLOTS, Disk, SlotMap, SlotRun, SlotSettings};
use crate::stats::Stats;
use crate::units::SlotId;
use area::{Area, Listing};
use block_io::{BlockIo, Direct, MakeIo};
pub(crate) use change::Retired;
pub use error::{ReadError, ReadFailure, SwapError};
pub use inherited::{InheritedDevice, LentPart};
pub use model::{FaultKinds, FaultModel, RamModel};
pub use open::{DIRECTORY_MAX, check, check_unchanged};
use overspill_os::Errno;
use overspill_os::beside;
use overspill_os::crypt::Key;
use overspill_os::directory::Directory;
use overspill_os::io::{File, IoBuffer};
use overspill_os::uring::Queue;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use table::DeviceTable;

/// Operations in flight at most: 32 runs of up to 1 MiB keep a fast disk busy, and a batch fits on
/// the stack.
pub const QUEUE_DEPTH: usize = 32;
/// Longest run of slots: 256 pages, an operation of 1 MiB.
pub const RUN_MAX: usize = 256;

/// In place of the priority of an entry without a device, or with one that is only read and freed.
const CLOSED: i32 = i32::MIN;

/// One run to be written.
#[derive(Clone, Copy, Debug)]
pub struct RunWrite {
    /// Where to.
    pub run: SlotRun,
    /// Where from: its first page in the buffer.
    pub buffer_page: usize,
    /// Whether the slots stay the caller's if it fails. Else, after an error, they must not be
    /// freed.
    pub keeps_slots: bool,
    /// What became of it.
    pub result: Result<(), Errno>,
}

/// How devices are used.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    /// How slots are handed out.
    pub slots: SlotSettings,
    /// Whether io_uring may be used.
    pub uring: bool,
    /// Slots on no device, for pages that are only ever in memory.
    pub in_memory: u64,
    /// Whether devices that this process cannot reach are left out.
    pub reachable_only: bool,
    /// The directory of the run, in which are links to files of the job's ([`job_file`]).
    pub run_dir: Option<PathBuf>,
}

impl Default for DeviceSettings {
    fn default() -> DeviceSettings {
        DeviceSettings {
            slots: SlotSettings::default(),
            uring: true,
            in_memory: 0,
            reachable_only: false,
            run_dir: None,
        }
    }
}

/// What else is kept by slot of a device, in tables that are opened with it.
pub trait SlotTables: Send + Sync {
    /// Makes tables for a device of `slots` slots; `false` where there is no room for them, or that
    /// number had smaller ones.
    fn open(&self, device: usize, slots: u64) -> bool;

    /// Gives their memory back, of a device of which no slot is in use.
    fn forget(&self, device: usize);

    /// Whether a slot of a device had compressed content since.
    fn has_entries(&self, device: usize) -> bool;

    /// Bytes of them by slot.
    fn slot_bytes(&self, device: usize) -> u64;
}

/// What holds of the device of a slot.
const OPEN: &str = "a slot in use keeps its device open";

/// The swap devices of a process.
pub struct SwapDevices {
    table: DeviceTable,
    /// The priority of each entry that slots are handed out of; [`CLOSED`] for the others.
    priorities: [AtomicI32; SlotId::DEVICES_MAX],
    /// Counts the runs handed out, for the turns of devices of equal priority.
    turn: AtomicUsize,
    /// Counts the devices that were opened.
    opened: AtomicU64,
    /// Devices that are out of use, until somebody closes them who has their descriptors.
    closed: RankedMutex<Vec<Arc<Area>>>,
    /// What the pages of this process and its children are sealed with, from the first device on
    /// that takes it.
    key: OnceLock<Arc<Key>>,
    slots: SlotSettings,
    queue: Arc<Queue>,
    make_io: MakeIo,
    tables: Arc<dyn SlotTables>,
    in_memory: Option<SlotMap>,
    run_dir: Option<PathBuf>,
    stats: Stats,
}

impl SwapDevices {
    /// Opens everything in `list`.
    pub fn open(
        list: &JobSwaps,
        settings: DeviceSettings,
        tables: Arc<dyn SlotTables>,
        stats: Stats,
    ) -> Result<SwapDevices, SwapError> {
        SwapDevices::open_with(
            list,
            settings,
            tables,
            stats,
            Box::new(|file, queue| Box::new(Direct { file, queue })),
        )
    }

    fn open_with(
        list: &JobSwaps,
        settings: DeviceSettings,
        tables: Arc<dyn SlotTables>,
        stats: Stats,
        make_io: MakeIo,
    ) -> Result<SwapDevices, SwapError> {
        let in_memory = (settings.in_memory > 0).then(|| {
            // They are on no device: no figure of devices counts them.
            let stats = Stats::anonymous()?;
            let slots = SlotSettings { long_runs: false, ..settings.slots };
            SlotMap::new(settings.in_memory, 0, slots, area::cpus(), stats)
        });
        let devices = SwapDevices {
            table: DeviceTable::new(area::cpus()),
            priorities: [const { AtomicI32::new(CLOSED) }; SlotId::DEVICES_MAX],
            turn: AtomicUsize::new(0),
            opened: AtomicU64::new(0),
            closed: RankedMutex::new(Rank::ClosedDevices, Vec::with_capacity(SlotId::DEVICES_MAX)),
            key: OnceLock::new(),
            slots: settings.slots,
            queue: Arc::new(Queue::new(
                QUEUE_DEPTH as u32,
                settings.uring && !list.devices.is_empty(),
            )),
            make_io,
            tables,
            in_memory: in_memory.transpose().map_err(SwapError::no_tables)?,
            run_dir: settings.run_dir,
            stats,
        };
        if settings.in_memory > 0 && !devices.tables.open(SlotId::IN_MEMORY, settings.in_memory) {
            return Err(SwapError::no_tables(Errno::NOMEM));
        }
        list.with_priorities().try_for_each(|(listed, priority)| {
            match devices.add(listed, priority) {
                Err(error) if settings.reachable_only && error.is_out_of_reach() => Ok(()),
                result => result,
            }
        })?;
        Ok(devices)
    }

    /// Opens what is listed, in the first entry that is not in use.
    pub fn add(&self, listed: &ListedSwap, priority: i32) -> Result<(), SwapError> {
        let (ListedSwap { id, spec }, slots) = (listed, self.slots);
        // A directory is used by each who makes a file there; a file or a block device twice would
        // be two maps of one place.
        if self.areas().any(|(_, area)| area.is_named_place(&spec.path)) {
            return Err(SwapError::InUse(spec.path.clone()));
        }
        self.add_area(*id, &spec.path, priority, |listing| {
            let of_job = || {
                let run_dir = Directory::trusted(self.run_dir.as_deref()?).ok()?;
                job_file::open(&run_dir, *id)
            };
            let opened = open::open(spec, of_job)?;
            let key = if spec.is_sealed() { Some(self.key(&spec.path)?) } else { None };
            Area::open((spec, opened, key), listing, self.make_io(), slots, &self.stats)
        })
    }

    fn add_area(
        &self,
        id: u32,
        path: &Path,
        priority: i32,
        open: impl FnOnce(Listing) -> Result<Area, SwapError>,
    ) -> Result<(), SwapError> {
        // What the sibling opens the program's threads reach by it.
        beside::serve_calls()
            .map_err(|errno| SwapError::new(path, "starting a thread for it", errno))?;
        let free = |index: &usize| self.table.get(*index).is_none();
        let too_many = || SwapError::TooMany(path.to_owned());
        let mut index = (0..SlotId::IN_MEMORY).find(free).ok_or_else(too_many)?;
        let area = open(Listing {
            figures: self.stats.device(index),
            priority,
            id,
            serial: self.opened.fetch_add(1, Relaxed),
        })?;
        // With room for what is to be known of its slots.
        if !self.tables.open(index, area.pages()) {
            let roomy = |other: &usize| free(other) && self.tables.open(*other, area.pages());
            index = (index + 1..SlotId::IN_MEMORY).find(roomy).ok_or_else(too_many)?;
        }
        self.table.set(index, Some(Arc::new(area)));
        self.priorities[index].store(priority, Relaxed);
        Ok(())
    }

    /// What pages are sealed with.
    fn key(&self, path: &Path) -> Result<Arc<Key>, SwapError> {
        if self.key.get().is_none() {
            let made = Key::random();
            let key = made.map_err(|errno| SwapError::new(path, "making a key for it", errno))?;
            // Whoever was first has made the key of all.
            let _ = self.key.set(Arc::new(key));
        }
        Ok(self.key.get().expect("it was set just now").clone())
    }

    fn make_io(&self) -> impl FnOnce(File) -> Box<dyn BlockIo> {
        |file| (self.make_io)(file, self.queue.clone())
    }

    /// All devices with their numbers.
    fn areas(&self) -> impl Iterator<Item = (usize, Arc<Area>)> {
        self.table.indices().filter_map(|index| Some((index, self.table.get(index)?)))
    }

    /// The device of a slot in use.
    fn area_of(&self, slot: SlotId) -> Arc<Area> {
        self.table.get(slot.device()).expect(OPEN)
    }

    /// Hands out up to `want` (1 to [`RUN_MAX`]) neighbouring slots, mostly next to those handed
    /// out before: of the device of the highest priority that has room, of equal ones in turn.
    /// `None` when every device is full.
    pub fn alloc_run(&self, want: usize) -> Option<SlotRun> {
        assert!((1..=RUN_MAX).contains(&want));
        let entries = self.table.indices().end;
        let priority = |index: usize| self.priorities[index].load(Relaxed);
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut level = (0..entries).map(priority).max().unwrap_or(CLOSED);
        while level != CLOSED {
            let peers = || (0..entries).filter(|index| priority(*index) == level);
            let first = turn.checked_rem(peers().count()).unwrap_or(0);
            for index in peers().skip(first).chain(peers().take(first)) {
                if let Some((offset, len)) =
                    self.table.with(index, |area| area.alloc(want)).flatten()
                {
                    return Some(SlotRun { first: SlotId::new(index, offset), len });
                }
            }
            level =
                (0..entries).map(priority).filter(|other| *other < level).max().unwrap_or(CLOSED);
        }
        None
    }

    /// Hands out up to `want` neighbouring slots on no device, for pages that some other tier
    /// keeps.
    pub fn alloc_in_memory(&self, want: usize) -> Option<SlotRun> {
        let (offset, len) = self.in_memory.as_ref()?.alloc(want, &NoDisk)?;
        Some(SlotRun { first: SlotId::new(SlotId::IN_MEMORY, offset), len })
    }

    /// Whether a page may be written to a slot that is in use: not on a device that was inherited,
    /// nor on none.
    pub fn is_writable(&self, slot: SlotId) -> bool {
        self.priorities[slot.device()].load(Relaxed) != CLOSED
    }

    /// Takes back a slot, which must be in use.
    pub fn free(&self, slot: SlotId) {
        self.free_run(SlotRun { first: slot, len: 1 });
    }

    /// Takes back a run of slots, all of which must be in use.
    pub fn free_run(&self, run: SlotRun) {
        let device = run.first.device();
        if let (SlotId::IN_MEMORY, Some(slots)) = (device, &self.in_memory) {
            slots.free(run.first.offset(), run.len, &NoDisk);
            return;
        }
        if self.table.with(device, |area| area.free(run.first.offset(), run.len)).expect(OPEN) {
            // Nothing is left of what was inherited: the entry may name another device.
            self.close(device);
        }
    }

    /// Takes a device on which nothing is left out of the table.
    fn close(&self, device: usize) {
        self.stats.device(device).clear();
        let closed = self.table.get(device);
        self.table.set(device, None);
        // Its descriptor may be in another table than that of this thread.
        lock(&self.closed).extend(closed);
    }

    /// Devices that are out of use and whose files are open; and how many of those nobody looks at
    /// any more.
    pub fn to_close(&self) -> (usize, usize) {
        let closed = lock(&self.closed);
        (closed.len(), closed.iter().filter(|area| Arc::strong_count(area) == 1).count())
    }

    /// Closes the files of devices that are out of use, unless somebody still looks at them. For an
    /// engine thread, which has the descriptors. It may take long: a file without a name is
    /// removed.
    pub fn close_files(&self) {
        let unused: Vec<_> =
            lock(&self.closed).extract_if(.., |area| Arc::strong_count(area) == 1).collect();
        drop(unused);
    }

    /// In the child of a fork, which has its parent's descriptors: closes them, whoever of its
    /// parent's threads looked at them.
    fn close_files_in_child(&self) {
        lock(&self.closed).clear();
    }

    /// Puts back freed slots that processors have collected and not added to lately. To be called
    /// now and then.
    pub fn trim_caches(&self) {
        self.areas().for_each(|(_, area)| area.slots().trim(&*area));
    }

    /// Brings the figures of each device up to date. To be called now and then.
    pub fn publish(&self) {
        self.areas().for_each(|(_, area)| area.publish());
    }

    /// Writes runs from `buffer`, several in flight, and sets the result of each; their order may
    /// change. The slots of a failed run are never handed out again (on a full disk: not before it
    /// has room), and are no longer the caller's, unless it keeps them. Each page of the buffer is
    /// in one run at most, and used up: the buffer has afterwards what the device is to have.
    pub fn write(&self, buffer: &mut IoBuffer, writes: &mut [RunWrite]) {
        // The runs of a device together, in the order in which they lie there, so that as many as
        // can be are in flight.
        writes.sort_unstable_by_key(|write| write.run.first);
        for same in writes.chunk_by_mut(|a, b| a.run.first.device() == b.run.first.device()) {
            let area = self.area_of(same[0].run.first);
            same.chunks_mut(QUEUE_DEPTH).for_each(|batch| area.write(buffer, batch, &self.stats));
        }
    }

    /// Reads a run into the first pages of `buffer`. An error tells of the first page that cannot
    /// be had, or is not what was written, also when read again; the pages before it are good, what
    /// lies behind is undefined.
    pub fn read(&self, run: SlotRun, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.area_of(run.first).read(run.first.offset(), run.len, buffer, &self.stats)
    }

    /// Discards what is not in use any more, where that was asked for. For the background thread.
    pub fn discard_idle(&self) {
        self.areas().for_each(|(_, area)| area.discard_idle());
    }

    /// Slots in use on no device.
    pub fn used_in_memory(&self) -> u64 {
        self.in_memory.as_ref().map_or(0, |slots| slots.counts().used)
    }

    /// Whether none of those has anything to be kept.
    fn is_memory_unused(&self) -> bool {
        let counts = self.in_memory.as_ref().map(SlotMap::counts);
        counts.is_none_or(|counts| counts.used == 0 && counts.sealed == 0)
    }

    /// Whether something is kept by slot of those on no device, and nobody needs it.
    pub fn keeps_unused(&self) -> bool {
        self.tables.has_entries(SlotId::IN_MEMORY) && self.is_memory_unused()
    }

    /// Gives the memory of that back. Nobody takes a slot meanwhile.
    pub fn forget_unused(&self) {
        if self.is_memory_unused() {
            point();
            self.tables.forget(SlotId::IN_MEMORY);
        }
    }

    /// Bytes of what is kept by slot and by cluster, of all clusters of which slots were ever in
    /// use.
    pub fn table_bytes(&self) -> u64 {
        let bytes = |index: usize, slots: &SlotMap, more: u64| {
            let cluster = self.tables.slot_bytes(index) + more;
            slots.touched_clusters() * (cluster * CLUSTER_SLOTS as u64 + CLUSTER_BYTES as u64)
        };
        let on_devices: u64 =
            self.areas().map(|(index, area)| bytes(index, area.slots(), area.slot_bytes())).sum();
        on_devices + self.in_memory.as_ref().map_or(0, |slots| bytes(SlotId::IN_MEMORY, slots, 0))
    }

    /// Slots in use on all devices.
    pub fn used_pages(&self) -> u64 {
        self.areas().map(|(_, area)| area.slots().counts().used).sum()
    }

    /// Pages that all devices together can hold, those in use included. Less than their size where
    /// slots are bad, a disk is full, other processes use a device too, or free slots are shared
    /// over a fork.
    pub fn capacity_pages(&self) -> u64 {
        self.areas().map(|(_, area)| area.slots().capacity_pages()).sum()
    }

    /// Checks the books of every device, when no operation is under way; for tests and debugging.
    ///
    /// # Panics
    /// When a slot is lost, or in two places.
    pub fn check(&self) {
        self.areas().for_each(|(_, area)| area.slots().check());
        self.in_memory.iter().for_each(SlotMap::check);
    }

    /// The descriptors of all devices that are open in the table of the calling thread.
    pub fn fds(&self) -> Vec<RawFd> {
        self.areas().filter_map(|(_, area)| area.file().raw_fd().ok()).collect()
    }
}

/// What slots on no device lie on.
#[derive(Debug)]
struct NoDisk;

impl Disk for NoDisk {
    fn is_shared(&self) -> bool {
        false
    }

    fn acquire(&self, _: Range<u64>) -> bool {
        true
    }

    fn gives_back(&self) -> bool {
        false
    }

    fn release(&self, _: Range<u64>) {}

    fn allocate(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }
}

/// Debug builds check the books whenever devices are closed: then no operation is under way.
#[cfg(debug_assertions)]
impl Drop for SwapDevices {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl std::fmt::Debug for SwapDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.areas()).finish()
    }
}
