//! The table of chunks: which objects of each are used, and which chunks of a class have room.
//!
//! Nothing is kept for chunks beside what is kept of frames: an entry is the
//! [cells](crate::frame::cells) of the first four frames of a chunk, which those of the other users
//! of frames can be told from.
//!
//! An entry belongs to the lock of the class that the chunk is of: every change takes that class's
//! [`ChunkLists`] as proof that its lock is held, but for one ([`ChunkTable::written`]). The entry
//! of a chunk of no class belongs to whoever holds the chunk.
//!
//! A chunk with room is in one of its class's lists, by fullness, unless it is taken out of
//! circulation:
//!
//! - *retired*: its frames are to leave the arena. It takes no more objects until it was empty, or
//!   until it stays after all.
//! - *pinned*: a compactor is at work on it. It takes no more objects and is not given back, even
//!   if it becomes empty, until the compactor unpins it; objects of it can be freed. Only chunks in
//!   which nobody is just writing an object are pinned. So while a chunk is pinned, what lies in
//!   its places stays, also where an object is freed, and no handle of it is given out anew.

use super::class::{CLASSES, OBJECTS_MAX, ORDER_MIN};
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::Atomic;
use crate::frame::cells::{CHUNK_STATE, FRAME_WORDS, FrameCells, OBJECTS};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Lists by fullness, for each eighth one. Chunks that are full are in none.
const GROUPS: usize = 8;

/// Frames of the smallest chunk.
const FRAMES: usize = 1 << ORDER_MIN;
/// Cells of an entry. The state, and the place in a list, lie where the links of the first frames
/// are; which objects are used where the owners of all four are.
pub(super) const CELLS: usize = FRAMES * FRAME_WORDS;
const STATE: usize = 0;
const LINKS: usize = FRAME_WORDS;
const BITMAP: usize = 1;
/// The objects of a chunk that a word of its bitmap has bits for.
const WORD_OBJECTS: usize = OBJECTS_MAX / FRAMES;
/// All of them.
const ALL: u64 = (1 << WORD_OBJECTS) - 1;
const _: () = assert!(OBJECTS_MAX.is_multiple_of(FRAMES) && ALL < OBJECTS);

/// Chunks of a list that are looked at for the one with the fewest objects.
const LOOKED_AT_MAX: usize = 16;

/// The end of a list. Not a chunk: handles name fewer.
const NONE: u32 = u32::MAX;

/// The first cell of an entry: used objects in bits 0 to 15, objects that are being written in bits
/// 16 to 31, class in bits 32 to 47, flags above. Without the highest it is no chunk's, and says
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ChunkState(u64);

impl ChunkState {
    const USED: u64 = 1;
    const WRITING: u64 = 1 << 16;
    const CLASS: u64 = 1 << 32;
    const FIELD: u64 = 0xFFFF;
    const RETIRED: u64 = 1 << 62;
    const PINNED: u64 = 1 << 61;
    /// A compactor could not empty it: the next one is to try another first.
    const SKIP: u64 = 1 << 60;

    fn used(self) -> usize {
        (self.0 & ChunkState::FIELD) as usize
    }

    fn is_being_written(self) -> bool {
        (self.0 / ChunkState::WRITING) & ChunkState::FIELD != 0
    }

    fn class(self) -> Option<usize> {
        self.has(CHUNK_STATE).then_some(((self.0 / ChunkState::CLASS) & ChunkState::FIELD) as usize)
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// The list that it belongs in.
    fn group(self) -> Option<usize> {
        let objects = CLASSES[self.class()?].objects;
        if self.has(ChunkState::RETIRED | ChunkState::PINNED) {
            return None;
        }
        (1..objects).contains(&self.used()).then(|| self.used() * GROUPS / objects)
    }
}

/// A class's chunks that have room, by fullness.
pub(super) struct ChunkLists {
    heads: [u32; GROUPS],
    /// Places that are free in all chunks of the lists.
    room: usize,
}

impl ChunkLists {
    pub fn new() -> ChunkLists {
        ChunkLists { heads: [NONE; GROUPS], room: 0 }
    }

