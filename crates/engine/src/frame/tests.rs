//! The allocator against a model that knows of each frame only whether it is handed out.

use super::*;
use crate::frame::cells::Owner;
use crate::stats::Counter;
use crate::units::{FrameId, PageIndex};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

/// A limit whose reserve leaves room to fault, in pages.
const LIMIT: u64 = 2000;

#[derive(Clone, Debug)]
enum Op {
    Alloc(u8, usize, Need),
    Folio(usize),
    /// Free the block at this place of the list of owned blocks.
    Free(usize),
    /// Free that block in two halves, the upper one first.
    FreeInParts(usize),
    /// Free this many owned blocks of order 0 in one call.
    FreeMany(usize),
    Drain,
    Decay,
    Trim,
    /// Change the limit only, as a fork does.
    Limit(u64),
    /// Change the budget and the arena.
    Resize(u64),
    GiveUp,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let need = prop_oneof![6 => Just(Need::Fault), 3 => Just(Need::Reclaim), 1 => Just(Need::Over)];
    let op = prop_oneof![
        6 => (0..=MAX_ORDER, 0..Mobility::LISTED, need).prop_map(|(o, m, n)| Op::Alloc(o, m, n)),
        3 => (1usize..=64).prop_map(Op::Folio),
        6 => any::<usize>().prop_map(Op::Free),
        2 => any::<usize>().prop_map(Op::FreeInParts),
        3 => (0usize..200).prop_map(Op::FreeMany),
        1 => Just(Op::Drain),
        1 => Just(Op::Decay),
        1 => Just(Op::Trim),
        1 => (0..2 * LIMIT).prop_map(Op::Limit),
        1 => (0..2 * LIMIT).prop_map(Op::Resize),
        1 => Just(Op::GiveUp),
    ];
    prop::collection::vec(op, 1..120)
}

fn settings() -> impl Strategy<Value = FrameSettings> {
    (any::<bool>(), any::<bool>()).prop_map(|(percpu, outside)| FrameSettings {
        percpu,
        pick: if outside { FramePick::Outside } else { FramePick::Inside },
        ..FrameSettings::default()
    })
}

/// A machine of one processor a node, so that every call meets the same lists wherever it runs.
fn topology(nodes: usize) -> Topology {
    Topology::new(1, &vec![vec![0]; nodes])
}

fn allocator(settings: FrameSettings, nodes: usize) -> FrameAllocator {
    allocator_of(LIMIT, settings, nodes)
}

fn allocator_of(limit: u64, settings: FrameSettings, nodes: usize) -> FrameAllocator {
    let stats = Stats::anonymous().unwrap();
    let allocator =
        FrameAllocator::new(limit, 2 * limit, settings, topology(nodes), stats).unwrap();
    resize(&allocator, limit);
    allocator
}

fn resize(allocator: &FrameAllocator, pages: u64) {
    allocator.resize(pages, |_| Ok::<_, ()>(())).unwrap();
}

/// What is handed out.
struct Model {
    used: Vec<bool>,
    /// First frame and order of what is owned.
    owned: Vec<(FrameId, u8)>,
}

impl Model {
    fn new(allocator: &FrameAllocator) -> Model {
        Model { used: vec![false; allocator.frames_max()], owned: Vec::new() }
    }

    /// Its cells are the owner's now.
    fn take(&mut self, allocator: &FrameAllocator, frame: FrameId, order: u8) {
        let at = frame.0 as usize;
        for frame in frame.0..frame.0 + (1 << order) {
            let owner = Owner::Page(PageIndex(frame as usize + 1));
            allocator.cells().set_owner(FrameId(frame), owner);
        }
        assert_eq!(at % (1 << order), 0);
        for used in &mut self.used[at..at + (1 << order)] {
            assert!(!std::mem::replace(used, true), "handed out twice");
        }
        self.owned.push((frame, order));
    }

    /// They were until now.
    fn give(&mut self, allocator: &FrameAllocator, frame: FrameId, order: u8) {
        let at = frame.0 as usize;
        for frame in frame.0..frame.0 + (1 << order) {
            let owner = allocator.cells().disown(FrameId(frame));
            assert_eq!(owner, Some(Owner::Page(PageIndex(frame as usize + 1))));
        }
        self.used[at..at + (1 << order)].fill(false);
    }

