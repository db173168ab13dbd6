//! Pages that are moved off a device beside all that may become of them meanwhile, in interleavings
//! that a checker explores.
//!
//! The page words, the entries of the slot index and their changes are the engine's own
//! ([`PageCell`], [`IndexCell`]). Around them stands a model: a device that leaves and what else
//! has slots, frames, the compressed tier, and two pages whose content is a version. The steps of
//! an actor are those of the method of the engine named with it, in the same order; who changes one
//! changes the other.
//!
//! Checked: a page always reads as it was written last, and an access fails only if its page cannot
//! be read; no slot or frame is lost or given back twice; a slot goes back when its page is
//! elsewhere and nobody is at it; a device closes empty; a fault waits for no more than the run
//! that its page is in.
//!
//! That the device hands nothing out while it leaves and that slots are claimed are two defences,
//! each of which keeps pages whole by itself. So in half of the schedules the device goes on
//! handing slots out: there the claim alone does it. A [`Bug`] is a wrong order of steps that the
//! model must find, which shows that it can.

mod evacuation;
mod program;

use crate::base::explore::{finds_each, finds_nothing};
use crate::memory::word::{PageCell, State};
use crate::swap::index::IndexCell;
use crate::swap::{Entry, GivenUp};
use crate::units::{FrameId, SlotId};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Mutex, MutexGuard, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

type Word = shuttle::sync::atomic::AtomicU64;

const PAGES: usize = 2;
/// Slots of the device that leaves, and with those that are elsewhere.
const LEAVING: usize = 2;
const SLOTS: usize = LEAVING + 3;
const FRAMES: usize = 1;
/// Threads of the evacuation, and passes of each after which it leaves what has no room.
const THREADS: usize = 2;
const PATIENCE: usize = 3;
/// The frame that a page in the page tables owns, which plays no part here.
const OWN: FrameId = FrameId(0);
/// What is on a device that was not written, or is being written.
const TORN: u64 = u64::MAX;

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// As in the original: pages are read and installed without a claim on their slots.
    Unclaimed,
    /// The claim ends, and slots go back, before words say where their pages are.
    EndedUnpublished,
    /// The claim on a page that has no room is kept for the next pass.
    KeptWithoutRoom,
    /// A page is locked without another look at its word.
    NotLookedAgain,
    /// A page is taken from the device although its store is under way: its slot is known, its
    /// compressed copy is not yet.
    ReadTooSoon,
    /// The same page is taken for lost.
    LostTooSoon,
    /// A slot that is being moved is given back by who gives its page up.
    FreedByOwner,
    /// A slot that was moved is given back before the claim ends.
    FreedClaimed,
    /// The run is given back as a whole, when of one of its slots the page was given up.
    WholeRunFreed,
    /// What was read ahead while its page was being stored is taken for the page.
    FrameTrusted,
    /// Who looked before the device was retired takes a slot after that.
    NotSynchronized,
    /// The device is closed when nothing more can be moved.
    ClosedInUse,
}

const BUGS: [Bug; 12] = [
    Bug::Unclaimed,
    Bug::EndedUnpublished,
    Bug::KeptWithoutRoom,
    Bug::NotLookedAgain,
    Bug::ReadTooSoon,
    Bug::LostTooSoon,
    Bug::FreedByOwner,
    Bug::FreedClaimed,
    Bug::WholeRunFreed,
    Bug::FrameTrusted,
    Bug::NotSynchronized,
    Bug::ClosedInUse,
];

#[derive(Default)]
struct Slot {
    /// In the slot index, with the page and the lock of the partition.
    entry: Word,
    owner: Word,
    partition: Mutex<()>,
    /// The run in which it is claimed by an evacuation, counted from 1; changed with `partition`
    /// locked.
    run: Word,
    in_use: Word,
    /// What is on the device, and the version that the compressed tier has of it.
    device: Word,
    compressed: Word,
}

/// A page in the page tables, and what the program must find there.
#[derive(Default)]
struct Mapped {
    content: Option<u64>,
    protected: bool,
    truth: u64,
}

