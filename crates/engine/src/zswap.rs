//! The index of the compressed tier: which slots have a compressed copy in memory.
//!
//! The tier stands in front of the devices, keyed by swap slot. An entry a slot, a word each ([`Object`]), in tables that
//! are touched lazily. Look-ups take no lock. What changes the set of entries takes the lock of a range of 64 MiB of swap
//! space, over the entries' list by age and their number. Every slot that is given back asks to forget its entry, and most
//! have none ([`Zswap::invalidate`]): setting `zswap.invalidate` says how much is looked at before the lock is taken.
//!
//! **Who may read an object.** Whoever has announced it in the entry ([`Zswap::begin_load`]), until it says that it is
//! done. An entry that is being read is neither moved nor taken out for the devices ([`Zswap::replace`],
//! [`Zswap::take_written`]); it is invalidated by the slot's owner alone, who is its reader or knows that there is none.
//!
//! 1. *Store*: the entry is published before it is in the list. A store that is refused leaves no older copy
//!    ([`Zswap::insert`] hands it out, and a slot that is written to a device has been invalidated).
//! 2. *Load*: announce, read, done. The slot's owner then gives the slot up, or keeps it, and with it the entry.
//! 3. *Writeback*: what the list has as oldest is a hint. The writer makes sure that the slot stays in use (the slot index of
//!    the swap cache says that I/O is under way), then announces itself, which compares the entry; only then it looks at the
//!    object. When the page is on the device it takes the entry out, if nobody else reads it.
//! 4. *Compaction* replaces an object that nobody reads by a copy of it.
//!
//! Neighbours: [`crate::compressed`] keeps the bytes, [`crate::tier`] and [`crate::writeback`] use both.
//!
//! Locks: a range's ([`Rank::Zswap`]); nothing is taken under it.

mod list;

use crate::base::SlotId;
use crate::compressed::Handle;
use crate::counted::{CountedGuard, CountedMutex, LockCounters};
use crate::lockdep::Rank;
use crate::slot::SlotRun;
use crate::stats::{Counter, Stats};
use crate::sync::Atomic;
use list::{List, RANGE_SLOTS};
use overspill_os::codec::CodecId;
use overspill_os::vm::SharedCells;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Most locks: enough for 64 GiB of swap space; beyond, ranges share them. 64 KiB of memory.
const LOCKS_MAX: usize = 1024;

/// The counters of the locks of ranges.
static ZSWAP_LOCK: LockCounters = LockCounters {
    taken: Counter::ZswapLock,
    contended: Counter::ZswapLockContended,
    wait_ns: Counter::ZswapLockWaitNs,
    hold_ns: Counter::ZswapLockHoldNs,
    long_ns: Counter::ZswapLockLongNs,
};

/// Setting `zswap.invalidate`: what is looked at, when a slot is given back, before the lock is taken to erase its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Invalidate {
    /// Nothing: the lock is taken for every slot.
    Always,
    /// Whether its range has any entry.
    Empty,
    /// Whether its range has any entry, and whether it has one itself.
    #[default]
    EmptyLookup,
}

/// A compressed page: where it is, and by which codec it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its bytes.
    pub handle: Handle,
    /// What packed it.
    pub codec: CodecId,
}

const CODEC_SHIFT: u32 = Handle::BITS;
/// One reader; two bits, as there are at most the owner of the page and a writer.
const READER: u64 = 1 << (CODEC_SHIFT + CodecId::BITS);
const READERS: u64 = 3 * READER;
/// There is an entry.
const PRESENT: u64 = 1 << 63;

impl Object {
    fn to_word(self) -> u64 {
        PRESENT | self.codec.to_bits() << CODEC_SHIFT | self.handle.to_bits()
    }

    fn from_word(word: u64) -> Option<Object> {
        let handle = Handle::from_bits(word & ((1 << Handle::BITS) - 1));
        let codec = CodecId::from_bits(word >> CODEC_SHIFT & ((1 << CodecId::BITS) - 1)).expect("an entry has a codec");
        (word & PRESENT != 0).then_some(Object { handle, codec })
    }
}

