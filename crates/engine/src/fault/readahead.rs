//! Readahead: what else to bring in with a page that is missing.
//!
//! Along the address space: pages that follow a fault come in with it as a folio, longer each time,
//! while a thread goes through memory in sequence, upwards or downwards ([`Streams`]). Around the
//! slot: pages that left together lie together on the device, and are wanted together more often
//! than not; those around a slot are read with it into the swap cache, more of them as they are
//! touched, none while they are not ([`ReadaheadSize`]). Where there is room again for what has
//! left, as another process has ended or much was freed, it comes back in runs as long as the
//! buffers are, whatever is touched: a run of 64 takes two to three times as long as a page.
//! Whether a slot has a page at all is looked up before a frame is taken for it.
//!
//! Locks: those of the swap cache, for a moment each.

use super::folio::Folios;
use crate::fault::{Fault, FaultContext};
use crate::frame::cells::Owner;
use crate::frame::{Mobility, Need};
use crate::memory::lease::Growth;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::Entry;
use crate::swap::store::LoadError;
use crate::units::{FOLIO_MAX, PAGE_SHIFT, PageIndex, SlotId};
use overspill_os::backing::Backing;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

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

/// How far around a slot it is worth reading. Races between threads cost a size that is too small
/// or too large.
#[derive(Debug, Default)]
pub struct ReadaheadSize {
    /// Pages read ahead that were touched since the last readahead.
    hits: AtomicU32,
    last: AtomicU32,
    /// The last slot, by its offset.
    before: AtomicU64,
}

impl ReadaheadSize {
    /// A page that was read ahead was touched.
    pub fn hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    /// Pages to read around a slot: a power of two up to `max`. Two for a neighbour of the last
    /// slot; more than were hit; at least half of the last size, so that a moment without hits does
    /// not end it.
    fn pages(&self, slot: u64, max: usize) -> usize {
        if max == 1 {
            return 1;
        }
        let (hits, before) = (self.hits.swap(0, Relaxed) as usize, self.before.swap(slot, Relaxed));
        let wanted = match hits {
            0 if slot.abs_diff(before) == 1 => 2,
            0 => 1,
            hits => (hits + 2).next_power_of_two(),
        };
        let pages = wanted.max(self.last.load(Relaxed) as usize / 2).min(max);
        self.last.store(pages as u32, Relaxed);
        pages
    }
}

/// Recent streams of sequential faults: where each would go on, and how long its last folio was to
/// be.
///
/// A fault at the very page where a stream would go on doubles its folio, further while the pages
/// come from a device; any other begins a stream of one page, which may go on upwards or downwards
/// (a quicksort goes through its parts from both ends). So random access never brings in a
/// neighbour, and sequential access soon brings in the most. A folio that came in shorter than it
/// was to be, as its pages lie in several places of a device, makes the next no shorter. Entries
/// are chosen by the page, and races between threads cost a small folio.
#[derive(Debug)]
pub struct Streams {
    max: Folios,
    entries: [AtomicU64; STREAMS],
}

/// Streams remembered: some for each of a few dozen threads.
const STREAMS: usize = 128;

/// What a fault is to bring in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// Pages, with that of the fault.
    pub pages: usize,
    /// Whether they lie below it.
    pub down: bool,
    /// How many of the stream's last folio were read from a device ahead of need: they were wanted.
    pub read_ahead: usize,
}

impl Next {
    const ALONE: Next = Next { pages: 1, down: false, read_ahead: 0 };

    /// The same with no more than so many pages.
    pub fn at_most(self, pages: usize) -> Next {
        Next { pages: self.pages.min(pages), ..self }
    }

    /// How many come in if only those may that follow the page of the fault.
    pub fn upwards(self) -> usize {
        if self.down { 1 } else { self.pages }
    }
}

impl Streams {
    /// With the longest folios that come in.
    pub fn new(max: Folios) -> Streams {
        Streams { max, entries: [const { AtomicU64::new(0) }; STREAMS] }
    }

    /// Bits beside the page: how long the folio was and was to be, whether it was read from a
    /// device, and whether the stream goes downwards.
    const BITS: u32 = 2 * Self::LEN_BITS + 2;
    const DOWN: u64 = 2 << (2 * Self::LEN_BITS);
    const FROM_DEVICE: u64 = 1 << (2 * Self::LEN_BITS);
    const LEN_BITS: u32 = 7;
    const LEN: u64 = (1 << Self::LEN_BITS) - 1;

    /// How streams hash: by the page they would go on with, so that both ends find the same entry.
    fn entry(&self, page: usize) -> &AtomicU64 {
        &self.entries[(page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) % STREAMS]
    }

