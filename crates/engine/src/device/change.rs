//! Devices that go while others are in use: taken out of use first, then, when nothing is left on
//! them, out of the table.
//!
//! From [`SwapDevices::retire`] on, a device hands out no slots, and those in use are only read and
//! given back; so no slot of it that was free ever has another page, until [`SwapDevices::resume`].
//! Who moves the pages is [`crate::control::swapoff`].

use super::area::Area;
use super::{CLOSED, SwapDevices};
use crate::base::seeded::{Bug, is_seeded};
use crate::device::list::JobSwaps;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// A device that is being taken out of use.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Its number.
    pub device: usize,
    area: Weak<Area>,
    /// Its clusters that had slots in use, in the order in which they lie there.
    pub clusters: Vec<u32>,
}

impl Retired {
    /// The device, if it is still there.
    pub fn area(&self) -> Option<Arc<Area>> {
        self.area.upgrade()
    }
}

impl SwapDevices {
    /// Which of the listed devices each device is, inherited ones included.
    pub fn ids(&self) -> Vec<u32> {
        self.areas().map(|(_, area)| area.id()).collect()
    }

    /// Whether a listed device is open, to be written to.
    pub fn is_open(&self, id: u32) -> bool {
        self.of(id).any(|(_, area)| !area.is_inherited())
    }

    fn of(&self, id: u32) -> impl Iterator<Item = (usize, Arc<Area>)> {
        self.areas().filter(move |(_, area)| area.id() == id)
    }

    /// The listed device of that path, label or UUID.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.areas().find(|(_, area)| area.is_named(name)).map(|(_, area)| area.id())
    }

    /// Has the devices filled in the order that the list says.
    pub fn set_priorities(&self, list: &JobSwaps) {
        for (listed, priority) in list.with_priorities() {
            for (index, area) in self.of(listed.id) {
                if !area.is_inherited() && !area.slots().is_retiring() {
                    area.set_priority(priority);
                    self.priorities[index].store(priority, Relaxed);
                }
            }
        }
    }

    /// Takes a listed device out of use, with what of it was inherited.
    pub fn retire(&self, id: u32) -> Vec<Retired> {
        let retire = |(device, area): (usize, Arc<Area>)| {
            let hands_out = is_seeded(Bug::HandsOut);
            if !hands_out {
                self.priorities[device].store(CLOSED, Relaxed);
            }
            if !area.is_inherited() && !hands_out {
                area.slots().begin_retire();
                // Whoever was taking slots has them, and whoever comes next takes none.
                if !is_seeded(Bug::NotSynchronized) {
                    self.table.synchronize(device);
                }
                area.slots().settle_retired(&*area);
                area.figures.set_leaving(true);
            }
            Retired {
                device,
                area: Arc::downgrade(&area),
                clusters: area.slots().clusters_in_use(),
            }
        };
        self.of(id).map(retire).collect()
    }

    /// Pages that are left on it.
    pub fn left(&self, id: u32) -> u64 {
        self.of(id).map(|(_, area)| area.slots().counts().used).sum()
    }

    /// Takes it into use again; [`SwapDevices::set_priorities`] says when it is filled.
    pub fn resume(&self, id: u32) {
        for (_, area) in self.of(id).filter(|(_, area)| !area.is_inherited()) {
            area.slots().end_retire(&*area);
            area.figures.set_leaving(false);
        }
    }

    /// Closes it, if nothing is left on it; whether it is gone.
    pub fn remove(&self, id: u32) -> bool {
        for (device, area) in self.of(id) {
            if area.slots().counts().used == 0 || is_seeded(Bug::ClosedInUse) {
                self.close(device);
                self.tables.forget(device);
            }
        }
        self.of(id).next().is_none()
    }
}
