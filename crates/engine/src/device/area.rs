//! One swap device: its disk, and its slots on it.
//!
//! Locks: those of the slot map ([`crate::slot`]), which asks for allotments and disk space
//! ([`Disk`]) with its right to grow held, and gives allotments back under its own lock; none is
//! held over reads and writes.

use super::block_io::BlockIo;
use super::error::SwapError;
use super::inherited::InheritedDevice;
use super::marks::Marks;
use super::open::Opened;
use super::parts::{PART, PartIo, Parts};
use super::ram::Ram;
use crate::device::spec::{Discard, SwapSpec};
use crate::slot::{Disk, SlotMap, SlotSettings};
use crate::stats::{DeviceFigure, DeviceFigures, DeviceIdentity, DeviceKind, Stats};
use crate::units::Uuid;
use overspill_os::Errno;
use overspill_os::cpu::Topology;
use overspill_os::crypt::Key;
use overspill_os::io::{self, File, Lock};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a device is made from.
struct New {
    identity: Identity,
    reserved_pages: u64,
    bad_pages: Vec<u32>,
    shared: bool,
    sparse: bool,
    parts: Option<Parts>,
    slots: SlotSettings,
    key: Option<Arc<Key>>,
}

/// What a device is.
#[derive(Clone, Debug)]
struct Identity {
    path: Arc<Path>,
    kind: DeviceKind,
    label: Arc<str>,
    uuid: Option<Uuid>,
    pages: u64,
    discard: Discard,
}

/// Where a device is to be in the table, and what it is to report to.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// Its figures.
    pub figures: DeviceFigures,
    /// Its priority.
    pub priority: i32,
    /// Which of the listed devices it is, and which of all that were opened.
    pub id: u32,
    pub serial: u64,
}

/// A swap device that is open.
#[derive(Debug)]
pub struct Area {
    id: u32,
    serial: u64,
    identity: Identity,
    pub(super) figures: DeviceFigures,
    pub(super) io: Box<dyn BlockIo>,
    pub(super) shared: bool,
    /// Of a file that nobody else can open: what children may have of it.
    parts: Option<Parts>,
    /// Cleared where the filesystem cannot set disk space aside: then a full disk shows in writes.
    preallocates: AtomicBool,
    /// Cleared where nothing can be discarded.
    pub(super) discards: AtomicBool,
    slots: SlotMap,
    /// By what each page is known again.
    pub(super) marks: Marks,
    /// Whether it was inherited in a fork: read and freed, never written.
    pub(super) inherited: AtomicBool,
    /// Cleared where the open file, and so its locks, are shared with the parent.
    own_locks: AtomicBool,
}

impl Area {
    /// The device that `spec` names, as it was opened, with the key if its pages are sealed.
    pub fn open(
        (spec, opened, key): (&SwapSpec, Opened, Option<Arc<Key>>),
        listing: Listing,
        make_io: impl FnOnce(File) -> Box<dyn BlockIo>,
        slots: SlotSettings,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let Opened { file, kind, label, uuid, pages, reserved_pages, shared, sparse, bad_pages } =
            opened;
        // Without the table children get no parts. In memory each makes a file of its own in any
        // case.
        let parts = if kind == DeviceKind::Directory { Parts::new(shared).ok() } else { None };
        let io = match spec.ram {
            Some(model) => Box::new(Ram::new(file, model, pages)),
            None => make_io(file),
        };
        let path = spec.path.as_path().into();
        let identity =
            Identity { path, kind, label: label.into(), uuid, pages, discard: spec.discard };
        Area::new(
            New { identity, reserved_pages, bad_pages, shared, sparse, parts, slots, key },
            listing,
            io,
            stats,
        )
    }

