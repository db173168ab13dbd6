//! Discarding: telling a device that what a part of it holds is not needed, so that it has room for
//! what comes.
//!
//! Whole allotments only, and never while a fault waits: an allotment is discarded when it is
//! acquired, which is rare, and where that was asked for by the background thread when no page is
//! left in it.

use super::area::Area;
use crate::device::spec::Discard;
use crate::slot::Disk;
use crate::units::PAGE_SIZE;
use overspill_os::thread;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Area {
    /// Discards an allotment that was acquired just now.
    pub(super) fn discard_acquired(&self, allotment: Range<u64>) {
        // A file of this process's own has nothing there.
        if self.discard() != Discard::Off && self.shared {
            self.discard_allotment(allotment);
        }
    }

    /// Whether allotments without pages are given up by [`Area::discard_idle`] alone.
    pub(super) fn discards_idle(&self) -> bool {
        self.discard() == Discard::Pages && !self.inherited.load(Relaxed)
    }

    /// Discards and gives up the allotments in which no page is left, but for one. For the
    /// background thread.
    pub fn discard_idle(&self) {
        if !self.discards_idle() {
            return;
        }
        // Nobody can have it meanwhile, and its lock stays; no lock is held, for which faults
        // would wait.
        self.slots().give_up_idle(|allotment| {
            self.discard_allotment(allotment.clone());
            self.release(allotment);
        });
    }

    /// All of an allotment but the header.
    fn discard_allotment(&self, allotment: Range<u64>) {
        let range =
            allotment.start.max(self.slots().reserved_pages() * PAGE_SIZE as u64)..allotment.end;
        if self.discards.load(Relaxed)
            && let Err(errno) = self.io.discard(range)
            && self.discards.swap(false, Relaxed)
        {
            let (path, errno) = (self.path().display(), errno.raw_os_error());
            thread::report(format_args!(
                "swap device '{path}' cannot discard (error number {errno}), and goes on without"
            ));
        }
    }
}
