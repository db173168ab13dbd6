//! Devices over a fork: parent and child have them both.
//!
//! 1. Parent, all engine threads at rest: [`SwapDevices::prepare_fork`] opens each device once more
//!    ([`overspill_os::io::File::reopen`]), or else duplicates its descriptor, and takes a part of
//!    its file for the child.
//! 2. Fork.
//! 3. Parent: [`SwapDevices::seal_for_child`]; when children have gone, [`SwapDevices::unseal`] and
//!    [`SwapDevices::give_back_part`].
//! 4. Child: [`SwapDevices::adopt_in_child`]; what it inherited it reads and frees, and its own
//!    pages go to devices opened anew, or to that part.

use super::area::Area;
use super::error::SwapError;
use super::inherited::{InheritedDevice, LentPart};
use super::list::JobSwaps;
use super::{CLOSED, SwapDevices};
use overspill_os::io::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl SwapDevices {
    /// Before a fork: lets ownership be shared with the child, and returns each device as the child
    /// takes it over, with the part of its file that is the child's. The child must not use a
    /// device that is missing: its locks could not be held.
    pub fn prepare_fork(&self) -> (Vec<InheritedDevice>, Vec<LentPart>) {
        self.share_locks();
        let lend = |(index, area): (usize, Arc<Area>)| {
            // With locks of its own if it can be opened once more, which outlive this process; else
            // it shares those of this one.
            let own = area.file().reopen().ok().filter(|file| area.hold_locks(file));
            Self::lend(index, &area, own)
        };
        let (devices, parts): (Vec<_>, Vec<_>) = self.areas().filter_map(lend).unzip();
        (devices, parts.into_iter().flatten().collect())
    }

    /// Before a fork: lets ownership be shared with the child.
    pub(super) fn share_locks(&self) {
        for (_, area) in self.areas() {
            area.slots().drain(&*area);
            area.share_locks();
        }
    }

    /// A device as a child takes it over, with the part that is lent to it: opened once more
    /// (`own`), or a duplicate.
    pub(super) fn lend(
        index: usize,
        area: &Area,
        own: Option<File>,
    ) -> Option<(InheritedDevice, Option<LentPart>)> {
        let own_locks = own.is_some();
        let file = own.or_else(|| area.file().duplicate().ok())?;
        let part = area.take_part().filter(|part| area.hold_part(*part, &file));
        let lent = part.map(|part| LentPart { device: index, serial: area.serial(), part });
        Some((InheritedDevice { index, file, own_locks, part }, lent))
    }

    /// In the parent, after a child has gone: gives back the part that was taken for it.
    pub fn give_back_part(&self, lent: LentPart) {
        // With the device went all its parts.
        if let Some(area) = self.table.get(lent.device).filter(|area| area.serial() == lent.serial)
        {
            area.give_back_part(lent.part);
        }
    }

    /// In the parent, after fork number `seq` (counted from 1, in order): the slots now in use stay
    /// readable for the child, also when they are freed here.
    pub fn seal_for_child(&self, seq: u64) {
        self.areas().for_each(|(_, area)| area.slots().seal(seq, &*area));
    }

    /// In the parent, after a child has gone: hands slots out again that no living child can share.
    /// `None` when no child lives.
    pub fn unseal(&self, oldest_living_child: Option<u64>) {
        self.areas().for_each(|(_, area)| area.slots().unseal(oldest_living_child));
    }

    /// In the child, after a fork: goes on with `inherited` for what it inherited, which it reads
    /// and frees only, and opens every device of `list` anew for its own pages. The child can go on
    /// whatever is returned: each error is a device that it does not have.
    pub fn adopt_in_child(
        &self,
        mut inherited: Vec<InheritedDevice>,
        list: &JobSwaps,
    ) -> Vec<SwapError> {
        // 1. The ring is the parent's, the key is both's.
        self.queue.renew_in_child();
        self.key.get().into_iter().for_each(|key| key.keep_in_child());
        self.close_files_in_child();
        let mut errors = Vec::new();
        // 2. Inherited devices; those with nothing on them are closed.
        let (mut parts, mut had) = (Vec::new(), Vec::new());
        for (index, area) in self.areas() {
            had.push(area.id());
            let at = inherited.iter().position(|device| device.index == index);
            let device = at.map(|at| inherited.swap_remove(at));
            parts.extend(
                device.as_ref().and_then(|device| device.part).map(|part| (area.clone(), part)),
            );
            self.priorities[index].store(CLOSED, Relaxed);
            errors.extend(area.adopt(device).err());
            if area.slots().counts().used == 0 {
                self.close(index);
            }
        }
        // 3. Devices of its own; if one cannot be had, a part of the parent's.
        for (listed, priority) in list.with_priorities() {
            let Err(error) = self.add(listed, priority) else { continue };
            let part = parts
                .iter()
                .position(|(area, _)| area.id() == listed.id)
                .map(|at| parts.swap_remove(at));
            let open = |(area, part): (Arc<Area>, usize)| {
                let open = |listing| area.open_part(part, listing, self.make_io(), &self.stats);
                self.add_area(listed.id, &listed.spec.path, priority, open)
            };
            let is_open = part.map(open).is_some_and(|opened| opened.is_ok());
            // What its parent could not reach either is nothing new.
            if !is_open && (had.contains(&listed.id) || !error.is_out_of_reach()) {
                errors.push(error);
            }
        }
        errors
    }
}
