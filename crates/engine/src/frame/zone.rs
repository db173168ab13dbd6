//! A zone: the frames of one NUMA node, as a buddy system grouped by mobility.
//!
//! A free list for each order and mobility holds blocks of `2^order` frames that begin at a
//! multiple of their size. A block that is too large is halved as often as needed; a freed one is
//! merged with its buddy (the other half of the block one order up) for as long as that is free
//! too. After Knuth, The Art of Computer Programming, volume 1, section 2.5. The mobility belongs
//! to the **pageblock** (the block of the largest order), so that buddies always lie in lists of
//! one mobility.
//!
//! When a mobility has nothing left it falls back on another one, from the largest block that has:
//! it takes over the whole pageblock if at least half of that is free, else only the piece that it
//! needs.
//!
//! A pageblock that is **isolated** gives no frames; what is freed in it is kept apart until it is
//! whole.
//!
//! Blocks of the sizes in which pages come and go (16 to 128 frames) are handed out and freed all
//! the time. Some of those that were freed last are **parked**: they are free, but not merged, so
//! that to free one and hand it out again touches no other block. When something is not found, and
//! before pageblocks change hands, they are merged.
//!
//! Metadata: 9 1/8 bytes a frame, 0.22 % of the memory it stands for, of which 8 are the links in
//! its [cells](super::cells), which are others' while it is handed out. Tables are zero at first,
//! and so cost memory only for the part of the arena that was ever used.
//!
//! Locks: [`super::FrameAllocator`] holds `Rank::FrameZone` around every call to a [`Zone`]; those
//! to [`Pageblocks`] need none.

use super::cells::{FrameCells, NO_FRAME};
use super::mobility::{FALLBACKS, MAX_ORDER, Mobility, ORDERS, PAGEBLOCK};
use crate::base::sync::point;
use overspill_os::{Errno, table::ZeroTable};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Orders of the blocks that are parked: from a folio to a batch of the lists of processors.
const PARKED_ORDERS: [u8; 4] = [4, 5, 6, 7];
/// Frames that are parked, at most, for each mobility and order: 2 MiB.
const PARKED_FRAMES: usize = 512;

/// What is known of frames and pageblocks without a zone's lock: which frames are handed out, and
/// of each pageblock its mobility.
#[derive(Clone)]
pub struct Pageblocks {
    /// Kept so that a pageblock of which nothing was ever said is isolated.
    mobility: Arc<ZeroTable<AtomicU8>>,
    /// A bit a frame: handed out. It makes double frees certain to be seen. Set by who has taken a
    /// block, cleared by who is about to give it back, without the lock: the words lie anywhere,
    /// and come from other processors.
    used: Arc<ZeroTable<AtomicU64>>,
}

impl Pageblocks {
    /// Those of an arena of up to `frames` frames, all isolated.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the table.
    pub fn new(frames: usize) -> Result<Pageblocks, Errno> {
        Ok(Pageblocks {
            mobility: Arc::new(ZeroTable::new(frames.div_ceil(PAGEBLOCK))?),
            used: Arc::new(ZeroTable::new(frames.div_ceil(64))?),
        })
    }

    /// The words of `used` that hold the bits of a block, and the bits in each.
    fn bits(&self, block: u32, order: u8) -> (&[AtomicU64], u64) {
        let (word, bit) = (block as usize / 64, block % 64);
        if order < 6 {
            (&self.used[word..word + 1], ((1 << (1 << order)) - 1) << bit)
        } else {
            (&self.used[word..word + (1 << (order - 6))], !0)
        }
    }

    /// Marks a block that was taken out of its zone.
    pub fn set_used(&self, block: u32, order: u8) {
        point();
        let (words, bits) = self.bits(block, order);
        for word in words {
            let before = word.fetch_or(bits, Relaxed);
            debug_assert_eq!(before & bits, 0, "frame {block} was handed out twice");
        }
    }