    fn has_free(&self, order: u8, span: usize, allocator: &FrameAllocator) -> bool {
        let blocks = self.used[..span].chunks_exact(1 << order).enumerate();
        blocks.into_iter().any(|(i, block)| {
            block.iter().all(|used| !used) && !allocator.is_isolated(FrameId((i << order) as u32))
        })
    }

    fn count(&self) -> u64 {
        self.used.iter().filter(|used| **used).count() as u64
    }
}

/// An allocator beside its model.
struct Driver {
    allocator: FrameAllocator,
    model: Model,
    answers: Vec<Option<FrameId>>,
    /// Whether all that is free is merged, so that what is free and aligned is found.
    finds_all: bool,
}

impl Driver {
    fn new(settings: FrameSettings, nodes: usize) -> Driver {
        let allocator = allocator(settings, nodes);
        let model = Model::new(&allocator);
        let finds_all = nodes == 1 && !settings.percpu;
        Driver { allocator, model, answers: Vec::new(), finds_all }
    }

    fn step(&mut self, op: Op) {
        let (allocator, model) = (&self.allocator, &mut self.model);
        match op {
            Op::Alloc(order, mobility, need) => self.alloc(order, Mobility::ALL[mobility], need),
            Op::Folio(pages) => self.alloc_folio(pages),
            Op::Free(_) | Op::FreeInParts(_) if model.owned.is_empty() => {}
            Op::Free(at) => {
                let (frame, order) = model.owned.swap_remove(at % model.owned.len());
                model.give(allocator, frame, order);
                allocator.free(frame, order);
            }
            Op::FreeInParts(at) => self.free_in_parts(at),
            Op::FreeMany(want) => self.free_many(want),
            Op::Drain => {
                allocator.drain();
                assert_eq!(allocator.used(), model.count(), "a drain leaves nothing in the lists");
            }
            Op::Decay => allocator.decay(),
            Op::Trim => allocator.trim(),
            Op::Limit(pages) => allocator.set_limit(pages),
            Op::Resize(pages) => {
                allocator.set_limit(pages);
                resize(allocator, pages);
                // Lists may hold frames that are isolated now.
                allocator.drain();
            }
            Op::GiveUp => self.give_up_surplus(),
        }
        assert!(self.allocator.used() >= self.model.count());
        self.allocator.check();
    }

    fn alloc(&mut self, order: u8, mobility: Mobility, need: Need) {
        let (allocator, model) = (&self.allocator, &mut self.model);
        let answer = allocator.alloc(order, mobility, need);
        if let Some(frame) = answer {
            assert!(!allocator.is_isolated(frame), "handed out of an isolated pageblock");
            model.take(allocator, frame, order);
        } else if self.finds_all {
            let reserve = if need == Need::Fault { allocator.min() } else { 0 };
            let wanted = model.count() + (1 << order) + reserve;
            let room = need == Need::Over || wanted <= allocator.limit();
            let found = model.has_free(order, allocator.frames(), allocator);
            assert!(!room || !found, "order {order} was there");
        }
        self.answers.push(answer);
    }

    fn alloc_folio(&mut self, pages: usize) {
        let mut frames = Vec::new();
        let taken = self.allocator.alloc_folio(pages, Need::Fault, &mut frames);
        assert!(taken == frames.len() && taken <= pages);
        frames.iter().for_each(|frame| self.model.take(&self.allocator, *frame, 0));
        self.answers.extend(frames.into_iter().map(Some));
    }

    fn free_in_parts(&mut self, at: usize) {
        let at = at % self.model.owned.len();
        let (frame, order) = self.model.owned.swap_remove(at);
        self.model.give(&self.allocator, frame, order);
        if order == 0 {
            self.allocator.free(frame, 0);
        } else {
            self.allocator.free(FrameId(frame.0 + (1 << (order - 1))), order - 1);
            self.allocator.free(frame, order - 1);
        }
    }

