//! Compaction: objects of chunks that are nearly empty move to others with room, so that frames
//! come back; and all objects of chunks whose frames leave the arena move elsewhere.
//!
//! An object moves while its owner may load it, free it, or do neither. The protocol:
//!
//! 1. Pin the chunk, under its class's lock. Only a chunk is pinned in which nobody is writing an
//!    object just then, so every object in it is complete. From now on the chunk hands out no
//!    place, and is not given back even when it becomes empty: what lies in a place of it stays,
//!    also after the object is freed, and no handle of it is given out anew.
//! 2. For each object: read the trailer, which names the owner; take a place in another chunk;
//!    copy. No lock is held, and nothing else touches the new place.
//! 3. Ask the owner (`moved`, called without a lock of the pool): it replaces the old handle by the
//!    new one if it still has the old one, and nobody is loading or freeing the object just then;
//!    else it says no. It decides at one point in time, by a compare-and-swap on the word that
//!    holds the handle. Because the old handle cannot have been given out anew, a word that holds
//!    it has held it since before the copy was made, and the copy is of that very object.
//! 4. Yes: nobody will use the old handle any more, so the old object is freed here. No: nobody has
//!    seen the new handle, so the new copy is freed.
//! 5. Unpin; a chunk without objects goes back.
//!
//! Two compactors may meet: where one has copied an object, the other may pin the chunk of the copy
//! and copy on. Of such a chain only the copy that the owner has agreed to is left.
//!
//! Like stores, all this runs inside the gate of reclaim, which a fork closes: a child would have
//! to unpin.

use super::class::{CLASSES, ORDER_MIN, TRAILER_BYTES, class_of};
use super::trailer::Trailer;
use super::{BEYOND_FRAMES, Chunks, FrameSource, Handle, ObjectPlace, Zpool, first_frame};
use crate::base::seeded::{Bug, is_seeded};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes copied at a time: on the stack, which is short in a signal handler.
const PIECE_BYTES: usize = 512;

/// Asks the owner (48 bits as given to `store`) to replace the first handle by the second. False:
/// it has another one by now, or the object is in use. Memory may be damaged, so an owner that
/// never was must be answered too: with false.
pub type Relocate<'a> = dyn FnMut(u64, Handle, Handle) -> bool + 'a;

/// What a compactor did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compacted {
    /// Objects that were copied, whether or not their owners agreed.
    pub copied: usize,
    /// Objects that moved.
    pub moved: usize,
    /// Chunks from which something could not be moved now: no room elsewhere, in use, or others
    /// were at work there.
    pub stuck: usize,
}

impl Compacted {
    fn add(&mut self, other: Compacted) {
        self.copied += other.copied;
        self.moved += other.moved;
        self.stuck += other.stuck;
    }
}

impl Zpool {
    /// Frames that would come back if objects were moved together: for each class, whole chunks'
    /// worth of free places.
    pub fn compactable_frames(&self) -> usize {
        let frames = |(class, counts): (_, &super::Class)| {
            let class: &super::class::SizeClass = class;
            counts.room.load(Relaxed) / class.objects * class.chunk_frames()
        };
        CLASSES.iter().zip(&self.classes).map(frames).sum()
    }