    /// Places that are free in chunks that take objects.
    pub fn room(&self) -> usize {
        self.room
    }
}

/// What a class has, as counted by [`ChunkTable::check`].
pub(super) struct ClassTotals {
    pub chunks: usize,
    pub objects: usize,
}

/// An entry for each place of a smallest chunk in the arena.
pub(super) struct ChunkTable {
    cells: FrameCells,
}

impl ChunkTable {
    pub fn over(cells: FrameCells) -> ChunkTable {
        ChunkTable { cells }
    }

    /// Chunks that can be told apart.
    pub fn len(&self) -> usize {
        self.cells.len() / CELLS
    }

    /// The class of a chunk. Exact under its lock, and for the owner of an object in it.
    pub fn class(&self, chunk: u32) -> Option<usize> {
        ((chunk as usize) < self.len()).then(|| self.state(chunk).class()).flatten()
    }

    /// Whether the object is stored. Exact under the class's lock, and for the owner of the object.
    pub fn holds(&self, chunk: u32, class: usize, object: usize) -> bool {
        self.class(chunk) == Some(class)
            && object < CLASSES[class].objects
            && self.is_used(chunk, object)
    }

    fn is_used(&self, chunk: u32, object: usize) -> bool {
        self.bitmap(chunk, object / WORD_OBJECTS).load(Relaxed) >> (object % WORD_OBJECTS) & 1 == 1
    }

    /// Whether the chunk is of no class, and nothing is left of what it was.
    pub fn is_unused(&self, chunk: u32) -> bool {
        self.class(chunk).is_none()
            && (0..FRAMES).all(|word| self.bitmap(chunk, word).load(Relaxed) == 0)
    }

    /// Takes an object of the fullest chunks with room, to be written next. `None` when the class
    /// has none. Chunks that are `leaving` are retired.
    pub fn take_object(
        &self,
        lists: &mut ChunkLists,
        class: usize,
        leaving: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        let chunk = loop {
            let chunk = *lists.heads.iter().rev().find(|head| **head != NONE)?;
            if !leaving(chunk) {
                break chunk;
            }
            self.change(lists, chunk, |state| state | ChunkState::RETIRED);
        };
        let mut words = (0..FRAMES).map(|word| (word, self.bitmap(chunk, word).load(Relaxed)));
        let (word, bits) = words.find(|(_, bits)| bits & ALL != ALL)?;
        let free = bits.trailing_ones();
        let object = word * WORD_OBJECTS + free as usize;
        debug_assert!(object < CLASSES[class].objects, "chunk {chunk} is full but listed");
        self.bitmap(chunk, word).store(bits | 1 << free, Relaxed);
        self.change(lists, chunk, |state| state + ChunkState::USED + ChunkState::WRITING);
        Some((chunk, object))
    }

    /// Makes an unused chunk one of the class's, and takes its first object, to be written next.
    pub fn adopt(&self, lists: &mut ChunkLists, class: usize, chunk: u32) -> usize {
        assert!((chunk as usize) < self.len(), "chunk {chunk} is outside the arena");
        assert_eq!(self.class(chunk), None, "chunk {chunk} was handed out while it is in use");
        for word in 0..FRAMES {
            let cell = self.bitmap(chunk, word);
            debug_assert_eq!(cell.load(Relaxed), 0, "the frames of chunk {chunk} have an owner");
            cell.store(OBJECTS | u64::from(word == 0), Relaxed);
        }
        self.change(lists, chunk, |_| {
            CHUNK_STATE
                | (class as u64 * ChunkState::CLASS + ChunkState::USED + ChunkState::WRITING)
        });
        0
    }

    /// The object that was taken last is written: from now on its chunk may be pinned, by who then
    /// sees what was written. Needs no lock.
    pub fn written(&self, chunk: u32) {
        Atomic::fetch_sub(&self.entry(chunk)[STATE], ChunkState::WRITING, Release);
    }