    fn free_many(&mut self, want: usize) {
        let (mut single, rest): (Vec<_>, Vec<_>) =
            self.model.owned.drain(..).partition(|(_, order)| *order == 0);
        let freed: Vec<_> =
            single.drain(..want.min(single.len())).map(|(frame, _)| frame).collect();
        self.model.owned = single;
        self.model.owned.extend(rest);
        freed.iter().for_each(|frame| self.model.give(&self.allocator, *frame, 0));
        self.allocator.free_many(&freed);
    }

    fn give_up_surplus(&mut self) {
        let (before, mut given) = (self.allocator.frames(), 0);
        self.allocator.give_up_surplus(|frames| {
            let used = &self.model.used[frames.start as usize..frames.end as usize];
            assert!(used.iter().all(|used| !used), "given up in use");
            given += frames.len();
        });
        assert_eq!(self.allocator.frames(), before - given);
    }

    /// All freed, all merged: every pageblock is one block, and those that were isolated can leave.
    fn finish(self) -> Vec<Option<FrameId>> {
        let allocator = &self.allocator;
        for (frame, order) in self.model.owned {
            allocator.free(frame, order);
        }
        allocator.drain();
        allocator.check();
        assert_eq!(allocator.used(), 0);
        allocator.give_up_surplus(|_| {});
        assert!(!allocator.has_surplus(), "an empty pageblock stayed");
        let mut whole = [0; ORDERS];
        whole[MAX_ORDER as usize] = (allocator.frames() / PAGEBLOCK) as u64;
        assert_eq!(allocator.free_blocks(), whole);
        self.answers
    }
}

/// Drives an allocator, checks each answer against the model, and gives everything back at the end.
fn drive(ops: Vec<Op>, settings: FrameSettings, nodes: usize) -> Vec<Option<FrameId>> {
    let mut driver = Driver::new(settings, nodes);
    ops.into_iter().for_each(|op| driver.step(op));
    driver.finish()
}

proptest! {
    #[test]
    fn none_handed_out_twice_none_lost(ops in ops(), settings in settings(), nodes in 1usize..=2) {
        drive(ops, settings, nodes);
    }

    #[test]
    fn where_frames_are_picked_does_not_change_their_order(ops in ops()) {
        let pick = |pick| drive(ops.clone(), FrameSettings { pick, ..FrameSettings::default() }, 1);
        prop_assert_eq!(pick(FramePick::Inside), pick(FramePick::Outside));
    }
}

#[test]
fn faults_leave_the_reserve_to_reclaim() {
    let allocator = allocator(FrameSettings { percpu: false, ..FrameSettings::default() }, 1);
    let take =
        |need| std::iter::from_fn(|| allocator.alloc(0, Mobility::Movable, need)).count() as u64;
    let min = allocator.min();
    assert_eq!(take(Need::Fault), LIMIT - min);
    assert_eq!(take(Need::Reclaim), min);
    assert_eq!((allocator.used(), allocator.free_pages()), (LIMIT, 0));
    assert!(allocator.alloc(0, Mobility::Movable, Need::Over).is_some());
    assert!(
        min < allocator.low() && allocator.low() < allocator.high() && allocator.high() < LIMIT
    );
}

#[test]
fn what_others_have_as_well_is_not_kept_free() {
    let allocator = allocator_of(40_000, FrameSettings::default(), 1);
    let marks = || [allocator.min(), allocator.low(), allocator.high()];
    let own = FrameSettings::default().watermarks.pages(2_000);
    assert_ne!(marks(), own);
    allocator.set_shared(38_000);
    assert_eq!((allocator.limit(), allocator.own(), marks()), (40_000, 2_000, own));
    // With nothing in use, nothing but what is free is needed.
    assert_eq!(allocator.enough(0), FrameSettings::default().watermarks.pages(0)[2]);
    allocator.charge_more(10_000);
    assert_eq!(allocator.enough(8_000), 10_000 + own[2]);
    // Whoever shared them has ended.
    allocator.set_shared(0);
    assert_eq!(allocator.own(), 40_000);
}

