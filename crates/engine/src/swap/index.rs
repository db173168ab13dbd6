//! The slot index of the swap cache: what of a swap slot is in memory, or when it left.
//!
//! An entry a slot, a word of 32 bits each, in tables that are touched lazily. Looked up without a
//! lock. Changed under the lock of a partition of the swap space, one partition or many by setting,
//! as it takes a lock to change several entries at once. A look-up says what was: who acts on it
//! does so by a change that looks again.
//!
//! A slot is handed out and given back by [`crate::slot`]; between, its entry is not
//! [`Entry::None`]. A slot that is given up while it is read ahead, or written from the compressed
//! tier, is given back by whoever does that.
//!
//! Locks: a partition's ([`Rank::SwapCache`]), one at a time; nothing is taken under it.

use crate::base::counted::{CountedGuard, CountedMutex, LockCounters, locks_of};
use crate::base::lockdep::Rank;
use crate::base::seeded::{Bug, is_seeded};
use crate::base::sync::Atomic;
use crate::frame::ARENA_MAX;
use crate::slot::{Batching, SlotRun};
use crate::stats::{Counter, Stats};
use crate::swap::settings::CachePartition;
use crate::units::{FrameId, PAGE_SIZE, PageIndex, SlotId};
use overspill_os::Errno;
use overspill_os::table::AtomicTable;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Most locks: enough for 16 GiB in partitions of 64 MiB; beyond, and on few processors, partitions
/// share them. 16 KiB of memory.
const LOCKS_MAX: usize = 256;

/// The counters of the locks of partitions.
static SWAP_CACHE_LOCK: LockCounters = LockCounters {
    taken: Counter::SwapCacheLock,
    contended: Counter::SwapCacheLockContended,
    wait_ns: Counter::SwapCacheLockWaitNs,
    hold_ns: Counter::SwapCacheLockHoldNs,
    long_ns: Counter::SwapCacheLockLongNs,
};

/// What is known of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing: the slot is not in use.
    None,
    /// Its page is on the device only.
    Shadow(Stamp),
    /// I/O is under way that its page's owner did not ask for: it is read ahead, or written from
    /// the compressed tier.
    Busy(Stamp),
    /// The same, and its page was given up meanwhile.
    Abandoned,
    /// A copy of its page is in a frame of the swap cache.
    Frame(FrameId),
    /// Its page is in memory, and the copy on the device is as good.
    Clean,
    /// Its page could not be read when its device was taken out of use. The slot is on none.
    Lost,
}

/// When a page left memory for a device: how many pages had left before, up to [`PAYLOAD_BITS`]
/// bits of it. Enough to tell that 4 TiB have left since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp(u32);

impl Stamp {
    /// After `pages` pages.
    pub fn new(pages: u64) -> Stamp {
        Stamp(pages as u32 & PAYLOAD_MASK)
    }

    /// Pages that have left since, `now` that so many have.
    pub fn distance(self, now: u64) -> u64 {
        Stamp::new(now.wrapping_sub(self.0 as u64)).0 as u64
    }
}

/// A word has a tag in its highest bits, and a stamp or a frame below; or, with the first tag,
/// which of the others it is.
const PAYLOAD_BITS: u32 = 30;
const PAYLOAD_MASK: u32 = (1 << PAYLOAD_BITS) - 1;
const _: () = assert!(ARENA_MAX.pages() <= 1 << PAYLOAD_BITS);

impl Entry {
    fn to_word(self) -> u64 {
        let (tag, payload) = match self {
            Entry::None => (0, 0),
            Entry::Abandoned => (0, 1),
            Entry::Clean => (0, 2),
            Entry::Lost => (0, 3),
            Entry::Shadow(stamp) => (1, stamp.0),
            Entry::Busy(stamp) => (2, stamp.0),
            Entry::Frame(frame) => (3, frame.0),
        };
        u64::from(tag << PAYLOAD_BITS | payload)
    }

    fn from_word(word: u64) -> Entry {
        let payload = word as u32 & PAYLOAD_MASK;
        match (word >> PAYLOAD_BITS, payload) {
            (0, 0) => Entry::None,
            (0, 1) => Entry::Abandoned,
            (0, 2) => Entry::Clean,
            (0, 3) => Entry::Lost,
            (1, _) => Entry::Shadow(Stamp(payload)),
            (2, _) => Entry::Busy(Stamp(payload)),
            (3, _) => Entry::Frame(FrameId(payload)),
            _ => unreachable!("an entry of the slot index: {word:#x}"),
        }
    }
}

