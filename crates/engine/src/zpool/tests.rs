//! The pool against a model that keeps every object's bytes, on memory that knows which chunks it
//! has given.

mod compaction;
mod waste;

use super::class::{OBJECTS_MAX, ORDER_MAX};
use super::kept::KEPT_FRAMES_MAX;
use super::*;
use crate::frame::{FrameAllocator, FrameSettings, Mobility, Need};
use crate::stats::Stats;
use overspill_os::cpu::Topology;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::{LazyLock, Mutex};

static STATS: LazyLock<Stats> = LazyLock::new(|| Stats::anonymous().unwrap());

/// Bytes of the smallest chunk: memory is kept in such pieces.
const GRANULE: usize = PAGE_SIZE << ORDER_MIN;

/// Chunks of plain memory; panics when a chunk is touched that the pool does not have.
pub(super) struct FakeSource {
    frames: FrameAllocator,
    /// Empty where there is no chunk.
    memory: Vec<Mutex<Vec<u8>>>,
    /// Frames given to the pool.
    given: AtomicUsize,
    given_max: AtomicUsize,
    budget: usize,
}

impl FakeSource {
    /// An arena of at least `frames` frames, of which the pool gets `budget`.
    pub(super) fn new(frames: usize, budget: usize) -> FakeSource {
        let settings = FrameSettings { percpu: false, ..FrameSettings::default() };
        let topology = Topology::new(1, &[]);
        let allocator = FrameAllocator::new(frames as u64, 0, settings, topology, *STATS).unwrap();
        allocator.resize(frames as u64, |_| Ok::<_, ()>(())).unwrap();
        let memory = (0..allocator.frames_max() >> ORDER_MIN).map(|_| Mutex::default()).collect();
        let (given, given_max) = (AtomicUsize::new(0), AtomicUsize::new(0));
        FakeSource { frames: allocator, memory, given, given_max, budget }
    }

    pub(super) fn given(&self) -> usize {
        self.given.load(Relaxed)
    }

    /// A pool over it.
    pub(super) fn pool(&self, limit: usize) -> Zpool {
        Zpool::new(self.frames.cells().clone(), limit)
    }

    fn granules(first: FrameId, order: u8) -> Range<usize> {
        let first = first.0 as usize >> ORDER_MIN;
        first..first + (1 << (order - ORDER_MIN))
    }

    /// Goes over the bytes of a range: memory, and where that is in the range.
    fn pieces(
        &self,
        first: FrameId,
        offset: usize,
        len: usize,
        mut each: impl FnMut(&mut [u8], Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let (granule, begin) = ((offset + done) / GRANULE, (offset + done) % GRANULE);
            let piece = (len - done).min(GRANULE - begin);
            let granule = (first.0 as usize >> ORDER_MIN) + granule;
            let mut memory = self.memory[granule].lock().unwrap();
            assert!(!memory.is_empty(), "the chunk at {granule} was touched, but it is a hole");
            each(&mut memory[begin..begin + piece], done..done + piece);
            done += piece;
        }
    }
}

impl FrameSource for FakeSource {
    fn take_chunk(&self, order: u8) -> Option<FrameId> {
        let room = |given| Some(given + (1 << order)).filter(|given| *given <= self.budget);
        let before = self.given.fetch_update(Relaxed, Relaxed, room).ok()?;
        let Some(first) = self.frames.alloc(order, Mobility::Unmovable, Need::Over) else {
            self.given.fetch_sub(1 << order, Relaxed);
            return None;
        };
        self.given_max.fetch_max(before + (1 << order), Relaxed);
        for granule in FakeSource::granules(first, order) {
            assert!(
                std::mem::replace(&mut *self.memory[granule].lock().unwrap(), vec![0xDD; GRANULE])
                    .is_empty()
            );
        }
        Some(first)
    }

    fn give_chunks(&self, chunks: &[(FrameId, u8)]) {
        for &(first, order) in chunks {
            for granule in FakeSource::granules(first, order) {
                assert!(!std::mem::take(&mut *self.memory[granule].lock().unwrap()).is_empty());
            }
            self.given.fetch_sub(1 << order, Relaxed);
            self.frames.free(first, order);
        }
    }

    fn leaving(&self) -> Vec<Range<u32>> {
        self.frames.surplus()
    }

    fn is_leaving(&self, first: FrameId) -> bool {
        self.frames.is_isolated(first)
    }

    fn write(&self, first: FrameId, offset: usize, data: &[u8]) {
        self.pieces(first, offset, data.len(), |memory, at| memory.copy_from_slice(&data[at]));
    }