/// What reclaim frees comes back to the lists of processors, from which faults take. Where it needs
/// frames itself meanwhile, for compressed pages, the reserve must not go to faults by and by.
#[test]
fn faults_do_not_take_the_reserve_by_way_of_lists() {
    let allocator = allocator_of(80_000, FrameSettings::default(), 1);
    let fault = || allocator.alloc(0, Mobility::Movable, Need::Fault);
    let mut resident: Vec<_> = std::iter::from_fn(fault).collect();
    for round in 0..200 {
        // A batch: half as many frames for what it stores as it frees.
        let chunks: Vec<_> =
            (0..3).map_while(|_| allocator.alloc(4, Mobility::Unmovable, Need::Reclaim)).collect();
        assert_eq!(chunks.len(), 3, "reclaim finds no frames in round {round}");
        assert!(resident.len() > 96, "the load must stay larger than a batch");
        allocator.free_many(&resident.split_off(resident.len() - 96));
        resident.extend(std::iter::from_fn(fault));
    }
}

#[test]
fn buffers_that_are_given_back_are_told() {
    let allocator = allocator(FrameSettings::default(), 1);
    let told = || allocator.stats.get(Counter::ChargedBytes);
    let frame = allocator.alloc(0, Mobility::Movable, Need::Fault).unwrap();
    let before = told();
    let promise = allocator.promise(3, 1);
    assert!(allocator.charge(&promise));
    assert_eq!(told(), before + (3 << 12));
    allocator.charge_more(2);
    assert_eq!(told(), before + (5 << 12));
    allocator.charge_less(2);
    allocator.uncharge(&promise);
    assert_eq!(told(), before);
    allocator.free(frame, 0);
}

/// Room is kept for the first buffer of a kind; another one leaves the reserve alone.
#[test]
fn the_first_buffer_has_room_and_another_one_where_there_is_some() {
    let allocator = allocator_of(512, FrameSettings { percpu: false, ..Default::default() }, 1);
    let promise = allocator.promise(32, 1);
    let frames: Vec<FrameId> =
        std::iter::from_fn(|| allocator.alloc(0, Mobility::Movable, Need::Fault)).collect();
    assert_eq!((frames.len(), allocator.free_pages()), (512 - 96 - 32, 96));
    assert!(allocator.charge(&promise));
    assert_eq!((allocator.promised(), allocator.charged(), allocator.free_pages()), (0, 32, 96));
    assert!(!allocator.charge(&promise));
    frames[..32].iter().for_each(|frame| allocator.free(*frame, 0));
    assert!(allocator.charge(&promise));
    assert_eq!((allocator.charged(), allocator.free_pages()), (64, 96));
    allocator.uncharge(&promise);
    assert_eq!((allocator.promised(), allocator.charged()), (0, 32), "one is used still");
    allocator.uncharge(&promise);
    assert_eq!((allocator.promised(), allocator.charged()), (32, 0));
    frames[32..].iter().for_each(|frame| allocator.free(*frame, 0));
}

/// A buffer may be charged while reclaim has what was promised to it: that is no peak, whatever
/// goes back to the zone meanwhile.
#[test]
fn the_peak_is_what_was_in_use_where_frames_were_taken() {
    let settings = FrameSettings { percpu: false, ..FrameSettings::default() };
    let allocator = allocator_of(512, settings, 1);
    let promise = allocator.promise(8, 1);
    let take = || allocator.alloc(0, Mobility::Movable, Need::Reclaim);
    let frames: Vec<FrameId> = std::iter::from_fn(take).collect();
    assert!(allocator.charge(&promise));
    assert_eq!((frames.len(), allocator.used()), (512, 520));
    let peak = || allocator.stats.get(Counter::ChargedPeakBytes) >> 12;
    allocator.free(frames[0], 0);
    assert_eq!((peak(), take()), (512, None));
    frames[1..].iter().for_each(|frame| allocator.free(*frame, 0));
    assert_eq!(peak(), 512);
}