/// The entry of a slot.
struct Place<'a, A>(&'a A);

impl<A: Atomic> Place<'_, A> {
    fn load(&self) -> Option<Object> {
        Object::from_word(self.0.load(Acquire))
    }

    /// Announces a reader of `wanted`, or of whatever is there.
    fn begin_load(&self, wanted: Option<Object>) -> Option<Object> {
        let mut word = self.0.load(Acquire);
        loop {
            let object = Object::from_word(word)?;
            if wanted.is_some_and(|wanted| wanted != object) {
                return None;
            }
            debug_assert_ne!(word & READERS, READERS, "more readers of an entry than there can be");
            match self.0.compare_exchange_weak(word, word + READER, AcqRel, Acquire) {
                Ok(_) => return Some(object),
                Err(now) => word = now,
            }
        }
    }

    /// The reader is done.
    fn end_load(&self) {
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert_ne!(word & READERS, 0, "an entry that nobody reads");
            match self.0.compare_exchange_weak(word, word - READER, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Puts `new`, or nothing, in the place of `old`, if it is there still and has `readers` readers.
    fn replace(&self, old: Object, readers: u64, new: Option<Object>) -> bool {
        let expected = old.to_word() + readers * READER;
        let new = new.map_or(0, Object::to_word);
        loop {
            match self.0.compare_exchange_weak(expected, new, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) if now == expected => {}
                Err(_) => return false,
            }
        }
    }

    /// Puts `new` there, whatever was; what was.
    fn swap(&self, new: Option<Object>) -> Option<Object> {
        let word = self.0.swap(new.map_or(0, Object::to_word), AcqRel);
        debug_assert_eq!(word & READERS, 0, "an entry went that somebody reads");
        Object::from_word(word)
    }
}

/// The slots of a device, or those that are on none.
struct Tables {
    entries: SharedCells,
    /// By slot: its place in the list of its range.
    links: SharedCells,
    /// By range: the ends of its list.
    ends: SharedCells,
    /// By range: entries. Changed with its lock.
    counts: SharedCells,
    /// Ranges from here on never had an entry.
    used: AtomicUsize,
}

/// The entries of all slots.
pub struct Zswap {
    devices: [OnceLock<Tables>; SlotId::DEVICES_MAX],
    locks: Box<[CountedMutex<()>]>,
    setting: Invalidate,
    stats: Stats,
}

impl Zswap {
    /// An index for no device yet.
    pub fn new(setting: Invalidate, stats: Stats) -> Zswap {
        let lock = |_| CountedMutex::new(Rank::Zswap, &ZSWAP_LOCK, ());
        let devices = [const { OnceLock::new() }; _];
        Zswap { devices, locks: (0..LOCKS_MAX).map(lock).collect(), setting, stats }
    }

    /// Makes entries for a device of `slots` slots; `false` when that number had a smaller one, or there is no address
    /// space for more.
    pub fn open(&self, device: usize, slots: u64) -> bool {
        let tables = || {
            let (slots, ranges) = (slots as usize, (slots as usize).div_ceil(RANGE_SLOTS));
            Some(Tables {
                entries: SharedCells::anonymous(slots).ok()?,
                links: SharedCells::anonymous(slots).ok()?,
                ends: SharedCells::anonymous(ranges).ok()?,
                counts: SharedCells::anonymous(ranges).ok()?,
                used: AtomicUsize::new(0),
            })
        };
        if self.devices[device].get().is_none()
            && let Some(tables) = tables()
        {
            let _ = self.devices[device].set(tables);
        }
        self.devices[device].get().is_some_and(|tables| tables.entries.len() as u64 >= slots)
    }

    fn tables(&self, slot: SlotId) -> &Tables {
        self.devices[slot.device()].get().expect("the device of a slot is open")
    }