    fn read(&self, first: FrameId, offset: usize, out: &mut [u8]) {
        self.pieces(first, offset, out.len(), |memory, at| out[at].copy_from_slice(memory));
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

    /// Lengths as LZ4 leaves them on pages of programs: some near empty, most around a third to a
    /// half, raw ones too.
    fn stored_len(&mut self) -> usize {
        match self.below(100) {
            0..15 => 20 + self.below(480),
            15..70 => 700 + self.below(1500),
            70..92 => 2200 + self.below(1400),
            _ => PAGE_SIZE,
        }
    }
}

/// Content that tells the object: two objects with different seeds differ in every stretch of 8
/// bytes.
pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (i % 8 * 8)) as u8 ^ i as u8)
        .collect()
}

fn verify(pool: &Zpool, source: &FakeSource, handle: Handle, expected: &[u8]) {
    let mut out = [0x77; PAGE_SIZE];
    assert_eq!(pool.load(source, handle, &mut out), Ok(expected.len()));
    assert!(out[..expected.len()] == *expected, "{handle:?} holds another's bytes");
    assert!(
        out[expected.len()..].iter().all(|byte| *byte == 0x77),
        "more was copied than is stored"
    );
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
    /// So many objects; every so many owners refuse.
    Compact(usize, u64),
    /// The arena gets so many frames, and what then leaves it is evacuated.
    Resize(u64),
}

const FRAMES: usize = 4096;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![1usize..=PAGE_SIZE, 1usize..200, Just(PAGE_SIZE)];
    let op = prop_oneof![
        6 => len.clone().prop_map(Op::Store),
        2 => (len, 1usize..300).prop_map(|(len, count)| Op::StoreMany(len, count)),
        4 => any::<usize>().prop_map(Op::Load),
        6 => any::<usize>().prop_map(Op::Free),
        2 => (1usize..300).prop_map(Op::FreeMany),
        1 => (0usize..240).prop_map(Op::SetLimit),
        1 => Just(Op::Trim),
        3 => (0usize..300, 1u64..9).prop_map(|(objects, refuse)| Op::Compact(objects, refuse)),
        1 => (1u64..FRAMES as u64).prop_map(Op::Resize),
    ];
    prop::collection::vec(op, 1..120)
}

/// What the pool should hold, by owner.
#[derive(Default)]
struct Model {
    objects: Vec<(u64, Handle, Vec<u8>)>,
    owners: u64,
}

impl Model {
    fn store(&mut self, pool: &Zpool, source: &FakeSource, len: usize, limit: usize) {
        self.owners += 1;
        let (owner, data) = (self.owners << 20 | 7, content(self.owners, len));
        let before = pool.frames();
        match pool.store(source, owner, &data) {
            Ok(handle) => self.objects.push((owner, handle, data)),
            // Only when no chunk was to be had, but for those that are kept for others.
            Err(Full) => assert!(before + (1 << ORDER_MAX) > limit.min(source.budget)),
        }
        assert!(pool.frames() <= limit.max(before), "the limit was exceeded");
    }

    fn free(&mut self, pool: &Zpool, source: &FakeSource, at: usize) {
        let (_, handle, data) = self.objects.swap_remove(at);
        verify(pool, source, Handle::from_bits(handle.to_bits()), &data);
        pool.free(source, handle);
    }