#[test]
fn kinds_that_stay_do_not_break_up_the_runs_of_others() {
    let allocator = allocator(FrameSettings::default(), 1);
    let mut random = 1u64;
    let mut owned: Vec<FrameId> = Vec::new();
    // Single pages come and go in any order, until they take half of the budget and lie all over
    // their pageblocks.
    for _ in 0..20_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) as usize;
        if owned.len() as u64 > LIMIT / 2 && at.is_multiple_of(2) {
            allocator.free(owned.swap_remove(at / 2 % owned.len()), 0);
        } else if let Some(frame) = allocator.alloc(0, Mobility::Movable, Need::Fault) {
            owned.push(frame);
        }
        if owned.len() as u64 > LIMIT * 3 / 4 {
            owned.drain(..100).for_each(|frame| allocator.free(frame, 0));
        }
    }
    // Long runs are still there for the swap cache.
    let runs: Vec<_> =
        (0..6).map(|_| allocator.alloc(6, Mobility::Reclaimable, Need::Reclaim).unwrap()).collect();
    runs.iter().for_each(|run| allocator.free(*run, 6));
}

#[test]
fn lists_save_the_lock() {
    let count = |percpu| {
        let allocator =
            allocator_of(1 << 16, FrameSettings { percpu, ..FrameSettings::default() }, 1);
        let mut frames = Vec::new();
        for _ in 0..50 {
            frames.extend(
                (0..1000).map(|_| allocator.alloc(0, Mobility::Movable, Need::Fault).unwrap()),
            );
            allocator.free_many(&frames);
            frames.clear();
        }
        allocator.stats.get(Counter::ZoneLock)
    };
    assert!(count(false) > 30 * count(true));
}

#[test]
fn an_arena_shrinks_when_its_last_frames_come_back() {
    let allocator = allocator(FrameSettings::default(), 1);
    let span = allocator.frames();
    // Every block of the arena, so that the last ones are in use.
    let blocks: Vec<_> =
        std::iter::from_fn(|| allocator.alloc(MAX_ORDER, Mobility::Movable, Need::Over)).collect();
    assert_eq!(blocks.len(), span / PAGEBLOCK);
    resize(&allocator, LIMIT / 2);
    allocator.give_up_surplus(|_| panic!("nothing is free yet"));
    assert!(allocator.has_surplus());
    let mut left = 0;
    blocks.iter().for_each(|block| allocator.free(*block, MAX_ORDER));
    allocator.give_up_surplus(|frames| left += frames.len());
    assert!(left > 0 && !allocator.has_surplus());
    assert_eq!(allocator.frames(), span - left);
    resize(&allocator, LIMIT);
    assert_eq!(allocator.frames(), span);
    allocator.check();
}

#[test]
fn what_is_kept_of_free_frames_is_given_back() {
    let allocator = allocator(FrameSettings::default(), 1);
    let take = || allocator.alloc(0, Mobility::Movable, Need::Over).unwrap();
    let frames: Vec<_> = std::iter::repeat_with(take).take(6 * PAGEBLOCK).collect();
    let owner = |frame: FrameId| Owner::Page(PageIndex(frame.0 as usize + 1));
    frames.iter().for_each(|frame| allocator.cells().set_owner(*frame, owner(*frame)));
    // Of two pageblocks one frame each is still in use.
    let at = |frame: &FrameId| frame.0 as usize / PAGEBLOCK;
    let kept = [0, 3].map(|block| *frames.iter().find(|frame| at(frame) == block).unwrap());
    frames.iter().filter(|frame| !kept.contains(frame)).for_each(|frame| allocator.free(*frame, 0));
    let known = || allocator.cells().iter().filter(|word| word.load(Relaxed) != 0).count();
    let before = known();
    allocator.trim();
    allocator.check();
    // All of two pageblocks that are in use, and of two between them the page of the first frame.
    assert!(before > 11 * PAGEBLOCK && known() <= 6 * PAGEBLOCK, "{before}, {}", known());
    kept.iter().for_each(|frame| assert_eq!(allocator.cells().owner(*frame), Some(owner(*frame))));
    // Frames come again, of the pageblocks that were taken out of use too.
    let again: Vec<_> = std::iter::repeat_with(take).take(6 * PAGEBLOCK - kept.len()).collect();
    assert!(!again.iter().any(|frame| kept.contains(frame)));
    allocator.check();
}