    /// In a child of a fork: the part that was taken for it of the file of this device, its
    /// parent's, opened by `make_io`.
    pub fn open_part(
        &self,
        part: usize,
        listing: Listing,
        make_io: impl FnOnce(File) -> Box<dyn BlockIo>,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let failed =
            |errno| SwapError::new(self.path(), "taking a part of the parent's file", errno);
        let parts = self.parts.ok_or(failed(Errno::OPNOTSUPP))?.of_child(part);
        let range = parts.own_bytes();
        // Writing beyond the limit would kill the process.
        if io::file_size_limit_bytes().is_some_and(|limit| limit < range.end) {
            return Err(failed(Errno::FBIG));
        }
        let io =
            PartIo { io: make_io(self.file().duplicate().map_err(failed)?), start: range.start };
        let identity =
            Identity { pages: self.identity.pages.min(PART.pages()), ..self.identity.clone() };
        let sparse = self.preallocates.load(Relaxed);
        let (bad_pages, parts, slots) = (Vec::new(), Some(parts), self.slots.settings());
        let key = self.marks.key().cloned();
        let new = New {
            identity,
            reserved_pages: 0,
            bad_pages,
            shared: false,
            sparse,
            parts,
            slots,
            key,
        };
        Area::new(new, listing, Box::new(io), stats)
    }

    fn new(
        new: New,
        listing: Listing,
        io: Box<dyn BlockIo>,
        stats: &Stats,
    ) -> Result<Area, SwapError> {
        let New { identity, reserved_pages, bad_pages, shared, sparse, parts, slots, key } = new;
        let no_memory =
            |errno| SwapError::new(&identity.path, "getting memory for its slots", errno);
        let slots = SlotMap::new(identity.pages, reserved_pages, slots, cpus(), *stats)
            .map_err(no_memory)?;
        let bad_pages = bad_pages.into_iter().map(u64::from);
        slots.exclude(bad_pages.filter(|page| (reserved_pages..identity.pages).contains(page)));
        let marks = Marks::new(identity.pages, key, listing.serial).map_err(no_memory)?;
        let area = Area {
            id: listing.id,
            serial: listing.serial,
            identity,
            figures: listing.figures,
            io,
            shared,
            parts,
            preallocates: AtomicBool::new(sparse),
            discards: AtomicBool::new(true),
            slots,
            marks,
            inherited: AtomicBool::new(false),
            own_locks: AtomicBool::new(true),
        };
        area.describe(Some(listing.priority));
        area.publish();
        Ok(area)
    }

    /// Its path, or what the user named it.
    pub fn path(&self) -> &Arc<Path> {
        &self.identity.path
    }

    /// Shows another priority.
    pub fn set_priority(&self, priority: i32) {
        self.figures.set_priority(Some(priority));
    }

    /// Begins its figures.
    fn describe(&self, priority: Option<i32>) {
        let Identity { path, kind, label, uuid, pages, discard: _ } = &self.identity;
        self.figures.describe(DeviceIdentity {
            path,
            kind: *kind,
            label,
            uuid: *uuid,
            priority,
            pages: *pages,
            id: self.id,
        });
    }

    /// Which of the listed devices it is; an inherited one that of the parent.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Tells it from all other devices that had its number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether it is named so, by its path, its label or its UUID.
    pub fn is_named(&self, name: &str) -> bool {
        let Identity { path, label, uuid, .. } = &self.identity;
        let is_path = std::path::absolute(name).is_ok_and(|named| *named == **path);
        is_path
            || path.to_str() == Some(name)
            || !label.is_empty() && **label == *name
            || uuid.is_some_and(|uuid| uuid.to_string().eq_ignore_ascii_case(name))
    }

    /// Whether it is the file or the block device of that path, open to be written to.
    pub fn is_named_place(&self, path: &Path) -> bool {
        let named = matches!(self.identity.kind, DeviceKind::File | DeviceKind::Block);
        named
            && !self.is_inherited()
            && (*self.identity.path == *path || same_file(&self.identity.path, path))
    }

