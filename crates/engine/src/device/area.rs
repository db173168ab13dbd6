//! One swap device: its disk, its slots, and how it takes more of the disk into use.
//!
//! Locks: the slot map's ([`Rank::SlotMap`]), held over lease and growth system calls, never over reads and writes.

use super::block_io::BlockIo;
use super::error::{ReadError, SwapError};
use super::open::{self, Opened};
use super::parts::{PART, PartIo, Parts};
use super::{InheritedDevice, QUEUE_DEPTH, RunWrite};
use crate::base::PAGE_SIZE;
use crate::config::SwapSpec;
use crate::lockdep::Rank;
use crate::slot::SlotMap;
use crate::stats::{Counter, Stats};
use crate::sync::{RankedMutex, lock};
use overspill_os::Errno;
use overspill_os::io::{self, File, IoBuffer, Lock};
use overspill_os::uring::Op;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Disk space is set aside in steps of this many clusters, and in smaller ones as a disk becomes full.
const GROWTH_STEPS: [u32; 4] = [32, 8, 2, 1];
/// How long a full disk, or one whose extents other processes lease, is left alone before it is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Extents asked for in one allocation, where other processes have many: bounds the time the map is locked.
const LEASE_TRIES: usize = 64;

/// What lies under the lock of a device.
#[derive(Debug)]
struct Slots {
    map: SlotMap,
    /// Set while the disk has no room for growth: when to ask again.
    no_growth_until: Option<Instant>,
    /// Set while the disk had no room for a write to space that could not be set aside: when to write again.
    no_writes_until: Option<Instant>,
    /// When extents that other processes had are asked for again.
    lease_retry: Option<Instant>,
}

impl Slots {
    /// Pages that can be held, those in use included.
    fn capacity(&self) -> u64 {
        let counts = self.map.counts();
        let free = if self.no_writes_until.is_some() { 0 } else { counts.free };
        let growable = if self.no_writes_until.or(self.no_growth_until).is_some() { 0 } else { counts.ungrown };
        counts.used + free + growable
    }
}

/// What a device is made from.
struct New {
    path: Arc<Path>,
    pages: u64,
    reserved_pages: u64,
    shared: bool,
    sparse: bool,
    parts: Option<Parts>,
}

/// A swap device that is open.
#[derive(Debug)]
pub struct Area {
    path: Arc<Path>,
    pages: u64,
    io: Box<dyn BlockIo>,
    shared: bool,
    /// Of a file that nobody else can open: what children may have of it.
    parts: Option<Parts>,
    /// Cleared where the filesystem cannot set disk space aside: then a full disk shows in writes.
    preallocates: AtomicBool,
    slots: RankedMutex<Slots>,
    /// Whether it was inherited in a fork: read and freed, never written.
    inherited: AtomicBool,
    /// Cleared where the open file, and so its leases, are shared with the parent.
    own_locks: AtomicBool,
    /// Copies for those who read without the lock.
    used_pages: AtomicU64,
    capacity_pages: AtomicU64,
}

impl Area {
    /// Opens what `spec` names.
    pub fn open(
        spec: &SwapSpec,
        make_io: impl FnOnce(File) -> Box<dyn BlockIo>,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let Opened { file, pages, reserved_pages, shared, sparse } = open::open(spec)?;
        // Without the table children get no parts.
        let parts = if shared { None } else { Parts::new().ok() };
        let new = New { path: spec.path.as_path().into(), pages, reserved_pages, shared, sparse, parts };
        Area::new(new, make_io(file), stats)
    }

    /// In a child of a fork: the part that was taken for it of the file of this device, its parent's, opened by `make_io`.
    pub fn open_part(
        &self,
        part: usize,
        make_io: impl FnOnce(File) -> Box<dyn BlockIo>,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let failed = |errno| SwapError::new(&self.path, "taking a part of the parent's file", errno);
        let parts = self.parts.ok_or(failed(Errno::OPNOTSUPP))?.of_child(part);
        let range = parts.own_bytes();
        // Writing beyond the limit would kill the process.
        if io::file_size_limit_bytes().is_some_and(|limit| limit < range.end) {
            return Err(failed(Errno::FBIG));
        }
        let io = PartIo { io: make_io(self.file().duplicate().map_err(failed)?), start: range.start };
        let pages = self.pages.min(PART.pages());
        let sparse = self.preallocates.load(Relaxed);
        let new = New { path: self.path.clone(), pages, reserved_pages: 0, shared: false, sparse, parts: Some(parts) };
        Area::new(new, Box::new(io), stats)
    }

