//! The zpool, the pool of compressed pages: objects of 1 to 4096 bytes, several to a chunk of
//! contiguous frames. The idea is zsmalloc's.
//!
//! Objects lie in places of some 55 size classes (`class`); a chunk holds places of one class only,
//! so that its offsets follow from a number. Which objects of a chunk are used, and which chunks of
//! a class have room, is kept with its frames (`chunk`). A [`Handle`] names an object and its
//! length in 48 bits. At the end of a place is the object's trailer (`trailer`, 12 bytes): its
//! owner's name, its length, and a checksum, so that damage is found before the bytes are used. New
//! objects go to the fullest chunks that have room, so that others become empty and go back; what
//! chance leaves half empty, compaction moves together (`compact`, which tells its protocol).
//!
//! Neighbours: [`FrameSource`] is the seam to the memory (the pool's arena and budget); the
//! compressed tier above keeps the handles, and gives names to owners; [`crate::frame`] numbers the
//! frames. What a slot means, and how the bytes of an object were packed, is not known here.
//!
//! Locks: one a class (`Rank::ZpoolClass`), over the class's lists and the table entries of
//! its chunks; one over the few empty chunks that are kept (`Rank::ZpoolKept`). No two are
//! ever held together, and [`FrameSource`] is never called under one but for
//! [`FrameSource::is_leaving`]: its own locks may be of any order. Reading and writing an object
//! takes no lock: its bytes are its owner's.

mod chunk;
mod class;
mod compact;
mod handle;
mod kept;
mod trailer;

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use crate::frame::cells::FrameCells;
use crate::units::{FrameId, PAGE_SIZE};
use chunk::{ChunkLists, ChunkTable};
pub use class::OBJECT_BYTES_MAX;
use class::{CLASSES, ORDER_MAX, ORDER_MIN, TRAILER_BYTES, class_of};
pub use compact::{Compacted, Relocate};
pub use handle::Handle;
use handle::first_frame;
use kept::{Kept, kept_max};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use trailer::Trailer;

/// Chunks that are given back at once, at most: to empty frames costs a flush, however many they
/// are.
pub const GIVEN_MAX: usize = 16;

/// Where chunks come from, and how their bytes are reached.
///
/// A chunk given by one thread may be taken by another: what the first did before
/// [`FrameSource::give_chunks`] must happen before what the second does after
/// [`FrameSource::take_chunk`], as it does when one lock guards both.
pub trait FrameSource {
    /// `2^order` contiguous frames, the first at a multiple of their number, memory behind them and
    /// charged to the budget. `None` when there is no room. Called without a lock of the compressed
    /// pool.
    fn take_chunk(&self, order: u8) -> Option<FrameId>;

    /// Takes up to [`GIVEN_MAX`] chunks of `2^order` frames back, their content no longer needed.
    /// Called without a lock of the zpool.
    fn give_chunks(&self, chunks: &[(FrameId, u8)]);

    /// Frames that are to leave the arena, whole pageblocks: all that may hold chunks.
    fn leaving(&self) -> Vec<Range<u32>>;

    /// Whether the chunk's frames are to leave the arena: it is to take no more objects. Called
    /// with a lock of the zpool held, so that it must take none.
    fn is_leaving(&self, first: FrameId) -> bool;

    /// Copies `data` to `offset` bytes into the chunk. Other threads may at the same time read and
    /// write other ranges of the chunk, never this one.
    fn write(&self, first: FrameId, offset: usize, data: &[u8]);

    /// Copies `out.len()` bytes from `offset` bytes into the chunk. Other threads may at the same
    /// time read this range, and read and write others.
    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]);
}

/// The pool is at its limit, or its source has no room: the object was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the compressed pool is full")
    }
}

impl std::error::Error for Full {}

/// What lies in the object's place is not what was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an object of the compressed pool does not have the checksum it was stored with",
        )
    }
}

impl std::error::Error for Damaged {}