    /// Whether it was inherited in a fork: read and freed, never written.
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        self.io.file()
    }

    /// Its size in pages.
    pub fn pages(&self) -> u64 {
        self.identity.pages
    }

    /// Bytes that a slot takes up here.
    pub fn slot_bytes(&self) -> u64 {
        self.marks.slot_bytes()
    }

    /// Its slots.
    pub fn slots(&self) -> &SlotMap {
        &self.slots
    }

    /// When unused parts of it are discarded.
    pub(super) fn discard(&self) -> Discard {
        self.identity.discard
    }

    /// Brings its figures up to date.
    pub fn publish(&self) {
        let counts = self.slots.counts();
        self.figures.set(DeviceFigure::Used, counts.used);
        self.figures.set(DeviceFigure::Bad, counts.bad);
    }

    /// Hands out up to `want` neighbouring slots; `None` when the device is full just now.
    pub fn alloc(&self, want: usize) -> Option<(u64, usize)> {
        if self.inherited.load(Relaxed) { None } else { self.slots.alloc(want, self) }
    }

    /// Takes slots back. Returns whether the device is an inherited one with nothing left on it.
    pub fn free(&self, offset: u64, len: usize) -> bool {
        self.slots.free(offset, len, self)
    }

    /// Before a fork: turns the locks on allotments in use into ones that a child can hold too.
    /// Other processes acquire by write locks, so a read lock keeps them out as well.
    pub fn share_locks(&self) {
        self.hold_locks(self.file());
    }

    /// Has `file`, this device opened once more, hold the locks on allotments in use; `false` if
    /// it cannot.
    pub fn hold_locks(&self, file: &File) -> bool {
        !self.shared
            || self.slots.all_owned_in_use(|bytes| file.try_lock(bytes, Lock::Read) == Ok(true))
    }

    /// Before a fork: takes a part of the file for the child, if it has parts and this process
    /// writes to it.
    pub fn take_part(&self) -> Option<usize> {
        self.parts.filter(|_| !self.inherited.load(Relaxed))?.take(self.file())
    }

    /// Before a fork: has `file`, the child's, hold its part, which is given back if it cannot.
    pub fn hold_part(&self, part: usize, file: &File) -> bool {
        let holds = self.parts.is_some_and(|parts| parts.hold(part, file));
        if !holds {
            self.give_back_part(part);
        }
        holds
    }

    /// Gives back a part that was taken for a child, which is gone.
    pub fn give_back_part(&self, part: usize) {
        self.parts.iter().for_each(|parts| parts.give_back(part, self.file()));
    }

    /// In a child of a fork: goes on with `device`, to read and free what was inherited and nothing
    /// else.
    pub fn adopt(&self, device: Option<InheritedDevice>) -> Result<(), SwapError> {
        // Without the locks another process may already have overwritten the pages: rather an
        // error than its data. A duplicate has those of the parent, for as long as it is open.
        let device = device.filter(|device| !device.own_locks || self.hold_locks(&device.file));
        self.own_locks.store(device.as_ref().is_some_and(|device| device.own_locks), Relaxed);
        self.file().adopt(device.and_then(|device| device.file.into_fd()));
        self.inherited.store(true, Relaxed);
        self.describe(None);
        self.slots.close(self);
        self.publish();
        if self.slots.counts().used > 0 && self.file().raw_fd().is_err() {
            return Err(SwapError::Lost(self.path().to_path_buf()));
        }
        Ok(())
    }

    /// What a fork copies, on `io`.
    #[cfg(test)]
    pub fn copied_by_fork(
        &self,
        io: Box<dyn BlockIo>,
        figures: DeviceFigures,
        stats: Stats,
    ) -> Area {
        let io = match self.parts.map_or(0, |parts| parts.own_bytes().start) {
            0 => io,
            start => Box::new(PartIo { io, start }),
        };
        Area {
            id: self.id,
            serial: self.serial,
            identity: self.identity.clone(),
            figures,
            io,
            shared: self.shared,
            parts: self.parts,
            preallocates: AtomicBool::new(self.preallocates.load(Relaxed)),
            discards: AtomicBool::new(self.discards.load(Relaxed)),
            slots: self.slots.copy(cpus(), stats),
            marks: self.marks.copied_by_fork(),
            inherited: AtomicBool::new(self.inherited.load(Relaxed)),
            own_locks: AtomicBool::new(self.own_locks.load(Relaxed)),
        }
    }
}

impl Disk for Area {
    fn is_shared(&self) -> bool {
        self.shared
    }

    fn acquire(&self, bytes: Range<u64>) -> bool {
        // A device of this process alone needs no leave.
        let acquired = !self.shared || self.file().try_lock(bytes.clone(), Lock::Write) == Ok(true);
        if acquired {
            self.discard_acquired(bytes);
        }
        acquired
    }

    fn gives_back(&self) -> bool {
        self.shared && self.own_locks.load(Relaxed) && !self.discards_idle()
    }

    fn release(&self, bytes: Range<u64>) {
        if self.shared {
            // If it fails we hold a lock that we do not use, and take it up again if we need it.
            let _ = self.file().unlock(bytes);
        }
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

/// Whether two paths lead to one file.
fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Processors that the machine may have.
pub fn cpus() -> usize {
    Topology::of_machine().cpus()
}