/// What is to be done with a slot whose page was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// Give it back, and the frame that had a copy.
    Now(Option<FrameId>),
    /// Whoever does I/O on it gives it back.
    Later,
}

/// One entry. All but [`IndexCell::load`] are for the holder of the partition's lock.
pub(crate) struct IndexCell<'a> {
    pub(crate) entry: &'a AtomicU32,
    /// By frame: when the page left that is read ahead into it.
    pub(crate) stamps: &'a [AtomicU32],
}

impl IndexCell<'_> {
    pub(crate) fn load(&self) -> Entry {
        Entry::from_word(Atomic::load(self.entry, Acquire))
    }

    fn set(&self, entry: Entry) {
        Atomic::store(self.entry, entry.to_word(), Release);
    }

    /// A page was written to the slot.
    pub(crate) fn stored(&self, stamp: Stamp) {
        assert_eq!(self.load(), Entry::None, "a page was stored in a slot that is in use");
        self.set(Entry::Shadow(stamp));
    }

    /// Begins I/O; `false` when there is nothing to read or write, or somebody does.
    pub(crate) fn begin_io(&self) -> bool {
        match self.load() {
            Entry::Shadow(stamp) => self.set(Entry::Busy(stamp)),
            Entry::Busy(_) if is_seeded(Bug::BegunTwice) => {}
            _ => return false,
        }
        true
    }

    /// Ends it, with the frame that has a copy now, or without one; `false` when the slot was given
    /// up meanwhile.
    pub(crate) fn end_io(&self, frame: Option<FrameId>) -> bool {
        match (self.load(), frame) {
            (Entry::Busy(stamp), Some(frame)) => {
                Atomic::store(&self.stamps[frame.0 as usize], stamp.0.into(), Relaxed);
                self.set(Entry::Frame(frame));
            }
            (Entry::Busy(stamp), None) => self.set(Entry::Shadow(stamp)),
            (Entry::Abandoned, _) => {
                self.set(Entry::None);
                return false;
            }
            (entry, _) => panic!("I/O ends on a slot on which none began: {entry:?}"),
        }
        true
    }

    /// Takes the frame out of the swap cache.
    pub(crate) fn take_frame(&self) -> Option<FrameId> {
        let Entry::Frame(frame) = self.load() else { return None };
        self.set(Entry::Shadow(Stamp::new(Atomic::load(&self.stamps[frame.0 as usize], Relaxed))));
        Some(frame)
    }

    /// The page is in memory, and keeps its slot; `false` if it must not, for the slot is read
    /// ahead or was.
    pub(crate) fn came_back(&self) -> bool {
        let alone = matches!(self.load(), Entry::Shadow(_));
        if alone {
            self.set(Entry::Clean);
        }
        alone
    }

    /// It has left again.
    pub(crate) fn left(&self, stamp: Stamp) {
        assert_eq!(self.load(), Entry::Clean, "a page left to a slot that it did not keep");
        self.set(Entry::Shadow(stamp));
    }

    /// Its page is lost.
    pub(crate) fn lost(&self) {
        self.set(Entry::Lost);
    }

    pub(crate) fn give_up(&self) -> GivenUp {
        let (next, done) = match self.load() {
            Entry::Shadow(_) | Entry::Clean | Entry::Lost => (Entry::None, GivenUp::Now(None)),
            Entry::Frame(frame) => (Entry::None, GivenUp::Now(Some(frame))),
            Entry::Busy(_) => (Entry::Abandoned, GivenUp::Later),
            entry => panic!("a slot was given up that is not in use: {entry:?}"),
        };
        self.set(next);
        done
    }
}

/// What is known of the slots of a device.
struct IndexTables {
    entries: AtomicTable,
    /// Whose page a slot has: a hint, good while the page's lock is held and its word names the
    /// slot.
    owners: AtomicTable,
}

/// A lock, on a cache line of its own.
#[repr(align(64))]
struct IndexLock(CountedMutex<()>);

/// The entries of all slots of all devices.
pub struct SlotIndex {
    devices: [OnceLock<IndexTables>; SlotId::DEVICES_MAX],
    /// By frame, as [`IndexCell::stamps`].
    stamps: AtomicTable,
    partitions: Box<[IndexLock]>,
    /// Most entries that are changed in one hold of a lock.
    hold_slots: usize,
    /// A partition has 1 << shift slots.
    shift: u32,
    stats: Stats,
}

impl SlotIndex {
    /// What a slot takes up here: its entry and its owner.
    pub const SLOT_BYTES: u64 = 8;

