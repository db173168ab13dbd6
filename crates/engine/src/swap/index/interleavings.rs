//! A slot that is written, read ahead, taken, given up and used again, in interleavings that a
//! checker explores.
//!
//! The entry and its changes are the engine's own ([`IndexCell`]), each under the lock of the
//! partition; look-ups are without it. Around them stands a model: a device whose slot holds a
//! version in place of content, and two frames. Checked: the owner always gets the version that it
//! stored last; a slot is used again only when nobody reads it; no frame is lost or given back
//! twice. A [`Bug`] is a wrong order of steps that the model must find, which shows that it can.

use super::{Entry, GivenUp, IndexCell, Stamp};
use crate::units::FrameId;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

type Word = shuttle::sync::atomic::AtomicU64;

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// A frame that a look-up has shown is used without another look under the lock.
    TrustLookUp,
    /// A slot that is read ahead is given back by who gives it up.
    FreeWhileRead,
    /// Reading ahead begins without another look under the lock.
    ReadUnclaimed,
}

const FRAMES: usize = 2;

struct Model {
    bug: Option<Bug>,
    entry: Word,
    partition: Mutex<()>,
    /// What lies in the slot.
    device: Word,
    /// Whether the slot is free to be handed out.
    slot_free: Word,
    /// The version in each frame, 0 for one that is free.
    frames: [Word; FRAMES],
    /// When the page left that is read ahead into each.
    stamps: [Word; FRAMES],
}

impl Model {
    fn new(bug: Option<Bug>) -> Model {
        let word = || Word::new(0);
        let (frames, stamps) = ([word(), word()], [word(), word()]);
        let (entry, device, slot_free) = (word(), word(), Word::new(1));
        Model { bug, entry, partition: Mutex::new(()), device, slot_free, frames, stamps }
    }

    fn cell(&self) -> IndexCell<'_, Word> {
        IndexCell { entry: &self.entry, stamps: &self.stamps }
    }

    fn change<T>(&self, change: impl FnOnce(IndexCell<'_, Word>) -> T) -> T {
        let _held = self.partition.lock().unwrap();
        change(self.cell())
    }

    /// The only one who hands slots out is the owner: one that is given back is there for it alone.
    fn free_slot(&self) {
        assert_eq!(self.slot_free.swap(1, SeqCst), 0, "a slot was given back twice");
    }

    fn take_frame(&self, version: u64) -> Option<FrameId> {
        let free = |frame: &usize| {
            self.frames[*frame].compare_exchange(0, version, SeqCst, SeqCst).is_ok()
        };
        (0..FRAMES).find(free).map(|frame| FrameId(frame as u32))
    }

    /// Gives a frame back; the version that was in it.
    fn free_frame(&self, frame: FrameId) -> u64 {
        let version = self.frames[frame.0 as usize].swap(0, SeqCst);
        assert_ne!(version, 0, "a frame was given back twice");
        version
    }

    fn free_frames(&self, frames: impl IntoIterator<Item = FrameId>) {
        for frame in frames {
            self.free_frame(frame);
        }
    }

    /// Stores a version in a slot that is handed out anew.
    fn store(&self, version: u64) {
        while self.slot_free.swap(0, SeqCst) == 0 {
            shuttle::thread::yield_now();
        }
        self.device.store(version, SeqCst);
        self.change(|cell| cell.stored(Stamp::new(version)));
    }

    /// As a fault of the owner does: the page comes in, and its slot goes.
    fn load(&self, version: u64) {
        // 1. Where is it?
        loop {
            let found = match self.cell().load() {
                Entry::Busy(_) => {
                    shuttle::thread::yield_now();
                    continue;
                }
                Entry::Frame(frame) if self.bug == Some(Bug::TrustLookUp) => {
                    Some(self.free_frame(frame))
                }
                Entry::Frame(..) => {
                    self.change(|cell| cell.take_frame()).map(|frame| self.free_frame(frame))
                }
                _ => None,
            };
            let found = found.unwrap_or_else(|| self.device.load(SeqCst));
            assert_eq!(found, version, "not what was stored");
            break;
        }
        // 2. The slot is needed no more.
        match self.change(|cell| cell.give_up()) {
            GivenUp::Now(frame) => {
                frame.into_iter().for_each(|frame| assert_eq!(self.free_frame(frame), version));
                self.free_slot();
            }
            GivenUp::Later if self.bug == Some(Bug::FreeWhileRead) => self.free_slot(),
            GivenUp::Later => {}
        }
    }

    /// As a fault on a neighbour does, which knows nothing of the page.
    fn read_ahead(&self) {
        if !matches!(self.cell().load(), Entry::Shadow(_)) {
            return;
        }
        let claimed = self.bug == Some(Bug::ReadUnclaimed) || self.change(|cell| cell.begin_io());
        if !claimed {
            return;
        }
        let frame = self.take_frame(self.device.load(SeqCst));
        let wanted = match self.bug {
            Some(Bug::ReadUnclaimed) => self.change(|cell| {
                if let (Entry::Shadow(_), Some(frame)) = (cell.load(), frame) {
                    cell.set(Entry::Frame(frame));
                    return true;
                }
                self.free_frames(frame);
                true
            }),
            _ => self.change(|cell| cell.end_io(frame)),
        };
        if !wanted {
            self.free_frames(frame);
            if self.bug != Some(Bug::FreeWhileRead) {
                self.free_slot();
            }
        }
    }

    /// As the second hand of the clock does.
    fn reclaim(&self) {
        if let Some(frame) = self.change(|cell| cell.take_frame()) {
            self.free_frame(frame);
        }
    }
}

fn scenario(bug: Option<Bug>) {
    let model = Arc::new(Model::new(bug));
    let actors: [fn(&Model); 4] = [
        |m| {
            for version in 1..=3 {
                m.store(version);
                m.load(version);
            }
        },
        |m| (0..3).for_each(|_| m.read_ahead()),
        |m| (0..2).for_each(|_| m.read_ahead()),
        |m| (0..3).for_each(|_| m.reclaim()),
    ];
    let threads = actors.map(|actor| {
        let model = model.clone();
        shuttle::thread::spawn(move || actor(&model))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(model.cell().load(), Entry::None);
    assert_eq!(model.slot_free.load(SeqCst), 1, "a slot is lost");
    assert!(model.frames.iter().all(|frame| frame.load(SeqCst) == 0), "a frame is lost");
}

fn explore(scheduler: impl Scheduler + 'static, bug: Option<Bug>) {
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(move || scenario(bug));
}

const SCHEDULES: usize = 5_000;

#[test]
fn no_interleaving_gives_a_wrong_page_or_loses_a_place() {
    explore(RandomScheduler::new(SCHEDULES), None);
    [2, 3, 4].into_iter().for_each(|depth| explore(PctScheduler::new(depth, SCHEDULES), None));
}

#[test]
fn the_model_finds_every_seeded_bug() {
    for bug in [Bug::TrustLookUp, Bug::FreeWhileRead, Bug::ReadUnclaimed] {
        let scheduler = RandomScheduler::new_from_seed(1, SCHEDULES);
        let found = std::panic::catch_unwind(|| explore(scheduler, Some(bug)));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