    /// Gives up a stored object, and the chunk with it when no other is left: true then. A chunk
    /// that was retired and is not `leaving` any more takes objects again.
    pub fn put_object(
        &self,
        lists: &mut ChunkLists,
        chunk: u32,
        object: usize,
        leaving: impl Fn(u32) -> bool,
    ) -> bool {
        let word = self.bitmap(chunk, object / WORD_OBJECTS);
        word.store(word.load(Relaxed) & !(1 << (object % WORD_OBJECTS)), Relaxed);
        let stays = self.state(chunk).has(ChunkState::RETIRED) && !leaving(chunk);
        self.change(lists, chunk, |state| {
            (if stays { state & !ChunkState::RETIRED } else { state }) - ChunkState::USED
        });
        self.disband(lists, chunk)
    }

    /// Pins a chunk with few objects, where all of them fit into other chunks of the class.
    pub fn pin_emptiest(&self, lists: &mut ChunkLists, class: usize) -> Option<u32> {
        if lists.room < CLASSES[class].objects {
            return None;
        }
        let mut skipped = None;
        for group in 0..GROUPS {
            let mut best: Option<u32> = None;
            let mut chunk = lists.heads[group];
            for _ in 0..LOOKED_AT_MAX {
                if chunk == NONE {
                    break;
                }
                let state = self.state(chunk);
                if state.has(ChunkState::SKIP) {
                    // Once; if there is no other, it is this one after all.
                    skipped = skipped.or(Some(chunk));
                    self.change(lists, chunk, |state| state & !ChunkState::SKIP);
                } else if best.is_none_or(|best| state.used() < self.state(best).used()) {
                    best = Some(chunk);
                }
                chunk = self.links(chunk)[1];
            }
            if let Some(chunk) = best
                && self.pin(lists, chunk)
            {
                return Some(chunk);
            }
        }
        skipped.filter(|chunk| self.pin(lists, *chunk))
    }

    /// Pins a chunk with few objects, whether they fit into others or not.
    #[cfg(test)]
    pub fn pin_first(&self, lists: &mut ChunkLists) -> Option<u32> {
        let heads = lists.heads;
        heads.into_iter().find(|chunk| *chunk != NONE && self.pin(lists, *chunk))
    }

    /// Pins a chunk of the class, unless somebody is at work on it.
    pub fn pin(&self, lists: &mut ChunkLists, chunk: u32) -> bool {
        let state = self.state(chunk);
        let written = !state.is_being_written() || is_seeded(Bug::PinnedWhileWritten);
        let free = !state.has(ChunkState::PINNED) && written;
        if free && !is_seeded(Bug::ChunkNotPinned) {
            self.change(lists, chunk, |state| state | ChunkState::PINNED);
        }
        free
    }

    /// Ends what [`ChunkTable::pin`] began; the chunk is given up, and true is returned, when it
    /// has no object left. One that objects were `stuck` in is skipped by the next who pins.
    pub fn unpin(&self, lists: &mut ChunkLists, chunk: u32, stuck: bool) -> bool {
        let skip = if stuck { ChunkState::SKIP } else { 0 };
        self.change(lists, chunk, |state| (state | skip) & !ChunkState::PINNED);
        self.disband(lists, chunk)
    }

    /// The places of a pinned chunk that hold objects; some may be freed meanwhile.
    pub fn objects(&self, chunk: u32) -> impl Iterator<Item = usize> {
        (0..OBJECTS_MAX).filter(move |object| self.is_used(chunk, *object))
    }

    /// Makes the chunk one of no class if it has no objects and nobody is at work on it.
    fn disband(&self, lists: &mut ChunkLists, chunk: u32) -> bool {
        let state = self.state(chunk);
        let empty = state.used() == 0 && !state.has(ChunkState::PINNED);
        if empty {
            self.change(lists, chunk, |_| 0);
            (0..FRAMES).for_each(|word| self.bitmap(chunk, word).store(0, Relaxed));
        }
        empty
    }

    /// The chunks of all classes: each look goes over the whole arena.
    pub fn chunks_in_use(&self) -> Vec<u32> {
        (0..self.len() as u32).filter(|chunk| self.class(*chunk).is_some()).collect()
    }