#[derive(Default)]
struct Machine {
    bug: Option<Bug>,
    /// Whether the device is retired while its pages are moved.
    retires: bool,
    /// Whether there is room elsewhere for all pages, and the slots there.
    is_roomy: bool,
    elsewhere: Range<usize>,
    /// A slot of which no page can be read, and what was written to it.
    bad: Option<usize>,
    unreadable: std::sync::Mutex<Vec<u64>>,
    slots: [Slot; SLOTS],
    /// The version in each frame, 0 for one that is free.
    frames: [Word; FRAMES],
    /// When the page left that is read ahead into each.
    stamps: [Word; FRAMES],
    words: [Word; PAGES],
    tables: [Mutex<Mapped>; PAGES],
    /// The slot that a clean page keeps.
    copies: [Word; PAGES],
    /// The entry of the device in the table.
    table: RwLock<()>,
    retired: Word,
    closed: Word,
    /// The run that each thread of the evacuation is at.
    runs: [Word; THREADS],
    next_run: std::sync::atomic::AtomicU64,
    versions: std::sync::atomic::AtomicU64,
}

fn id(slot: usize) -> SlotId {
    SlotId::new(usize::from(slot >= LEAVING), slot as u64)
}

fn stored(slot: usize) -> State {
    State::Stored(id(slot))
}

/// What takes a while: the others go on.
fn pause() {
    (0..thread_rng().gen_range(0..8)).for_each(|_| shuttle::thread::yield_now());
}

fn chance(of: u32) -> bool {
    thread_rng().gen_range(0..of) == 0
}

impl Machine {
    fn new(bug: Option<Bug>) -> Machine {
        let (retires, is_roomy) = (chance(2), chance(2));
        let elsewhere =
            LEAVING..if is_roomy { SLOTS } else { LEAVING + thread_rng().gen_range(0..2) };
        let bad = chance(2).then_some(0);
        let machine = Machine {
            bug,
            retires,
            is_roomy,
            elsewhere,
            bad,
            next_run: 1.into(),
            ..Machine::default()
        };
        machine.slots.iter().for_each(|slot| slot.device.store(TORN, SeqCst));
        machine
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn cell(&self, page: usize) -> PageCell<'_, Word> {
        PageCell(&self.words[page])
    }

