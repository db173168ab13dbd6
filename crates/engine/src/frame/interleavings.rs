//! Lists of processors and a drain from another one, in interleavings that a checker explores.
//!
//! Lists and zone are the allocator's own; the locks around them are the checker's. The steps of an
//! actor are those of the method of [`super::FrameAllocator`] named with it, in the same order; who
//! changes one changes the other.

use super::cells::FrameCells;
use super::percpu::{CpuLists, ListMarks, Picked};
use super::zone::{Pageblocks, Zone};
use super::{Mobility, PAGEBLOCK};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

const FRAMES: u32 = 2 * PAGEBLOCK as u32;

struct Machine {
    lists: [Mutex<CpuLists>; 2],
    zone: Mutex<Zone>,
    pageblocks: Pageblocks,
    owned: Mutex<HashSet<u32>>,
}

impl Machine {
    fn new() -> Machine {
        let pageblocks = Pageblocks::new(FRAMES as usize).unwrap();
        let mut zone =
            Zone::new(0..FRAMES, pageblocks.clone(), FrameCells::new(FRAMES as usize).unwrap())
                .unwrap();
        zone.resize(FRAMES);
        let lists = || Mutex::new(CpuLists::new(ListMarks { batch: 2, high_max: 8 }));
        Machine {
            lists: [lists(), lists()],
            zone: Mutex::new(zone),
            pageblocks,
            owned: Mutex::default(),
        }
    }

    /// `alloc_from_lists`
    fn alloc(&self, cpu: usize) -> Option<u32> {
        let mut lists = self.lists[cpu].try_lock().ok()?;
        let frame = lists.pop(Mobility::Movable, 0).or_else(|| {
            let blocks = lists.to_take(0);
            let (mut zone, mut taken) = (self.zone.lock().unwrap(), Vec::new());
            for _ in 0..blocks {
                let Some((block, _)) = zone.alloc(0, Mobility::Movable) else { break };
                taken.push(block);
            }
            drop(zone);
            for block in taken {
                shuttle::thread::yield_now();
                self.pageblocks.set_used(block, 0);
                lists.push(block, 0, Mobility::Movable);
            }
            lists.pop(Mobility::Movable, 0)
        })?;
        drop(lists);
        assert!(self.owned.lock().unwrap().insert(frame), "frame {frame} was handed out twice");
        Some(frame)
    }

    /// `free`
    fn free(&self, cpu: usize, frame: u32) {
        assert!(self.owned.lock().unwrap().remove(&frame));
        let lists = self.lists[cpu].try_lock().ok();
        let isolated = self.pageblocks.mobility(frame) == Mobility::Isolated;
        match lists {
            Some(mut lists) if !isolated => {
                shuttle::thread::yield_now();
                lists.push(frame, 0, Mobility::Movable);
                let frames = lists.to_give();
                self.give(&mut lists, frames);
            }
            _ => {
                self.pageblocks.clear_used(frame, 0);
                shuttle::thread::yield_now();
                self.zone.lock().unwrap().free(frame, 0);
            }
        }
    }

    /// `give`
    fn give(&self, lists: &mut CpuLists, mut frames: u32) {
        let mut picked = Picked::new();
        while frames > 0 && lists.frames() > 0 {
            let before = lists.frames();
            lists.pick(frames, &mut picked);
            picked.merge();
            picked
                .blocks()
                .iter()
                .for_each(|(block, order)| self.pageblocks.clear_used(*block, *order));
            shuttle::thread::yield_now();
            let mut zone = self.zone.lock().unwrap();
            picked.blocks().iter().for_each(|(block, order)| zone.free(*block, *order));
            frames = frames.saturating_sub(before - lists.frames());
        }
    }

    /// `drain`
    fn drain(&self) {
        for lists in &self.lists {
            let mut lists = lists.lock().unwrap();
            self.give(&mut lists, u32::MAX);
        }
    }
}

/// Two processors that take and give back, frames that travel between them, and an arena that
/// shrinks meanwhile.
fn scenario() {
    let machine = Arc::new(Machine::new());
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let machine = machine.clone();
            shuttle::thread::spawn(move || {
                let mut frames = Vec::new();
                for _ in 0..4 {
                    // A thread may be moved to the other processor between any two calls.
                    let cpu = (thread + thread_rng().gen_range(0..2)) % 2;
                    frames.extend(machine.alloc(cpu));
                    frames.extend(machine.alloc(cpu));
                    if let Some(frame) = frames.pop() {
                        machine.free((cpu + thread_rng().gen_range(0..2)) % 2, frame);
                    }
                }
                frames.into_iter().for_each(|frame| machine.free(thread % 2, frame));
            })
        })
        .collect();
    let shrinking = machine.clone();
    let shrink = shuttle::thread::spawn(move || {
        shrinking.zone.lock().unwrap().resize(0);
        shrinking.drain();
        let isolated = |frame: &u32| shrinking.pageblocks.mobility(*frame) == Mobility::Isolated;
        assert!(shrinking.owned.lock().unwrap().iter().all(isolated));
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    shrink.join().unwrap();
    // Whoever found a frame in the lists just before they were drained may have given it back
    // after: once more, as those who empty an arena do, and everything is in its place.
    machine.drain();
    let mut zone = machine.zone.lock().unwrap();
    zone.check();
    assert_eq!(zone.used(), 0, "a frame was lost");
    assert_eq!(zone.shrink(), 0..FRAMES, "an isolated frame came back into use");
}

#[test]
fn no_interleaving_loses_a_frame_or_hands_one_out_twice() {
    fn explore(scheduler: impl Scheduler + 'static) {
        shuttle::Runner::new(scheduler, shuttle::Config::default()).run(scenario);
    }
    explore(RandomScheduler::new(1_000));
    explore(PctScheduler::new(3, 1_000));
}