    /// Marks a block free that is about to go back to its zone, once it is certain that its owner
    /// may free it.
    ///
    /// # Panics
    /// When `block` is not a multiple of `2^order`, or one of the frames is free already.
    pub fn clear_used(&self, block: u32, order: u8) {
        assert!(order <= MAX_ORDER, "no block has order {order}");
        assert!(
            block.is_multiple_of(1 << order),
            "frame {block} cannot begin a block of order {order}"
        );
        point();
        let (words, bits) = self.bits(block, order);
        for word in words {
            let before = word.fetch_and(!bits, Relaxed);
            assert_eq!(before & bits, bits, "frame {block}, order {order}: freed twice");
        }
    }

    /// Free frames of the pageblock of a frame; inexact while blocks change hands.
    fn free_in(&self, frame: u32) -> usize {
        let (words, _) = self.bits(frame & !(PAGEBLOCK as u32 - 1), MAX_ORDER);
        PAGEBLOCK - words.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum::<usize>()
    }

    /// Of the pageblock of a frame.
    pub fn mobility(&self, frame: u32) -> Mobility {
        point();
        let kept = self.mobility[frame as usize / PAGEBLOCK].load(Relaxed);
        Mobility::from_bits(kept ^ Mobility::Isolated as u8)
    }

    fn set(&self, frame: u32, mobility: Mobility) {
        let kept = mobility as u8 ^ Mobility::Isolated as u8;
        self.mobility[frame as usize / PAGEBLOCK].store(kept, Relaxed);
    }
}

/// How a block was had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From the lists of its mobility.
    Own,
    /// A piece of a pageblock of another mobility.
    Fallback,
    /// The same, and the whole pageblock was taken over.
    Steal,
}

/// What the lock guards. Invariants, verified by `check`:
///
/// 1. a frame of the zone is either handed out or in exactly one free block, which is in a list or
///    parked;
/// 2. a free block lies in the zone, begins at a multiple of its size, and is in the list of its
///    pageblock's mobility;
/// 3. of two buddies below [`MAX_ORDER`] at most one is in a list;
///
/// What nearly every hold changes comes first, on the cache line of the lock: that line comes from
/// another processor anyway, and each further one takes as long again, with the lock held.
#[repr(C)]
pub struct Zone {
    /// Frames handed out.
    used_frames: u32,
    /// How many blocks are parked, by mobility and order.
    parked_count: [[u8; PARKED_ORDERS.len()]; Mobility::LISTED],
    /// Frames of the arena that this zone may ever have.
    range: Range<u32>,
    /// From the start of the range: frames in use so far, frames that it has, and frames that it is
    /// to have. Multiples of [`PAGEBLOCK`].
    span: u32,
    size: u32,
    target: u32,
    pageblocks: Pageblocks,
    /// Previous and next block in the list, for frames that begin a free block.
    cells: FrameCells,
    /// One more than the order, for frames that begin a free block; else 0.
    tags: ZeroTable<u8>,
    /// Parked blocks by mobility and order, the last one on top.
    parked: [[[u32; PARKED_FRAMES >> PARKED_ORDERS[0]]; PARKED_ORDERS.len()]; Mobility::LISTED],
    /// First block of each free list, by mobility and order.
    heads: [[u32; ORDERS]; Mobility::COUNT],
    /// Blocks in each free list.
    blocks: [[u32; ORDERS]; Mobility::COUNT],
}

impl Zone {
    /// What the tables take for a pageblock, in bytes.
    pub const METADATA_BYTES_PER_PAGEBLOCK: usize = PAGEBLOCK * (8 + 1) + PAGEBLOCK / 8;

