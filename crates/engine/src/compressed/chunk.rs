//! The table of chunks: which objects of each are used, and which chunks of a class have room.
//!
//! An entry belongs to the lock of the class that the chunk is of: every change takes that class's [`Lists`] as proof
//! that its lock is held. The entry of a chunk of no class belongs to whoever holds the chunk. So its cells are atomic
//! for the type system only, and read and written relaxed.

use super::class::{CLASSES, OBJECTS_MAX};
use overspill_os::{Errno, vm::SharedCells};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lists by fullness, for each quarter one. Chunks that are full are in none.
const GROUPS: usize = 4;

/// Words of a chunk's bitmap.
const BITMAP_WORDS: usize = OBJECTS_MAX / 64;
/// Cells of an entry: state, links, bitmap. 80 bytes a chunk.
const CELLS: usize = 2 + BITMAP_WORDS;

/// The end of a list. Not a chunk: handles name fewer.
const NONE: u32 = u32::MAX;

/// In the state of a chunk: in no list, whatever room it has, because its frames are to leave the arena.
const RETIRED: u64 = 1 << 63;

/// A class's chunks that have room, by fullness.
pub(super) struct Lists {
    heads: [u32; GROUPS],
}

impl Lists {
    pub fn new() -> Lists {
        Lists { heads: [NONE; GROUPS] }
    }
}

/// What a class has, as counted by [`ChunkTable::check`].
pub(super) struct Held {
    pub chunks: usize,
    pub objects: usize,
}

/// An entry for each chunk of the arena, all zero while the chunk is of no class. Memory is touched only for chunks that
/// were ever used.
pub(super) struct ChunkTable {
    cells: SharedCells,
}

impl ChunkTable {
    pub fn new(chunks: usize) -> Result<ChunkTable, Errno> {
        // The kernel refuses an empty mapping.
        Ok(ChunkTable { cells: SharedCells::anonymous(chunks.max(1) * CELLS)? })
    }

    /// Whether the object is stored. Exact under the class's lock, and for the owner of the object.
    pub fn holds(&self, chunk: u32, class: usize, object: usize) -> bool {
        (chunk as usize) < self.cells.len() / CELLS
            && object < CLASSES[class].objects
            && self.class(chunk) == Some(class)
            && self.bitmap(chunk)[object / 64].load(Relaxed) >> (object % 64) & 1 == 1
    }

    /// Whether the chunk is of no class.
    pub fn is_unused(&self, chunk: u32) -> bool {
        self.entry(chunk).iter().all(|cell| cell.load(Relaxed) == 0)
    }

    /// Takes an object of the fullest chunks with room. `None` when the class has none. Chunks that are `leaving` are
    /// retired: they take no more objects until they have been empty.
    pub fn take_object(&self, lists: &mut Lists, class: usize, leaving: impl Fn(u32) -> bool) -> Option<(u32, usize)> {
        let chunk = loop {
            let chunk = *lists.heads.iter().rev().find(|head| **head != NONE)?;
            if !leaving(chunk) {
                break chunk;
            }
            let group = fullness(class, self.used(chunk)).expect("it is in a list");
            self.unlink(&mut lists.heads[group], chunk);
            self.entry(chunk)[0].fetch_or(RETIRED, Relaxed);
        };
        let words = self.bitmap(chunk).iter();
        let (word, bits) = words.map(|word| word.load(Relaxed)).enumerate().find(|(_, bits)| *bits != !0)?;
        let object = word * 64 + bits.trailing_ones() as usize;
        debug_assert!(object < CLASSES[class].objects, "chunk {chunk} is full but listed");
        self.bitmap(chunk)[word].store(bits | 1 << (object % 64), Relaxed);
        self.change_used(lists, class, chunk, self.used(chunk) + 1);
        Some((chunk, object))
    }

    /// Makes an unused chunk one of the class's, and takes its first object.
    pub fn adopt(&self, lists: &mut Lists, class: usize, chunk: u32) -> usize {
        assert!((chunk as usize) < self.cells.len() / CELLS, "chunk {chunk} is outside the arena");
        assert_eq!(self.class(chunk), None, "chunk {chunk} was handed out while it is in use");
        self.bitmap(chunk)[0].store(1, Relaxed);
        self.change_used(lists, class, chunk, 1);
        0
    }

