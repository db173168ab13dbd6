//! The allocator against a model that knows of each frame only whether it is handed out.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

#[derive(Clone, Debug)]
enum Op {
    Alloc(u8),
    AllocMany(usize),
    /// Free the block at this place of the list of owned blocks.
    Free(usize),
    /// Free that block in two halves, the upper one first.
    FreeInParts(usize),
    /// Free this many owned blocks of order 0 in one call.
    FreeMany(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..=MAX_ORDER).prop_map(Op::Alloc),
        1 => (0usize..150).prop_map(Op::AllocMany),
        3 => any::<usize>().prop_map(Op::Free),
        1 => any::<usize>().prop_map(Op::FreeInParts),
        1 => (0usize..100).prop_map(Op::FreeMany),
    ];
    prop::collection::vec(op, 1..80)
}

struct Model {
    used: Vec<bool>,
    /// First frame and order of what is owned.
    owned: Vec<(FrameId, u8)>,
}

impl Model {
    fn take(&mut self, frame: FrameId, order: u8) {
        let at = frame.0 as usize;
        assert_eq!(at % (1 << order), 0);
        for used in &mut self.used[at..at + (1 << order)] {
            assert!(!std::mem::replace(used, true), "handed out twice");
        }
        self.owned.push((frame, order));
    }

    fn give(&mut self, frame: FrameId, order: u8) {
        let at = frame.0 as usize;
        self.used[at..at + (1 << order)].fill(false);
    }

    fn has_free(&self, order: u8) -> bool {
        self.used.chunks_exact(1 << order).any(|block| block.iter().all(|used| !used))
    }
}

proptest! {
    #[test]
    fn none_handed_out_twice_none_lost(frames in 1usize..2000, ops in ops()) {
        let allocator = FrameAllocator::new(frames);
        let mut model = Model { used: vec![false; frames], owned: Vec::new() };
        for op in ops {
            match op {
                Op::Alloc(order) => match allocator.alloc(order) {
                    Some(frame) => model.take(frame, order),
                    // Merged as far as can be, so whatever is free and aligned is found.
                    None => prop_assert!(!model.has_free(order)),
                },
                Op::AllocMany(want) => {
                    let mut out = vec![FrameId(NONE); want];
                    let free = allocator.free_frames();
                    prop_assert_eq!(allocator.alloc_many(&mut out), want.min(free));
                    for frame in &out[..want.min(free)] {
                        model.take(*frame, 0);
                    }
                }
                Op::Free(at) if !model.owned.is_empty() => {
                    let (frame, order) = model.owned.swap_remove(at % model.owned.len());
                    allocator.free(frame, order);
                    model.give(frame, order);
                }
                Op::FreeInParts(at) if !model.owned.is_empty() => {
                    let (frame, order) = model.owned.swap_remove(at % model.owned.len());
                    model.give(frame, order);
                    if order == 0 {
                        allocator.free(frame, 0);
                    } else {
                        allocator.free(FrameId(frame.0 + (1 << (order - 1))), order - 1);
                        allocator.free(frame, order - 1);
                    }
                }
                Op::FreeMany(want) => {
                    let (mut single, rest): (Vec<_>, Vec<_>) = model.owned.drain(..).partition(|(_, order)| *order == 0);
                    let freed: Vec<_> = single.drain(..want.min(single.len())).map(|(frame, _)| frame).collect();
                    model.owned = single;
                    model.owned.extend(rest);
                    allocator.free_many(&freed);
                    freed.iter().for_each(|frame| model.give(*frame, 0));
                }
                Op::Free(_) | Op::FreeInParts(_) => {}
            }
            prop_assert_eq!(allocator.free_frames(), model.used.iter().filter(|used| !**used).count());
            allocator.check();
            let zone = lock(&allocator.zone);
            for (frame, used) in model.used.iter().enumerate() {
                prop_assert_eq!(zone.used[frame / 64] >> (frame % 64) & 1 == 1, *used, "frame {}", frame);
            }
        }
        // All freed, all merged: every block is as large as the arena allows.
        for (frame, order) in model.owned.drain(..) {
            allocator.free(frame, order);
        }
        allocator.check();
        prop_assert_eq!(allocator.free_frames(), frames);
        prop_assert_eq!(&lock(&allocator.zone).tags, &Zone::new(frames).tags);
    }
}