    fn mapped(&self, page: usize) -> MutexGuard<'_, Mapped> {
        self.tables[page].lock().unwrap()
    }

    fn place(&self, slot: usize) -> IndexCell<'_, Word> {
        IndexCell { entry: &self.slots[slot].entry, stamps: &self.stamps }
    }

    fn look_up(&self, slot: usize) -> Entry {
        self.place(slot).load()
    }

    fn index<T>(&self, slot: usize, change: impl FnOnce(IndexCell<'_, Word>) -> T) -> T {
        let _held = self.slots[slot].partition.lock().unwrap();
        change(self.place(slot))
    }

    fn compressed(&self, slot: usize) -> u64 {
        self.slots[slot].compressed.load(SeqCst)
    }

    // ---- Slots and frames ----

    fn take_slot(&self, mut among: Range<usize>) -> Option<usize> {
        among.find(|slot| self.slots[*slot].in_use.compare_exchange(0, 1, SeqCst, SeqCst).is_ok())
    }

    /// `SwapDevices::alloc_run` of a slot.
    fn alloc(&self) -> Option<usize> {
        let entry = self.table.read().unwrap();
        let hands_out = self.closed.load(SeqCst) + self.retired.load(SeqCst) == 0;
        pause();
        let leaving = if hands_out { self.take_slot(0..LEAVING) } else { None };
        drop(entry);
        leaving.or_else(|| self.take_slot(self.elsewhere.clone()))
    }

    fn check_open(&self, slot: usize) {
        assert!(
            slot >= LEAVING || self.closed.load(SeqCst) == 0,
            "slot {slot} of a closed device is used"
        );
    }

    /// `SwapDevices::free_run`
    fn free_slot(&self, slot: usize) {
        self.check_open(slot);
        assert_eq!(
            self.look_up(slot),
            Entry::None,
            "somebody is at slot {slot}, which is given back"
        );
        let page = self.slots[slot].owner.load(SeqCst) as usize;
        let truth = self.mapped(page).truth;
        let is_here = self.cell(page).load().state() == stored(slot);
        assert!(truth == 0 || !is_here, "slot {slot} is given back before its page is elsewhere");
        assert_eq!(self.slots[slot].in_use.swap(0, SeqCst), 1, "slot {slot} is given back twice");
    }

    fn write(&self, slot: usize, version: u64) {
        self.check_open(slot);
        self.slots[slot].device.store(TORN, SeqCst);
        self.slots[slot].device.store(version, SeqCst);
        if self.bad == Some(slot) {
            self.unreadable.lock().unwrap().push(version);
        }
    }

    fn read(&self, slot: usize) -> Option<u64> {
        self.check_open(slot);
        let version = self.slots[slot].device.load(SeqCst);
        pause();
        (self.bad != Some(slot)).then_some(version)
    }

    /// `Engine::give_back`
    fn give_back(&self, slot: usize, frame: Option<FrameId>) {
        self.slots[slot].compressed.store(0, SeqCst);
        frame.into_iter().for_each(|frame| self.free_frame(frame));
        self.free_slot(slot);
    }

    /// `Engine::forget`
    fn forget(&self, slot: usize) {
        match self.index(slot, |cell| cell.give_up()) {
            GivenUp::Now(frame) => self.give_back(slot, frame),
            GivenUp::Later if self.has(Bug::FreedByOwner) => self.give_back(slot, None),
            GivenUp::Later => {}
        }
    }

    /// `Engine::end_io`
    fn end_io(&self, slot: usize, frame: Option<FrameId>) {
        if !self.index(slot, |cell| cell.end_io(frame)) {
            self.give_back(slot, frame);
        }
    }

    fn take_frame(&self, version: u64) -> Option<FrameId> {
        let free = |frame: &usize| {
            self.frames[*frame].compare_exchange(0, version, SeqCst, SeqCst).is_ok()
        };
        (0..FRAMES).find(free).map(|frame| FrameId(frame as u32))
    }

    fn free_frame(&self, frame: FrameId) {
        assert_ne!(self.frames[frame.0 as usize].swap(0, SeqCst), 0, "a frame is given back twice");
    }
}

/// The program, a thread a page, two threads that reclaim, and a swapoff.
fn scenario(bug: Option<Bug>) {
    let machine = Arc::new(Machine::new(bug));
    for page in 0..PAGES {
        machine.access(page, true);
        machine.evict(page);
    }
    let actors: [fn(&Arc<Machine>); 5] = [
        |m| m.live(0),
        |m| m.live(1),
        |m| (0..6).for_each(|i| m.evict(i % PAGES)),
        |m| {
            for _ in 0..4 {
                m.write_back(thread_rng().gen_range(0..SLOTS));
                m.evict(thread_rng().gen_range(0..PAGES));
                m.read_ahead(thread_rng().gen_range(0..LEAVING));
                m.drop_read_ahead(thread_rng().gen_range(0..LEAVING));
            }
        },
        |m| m.swapoff(),
    ];
    let threads = actors.map(|actor| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || actor(&machine))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // What is left is what it was, and it leaves nothing behind.
    for page in 0..PAGES {
        machine.access(page, false);
        machine.clear(page);
    }
    for slot in 0..SLOTS {
        let Slot { in_use, compressed, run, .. } = &machine.slots[slot];
        let left = [in_use, compressed, run].map(|word| word.load(SeqCst));
        assert_eq!((machine.look_up(slot), left), (Entry::None, [0; 3]), "slot {slot} is lost");
    }
    assert!(machine.frames.iter().all(|frame| frame.load(SeqCst) == 0), "a frame is lost");
}

const SCHEDULES: usize = 3_000;

#[test]
fn no_interleaving_gives_a_wrong_page_or_loses_a_place() {
    finds_nothing(SCHEDULES, scenario);
}

#[test]
fn the_model_finds_every_seeded_bug() {
    finds_each(&BUGS, SCHEDULES, scenario);
}
