//! One swap device: its disk, and its slots on it.
//!
//! Locks: those of the slot map ([`crate::slot`]), which asks for leases and disk space ([`Disk`]) under its own; none is
//! held over reads and writes.

use super::block_io::BlockIo;
use super::error::{ReadError, SwapError};
use super::open::{self, Opened};
use super::parts::{PART, PartIo, Parts};
use super::{InheritedDevice, QUEUE_DEPTH, RunWrite};
use crate::base::PAGE_SIZE;
use crate::config::SwapSpec;
use crate::slot::{Disk, SlotMap, SlotSettings};
use crate::stats::{Counter, Stats};
use overspill_os::Errno;
use overspill_os::cpu::Topology;
use overspill_os::io::{self, File, IoBuffer, Lock};
use overspill_os::uring::Op;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a device is made from.
struct New {
    path: Arc<Path>,
    pages: u64,
    reserved_pages: u64,
    shared: bool,
    sparse: bool,
    parts: Option<Parts>,
    slots: SlotSettings,
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
    slots: SlotMap,
    /// Whether it was inherited in a fork: read and freed, never written.
    inherited: AtomicBool,
    /// Cleared where the open file, and so its leases, are shared with the parent.
    own_locks: AtomicBool,
}

impl Area {
    /// Opens what `spec` names.
    pub fn open(
        spec: &SwapSpec,
        make_io: impl FnOnce(File) -> Box<dyn BlockIo>,
        slots: SlotSettings,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let Opened { file, pages, reserved_pages, shared, sparse } = open::open(spec)?;
        // Without the table children get no parts.
        let parts = if shared { None } else { Parts::new().ok() };
        let new = New { path: spec.path.as_path().into(), pages, reserved_pages, shared, sparse, parts, slots };
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
        let (path, parts, slots) = (self.path.clone(), Some(parts), self.slots.settings());
        let new = New { path, pages, reserved_pages: 0, shared: false, sparse, parts, slots };
        Area::new(new, Box::new(io), stats)
    }

    fn new(new: New, io: Box<dyn BlockIo>, stats: &Stats) -> Result<Area, SwapError> {
        let New { path, pages, reserved_pages, shared, sparse, parts, slots } = new;
        let slots = SlotMap::new(pages, reserved_pages, slots, cpus(), *stats)
            .map_err(|errno| SwapError::new(&path, "getting memory for its slots", errno))?;
        Ok(Area {
            path,
            pages,
            io,
            shared,
            parts,
            preallocates: AtomicBool::new(sparse),
            slots,
            inherited: AtomicBool::new(false),
            own_locks: AtomicBool::new(true),
        })
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

    /// Its slots.
    pub fn slots(&self) -> &SlotMap {
        &self.slots
    }

    /// Hands out up to `want` neighbouring slots; `None` when the device is full just now.
    pub fn alloc(&self, want: usize) -> Option<(u64, usize)> {
        if self.inherited.load(Relaxed) { None } else { self.slots.alloc(want, self) }
    }

    /// Takes slots back. Returns whether the device is an inherited one with nothing left on it.
    pub fn free(&self, offset: u64, len: usize) -> bool {
        self.slots.free(offset, len, self)
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
        let (offset, len) = (write.run.first.offset(), write.run.len);
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            // The disk is full, not broken: the slots are good again when it has room.
            self.slots.pause_writes(offset, len, self);
        } else {
            self.slots.mark_bad(offset, len);
        }
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
        !self.shared || self.slots.all_leases_in_use(|bytes| file.try_lock(bytes, Lock::Read) == Ok(true))
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

    /// In a child of a fork: goes on with `device`, to read and free what was inherited and nothing else.
    pub fn adopt(&self, device: Option<InheritedDevice>) -> Result<(), SwapError> {
        // Without the leases another process may already have overwritten the pages: rather an error than its data. A
        // duplicate has those of the parent, for as long as it is open.
        let device = device.filter(|device| !device.own_locks || self.hold_leases(&device.file));
        self.own_locks.store(device.as_ref().is_some_and(|device| device.own_locks), Relaxed);
        self.file().adopt(device.and_then(|device| device.file.into_fd()));
        self.inherited.store(true, Relaxed);
        self.slots.close(self);
        if self.slots.counts().used > 0 && self.file().raw_fd().is_err() {
            return Err(SwapError::Lost(self.path.to_path_buf()));
        }
        Ok(())
    }

    /// What a fork copies, on `io`.
    #[cfg(test)]
    pub fn copied_by_fork(&self, io: Box<dyn BlockIo>, stats: Stats) -> Area {
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
            slots: self.slots.copy(cpus(), stats),
            inherited: AtomicBool::new(self.inherited.load(Relaxed)),
            own_locks: AtomicBool::new(self.own_locks.load(Relaxed)),
        }
    }
}

impl Disk for Area {
    fn lease(&self, bytes: Range<u64>) -> bool {
        // A device of this process alone needs no leave.
        !self.shared || self.file().try_lock(bytes, Lock::Write) == Ok(true)
    }

    fn gives_back(&self) -> bool {
        self.shared && self.own_locks.load(Relaxed)
    }

    fn release(&self, bytes: Range<u64>) {
        // If it fails we hold a lease that we do not use, and take it up again if we need it.
        let _ = self.file().unlock(bytes);
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        if !self.preallocates.load(Relaxed) {
            return Ok(());
        }
        match self.io.allocate(bytes) {
            // Not able to: as much as is asked for, and a full disk shows in writes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.preallocates.store(false, Relaxed);
                Ok(())
            }
            result => result,
        }
    }
}

/// Processors that the machine may have.
pub fn cpus() -> usize {
    Topology::of_machine().cpus()
}

/// The outcome of an operation on `pages` pages; one that moved fewer bytes without saying why has failed.
fn complete(op: &Op<'_>, pages: usize) -> Result<(), Errno> {
    match op.result {
        Ok(bytes) if bytes == pages * PAGE_SIZE => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