#[test]
fn a_new_arena_is_cut_into_the_largest_blocks() {
    for frames in [0, 1, 2, 3, 511, 512, 513, 1023, 1024, 5000] {
        let allocator = FrameAllocator::new(frames);
        allocator.check();
        assert_eq!((allocator.frames(), allocator.free_frames()), (frames, frames));
        let largest = (0..frames / 512).map(|_| allocator.alloc(MAX_ORDER).expect("a whole block")).collect::<Vec<_>>();
        assert!(largest.is_sorted(), "lowest addresses first");
        assert_eq!(allocator.alloc(MAX_ORDER), None);
        let mut rest = vec![FrameId(NONE); frames];
        assert_eq!(allocator.alloc_many(&mut rest), frames % 512);
        assert_eq!((allocator.free_frames(), allocator.alloc(0)), (0, None));
    }
}

#[test]
fn many_frames_come_in_runs() {
    let allocator = FrameAllocator::new(4096);
    let mut out = [FrameId(NONE); 300];
    assert_eq!(allocator.alloc_many(&mut out), 300);
    assert!(out.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "one run from one block");
}

#[test]
fn metadata_stays_small() {
    let zone = Zone::new(1 << 12);
    let bytes = size_of_val(&*zone.links) + size_of_val(&*zone.tags) + size_of_val(&*zone.used);
    assert!(bytes <= 10 << 12, "{bytes} bytes for 4096 frames");
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_seen_after_merging() {
    let allocator = FrameAllocator::new(512);
    let frame = allocator.alloc(3).unwrap();
    allocator.free(frame, 3);
    // By now the frame lies in the middle of a larger free block.
    allocator.free(FrameId(frame.0 + 5), 0);
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_block_with_a_free_part_is_not_freed() {
    let allocator = FrameAllocator::new(512);
    let frame = allocator.alloc(7).unwrap();
    allocator.free(FrameId(frame.0 + 127), 0);
    allocator.free(frame, 7);
}

#[test]
#[should_panic(expected = "cannot begin a block")]
fn a_misaligned_free_is_seen() {
    let allocator = FrameAllocator::new(512);
    let frame = allocator.alloc(4).unwrap();
    allocator.free(FrameId(frame.0 + 2), 2);
}

#[test]
#[should_panic(expected = "outside the arena")]
fn a_free_outside_the_arena_is_seen() {
    FrameAllocator::new(100).free(FrameId(100), 0);
}

#[test]
fn threads_never_share_a_frame() {
    const FRAMES: usize = 3000;
    let allocator = FrameAllocator::new(FRAMES);
    let owned: Vec<AtomicBool> = (0..FRAMES).map(|_| AtomicBool::new(false)).collect();
    let claim = |first: FrameId, count: usize, now: bool| {
        for flag in &owned[first.0 as usize..first.0 as usize + count] {
            assert_ne!(flag.swap(now, Relaxed), now, "two owners");
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (allocator, claim) = (&allocator, &claim);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut blocks: Vec<(FrameId, u8)> = Vec::new();
                let mut singles = [FrameId(NONE); 64];
                for _ in 0..20_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let roll = (random >> 33) as usize;
                    if roll.is_multiple_of(8) {
                        let taken = allocator.alloc_many(&mut singles[..1 + roll / 8 % 64]);
                        singles[..taken].iter().for_each(|frame| claim(*frame, 1, true));
                        singles[..taken].iter().for_each(|frame| claim(*frame, 1, false));
                        allocator.free_many(&singles[..taken]);
                    } else if roll.is_multiple_of(2) && !blocks.is_empty() {
                        let (frame, order) = blocks.swap_remove(roll / 8 % blocks.len());
                        claim(frame, 1 << order, false);
                        allocator.free(frame, order);
                    } else if let Some(frame) = allocator.alloc((roll / 8 % 7) as u8) {
                        let order = (roll / 8 % 7) as u8;
                        claim(frame, 1 << order, true);
                        blocks.push((frame, order));
                    }
                }
                for (frame, order) in blocks {
                    claim(frame, 1 << order, false);
                    allocator.free(frame, order);
                }
            });
        }
    });
    allocator.check();
    assert_eq!(allocator.free_frames(), FRAMES);
}