    /// A zone without frames, that may get those of `range`, which begins and ends with a
    /// pageblock.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the tables.
    pub fn new(
        range: Range<u32>,
        pageblocks: Pageblocks,
        cells: FrameCells,
    ) -> Result<Zone, Errno> {
        let frames = range.len();
        assert!(frames.is_multiple_of(PAGEBLOCK) && range.start.is_multiple_of(PAGEBLOCK as u32));
        Ok(Zone {
            range,
            span: 0,
            size: 0,
            target: 0,
            pageblocks,
            heads: [[NO_FRAME; ORDERS]; Mobility::COUNT],
            parked_count: [[0; PARKED_ORDERS.len()]; Mobility::LISTED],
            parked: [[[0; _]; PARKED_ORDERS.len()]; Mobility::LISTED],
            blocks: [[0; ORDERS]; Mobility::COUNT],
            cells,
            tags: ZeroTable::new(frames)?,
            used_frames: 0,
        })
    }

    /// Frames handed out.
    pub fn used(&self) -> u32 {
        self.used_frames
    }

    /// Frames that the zone has: those in use so far, and those that are taken into use on demand.
    pub fn frames(&self) -> Range<u32> {
        self.range.start..self.range.start + self.size
    }

    /// Those in use so far: of which the tables tell.
    fn span(&self) -> Range<u32> {
        self.range.start..self.range.start + self.span
    }

    /// Free blocks of each order, of whatever mobility but isolated ones. Frames not yet in use are
    /// whole pageblocks.
    pub fn free_blocks(&self) -> [u32; ORDERS] {
        let mut blocks = std::array::from_fn(|order| {
            self.blocks[..Mobility::Isolated as usize].iter().map(|orders| orders[order]).sum()
        });
        for (count, order) in
            self.parked_count.iter().flat_map(|counts| counts.iter().zip(PARKED_ORDERS))
        {
            blocks[order as usize] += u32::from(*count);
        }
        blocks[MAX_ORDER as usize] += self.target.saturating_sub(self.span) / PAGEBLOCK as u32;
        blocks
    }

    /// Changes how many frames there are to be, to whole pageblocks: new ones can be used from now
    /// on, surplus ones are isolated and stay until [`Zone::shrink`].
    pub fn resize(&mut self, frames: u32) {
        self.merge_parked();
        self.target = frames.next_multiple_of(PAGEBLOCK as u32).min(self.range.len() as u32);
        self.size = self.size.max(self.target);
        for at in (0..self.span).step_by(PAGEBLOCK) {
            let block = self.range.start + at;
            let isolated = self.pageblocks.mobility(block) == Mobility::Isolated;
            match (at < self.target, isolated) {
                (true, true) => self.set_mobility(block, Mobility::Movable),
                (false, false) => self.set_mobility(block, Mobility::Isolated),
                _ => {}
            }
        }
    }

    /// Frames of surplus pageblocks that were ever used: the others have none in use.
    pub fn surplus(&self) -> Range<u32> {
        self.range.start + self.target..self.range.start + self.span.max(self.target)
    }

    /// Whether surplus pageblocks are still here.
    pub fn has_surplus(&self) -> bool {
        self.size > self.target
    }

    /// Gives up surplus frames from the end, up to the first pageblock that is not empty; those
    /// that were given up.
    pub fn shrink(&mut self) -> Range<u32> {
        self.merge_parked();
        while self.span > self.target {
            let block = self.range.start + self.span - PAGEBLOCK as u32;
            if self.tags[self.at(block)] != MAX_ORDER + 1 {
                break;
            }
            self.unlink(block, MAX_ORDER);
            self.span -= PAGEBLOCK as u32;
        }
        let before = std::mem::replace(&mut self.size, self.span.max(self.target));
        self.range.start + self.size..self.range.start + before
    }

