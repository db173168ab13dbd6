//! The pool against a model that keeps every object's bytes, on memory that knows which chunks it has given.

use super::*;
use crate::frame::{FrameAllocator, FrameSettings, Mobility, Need};
use crate::stats::Stats;
use overspill_os::cpu::Topology;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

/// Chunks of plain memory; panics when a chunk is touched that the pool does not have.
struct FakeSource {
    frames: FrameAllocator,
    memory: Vec<Mutex<Box<[u8]>>>,
    present: Vec<AtomicBool>,
    given: AtomicUsize,
    given_max: AtomicUsize,
    budget: usize,
}

impl FakeSource {
    fn new(chunks: usize, budget: usize) -> FakeSource {
        FakeSource {
            frames: arena(chunks << CHUNK_ORDER),
            memory: (0..chunks).map(|_| Mutex::new(vec![0xDD; CHUNK_BYTES].into())).collect(),
            present: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            given: AtomicUsize::new(0),
            given_max: AtomicUsize::new(0),
            budget,
        }
    }

    fn chunk(&self, first: FrameId) -> MutexGuard<'_, Box<[u8]>> {
        let chunk = first.0 as usize >> CHUNK_ORDER;
        assert!(self.present[chunk].load(Relaxed), "chunk {chunk} touched, but it is a hole");
        self.memory[chunk].lock().unwrap()
    }
}

/// An allocator of at least so many frames.
fn arena(frames: usize) -> FrameAllocator {
    let settings = FrameSettings { percpu: false, ..FrameSettings::default() };
    let stats = Stats::anonymous().unwrap();
    let allocator = FrameAllocator::new(frames as u64, 0, settings, Topology::new(1, &[]), stats).unwrap();
    allocator.resize(frames as u64, |_| Ok::<_, ()>(())).unwrap();
    allocator
}

impl FrameSource for FakeSource {
    fn take_chunk(&self) -> Option<FrameId> {
        if self.given.load(Relaxed) >= self.budget {
            return None;
        }
        let first = self.frames.alloc(CHUNK_ORDER, Mobility::Unmovable, Need::Over)?;
        self.given_max.fetch_max(self.given.fetch_add(1, Relaxed) + 1, Relaxed);
        assert!(!self.present[first.0 as usize >> CHUNK_ORDER].swap(true, Relaxed));
        Some(first)
    }

    fn give_chunk(&self, first: FrameId) {
        self.chunk(first).fill(0xDD);
        self.given.fetch_sub(1, Relaxed);
        assert!(self.present[first.0 as usize >> CHUNK_ORDER].swap(false, Relaxed));
        self.frames.free(first, CHUNK_ORDER);
    }

    fn is_leaving(&self, first: FrameId) -> bool {
        self.frames.is_isolated(first)
    }

    fn write(&self, first: FrameId, offset: usize, data: &[u8]) {
        self.chunk(first)[offset..offset + data.len()].copy_from_slice(data);
    }

    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.chunk(first)[offset..offset + out.len()]);
    }
}

/// xorshift64*: the same sequence on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 11) % n as u64) as usize
    }

    /// Lengths as LZ4 leaves them on pages of programs: some near empty, most around a third to a half, raw ones too.
    fn stored_len(&mut self) -> usize {
        match self.below(100) {
            0..15 => 20 + self.below(480),
            15..70 => 700 + self.below(1500),
            70..92 => 2200 + self.below(1400),
            _ => PAGE_SIZE,
        }
    }
}

/// Content that tells the object: two objects with different seeds differ in every stretch of 8 bytes.
fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (i % 8 * 8)) as u8 ^ i as u8).collect()
}

fn verify(pool: &CompressedPool, source: &FakeSource, handle: Handle, expected: &[u8]) {
    let mut out = [0x77; PAGE_SIZE];
    assert_eq!(pool.load(source, handle, &mut out), expected.len());
    assert!(out[..expected.len()] == *expected, "{handle:?} holds another's bytes");
    assert!(out[expected.len()..].iter().all(|byte| *byte == 0x77), "more was copied than is stored");
}

