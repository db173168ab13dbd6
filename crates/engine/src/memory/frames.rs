//! Page frames in use: the allocator's numbers and the arena's bytes, kept in step.
//!
//! Invariant: a free frame is a hole; so is one whose page is mapped, whose memory is in the page
//! tables of the program. Every other allocated frame is present, but for the moment in which its
//! owner moves pages into or out of it.

use crate::base::sync::point;
use crate::frame::{FrameAllocator, Mobility, Need};
use crate::units::{FrameId, PAGE_SHIFT};
use crate::zpool::{FrameSource, GIVEN_MAX};
use overspill_os::arena::Arena;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::list::Push;
use overspill_os::uffd::Stop;
use overspill_os::vm::IoVec;
use std::ops::Range;

/// Pages of zeros to install from: the longest folio, or a chunk of the zpool.
static ZERO_PAGES: Aligned = Aligned([0; 64 << PAGE_SHIFT]);

#[repr(align(4096))]
struct Aligned([u8; 64 << PAGE_SHIFT]);

/// `pages` pages of zeros.
pub fn zeros(pages: usize) -> &'static [u8] {
    &ZERO_PAGES.0[..pages << PAGE_SHIFT]
}

/// Frames, their memory and the way to the page tables.
pub struct Frames<B = AnonPrivate> {
    /// The bytes.
    pub arena: Arena,
    /// The numbers, and the budget.
    pub allocator: FrameAllocator,
    /// The way to the page tables.
    pub backing: B,
}

impl<B: Backing> Frames<B> {
    /// Takes `1 << order` contiguous frames that are holes, for pages to be moved into.
    pub fn take_holes(&self, order: u8) -> Option<FrameId> {
        self.allocator.alloc(order, Mobility::Reclaimable, Need::Reclaim)
    }

    /// Puts pages into neighbouring frames, which are holes.
    pub fn fill(&self, first: FrameId, pages: &[u8]) {
        let start = self.arena.frame_range(first.0, pages.len() >> PAGE_SHIFT).start;
        let mut done = 0;
        while done < pages.len() {
            let step = self.backing.install(start + done, &pages[done..], false);
            done += step.bytes;
            match step.stop {
                None | Some(Stop::Again) => {}
                Some(stop) => panic!("a free frame at {:#x} is not a hole: {stop:?}", start + done),
            }
        }
    }

    /// Gives back frames that are holes: those of pages that were mapped, or whose pages were moved
    /// away.
    pub fn give_holes(&self, frames: &[FrameId]) {
        self.allocator.free_many(frames);
    }

    /// Gives back one frame that is present.
    pub fn give_one(&self, frame: FrameId) {
        let range = self.arena.frame_range(frame.0, 1);
        let whole = [IoVec { base: range.start, len: range.len() }];
        self.backing.drop_pages(&whole).expect("dropping a frame of the arena");
        self.allocator.free(frame, 0);
    }

    /// Gives back frames that are present: drops their memory with one call first. `ranges` is room
    /// for as many.
    pub fn give_present(&self, frames: &[FrameId], ranges: &mut impl Push<IoVec>) {
        if frames.is_empty() {
            return;
        }
        ranges.clear();
        for frame in frames {
            push_range(ranges, self.arena.frame_range(frame.0, 1));
        }
        self.backing.drop_pages(ranges).expect("dropping frames of the arena");
        self.allocator.free_many(frames);
    }
}

/// Adds a range, joined to the last one where they meet.
pub fn push_range(ranges: &mut impl Push<IoVec>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.base + last.len == range.start => last.len += range.len(),
        _ => ranges.push(IoVec { base: range.start, len: range.len() }),
    }
}

impl<B: Backing> FrameSource for Frames<B> {
    fn take_chunk(&self, order: u8) -> Option<FrameId> {
        let take = || self.allocator.alloc(order, Mobility::Unmovable, Need::Reclaim);
        // At the limit the last free frames may be those that processors keep: without them pages
        // would go to devices that fit compressed.
        let first = take().or_else(|| {
            self.allocator.drain();
            take()
        })?;
        self.fill(first, zeros(1 << order));
        Some(first)
    }

    fn give_chunks(&self, chunks: &[(FrameId, u8)]) {
        let mut ranges = [IoVec { base: 0, len: 0 }; GIVEN_MAX];
        for (range, (first, order)) in ranges.iter_mut().zip(chunks) {
            let bytes = self.arena.frame_range(first.0, 1 << order);
            *range = IoVec { base: bytes.start, len: bytes.len() };
        }
        self.backing.drop_pages(&ranges[..chunks.len()]).expect("dropping chunks of the arena");
        chunks.iter().for_each(|(first, order)| self.allocator.free(*first, *order));
    }

    fn leaving(&self) -> Vec<Range<u32>> {
        self.allocator.surplus()
    }

    fn is_leaving(&self, first: FrameId) -> bool {
        self.allocator.is_isolated(first)
    }

    fn write(&self, first: FrameId, offset: usize, data: &[u8]) {
        point();
        self.arena.write(first.0, offset, data);
    }

    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]) {
        point();
        self.arena.read(first.0, offset, out);
    }
}