/// One size class: its lists, and what it holds. On a cache line of its own, as other classes are
/// others' business.
#[repr(align(64))]
struct Class {
    lists: RankedMutex<ChunkLists>,
    /// Written under `lists`, read without.
    objects: AtomicUsize,
    /// Bytes of data in these objects; written under `lists`, read without.
    bytes: AtomicUsize,
    /// [`ChunkLists::room`], to be read without the lock.
    room: AtomicUsize,
}

/// A place in a chunk, taken for an object.
#[derive(Clone, Copy)]
struct ObjectPlace {
    class: usize,
    chunk: u32,
    object: usize,
}

impl ObjectPlace {
    fn first_frame(self) -> FrameId {
        first_frame(self.chunk)
    }

    /// Where the object begins in its chunk.
    fn data(self) -> usize {
        self.object * CLASSES[self.class].bytes
    }

    /// Where its trailer begins.
    fn trailer(self) -> usize {
        self.data() + CLASSES[self.class].bytes - TRAILER_BYTES
    }
}

/// Whether a place in a fresh chunk will do, with which the pool may be so many frames over its
/// limit, or only one that is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chunks {
    Fresh { beyond: usize },
    AtHand,
}

/// Frames by which the pool may be over its limit while objects are replaced by smaller ones, or
/// moved out of frames that leave: the largest chunk of a few classes.
const BEYOND_FRAMES: usize = 4 << ORDER_MAX;

/// The pool. Shared by all threads; it allocates nothing from the heap after
/// [`Zpool::new`].
pub struct Zpool {
    table: ChunkTable,
    classes: Box<[Class]>,
    kept: RankedMutex<Kept>,
    /// Frames that the source has given, those of kept chunks included, and those being asked for
    /// just now.
    frames: AtomicUsize,
    limit: AtomicUsize,
    /// The class that compaction begins with the next time.
    compacted: AtomicUsize,
}

impl Zpool {
    /// An empty pool over an arena whose frames have these cells, which takes at most `frames_max`
    /// of them.
    pub fn new(cells: FrameCells, frames_max: usize) -> Zpool {
        let chunks = cells.frames() >> ORDER_MIN;
        assert!(
            chunks <= Handle::CHUNKS_MAX,
            "handles can name {} chunks, not {chunks}",
            Handle::CHUNKS_MAX
        );
        let class = || Class {
            lists: RankedMutex::new(Rank::ZpoolClass, ChunkLists::new()),
            objects: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
        };
        Zpool {
            table: ChunkTable::over(cells),
            classes: CLASSES.iter().map(|_| class()).collect(),
            kept: RankedMutex::new(Rank::ZpoolKept, Kept::new()),
            frames: AtomicUsize::new(0),
            limit: AtomicUsize::new(frames_max),
            compacted: AtomicUsize::new(0),
        }
    }