    fn new(new: New, io: Box<dyn BlockIo>, stats: &Stats) -> Result<Area, SwapError> {
        let New { path, pages, reserved_pages, shared, sparse, parts } = new;
        let map = SlotMap::new(pages, reserved_pages)
            .map_err(|errno| SwapError::new(&path, "getting memory for its slots", errno))?;
        let area = Area {
            path,
            pages,
            io,
            shared,
            parts,
            preallocates: AtomicBool::new(sparse),
            slots: RankedMutex::new(
                Rank::SlotMap,
                Slots { map, no_growth_until: None, no_writes_until: None, lease_retry: None },
            ),
            inherited: AtomicBool::new(false),
            own_locks: AtomicBool::new(true),
            used_pages: AtomicU64::new(0),
            capacity_pages: AtomicU64::new(0),
        };
        area.publish(&lock(&area.slots), stats);
        Ok(area)
    }

    /// Whether it is what was named so.
    pub fn is_at(&self, path: &Path) -> bool {
        &*self.path == path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        self.io.file()
    }

    /// Its size in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages in use.
    pub fn used_pages(&self) -> u64 {
        self.used_pages.load(Relaxed)
    }

    /// Pages that can be held, those in use included.
    pub fn capacity_pages(&self) -> u64 {
        self.capacity_pages.load(Relaxed)
    }

    /// Brings the figures that others read up to date; the lock is held.
    fn publish(&self, slots: &Slots, stats: &Stats) {
        let change = |cell: &AtomicU64, now: u64, gauge: Counter, unit: u64| {
            let before = cell.swap(now, Relaxed);
            if now > before {
                stats.add(gauge, (now - before) * unit);
            } else if now < before {
                stats.sub(gauge, (before - now) * unit);
            }
        };
        change(&self.used_pages, slots.map.counts().used, Counter::DevicePages, 1);
        change(&self.capacity_pages, slots.capacity(), Counter::DeviceCapacityBytes, PAGE_SIZE as u64);
    }

    /// Hands out up to `want` neighbouring slots; `None` when the device is full just now.
    pub fn alloc(&self, want: usize, stats: &Stats) -> Option<(u64, usize)> {
        if self.inherited.load(Relaxed) {
            return None;
        }
        let slots = &mut *lock(&self.slots);
        if slots.no_writes_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        slots.no_writes_until = None;
        // Whole clusters first, new ones if half of the old are in use, and then what is left between used slots.
        let run = slots
            .map
            .alloc(want, false)
            .or_else(|| if slots.map.wants_growth() && self.grow(slots) { slots.map.alloc(want, false) } else { None })
            .or_else(|| slots.map.alloc(want, true))
            .or_else(|| if self.grow(slots) { slots.map.alloc(want, true) } else { None });
        self.publish(slots, stats);
        run
    }

    /// Takes more of the disk into use; `false` if there is no more just now.
    fn grow(&self, slots: &mut Slots) -> bool {
        if slots.no_growth_until.is_some_and(|until| Instant::now() < until) || !self.lease(slots) {
            return false;
        }
        let Some(growth) = slots.map.growth() else { return false };
        let mut failed = u32::MAX;
        for clusters in GROWTH_STEPS.map(|step| step.min(growth.clusters)) {
            if clusters == failed {
                continue;
            }
            let preallocates = self.preallocates.load(Relaxed);
            match if preallocates { self.io.allocate(slots.map.growth_bytes(growth, clusters)) } else { Ok(()) } {
                // Not able to: as much as is asked for, and a full disk shows in writes.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.preallocates.store(false, Relaxed),
                Ok(()) => {}
                Err(_) => {
                    failed = clusters;
                    continue;
                }
            }
            slots.map.grown(growth, clusters);
            slots.no_growth_until = None;
            return true;
        }
        slots.no_growth_until = Some(Instant::now() + RETRY);
        false
    }