    /// What to bring in for a fault on `page`.
    pub fn next(&self, page: PageIndex) -> Next {
        let entry = self.entry(page.0).load(Relaxed);
        if entry >> Self::BITS != page.0 as u64 || entry == 0 {
            return Next::ALONE;
        }
        let len = (entry & Self::LEN) as usize;
        let wanted = (entry >> Self::LEN_BITS & Self::LEN) as usize;
        let (max, read_ahead) = if entry & Self::FROM_DEVICE != 0 {
            (self.max.device, len - 1)
        } else {
            (self.max.memory, 0)
        };
        Next { pages: (2 * wanted).clamp(1, max), down: entry & Self::DOWN != 0, read_ahead }
    }

    /// `len` pages from `page` on came in where `wanted` were to, from a device or not, of a stream
    /// that goes `down` or up. A page by itself may begin one of either kind.
    pub fn advance(
        &self,
        page: PageIndex,
        (len, wanted): (usize, usize),
        from_device: bool,
        down: bool,
    ) {
        let lens = (wanted << Self::LEN_BITS | len) as u64;
        let bits = lens | if from_device { Self::FROM_DEVICE } else { 0 };
        let note = |next: usize, flag: u64| {
            self.entry(next).store((next as u64) << Self::BITS | flag | bits, Relaxed);
        };
        if len == 1 || !down {
            note(page.0 + len, 0);
        }
        if let Some(below) = page.0.checked_sub(1).filter(|_| len == 1 || down) {
            note(below, Self::DOWN);
        }
    }

    /// The next fault on `page` brings in one page.
    pub fn forget(&self, page: PageIndex) {
        self.entry(page.0).store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_grow_with_sequence_only() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let mut page = 1000;
        let mut lens = Vec::new();
        for from_device in [true, false].map(|from_device| [from_device; 8]).as_flattened() {
            let Next { pages: len, down, read_ahead } = streams.next(PageIndex(page));
            assert!(!down);
            assert_eq!(
                read_ahead,
                if lens.len() > 8 { 0 } else { lens.last().map_or(0, |len| len - 1) }
            );
            streams.advance(PageIndex(page), (len, len), *from_device, false);
            lens.push(len);
            page += len;
        }
        assert_eq!(lens, [1, 2, 4, 8, 16, 32, 64, 64, 64, 16, 16, 16, 16, 16, 16, 16]);
        let mut rng = 12345u64;
        let random: usize = (0..1000)
            .map(|_| {
                rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let page = PageIndex((rng >> 40) as usize);
                let Next { pages: len, down, read_ahead } = streams.next(page);
                assert_eq!(read_ahead, 0);
                streams.advance(page, (len, len), false, down);
                len
            })
            .sum();
        assert!(random < 1010, "{random}");
    }

    #[test]
    fn streams_go_downwards_as_well() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let (mut low, mut high, mut lens) = (1000, 9000, Vec::new());
        // From both ends, in turn.
        for _ in 0..6 {
            let up = streams.next(PageIndex(low));
            streams.advance(PageIndex(low), (up.pages, up.pages), false, up.down);
            low += up.pages;
            let down = streams.next(PageIndex(high));
            let len = (down.pages, down.pages);
            streams.advance(PageIndex(high + 1 - down.pages), len, true, down.down);
            high -= down.pages;
            assert_eq!((up.down, down.down), (false, down.pages > 1));
            lens.push((up.pages, down.pages));
        }
        assert_eq!(lens, [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (16, 32)]);
        // At the first page there is nothing below.
        streams.advance(PageIndex(0), (1, 1), false, false);
        streams.advance(PageIndex(0), (4, 4), false, true);
        assert_eq!(streams.next(PageIndex(1)).pages, 2);
    }

    #[test]
    fn a_folio_that_was_cut_short_shortens_none_after_it() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let (mut page, mut wanted) = (1000, Vec::new());
        for most in [1, 2, 4, 3, 5, 1, 9] {
            let next = streams.next(PageIndex(page));
            let len = next.pages.min(most);
            streams.advance(PageIndex(page), (len, next.pages), true, false);
            page += len;
            assert_eq!(streams.next(PageIndex(page)).read_ahead, len - 1);
            wanted.push(next.pages);
        }
        assert_eq!(wanted, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn the_size_grows_with_hits_and_shrinks_without() {
        let size = ReadaheadSize::default();
        // Scattered slots: nothing is read around them.
        assert_eq!([10, 500, 90, 7000].map(|slot| size.pages(slot, 8)), [1, 1, 1, 1]);
        // Neighbours: a little, and more as it is wanted.
        assert_eq!(size.pages(7001, 8), 2);
        (0..3).for_each(|_| size.hit());
        assert_eq!(size.pages(100, 8), 8);
        (0..50).for_each(|_| size.hit());
        assert_eq!(size.pages(300, 8), 8);
        assert_eq!([900, 20, 4000, 8].map(|slot| size.pages(slot, 8)), [4, 2, 1, 1]);
        (0..50).for_each(|_| size.hit());
        assert_eq!(size.pages(4, 1), 1);
    }
}
