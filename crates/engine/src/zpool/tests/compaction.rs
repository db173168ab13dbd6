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

/// Owners that store, load and free while others compact and the arena shrinks: nobody ever reads
/// anything but what was stored last.
#[test]
fn owners_and_compactors_run_side_by_side() {
    const OWNERS: usize = 3000;
    /// Of a word of the index: somebody is loading or freeing the object.
    const BUSY: u64 = 1 << 63;
    const THREADS: usize = 3;
    /// Each owner goes on for so many rounds, and on a busy machine longer, until so many objects
    /// were moved.
    const ROUNDS: u64 = 20_000;
    const ROUNDS_MAX: u64 = 1_000_000;
    const MOVES: usize = 500;
    let source = FakeSource::new(8192, 8192);
    let pool = source.pool(8192);
    // A word for each owner: 0, or the handle.
    let index: Vec<AtomicU64> = (0..OWNERS).map(|_| AtomicU64::new(0)).collect();
    let ended = AtomicUsize::new(0);
    let moves = AtomicUsize::new(0);
    let moved = |owner: u64, old: Handle, new: Handle| {
        index[owner as usize]
            .compare_exchange(old.to_bits(), new.to_bits(), AcqRel, Relaxed)
            .is_ok()
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (source, pool, index, ended, moves) = (&source, &pool, &index, &ended, &moves);
            scope.spawn(move || {
                let mut random = Random(thread as u64 + 1);
                let mut versions = vec![None; OWNERS];
                for round in 0..ROUNDS_MAX {
                    if round > ROUNDS && moves.load(Relaxed) > MOVES {
                        break;
                    }
                    // Each owner is one thread's.
                    let owner = random.below(OWNERS / THREADS) * THREADS + thread;
                    let word = &index[owner];
                    let seed = |round: u64| (owner as u64) << 32 | round;
                    let free = random.below(2) == 0;
                    if let Some((version, len)) = versions[owner] {
                        let handle = Handle::from_bits(word.fetch_or(BUSY, Acquire));
                        verify(pool, source, handle, &content(seed(version), len));
                        if free {
                            pool.free(source, handle);
                            versions[owner] = None;
                        }
                        word.store(if free { 0 } else { handle.to_bits() }, Release);
                    } else {
                        let len = random.stored_len();
                        let handle =
                            pool.store(source, owner as u64, &content(seed(round), len)).unwrap();
                        word.store(handle.to_bits(), Release);
                        versions[owner] = Some((round, len));
                    }
                }
                ended.fetch_add(1, Relaxed);
            });
        }
        for compactor in 0..2 {
            let (source, pool, ended, moves, mut moved) = (&source, &pool, &ended, &moves, &moved);
            scope.spawn(move || {
                let mut random = Random(77 + compactor);
                while ended.load(Relaxed) < THREADS {
                    let done = pool.compact(source, 1 + random.below(200), &mut moved);
                    moves.fetch_add(done.moved, Relaxed);
                    if compactor == 0 {
                        source
                            .frames
                            .resize([1024, 8192][random.below(2)], |_| Ok::<_, ()>(()))
                            .unwrap();
                        let done = pool.evacuate(source, 100, &mut moved);
                        moves.fetch_add(done.moved, Relaxed);
                        pool.trim(source);
                        source.frames.give_up_surplus(|_| {});
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
    pool.check();
    assert!(
        moves.load(Relaxed) > MOVES,
        "{} moves: the test lost its subject",
        moves.load(Relaxed)
    );
    for word in index.iter().filter(|word| word.load(Relaxed) != 0) {
        pool.free(&source, Handle::from_bits(word.load(Relaxed)));
    }
    pool.trim(&source);
    assert_eq!((pool.frames(), pool.stored_objects(), source.frames.used()), (0, 0, 0));
}
