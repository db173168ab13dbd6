//! The compressed pool: objects of 1 to 4096 bytes, several to a chunk of contiguous frames. The idea is zsmalloc's.
//!
//! Objects are of 36 size classes (`class`); a chunk holds objects of one class only, so that its offsets
//! follow from the object's number and nothing is stored beside the data. Which objects of a chunk are used, and which
//! chunks of a class have room, is in a table beside the arena (`chunk`, 0.24 % of the memory it describes). A
//! [`Handle`] names an object and its length in 48 bits, the payload of a page word. New objects go to the fullest
//! chunks that have room, so that others become empty and go back.
//!
//! Neighbours: [`FrameSource`] is the seam to the memory (the pool's arena and budget); the compressed tier and the
//! page words above keep the handles; [`crate::frame`] numbers the frames. What a slot means, and whether its bytes are
//! LZ4 or raw, is not known here.
//!
//! Locks: one a class (`Rank::CompressedClass`), over the class's lists and the table entries of its chunks; one over
//! the few empty chunks that are kept (`Rank::CompressedKept`). No two are ever held together, and [`FrameSource`] is never called under one: its own locks may be of any
//! order. Reading and writing an object takes no lock: its bytes are its owner's.

mod chunk;
mod class;
#[cfg(test)]
mod tests;

use crate::base::{FrameId, PAGE_SIZE};
use crate::lockdep::Rank;
use crate::sync::{RankedGuard, RankedMutex, lock};
use chunk::{ChunkTable, Lists};
use class::{CHUNK_BYTES, CLASSES, OBJECTS_MAX, class_of};
use overspill_os::Errno;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A chunk is `2^3` frames, 32 KiB: 8 objects of the largest class, which bounds the bytes left over at its end, and
/// small enough to come free while neighbours stay; the buddy allocator must find as many frames side by side.
pub const CHUNK_ORDER: u8 = 3;

/// Empty chunks kept for the next store of any class, so that one object that comes and goes does not fill and empty
/// eight frames each time (20 us and more: emptying frames flushes). Cost: up to 128 KiB of budget, taken from
/// the pool's limit; [`CompressedPool::trim`] gives them back.
const KEPT_MAX: usize = 4;

/// Where chunks come from, and how their bytes are reached.
///
/// A chunk given by one thread may be taken by another: what the first did before [`FrameSource::give_chunk`] must
/// happen before what the second does after [`FrameSource::take_chunk`], as it does when one lock guards both.
pub trait FrameSource {
    /// `2^CHUNK_ORDER` contiguous frames, the first at a multiple of their number, memory behind them and charged to
    /// the budget. `None` when there is no room. Called without a lock of the compressed pool.
    fn take_chunk(&self) -> Option<FrameId>;

    /// Takes a chunk back, its content no longer needed. Called without a lock of the compressed pool.
    fn give_chunk(&self, first: FrameId);

    /// Whether the chunk's frames are to leave the arena: it is to take no more objects.
    fn is_leaving(&self, first: FrameId) -> bool;

    /// Copies `data` to `offset` bytes into the chunk. Other threads may at the same time read and write other ranges
    /// of the chunk, never this one.
    fn write(&self, first: FrameId, offset: usize, data: &[u8]);

    /// Copies `out.len()` bytes from `offset` bytes into the chunk. Other threads may at the same time read this
    /// range, and read and write others.
    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]);
}

/// Names a stored object. Whoever holds it owns the object: it alone frees it, once, and nobody may load it later.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// How many low bits of [`Handle::to_bits`] are used.
    pub const BITS: u32 = 48;
    const LEN_BITS: u32 = 12;
    const OBJECT_BITS: u32 = 9;
    const CHUNK_BITS: u32 = Handle::BITS - Handle::OBJECT_BITS - Handle::LEN_BITS;
    /// Chunks that a handle can name: 2^27, an arena of 4 TiB.
    const CHUNKS_MAX: usize = 1 << Handle::CHUNK_BITS;

    fn new(chunk: u32, object: usize, len: usize) -> Handle {
        debug_assert!((chunk as usize) < Handle::CHUNKS_MAX && object < OBJECTS_MAX && (1..=PAGE_SIZE).contains(&len));
        let chunk_and_object = (chunk as u64) << Handle::OBJECT_BITS | object as u64;
        Handle(chunk_and_object << Handle::LEN_BITS | (len - 1) as u64)
    }

    /// Bytes of the object, 1 to 4096.
    pub fn len_bytes(self) -> usize {
        (self.0 & ((1 << Handle::LEN_BITS) - 1)) as usize + 1
    }

    fn object(self) -> usize {
        (self.0 >> Handle::LEN_BITS) as usize & ((1 << Handle::OBJECT_BITS) - 1)
    }

    fn chunk(self) -> u32 {
        (self.0 >> (Handle::LEN_BITS + Handle::OBJECT_BITS)) as u32
    }

    /// The first frame of the chunk that the object lies in.
    pub fn chunk_frame(self) -> FrameId {
        first_frame(self.chunk())
    }

    /// The 48-bit form kept in a page word.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From the 48-bit form.
    pub fn from_bits(bits: u64) -> Handle {
        assert!(bits < 1 << Handle::BITS, "{bits:#x} is no handle");
        Handle(bits)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle(chunk {}, object {}, {} bytes)", self.chunk(), self.object(), self.len_bytes())
    }
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