    /// As an owner does that compaction asks; every `refuse`th time no.
    fn moved(&mut self, refuse: u64) -> impl FnMut(u64, Handle, Handle) -> bool {
        let mut asked = 0;
        move |owner, old, new| {
            asked += 1;
            let object =
                self.objects.iter_mut().find(|(of, ..)| *of == owner).expect("its owner is asked");
            assert_eq!(object.1, old, "the owner has another handle");
            assert_eq!((new.len_bytes(), new == old), (old.len_bytes(), false));
            let agrees = asked % (refuse + 1) != 0;
            if agrees {
                object.1 = new;
            }
            agrees
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn objects_keep_their_bytes(ops in ops(), budget in 4usize..320) {
        let source = FakeSource::new(FRAMES, budget);
        let mut limit = 240;
        let pool = source.pool(limit);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Store(len) => model.store(&pool, &source, len, limit),
                Op::StoreMany(len, count) => {
                    (0..count).for_each(|_| model.store(&pool, &source, len, limit));
                }
                Op::Load(at) if !model.objects.is_empty() => {
                    let (_, handle, data) = &model.objects[at % model.objects.len()];
                    verify(&pool, &source, *handle, data);
                }
                Op::Free(at) if !model.objects.is_empty() => {
                    model.free(&pool, &source, at % model.objects.len());
                }
                Op::FreeMany(count) => {
                    (0..count.min(model.objects.len())).for_each(|_| model.free(&pool, &source, 0));
                }
                Op::SetLimit(frames) => {
                    limit = frames;
                    pool.set_limit(frames);
                }
                Op::Trim => _ = pool.trim(&source),
                Op::Compact(objects, refuse) => {
                    let before = (pool.frames(), pool.compactable_frames());
                    let done = pool.compact(&source, objects, &mut model.moved(refuse));
                    prop_assert!(done.moved <= done.copied && done.copied <= objects);
                    prop_assert!((pool.frames(), pool.compactable_frames()) <= before);
                }
                Op::Resize(frames) => {
                    source.frames.resize(frames, |_| Ok::<_, ()>(())).unwrap();
                    pool.evacuate(&source, usize::MAX, &mut model.moved(5));
                    pool.trim(&source);
                    source.frames.give_up_surplus(|_| {});
                }
                Op::Load(_) | Op::Free(_) => {}
            }
            pool.check();
            prop_assert_eq!(pool.frames(), source.given());
            prop_assert_eq!(pool.stored_objects(), model.objects.len());
            let stored_bytes: usize = model.objects.iter().map(|(.., data)| data.len()).sum();
            prop_assert_eq!(pool.stored_bytes(), stored_bytes);
        }
        while !model.objects.is_empty() {
            model.free(&pool, &source, 0);
        }
        pool.check();
        prop_assert!(pool.frames() <= KEPT_FRAMES_MAX);
        pool.trim(&source);
        prop_assert_eq!((pool.frames(), pool.stored_objects(), pool.stored_bytes()), (0, 0, 0));
        prop_assert_eq!(source.frames.used(), 0);
    }
}

/// What leaves the arena must leave it, also where the pool has as much as it may.
#[test]
fn a_full_pool_is_evacuated() {
    let source = FakeSource::new(FRAMES, FRAMES);
    let pool = source.pool(FRAMES);
    let (mut model, most) = (Model::default(), source.frames.frames_max());
    // Objects that fill chunks, so that there is no room in others.
    while pool.frames() < most / 2 {
        model.store(&pool, &source, PAGE_SIZE / 2 - TRAILER_BYTES, FRAMES);
    }
    // Those that stay lie behind where the arena is to end.
    let low = |(_, handle, _): &(u64, Handle, Vec<u8>)| {
        (pool.place(*handle).first_frame().0 as usize) < most / 3
    };
    while let Some(at) = model.objects.iter().position(low) {
        model.free(&pool, &source, at);
    }
    pool.trim(&source);
    pool.set_limit(pool.frames());
    source.frames.resize(most as u64 / 8, |_| Ok::<_, ()>(())).unwrap();
    let leaving = |model: &Model| {
        let leaves = |handle: Handle| source.is_leaving(pool.place(handle).first_frame());
        model.objects.iter().filter(|(_, handle, _)| leaves(*handle)).count()
    };
    assert!(leaving(&model) > 100, "{} of {}", leaving(&model), model.objects.len());
    pool.evacuate(&source, usize::MAX, &mut model.moved(1 << 40));
    assert_eq!(leaving(&model), 0);
}

#[test]
fn handles_keep_their_parts_in_48_bits() {
    for (chunk, object, len) in [(0, 0, 1), (5, OBJECTS_MAX - 1, 64), ((1 << 28) - 1, 7, PAGE_SIZE)]
    {
        let handle = Handle::new(chunk, object, len);
        assert!(handle.to_bits() < 1 << Handle::BITS);
        let handle = Handle::from_bits(handle.to_bits());
        assert_eq!((handle.chunk(), handle.object(), handle.len_bytes()), (chunk, object, len));
    }
}

#[test]
fn an_object_that_comes_and_goes_does_not_move_chunks() {
    let source = FakeSource::new(512, 512);
    let pool = source.pool(512);
    // From the largest down, so that the classes have chunks of other sizes in turn; one chunk of
    // each size is kept.
    for len in (1..=PAGE_SIZE).rev() {
        pool.free(&source, pool.store(&source, 0, &vec![1; len]).unwrap());
        assert!(source.given_max.load(Relaxed) <= KEPT_FRAMES_MAX, "{len} bytes");
    }
    let kept = source.given();
    for len in 1..=PAGE_SIZE {
        pool.free(&source, pool.store(&source, 0, &vec![1; len]).unwrap());
        assert_eq!((source.given(), source.given_max.load(Relaxed)), (kept, kept), "{len} bytes");
    }
    // Above the limit nothing is kept.
    let handle = pool.store(&source, 0, &[1; 100]).unwrap();
    pool.set_limit(0);
    pool.free(&source, handle);
    pool.trim(&source);
    assert_eq!((pool.frames(), source.given()), (0, 0));
    assert_eq!(pool.store(&source, 0, &[1; 100]), Err(Full));
}