    /// An index for no device yet, and for copies of pages in `frames` frames.
    ///
    /// # Errors
    /// ENOMEM when there is no address space.
    pub fn new(
        partition: CachePartition,
        batching: Batching,
        frames: usize,
        stats: Stats,
    ) -> Result<SlotIndex, Errno> {
        let (shift, locks) = match partition {
            CachePartition::Device => (u64::BITS - 1, SlotId::DEVICES_MAX),
            CachePartition::Bytes(bytes) => {
                ((bytes / PAGE_SIZE as u64).ilog2(), locks_of(LOCKS_MAX))
            }
        };
        let lock = |_| IndexLock(CountedMutex::new(Rank::SwapCache, &SWAP_CACHE_LOCK, ()));
        Ok(SlotIndex {
            devices: [const { OnceLock::new() }; _],
            stamps: AtomicTable::new(frames)?,
            partitions: (0..locks).map(lock).collect(),
            hold_slots: batching.most(),
            shift,
            stats,
        })
    }

    /// Makes entries for a device of `slots` slots; `false` when that number had a smaller one, or
    /// there is no address space for more.
    pub fn open(&self, device: usize, slots: u64) -> bool {
        if self.devices[device].get().is_none()
            && let (Ok(entries), Ok(owners)) =
                (AtomicTable::new(slots as usize), AtomicTable::new(slots as usize))
        {
            let _ = self.devices[device].set(IndexTables { entries, owners });
        }
        self.devices[device].get().is_some_and(|tables| tables.entries.len() as u64 >= slots)
    }

    /// Gives the memory of a device's entries back, none of which says anything.
    pub fn forget(&self, device: usize) {
        if let Some(tables) = self.devices[device].get() {
            tables.entries.forget();
            tables.owners.forget();
        }
    }

    /// How many slots of a device have entries: at least as many as it has.
    pub fn slots(&self, device: usize) -> u64 {
        self.devices[device].get().map_or(0, |tables| tables.entries.len() as u64)
    }

    fn tables(&self, slot: SlotId) -> &IndexTables {
        self.devices[slot.device()].get().expect("the device of a slot is open")
    }

