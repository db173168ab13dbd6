//! A slot that is stored compressed, loaded, kept, given up and stored anew, beside writeback,
//! readahead and compaction, in interleavings that a checker explores.
//!
//! The entries and their changes are the engine's own: those of the compressed tier ([`ZswapCell`])
//! and those of the slot index of the swap cache ([`IndexCell`]). Around them stands a model: two
//! slots, of which one is on a device, frames, a pool whose objects say whose they are, and one
//! page. The steps of an actor are those of the method of the engine named with it, in the same
//! order; who changes one changes the other.
//!
//! Checked: the owner of the page always gets the version that it stored last; no object is read
//! that has been freed, none is freed twice or lost; a slot is handed out again only when all I/O
//! on it is over; what is in the list has an entry.
//!
//! A [`Bug`] is a wrong order of steps that the model must find, which shows that it can. The races
//! that the design lists:
//!
//! | race | forced by |
//! |---|---|
//! | a refused store drops the older copy of its slot | [`Bug::RefusedKeepsOlder`] |
//! | so does a failed one: what a device did not take stays in the tier | [`Bug::FailedIsTaken`] |
//! | writeback compares the entry before it looks at the object | [`Bug::NotCompared`] |
//! | an entry is published before it is in the list | [`Bug::ListedFirst`] |
//! | a load that frees the entry leaves a page to be stored again | [`Bug::CleanWithoutCopy`] |

use super::{Invalidate, Object, ZswapCell};
use crate::base::explore::{finds_each, finds_nothing};
use crate::swap::index::IndexCell;
use crate::swap::{Entry, GivenUp, Stamp};
use crate::units::FrameId;
use crate::zpool::Handle;
use overspill_os::codec::CodecId;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

type Word = shuttle::sync::atomic::AtomicU64;

/// The slot on no device, and the one on a device.
const SLOTS: usize = 2;
const ON_DEVICE: usize = 1;
/// Places of the pool: the object of the page, copies of it, and one that is not free again yet.
const PLACES: usize = 4;
const FRAMES: usize = 1;
/// What is on a device while it is written, and after that has failed.
const TORN: u64 = u64::MAX;

/// Mistakes that one could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// A slot that is given back keeps its entry, for the next store to replace: one that is
    /// refused does not.
    RefusedKeepsOlder,
    /// Writeback takes the entry out although the device has not taken the page.
    FailedIsTaken,
    /// Writeback looks at the object that the list has shown without comparing the entry.
    NotCompared,
    /// An entry is in the list before it is published.
    ListedFirst,
    /// A load frees the entry of a page that is clean from then on.
    CleanWithoutCopy,
    /// Writeback takes the entry out although its owner reads it.
    TakenWhileRead,
    /// Compaction replaces an object that is being read.
    MovedWhileRead,
    /// The owner reads the object without having announced it.
    ReadUnannounced,
    /// Writeback does not say that I/O on the slot is under way.
    WrittenUnclaimed,
    /// A slot is given back by its owner while it is written.
    FreedWhileWritten,
    /// A page gets the slot that it was written to although it has come back meanwhile.
    SlotChangedUnseen,
}

const BUGS: [Bug; 11] = [
    Bug::RefusedKeepsOlder,
    Bug::FailedIsTaken,
    Bug::NotCompared,
    Bug::ListedFirst,
    Bug::CleanWithoutCopy,
    Bug::TakenWhileRead,
    Bug::MovedWhileRead,
    Bug::ReadUnannounced,
    Bug::WrittenUnclaimed,
    Bug::FreedWhileWritten,
    Bug::SlotChangedUnseen,
];

#[derive(Default)]
struct Slot {
    /// In the slot index.
    index: Word,
    partition: Mutex<()>,
    /// In the compressed tier.
    entry: Word,
    range: Mutex<()>,
    /// Whether the list has it, changed with `range` locked: this one slot is all of its range.
    listed: Word,
    /// Whether it has an entry, changed likewise.
    counted: Word,
    /// What is on the device.
    device: Word,
    in_use: Word,
}

/// A place of the pool, as the pool's books have it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Books {
    used: bool,
    written: bool,
    /// By compaction: not handed out meanwhile.
    pinned: bool,
}

