//! Page frames: a buddy allocator over the numbers of the arena's frames.
//!
//! **A free frame is a hole in the arena: no memory lies behind it.** This module hands out numbers and nothing else;
//! whoever takes a frame fills the hole (which charges the budget), and empties it again before the frame is freed. So
//! the arena may have more frames than the budget has pages, and fragmentation costs address space, not memory.
//!
//! [`FrameAllocator`] keeps a free list for each order: a block of order `o` is `2^o` frames that begin at a multiple
//! of `2^o`. A block that is too large is halved as often as needed; a freed block is merged with its buddy (the other
//! half of the block one order up) for as long as that is free too. After Knuth, The Art of Computer Programming,
//! volume 1, section 2.5.
//!
//! Metadata: 9 1/8 bytes a frame, 0.22 % of the memory it stands for, in tables that are zero at first and so cost
//! memory only for the part of the arena that was ever used.
//!
//! Locks: one (`Rank::FrameZone`), a leaf: nothing else is locked, allocated or called while it is held. A hold is bounded by
//! [`MAX_ORDER`] steps for each block, times the length of the slice in the `_many` calls.

use crate::base::FrameId;
use crate::lockdep::Rank;
use crate::sync::{RankedMutex, lock};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The largest order: 512 frames, 2 MiB, what one page-table page maps and so the longest run that one call moves.
pub const MAX_ORDER: u8 = 9;

const ORDERS: usize = MAX_ORDER as usize + 1;
/// The end of a list. Not a frame: the arena has fewer.
const NONE: u32 = u32::MAX;

/// Hands out the frames of an arena; shared by all threads.
pub struct FrameAllocator {
    zone: RankedMutex<Zone>,
    /// Copy of `Zone::free` to read without the lock.
    free: AtomicUsize,
    frames: usize,
}

impl FrameAllocator {
    /// All of `frames` frames free. The number need not be a power of two.
    pub fn new(frames: usize) -> FrameAllocator {
        assert!(frames < NONE as usize, "an arena has fewer than 2^32 - 1 frames, not {frames}");
        let zone = RankedMutex::new(Rank::FrameZone, Zone::new(frames));
        FrameAllocator { zone, free: AtomicUsize::new(frames), frames }
    }

    /// Takes `2^order` contiguous frames, the first at a multiple of their number. `None` when no such run is free.
    pub fn alloc(&self, order: u8) -> Option<FrameId> {
        assert!(order <= MAX_ORDER, "no block has order {order}");
        let mut zone = lock(&self.zone);
        let block = zone.alloc(order)?;
        self.free.store(zone.free, Relaxed);
        Some(FrameId(block))
    }

    /// Gives back the `2^order` frames from `frame` on. They need not have been taken by one call: a block may come
    /// back in parts, and parts may come back as the block they make up.
    ///
    /// # Panics
    /// When `frame` is not a multiple of `2^order`, or when one of the frames is free already or outside the arena.
    pub fn free(&self, frame: FrameId, order: u8) {
        let mut zone = lock(&self.zone);
        zone.free(frame.0, order);
        self.free.store(zone.free, Relaxed);
    }

    /// Takes single frames until `out` is full or none is left, and returns how many; in ascending runs as far as the
    /// free blocks allow, smallest blocks first.
    pub fn alloc_many(&self, out: &mut [FrameId]) -> usize {
        let mut zone = lock(&self.zone);
        let taken = zone.alloc_many(out);
        self.free.store(zone.free, Relaxed);
        taken
    }

    /// Gives back single frames.
    ///
    /// # Panics
    /// As [`FrameAllocator::free`].
    pub fn free_many(&self, frames: &[FrameId]) {
        let mut zone = lock(&self.zone);
        for frame in frames {
            zone.free(frame.0, 0);
        }
        self.free.store(zone.free, Relaxed);
    }

    /// How many frames are free: a moment's value, exact when nobody takes or frees.
    pub fn free_frames(&self) -> usize {
        self.free.load(Relaxed)
    }

    /// How many frames the arena has.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Checks every invariant, in time proportional to the arena; for tests and debugging.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        lock(&self.zone).check();
    }
}

/// What the lock guards. Invariants, verified by `check`:
///
/// 1. a frame is either handed out or in exactly one free block;
/// 2. a free block lies in the arena and begins at a multiple of its size;
/// 3. of two buddies below [`MAX_ORDER`] at most one is free.
struct Zone {
    /// First block of each order's free list.
    heads: [u32; ORDERS],
    /// Previous and next block in the list, for frames that begin a free block; a pair and not a struct, because a
    /// table of zeroed integers is not touched when it is made.
    links: Box<[[u32; 2]]>,
    /// One more than the order, for frames that begin a free block; else 0.
    tags: Box<[u8]>,
    /// A bit a frame: handed out. It makes double frees certain to be seen.
    used: Box<[u64]>,
    free: usize,
}

impl Zone {
    fn new(frames: usize) -> Zone {
        let mut zone = Zone {
            heads: [NONE; ORDERS],
            links: vec![[0; 2]; frames].into_boxed_slice(),
            tags: vec![0; frames].into_boxed_slice(),
            used: vec![0; frames.div_ceil(64)].into_boxed_slice(),
            free: frames,
        };
        // From the end, so that the lists begin with the lowest addresses: the largest block that ends here each time.
        let mut end = frames;
        while end > 0 {
            let order = (end.trailing_zeros() as u8).min(MAX_ORDER);
            end -= 1 << order;
            zone.push(end as u32, order);
        }
        zone
    }

