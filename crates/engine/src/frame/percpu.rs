//! The lists of free frames that each processor keeps, so that most frames are had and given back
//! without the zone.
//!
//! A list for each mobility and order up to [`LIST_ORDER_MAX`]. What was freed last is handed out
//! first, while it is hot; what has lain longest goes back to the zone first. How much a processor
//! may keep follows its use: it grows while it takes frames again and again, and shrinks with time.
//!
//! Blocks lie in rings, not in links through the frames: the N-th is found without a walk, so that
//! picking what goes back touches no other memory.

use super::mobility::{MAX_ORDER, Mobility};
use std::collections::VecDeque;

/// The largest order that is kept in lists: 64 frames, the run that reclaim moves at once.
pub const LIST_ORDER_MAX: u8 = 6;
/// Blocks that are taken from a zone or given to it in one hold of its lock, at most: a bound on
/// the hold of about 3 us, and on the stack that a picked batch takes (1 KiB).
pub const HOLD_BLOCKS: usize = 128;

/// How many times the room that is needed a list keeps before it gives room back.
const ROOM_SPARE: usize = 4;

const LISTS: usize = Mobility::LISTED * (LIST_ORDER_MAX as usize + 1);

/// How many frames a processor keeps.
#[derive(Clone, Copy, Debug)]
pub struct ListMarks {
    /// Frames taken or given back at a time, at first.
    pub batch: u32,
    /// Most frames kept.
    pub high_max: u32,
}

impl ListMarks {
    /// A sixty-fourth of the budget among all processors, at most 4 MiB on each: what is kept there
    /// holds no page, and a sixteenth cost 4 % more faults at random access.
    const SHARE: u64 = 64;
    const HIGH_MAX: u64 = 1024;

    /// For a budget of `limit` pages on `cpus` processors.
    pub fn of(limit: u64, cpus: usize) -> ListMarks {
        let high_max = (limit / Self::SHARE / cpus as u64).min(Self::HIGH_MAX) as u32;
        ListMarks { batch: (high_max / 4).min(64), high_max }
    }
}

/// Blocks picked to go back to a zone, in the order in which they go.
pub struct Picked {
    blocks: [(u32, u8); HOLD_BLOCKS],
    len: usize,
}

impl Picked {
    /// Room for a batch.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Picked {
        Picked { blocks: [(0, 0); HOLD_BLOCKS], len: 0 }
    }

    /// Adds a block.
    pub fn push(&mut self, block: u32, order: u8) {
        self.blocks[self.len] = (block, order);
        self.len += 1;
    }

    /// Whether there is no room for another.
    pub fn is_full(&self) -> bool {
        self.len == HOLD_BLOCKS
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Makes of buddies the blocks that they are together, in the order in which they lie: what is
    /// done here is not done under the lock of the zone, where each step touches memory that others
    /// change.
    pub fn merge(&mut self) {
        let blocks = &mut self.blocks[..self.len];
        blocks.sort_unstable();
        let mut merged = 0;
        for next in 0..blocks.len() {
            let (mut block, mut order) = blocks[next];
            while order < MAX_ORDER
                && merged > 0
                && blocks[merged - 1] == (block ^ (1 << order), order)
            {
                merged -= 1;
                block = blocks[merged].0.min(block);
                order += 1;
            }
            blocks[merged] = (block, order);
            merged += 1;
        }
        self.len = merged;
    }

    /// First frame and order of each.
    pub fn blocks(&self) -> &[(u32, u8)] {
        &self.blocks[..self.len]
    }
}

/// The free frames that one processor keeps.
pub struct CpuLists {
    lists: [VecDeque<u32>; LISTS],
    /// Frames in all lists.
    frames: u32,
    marks: ListMarks,
    /// Frames kept at most just now.
    high: u32,
    /// Frames to take or give back the next time; it doubles while the same is done again.
    burst: u32,
    taking: bool,
}

impl CpuLists {
    /// Empty lists.
    pub fn new(marks: ListMarks) -> CpuLists {
        let mut lists = CpuLists {
            lists: std::array::from_fn(|_| VecDeque::new()),
            frames: 0,
            marks,
            high: marks.batch,
            burst: marks.batch,
            taking: false,
        };
        lists.reserve();
        lists
    }

    /// Makes room for what they may hold by their marks, so that nothing is allocated when frames
    /// come: what is kept at most, half of it taken at once, and a block that is taken apart. Gives
    /// back what is far too much.
    fn reserve(&mut self) {
        let most = self.marks.high_max.max(self.marks.batch);
        let frames = (most + most / 2 + (1 << LIST_ORDER_MAX)) as usize;
        for (list, blocks) in self.lists.iter_mut().enumerate() {
            let room = (frames >> (list % (LIST_ORDER_MAX as usize + 1))) + 1;
            blocks.reserve_exact(room.saturating_sub(blocks.len()));
            if blocks.capacity() > ROOM_SPARE * room {
                blocks.shrink_to(room);
            }
        }
    }

    fn list(mobility: Mobility, order: u8) -> usize {
        mobility as usize * (LIST_ORDER_MAX as usize + 1) + order as usize
    }

    /// Frames in all lists.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The budget has changed.
    pub fn set_marks(&mut self, marks: ListMarks) {
        self.marks = marks;
        self.high = self.high.clamp(marks.batch, marks.high_max.max(marks.batch));
        self.burst = marks.batch;
        self.reserve();
    }

