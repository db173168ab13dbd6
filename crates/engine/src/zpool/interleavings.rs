//! Objects that move while their owners load and free them, in interleavings that a checker
//! explores.
//!
//! The table of chunks is the pool's own ([`ChunkTable`]), on words that the checker watches; the
//! lock of the class is the checker's. A place holds two words in place of bytes, so that a mixture
//! of two objects is seen. The steps of an actor are those of the method of
//! [`super::Zpool`] named with it, in the same order; who changes one changes the other.
//!
//! Checked: an owner reads what it stored last; a place that is written is nobody else's; at the
//! end no object is lost. A [`Bug`] is a wrong order of steps that must be found, which shows that
//! mistakes can be.

use super::chunk::{Cells, ChunkLists, ChunkTable};
use super::class::{CLASSES, OBJECTS_MAX};
use crate::base::explore::{finds_each, finds_nothing};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

type Word = shuttle::sync::atomic::AtomicU64;

impl Cells for Box<[Word]> {
    type Word = Word;
}

const OWNERS: usize = 2;
const CHUNKS: u32 = 8;
/// The class of the longest objects, which has the fewest to a chunk.
const CLASS: usize = 0;
/// In an owner's word: its object is in use just now.
const BUSY: u64 = 1 << 63;

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// A chunk that is compacted is not pinned: it hands out places, and goes back, meanwhile.
    NotPinned,
    /// A chunk is pinned while an object in it is being written.
    WrittenMeanwhile,
    /// The old object is freed before its owner has agreed.
    FreedTooEarly,
}

struct Machine {
    bug: Option<Bug>,
    table: ChunkTable<Box<[Word]>>,
    lists: Mutex<ChunkLists>,
    /// Two words for each place of each chunk: the owner and the version of the object there.
    memory: Box<[[Word; 2]]>,
    /// Chunks of no class.
    free: Mutex<Vec<u32>>,
    /// The handle of each owner's object, 0 for none.
    index: [Word; OWNERS],
}

/// A handle that is not 0.
fn handle((chunk, object): (u32, usize)) -> u64 {
    1 + u64::from(chunk) * OBJECTS_MAX as u64 + object as u64
}

fn place(handle: u64) -> (u32, usize) {
    (((handle - 1) / OBJECTS_MAX as u64) as u32, (handle - 1) as usize % OBJECTS_MAX)
}

/// Copying a page takes as long as many steps of others, and an owner does not use its page all the
/// time.
fn pause() {
    (0..thread_rng().gen_range(0..40)).for_each(|_| shuttle::thread::yield_now());
}

impl Machine {
    fn new(bug: Option<Bug>) -> Machine {
        let cells: Box<[Word]> =
            (0..CHUNKS as usize * super::chunk::CELLS).map(|_| Word::new(0)).collect();
        let memory =
            (0..CHUNKS as usize * CLASSES[CLASS].objects).map(|_| Default::default()).collect();
        let (lists, free) = (Mutex::new(ChunkLists::new()), Mutex::new((0..CHUNKS).collect()));
        Machine {
            bug,
            table: ChunkTable::over(cells),
            lists,
            memory,
            free,
            index: Default::default(),
        }
    }

    fn memory(&self, (chunk, object): (u32, usize)) -> &[Word; 2] {
        &self.memory[chunk as usize * CLASSES[CLASS].objects + object]
    }

    /// `take_place`
    fn take(&self, fresh: bool) -> Option<(u32, usize)> {
        let taken = self.table.take_object(&mut self.lists.lock().unwrap(), CLASS, |_| false);
        if taken.is_some() || !fresh {
            return taken;
        }
        let chunk = self.free.lock().unwrap().pop().expect("there are chunks enough");
        Some((chunk, self.table.adopt(&mut self.lists.lock().unwrap(), CLASS, chunk)))
    }

    fn write(&self, place: (u32, usize), object: [u64; 2]) {
        self.memory(place).iter().zip(object).for_each(|(word, value)| word.store(value, SeqCst));
        self.table.written(place.0);
    }

    fn read(&self, place: (u32, usize)) -> [u64; 2] {
        self.memory(place).each_ref().map(|word| word.load(SeqCst))
    }

    /// `free`
    fn free(&self, (chunk, object): (u32, usize)) {
        let mut lists = self.lists.lock().unwrap();
        assert!(self.table.holds(chunk, CLASS, object), "freed twice");
        let emptied = self.table.put_object(&mut lists, chunk, object, |_| false);
        drop(lists);
        self.put_chunk(emptied, chunk);
    }

