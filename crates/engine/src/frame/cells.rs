//! What is kept of each frame: two words, the meaning of which follows from what the frame is used
//! for, as `struct page` has it.
//!
//! | a frame | links | owner |
//! |---|---|---|
//! | that is free | its neighbours in a list of blocks, if it begins one | none |
//! | of a page that is mapped | the slot of its copy, if the page is clean | none |
//! | of the swap cache | its neighbours by age | whose page it has |
//! | of the zpool, four of a chunk | state and list, in two | objects that are used |
//! | used for anything else | | none |
//!
//! Who has the frame changes its words; the links of frames in a list with the list's lock. The
//! swap cache looks at words without a lock, on its way through a list, and may come upon those of
//! a frame that has left it: so a frame with an owner is in the swap cache and nothing else, while
//! a link may come out as any number.

use crate::units::{FrameId, PageIndex, SlotId};
use overspill_os::{Errno, table::ZeroTable};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of a frame.
pub const FRAME_WORDS: usize = 2;
/// No frame: the end of a list. Links never have the highest bit of their word.
pub const NO_FRAME: u32 = u32::MAX >> 1;
/// The highest bit of the links of the first frame of a chunk, and of no other frame that a chunk
/// may begin with.
pub const CHUNK_STATE: u64 = 1 << 63;
/// The two highest bits of an owner say what it is: a page, objects of a chunk, or a slot.
const KIND: u64 = 3 << 62;
/// Which objects of a chunk are used: as many as there are bits below, in each of its four owners.
pub const OBJECTS: u64 = 1 << 62;
const SLOT: u64 = 2 << 62;
const COPY: u64 = 3 << 62;

/// Whose content a frame of the swap cache has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A page that was moved out: its word names the frame.
    Page(PageIndex),
    /// A page that was moved out clean: its word names the frame, and the index the page of the
    /// slot in which its copy is.
    Copy(SlotId),
    /// A page that was read ahead: the index names the frame.
    Slot(SlotId),
}

impl Owner {
    /// Never 0, which is no owner: page 0 is no program's.
    fn to_word(self) -> u64 {
        match self {
            Owner::Page(page) => page.0 as u64,
            Owner::Slot(slot) => SLOT | slot.to_bits(),
            Owner::Copy(slot) => COPY | slot.to_bits(),
        }
    }

    fn from_word(word: u64) -> Option<Owner> {
        match word & KIND {
            SLOT => Some(Owner::Slot(SlotId::from_bits(word & !KIND))),
            COPY => Some(Owner::Copy(SlotId::from_bits(word & !KIND))),
            0 if word != 0 => Some(Owner::Page(PageIndex(word as usize))),
            _ => None,
        }
    }
}

/// The words of all frames of an arena, 16 bytes each; memory only for those that were ever used.
#[derive(Clone, Debug)]
pub struct FrameCells(Arc<ZeroTable<AtomicU64>>);

impl FrameCells {
    /// For frames below `frames`.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the table.
    pub fn new(frames: usize) -> Result<FrameCells, Errno> {
        Ok(FrameCells(Arc::new(ZeroTable::new(frames * FRAME_WORDS)?)))
    }

    /// How many frames they are for.
    pub fn frames(&self) -> usize {
        self.0.len() / FRAME_WORDS
    }

    /// Gives back the memory of cells that say nothing any more.
    pub fn release(&self, frames: Range<u32>) {
        let [start, end] = [frames.start, frames.end].map(|frame| frame as usize * FRAME_WORDS);
        self.0.release(start..end);
    }

    fn link_word(&self, frame: u32) -> &AtomicU64 {
        &self.0[frame as usize * FRAME_WORDS]
    }

    fn owner_word(&self, frame: u32) -> &AtomicU64 {
        &self.0[frame as usize * FRAME_WORDS + 1]
    }

    /// The previous frame, and the next.
    pub fn links(&self, frame: u32) -> (u32, u32) {
        let word = self.link_word(frame).load(Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Sets both.
    pub fn set_links(&self, frame: u32, previous: u32, next: u32) {
        debug_assert!(previous <= NO_FRAME && next <= NO_FRAME);
        self.link_word(frame).store((previous as u64) << 32 | next as u64, Relaxed);
    }

    /// Sets the previous one.
    pub fn set_previous(&self, frame: u32, previous: u32) {
        self.set_links(frame, previous, self.links(frame).1);
    }

    /// Sets the next one.
    pub fn set_next(&self, frame: u32, next: u32) {
        self.set_links(frame, self.links(frame).0, next);
    }

    /// The owner of a frame.
    pub fn owner(&self, frame: FrameId) -> Option<Owner> {
        Owner::from_word(self.owner_word(frame.0).load(Relaxed))
    }

    /// Gives a frame an owner.
    pub fn set_owner(&self, frame: FrameId, owner: Owner) {
        debug_assert_ne!(owner, Owner::Page(PageIndex(0)));
        self.owner_word(frame.0).store(owner.to_word(), Relaxed);
    }

    /// Takes the owner of a frame away.
    pub fn disown(&self, frame: FrameId) -> Option<Owner> {
        let word = self.owner_word(frame.0);
        let owner = Owner::from_word(word.load(Relaxed));
        word.store(0, Relaxed);
        owner
    }

    /// The slot of the clean page that is mapped and has this frame.
    pub fn copy(&self, frame: FrameId) -> SlotId {
        SlotId::from_bits(self.link_word(frame.0).load(Relaxed))
    }

    /// Notes it.
    pub fn set_copy(&self, frame: FrameId, slot: SlotId) {
        self.link_word(frame.0).store(slot.to_bits(), Relaxed);
    }
}

impl Deref for FrameCells {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ARENA_MAX;

    #[test]
    fn words_say_what_they_are() {
        let cells = FrameCells::new(4).unwrap();
        let frame = FrameId(2);
        let slot = SlotId::new(SlotId::IN_MEMORY, (1 << 42) - 1);
        let page = PageIndex(u32::MAX as usize);
        for owner in
            [Owner::Page(PageIndex(1)), Owner::Page(page), Owner::Slot(slot), Owner::Copy(slot)]
        {
            cells.set_owner(frame, owner);
            assert_eq!(cells.owner(frame), Some(owner));
        }
        assert_eq!((cells.disown(frame), cells.owner(frame)), (Some(Owner::Copy(slot)), None));
        cells.set_copy(frame, slot);
        assert_eq!((cells.copy(frame), cells.owner(frame)), (slot, None));
        for objects in [OBJECTS, OBJECTS | ((1 << 60) - 1)] {
            cells[5].store(objects, Relaxed);
            assert_eq!(cells.owner(frame), None);
        }
        assert!(ARENA_MAX.pages() <= u64::from(NO_FRAME));
        let last = NO_FRAME - 1;
        cells.set_links(2, NO_FRAME, last);
        assert_eq!((cells.links(2), cells[4].load(Relaxed) & CHUNK_STATE), ((NO_FRAME, last), 0));
        cells.set_previous(2, 1);
        cells.set_next(2, NO_FRAME);
        assert_eq!((cells.links(2), cells.frames()), ((1, NO_FRAME), 4));
    }
}