    /// Stores `data`, of 1 to 4096 bytes, for `owner`: a name of 48 bits, by which compaction finds
    /// whoever has the handle.
    ///
    /// # Errors
    /// [`Full`] when there is no room in the chunks of the class, no chunk to be had, and no room
    /// in larger classes.
    pub fn store<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        owner: u64,
        data: &[u8],
    ) -> Result<Handle, Full> {
        self.store_within(source, owner, data, 0)
    }

    /// The same for what takes the place of a larger object that is freed next: also when the pool
    /// is at its limit.
    ///
    /// # Errors
    /// As of [`Zpool::store`].
    pub fn store_smaller<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        owner: u64,
        data: &[u8],
    ) -> Result<Handle, Full> {
        self.store_within(source, owner, data, BEYOND_FRAMES)
    }

    fn store_within<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        owner: u64,
        data: &[u8],
        beyond: usize,
    ) -> Result<Handle, Full> {
        assert!(
            (1..=OBJECT_BYTES_MAX).contains(&data.len()),
            "objects have 1 to {OBJECT_BYTES_MAX} bytes, not {}",
            data.len()
        );
        // 1. A place. From here on it is ours, so its bytes need no lock.
        let place = self
            .take_place(source, class_of(data.len()), data.len(), Chunks::Fresh { beyond })
            .ok_or(Full)?;
        // 2. Data and trailer.
        source.write(place.first_frame(), place.data(), data);
        source.write(place.first_frame(), place.trailer(), &Trailer::new(owner, data).to_bytes());
        // 3. Now compaction may come upon it.
        self.table.written(place.chunk);
        Ok(Handle::new(place.chunk, place.object, data.len()))
    }

    /// Copies the object's bytes to the beginning of `out` and returns how many there are.
    ///
    /// Takes no lock, and runs beside stores and frees of other objects: that this object stays is
    /// the promise of the handle's owner, who neither frees it before this returns, nor lets a load
    /// begin before `store` has returned.
    ///
    /// # Errors
    /// [`Damaged`] when these are not the bytes that were stored.
    pub fn load<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        handle: Handle,
        out: &mut [u8; OBJECT_BYTES_MAX],
    ) -> Result<usize, Damaged> {
        let place = self.place(handle);
        let (first, len) = (place.first_frame(), handle.len_bytes());
        let mut trailer = [0; TRAILER_BYTES];
        source.read(first, place.data(), &mut out[..len]);
        source.read(first, place.trailer(), &mut trailer);
        debug_assert!(
            self.table.holds(place.chunk, place.class, place.object),
            "{handle:?} was freed while it was read"
        );
        if Trailer::from_bytes(trailer).fits(&out[..len]) { Ok(len) } else { Err(Damaged) }
    }

    /// Frees the object, and gives its chunk back when it was the last one there and enough empty
    /// chunks are kept.
    ///
    /// # Panics
    /// When no object is there: the handle is stale, or never was one. A stale handle whose place
    /// another object has taken since cannot be told from that one's.
    pub fn free<S: FrameSource + ?Sized>(&self, source: &S, handle: Handle) {
        let place = self.place(handle);
        let mut lists = self.lists(place.class);
        let held = self.table.holds(place.chunk, place.class, place.object);
        assert!(held, "{handle:?} freed, but it is not stored");
        let leaving = |chunk| source.is_leaving(first_frame(chunk));
        let emptied = self.table.put_object(&mut lists, place.chunk, place.object, leaving);
        self.count(place.class, &lists, |objects, bytes| (objects - 1, bytes - handle.len_bytes()));
        drop(lists);
        if emptied {
            self.put_chunk(source, place.class, place.chunk);
        }
    }

    /// Sets the most frames that the pool takes. When it has more now, what is stored stays, and
    /// the source is asked for no more until enough came back.
    pub fn set_limit(&self, frames_max: usize) {
        self.limit.store(frames_max, Relaxed);
    }

    /// Gives back the empty chunks that are kept, for when the budget is short or the limit was
    /// lowered; how many frames.
    pub fn trim<S: FrameSource + ?Sized>(&self, source: &S) -> usize {
        std::iter::from_fn(|| Some(self.give_older_half(source)).filter(|frames| *frames > 0)).sum()
    }

    /// Whether the pool holds more frames than its limit, which has been lowered.
    pub fn is_over_limit(&self) -> bool {
        self.frames() > self.limit.load(Relaxed)
    }

    /// Whether the pool holds more than `percent` of its limit.
    pub fn is_above_percent(&self, percent: usize) -> bool {
        self.frames() * 100 > self.limit.load(Relaxed) * percent
    }

    /// Frames in use, those of empty chunks that are kept included.
    pub fn frames(&self) -> usize {
        self.frames.load(Relaxed)
    }

    /// Bytes of frames that the pool occupies.
    pub fn pool_bytes(&self) -> usize {
        self.frames() * PAGE_SIZE
    }

    /// Bytes of the most frames that it takes.
    pub fn limit_bytes(&self) -> usize {
        self.limit.load(Relaxed) * PAGE_SIZE
    }

    /// Bytes of data stored, as they were given to `store`.
    pub fn stored_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.bytes.load(Relaxed)).sum()
    }

    /// Objects stored.
    pub fn stored_objects(&self) -> usize {
        self.classes.iter().map(|class| class.objects.load(Relaxed)).sum()
    }

    /// The share of what the pool occupies that is not data: rounding, trailers, places and chunks
    /// that are empty. 0 for an empty pool.
    pub fn waste(&self) -> f64 {
        match self.pool_bytes() {
            0 => 0.0,
            bytes => (1.0 - self.stored_bytes() as f64 / bytes as f64).max(0.0),
        }
    }

    /// Flips a bit of a stored object or of its trailer, as broken memory does; for tests.
    #[cfg(debug_assertions)]
    pub fn damage<S: FrameSource + ?Sized>(&self, source: &S, handle: Handle, byte: usize) {
        let place = self.place(handle);
        let at = match byte % (handle.len_bytes() + TRAILER_BYTES) {
            byte if byte < handle.len_bytes() => place.data() + byte,
            byte => place.trailer() + byte - handle.len_bytes(),
        };
        let mut one = [0];
        source.read(place.first_frame(), at, &mut one);
        source.write(place.first_frame(), at, &[one[0] ^ 1 << (byte % 8)]);
    }

    /// Checks every invariant, in time proportional to the arena, for tests and debugging; only
    /// while no other thread uses the pool.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        let mut in_classes = 0;
        let in_use = self.table.chunks_in_use();
        for (class, counts) in self.classes.iter().enumerate() {
            let lists = self.lists(class);
            let held = self.table.check(&lists, class, &in_use);
            assert_eq!(counts.objects.load(Relaxed), held.objects, "objects of class {class}");
            assert_eq!(counts.room.load(Relaxed), lists.room(), "room of class {class}");
            assert!(
                counts.bytes.load(Relaxed) <= held.objects * CLASSES[class].bytes,
                "bytes of class {class}"
            );
            in_classes += held.chunks * CLASSES[class].chunk_frames();
        }
        let kept = lock(&self.kept);
        assert!(
            kept.chunks().iter().all(|(chunk, _)| self.table.is_unused(*chunk)),
            "a kept chunk is in use"
        );
        assert_eq!(self.frames(), in_classes + kept.frames(), "frames in use");
    }

    fn lists(&self, class: usize) -> RankedGuard<'_, ChunkLists> {
        lock(&self.classes[class].lists)
    }

    /// Changes a class's counts; the guard shows that nobody else does.
    fn count(
        &self,
        class: usize,
        held: &RankedGuard<'_, ChunkLists>,
        change: impl Fn(usize, usize) -> (usize, usize),
    ) {
        let class = &self.classes[class];
        let (objects, bytes) = change(class.objects.load(Relaxed), class.bytes.load(Relaxed));
        class.objects.store(objects, Relaxed);
        class.bytes.store(bytes, Relaxed);
        class.room.store(held.room(), Relaxed);
    }

    /// Where an object lies that is stored. Its chunk is of one class for as long as the object is
    /// there.
    fn place(&self, handle: Handle) -> ObjectPlace {
        let (chunk, object) = (handle.chunk(), handle.object());
        let class = self
            .table
            .class(chunk)
            .filter(|class| CLASSES[*class].bytes >= handle.len_bytes() + TRAILER_BYTES);
        let class = class.unwrap_or_else(|| panic!("{handle:?} is not stored"));
        debug_assert!(self.table.holds(chunk, class, object), "{handle:?} is not stored");
        ObjectPlace { class, chunk, object }
    }

    /// Takes a place for `len` bytes: in a chunk of the class that has room, in a fresh one, or
    /// where neither is to be had, in any larger class.
    fn take_place<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        class: usize,
        len: usize,
        chunks: Chunks,
    ) -> Option<ObjectPlace> {
        if let Some(place) = self.take_at_hand(source, class, len) {
            return Some(place);
        }
        let Chunks::Fresh { beyond } = chunks else { return None };
        // Room that others made meanwhile is left to the next store: asking again could not be
        // bounded.
        if let Some(chunk) = self.take_chunk(source, CLASSES[class].order, beyond) {
            let mut lists = self.lists(class);
            let object = self.table.adopt(&mut lists, class, chunk);
            self.count(class, &lists, |objects, bytes| (objects + 1, bytes + len));
            return Some(ObjectPlace { class, chunk, object });
        }
        // The classes are listed from the largest down.
        let with_room = |class: &usize| self.classes[*class].room.load(Relaxed) > 0;
        (0..class).rev().filter(with_room).find_map(|larger| self.take_at_hand(source, larger, len))
    }

    fn take_at_hand<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        class: usize,
        len: usize,
    ) -> Option<ObjectPlace> {
        let mut lists = self.lists(class);
        let leaving = |chunk| source.is_leaving(first_frame(chunk));
        let taken = self.table.take_object(&mut lists, class, leaving);
        let added = if taken.is_some() { (1, len) } else { (0, 0) };
        self.count(class, &lists, |objects, bytes| (objects + added.0, bytes + added.1));
        taken.map(|(chunk, object)| ObjectPlace { class, chunk, object })
    }

    /// An empty chunk in no class: a kept one, or one more of the source.
    fn take_chunk<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        order: u8,
        beyond: usize,
    ) -> Option<u32> {
        loop {
            let kept = lock(&self.kept).pop(order);
            match kept {
                Some(chunk) if source.is_leaving(first_frame(chunk)) => {
                    self.give_chunks(source, &[(chunk, order)])
                }
                Some(chunk) => return Some(chunk),
                None => break,
            }
        }
        // Counted before it is asked for, so that the limit holds whoever asks at the same time.
        let limit = self.limit.load(Relaxed) + beyond;
        let room = |frames| Some(frames + (1 << order)).filter(|frames| *frames <= limit);
        if self.frames.fetch_update(Relaxed, Relaxed, room).is_err() {
            // Kept chunks of another size may be what is in the way.
            self.give_older_half(source);
            self.frames.fetch_update(Relaxed, Relaxed, room).ok()?;
        }
        let Some(first) = source.take_chunk(order) else {
            self.frames.fetch_sub(1 << order, Relaxed);
            return None;
        };
        assert!(first.0.is_multiple_of(1 << order), "chunk at frame {}: not aligned", first.0);
        Some(first.0 >> ORDER_MIN)
    }

    /// Takes an empty chunk of a class out of circulation: kept while few are and the limit allows
    /// it, else given back.
    fn put_chunk<S: FrameSource + ?Sized>(&self, source: &S, class: usize, chunk: u32) {
        let order = CLASSES[class].order;
        if self.is_over_limit() || source.is_leaving(first_frame(chunk)) {
            return self.give_chunks(source, &[(chunk, order)]);
        }
        let most = kept_max(self.limit.load(Relaxed));
        // What was kept longest makes room.
        while !lock(&self.kept).push(chunk, order, most) {
            self.give_older_half(source);
        }
    }

    /// Gives the older half of what is kept back, or as much of it as goes with one call; how many
    /// frames.
    fn give_older_half<S: FrameSource + ?Sized>(&self, source: &S) -> usize {
        let mut oldest = [(0, 0); GIVEN_MAX];
        let count = lock(&self.kept).take_older_half(&mut oldest);
        self.give_chunks(source, &oldest[..count]);
        oldest[..count].iter().map(|(_, order)| 1 << order).sum()
    }

    fn give_chunks<S: FrameSource + ?Sized>(&self, source: &S, chunks: &[(u32, u8)]) {
        let mut given = [(FrameId(0), 0); GIVEN_MAX];
        for (given, (chunk, order)) in given.iter_mut().zip(chunks) {
            *given = (first_frame(*chunk), *order);
        }
        source.give_chunks(&given[..chunks.len()]);
        self.frames.fetch_sub(chunks.iter().map(|(_, order)| 1 << order).sum(), Relaxed);
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
