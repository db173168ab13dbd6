//! A batch: pages that leave together, and the buffers that this takes, made in advance.

use crate::device::{RUN_MAX, RunWrite};
use crate::frame::cells::Owner;
use crate::memory::word::State;
use crate::slot::SlotRun;
use crate::swap::settings::SwapSettings;
use crate::swap::zswap::Object;
use crate::units::{FrameId, PageIndex, SlotId};
use overspill_os::Errno;
use overspill_os::codec::{Compressor, Decompressor};
use overspill_os::io::IoBuffer;
use overspill_os::list::{List, ListRoom};
use overspill_os::table::PageRoom;
use overspill_os::vm::IoVec;

/// Part of the pages of a process that a batch has at most.
const OF_PROCESS: usize = 256;

/// A page chosen to leave, and where it went.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    /// The page.
    pub page: PageIndex,
    /// Where its content lies now: in place, or in a frame of the swap cache.
    pub from: State,
    /// Where it was stored; `None` if nothing took it.
    pub stored: Option<State>,
    /// Where a copy is that is as good.
    pub copy: Option<SlotId>,
    /// Its page of the batch's buffer, if it has one.
    pub(crate) place: Option<u32>,
}

impl Pick {
    /// A page to be stored.
    pub fn new(page: PageIndex, from: State, copy: Option<SlotId>) -> Pick {
        Pick { page, from, stored: None, copy, place: None }
    }

    /// As whose its frame is in the swap cache.
    pub fn owner(&self) -> Owner {
        self.copy.map_or(Owner::Page(self.page), Owner::Copy)
    }
}

/// A compressed page on its way to a device.
#[derive(Clone, Copy, Debug)]
pub struct Cold {
    pub slot: SlotId,
    pub object: Object,
    /// Whose page it was when it was chosen: it may be another's at any time.
    pub owner: PageIndex,
    /// Where it is written to: its own slot, or another; and whether it is there now.
    pub to: SlotId,
    pub written: bool,
}

/// What a reclaiming thread works with: made with the pool, so that nothing is allocated under
/// pressure.
#[derive(Debug)]
pub struct Batch {
    /// The pages of the batch.
    pub picks: List<Pick>,
    /// Ranges to drop.
    pub ranges: List<IoVec>,
    /// Frames to free.
    pub frames: List<FrameId>,
    pub(crate) buffer: IoBuffer,
    /// The slot of each page of the buffer.
    pub(super) slots: List<Option<SlotId>>,
    /// The compressed copy of each page of the buffer.
    pub(super) objects: List<Option<Object>>,
    pub(crate) packed: PageRoom,
    /// Packs what stays cold more densely.
    pub(crate) recompressor: Option<Compressor>,
    /// Where pages are packed to that may not be worth it.
    pub(crate) trial: PageRoom,
    pub(crate) writes: List<RunWrite>,
    /// Pages of the compressed tier on their way to devices.
    pub(crate) oldest: List<(SlotId, Object)>,
    pub(crate) cold: List<Cold>,
    /// The compressed tier had no room for a page of the batch: it is not tried for the others.
    pub(super) refused: bool,
    /// Devices have room for what the tier does not take, although it has slots of its own.
    pub(super) backed: bool,
    /// Which pages compression is tried with, where devices take the others.
    pub(super) tries: Tries,
    /// By density ([`crate::workingset::tier_size::Density`]).
    pub(super) compressors: Vec<Compressor>,
    pub(crate) decompressor: Decompressor,
    /// Its pages just now, and at most.
    pub(super) pages: usize,
    most: usize,
}

/// Whether to try to compress the next page: of a long row that did not compress only some are
/// tried, since neighbours are alike.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// Pages in a row that were tried in vain.
    in_vain: u32,
    /// How many to pass over now.
    pass_over: u32,
}

impl Tries {
    /// So many in vain are a row. Where one page in two compresses, one row in 65,536 is as long.
    const ROW: u32 = 16;
    /// One page in so many of a row is tried.
    const ONE_IN: u32 = 8;

    /// Whether the next page is passed over.
    pub fn passes_over(&mut self) -> bool {
        let passes_over = self.pass_over > 0;
        self.pass_over = self.pass_over.saturating_sub(1);
        passes_over
    }

    /// A page was tried.
    pub fn note(&mut self, compresses: bool) {
        self.in_vain = if compresses { 0 } else { (self.in_vain + 1).min(Self::ROW) };
        self.pass_over = if self.in_vain == Self::ROW { Self::ONE_IN - 1 } else { 0 };
    }
}

impl Batch {
    /// Pages that there is always room for.
    pub const LEAST: usize = 32;

