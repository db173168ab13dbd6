//! Readahead: what else to bring in with a page that is missing.
//!
//! Along the address space: pages that follow a fault come in with it as a folio, longer each time,
//! while a thread goes through memory in sequence, upwards or downwards ([`super::streams`]).
//! Around the slot, here: pages that left together lie together on the device, and are wanted
//! together more often than not; those around a slot are read with it into the swap cache, more of
//! them as they are touched, none while they are not ([`size`]). Where there is room again for what
//! has left, as another process has ended or much was freed, it comes back in runs as long as the
//! buffers are, whatever is touched: a run of 64 takes two to three times as long as a page.
//! Whether a slot has a page at all is looked up before a frame is taken for it.
//!
//! Locks: those of the swap cache, for a moment each.

pub mod size;

use crate::fault::{Fault, FaultContext};
use crate::frame::cells::Owner;
use crate::frame::{Mobility, Need};
use crate::memory::growth::Growth;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::Entry;
use crate::swap::store::LoadError;
use crate::units::{FOLIO_MAX, PAGE_SHIFT, SlotId};
use overspill_os::backing::Backing;

/// What was read around a slot.
pub struct Around {
    run: SlotRun,
    /// Which of its slots were read ahead.
    wanted: [bool; FOLIO_MAX],
}

impl<B: Backing> Fault<B> {
    /// Reads the page of a slot, whose page lock the caller holds, into the first page of the
    /// buffer, or further back if pages around it were read too: where, and what has come with it,
    /// for [`Fault::keep_around`].
    pub(crate) fn read_around(
        &self,
        context: &mut FaultContext,
        slot: SlotId,
    ) -> Result<(usize, Option<Around>), LoadError> {
        // 1. As many pages as are worth it, if they are on the device and nowhere else.
        let run = self.neighbours(slot, self.pages_around(context, slot));
        if run.len > 1 {
            let own = (slot.offset() - run.first.offset()) as usize;
            let mut around = Around { run, wanted: [false; FOLIO_MAX] };
            let (before, after) = around.wanted.split_at_mut(own);
            self.swap.index.begin_io(SlotRun { first: run.first, len: own }, before);
            let next = SlotRun { first: slot.advance(1), len: run.len - own - 1 };
            self.swap.index.begin_io(next, &mut after[1..]);
            // 2. With one operation. Where it fails, another's page may be the reason.
            if self.swap.load_slots(run, &mut context.buffer, 0).is_ok() {
                return Ok((own, Some(around)));
            }
            self.keep_around(context, around, false);
        }
        self.swap.load_slots(SlotRun { first: slot, len: 1 }, &mut context.buffer, 0)?;
        Ok((0, None))
    }

    /// Pages to read around a slot, a power of two: what is worth it, or as many as the buffer
    /// takes while half of what is on devices has room.
    fn pages_around(&self, context: &FaultContext, slot: SlotId) -> usize {
        let max = self.settings.readahead_max;
        let pages = self.readahead_size.pages(slot.offset(), max);
        let most = 1 << context.capacity().min(FOLIO_MAX).ilog2();
        let out = self.swap.devices.used_pages();
        let has_room = max > 1 && self.memory.room() >= (out / 2).max(most as u64);
        if has_room { most } else { pages }
    }

    /// The slots around one that are to be read with it: those of an aligned run of `pages` pages,
    /// as far as they have pages that are nowhere else.
    fn neighbours(&self, slot: SlotId, pages: usize) -> SlotRun {
        let at_device = |offset: u64| SlotId::new(slot.device(), offset);
        let lone = |offset: u64| {
            let slot = at_device(offset);
            matches!(self.swap.index.load(slot), Entry::Shadow(_))
                && !self.swap.zswap.contains(slot)
        };
        let start = slot.offset() & !(pages as u64 - 1);
        let end = (start + pages as u64).min(self.swap.index.slots(slot.device()));
        let first = (start..slot.offset())
            .rev()
            .take_while(|offset| lone(*offset))
            .last()
            .unwrap_or(slot.offset());
        let last = (slot.offset() + 1..end)
            .take_while(|offset| lone(*offset))
            .last()
            .unwrap_or(slot.offset());
        SlotRun { first: at_device(first), len: (last - first + 1) as usize }
    }

    /// Puts what was read ahead into the swap cache, as far as there are frames to be had without
    /// waiting; if it was read.
    pub(crate) fn keep_around(&self, context: &mut FaultContext, around: Around, was_read: bool) {
        let Around { run, mut wanted } = around;
        let was_wanted = wanted;
        // 1. Into frames. They have an owner before they can be found.
        let mut frames = [None; FOLIO_MAX];
        for (i, slot) in run.slots().enumerate().filter(|(i, _)| was_read && was_wanted[*i]) {
            let alloc =
                || self.memory.frames.allocator.alloc(0, Mobility::Reclaimable, Need::Fault);
            let more = || (self.memory.grow() == Growth::Grown).then(alloc).flatten();
            let Some(frame) = alloc().or_else(more) else { break };
            let range = self.memory.frames.arena.frame_range(frame.0, 1);
            let page = &context.buffer[i << PAGE_SHIFT..][..range.len()];
            let done = self.memory.frames.backing.install(range.start, page, false);
            assert_eq!(done.stop, None, "a free frame is not a hole");
            self.swap.lru.add(Owner::Slot(slot), frame);
            self.stats.add(Counter::SwapRa, 1);
            frames[i] = Some(frame);
        }
        // 2. To be found; what was given up meanwhile goes back.
        self.swap.index.end_io(run, &frames, &mut wanted);
        for (i, slot) in run.slots().enumerate().filter(|(i, _)| was_wanted[*i] && !wanted[*i]) {
            self.swap.give_back(SlotRun { first: slot, len: 1 }, frames[i]);
        }
    }
}