    /// Moves objects out of the emptiest chunks of each class into others with room, where that
    /// frees chunks. Copies at most `objects_max` objects, and goes on where it stopped the next
    /// time.
    pub fn compact<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        objects_max: usize,
        moved: &mut Relocate<'_>,
    ) -> Compacted {
        let mut done = Compacted::default();
        for _ in 0..CLASSES.len() {
            let class = self.compacted.load(Relaxed) % CLASSES.len();
            while self.classes[class].room.load(Relaxed) >= CLASSES[class].objects {
                if done.copied >= objects_max {
                    return done;
                }
                let mut lists = self.lists(class);
                let Some(chunk) = self.table.pin_emptiest(&mut lists, class) else { break };
                self.count(class, &lists, |objects, bytes| (objects, bytes));
                drop(lists);
                let one = self.empty_chunk(
                    source,
                    class,
                    chunk,
                    objects_max - done.copied,
                    Chunks::AtHand,
                    moved,
                );
                done.add(one);
                if one.stuck > 0 {
                    break;
                }
            }
            self.compacted.store(class + 1, Relaxed);
        }
        done
    }

    /// Moves objects out of chunks whose frames are to leave the arena
    /// ([`FrameSource::is_leaving`]) into any others. Copies at most `objects_max` objects. When
    /// the result has nothing stuck and fewer copies than that, no such chunk is left.
    pub fn evacuate<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        objects_max: usize,
        moved: &mut Relocate<'_>,
    ) -> Compacted {
        let mut done = Compacted::default();
        let chunks = |frames: Range<u32>| frames.start >> ORDER_MIN..frames.end >> ORDER_MIN;
        for chunk in source.leaving().into_iter().flat_map(chunks) {
            if done.copied >= objects_max {
                break;
            }
            if !source.is_leaving(first_frame(chunk)) {
                continue;
            }
            let Some(class) = self.table.class(chunk) else { continue };
            let mut lists = self.lists(class);
            if self.table.class(chunk) != Some(class) {
                // It has come back meanwhile, and whose it is now was taken a moment ago.
                continue;
            }
            let pinned = self.table.pin(&mut lists, chunk);
            self.count(class, &lists, |objects, bytes| (objects, bytes));
            drop(lists);
            match pinned {
                true => {
                    done.add(self.empty_chunk(
                        source,
                        class,
                        chunk,
                        objects_max - done.copied,
                        // At its limit, too: what is emptied comes back.
                        Chunks::Fresh { beyond: BEYOND_FRAMES },
                        moved,
                    ));
                }
                false => done.stuck += 1,
            }
        }
        done
    }

    /// Moves all objects elsewhere, for models: there are too few to be worth it.
    #[cfg(test)]
    pub fn stir<S: FrameSource + ?Sized>(&self, source: &S, moved: &mut Relocate<'_>) {
        for class in
            (0..CLASSES.len()).filter(|class| self.classes[*class].objects.load(Relaxed) > 0)
        {
            let mut lists = self.lists(class);
            let Some(chunk) = self.table.pin_first(&mut lists) else { continue };
            self.count(class, &lists, |objects, bytes| (objects, bytes));
            drop(lists);
            let fresh = Chunks::Fresh { beyond: BEYOND_FRAMES };
            self.empty_chunk(source, class, chunk, usize::MAX, fresh, moved);
        }
    }

    /// Moves the objects of a pinned chunk, and unpins it.
    fn empty_chunk<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        class: usize,
        chunk: u32,
        objects_max: usize,
        chunks: Chunks,
        moved: &mut Relocate<'_>,
    ) -> Compacted {
        let mut done = Compacted::default();
        let mut stuck = false;
        for object in self.table.objects(chunk) {
            if done.copied == objects_max {
                break;
            }
            let from = ObjectPlace { class, chunk, object };
            let Some((owner, old, new)) = self.copy_object(source, from, chunks) else {
                stuck = true;
                continue;
            };
            done.copied += 1;
            match moved(owner, old, new) || is_seeded(Bug::MovedUnagreed) {
                true => {
                    self.free(source, old);
                    done.moved += 1;
                }
                false => {
                    self.free(source, new);
                    // Unless that was because its owner has freed it.
                    stuck |= self.table.holds(chunk, class, object);
                }
            }
        }
        done.stuck = usize::from(stuck);
        let mut lists = self.lists(class);
        let emptied = self.table.unpin(&mut lists, chunk, stuck);
        self.count(class, &lists, |objects, bytes| (objects, bytes));
        drop(lists);
        if emptied {
            self.put_chunk(source, class, chunk);
        }
        done
    }

    /// Copies an object of a pinned chunk to another place; its owner, its handle, and that of the
    /// copy.
    fn copy_object<S: FrameSource + ?Sized>(
        &self,
        source: &S,
        from: ObjectPlace,
        chunks: Chunks,
    ) -> Option<(u64, Handle, Handle)> {
        let mut bytes = [0; TRAILER_BYTES];
        source.read(from.first_frame(), from.trailer(), &mut bytes);
        let trailer = Trailer::from_bytes(bytes);
        // One that is longer than its place was damaged: it stays where its reader will find that.
        let len =
            trailer.len_bytes().filter(|len| CLASSES[from.class].bytes >= len + TRAILER_BYTES)?;
        let to = self.take_place(
            source,
            if chunks != Chunks::AtHand { class_of(len) } else { from.class },
            len,
            chunks,
        )?;
        let mut piece = [0; PIECE_BYTES];
        for at in (0..len).step_by(PIECE_BYTES) {
            let piece = &mut piece[..(len - at).min(PIECE_BYTES)];
            source.read(from.first_frame(), from.data() + at, piece);
            source.write(to.first_frame(), to.data() + at, piece);
        }
        source.write(to.first_frame(), to.trailer(), &bytes);
        self.table.written(to.chunk);
        let handle = |place: ObjectPlace| Handle::new(place.chunk, place.object, len);
        Some((trailer.owner(), handle(from), handle(to)))
    }
}
