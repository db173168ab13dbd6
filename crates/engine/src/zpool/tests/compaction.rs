//! Compaction and evacuation, beside everything else.

use super::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

#[test]
fn objects_leave_chunks_whose_frames_leave_the_arena() {
    let source = FakeSource::new(4096, 4096);
    let pool = source.pool(4096);
    // The low part of the arena is taken, so that the pool begins in the other one.
    let ballast: Vec<_> =
        (0..4).map(|_| source.frames.alloc(9, Mobility::Movable, Need::Over).unwrap()).collect();
    let mut model = Model::default();
    (0..400).for_each(|i| model.store(&pool, &source, 900 + i % 300, 4096));
    ballast.into_iter().for_each(|block| source.frames.free(block, 9));
    source.frames.resize(1024, |_| Ok::<_, ()>(())).unwrap();
    let left = |model: &Model| {
        model.objects.iter().filter(|(_, h, _)| source.is_leaving(h.chunk_frame())).count()
    };
    assert_eq!(left(&model), 400);
    // Bounded, and again until nothing is left; one in eight owners refuses.
    assert_eq!(pool.evacuate(&source, 10, &mut model.moved(7)).copied, 10);
    let mut calls = 0;
    while pool.evacuate(&source, 100, &mut model.moved(7)) != Compacted::default() {
        calls += 1;
        pool.check();
    }
    assert!((4..40).contains(&calls), "{calls} calls");
    assert_eq!(left(&model), 0);
    pool.trim(&source);
    source.frames.give_up_surplus(|_| {});
    assert!(!source.frames.has_surplus());
    while !model.objects.is_empty() {
        model.free(&pool, &source, 0);
    }
}

#[test]
fn a_chunk_that_stays_after_all_takes_objects_again() {
    let source = FakeSource::new(4096, 4096);
    let pool = source.pool(4096);
    let ballast: Vec<_> =
        (0..4).map(|_| source.frames.alloc(9, Mobility::Movable, Need::Over).unwrap()).collect();
    let handles = [1, 2, 3].map(|owner| pool.store(&source, owner, &[1; 1000]).unwrap());
    ballast.into_iter().for_each(|block| source.frames.free(block, 9));
    source.frames.resize(1024, |_| Ok::<_, ()>(())).unwrap();
    let elsewhere = pool.store(&source, 4, &[1; 1000]).unwrap();
    assert_ne!(elsewhere.chunk(), handles[0].chunk());
    source.frames.resize(4096, |_| Ok::<_, ()>(())).unwrap();
    pool.free(&source, handles[0]);
    let again = pool.store(&source, 5, &[1; 1000]).unwrap();
    assert_eq!(again.chunk(), handles[0].chunk());
    pool.check();
}

#[test]
fn a_chunk_with_an_object_that_cannot_move_does_not_stop_the_others() {
    let source = FakeSource::new(4096, 4096);
    let pool = source.pool(4096);
    let n = CLASSES[class_of(1000)].objects;
    let mut model = Model::default();
    (0..40 * n).for_each(|_| model.store(&pool, &source, 1000, 4096));
    // Three objects are left of each chunk.
    let owners: Vec<u64> = model.objects.iter().map(|(owner, ..)| *owner).collect();
    for (i, owner) in owners.iter().enumerate().filter(|(i, _)| i % n >= 3) {
        let at =
            model.objects.iter().position(|(of, ..)| of == owner).unwrap_or_else(|| panic!("{i}"));
        model.free(&pool, &source, at);
    }
    let locked = model.objects[0].0;
    let frames = pool.frames();
    let mut moved = 0;
    for _ in 0..200 {
        let mut agree = model.moved(u64::MAX - 1);
        let done = pool
            .compact(&source, 16, &mut |owner, old, new| owner != locked && agree(owner, old, new));
        moved += done.moved;
    }
    pool.check();
    pool.trim(&source);
    assert!(moved <= 3 * 40, "{moved} objects moved: back and forth");
    assert!(pool.frames() * 4 < frames, "{} frames left of {frames}", pool.frames());
    assert_eq!(pool.compactable_frames(), 0);
}

/// Owners that store, load and free while others compact and the arena shrinks.
struct SideBySide {
    source: FakeSource,
    pool: Zpool,
    /// A word for each owner: 0, or the handle.
    index: Vec<AtomicU64>,
    /// Threads of owners that have ended.
    ended: AtomicUsize,
    moves: AtomicUsize,
}