    fn cell(&self, slot: SlotId) -> IndexCell<'_> {
        IndexCell {
            entry: &self.tables(slot).entries[slot.offset() as usize],
            stamps: &self.stamps,
        }
    }

    /// Notes whose page a slot has; before the page's word names the slot, under its lock.
    pub fn set_owner(&self, slot: SlotId, page: PageIndex) {
        self.tables(slot).owners[slot.offset() as usize].store(page.0 as u32, Relaxed);
    }

    /// The page whose content a slot has, if its word says so too.
    pub fn owner(&self, slot: SlotId) -> PageIndex {
        PageIndex(self.tables(slot).owners[slot.offset() as usize].load(Relaxed) as usize)
    }

    fn lock(&self, slot: SlotId) -> CountedGuard<'_, ()> {
        let count = self.partitions.len();
        let number = (slot.offset() >> self.shift) as usize + slot.device();
        self.partitions[number % count].0.lock(&self.stats)
    }

    /// Looks a slot up, without a lock.
    pub fn load(&self, slot: SlotId) -> Entry {
        self.cell(slot).load()
    }

    /// When the page of a slot left, also if it was read ahead since.
    pub fn left_at(&self, slot: SlotId) -> Option<Stamp> {
        match self.load(slot) {
            Entry::Shadow(stamp) | Entry::Busy(stamp) => Some(stamp),
            Entry::Frame(frame) => {
                Some(Stamp::new(Atomic::load(&self.stamps[frame.0 as usize], Relaxed)))
            }
            Entry::None | Entry::Abandoned | Entry::Clean | Entry::Lost => None,
        }
    }

    /// Calls `change` for each slot of a run, with the lock of its partition.
    fn for_each(&self, run: SlotRun, mut change: impl FnMut(usize, IndexCell<'_>)) {
        let mut at = 0;
        while at < run.len {
            let first = run.first.advance(at as u64);
            let rest = (1u64 << self.shift) - (first.offset() & ((1 << self.shift) - 1));
            let end = run.len.min(at + (rest.min(run.len as u64) as usize).min(self.hold_slots));
            let _held = self.lock(first);
            (at..end).for_each(|i| change(i, self.cell(run.first.advance(i as u64))));
            at = end;
        }
    }

    /// Makes sure that there is memory behind the entry of a slot not used before: to get it takes
    /// longer than all that is done under a lock here.
    fn prefault(&self, slot: SlotId) {
        // What changes nothing, but needs the memory as what changes it does. (To add 0 would be
        // compiled to a load.)
        let _ = self.cell(slot).entry.compare_exchange(0, 0, Relaxed, Relaxed);
    }

    /// Pages were stored for slots, at `stamp`. Best with those of a partition together.
    pub fn stored(&self, slots: impl Iterator<Item = SlotId> + Clone, stamp: Stamp) {
        slots.clone().for_each(|slot| self.prefault(slot));
        let partition = |slot: SlotId| (slot.device(), slot.offset() >> self.shift);
        let mut slots = slots.peekable();
        while let Some(first) = slots.next() {
            let _held = self.lock(first);
            self.cell(first).stored(stamp);
            let others =
                std::iter::from_fn(|| slots.next_if(|slot| partition(*slot) == partition(first)));
            others.take(self.hold_slots - 1).for_each(|slot| self.cell(slot).stored(stamp));
        }
    }

    /// Begins I/O on what of a run is not in memory, or only compressed; `wanted` receives which
    /// slots.
    pub fn begin_io(&self, run: SlotRun, wanted: &mut [bool]) {
        self.for_each(run, |i, cell| wanted[i] = cell.begin_io());
    }

    /// Ends it for those of a run that are `wanted`, with the frames that have copies now. Those
    /// that stay wanted are in use still; of the others the caller must give the slots back.
    pub fn end_io(&self, run: SlotRun, frames: &[Option<FrameId>], wanted: &mut [bool]) {
        self.for_each(run, |i, cell| wanted[i] = wanted[i] && cell.end_io(frames[i]));
    }

    /// The page of a slot on no device cannot be had any more; the caller holds its lock, or has
    /// not published the slot yet.
    pub fn lost(&self, slot: SlotId) {
        let _held = self.lock(slot);
        self.cell(slot).lost();
    }

    /// Takes the frame with a copy of a slot's page, if there is one, which is the caller's from
    /// now on.
    pub fn take_frame(&self, slot: SlotId) -> Option<FrameId> {
        let _held = self.lock(slot);
        self.cell(slot).take_frame()
    }

    /// The pages of a run are in memory; `keeps` receives which of them keep their slots. One that
    /// is read ahead, or was, must not.
    pub fn came_back(&self, run: SlotRun, keeps: &mut [bool]) {
        self.for_each(run, |i, cell| keeps[i] = cell.came_back());
    }

    /// It has left again, at `stamp`.
    pub fn left(&self, slot: SlotId, stamp: Stamp) {
        let _held = self.lock(slot);
        self.cell(slot).left(stamp);
    }

    /// The pages of a run are wanted no more, or are elsewhere; `done` receives what is to be done
    /// with the slot of each.
    pub fn give_up(&self, run: SlotRun, done: &mut [GivenUp]) {
        self.for_each(run, |i, cell| done[i] = cell.give_up());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_apart_and_keep_what_they_say() {
        let stamp = Stamp::new(u64::MAX);
        let frame = FrameId(ARENA_MAX.pages() as u32 - 1);
        let entries = [Entry::None, Entry::Abandoned, Entry::Clean, Entry::Lost]
            .into_iter()
            .chain([Entry::Shadow(stamp), Entry::Busy(stamp), Entry::Frame(frame)])
            .chain([Entry::Shadow(Stamp(0)), Entry::Busy(Stamp(0)), Entry::Frame(FrameId(0))]);
        entries.for_each(|entry| {
            assert_eq!(Entry::from_word(u32::try_from(entry.to_word()).unwrap().into()), entry)
        });
        assert_eq!(Stamp::new(5).distance((7 << PAYLOAD_BITS) + 4), (1 << PAYLOAD_BITS) - 1);
    }

    #[test]
    fn a_page_that_was_read_ahead_in_vain_left_when_it_left() {
        let index = SlotIndex::new(
            CachePartition::default(),
            Batching::default(),
            8,
            Stats::anonymous().unwrap(),
        );
        let index = index.unwrap();
        assert!(index.open(0, 64));
        let run = SlotRun { first: SlotId::new(0, 3), len: 1 };
        index.stored(run.slots(), Stamp::new(77));
        let mut wanted = [false];
        index.begin_io(run, &mut wanted);
        index.end_io(run, &[Some(FrameId(7))], &mut wanted);
        assert_eq!((wanted, index.load(run.first)), ([true], Entry::Frame(FrameId(7))));
        assert_eq!(index.take_frame(run.first), Some(FrameId(7)));
        assert_eq!(index.load(run.first), Entry::Shadow(Stamp::new(77)));
    }
}