#[test]
fn the_fullest_chunk_with_room_is_filled_first() {
    let source = FakeSource::new(512, 512);
    let pool = source.pool(512);
    let n = CLASSES[class_of(PAGE_SIZE)].objects;
    let handles: Vec<_> =
        (0..3 * n).map(|_| pool.store(&source, 0, &[1; PAGE_SIZE]).unwrap()).collect();
    // One chunk is left with 2 objects, one with all but one, one with half; freed last, so first
    // in its list, is that.
    let (few, many, half) = (&handles[..n - 2], &handles[n..n + 1], &handles[2 * n..2 * n + n / 2]);
    few.iter().chain(many).chain(half).for_each(|handle| pool.free(&source, *handle));
    let next =
        (0..1 + n / 2 + n - 2).map(|_| pool.store(&source, 0, &[1; PAGE_SIZE]).unwrap().chunk());
    let chunk = |of: &[Handle]| vec![of[0].chunk(); of.len()];
    assert_eq!(next.collect::<Vec<_>>(), [chunk(many), chunk(half), chunk(few)].concat());
    assert_eq!(pool.frames(), 3 << ORDER_MAX);
}

#[test]
fn a_source_without_room_costs_no_frames_and_larger_places_are_used() {
    let order = CLASSES[class_of(PAGE_SIZE)].order;
    let source = FakeSource::new(512, 1 << order);
    let pool = source.pool(512);
    let first = pool.store(&source, 0, &[1; PAGE_SIZE]).unwrap();
    let small = pool.store(&source, 0, &[2; 100]).unwrap();
    assert_eq!(
        (small.chunk(), pool.frames()),
        (first.chunk(), 1 << order),
        "there was room in a larger class"
    );
    (2..CLASSES[0].objects).for_each(|_| _ = pool.store(&source, 0, &[1; PAGE_SIZE]).unwrap());
    assert_eq!(pool.store(&source, 0, &[1; 100]), Err(Full));
    verify(&pool, &source, first, &[1; PAGE_SIZE]);
    verify(&pool, &source, small, &[2; 100]);
    pool.free(&source, small);
    pool.check();
}

#[test]
fn damage_of_any_byte_of_an_object_reaches_its_reader_only() {
    let source = FakeSource::new(512, 512);
    let pool = source.pool(512);
    for len in [1, 64, 1000, PAGE_SIZE] {
        let data = content(len as u64, len);
        let [before, handle, after] =
            [1, 2, 3].map(|owner| pool.store(&source, owner, &data).unwrap());
        let place = pool.place(handle);
        for at in (place.data()..place.data() + len)
            .chain(place.trailer()..place.trailer() + TRAILER_BYTES)
        {
            let flip = |bit: u8| {
                source.pieces(place.first_frame(), at, 1, |memory, _| memory[0] ^= 1 << bit)
            };
            for bit in 0..8 {
                flip(bit);
                assert_eq!(
                    pool.load(&source, handle, &mut [0; PAGE_SIZE]),
                    Err(Damaged),
                    "byte {at}, bit {bit}"
                );
                flip(bit);
            }
        }
        [before, handle, after]
            .into_iter()
            .for_each(|handle| verify(&pool, &source, handle, &data));
    }
}

fn pool_with_two() -> (FakeSource, Zpool, Handle) {
    let source = FakeSource::new(512, 512);
    let pool = source.pool(512);
    let handle = pool.store(&source, 0, &[1; 1000]).unwrap();
    pool.store(&source, 0, &[2; 1000]).unwrap();
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
    const LIMIT: usize = 480;
    // Room for many more frames than the limit, so that the limit is what holds.
    let source = FakeSource::new(2048, 2048);
    let pool = source.pool(LIMIT);
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
                        match pool.store(source, seed, &content(seed, len)) {
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
    let most = source.given_max.load(Relaxed);
    assert!(most <= LIMIT && most + (1 << ORDER_MAX) > LIMIT, "{most} of {LIMIT} frames");
    assert!(refused.load(Relaxed) > 0, "the limit was never reached: the test lost its subject");
    assert!(pool.frames() <= KEPT_FRAMES_MAX);
    pool.trim(&source);
    assert_eq!((pool.frames(), pool.stored_objects(), pool.stored_bytes()), (0, 0, 0));
    assert_eq!(source.frames.used(), 0);
}
