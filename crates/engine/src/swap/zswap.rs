//! The index of the compressed tier: which slots have a compressed copy, and where.
//!
//! The tier stands in front of the devices, keyed by swap slot. An entry a slot, a word each
//! ([`Object`]), in tables that are touched lazily. A copy lies in the zpool. Look-ups
//! take no lock. What changes the set of entries takes the lock of a range of 64 MiB of swap space,
//! over the entries' list by age and their number. Every slot that is given back asks to forget its
//! entry, and most have none ([`Zswap::invalidate`]): baseline `zswap.invalidate` says how much
//! is looked at before the lock is taken.
//!
//! **Who may read an object.** Whoever has announced it in the entry ([`Zswap::begin_load`]), until
//! it says that it is done. An entry that is being read is neither moved nor taken out for the
//! devices ([`Zswap::replace`], [`Zswap::finish_load`]); it is invalidated by the slot's owner
//! alone, who is its reader or knows that there is none.
//!
//! 1. *Store*: the entry is published before it is in the list. A store that is refused leaves no
//!    older copy ([`Zswap::insert`] hands it out, and a slot that is written to a device has been
//!    invalidated).
//! 2. *Load*: announce, read, done. The slot's owner then gives the slot up, or keeps it, and with
//!    it the entry.
//! 3. *Writeback*: what the list has as oldest is a hint. The writer makes sure that the slot stays
//!    in use (the slot index of the swap cache says that I/O is under way), then announces itself,
//!    which compares the entry; only then it looks at the object. When the page is on the device it
//!    takes the entry out, if nobody else reads it.
//! 4. *Compaction* replaces an object that nobody reads by a copy of it.
//!
//! Neighbours: [`crate::zpool`] keeps the bytes, [`crate::swap::store`] and
//! [`crate::reclaim::writeback`] use both.
//!
//! Locks: a range's ([`Rank::Zswap`]); nothing is taken under it.

mod list;

use crate::base::counted::{CountedGuard, CountedMutex, LockCounters, locks_of};
use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::Atomic;
use crate::slot::SlotRun;
use crate::stats::{Counter, Stats};
use crate::units::{FOLIO_MAX, SlotId};
use crate::zpool::Handle;
use list::{HEAD_CELLS, List, RANGE_SLOTS};
use overspill_os::codec::CodecId;
use overspill_os::table::AtomicTable;
use overspill_os::table::SharedCells;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Most locks: enough for 64 GiB of swap space; beyond, and on few processors, ranges share them.
/// 16 KiB of memory.
const LOCKS_MAX: usize = 1024;

/// Most entries that are changed in one hold of a lock: a folio's.
const HOLD_SLOTS: usize = FOLIO_MAX;

/// The counters of the locks of ranges.
static ZSWAP_LOCK: LockCounters = LockCounters {
    taken: Counter::ZswapLock,
    contended: Counter::ZswapLockContended,
    wait_ns: Counter::ZswapLockWaitNs,
    hold_ns: Counter::ZswapLockHoldNs,
    long_ns: Counter::ZswapLockLongNs,
};

/// Baseline `zswap.invalidate`: what is looked at, when a slot is given back, before the lock is
/// taken to erase its entry.
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

/// A compressed page: its place in the zpool, and the codec that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its bytes.
    pub handle: Handle,
    /// What compressed it.
    pub codec: CodecId,
}

/// The handle has the low bits.
const HANDLE_BITS: u32 = 48;
const _: () = assert!(Handle::BITS <= HANDLE_BITS);
const CODEC_SHIFT: u32 = HANDLE_BITS;
/// One reader; two bits, as there are at most the owner of the page and a writer.
const READER: u64 = 1 << (CODEC_SHIFT + CodecId::BITS);
const READERS: u64 = 3 * READER;
/// There is an entry.
const PRESENT: u64 = 1 << 63;
const _: () = assert!(READERS < PRESENT);