    /// Takes the block that was freed last; one of a larger order is taken apart for it, if need
    /// be.
    pub fn pop(&mut self, mobility: Mobility, order: u8) -> Option<u32> {
        let (block, whole) = (order..=LIST_ORDER_MAX).find_map(|larger| {
            Some((self.lists[Self::list(mobility, larger)].pop_back()?, larger))
        })?;
        self.frames -= 1 << whole;
        // Parts that follow one another are handed out one after the other, so that they come back
        // as the block that they were.
        let parts = (block + (1 << order)..block + (1 << whole)).step_by(1 << order);
        parts.rev().for_each(|part| self.push(part, order, mobility));
        Some(block)
    }

    /// Adds a free block.
    pub fn push(&mut self, block: u32, order: u8, mobility: Mobility) {
        self.lists[Self::list(mobility, order)].push_back(block);
        self.frames += 1 << order;
    }

    /// Blocks of an order to take from the zone, for a list that is empty; at least one.
    pub fn to_take(&mut self, order: u8) -> usize {
        self.turn(true);
        // Whoever takes again and again may keep more: it is likely to give as much back.
        self.high = (self.high + self.marks.batch).min(self.marks.high_max);
        ((self.burst >> order) as usize).clamp(1, HOLD_BLOCKS)
    }

    /// Frames to give back to the zone; none while the lists are not above their mark.
    pub fn to_give(&mut self) -> u32 {
        if self.frames <= self.high {
            return 0;
        }
        self.turn(false);
        self.burst.max(self.frames - self.high)
    }

    fn turn(&mut self, taking: bool) {
        let again = std::mem::replace(&mut self.taking, taking) == taking;
        let most = (self.marks.high_max / 2).max(self.marks.batch);
        self.burst = if again { (self.burst * 2).min(most) } else { self.marks.batch };
    }

    /// Lets a quarter of what may be kept go, with time; frames to give back now.
    pub fn decay(&mut self) -> u32 {
        self.high = (self.high - self.high / 4).max(self.marks.batch);
        self.frames.saturating_sub(self.high)
    }

    /// Takes up to [`HOLD_BLOCKS`] blocks of together at least `want` frames, if there are so many,
    /// off the lists: those that have lain longest, round robin over the lists, one more of each in
    /// a round while the others are empty.
    pub fn pick(&mut self, want: u32, picked: &mut Picked) {
        picked.clear();
        let (mut frames, mut list) = (0, 0);
        while frames < want && self.frames > 0 && !picked.is_full() {
            // 1. The next list that has any; those that were passed over are made up for here.
            let mut in_a_row = 1;
            while self.lists[list].is_empty() {
                list = (list + 1) % LISTS;
                in_a_row += 1;
            }
            // 2. Its oldest.
            let order = (list % (LIST_ORDER_MAX as usize + 1)) as u8;
            for _ in 0..in_a_row {
                if frames >= want || picked.is_full() {
                    break;
                }
                let Some(block) = self.lists[list].pop_front() else { break };
                picked.push(block, order);
                frames += 1 << order;
                self.frames -= 1 << order;
            }
            list = (list + 1) % LISTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(high_max: u32) -> CpuLists {
        CpuLists::new(ListMarks { batch: 16, high_max })
    }

    #[test]
    fn picks_are_the_oldest_of_every_list_in_turn() {
        let mut lists = lists(1024);
        (0..4).for_each(|frame| lists.push(frame, 0, Mobility::Movable));
        (0..2).for_each(|block| lists.push(64 + 8 * block, 3, Mobility::Unmovable));
        let mut picked = Picked::new();
        lists.pick(9, &mut picked);
        assert_eq!(picked.blocks()[0], (0, 0));
        assert!(picked.blocks()[1..].contains(&(64, 3)), "{:?}", picked.blocks());
        lists.pick(u32::MAX, &mut picked);
        assert_eq!(lists.frames(), 0);
        assert_eq!(picked.blocks().iter().map(|(_, order)| 1 << order).sum::<u32>(), 20 - 9);
    }

    #[test]
    fn buddies_become_blocks_and_nothing_else_does() {
        let mut picked = Picked::new();
        // 8..16 in parts and out of order; 17 and 18, which are neighbours but no buddies; 5 twice,
        // which is for the zone to find.
        for (block, order) in
            [(12, 2), (18, 0), (8, 0), (10, 1), (9, 0), (5, 0), (17, 0), (5, 0), (512, 9), (0, 9)]
        {
            picked.push(block, order);
        }
        picked.merge();
        assert_eq!(picked.blocks(), [(0, 9), (5, 0), (5, 0), (8, 3), (17, 0), (18, 0), (512, 9)]);
    }

    #[test]
    fn the_last_freed_is_the_first_taken() {
        let mut lists = lists(1024);
        (0..3).for_each(|frame| lists.push(frame, 0, Mobility::Movable));
        assert_eq!(lists.pop(Mobility::Movable, 0), Some(2));
        assert_eq!(lists.pop(Mobility::Reclaimable, 0), None);
    }

    #[test]
    fn bursts_grow_and_what_is_kept_follows_them() {
        let mut lists = lists(256);
        let taken: Vec<_> = (0..5).map(|_| lists.to_take(0)).collect();
        assert_eq!(taken, [16, 32, 64, 128, 128]);
        assert_eq!(lists.high, 96);
        (0..96).for_each(|frame| lists.push(frame, 0, Mobility::Movable));
        assert_eq!(lists.to_give(), 0);
        lists.push(96, 0, Mobility::Movable);
        assert_eq!(lists.to_give(), 16);
        assert_eq!(lists.decay(), 97 - 72);
        // With time no more than a batch is kept.
        for _ in 0..20 {
            lists.decay();
        }
        assert_eq!(lists.high, 16);
    }
}