impl SideBySide {
    const OWNERS: usize = 3000;
    /// Of a word of the index: somebody is loading or freeing the object.
    const BUSY: u64 = 1 << 63;
    const THREADS: usize = 3;
    /// Each owner goes on for so many rounds, and on a busy machine longer, until so many objects
    /// were moved.
    const ROUNDS: u64 = 20_000;
    const ROUNDS_MAX: u64 = 1_000_000;
    const MOVES: usize = 500;

    fn new() -> SideBySide {
        let source = FakeSource::new(8192, 8192);
        SideBySide {
            pool: source.pool(8192),
            source,
            index: (0..Self::OWNERS).map(|_| AtomicU64::new(0)).collect(),
            ended: AtomicUsize::new(0),
            moves: AtomicUsize::new(0),
        }
    }

    /// What a thread of owners does: nobody ever reads anything but what was stored last.
    fn own(&self, thread: usize) {
        let mut random = Random(thread as u64 + 1);
        let mut versions = vec![None; Self::OWNERS];
        for round in 0..Self::ROUNDS_MAX {
            if round > Self::ROUNDS && self.moves.load(Relaxed) > Self::MOVES {
                break;
            }
            // Each owner is one thread's.
            let owner = random.below(Self::OWNERS / Self::THREADS) * Self::THREADS + thread;
            let word = &self.index[owner];
            let seed = |round: u64| (owner as u64) << 32 | round;
            let free = random.below(2) == 0;
            if let Some((version, len)) = versions[owner] {
                let handle = Handle::from_bits(word.fetch_or(Self::BUSY, Acquire));
                verify(&self.pool, &self.source, handle, &content(seed(version), len));
                if free {
                    self.pool.free(&self.source, handle);
                    versions[owner] = None;
                }
                word.store(if free { 0 } else { handle.to_bits() }, Release);
            } else {
                let len = random.stored_len();
                let data = content(seed(round), len);
                let handle = self.pool.store(&self.source, owner as u64, &data).unwrap();
                word.store(handle.to_bits(), Release);
                versions[owner] = Some((round, len));
            }
        }
        self.ended.fetch_add(1, Relaxed);
    }

    /// What a compactor does until all owners have ended; one of them resizes the arena too.
    fn compact(&self, compactor: u64) {
        let mut moved = |owner: u64, old: Handle, new: Handle| {
            self.index[owner as usize]
                .compare_exchange(old.to_bits(), new.to_bits(), AcqRel, Relaxed)
                .is_ok()
        };
        let (source, pool) = (&self.source, &self.pool);
        let mut random = Random(77 + compactor);
        while self.ended.load(Relaxed) < Self::THREADS {
            let done = pool.compact(source, 1 + random.below(200), &mut moved);
            self.moves.fetch_add(done.moved, Relaxed);
            if compactor == 0 {
                let frames = [1024, 8192][random.below(2)];
                source.frames.resize(frames, |_| Ok::<_, ()>(())).unwrap();
                let done = pool.evacuate(source, 100, &mut moved);
                self.moves.fetch_add(done.moved, Relaxed);
                pool.trim(source);
                source.frames.give_up_surplus(|_| {});
            }
            std::thread::yield_now();
        }
    }

    /// Every object is still its owner's, and nothing else is there.
    fn finish(self) {
        let (source, pool, moves) = (&self.source, &self.pool, self.moves.load(Relaxed));
        pool.check();
        assert!(moves > Self::MOVES, "{moves} moves: the test lost its subject");
        for word in self.index.iter().filter(|word| word.load(Relaxed) != 0) {
            pool.free(source, Handle::from_bits(word.load(Relaxed)));
        }
        pool.trim(source);
        assert_eq!((pool.frames(), pool.stored_objects(), source.frames.used()), (0, 0, 0));
    }
}

#[test]
fn owners_and_compactors_run_side_by_side() {
    let all = SideBySide::new();
    std::thread::scope(|scope| {
        let all = &all;
        (0..SideBySide::THREADS).for_each(|thread| drop(scope.spawn(move || all.own(thread))));
        (0..2).for_each(|compactor| drop(scope.spawn(move || all.compact(compactor))));
    });
    all.finish();
}