    /// Gives back the memory of cells that say nothing: those of pageblocks that are free. At the
    /// end they are taken out of use, as if they had never been.
    pub fn trim(&mut self) {
        self.merge_parked();
        let is_free = |zone: &Zone, block: u32| zone.tags[zone.at(block)] == MAX_ORDER + 1;
        // 1. From the end. Those that the zone is to lose it keeps until it shrinks.
        let before = self.span;
        while self.span > 0 && self.span <= self.target {
            let block = self.range.start + self.span - PAGEBLOCK as u32;
            if !is_free(self, block) {
                break;
            }
            self.unlink(block, MAX_ORDER);
            self.pageblocks.set(block, Mobility::Isolated);
            self.span -= PAGEBLOCK as u32;
        }
        self.cells.release(self.span().end..self.range.start + before);
        // 2. Of the others only the first frame's cell says something.
        for block in self.span().step_by(PAGEBLOCK).filter(|block| is_free(self, *block)) {
            self.cells.release(block + 1..block + PAGEBLOCK as u32);
        }
    }

    /// Takes the next pageblock into use, if there is one. Not all at once: the tables cost memory
    /// where they are used.
    fn extend(&mut self, mobility: Mobility) -> bool {
        let block = self.range.start + self.span;
        let more = self.span < self.target;
        if more {
            self.span += PAGEBLOCK as u32;
            self.pageblocks.set(block, mobility);
            self.push(block, MAX_ORDER);
        }
        more
    }

    /// Takes a block for a use of the given mobility; for the caller to mark
    /// ([`Pageblocks::set_used`]).
    pub fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<(u32, Source)> {
        // 1. The smallest block of its own that is large enough; of a pageblock that was not used
        //    so far, if need be.
        if let Some((block, _)) = self.alloc_own(order, order, mobility) {
            return Some((block, Source::Own));
        }
        // 2. Another's, the largest first: taking one piece of it leaves the most to its owner in
        //    one piece.
        for other in FALLBACKS[mobility as usize] {
            let lists = &self.heads[other as usize];
            let Some(found) = (order..=MAX_ORDER).rev().find(|o| lists[*o as usize] != NO_FRAME)
            else {
                continue;
            };
            let block = lists[found as usize];
            if self.pageblocks.free_in(block) >= PAGEBLOCK / 2 {
                self.set_mobility(block, mobility);
                return self
                    .take(order, mobility, order..=MAX_ORDER)
                    .map(|block| (block, Source::Steal));
            }
            return self.take(order, other, found..=found).map(|block| (block, Source::Fallback));
        }
        None
    }

    /// Takes a block of at least order `least` of its own mobility: the smallest that there is, or
    /// of that the first part of order `most`. Its first frame and order.
    pub fn alloc_own(&mut self, least: u8, most: u8, mobility: Mobility) -> Option<(u32, u8)> {
        // 1. Of a size those that are parked first.
        for found in least..=MAX_ORDER {
            let order = found.min(most);
            if let Some(block) = self.unpark(mobility, found) {
                self.halve(block, found, order);
                return Some((block, order));
            }
            if let Some(block) = self.take(order, mobility, found..=found) {
                return Some((block, order));
            }
        }
        // 2. What is parked may make up a larger one. Else a pageblock that was not used so far.
        if self.merge_parked()
            && let Some(block) = self.take(least, mobility, least..=MAX_ORDER)
        {
            return Some((block, least));
        }
        if !self.extend(mobility) {
            return None;
        }
        Some((self.take(most, mobility, most..=MAX_ORDER)?, most))
    }

    /// Takes a block of that order that is parked.
    fn unpark(&mut self, mobility: Mobility, order: u8) -> Option<u32> {
        let at = PARKED_ORDERS.iter().position(|parked| *parked == order)?;
        let count = &mut self.parked_count[mobility as usize][at];
        *count = count.checked_sub(1)?;
        Some(self.parked[mobility as usize][at][*count as usize])
    }