    /// Gives up a stored object, and the chunk with it when no other is left: true then.
    pub fn put_object(&self, lists: &mut Lists, class: usize, chunk: u32, object: usize) -> bool {
        let word = &self.bitmap(chunk)[object / 64];
        word.store(word.load(Relaxed) & !(1 << (object % 64)), Relaxed);
        let used = self.used(chunk) - 1;
        self.change_used(lists, class, chunk, used);
        used == 0
    }

    /// Counts what a class has; panics where lists and entries disagree.
    pub fn check(&self, lists: &Lists, class: usize) -> Held {
        let objects = CLASSES[class].objects;
        let mut held = Held { chunks: 0, objects: 0 };
        let mut with_room = 0;
        for chunk in (0..(self.cells.len() / CELLS) as u32).filter(|chunk| self.class(*chunk) == Some(class)) {
            let used: u32 = self.bitmap(chunk).iter().map(|word| word.load(Relaxed).count_ones()).sum();
            assert_eq!(self.used(chunk), used as usize, "count of chunk {chunk}");
            assert!((1..=objects).contains(&self.used(chunk)));
            held.chunks += 1;
            held.objects += used as usize;
            with_room += usize::from(self.used(chunk) < objects && !self.is_retired(chunk));
        }
        for (group, head) in lists.heads.iter().enumerate() {
            let (mut chunk, mut previous) = (*head, NONE);
            while chunk != NONE {
                assert_eq!(self.class(chunk), Some(class), "chunk {chunk} is in the list of another class");
                assert_eq!(fullness(class, self.used(chunk)), Some(group), "chunk {chunk} is in the wrong list");
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

    fn bitmap(&self, chunk: u32) -> &[AtomicU64] {
        &self.entry(chunk)[2..]
    }

    /// The state cell: [`RETIRED`], class + 1 above bit 32 (0: of no class), count of used objects below.
    fn class(&self, chunk: u32) -> Option<usize> {
        ((self.entry(chunk)[0].load(Relaxed) & !RETIRED) >> 32).checked_sub(1).map(|class| class as usize)
    }

    fn is_retired(&self, chunk: u32) -> bool {
        self.entry(chunk)[0].load(Relaxed) & RETIRED != 0
    }

    fn used(&self, chunk: u32) -> usize {
        self.entry(chunk)[0].load(Relaxed) as u32 as usize
    }

    /// Previous and next chunk of the list.
    fn links(&self, chunk: u32) -> [u32; 2] {
        let cell = self.entry(chunk)[1].load(Relaxed);
        [(cell >> 32) as u32, cell as u32]
    }

    fn set_links(&self, chunk: u32, [previous, next]: [u32; 2]) {
        self.entry(chunk)[1].store((previous as u64) << 32 | next as u64, Relaxed);
    }

    /// Sets the count of used objects, and moves the chunk to the list where it then belongs.
    fn change_used(&self, lists: &mut Lists, class: usize, chunk: u32, used: usize) {
        let retired = self.entry(chunk)[0].load(Relaxed) & RETIRED;
        let (from, to) = (fullness(class, self.used(chunk)), fullness(class, used));
        let state = if used == 0 { 0 } else { retired | (class as u64 + 1) << 32 | used as u64 };
        self.entry(chunk)[0].store(state, Relaxed);
        if from != to && retired == 0 {
            if let Some(group) = from {
                self.unlink(&mut lists.heads[group], chunk);
            }
            if let Some(group) = to {
                self.push(&mut lists.heads[group], chunk);
            }
        }
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
        self.entry(chunk)[1].store(0, Relaxed);
    }
}

/// The list of a chunk with so many used objects; `None` for a full one and for one of no class.
fn fullness(class: usize, used: usize) -> Option<usize> {
    let objects = CLASSES[class].objects;
    (1..objects).contains(&used).then(|| used * GROUPS / objects)
}