    /// For batches of up to `pages` pages, and [`Batch::LEAST`] at first.
    pub fn new(pages: usize, settings: &SwapSettings) -> Result<Batch, Errno> {
        let lists = ListRoom::bytes::<Pick>(pages)
            + ListRoom::bytes::<IoVec>(pages)
            + ListRoom::bytes::<FrameId>(pages)
            + ListRoom::bytes::<Option<SlotId>>(pages)
            + ListRoom::bytes::<Option<Object>>(pages)
            + ListRoom::bytes::<RunWrite>(pages)
            + ListRoom::bytes::<(SlotId, Object)>(pages)
            + ListRoom::bytes::<Cold>(pages);
        let mut room = ListRoom::new(lists)?;
        Ok(Batch {
            picks: room.list(pages),
            ranges: room.list(pages),
            frames: room.list(pages),
            buffer: IoBuffer::new(pages)?,
            slots: room.list(pages),
            objects: room.list(pages),
            packed: PageRoom::new()?,
            writes: room.list(pages),
            oldest: room.list(pages),
            cold: room.list(pages),
            refused: false,
            backed: false,
            tries: Tries::default(),
            compressors: settings
                .codec
                .codecs()
                .into_iter()
                .map(Compressor::new)
                .collect::<Result<_, _>>()?,
            recompressor: settings.recompress.codec().map(Compressor::new).transpose()?,
            trial: PageRoom::new()?,
            decompressor: Decompressor::new(&settings.codecs())?,
            pages: pages.min(Batch::LEAST),
            most: pages,
        })
    }

    /// How many more pages it is to have in a process with so many. Each is a page of the buffer,
    /// and costs memory: where there is much, larger writes are worth it.
    pub fn growth(&self, of_process: usize) -> usize {
        (of_process / OF_PROCESS).min(self.most).saturating_sub(self.pages)
    }

    /// Grows by so many pages.
    pub fn grow(&mut self, by: usize) {
        self.pages += by;
    }

    /// Gives back the memory of what is large in it, until it is used, and returns by how many
    /// pages it had grown.
    pub fn forget(&mut self) -> usize {
        let grown = self.pages - self.most.min(Batch::LEAST);
        self.pages -= grown;
        self.picks.forget();
        self.ranges.forget();
        self.frames.forget();
        self.slots.forget();
        self.objects.forget();
        self.writes.forget();
        self.oldest.forget();
        self.cold.forget();
        self.buffer.forget();
        self.packed.forget();
        self.trial.forget();
        self.compressors.iter_mut().chain(&mut self.recompressor).for_each(Compressor::forget);
        self.decompressor.forget();
        grown
    }

    /// Most pages of a batch.
    pub fn capacity(&self) -> usize {
        self.pages
    }

    /// Whether all that is lined up to be written lies in pages that count.
    pub fn is_within(&self) -> bool {
        self.writes.iter().all(|write| write.buffer_page + write.run.len <= self.pages)
    }

    /// Whether there is room for another page.
    pub fn has_room(&self) -> bool {
        self.picks.len() < self.pages
    }
}

/// Lines a page of the buffer up to be written to a slot, in one run with the last if it lies
/// behind it.
pub(crate) fn line_up(writes: &mut List<RunWrite>, slot: SlotId, at: usize, keeps_slots: bool) {
    let behind = |last: &RunWrite| {
        last.buffer_page + last.run.len == at
            && last.run.follows(slot)
            && last.run.len < RUN_MAX
            && last.keeps_slots == keeps_slots
    };
    match writes.last_mut().filter(|last| behind(last)) {
        Some(last) => last.run.len += 1,
        None => {
            let run = SlotRun { first: slot, len: 1 };
            writes.push(RunWrite { run, buffer_page: at, keeps_slots, result: Ok(()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_grows_with_the_process_until_its_memory_is_given_back() {
        let settings = crate::config::Config::default().swap();
        let batch = |most| Batch::new(most, &settings).unwrap();
        let mut large = batch(128);
        assert_eq!((large.capacity(), large.growth(32 * 256), large.forget()), (32, 0, 0));
        assert_eq!([40 * 256, 1 << 30].map(|pages| large.growth(pages)), [8, 96]);
        large.grow(8);
        assert_eq!((large.capacity(), large.growth(50 * 256), large.growth(0)), (40, 10, 0));
        assert_eq!((large.forget(), large.capacity()), (8, 32));
        let mut small = batch(16);
        assert_eq!((small.capacity(), small.growth(1 << 30), small.forget()), (16, 0, 0));
    }

    #[test]
    fn of_a_long_row_in_vain_one_page_in_eight_is_tried() {
        let mut tries = Tries::default();
        let mut tried = |pages: usize, compresses: bool| {
            (0..pages)
                .filter(|_| {
                    let is_tried = !tries.passes_over();
                    if is_tried {
                        tries.note(compresses);
                    }
                    is_tried
                })
                .count()
        };
        assert_eq!(tried(100, true), 100);
        assert_eq!(tried(16, false), 16);
        assert_eq!(tried(80, false), 10);
        // All again from the first that compresses.
        assert_eq!(tried(8, true), 1);
        assert_eq!(tried(100, true), 100);
        assert_eq!(tried(15, false), 15);
        assert_eq!(tried(1, true), 1);
        assert_eq!(tried(16, false), 16);
    }
}