    /// Parks a free block, if it is of such an order, and there is room.
    fn park(&mut self, block: u32, order: u8) -> bool {
        let mobility = self.pageblocks.mobility(block);
        let Some(at) = PARKED_ORDERS.iter().position(|parked| *parked == order) else {
            return false;
        };
        if mobility == Mobility::Isolated {
            return false;
        }
        let count = &mut self.parked_count[mobility as usize][at];
        let fits = (*count as usize) < PARKED_FRAMES >> order;
        if fits {
            self.parked[mobility as usize][at][*count as usize] = block;
            *count += 1;
        }
        fits
    }

    /// Merges the blocks that are parked; whether there were any.
    pub fn merge_parked(&mut self) -> bool {
        let mut any = false;
        for mobility in [Mobility::Movable, Mobility::Reclaimable, Mobility::Unmovable] {
            for order in PARKED_ORDERS {
                while let Some(block) = self.unpark(mobility, order) {
                    self.merge(block, order);
                    any = true;
                }
            }
        }
        any
    }

    /// Gives back a block, or a part of one, or neighbouring ones as the block that they make up;
    /// marked already ([`Pageblocks::clear_used`]).
    ///
    /// # Panics
    /// When it lies outside the zone.
    pub fn free(&mut self, frame: u32, order: u8) {
        assert!(self.span().contains(&frame), "frame {frame}, order {order}: outside the zone");
        self.used_frames -= 1 << order;
        if !self.park(frame, order) {
            self.merge(frame, order);
        }
    }

