//! The allocator on two processors, in interleavings that a checker explores: frames that travel
//! between lists, a drain from another processor, a limit that is nearly reached, and an arena that
//! shrinks.
//!
//! Checked: no frame has two owners, no more are handed out than there is room for, and none is
//! lost. A [`Bug`] is a mistake in the allocator's own steps, which must be found.

use super::{FrameAllocator, FrameSettings, MAX_ORDER, Mobility, Need, PAGEBLOCK};
use crate::base::explore::{MODEL_CPUS, finds_each, finds_nothing};
use crate::base::seeded::Bug;
use crate::stats::Stats;
use crate::units::FrameId;
use overspill_os::cpu::Topology;
use shuttle::rand::{Rng, thread_rng};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex};

/// With this limit the list of a processor keeps eight frames at most.
const LIMIT: u64 = 1024;
/// Frames that may be had beside those of the first pageblock.
const ROOM: u64 = 10;

static STATS: LazyLock<Stats> = LazyLock::new(|| Stats::anonymous().unwrap());

struct Machine {
    frames: FrameAllocator,
    /// The first pageblock, which is handed out as one.
    first: FrameId,
    owned: Mutex<HashSet<FrameId>>,
}

impl Machine {
    fn new() -> Machine {
        let topology = Topology::new(MODEL_CPUS, &[(0..MODEL_CPUS).collect()]);
        let frames =
            FrameAllocator::new(LIMIT, LIMIT, FrameSettings::default(), topology, *STATS).unwrap();
        frames.resize(LIMIT, |_| Ok::<_, ()>(())).unwrap();
        let first = frames.alloc(MAX_ORDER, Mobility::Movable, Need::Reclaim).unwrap();
        frames.charge_more(LIMIT - PAGEBLOCK as u64 - ROOM);
        Machine { frames, first, owned: Mutex::default() }
    }

    fn alloc(&self) -> Option<FrameId> {
        let frame = self.frames.alloc(0, Mobility::Movable, Need::Reclaim)?;
        let mut owned = self.owned.lock().unwrap();
        assert!(owned.insert(frame), "{frame:?} was handed out twice");
        assert!(owned.len() as u64 <= ROOM, "{} are handed out", owned.len());
        Some(frame)
    }

    fn free(&self, frame: FrameId) {
        assert!(self.owned.lock().unwrap().remove(&frame));
        self.frames.free(frame, 0);
    }
}

/// Takes frames and gives them back, not the last one first.
fn use_frames(machine: &Machine) {
    let mut frames = Vec::new();
    for _ in 0..4 {
        frames.extend(machine.alloc());
        frames.extend(machine.alloc());
        if !frames.is_empty() {
            machine.free(frames.swap_remove(thread_rng().gen_range(0..frames.len())));
        }
    }
    frames.into_iter().for_each(|frame| machine.free(frame));
}

/// All but the first pageblock is to leave.
fn shrink(machine: &Machine) {
    machine.frames.resize(0, |_| Ok::<_, ()>(())).unwrap();
    machine.frames.drain();
    let owned = machine.owned.lock().unwrap().clone();
    assert!(owned.into_iter().all(|frame| machine.frames.is_isolated(frame)));
}

fn scenario() {
    let machine = Arc::new(Machine::new());
    let actors: [fn(&Machine); 4] = [use_frames, use_frames, use_frames, shrink];
    let threads = actors.map(|actor| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || actor(&machine))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Whoever found a frame in the lists just before they were drained may have given it back
    // after: once more, as those who empty an arena do, and everything is in its place.
    let mut closed = Vec::new();
    machine.frames.give_up_surplus(|frames| closed.push(frames));
    machine.frames.check();
    assert_eq!(machine.frames.handed_out(), PAGEBLOCK as u64, "a frame was lost");
    let all = PAGEBLOCK as u32..2 * LIMIT as u32;
    assert_eq!(closed.as_slice(), std::slice::from_ref(&all), "an isolated frame is in use");
    machine.frames.free(machine.first, MAX_ORDER);
}

const SCHEDULES: usize = 1_000;

#[test]
fn no_interleaving_loses_a_frame_or_hands_one_out_twice() {
    finds_nothing(SCHEDULES, scenario);
}

#[test]
fn mistakes_with_frames_are_found() {
    finds_each(&[Bug::IsolatedInLists, Bug::RoomUnlocked], SCHEDULES, scenario);
}