    /// Sees to it that there is a leased extent to grow.
    fn lease(&self, slots: &mut Slots) -> bool {
        if slots.map.growth().is_some() {
            return true;
        }
        if slots.lease_retry.is_some_and(|retry| Instant::now() >= retry) {
            slots.lease_retry = None;
            slots.map.forget_refused();
        }
        for _ in 0..LEASE_TRIES {
            let Some(extent) = slots.map.next_lease() else { break };
            // A device of this process alone needs no leave.
            if !self.shared || self.file().try_lock(slots.map.extent_bytes(extent), Lock::Write) == Ok(true) {
                slots.map.leased(extent);
                return true;
            }
            slots.map.refused(extent);
            slots.lease_retry = slots.lease_retry.or_else(|| Some(Instant::now() + RETRY));
        }
        false
    }

    /// Takes slots back. Returns whether the device is an inherited one with nothing left on it.
    pub fn free(&self, offset: u64, len: usize, stats: &Stats) -> bool {
        let slots = &mut *lock(&self.slots);
        slots.map.free(offset, len);
        if self.shared
            && self.own_locks.load(Relaxed)
            && let Some(extent) = slots.map.release_idle(offset)
        {
            // If it fails we hold a lease that we do not use, and take it up again if we need it.
            let _ = self.file().unlock(slots.map.extent_bytes(extent));
        }
        self.publish(slots, stats);
        self.inherited.load(Relaxed) && slots.map.counts().used == 0
    }