    fn alloc(&mut self, order: u8) -> Option<u32> {
        let found = (order..=MAX_ORDER).find(|o| self.heads[*o as usize] != NONE)?;
        let block = self.pop(found);
        for half in (order..found).rev() {
            self.push(block + (1 << half), half);
        }
        self.set_used(block, order);
        Some(block)
    }

    fn alloc_many(&mut self, out: &mut [FrameId]) -> usize {
        let mut taken = 0;
        while taken < out.len() {
            let Some(order) = (0..=MAX_ORDER).find(|o| self.heads[*o as usize] != NONE) else { break };
            let block = self.pop(order);
            let size = 1u32 << order;
            let take = (size as usize).min(out.len() - taken) as u32;
            for i in 0..take {
                self.set_used(block + i, 0);
                out[taken + i as usize] = FrameId(block + i);
            }
            taken += take as usize;
            // What is left of the block goes back in the largest pieces that begin where they must.
            let mut rest = take;
            while rest < size {
                let piece = rest.trailing_zeros() as u8;
                self.push(block + rest, piece);
                rest += 1 << piece;
            }
        }
        taken
    }

    fn free(&mut self, frame: u32, order: u8) {
        self.clear_used(frame, order);
        let (mut block, mut order) = (frame, order);
        while order < MAX_ORDER {
            let buddy = block ^ (1 << order);
            if self.tags.get(buddy as usize) != Some(&(order + 1)) {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    /// The words of `used` that hold the bits of a block, and the bits in each.
    fn bits(block: u32, order: u8) -> (std::ops::Range<usize>, u64) {
        let word = block as usize / 64;
        if order < 6 {
            (word..word + 1, ((1 << (1 << order)) - 1) << (block % 64))
        } else {
            (word..word + (1 << (order - 6)), !0)
        }
    }

    fn set_used(&mut self, block: u32, order: u8) {
        let (words, bits) = Zone::bits(block, order);
        for word in &mut self.used[words] {
            debug_assert_eq!(*word & bits, 0, "frame {block} was in a free list and handed out");
            *word |= bits;
        }
        self.free -= 1 << order;
    }

    /// Marks a block free, once it is certain that its owner may free it.
    fn clear_used(&mut self, block: u32, order: u8) {
        assert!(order <= MAX_ORDER, "no block has order {order}");
        assert!(block.is_multiple_of(1 << order), "frame {block} cannot begin a block of order {order}");
        let end = block as usize + (1 << order);
        assert!(end <= self.tags.len(), "frame {block}, order {order}: outside the arena");
        let (words, bits) = Zone::bits(block, order);
        for word in &mut self.used[words] {
            assert_eq!(*word & bits, bits, "frame {block}, order {order}: freed twice");
            *word &= !bits;
        }
        self.free += 1 << order;
    }

    fn push(&mut self, block: u32, order: u8) {
        let next = self.heads[order as usize];
        if next != NONE {
            self.links[next as usize][0] = block;
        }
        self.links[block as usize] = [NONE, next];
        self.tags[block as usize] = order + 1;
        self.heads[order as usize] = block;
    }

    fn unlink(&mut self, block: u32, order: u8) {
        let [previous, next] = self.links[block as usize];
        match previous {
            NONE => self.heads[order as usize] = next,
            _ => self.links[previous as usize][1] = next,
        }
        if next != NONE {
            self.links[next as usize][0] = previous;
        }
        self.tags[block as usize] = 0;
    }

    /// The first block of a list that is not empty, off the list.
    fn pop(&mut self, order: u8) -> u32 {
        let block = self.heads[order as usize];
        self.unlink(block, order);
        block
    }

    fn check(&self) {
        let frames = self.tags.len();
        let mut in_free_block = vec![false; frames];
        let mut blocks = 0;
        for order in 0..=MAX_ORDER {
            let (mut block, mut previous) = (self.heads[order as usize], NONE);
            while block != NONE {
                let (at, size) = (block as usize, 1 << order);
                assert!(at % size == 0 && at + size <= frames, "block {block} cannot have order {order}");
                assert_eq!(self.tags[at], order + 1, "tag of block {block}");
                assert_eq!(self.links[at][0], previous, "links of block {block}");
                for frame in &mut in_free_block[at..at + size] {
                    assert!(!std::mem::replace(frame, true), "block {block}, order {order}: in two free blocks");
                }
                let buddy = self.tags.get(at ^ size);
                assert!(order == MAX_ORDER || buddy != Some(&(order + 1)), "block {block} and its buddy are both free");
                blocks += 1;
                (previous, block) = (block, self.links[at][1]);
            }
        }
        assert_eq!(self.tags.iter().filter(|tag| **tag != 0).count(), blocks, "tagged blocks in no list");
        for (frame, free) in in_free_block.iter().enumerate() {
            assert_ne!(
                *free,
                self.used[frame / 64] >> (frame % 64) & 1 == 1,
                "frame {frame}: free and used, or neither"
            );
        }
        assert_eq!(in_free_block.iter().filter(|free| **free).count(), self.free, "count of free frames");
    }
}

#[cfg(test)]
mod tests;