#[test]
fn metadata_stays_small() {
    const { assert!(Zone::METADATA_BYTES_PER_PAGEBLOCK <= 10 * PAGEBLOCK) };
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_seen_after_merging() {
    let allocator = allocator(FrameSettings::default(), 1);
    let frame = allocator.alloc(3, Mobility::Movable, Need::Fault).unwrap();
    allocator.free(frame, 3);
    // By now the frame lies in the middle of a larger free block.
    allocator.drain();
    allocator.free(FrameId(frame.0 + 5), 0);
    allocator.drain();
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_block_with_a_free_part_is_not_freed() {
    let allocator = allocator(FrameSettings { percpu: false, ..FrameSettings::default() }, 1);
    let frame = allocator.alloc(7, Mobility::Movable, Need::Fault).unwrap();
    allocator.free(FrameId(frame.0 + 127), 0);
    allocator.free(frame, 7);
}

#[test]
#[should_panic(expected = "cannot begin")]
fn a_misaligned_free_is_seen() {
    let allocator = allocator(FrameSettings::default(), 1);
    let frame = allocator.alloc(4, Mobility::Movable, Need::Fault).unwrap();
    allocator.free(FrameId(frame.0 + 2), 2);
}

/// Which frames have an owner.
struct Owned(Vec<AtomicBool>);

impl Owned {
    fn change(&self, first: FrameId, order: u8, now: bool) {
        for flag in &self.0[first.0 as usize..first.0 as usize + (1 << order)] {
            assert_ne!(flag.swap(now, Relaxed), now, "two owners");
        }
    }
}

/// Takes and gives back frames at random.
fn take_and_give(allocator: &FrameAllocator, owned: &Owned, seed: u64) {
    let mut random = seed;
    let mut blocks: Vec<(FrameId, u8)> = Vec::new();
    let mut folio = Vec::new();
    for _ in 0..20_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let roll = (random >> 33) as usize;
        if roll.is_multiple_of(8) {
            allocator.alloc_folio(1 + roll / 8 % 64, Need::Fault, &mut folio);
            folio.iter().for_each(|frame| owned.change(*frame, 0, true));
            folio.iter().for_each(|frame| owned.change(*frame, 0, false));
            allocator.free_many(&folio);
            folio.clear();
        } else if roll.is_multiple_of(2) && !blocks.is_empty() {
            let (frame, order) = blocks.swap_remove(roll / 8 % blocks.len());
            owned.change(frame, order, false);
            allocator.free(frame, order);
        } else {
            let (order, mobility) = ((roll / 8 % 7) as u8, Mobility::ALL[roll / 64 % 3]);
            if let Some(frame) = allocator.alloc(order, mobility, Need::Fault) {
                owned.change(frame, order, true);
                blocks.push((frame, order));
            }
        }
    }
    for (frame, order) in blocks {
        owned.change(frame, order, false);
        allocator.free(frame, order);
    }
}

#[test]
fn threads_never_share_a_frame() {
    let stats = Stats::anonymous().unwrap();
    let allocator =
        FrameAllocator::new(LIMIT, LIMIT, FrameSettings::default(), Topology::new(3, &[]), stats)
            .unwrap();
    resize(&allocator, LIMIT);
    let owned = Owned((0..allocator.frames_max()).map(|_| AtomicBool::new(false)).collect());
    let working = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (allocator, owned, working) = (&allocator, &owned, &working);
        let workers: Vec<_> = (0..4u64)
            .map(|thread| scope.spawn(move || take_and_give(allocator, owned, thread + 1)))
            .collect();
        scope.spawn(move || {
            while working.load(Relaxed) {
                resize(allocator, LIMIT / 3);
                allocator.give_up_surplus(|_| {});
                allocator.decay();
                resize(allocator, LIMIT);
                std::thread::yield_now();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        working.store(false, Relaxed);
    });
    allocator.drain();
    allocator.check();
    assert_eq!(allocator.used(), 0);
}