    /// Puts a free block into its list, with its buddies as far as they are there.
    fn merge(&mut self, mut block: u32, mut order: u8) {
        while order < MAX_ORDER {
            let buddy = block ^ (1 << order);
            if self.tags[self.at(buddy)] != order + 1 {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    fn take(
        &mut self,
        order: u8,
        from: Mobility,
        orders: std::ops::RangeInclusive<u8>,
    ) -> Option<u32> {
        let found =
            orders.into_iter().find(|o| self.heads[from as usize][*o as usize] != NO_FRAME)?;
        let block = self.heads[from as usize][found as usize];
        self.unlink(block, found);
        self.halve(block, found, order);
        Some(block)
    }

    /// Hands out the first part of a free block that is in no list, and puts the rest into lists.
    fn halve(&mut self, block: u32, whole: u8, order: u8) {
        for half in (order..whole).rev() {
            self.push(block + (1 << half), half);
        }
        self.used_frames += 1 << order;
    }

    /// Moves the free blocks of the pageblock of `frame` to the lists of another mobility.
    fn set_mobility(&mut self, frame: u32, mobility: Mobility) {
        debug_assert!(
            self.parked_count.iter().flatten().all(|count| *count == 0),
            "parked blocks would stay behind"
        );
        let first = frame & !(PAGEBLOCK as u32 - 1);
        let before = self.pageblocks.mobility(first);
        let mut at = first;
        while at < first + PAGEBLOCK as u32 {
            match self.tags[self.at(at)] {
                0 => at += 1,
                tag => {
                    let order = tag - 1;
                    self.unlink_from(before, at, order);
                    self.push_to(mobility, at, order);
                    at += 1 << order;
                }
            }
        }
        self.pageblocks.set(first, mobility);
    }

    /// Place of a frame in the tables.
    fn at(&self, frame: u32) -> usize {
        (frame - self.range.start) as usize
    }

    fn push(&mut self, block: u32, order: u8) {
        self.push_to(self.pageblocks.mobility(block), block, order);
    }

    fn unlink(&mut self, block: u32, order: u8) {
        self.unlink_from(self.pageblocks.mobility(block), block, order);
    }

    fn push_to(&mut self, mobility: Mobility, block: u32, order: u8) {
        let next = std::mem::replace(&mut self.heads[mobility as usize][order as usize], block);
        if next != NO_FRAME {
            self.cells.set_previous(next, block);
        }
        self.cells.set_links(block, NO_FRAME, next);
        let at = self.at(block);
        self.tags[at] = order + 1;
        self.blocks[mobility as usize][order as usize] += 1;
    }

    fn unlink_from(&mut self, mobility: Mobility, block: u32, order: u8) {
        let (previous, next) = self.cells.links(block);
        match previous {
            NO_FRAME => self.heads[mobility as usize][order as usize] = next,
            previous => self.cells.set_next(previous, next),
        }
        if next != NO_FRAME {
            self.cells.set_previous(next, previous);
        }
        let at = self.at(block);
        self.tags[at] = 0;
        self.blocks[mobility as usize][order as usize] -= 1;
    }

    /// Checks every invariant, in time proportional to the zone.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        let frames = self.span as usize;
        let mut in_free_block = vec![false; frames];
        // 1. Blocks in lists, and no others, have a tag.
        let mut listed = 0;
        for mobility in Mobility::ALL {
            for order in 0..=MAX_ORDER {
                let blocks = self.check_list(mobility, order, &mut in_free_block);
                let counted = self.blocks[mobility as usize][order as usize];
                assert_eq!(counted, blocks, "blocks of order {order}");
                listed += blocks;
            }
        }
        let tagged = self.tags.iter().filter(|tag| **tag != 0).count();
        assert_eq!(tagged as u32, listed, "tagged blocks in no list");
        // 2. Blocks that are parked.
        self.check_parked(&mut in_free_block);
        // 3. Each frame is in one free block, or handed out.
        for (at, free) in in_free_block.iter().enumerate() {
            let (words, bits) = self.pageblocks.bits(self.range.start + at as u32, 0);
            let used = words[0].load(Relaxed) & bits != 0;
            assert_ne!(*free, used, "frame {at} of the zone: free and used, or neither");
        }
        let free = in_free_block.iter().filter(|free| **free).count();
        assert_eq!(free + self.used_frames as usize, frames, "count of frames handed out");
    }

    /// Checks the free blocks of one list, and notes their frames. Returns how many there are.
    fn check_list(&self, mobility: Mobility, order: u8, in_free_block: &mut [bool]) -> u32 {
        let (mut block, mut previous) = (self.heads[mobility as usize][order as usize], NO_FRAME);
        let mut blocks = 0;
        while block != NO_FRAME {
            self.check_free(block, order, mobility, in_free_block);
            let at = self.at(block);
            assert_eq!(self.tags[at], order + 1, "tag of block {block}");
            assert_eq!(self.cells.links(block).0, previous, "links of block {block}");
            let buddy = self.tags.get(at ^ 1 << order);
            assert!(
                order == MAX_ORDER || buddy != Some(&(order + 1)),
                "block {block} and its buddy are free"
            );
            blocks += 1;
            (previous, block) = (block, self.cells.links(block).1);
        }
        blocks
    }

    /// Checks the blocks that are parked, and notes their frames.
    fn check_parked(&self, in_free_block: &mut [bool]) {
        for ((parked, counts), mobility) in
            self.parked.iter().zip(self.parked_count).zip(Mobility::ALL)
        {
            for ((blocks, count), order) in parked.iter().zip(counts).zip(PARKED_ORDERS) {
                for block in &blocks[..count as usize] {
                    self.check_free(*block, order, mobility, in_free_block);
                }
            }
        }
    }

    /// Checks that a free block lies where one of its order can, among its kind, and overlaps no
    /// other; notes its frames.
    fn check_free(&self, block: u32, order: u8, mobility: Mobility, in_free_block: &mut [bool]) {
        let (at, size) = (self.at(block), 1 << order);
        assert!(
            at % size == 0 && at + size <= in_free_block.len(),
            "block {block} cannot have order {order}"
        );
        let kind = self.pageblocks.mobility(block);
        assert_eq!(kind, mobility, "block {block} is among those of another kind");
        for frame in &mut in_free_block[at..at + size] {
            assert!(
                !std::mem::replace(frame, true),
                "block {block}, order {order}: in two free blocks"
            );
        }
    }
}