#[derive(Clone, Debug)]
enum Op {
    Store(usize),
    /// As many objects of one length: fills chunks and crosses lists.
    StoreMany(usize, usize),
    Load(usize),
    Free(usize),
    FreeMany(usize),
    SetLimit(usize),
    Trim,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![1usize..=PAGE_SIZE, 1usize..200, Just(PAGE_SIZE)];
    let op = prop_oneof![
        6 => len.clone().prop_map(Op::Store),
        2 => (len, 1usize..300).prop_map(|(len, count)| Op::StoreMany(len, count)),
        4 => any::<usize>().prop_map(Op::Load),
        6 => any::<usize>().prop_map(Op::Free),
        2 => (1usize..300).prop_map(Op::FreeMany),
        1 => (0usize..30).prop_map(Op::SetLimit),
        1 => Just(Op::Trim),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn objects_keep_their_bytes(ops in ops(), budget in 1usize..40) {
        let source = FakeSource::new(40, budget);
        let mut limit = 30;
        let pool = CompressedPool::new(source.frames.frames_max(), limit).unwrap();
        let mut model: Vec<(Handle, Vec<u8>)> = Vec::new();
        let mut seed = 0;
        let mut store = |model: &mut Vec<_>, len, limit| {
            seed += 1;
            let data = content(seed, len);
            let before = pool.chunks();
            match pool.store(&source, &data) {
                Ok(handle) => model.push((handle, data)),
                // Only when no chunk was to be had.
                Err(Full) => assert!(before >= limit || before >= budget),
            }
            assert!(pool.chunks() <= limit.max(before), "the limit was exceeded");
        };
        for op in ops {
            match op {
                Op::Store(len) => store(&mut model, len, limit),
                Op::StoreMany(len, count) => (0..count).for_each(|_| store(&mut model, len, limit)),
                Op::Load(at) if !model.is_empty() => {
                    let (handle, data) = &model[at % model.len()];
                    verify(&pool, &source, *handle, data);
                }
                Op::Free(at) if !model.is_empty() => {
                    let (handle, data) = model.swap_remove(at % model.len());
                    verify(&pool, &source, Handle::from_bits(handle.to_bits()), &data);
                    pool.free(&source, handle);
                }
                Op::FreeMany(count) => {
                    model.drain(..count.min(model.len())).for_each(|(handle, _)| pool.free(&source, handle));
                }
                Op::SetLimit(chunks) => {
                    limit = chunks;
                    pool.set_limit(chunks);
                }
                Op::Trim => pool.trim(&source),
                Op::Load(_) | Op::Free(_) => {}
            }
            pool.check();
            prop_assert_eq!(pool.chunks(), source.given.load(Relaxed));
            prop_assert_eq!(pool.stored_objects(), model.len());
            prop_assert_eq!(pool.stored_bytes(), model.iter().map(|(_, data)| data.len()).sum::<usize>());
        }
        for (handle, data) in model.drain(..) {
            verify(&pool, &source, handle, &data);
            pool.free(&source, handle);
        }
        pool.check();
        prop_assert!(pool.chunks() <= KEPT_MAX);
        pool.trim(&source);
        prop_assert_eq!((pool.chunks(), pool.stored_objects(), pool.stored_bytes()), (0, 0, 0));
        prop_assert_eq!(source.frames.used(), 0);
    }
}

#[test]
fn handles_keep_their_parts_in_48_bits() {
    for (chunk, object, len) in [(0, 0, 1), (5, 511, 64), ((1 << 27) - 1, 7, PAGE_SIZE)] {
        let handle = Handle::new(chunk, object, len);
        assert!(handle.to_bits() < 1 << Handle::BITS);
        let handle = Handle::from_bits(handle.to_bits());
        assert_eq!((handle.chunk(), handle.object(), handle.len_bytes()), (chunk, object, len));
    }
}

#[test]
fn little_is_wasted_on_realistic_lengths() {
    let source = FakeSource::new(1500, 1500);
    let pool = CompressedPool::new(source.frames.frames_max(), 1500).unwrap();
    let mut random = Random(7);
    let mut handles = Vec::new();
    let waste = || 1.0 - pool.stored_bytes() as f64 / pool.pool_bytes() as f64;
    // 1. Filling: 32 MiB of data.
    while pool.stored_bytes() < 32 << 20 {
        let data = content(handles.len() as u64, random.stored_len());
        handles.push(pool.store(&source, &data).unwrap());
    }
    assert!(waste() < 0.08, "{:.3} of the pool is waste after filling", waste());
    // 2. Turnover: each object is replaced four times on average, in random order.
    for seed in 0..4 * handles.len() as u64 {
        let at = random.below(handles.len());
        pool.free(&source, handles[at]);
        handles[at] = pool.store(&source, &content(seed, random.stored_len())).unwrap();
    }
    assert!(waste() < 0.12, "{:.3} of the pool is waste after turnover", waste());
    pool.check();
    // 3. Draining in random order: some chunks come back on the way, and what is stored then goes to the rest first.
    let (full, objects) = (pool.chunks(), handles.len());
    while handles.len() > objects / 10 {
        let at = random.below(handles.len());
        pool.free(&source, handles.swap_remove(at));
    }
    let drained = pool.chunks();
    assert!(drained < full * 3 / 4, "{drained} chunks of {full} left with a tenth of the objects");
    while handles.len() < objects / 2 {
        handles.push(pool.store(&source, &content(0, random.stored_len())).unwrap());
    }
    assert!(pool.chunks() <= drained + drained / 50, "{} chunks: {drained} had the room", pool.chunks());
    let metadata = (80 * source.frames.frames_max()) >> CHUNK_ORDER;
    assert!(metadata * 100 < source.frames.frames_max() * PAGE_SIZE, "metadata above 1 % of the memory it describes");
}

#[test]
fn an_object_that_comes_and_goes_does_not_move_chunks() {
    let source = FakeSource::new(8, 8);
    let pool = CompressedPool::new(source.frames.frames_max(), 8).unwrap();
    pool.free(&source, pool.store(&source, &[1; 100]).unwrap());
    let kept = source.given.load(Relaxed);
    assert_eq!((kept, pool.chunks()), (1, 1));
    for len in 1..=PAGE_SIZE {
        pool.free(&source, pool.store(&source, &vec![1; len]).unwrap());
        assert_eq!((source.given.load(Relaxed), source.given_max.load(Relaxed)), (1, 1), "{len} bytes");
    }
    // Above the limit nothing is kept.
    let handle = pool.store(&source, &[1; 100]).unwrap();
    pool.set_limit(0);
    pool.free(&source, handle);
    assert_eq!((pool.chunks(), source.given.load(Relaxed)), (0, 0));
    assert_eq!(pool.store(&source, &[1; 100]), Err(Full));
}

#[test]
fn the_fullest_chunk_with_room_is_filled_first() {
    let source = FakeSource::new(8, 8);
    let pool = CompressedPool::new(source.frames.frames_max(), 8).unwrap();
    let handles: Vec<_> = (0..24).map(|_| pool.store(&source, &[1; PAGE_SIZE]).unwrap()).collect();
    // Of 8 objects each: one chunk is left with 2, one with 7, one with 4; freed last, so first in its list, is the 4.
    handles[0..6].iter().chain(&handles[8..9]).chain(&handles[16..20]).for_each(|handle| pool.free(&source, *handle));
    let next: Vec<_> = (0..11).map(|_| pool.store(&source, &[1; PAGE_SIZE]).unwrap().chunk()).collect();
    let chunks = [handles[8].chunk(), handles[16].chunk(), handles[0].chunk()];
    assert_eq!(next, [&[chunks[0]; 1][..], &[chunks[1]; 4], &[chunks[2]; 6]].concat());
    assert_eq!(pool.chunks(), 3);
}

#[test]
fn a_source_without_room_costs_no_chunk() {
    let source = FakeSource::new(8, 1);
    let pool = CompressedPool::new(source.frames.frames_max(), 8).unwrap();
    let first = pool.store(&source, &[1; 4096]).unwrap();
    assert_eq!(pool.store(&source, &[1; 100]), Err(Full));
    assert_eq!(pool.chunks(), 1);
    assert!(pool.store(&source, &[1; 4096]).is_ok(), "the chunk that there is has room");
    verify(&pool, &source, first, &[1; 4096]);
}

fn pool_with_two() -> (FakeSource, CompressedPool, Handle) {
    let source = FakeSource::new(8, 8);
    let pool = CompressedPool::new(source.frames.frames_max(), 8).unwrap();
    let handle = pool.store(&source, &[1; 1000]).unwrap();
    pool.store(&source, &[2; 1000]).unwrap();
    (source, pool, handle)
}

#[test]
#[should_panic(expected = "is not stored")]
fn a_double_free_is_seen() {
    let (source, pool, handle) = pool_with_two();
    pool.free(&source, handle);
    pool.free(&source, handle);
}

#[test]
#[should_panic(expected = "is not stored")]
fn a_handle_of_another_class_is_seen() {
    let (source, pool, handle) = pool_with_two();
    pool.free(&source, Handle::new(handle.chunk(), handle.object(), 2000));
}

#[test]
#[should_panic(expected = "is not stored")]
fn a_handle_outside_the_arena_is_seen() {
    let (source, pool, _) = pool_with_two();
    pool.free(&source, Handle::from_bits((1 << Handle::BITS) - 1));
}

#[test]
#[should_panic(expected = "is no handle")]
fn bits_beyond_a_handle_are_refused() {
    Handle::from_bits(1 << Handle::BITS);
}

#[test]
fn threads_keep_their_objects_and_the_limit() {
    const LIMIT: usize = 60;
    // Room for many more chunks than the limit, so that the limit is what holds.
    let source = FakeSource::new(200, 200);
    let pool = CompressedPool::new(source.frames.frames_max(), LIMIT).unwrap();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (source, pool, refused) = (&source, &pool, &refused);
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut own: Vec<(Handle, u64)> = Vec::new();
                for round in 0..30_000u64 {
                    let seed = thread << 32 | round;
                    // Waves of growing and shrinking, out of step with each other.
                    let growing = (round + thread * 1250) % 10_000 < 5_000;
                    if own.is_empty() || random.below(10) < if growing { 6 } else { 4 } {
                        let len = random.stored_len();
                        match pool.store(source, &content(seed, len)) {
                            Ok(handle) => own.push((handle, seed)),
                            Err(Full) => _ = refused.fetch_add(1, Relaxed),
                        }
                    } else {
                        let (handle, seed) = own.swap_remove(random.below(own.len()));
                        verify(pool, source, handle, &content(seed, handle.len_bytes()));
                        pool.free(source, handle);
                    }
                }
                for (handle, seed) in own {
                    verify(pool, source, handle, &content(seed, handle.len_bytes()));
                    pool.free(source, handle);
                }
            });
        }
    });
    pool.check();
    assert!(source.given_max.load(Relaxed) == LIMIT, "{} of {LIMIT} chunks", source.given_max.load(Relaxed));
    assert!(refused.load(Relaxed) > 0, "the limit was never reached: the test lost its subject");
    assert!(pool.chunks() <= KEPT_MAX);
    pool.trim(&source);
    assert_eq!((pool.chunks(), pool.stored_objects(), pool.stored_bytes()), (0, 0, 0));
    assert_eq!(source.frames.used(), 0);
}