    /// Counts what a class has of the chunks in use; panics where lists and entries disagree.
    pub fn check(&self, lists: &ChunkLists, class: usize, in_use: &[u32]) -> ClassTotals {
        let objects = CLASSES[class].objects;
        let mut held = ClassTotals { chunks: 0, objects: 0 };
        let (mut with_room, mut room) = (0, 0);
        for chunk in in_use.iter().copied().filter(|chunk| self.class(*chunk) == Some(class)) {
            let state = self.state(chunk);
            let used = self.objects(chunk).count();
            assert_eq!(state.used(), used, "count of chunk {chunk}");
            assert!((1..=objects).contains(&state.used()), "chunk {chunk} has {used} objects");
            assert!(
                !state.is_being_written() && !state.has(ChunkState::PINNED),
                "somebody is at work on chunk {chunk}"
            );
            held.chunks += 1;
            held.objects += used;
            if state.group().is_some() {
                with_room += 1;
                room += objects - state.used();
            }
        }
        assert_eq!(lists.room, room, "free places of class {class}");
        for (group, head) in lists.heads.iter().enumerate() {
            let (mut chunk, mut previous) = (*head, NONE);
            while chunk != NONE {
                assert_eq!(
                    self.class(chunk),
                    Some(class),
                    "chunk {chunk} is in the list of another class"
                );
                assert_eq!(
                    self.state(chunk).group(),
                    Some(group),
                    "chunk {chunk} is in the wrong list"
                );
                let [before, after] = self.links(chunk);
                assert_eq!(before, previous, "links of chunk {chunk}");
                with_room -= 1;
                (previous, chunk) = (chunk, after);
            }
        }
        assert_eq!(with_room, 0, "chunks with room that no list holds");
        held
    }

    fn entry(&self, chunk: u32) -> &[AtomicU64] {
        &self.cells[chunk as usize * CELLS..][..CELLS]
    }

    fn bitmap(&self, chunk: u32, word: usize) -> &AtomicU64 {
        &self.entry(chunk)[BITMAP + word * FRAME_WORDS]
    }

    fn state(&self, chunk: u32) -> ChunkState {
        // Whoever finds that nothing is being written sees what was written.
        ChunkState(Atomic::load(&self.entry(chunk)[STATE], Acquire))
    }

    /// Changes a chunk's state, and its place in the lists with it.
    fn change(&self, lists: &mut ChunkLists, chunk: u32, change: impl Fn(u64) -> u64) {
        let cell = &self.entry(chunk)[STATE];
        let mut old = cell.load(Relaxed);
        // Against others that have written an object, who hold no lock.
        while let Err(now) = Atomic::compare_exchange_weak(cell, old, change(old), Relaxed, Relaxed)
        {
            old = now;
        }
        let (old, new) = (ChunkState(old), ChunkState(change(old)));
        let room = |state: ChunkState| match state.class() {
            Some(class) if state.group().is_some() => CLASSES[class].objects - state.used(),
            _ => 0,
        };
        lists.room = lists.room + room(new) - room(old);
        if old.group() != new.group() {
            if let Some(group) = old.group() {
                self.unlink(&mut lists.heads[group], chunk);
            }
            if let Some(group) = new.group() {
                self.push(&mut lists.heads[group], chunk);
            }
        }
    }

    /// Previous and next chunk of the list.
    fn links(&self, chunk: u32) -> [u32; 2] {
        let cell = self.entry(chunk)[LINKS].load(Relaxed);
        [(cell >> 32) as u32, cell as u32]
    }

    fn set_links(&self, chunk: u32, [previous, next]: [u32; 2]) {
        self.entry(chunk)[LINKS].store((previous as u64) << 32 | next as u64, Relaxed);
    }

    fn push(&self, head: &mut u32, chunk: u32) {
        if *head != NONE {
            let [_, next] = self.links(*head);
            self.set_links(*head, [chunk, next]);
        }
        self.set_links(chunk, [NONE, *head]);
        *head = chunk;
    }

    fn unlink(&self, head: &mut u32, chunk: u32) {
        let [previous, next] = self.links(chunk);
        match previous {
            NONE => *head = next,
            _ => self.set_links(previous, [self.links(previous)[0], next]),
        }
        if next != NONE {
            self.set_links(next, [previous, self.links(next)[1]]);
        }
    }
}