/// One size class: its lists, and what it holds. On a cache line of its own, as other classes are others' business.
#[repr(align(64))]
struct Class {
    lists: RankedMutex<Lists>,
    /// Written under `lists`, read without.
    objects: AtomicUsize,
    /// Bytes of data in these objects; written under `lists`, read without.
    bytes: AtomicUsize,
}

/// Empty chunks at hand.
struct Kept {
    chunks: [u32; KEPT_MAX],
    len: usize,
}

/// The pool. Shared by all threads; it allocates nothing from the heap after [`CompressedPool::new`].
pub struct CompressedPool {
    table: ChunkTable,
    classes: Box<[Class]>,
    kept: RankedMutex<Kept>,
    /// Chunks that the source has given, the kept ones included, and those being asked for just now.
    chunks: AtomicUsize,
    limit: AtomicUsize,
}

impl CompressedPool {
    /// An empty pool over an arena of `frames_in_arena` frames, which takes at most `chunks_max` chunks.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for the table.
    pub fn new(frames_in_arena: usize, chunks_max: usize) -> Result<CompressedPool, Errno> {
        let chunks = frames_in_arena >> CHUNK_ORDER;
        assert!(chunks <= Handle::CHUNKS_MAX, "handles can name {} chunks, not {chunks}", Handle::CHUNKS_MAX);
        let class = || Class {
            lists: RankedMutex::new(Rank::CompressedClass, Lists::new()),
            objects: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        };
        Ok(CompressedPool {
            table: ChunkTable::new(chunks)?,
            classes: CLASSES.iter().map(|_| class()).collect(),
            kept: RankedMutex::new(Rank::CompressedKept, Kept { chunks: [0; KEPT_MAX], len: 0 }),
            chunks: AtomicUsize::new(0),
            limit: AtomicUsize::new(chunks_max),
        })
    }

    /// Stores `data`, of 1 to 4096 bytes.
    ///
    /// # Errors
    /// [`Full`] when there is no room in the chunks of the class and no chunk to be had.
    pub fn store<S: FrameSource + ?Sized>(&self, source: &S, data: &[u8]) -> Result<Handle, Full> {
        assert!((1..=PAGE_SIZE).contains(&data.len()), "objects have 1 to {PAGE_SIZE} bytes, not {}", data.len());
        let class = class_of(data.len());
        // 1. An object of a chunk that the class has.
        let mut lists = self.lists(class);
        let object = self.table.take_object(&mut lists, class, |chunk| source.is_leaving(first_frame(chunk)));
        let (chunk, object) = match object {
            Some(object) => object,
            None => {
                // 2. Else of a fresh chunk. Room that others made meanwhile is left to the next store: asking again
                // could not be bounded.
                drop(lists);
                let chunk = self.take_chunk(source)?;
                lists = self.lists(class);
                (chunk, self.table.adopt(&mut lists, class, chunk))
            }
        };
        self.count(class, &lists, |objects, bytes| (objects + 1, bytes + data.len()));
        drop(lists);
        // 3. From here on the object is ours, so its bytes need no lock.
        source.write(first_frame(chunk), object * CLASSES[class].bytes, data);
        Ok(Handle::new(chunk, object, data.len()))
    }

    /// Copies the object's bytes to the beginning of `out` and returns how many there are.
    ///
    /// Takes no lock, and runs beside stores and frees of other objects: that this object stays is the promise of the
    /// handle's owner, who neither frees it before this returns, nor lets a load begin before `store` has returned.
    pub fn load<S: FrameSource + ?Sized>(&self, source: &S, handle: Handle, out: &mut [u8; PAGE_SIZE]) -> usize {
        let len = handle.len_bytes();
        let class = class_of(len);
        debug_assert!(self.table.holds(handle.chunk(), class, handle.object()), "{handle:?} is not stored");
        source.read(first_frame(handle.chunk()), handle.object() * CLASSES[class].bytes, &mut out[..len]);
        len
    }

    /// Frees the object, and gives its chunk back when it was the last one there and enough empty chunks are kept.
    ///
    /// # Panics
    /// When no object is there: the handle is stale, or never was one. A stale handle whose place another object has
    /// taken since cannot be told from that one's.
    pub fn free<S: FrameSource + ?Sized>(&self, source: &S, handle: Handle) {
        let class = class_of(handle.len_bytes());
        let mut lists = self.lists(class);
        assert!(self.table.holds(handle.chunk(), class, handle.object()), "{handle:?} freed, but it is not stored");
        let emptied = self.table.put_object(&mut lists, class, handle.chunk(), handle.object());
        self.count(class, &lists, |objects, bytes| (objects - 1, bytes - handle.len_bytes()));
        drop(lists);
        if emptied {
            self.put_chunk(source, handle.chunk());
        }
    }