    /// Writes up to [`QUEUE_DEPTH`] runs of this device, all in flight at once.
    pub fn write(&self, buffer: &IoBuffer, batch: &mut [RunWrite], stats: &Stats) {
        let mut results = [Ok(()); QUEUE_DEPTH];
        let mut ops: [Op<'_>; QUEUE_DEPTH] = std::array::from_fn(|i| match batch.get(i) {
            Some(write) => {
                let start = write.buffer_page * PAGE_SIZE;
                let data = &buffer[start..start + write.run.len * PAGE_SIZE];
                Op::write(write.run.first.offset() * PAGE_SIZE as u64, data)
            }
            None => Op::write(0, &[]),
        });
        self.io.run(&mut ops[..batch.len()]);
        for ((result, op), write) in results.iter_mut().zip(&ops).zip(&*batch) {
            *result = complete(op, write.run.len);
        }
        for (write, result) in batch.iter_mut().zip(results) {
            write.result = result;
            stats.add(Counter::PswpOutOps, 1);
            match result {
                Ok(()) => stats.add(Counter::PswpOut, write.run.len as u64),
                Err(errno) => self.write_failed(write, errno, stats),
            }
        }
    }

    /// Withdraws the slots of a run that could not be written.
    fn write_failed(&self, write: &RunWrite, errno: Errno, stats: &Stats) {
        stats.add(Counter::WriteErrors, 1);
        let slots = &mut *lock(&self.slots);
        let (offset, len) = (write.run.first.offset(), write.run.len);
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            // The disk is full, not broken: the slots are good again when it has room.
            slots.map.free(offset, len);
            slots.no_writes_until = Some(Instant::now() + RETRY);
        } else {
            slots.map.mark_bad(offset, len);
        }
        self.publish(slots, stats);
    }

    /// Reads a run into the first pages of `buffer`.
    pub fn read(&self, offset: u64, len: usize, buffer: &mut IoBuffer, stats: &Stats) -> Result<(), ReadError> {
        let offset_bytes = offset * PAGE_SIZE as u64;
        let mut ops = [Op::read(offset_bytes, &mut buffer[..len * PAGE_SIZE])];
        self.io.run(&mut ops);
        stats.add(Counter::PswpInOps, 1);
        match complete(&ops[0], len) {
            Ok(()) => {
                stats.add(Counter::PswpIn, len as u64);
                Ok(())
            }
            Err(errno) => {
                stats.add(Counter::ReadErrors, 1);
                Err(ReadError { path: self.path.clone(), offset_bytes, errno })
            }
        }
    }

    /// Before a fork: turns the leases of extents in use into ones that a child can hold too. Other processes take
    /// leases by write locks, so a read lock keeps them out as well.
    pub fn share_leases(&self) {
        self.hold_leases(self.file());
    }

    /// Has `file`, this device opened once more, hold the leases of extents in use; `false` if it cannot.
    pub fn hold_leases(&self, file: &File) -> bool {
        let slots = lock(&self.slots);
        let held = |extent| file.try_lock(slots.map.extent_bytes(extent), Lock::Read) == Ok(true);
        !self.shared || slots.map.extents_in_use().all(held)
    }

    /// Before a fork: takes a part of the file for the child, if it has parts and this process writes to it.
    pub fn take_part(&self) -> Option<usize> {
        self.parts.filter(|_| !self.inherited.load(Relaxed))?.take()
    }

    /// Gives back a part that was taken for a child, which is gone.
    pub fn give_back_part(&self, part: usize) {
        if let Some(parts) = self.parts {
            // Where holes cannot be made the disk space stays with the part.
            parts.give_back(part, &mut |range| {
                let _ = self.file().punch(range);
            });
        }
    }

    /// Seals the slots in use for the child of fork number `seq`.
    pub fn seal(&self, seq: u64, stats: &Stats) {
        let slots = &mut *lock(&self.slots);
        slots.map.seal(seq);
        self.publish(slots, stats);
    }

    /// Unseals what no living child can share.
    pub fn unseal(&self, oldest_living_child: Option<u64>, stats: &Stats) {
        let slots = &mut *lock(&self.slots);
        slots.map.unseal(oldest_living_child);
        self.publish(slots, stats);
    }

    /// In a child of a fork: goes on with `device`, to read and free what was inherited and nothing else.
    pub fn adopt(&self, device: Option<InheritedDevice>, stats: &Stats) -> Result<(), SwapError> {
        // Without the leases another process may already have overwritten the pages: rather an error than its data. A
        // duplicate has those of the parent, for as long as it is open.
        let device = device.filter(|device| !device.own_locks || self.hold_leases(&device.file));
        self.own_locks.store(device.as_ref().is_some_and(|device| device.own_locks), Relaxed);
        self.file().adopt(device.and_then(|device| device.file.into_fd()));
        self.inherited.store(true, Relaxed);
        let slots = &mut *lock(&self.slots);
        slots.map.close();
        self.publish(slots, stats);
        if slots.map.counts().used > 0 && self.file().raw_fd().is_err() {
            return Err(SwapError::Lost(self.path.to_path_buf()));
        }
        Ok(())
    }

    /// What a fork copies, on `io`.
    #[cfg(test)]
    pub fn copied_by_fork(&self, io: Box<dyn BlockIo>) -> Area {
        let Slots { map, no_growth_until, no_writes_until, lease_retry } = &*lock(&self.slots);
        let (no_growth_until, no_writes_until, lease_retry) = (*no_growth_until, *no_writes_until, *lease_retry);
        let io = match self.parts.map_or(0, |parts| parts.own_bytes().start) {
            0 => io,
            start => Box::new(PartIo { io, start }),
        };
        Area {
            path: self.path.clone(),
            pages: self.pages,
            io,
            shared: self.shared,
            parts: self.parts,
            preallocates: AtomicBool::new(self.preallocates.load(Relaxed)),
            slots: RankedMutex::new(
                Rank::SlotMap,
                Slots { map: map.copy(), no_growth_until, no_writes_until, lease_retry },
            ),
            inherited: AtomicBool::new(self.inherited.load(Relaxed)),
            own_locks: AtomicBool::new(self.own_locks.load(Relaxed)),
            used_pages: AtomicU64::new(self.used_pages()),
            capacity_pages: AtomicU64::new(self.capacity_pages()),
        }
    }
}

/// The outcome of an operation on `pages` pages; one that moved fewer bytes without saying why has failed.
fn complete(op: &Op<'_>, pages: usize) -> Result<(), Errno> {
    match op.result {
        Ok(bytes) if bytes == pages * PAGE_SIZE => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