struct Machine {
    bug: Option<Bug>,
    setting: Invalidate,
    slots: [Slot; SLOTS],
    books: Mutex<[Books; PLACES]>,
    /// Slot and version of each object.
    objects: [Word; PLACES],
    /// The version in each frame, 0 for one that is free.
    frames: [Word; FRAMES],
    /// When the page left that is read ahead into each.
    stamps: [Word; FRAMES],
    /// The page under its lock: the slot in which it is stored.
    page: Mutex<Option<usize>>,
}

fn object(place: usize) -> Object {
    Object { handle: Handle::from_bits(place as u64), codec: CodecId::Lz4 }
}

fn place_of(object: Object) -> usize {
    object.handle.to_bits() as usize
}

/// What takes time: copying a page, compressing it, reading or writing it.
fn pause() {
    (0..thread_rng().gen_range(0..4)).for_each(|_| shuttle::thread::yield_now());
}

fn chance(of: u32) -> bool {
    thread_rng().gen_range(0..of) == 0
}

impl Machine {
    fn new(bug: Option<Bug>) -> Machine {
        let setting = match thread_rng().gen_range(0..3) {
            0 => Invalidate::Always,
            1 => Invalidate::Empty,
            _ => Invalidate::EmptyLookup,
        };
        Machine {
            bug,
            setting,
            slots: Default::default(),
            books: Mutex::default(),
            objects: Default::default(),
            frames: Default::default(),
            stamps: Default::default(),
            page: Mutex::new(None),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn entry(&self, slot: usize) -> ZswapCell<'_, Word> {
        ZswapCell(&self.slots[slot].entry)
    }

    /// Changes what the index knows of a slot.
    fn index<T>(&self, slot: usize, change: impl FnOnce(IndexCell<'_, Word>) -> T) -> T {
        let _held = self.slots[slot].partition.lock().unwrap();
        change(self.index_cell(slot))
    }

    fn index_cell(&self, slot: usize) -> IndexCell<'_, Word> {
        IndexCell { entry: &self.slots[slot].index, stamps: &self.stamps }
    }

    fn look_up(&self, slot: usize) -> Entry {
        self.index_cell(slot).load()
    }

    // ---- The pool ----

    /// `Zpool::store`; `None` when it is full.
    fn pack(&self, slot: usize, version: u64) -> Option<Object> {
        let place = {
            let mut books = self.books.lock().unwrap();
            let place = books.iter().position(|place| !place.used && !place.pinned)?;
            books[place].used = true;
            place
        };
        pause();
        self.objects[place].store((slot as u64) << 32 | version, SeqCst);
        self.books.lock().unwrap()[place].written = true;
        Some(object(place))
    }

    /// `Zpool::load`
    fn unpack(&self, object: Object, slot: usize) -> u64 {
        let place = place_of(object);
        let look = || {
            assert!(self.books.lock().unwrap()[place].used, "an object was read that is not there");
            self.objects[place].load(SeqCst)
        };
        let bytes = look();
        pause();
        assert_eq!(look(), bytes, "an object changed while it was read");
        assert_eq!(bytes >> 32, slot as u64, "the object of another slot");
        bytes & u64::from(u32::MAX)
    }

    /// `Engine::free_object`
    fn free(&self, object: Object) {
        let place = &mut self.books.lock().unwrap()[place_of(object)];
        assert!(place.used, "an object was freed twice");
        *place = Books { pinned: place.pinned, ..Books::default() };
    }

    /// `Zpool::compact`, of one object.
    fn compact(&self) {
        let pin = |books: &mut [Books]| {
            let at = books.iter().position(|place| place.written && !place.pinned)?;
            books[at].pinned = true;
            Some(at)
        };
        let Some(from) = pin(&mut *self.books.lock().unwrap()) else { return };
        let bytes = self.objects[from].load(SeqCst);
        let (slot, version) = ((bytes >> 32) as usize, bytes & u64::from(u32::MAX));
        if let Some(copy) = self.pack(slot, version) {
            let old = if self.replace(slot, object(from), copy) { object(from) } else { copy };
            self.free(old);
        }
        self.books.lock().unwrap()[from].pinned = false;
    }

    /// `Zswap::replace`
    fn replace(&self, slot: usize, old: Object, new: Object) -> bool {
        if self.has(Bug::MovedWhileRead) {
            let word = self.slots[slot].entry.load(SeqCst);
            let moved = word - old.to_word() + new.to_word();
            return Object::from_word(word) == Some(old)
                && self.slots[slot].entry.compare_exchange(word, moved, SeqCst, SeqCst).is_ok();
        }
        self.entry(slot)
            .load()
            .is_some_and(|object| object == old && self.entry(slot).replace(object, 0, Some(new)))
    }

    // ---- Slots ----

    fn take_slot(&self, slot: usize) -> bool {
        self.slots[slot].in_use.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }

    /// `SwapDevices::free_run`
    fn free_slot(&self, slot: usize) {
        assert_eq!(self.slots[slot].in_use.swap(0, SeqCst), 1, "a slot was given back twice");
    }

    /// `SwapDevices::write`; whether it did not fail.
    fn write(&self, slot: usize, version: u64) -> bool {
        assert_eq!(slot, ON_DEVICE, "written to no device");
        self.slots[slot].device.store(TORN, SeqCst);
        pause();
        let works = !chance(4);
        if works {
            self.slots[slot].device.store(version, SeqCst);
        }
        works
    }

    /// `Engine::give_back`
    fn give_back(&self, slot: usize, frame: Option<FrameId>) {
        if !self.has(Bug::RefusedKeepsOlder) {
            self.invalidate(slot);
        }
        frame.into_iter().for_each(|frame| self.free_frame(frame));
        self.free_slot(slot);
    }

    /// `Zswap::invalidate`
    fn invalidate(&self, slot: usize) {
        let Slot { listed, counted, .. } = &self.slots[slot];
        if self.setting != Invalidate::Always && counted.load(SeqCst) == 0 {
            return;
        }
        if self.setting == Invalidate::EmptyLookup && self.entry(slot).load().is_none() {
            return;
        }
        let _held = self.slots[slot].range.lock().unwrap();
        if let Some(object) = self.entry(slot).swap(None) {
            listed.store(0, SeqCst);
            counted.store(0, SeqCst);
            self.free(object);
        }
    }

    /// `Engine::forget_run`
    fn forget(&self, slot: usize) {
        match self.index(slot, |cell| cell.give_up()) {
            GivenUp::Now(frame) => self.give_back(slot, frame),
            GivenUp::Later if self.has(Bug::FreedWhileWritten) => self.give_back(slot, None),
            GivenUp::Later => {}
        }
    }

    /// `Engine::end_io`
    fn end_io(&self, slot: usize, frame: Option<FrameId>) {
        if !self.index(slot, |cell| cell.end_io(frame)) {
            self.give_back(slot, frame);
        }
    }

    fn free_frame(&self, frame: FrameId) {
        let version = self.frames[frame.0 as usize].swap(0, SeqCst);
        assert_ne!(version, 0, "a frame was given back twice");
    }

    // ---- The owner ----

    /// `Engine::store_run` for a page of which no word says yet where it is; the slot, if one took
    /// it.
    fn store(&self, version: u64) -> Option<usize> {
        // 1. A slot, of which anything may be left on the device.
        let slot = loop {
            let first = thread_rng().gen_range(0..SLOTS);
            match [first, SLOTS - 1 - first].into_iter().find(|slot| self.take_slot(*slot)) {
                Some(slot) => break slot,
                None => shuttle::thread::yield_now(),
            }
        };
        // 2. Refused: to the device, or to nothing.
        let Some(object) = (!chance(4)).then(|| self.pack(slot, version)).flatten() else {
            if slot == ON_DEVICE && self.write(slot, version) {
                self.index(slot, |cell| cell.stored(Stamp::new(version)));
                return Some(slot);
            }
            self.free_slot(slot);
            return None;
        };
        self.index(slot, |cell| cell.stored(Stamp::new(version)));
        // 3. `Zswap::insert`
        let listed = &self.slots[slot].listed;
        if self.has(Bug::ListedFirst) {
            let _held = self.slots[slot].range.lock().unwrap();
            listed.store(1, SeqCst);
        }
        let _held = self.slots[slot].range.lock().unwrap();
        match self.entry(slot).swap(Some(object)) {
            Some(older) => self.free(older),
            None => {
                listed.store(1, SeqCst);
                self.slots[slot].counted.store(1, SeqCst);
            }
        }
        Some(slot)
    }

    /// `Engine::install_run` of the page, whose lock is held; `None` while its slot is busy.
    fn read(&self, slot: usize) -> Option<u64> {
        if !self.is_in_memory(slot) {
            match self.look_up(slot) {
                Entry::Busy(_) => return None,
                Entry::Frame(..)
                    if let Some(frame) = self.index(slot, |cell| cell.take_frame()) =>
                {
                    return Some(self.frames[frame.0 as usize].swap(0, SeqCst));
                }
                _ => return Some(self.load_slot(slot)),
            }
        }
        // `Engine::load_compressed`
        if self.has(Bug::ReadUnannounced) {
            return Some(match self.entry(slot).load() {
                Some(object) => self.unpack(object, slot),
                None => self.load_slot(slot),
            });
        }
        let Some(object) = self.entry(slot).begin_load(None) else {
            return Some(self.load_slot(slot));
        };
        let version = self.unpack(object, slot);
        self.entry(slot).end_load();
        Some(version)
    }

    /// `Zswap::contains`
    fn is_in_memory(&self, slot: usize) -> bool {
        self.entry(slot).load().is_some()
    }

    /// `Engine::load_slots`
    fn load_slot(&self, slot: usize) -> u64 {
        assert_eq!(slot, ON_DEVICE, "a page of a slot on no device has an object");
        pause();
        self.slots[slot].device.load(SeqCst)
    }

    /// Loads the page, which holds `version`, and leaves it without a slot, or with one if `keep`
    /// and that can be; the slot.
    fn load(&self, version: u64, keep: bool) -> Option<usize> {
        let (mut page, slot) = loop {
            let page: MutexGuard<'_, Option<usize>> = self.page.lock().unwrap();
            let slot = page.expect("the page is stored");
            match self.read(slot) {
                Some(found) => {
                    assert_eq!(found, version, "not what was stored");
                    break (page, slot);
                }
                None => drop(page),
            }
            shuttle::thread::yield_now();
        };
        // `Engine::publish_stored`
        let kept = keep && self.index(slot, |cell| cell.came_back());
        *page = None;
        drop(page);
        if !kept {
            self.forget(slot);
        } else if self.has(Bug::CleanWithoutCopy) {
            self.invalidate(slot);
        }
        kept.then_some(slot)
    }

    /// The life of the page with one content.
    fn live(&self, version: u64) {
        let slot = loop {
            match self.store(version) {
                Some(slot) => break slot,
                None => shuttle::thread::yield_now(),
            }
        };
        *self.page.lock().unwrap() = Some(slot);
        pause();
        while let Some(slot) = self.load(version, chance(2)) {
            if chance(2) {
                // Written to: `Engine::drop_copy`
                self.forget(slot);
                return;
            }
            // Not written to: `Engine::leave_copy`
            self.index(slot, |cell| cell.left(Stamp::new(version)));
            *self.page.lock().unwrap() = Some(slot);
            pause();
        }
    }

    // ---- Others ----

    /// `Engine::write_back_coldest` of a range.
    fn write_back(&self, slot: usize) {
        // 1. `Zswap::oldest`
        let held = self.slots[slot].range.lock().unwrap();
        if self.slots[slot].listed.load(SeqCst) == 0 {
            return;
        }
        let object = self.entry(slot).load().expect("what is in the list has an entry");
        drop(held);
        if !self.has(Bug::WrittenUnclaimed) && !self.index(slot, |cell| cell.begin_io()) {
            return;
        }
        if self.has(Bug::NotCompared) {
            self.unpack(object, slot);
        }
        if self.entry(slot).begin_load(Some(object)).is_none() {
            return self.end_writeback(slot);
        }
        // 2. The page as it was, and out.
        let version = self.unpack(object, slot);
        let to =
            if slot == ON_DEVICE || self.take_slot(ON_DEVICE) { Some(ON_DEVICE) } else { None };
        let written = to.is_some_and(|to| self.write(to, version));
        // 3. `Engine::finish_writeback`
        let takes = to == Some(slot) && (written || self.has(Bug::FailedIsTaken));
        if takes && self.finish_load(slot, object) {
            self.free(object);
        } else {
            self.entry(slot).end_load();
            if let Some(to) = to.filter(|to| *to != slot) {
                if written { self.change_slot(slot, to, version) } else { self.free_slot(to) }
            }
        }
        self.end_writeback(slot);
    }

    fn end_writeback(&self, slot: usize) {
        if !self.has(Bug::WrittenUnclaimed) {
            self.end_io(slot, None);
        }
    }

    /// `Zswap::finish_load`
    fn finish_load(&self, slot: usize, object: Object) -> bool {
        let _held = self.slots[slot].range.lock().unwrap();
        let taken = match self.bug {
            Some(Bug::TakenWhileRead) => {
                self.slots[slot].entry.store(0, SeqCst);
                true
            }
            _ => self.entry(slot).replace(object, 1, None),
        };
        if taken {
            self.slots[slot].listed.store(0, SeqCst);
            self.slots[slot].counted.store(0, SeqCst);
        }
        taken
    }

    /// `Engine::change_slot`
    fn change_slot(&self, from: usize, to: usize, version: u64) {
        let page = self
            .page
            .try_lock()
            .ok()
            .filter(|page| self.has(Bug::SlotChangedUnseen) || **page == Some(from));
        let Some(mut page) = page else { return self.free_slot(to) };
        self.index(to, |cell| cell.stored(Stamp::new(version)));
        *page = Some(to);
        drop(page);
        self.forget(from);
    }

    /// `Engine::read_around` and `Engine::keep_around`, of a neighbour's owner; and what reclaim
    /// does with what was read ahead.
    fn read_ahead(&self) {
        let slot = ON_DEVICE;
        if let Some(frame) = self.index(slot, |cell| cell.take_frame()) {
            self.free_frame(frame);
        }
        let lone = matches!(self.look_up(slot), Entry::Shadow(_)) && !self.is_in_memory(slot);
        if !lone || !self.index(slot, |cell| cell.begin_io()) {
            return;
        }
        let version = self.load_slot(slot);
        // A frame that is not 0, also if there is nothing on the device yet.
        let free = |frame: &usize| {
            self.frames[*frame].compare_exchange(0, version.max(1), SeqCst, SeqCst).is_ok()
        };
        let frame = (0..FRAMES).find(free).map(|frame| FrameId(frame as u32));
        self.end_io(slot, frame);
    }
}

fn scenario(bug: Option<Bug>) {
    let machine = Arc::new(Machine::new(bug));
    let actors: [fn(&Machine); 5] = [
        |m| (1..=4).for_each(|version| m.live(version)),
        |m| (0..6).for_each(|i| m.write_back((i + 1) % SLOTS)),
        |m| (0..4).for_each(|i| m.write_back((i + 1) % SLOTS)),
        |m| (0..6).for_each(|_| m.compact()),
        |m| (0..6).for_each(|_| m.read_ahead()),
    ];
    let threads = actors.map(|actor| {
        let machine = machine.clone();
        shuttle::thread::spawn(move || actor(&machine))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for slot in 0..SLOTS {
        assert_eq!(
            (machine.look_up(slot), machine.entry(slot).load()),
            (Entry::None, None),
            "slot {slot}"
        );
        let Slot { listed, counted, in_use, .. } = &machine.slots[slot];
        let left = [listed, counted, in_use].map(|word| word.load(SeqCst));
        assert_eq!(left, [0; 3], "slot {slot} is lost");
    }
    assert_eq!(*machine.books.lock().unwrap(), [Books::default(); PLACES], "an object is lost");
    assert!(machine.frames.iter().all(|frame| frame.load(SeqCst) == 0), "a frame is lost");
}

const SCHEDULES: usize = 5_000;

#[test]
fn no_interleaving_gives_a_wrong_page_or_loses_an_object() {
    finds_nothing(SCHEDULES, scenario);
}

#[test]
fn the_model_finds_every_seeded_bug() {
    finds_each(&BUGS, SCHEDULES, scenario);
}