#[test]
fn objects_leave_chunks_whose_frames_leave_the_arena() {
    let source = FakeSource::new(512, 512);
    let pool = CompressedPool::new(source.frames.frames_max(), 512);
    let pool = pool.unwrap();
    let data = [7; 1000];
    // The low half of the arena is taken, so that the pool begins in the other one.
    let ballast: Vec<_> = (0..4).map(|_| source.frames.alloc(9, Mobility::Movable, Need::Over).unwrap()).collect();
    let mut handles: Vec<_> = (0..40).map(|_| pool.store(&source, &data).unwrap()).collect();
    ballast.into_iter().for_each(|block| source.frames.free(block, 9));
    source.frames.resize(1024, |_| Ok::<_, ()>(())).unwrap();
    assert!(handles.iter().all(|handle| source.is_leaving(handle.chunk_frame())));
    for handle in &mut handles {
        let old = std::mem::replace(handle, pool.store(&source, &data).unwrap());
        assert!(!source.is_leaving(handle.chunk_frame()), "stored in a chunk that is to leave");
        pool.free(&source, old);
        pool.check();
    }
    pool.trim(&source);
    source.frames.give_up_surplus(|_| {});
    assert!(!source.frames.has_surplus());
    handles.into_iter().for_each(|handle| pool.free(&source, handle));
}
