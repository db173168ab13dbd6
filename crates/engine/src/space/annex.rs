//! Memory that the program has at addresses of its own, taken under management where it lies.

use super::Space;
use crate::frame::Need;
use crate::memory::extent::{EXTENT_PAGES, split};
use crate::memory::word::State;
use crate::space::regions::RegionAttributes;
use crate::stats::Counter;
use crate::units::PageIndex;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::vm::{self, Prot};
use std::ops::Range;

impl<B: Backing> Space<B> {
    /// Manages what the program has in the annexes. Called once, before anything is served.
    ///
    /// # Errors
    /// ENOMEM where more of it is in memory than there may ever be frames.
    pub(crate) fn begin_annexes(&self) -> Result<(), Errno> {
        let mut regions = self.regions();
        for annex in self.memory.places.arrays() {
            regions
                .insert_withheld(annex.pages.clone(), RegionAttributes::managed(Prot::READ_WRITE));
            self.set_access(annex.pages.clone(), true);
            split(annex.pages.clone()).try_for_each(|(index, part)| self.adopt(index, part))?;
        }
        self.settle_managed(&mut regions);
        Ok(())
    }

    /// Gives a frame to each page of an extent that is in memory already.
    fn adopt(&self, extent: usize, pages: Range<usize>) -> Result<(), Errno> {
        let mut present = [0; EXTENT_PAGES];
        vm::residency(self.memory.address_range(pages.clone()), &mut present)?;
        let _extent = self.memory.extents.lock(extent);
        let present = pages.zip(present).filter(|(_, residency)| residency & 1 != 0);
        for page in present.map(|(page, _)| PageIndex(page)) {
            let mut frame = Vec::with_capacity(1);
            if self.memory.budget().alloc_folio(1, Need::Over, &mut frame) == 0 {
                return Err(Errno::NOMEM);
            }
            self.memory.extents.touch(page.0..page.0 + 1);
            self.memory.note_extent(page);
            self.memory.extents.add_resident(page, 1);
            self.stats.add(Counter::ResidentPages, 1);
            let word = self.memory.words.lock(page);
            self.memory.words.unlock_as(page, word.with_state(State::Resident(frame[0])));
        }
        Ok(())
    }
}