    fn place(&self, slot: SlotId) -> Place<'_, AtomicU64> {
        Place(&self.tables(slot).entries[slot.offset() as usize])
    }

    fn lock(&self, slot: SlotId) -> CountedGuard<'_, ()> {
        let number = slot.offset() as usize / RANGE_SLOTS + slot.device();
        self.locks[number % LOCKS_MAX].lock(&self.stats)
    }

    /// The list of a slot's range; its lock is held.
    fn list(&self, slot: SlotId) -> List<'_> {
        let tables = self.tables(slot);
        let range = slot.offset() as usize / RANGE_SLOTS;
        let first = range * RANGE_SLOTS;
        let links = &tables.links[first..(first + RANGE_SLOTS).min(tables.links.len())];
        List { links, ends: &tables.ends[range], count: &tables.counts[range] }
    }

    fn in_range(slot: SlotId) -> usize {
        slot.offset() as usize % RANGE_SLOTS
    }

    /// Whether a slot has an entry, as far as can be said without a lock.
    pub fn contains(&self, slot: SlotId) -> bool {
        self.place(slot).load().is_some()
    }

    /// Announces a reader of a slot's object, to be followed by [`Zswap::end_load`]: the owner of the slot's page.
    pub fn begin_load(&self, slot: SlotId) -> Option<Object> {
        self.stats.add(Counter::ZswapLookup, 1);
        self.place(slot).begin_load(None)
    }

    /// The same for an object that was seen before, if it is there still: who has made sure that the slot stays in use.
    pub fn begin_load_of(&self, slot: SlotId, object: Object) -> bool {
        self.place(slot).begin_load(Some(object)).is_some()
    }

    /// The reader is done.
    pub fn end_load(&self, slot: SlotId) {
        self.place(slot).end_load();
    }

    /// Makes entries for slots of a run, those that have an object, as the newest, `now` pages having left memory; an older
    /// copy of one is handed to `older`.
    pub fn insert(&self, run: SlotRun, objects: &[Option<Object>], now: u64, mut older: impl FnMut(Object)) {
        self.for_each_range(run, |part, at| {
            if objects[at..at + part.len].iter().all(Option::is_none) {
                return;
            }
            let _held = self.lock(part.first);
            let (list, tables) = (self.list(part.first), self.tables(part.first));
            for (slot, object) in part.slots().zip(&objects[at..at + part.len]) {
                let Some(object) = object else { continue };
                // Published first: what is in the list is there.
                let before = self.place(slot).swap(Some(*object));
                match before {
                    Some(before) => older(before),
                    None => list.push(Self::in_range(slot), now),
                }
            }
            tables.used.fetch_max(part.first.offset() as usize / RANGE_SLOTS + 1, Relaxed);
        });
    }

    /// Forgets the entries of slots that are being given back; hands out their objects.
    pub fn invalidate(&self, run: SlotRun, mut freed: impl FnMut(Object)) {
        self.for_each_range(run, |part, _| {
            let range = part.first.offset() as usize / RANGE_SLOTS;
            let mut held = None;
            // 1. Nothing in the whole range? A slot's own entry was made by a thread that this one has heard from.
            if self.setting != Invalidate::Always && self.tables(part.first).counts[range].load(Acquire) == 0 {
                return;
            }
            for slot in part.slots() {
                // 2. No entry?
                if self.setting == Invalidate::EmptyLookup {
                    self.stats.add(Counter::ZswapLookup, 1);
                    if self.place(slot).load().is_none() {
                        continue;
                    }
                }
                // 3. Out of the list, and out. Several in one hold, except for the baselines.
                let guard = held.take().unwrap_or_else(|| self.lock(slot));
                if let Some(object) = self.place(slot).swap(None) {
                    self.list(slot).unlink(Self::in_range(slot));
                    freed(object);
                    self.stats.add(Counter::ZswapErased, 1);
                }
                held = (self.setting == Invalidate::EmptyLookup).then_some(guard);
            }
        });
    }

    /// Compaction: puts a copy in the place of an object, if it is there still and nobody reads it. What is said to be a slot may
    /// be none.
    pub fn replace(&self, slot: SlotId, old: Handle, new: Handle) -> bool {
        let tables = self.devices.get(slot.device()).and_then(OnceLock::get);
        let Some(cell) = tables.and_then(|tables| tables.entries.get(slot.offset() as usize)) else { return false };
        let place = Place(cell);
        place.load().is_some_and(|object| {
            object.handle == old && place.replace(object, 0, Some(Object { handle: new, ..object }))
        })
    }

    /// Writeback, whose page is on the device now: takes the entry out of which the caller is the only reader.
    pub fn take_written(&self, slot: SlotId, object: Object) -> bool {
        let _held = self.lock(slot);
        let taken = self.place(slot).replace(object, 1, None);
        if taken {
            self.list(slot).unlink(Self::in_range(slot));
        }
        taken
    }

    /// Makes an entry the newest again, if there is one.
    pub fn rotate(&self, slot: SlotId, now: u64) {
        let _held = self.lock(slot);
        if self.place(slot).load().is_some() {
            let list = self.list(slot);
            list.unlink(Self::in_range(slot));
            list.push(Self::in_range(slot), now);
        }
    }

    /// Fills `out`, as far as it has room, with some of the oldest entries: of the range whose oldest is the oldest of all, in
    /// the order of their slots. By the time that the caller looks at them they may have changed.
    pub fn oldest(&self, now: u64, out: &mut Vec<(SlotId, Object)>) {
        out.clear();
        // 1. Which range? Without locks: a guess is enough.
        let ranges = self.devices.iter().enumerate().filter_map(|(device, tables)| Some((device, tables.get()?)));
        let ages = ranges.flat_map(|(device, tables)| {
            (0..tables.used.load(Relaxed)).filter_map(move |range| {
                let first = SlotId::new(device, (range * RANGE_SLOTS) as u64);
                Some((self.list(first).age(now)?, first))
            })
        });
        let Some((_, first)) = ages.max_by_key(|(age, _)| *age) else { return };
        // 2. Its oldest.
        let held = self.lock(first);
        let list = self.list(first);
        let slots = list.iter().take(out.capacity()).map(|index| first.advance(index as u64));
        out.extend(slots.map(|slot| (slot, self.place(slot).load().expect("what is in the list has an entry"))));
        drop(held);
        out.sort_unstable_by_key(|(slot, _)| *slot);
    }

    /// Calls `each` for the parts of a run that lie in one range, with where they begin in the run.
    fn for_each_range(&self, run: SlotRun, mut each: impl FnMut(SlotRun, usize)) {
        let mut at = 0;
        while at < run.len {
            let first = run.first.advance(at as u64);
            let len = (RANGE_SLOTS - Self::in_range(first)).min(run.len - at);
            each(SlotRun { first, len }, at);
            at += len;
        }
    }

    /// Checks that lists and entries agree, and that nobody reads one; while all else stands still. Returns how many entries
    /// there are.
    ///
    /// # Panics
    /// When they do not.
    #[cfg(any(test, debug_assertions))]
    pub fn check(&self) -> usize {
        let mut total = 0;
        for (device, tables) in self.devices.iter().enumerate().filter_map(|(d, t)| Some((d, t.get()?))) {
            for range in 0..tables.used.load(Relaxed) {
                let first = SlotId::new(device, (range * RANGE_SLOTS) as u64);
                let mut listed: Vec<usize> = self.list(first).iter().collect();
                listed.sort_unstable();
                let len = RANGE_SLOTS.min(tables.entries.len() - first.offset() as usize);
                let cell = |index: usize| tables.entries[first.offset() as usize + index].load(Relaxed);
                let present: Vec<usize> = (0..len).filter(|index| cell(*index) != 0).collect();
                assert_eq!(listed, present, "the list of a range of the compressed tier");
                assert_eq!(tables.counts[range].load(Relaxed), present.len() as u64, "entries of a range");
                assert!(present.iter().all(|index| cell(*index) & READERS == 0), "an entry with a reader");
                total += present.len();
            }
        }
        total
    }
}

impl std::fmt::Debug for Zswap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zswap({:?})", self.setting)
    }
}
