//! Objects that move while their owners load and free them, in interleavings that a checker
//! explores.
//!
//! Checked: an owner reads what it stored last; no memory is touched that the pool does not have;
//! at the end no object is lost, and all memory comes back. A [`Bug`] is a mistake in the pool's
//! own steps, which must be found.

use super::tests::{FakeSource, content};
use super::{FrameSource, Handle, Zpool};
use crate::base::explore::{finds_each, finds_nothing};
use crate::base::seeded::Bug;
use crate::base::sync::{Atomic, Backoff, point};
use crate::units::{FrameId, PAGE_SIZE};
use shuttle::rand::{Rng, thread_rng};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const OWNERS: usize = 2;
/// Objects that nobody uses, so that those of owners lie beside others.
const OTHERS: u64 = 2;
const FRAMES: usize = 128;
/// In an owner's word: its object is in use just now.
const BUSY: u64 = 1 << 63;

/// Memory that takes its time: others run between any two accesses.
struct SlowSource(FakeSource);

impl FrameSource for SlowSource {
    fn take_chunk(&self, order: u8) -> Option<FrameId> {
        self.0.take_chunk(order)
    }
    fn give_chunks(&self, chunks: &[(FrameId, u8)]) {
        self.0.give_chunks(chunks);
    }
    fn leaving(&self) -> Vec<Range<u32>> {
        self.0.leaving()
    }
    fn is_leaving(&self, first: FrameId) -> bool {
        self.0.is_leaving(first)
    }
    fn write(&self, first: FrameId, offset: usize, data: &[u8]) {
        for (at, piece) in data.chunks(PAGE_SIZE / 4).enumerate() {
            point();
            self.0.write(first, offset + at * (PAGE_SIZE / 4), piece);
        }
    }
    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]) {
        for (at, piece) in out.chunks_mut(PAGE_SIZE / 4).enumerate() {
            point();
            self.0.read(first, offset + at * (PAGE_SIZE / 4), piece);
        }
    }
}

struct Machine {
    pool: Zpool,
    source: SlowSource,
    /// The handle of each owner's object, 0 for none.
    index: [AtomicU64; OWNERS],
}

/// Objects of the class with the fewest to a chunk.
fn object(owner: u64, version: u64) -> Vec<u8> {
    content(owner << 32 | version, PAGE_SIZE)
}

impl Machine {
    fn new() -> Machine {
        let source = FakeSource::new(FRAMES, FRAMES);
        let pool = source.pool(FRAMES);
        Machine { pool, source: SlowSource(source), index: Default::default() }
    }

    fn store(&self, owner: u64, version: u64) -> Handle {
        self.pool.store(&self.source, owner, &object(owner, version)).expect("there is room")
    }

    fn check(&self, handle: Handle, owner: u64, version: u64) {
        let mut out = [0; PAGE_SIZE];
        let loaded = self.pool.load(&self.source, handle, &mut out);
        assert_eq!(loaded, Ok(PAGE_SIZE));
        assert!(out[..] == object(owner, version), "not what was stored");
    }

    /// As an owner does that loads its object, and gives it up if `free`.
    fn load(&self, owner: usize, version: u64, free: bool) {
        let word = &self.index[owner];
        let mut handle = Atomic::load(word, SeqCst);
        while let Err(now) =
            Atomic::compare_exchange_weak(word, handle, handle | BUSY, SeqCst, SeqCst)
        {
            handle = now;
        }
        self.check(Handle::from_bits(handle), owner as u64, version);
        if free {
            self.pool.free(&self.source, Handle::from_bits(handle));
        }
        Atomic::store(word, if free { 0 } else { handle }, SeqCst);
    }

    /// Stores, loads and frees, with pauses as a program makes that does something else.
    fn own(&self, owner: usize) {
        for version in 1..=3 {
            let handle = self.store(owner as u64, version);
            Atomic::store(&self.index[owner], handle.to_bits(), SeqCst);
            let mut pause = Backoff::default();
            (0..thread_rng().gen_range(0..40)).for_each(|_| pause.wait());
            if thread_rng().gen_bool(0.5) {
                self.load(owner, version, false);
            }
            self.load(owner, version, true);
        }
    }

    /// Moves what there is.
    fn compact(&self) {
        self.pool.stir(&self.source, &mut |owner, old, new| {
            let word = self.index.get(owner as usize);
            word.is_some_and(|word| {
                let (old, new) = (old.to_bits(), new.to_bits());
                Atomic::compare_exchange_weak(word, old, new, SeqCst, SeqCst).is_ok()
            })
        });
    }
}

fn scenario() {
    let machine = Arc::new(Machine::new());
    let others =
        (OWNERS as u64..OWNERS as u64 + OTHERS).map(|owner| (owner, machine.store(owner, 0)));
    let others: Vec<_> = others.collect();
    let mut threads: Vec<_> = (0..OWNERS)
        .map(|owner| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || machine.own(owner))
        })
        .collect();
    threads.extend((0..2).map(|_| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || (0..6).for_each(|_| machine.compact()))
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for (owner, handle) in others {
        machine.check(handle, owner, 0);
        machine.pool.free(&machine.source, handle);
    }
    machine.pool.check();
    assert_eq!(machine.pool.stored_objects(), 0, "an object is lost");
    machine.pool.trim(&machine.source);
    assert_eq!((machine.pool.frames(), machine.source.0.given()), (0, 0), "chunks are lost");
}

const SCHEDULES: usize = 1_000;

#[test]
fn no_interleaving_moves_an_object_that_is_not_the_owners() {
    finds_nothing(SCHEDULES, scenario);
}

#[test]
fn mistakes_in_moving_are_found() {
    let bugs = [Bug::ChunkNotPinned, Bug::PinnedWhileWritten, Bug::MovedUnagreed];
    finds_each(&bugs, SCHEDULES, scenario);
}