    /// Sets the most chunks that the pool takes. When it has more now, what is stored stays, and the source is asked for
    /// no more until enough came back.
    pub fn set_limit(&self, chunks_max: usize) {
        self.limit.store(chunks_max, Relaxed);
    }

    /// Gives back the empty chunks that are kept, for when the budget is short or the limit was lowered.
    pub fn trim<S: FrameSource + ?Sized>(&self, source: &S) {
        while let Some(chunk) = self.pop_kept() {
            self.give_chunk(source, chunk);
        }
    }

    /// Whether the pool holds more chunks than its limit, which has been lowered.
    pub fn is_over_limit(&self) -> bool {
        self.chunks.load(Relaxed) > self.limit.load(Relaxed)
    }

    /// Chunks in use, empty ones that are kept included.
    pub fn chunks(&self) -> usize {
        self.chunks.load(Relaxed)
    }

    /// Bytes of frames that the pool occupies.
    pub fn pool_bytes(&self) -> usize {
        self.chunks() * CHUNK_BYTES
    }

    /// Bytes of data stored, as they were given to `store`.
    pub fn stored_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.bytes.load(Relaxed)).sum()
    }

    /// Objects stored.
    pub fn stored_objects(&self) -> usize {
        self.classes.iter().map(|class| class.objects.load(Relaxed)).sum()
    }

    /// Checks every invariant, in time proportional to the arena, for tests and debugging; only while no other thread
    /// uses the pool.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        let mut in_classes = 0;
        for (class, counts) in self.classes.iter().enumerate() {
            let held = self.table.check(&self.lists(class), class);
            assert_eq!(counts.objects.load(Relaxed), held.objects, "objects of class {class}");
            assert!(counts.bytes.load(Relaxed) <= held.objects * CLASSES[class].bytes, "bytes of class {class}");
            in_classes += held.chunks;
        }
        let kept = lock(&self.kept);
        assert!(kept.chunks[..kept.len].iter().all(|chunk| self.table.is_unused(*chunk)), "a kept chunk is in use");
        assert_eq!(self.chunks(), in_classes + kept.len, "chunks in use");
    }

    fn lists(&self, class: usize) -> RankedGuard<'_, Lists> {
        lock(&self.classes[class].lists)
    }

    /// Changes a class's counts; the guard shows that nobody else does.
    fn count(&self, class: usize, _held: &RankedGuard<'_, Lists>, change: impl Fn(usize, usize) -> (usize, usize)) {
        let class = &self.classes[class];
        let (objects, bytes) = change(class.objects.load(Relaxed), class.bytes.load(Relaxed));
        class.objects.store(objects, Relaxed);
        class.bytes.store(bytes, Relaxed);
    }

    /// An empty chunk in no class: a kept one, or one more of the source.
    fn take_chunk<S: FrameSource + ?Sized>(&self, source: &S) -> Result<u32, Full> {
        if let Some(chunk) = self.pop_kept() {
            return Ok(chunk);
        }
        // Counted before it is asked for, so that the limit holds whoever asks at the same time.
        let room = |chunks| (chunks < self.limit.load(Relaxed)).then_some(chunks + 1);
        self.chunks.fetch_update(Relaxed, Relaxed, room).map_err(|_| Full)?;
        let Some(first) = source.take_chunk() else {
            self.chunks.fetch_sub(1, Relaxed);
            return Err(Full);
        };
        assert!(first.0.is_multiple_of(1 << CHUNK_ORDER), "chunk at frame {}: not aligned", first.0);
        Ok(first.0 >> CHUNK_ORDER)
    }

    /// Takes an empty chunk out of circulation: kept while few are and the limit allows it, else given back.
    fn put_chunk<S: FrameSource + ?Sized>(&self, source: &S, chunk: u32) {
        if self.chunks() <= self.limit.load(Relaxed) && !source.is_leaving(first_frame(chunk)) {
            let mut kept = lock(&self.kept);
            if kept.len < KEPT_MAX {
                let len = kept.len;
                kept.chunks[len] = chunk;
                kept.len += 1;
                return;
            }
        }
        self.give_chunk(source, chunk);
    }

    fn pop_kept(&self) -> Option<u32> {
        let mut kept = lock(&self.kept);
        kept.len = kept.len.checked_sub(1)?;
        Some(kept.chunks[kept.len])
    }

    fn give_chunk<S: FrameSource + ?Sized>(&self, source: &S, chunk: u32) {
        source.give_chunk(first_frame(chunk));
        self.chunks.fetch_sub(1, Relaxed);
    }
}

fn first_frame(chunk: u32) -> FrameId {
    FrameId(chunk << CHUNK_ORDER)
}
