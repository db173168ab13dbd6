//! The table of devices: what each number stands for.
//!
//! It is read at every fault and eviction and changed around forks. So there are several copies,
//! each on cache lines of its own: a reader locks that of its processor, which no other is after,
//! and a change goes to all.
//!
//! Locks: an entry of a copy (`Rank::DeviceTable`), one at a time. It may be held over what is done
//! with a device's slots, but not over reads and writes, for which the device is borrowed
//! ([`DeviceTable::get`]).

use super::area::Area;
use crate::base::lockdep::{LockClass, Rank};
use crate::base::sync::{read, write};
use crate::units::SlotId;
use overspill_os::cpu;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

/// Most copies, 1.5 KiB each; processors beyond share them.
const COPIES_MAX: usize = 16;

/// The class of the locks of entries.
const TABLE: LockClass = LockClass::new(Rank::DeviceTable);

#[repr(align(128))]
struct Copy([RwLock<Option<Arc<Area>>>; SlotId::DEVICES_MAX]);

/// The devices of a process by their numbers.
pub struct DeviceTable {
    copies: Box<[Copy]>,
    /// Entries from here on have never been used.
    top: AtomicUsize,
}

impl DeviceTable {
    /// An empty table, for a machine of `cpus` processors.
    pub fn new(cpus: usize) -> DeviceTable {
        let copy = || Copy([const { RwLock::new(None) }; SlotId::DEVICES_MAX]);
        DeviceTable {
            copies: (0..cpus.clamp(1, COPIES_MAX)).map(|_| copy()).collect(),
            top: AtomicUsize::new(0),
        }
    }

    /// Does something with a device. The entry does not change meanwhile, so `call` must not change
    /// it.
    pub fn with<T>(&self, index: usize, call: impl FnOnce(&Area) -> T) -> Option<T> {
        TABLE.check();
        let _held = TABLE.hold();
        let copy = &self.copies[cpu::current() % self.copies.len()];
        read(&copy.0[index]).as_deref().map(call)
    }

    /// A device, for as long as the caller likes.
    pub fn get(&self, index: usize) -> Option<Arc<Area>> {
        TABLE.check();
        let _held = TABLE.hold();
        let copy = &self.copies[cpu::current() % self.copies.len()];
        read(&copy.0[index]).clone()
    }

    /// Changes an entry. Nobody else changes it, or uses slots of the device that it stood for.
    pub fn set(&self, index: usize, area: Option<Arc<Area>>) {
        for copy in &self.copies {
            TABLE.check();
            let _held = TABLE.hold();
            *write(&copy.0[index]) = area.clone();
        }
        self.top.fetch_max(index + 1, Relaxed);
    }

    /// Waits for whoever does something with a device just now: what was changed before, all that
    /// come later see.
    pub fn synchronize(&self, index: usize) {
        for copy in &self.copies {
            TABLE.check();
            let _held = TABLE.hold();
            drop(write(&copy.0[index]));
        }
    }

    /// The numbers that may have a device.
    pub fn indices(&self) -> std::ops::Range<usize> {
        0..self.top.load(Relaxed)
    }
}