impl Object {
    fn to_word(self) -> u64 {
        PRESENT | self.codec.to_bits() << CODEC_SHIFT | self.handle.to_bits()
    }

    fn from_word(word: u64) -> Option<Object> {
        if word & PRESENT == 0 {
            return None;
        }
        let codec = CodecId::from_bits(word >> CODEC_SHIFT & ((1 << CodecId::BITS) - 1));
        Some(Object {
            handle: Handle::from_bits(word & ((1 << HANDLE_BITS) - 1)),
            codec: codec.expect("an entry has a codec"),
        })
    }
}

/// The entry of a slot.
struct ZswapCell<'a>(&'a AtomicU64);

impl ZswapCell<'_> {
    fn load(&self) -> Option<Object> {
        Object::from_word(Atomic::load(self.0, Acquire))
    }

    /// Announces a reader of `wanted`, or of whatever is there.
    fn begin_load(&self, wanted: Option<Object>) -> Option<Object> {
        let mut word = Atomic::load(self.0, Acquire);
        loop {
            let object = Object::from_word(word)?;
            if wanted.is_some_and(|wanted| wanted != object) {
                return None;
            }
            debug_assert_ne!(word & READERS, READERS, "more readers of an entry than there can be");
            match Atomic::compare_exchange_weak(self.0, word, word + READER, AcqRel, Acquire) {
                Ok(_) => return Some(object),
                Err(now) => word = now,
            }
        }
    }

    /// The reader is done.
    fn end_load(&self) {
        let mut word = Atomic::load(self.0, Relaxed);
        loop {
            debug_assert_ne!(word & READERS, 0, "an entry that nobody reads");
            match Atomic::compare_exchange_weak(self.0, word, word - READER, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// How many read it.
    fn readers(&self) -> u64 {
        (Atomic::load(self.0, Relaxed) & READERS) / READER
    }

    /// Puts `new`, or nothing, in the place of `old`, if it is there still and has `readers`
    /// readers, who are done with it.
    fn replace(&self, old: Object, readers: u64, new: Option<Object>) -> bool {
        let expected = old.to_word() + readers * READER;
        let new = new.map_or(0, Object::to_word);
        loop {
            match Atomic::compare_exchange_weak(self.0, expected, new, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) if now == expected => {}
                Err(_) => return false,
            }
        }
    }

    /// Puts `new` there, whatever was; what was.
    fn swap(&self, new: Option<Object>) -> Option<Object> {
        let word = Atomic::swap(self.0, new.map_or(0, Object::to_word), AcqRel);
        debug_assert_eq!(word & READERS, 0, "an entry went that somebody reads");
        Object::from_word(word)
    }
}

/// The slots of a device, or those that are on none.
struct ZswapTables {
    entries: SharedCells,
    /// By slot: its place in the list of its range.
    links: AtomicTable,
    /// By range: the head of its list, [`HEAD_CELLS`].
    heads: SharedCells,
    /// By range: entries. Changed with its lock, read without to find a range empty.
    counts: SharedCells,
    /// Ranges from here on never had an entry.
    used: AtomicUsize,
}

/// The entries of all slots.
pub struct Zswap {
    devices: [OnceLock<ZswapTables>; SlotId::DEVICES_MAX],
    locks: Box<[CountedMutex<()>]>,
    setting: Invalidate,
    stats: Stats,
}

impl Zswap {
    /// What a slot takes up here: its entry and its links.
    pub const SLOT_BYTES: u64 = 12;

    /// An index for no device yet.
    pub fn new(setting: Invalidate, stats: Stats) -> Zswap {
        let lock = |_| CountedMutex::new(Rank::Zswap, &ZSWAP_LOCK, ());
        let devices = [const { OnceLock::new() }; _];
        Zswap { devices, locks: (0..locks_of(LOCKS_MAX)).map(lock).collect(), setting, stats }
    }

    /// Makes entries for a device of `slots` slots; `false` when that number had a smaller one, or
    /// there is no address space for more.
    pub fn open(&self, device: usize, slots: u64) -> bool {
        let tables = || {
            let (slots, ranges) = (slots as usize, (slots as usize).div_ceil(RANGE_SLOTS));
            Some(ZswapTables {
                entries: SharedCells::anonymous(slots).ok()?,
                links: AtomicTable::new(slots).ok()?,
                heads: SharedCells::anonymous(ranges * HEAD_CELLS).ok()?,
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

    /// Whether there was an entry for a slot of a device since it was forgotten: then its tables
    /// have memory.
    pub fn had_entries(&self, device: usize) -> bool {
        self.devices[device].get().is_some_and(|tables| tables.used.load(Relaxed) > 0)
    }

    /// Gives the memory of a device's entries back, of which there are none.
    pub fn forget(&self, device: usize) {
        if let Some(ZswapTables { entries, links, used, .. }) = self.devices[device].get() {
            used.store(0, Relaxed);
            entries.forget();
            links.forget();
        }
    }

    fn tables(&self, slot: SlotId) -> &ZswapTables {
        self.devices[slot.device()].get().expect("the device of a slot is open")
    }

    fn cell(&self, slot: SlotId) -> ZswapCell<'_> {
        ZswapCell(&self.tables(slot).entries[slot.offset() as usize])
    }

    fn lock(&self, slot: SlotId) -> CountedGuard<'_, ()> {
        let number = slot.offset() as usize / RANGE_SLOTS + slot.device();
        self.locks[number % self.locks.len()].lock(&self.stats)
    }

    /// The list of a slot's range; its lock is held.
    fn list(&self, slot: SlotId) -> List<'_> {
        let tables = self.tables(slot);
        let range = slot.offset() as usize / RANGE_SLOTS;
        let first = range * RANGE_SLOTS;
        let links = &tables.links[first..(first + RANGE_SLOTS).min(tables.links.len())];
        List { links, head: &tables.heads[range * HEAD_CELLS..][..HEAD_CELLS] }
    }

    /// Puts another object, or none, in the place of what a slot has; its range's lock is held. It
    /// is in the list from after it can be found. Returns what was.
    fn set(&self, slot: SlotId, new: Option<Object>, now: u64) -> Option<Object> {
        let old = self.cell(slot).swap(new);
        self.settle(slot, old, new, now);
        old
    }

    /// Brings the list and the count of a range up to date with an entry that has been changed; its
    /// lock is held.
    fn settle(&self, slot: SlotId, old: Option<Object>, new: Option<Object>, now: u64) {
        match (old.is_some(), new.is_some()) {
            (false, true) => self.list(slot).push(Self::in_range(slot), now),
            (true, false) => self.list(slot).unlink(Self::in_range(slot)),
            _ => {}
        }
        let count = &self.tables(slot).counts[slot.offset() as usize / RANGE_SLOTS];
        count.store(
            count.load(Relaxed) + u64::from(new.is_some()) - u64::from(old.is_some()),
            Release,
        );
    }

    fn in_range(slot: SlotId) -> usize {
        slot.offset() as usize % RANGE_SLOTS
    }

    /// The object of a slot, as far as can be said without a lock.
    pub fn look_up(&self, slot: SlotId) -> Option<Object> {
        self.cell(slot).load()
    }

    /// Whether a slot has a compressed copy, as far as can be said without a lock.
    pub fn contains(&self, slot: SlotId) -> bool {
        self.look_up(slot).is_some()
    }

    /// Announces a reader of a slot's object, to be followed by [`Zswap::end_load`]: the owner of
    /// the slot's page.
    pub fn begin_load(&self, slot: SlotId) -> Option<Object> {
        self.stats.add(Counter::ZswapLookup, 1);
        self.cell(slot).begin_load(None)
    }

    /// The same for an object that was seen before, if it is there still: who has made sure that
    /// the slot stays in use.
    pub fn begin_load_of(&self, slot: SlotId, object: Object) -> bool {
        let wanted = if is_seeded(Bug::NotCompared) { None } else { Some(object) };
        self.cell(slot).begin_load(wanted).is_some()
    }

    /// The reader is done.
    pub fn end_load(&self, slot: SlotId) {
        self.cell(slot).end_load();
    }

    /// Makes entries for slots, as the newest, `now` pages having left memory; an older copy of one
    /// is handed to `older`. Best with those of a range together.
    pub fn insert(
        &self,
        entries: impl Iterator<Item = (SlotId, Object)>,
        now: u64,
        mut older: impl FnMut(Object),
    ) {
        let range = |slot: SlotId| (slot.device(), slot.offset() as usize / RANGE_SLOTS);
        let mut entries = entries.peekable();
        while let Some(&(first, _)) = entries.peek() {
            if is_seeded(Bug::ListedFirst) {
                self.list_before(first, now);
            }
            let held = self.lock(first);
            let (mut replaced, mut count) = ([None; HOLD_SLOTS], 0);
            while let Some((slot, object)) =
                entries.next_if(|(slot, _)| range(*slot) == range(first) && count < HOLD_SLOTS)
            {
                replaced[count] = self.set(slot, Some(object), now);
                count += 1;
            }
            self.tables(first).used.fetch_max(range(first).1 + 1, Relaxed);
            drop(held);
            replaced[..count].iter().flatten().copied().for_each(&mut older);
        }
    }

    /// A mistake: for a moment a slot is in the list that has no entry.
    fn list_before(&self, slot: SlotId, now: u64) {
        if !self.contains(slot) {
            let held = self.lock(slot);
            self.list(slot).push(Self::in_range(slot), now);
            self.tables(slot).used.fetch_max(slot.offset() as usize / RANGE_SLOTS + 1, Relaxed);
            drop(held);
            let _held = self.lock(slot);
            self.list(slot).unlink(Self::in_range(slot));
        }
    }

    /// Forgets the entries of slots that are being given back; hands out their objects.
    pub fn invalidate(&self, run: SlotRun, mut freed: impl FnMut(Object)) {
        self.for_each_range(run, |part, _| {
            let range = part.first.offset() as usize / RANGE_SLOTS;
            // 1. Nothing in the whole range? A slot's own entry was made by a thread that this one
            //    has heard from.
            if self.setting != Invalidate::Always
                && self.tables(part.first).counts[range].load(Acquire) == 0
            {
                return;
            }
            // 2. No entry?
            let looks_up = self.setting == Invalidate::EmptyLookup;
            if looks_up {
                self.stats.add(Counter::ZswapLookup, part.len as u64);
                if !part.slots().any(|slot| self.look_up(slot).is_some()) {
                    return;
                }
            }
            let (mut held, mut erased) = (None, [None; HOLD_SLOTS]);
            for (slot, erased) in part.slots().zip(&mut erased) {
                if looks_up && self.look_up(slot).is_none() {
                    continue;
                }
                // 3. Out of the list, and out. Several in one hold, except for the baselines.
                let guard = held.take().unwrap_or_else(|| self.lock(slot));
                *erased = self.set(slot, None, 0);
                self.stats.add(Counter::ZswapErased, erased.is_some().into());
                held = looks_up.then_some(guard);
            }
            // 4. To give frames back takes system calls.
            drop(held);
            erased[..part.len].iter().flatten().copied().for_each(&mut freed);
        });
    }

    /// Compaction: puts a copy in the place of an object, if it is there still and nobody reads it.
    /// What is said to be a slot may be none.
    pub fn replace(&self, slot: SlotId, old: Handle, new: Handle) -> bool {
        let tables = self.devices.get(slot.device()).and_then(OnceLock::get);
        let Some(cell) = tables.and_then(|tables| tables.entries.get(slot.offset() as usize))
        else {
            return false;
        };
        let cell = ZswapCell(cell);
        cell.load().is_some_and(|object| {
            let readers = if is_seeded(Bug::MovedWhileRead) { cell.readers() } else { 0 };
            object.handle == old
                && cell.replace(object, readers, Some(Object { handle: new, ..object }))
        })
    }

    /// Writeback, whose page is compressed more densely, or on a device now: puts `new`, or
    /// nothing, in the place of the object of which the caller is the only reader, and has it read
    /// no more.
    pub fn finish_load(&self, slot: SlotId, old: Object, new: Option<Object>, now: u64) -> bool {
        let _held = self.lock(slot);
        let cell = self.cell(slot);
        let readers = if is_seeded(Bug::TakenWhileRead) { cell.readers() } else { 1 };
        let done = cell.replace(old, readers, new);
        if done {
            self.settle(slot, Some(old), new, now);
        }
        done
    }

    /// Makes an entry the newest again, if there is one.
    pub fn rotate(&self, slot: SlotId, now: u64) {
        let _held = self.lock(slot);
        if self.contains(slot) {
            let list = self.list(slot);
            list.unlink(Self::in_range(slot));
            list.push(Self::in_range(slot), now);
        }
    }

    /// Fills `out` with the oldest entries of the range that holds the oldest entry overall, in the
    /// order of their slots. There are at most `most` of them, and no more than `out` has room for.
    /// They may have changed by the time that the caller looks at them.
    pub fn oldest(
        &self,
        now: u64,
        most: usize,
        out: &mut overspill_os::list::List<(SlotId, Object)>,
    ) {
        out.clear();
        // 1. Which range? Without locks: a guess is enough.
        let ranges = self
            .devices
            .iter()
            .enumerate()
            .filter_map(|(device, tables)| Some((device, tables.get()?)));
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
        let slots =
            list.iter().take(most.min(out.capacity())).map(|index| first.advance(index as u64));
        slots.for_each(|slot| {
            out.push((slot, self.look_up(slot).expect("what is in the list has an entry")));
        });
        drop(held);
        out.sort_unstable_by_key(|(slot, _)| *slot);
    }

    /// Calls `each` for the parts of a run that lie in one range, of at most [`HOLD_SLOTS`], with
    /// where they begin in the run.
    fn for_each_range(&self, run: SlotRun, mut each: impl FnMut(SlotRun, usize)) {
        let mut at = 0;
        while at < run.len {
            let first = run.first.advance(at as u64);
            let len = (RANGE_SLOTS - Self::in_range(first)).min(run.len - at).min(HOLD_SLOTS);
            each(SlotRun { first, len }, at);
            at += len;
        }
    }

    /// Checks that lists and entries agree, and that nobody reads one; while all else stands still.
    /// Returns how many entries there are.
    ///
    /// # Panics
    /// When they do not.
    #[cfg(any(test, debug_assertions))]
    pub fn check(&self) -> usize {
        let mut entries = 0;
        for (device, tables) in
            self.devices.iter().enumerate().filter_map(|(d, t)| Some((d, t.get()?)))
        {
            for range in 0..tables.used.load(Relaxed) {
                let first = SlotId::new(device, (range * RANGE_SLOTS) as u64);
                let mut listed: Vec<usize> = self.list(first).iter().collect();
                listed.sort_unstable();
                let len = RANGE_SLOTS.min(tables.entries.len() - first.offset() as usize);
                let cells = &tables.entries[first.offset() as usize..][..len];
                assert!(
                    cells.iter().all(|cell| cell.load(Relaxed) & READERS == 0),
                    "an entry with a reader"
                );
                let there =
                    cells.iter().enumerate().filter(|(_, cell)| ZswapCell(cell).load().is_some());
                assert!(listed.iter().copied().eq(there.map(|(i, _)| i)), "the list of a range");
                let count = tables.counts[range].load(Relaxed);
                assert_eq!(count, listed.len() as u64, "entries of a range");
                entries += listed.len();
            }
        }
        entries
    }
}

impl std::fmt::Debug for Zswap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zswap({:?})", self.setting)
    }
}

#[cfg(test)]
mod tests;