    /// `put_chunk`: the chunk goes back, and what is in it is gone.
    fn put_chunk(&self, emptied: bool, chunk: u32) {
        if emptied {
            (0..CLASSES[CLASS].objects)
                .for_each(|object| self.memory((chunk, object))[1].store(0, SeqCst));
            self.free.lock().unwrap().push(chunk);
        }
    }

    /// `store`, and the owner makes its handle known.
    fn store(&self, owner: usize, version: u64) {
        let place = self.take(true).expect("a fresh chunk is to be had");
        pause();
        self.write(place, [owner as u64, version]);
        self.index[owner].store(handle(place), SeqCst);
    }

    /// As an owner does that loads its object, and gives it up if `free`.
    fn load(&self, owner: usize, version: u64, free: bool) {
        pause();
        let word = self.index[owner].fetch_or(BUSY, SeqCst);
        assert_eq!(self.read(place(word)), [owner as u64, version], "not what was stored");
        if free {
            self.free(place(word));
        }
        self.index[owner].store(if free { 0 } else { word }, SeqCst);
    }

    /// `compact` with `empty_chunk`
    fn compact(&self, chunk: u32) {
        let mut lists = self.lists.lock().unwrap();
        let pinned = match self.bug {
            _ if self.table.class(chunk).is_none() => false,
            Some(Bug::NotPinned) => true,
            Some(Bug::WrittenMeanwhile) => self.table.pin_any(&mut lists, chunk),
            _ => self.table.pin(&mut lists, chunk),
        };
        drop(lists);
        if !pinned {
            return;
        }
        for object in self.table.objects(chunk) {
            let old = (chunk, object);
            let [owner, _] = self.read(old);
            let Some(new) = self.take(false) else { break };
            self.write(new, self.read(old));
            if self.bug == Some(Bug::FreedTooEarly)
                && self.index[owner as usize].load(SeqCst) == handle(old)
            {
                self.free(old);
            }
            let word = &self.index[owner as usize];
            let agrees = word.compare_exchange(handle(old), handle(new), SeqCst, SeqCst).is_ok();
            match (agrees, self.bug) {
                (true, Some(Bug::FreedTooEarly)) => {}
                (true, _) => self.free(old),
                (false, _) => self.free(new),
            }
        }
        if self.bug != Some(Bug::NotPinned) {
            let mut lists = self.lists.lock().unwrap();
            let emptied = self.table.unpin(&mut lists, chunk, false);
            drop(lists);
            self.put_chunk(emptied, chunk);
        }
    }
}

fn scenario(bug: Option<Bug>) {
    let machine = Arc::new(Machine::new(bug));
    // Two chunks with an object each that nobody moves, so that there is always one to move to.
    // Other objects of the first one lie before it, and are come upon at once.
    let n = CLASSES[CLASS].objects;
    let mut others: Vec<_> = (0..=n).map(|_| machine.take(true).unwrap()).collect();
    others.iter().for_each(|place| machine.write(*place, [0, u64::MAX]));
    let kept = others.split_off(n - 1);
    others.into_iter().for_each(|place| machine.free(place));
    let chunks = [kept[0].0, kept[1].0];
    assert_ne!(chunks[0], chunks[1]);
    let mut threads: Vec<_> = (0..OWNERS)
        .map(|owner| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || {
                for version in 1..=2 {
                    machine.store(owner, version);
                    if thread_rng().gen_range(0..2) == 0 {
                        machine.load(owner, version, false);
                    }
                    machine.load(owner, version, true);
                }
            })
        })
        .collect();
    threads.extend((0..2).map(|_| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || {
            for _ in 0..4 {
                machine.compact(chunks[thread_rng().gen_range(0..2)]);
            }
        })
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for place in kept {
        assert_eq!(machine.read(place), [0, u64::MAX], "an object that nobody moved");
        machine.free(place);
    }
    let held =
        machine.table.check(&machine.lists.lock().unwrap(), CLASS, &machine.table.chunks_in_use());
    assert_eq!((held.chunks, held.objects), (0, 0), "objects or chunks are lost");
    let mut free = machine.free.lock().unwrap().clone();
    free.sort_unstable();
    assert!(free.into_iter().eq(0..CHUNKS), "chunks are lost");
}

const SCHEDULES: usize = 1_000;

#[test]
fn no_interleaving_moves_an_object_that_is_not_the_owners() {
    finds_nothing(SCHEDULES, scenario);
}

#[test]
fn the_model_finds_every_seeded_bug() {
    finds_each(&[Bug::NotPinned, Bug::WrittenMeanwhile, Bug::FreedTooEarly], SCHEDULES, scenario);
}
