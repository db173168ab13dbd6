//! The records of clusters: which slots of each are in use or bad, and where it stands. Each has a
//! lock of its own.
//!
//! A record is [`RECORD_WORDS`] atomic words in memory that is zero and touched lazily: 192 bytes a
//! 2 MiB, or 0.009 % of the swap space that was ever in use. A zero record is a cluster that is
//! [`ClusterState::Absent`] with no slot in use. Its first cache line is the bitmap, its last all
//! that is counted; the one between is touched where slots are bad.
//!
//! Locks: a word of the record (`Rank::Cluster`, a leaf), waited for by [`Backoff`]; holds are
//! below a microsecond. [`Cluster`] is the proof that it is held. What may be read without it says
//! so.

use crate::base::counted::LockCounters;
use crate::base::lockdep::{Held, LockClass, Rank};
use crate::base::sync::{Atomic, Backoff};
use crate::stats::{Counter, Stats};
use overspill_os::Errno;
use overspill_os::table::ZeroTable;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

/// Slots of a cluster: 512 x 4 KiB = 2 MiB, as in Linux; a bitmap of it is one cache line.
pub const CLUSTER_SLOTS: usize = 512;
const BITMAP_WORDS: usize = CLUSTER_SLOTS / 64;

/// Words of a record: three cache lines.
pub const RECORD_WORDS: usize = 24;
/// The slots that cannot be handed out: in use, bad, or outside the device. A bit each.
const OCCUPIED: usize = 0;
/// Those of them that are bad or outside the device.
const BAD: usize = OCCUPIED + BITMAP_WORDS;
/// 1 while the cluster is locked.
const LOCK: usize = BAD + BITMAP_WORDS;
const STATE: usize = LOCK + 1;
/// Slots in use; slots that are bad or outside the device, from bit 32 on.
const COUNTS: usize = STATE + 1;
const SEAL: usize = COUNTS + 1;
/// Of the lists of clusters: only under the device's lock.
const LINKS: usize = SEAL + 1;
/// 1 once slots have been handed out.
const TOUCHED: usize = LINKS + 1;
const _: () = assert!(TOUCHED < RECORD_WORDS && LOCK.is_multiple_of(8));

/// Lists of clusters: one of free ones, and one a quarter of occupancy, so that the emptiest, which
/// have the longest runs, are found at once.
pub const LISTS: usize = 5;
/// The list of clusters without a slot in use.
pub const FREE_LIST: usize = 0;

/// Slots of a cluster, a bit each.
pub type Bitmap = [u64; BITMAP_WORDS];

/// The class of the locks of clusters.
const CLUSTER: LockClass = LockClass::new(Rank::Cluster);
/// Their counters.
static CLUSTER_LOCK: LockCounters = LockCounters {
    taken: Counter::ClusterLock,
    contended: Counter::ClusterLockContended,
    wait_ns: Counter::ClusterLockWaitNs,
    hold_ns: Counter::ClusterLockHoldNs,
    long_ns: Counter::ClusterLockLongNs,
};

/// Where a cluster stands. It is changed under its lock and that of the device, so either is enough
/// to read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterState {
    /// Not acquired, or without disk space yet.
    Absent,
    /// No free slot.
    Full,
    /// Slots are being handed out of it, under its own lock alone.
    Current,
    /// Shared with a child of a fork: nothing is handed out of it.
    Sealed,
    /// In the list of that number.
    Listed(usize),
}

impl ClusterState {
    fn to_word(self) -> u64 {
        match self {
            ClusterState::Absent => 0,
            ClusterState::Full => 1,
            ClusterState::Current => 2,
            ClusterState::Sealed => 3,
            ClusterState::Listed(list) => 4 + list as u64,
        }
    }

    fn from_word(word: u64) -> ClusterState {
        match word {
            0 => ClusterState::Absent,
            1 => ClusterState::Full,
            2 => ClusterState::Current,
            3 => ClusterState::Sealed,
            n => ClusterState::Listed(n as usize - 4),
        }
    }
}

type Record = [AtomicU64; RECORD_WORDS];

/// The records of all clusters of a device.
#[derive(Debug)]
pub struct ClusterTable {
    records: ZeroTable<Record>,
    /// Whether clusters are locked; else the device's lock is held whenever one is used.
    locks: bool,
    stats: Stats,
}

impl ClusterTable {
    /// A table of so many absent clusters.
    ///
    /// # Errors
    /// ENOMEM when there is no address space for it.
    pub fn new(clusters: u32, locks: bool, stats: Stats) -> Result<ClusterTable, Errno> {
        Ok(ClusterTable { records: ZeroTable::new(clusters as usize)?, locks, stats })
    }

    fn record(&self, cluster: u32) -> &Record {
        &self.records[cluster as usize]
    }

    /// Locks a cluster.
    pub fn lock(&self, index: u32) -> Cluster<'_> {
        let record = self.record(index);
        let lock = self.locks.then(|| Lock::take(&record[LOCK], &self.stats));
        Cluster { index, record, _lock: lock }
    }

    /// The slots that are in use; may be read without a lock, as [`ClusterTable::used_slots`].
    pub fn used_bitmap(&self, cluster: u32) -> Bitmap {
        let record = self.record(cluster);
        std::array::from_fn(|word| {
            Atomic::load(&record[OCCUPIED + word], Relaxed) & !record[BAD + word].load(Relaxed)
        })
    }

    /// Where a cluster stands; read under its lock or the device's.
    pub fn state(&self, cluster: u32) -> ClusterState {
        ClusterState::from_word(Atomic::load(&self.record(cluster)[STATE], Relaxed))
    }

    /// How many slots are in use; may be read without a lock, by who can do with what was true a
    /// moment ago.
    pub fn used_slots(&self, cluster: u32) -> u64 {
        used_of(self.record(cluster))
    }

    /// The sequence number of the last fork that shared the cluster; read under the device's lock.
    pub fn seal(&self, cluster: u32) -> u64 {
        self.record(cluster)[SEAL].load(Relaxed)
    }

    /// The neighbours of a cluster in its list; read under the device's lock.
    pub fn links(&self, cluster: u32) -> (u32, u32) {
        let word = self.record(cluster)[LINKS].load(Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Sets them; under the device's lock.
    pub fn set_links(&self, cluster: u32, (prev, next): (u32, u32)) {
        self.record(cluster)[LINKS].store((prev as u64) << 32 | next as u64, Relaxed);
    }

    /// The words of a record, as a fork copies them.
    #[cfg(test)]
    pub fn copy_to(&self, other: &ClusterTable) {
        for (from, to) in self.records.iter().flatten().zip(other.records.iter().flatten()) {
            match from.load(Relaxed) {
                0 => {}
                word => to.store(word, Relaxed),
            }
        }
    }
}

fn used_of(record: &Record) -> u64 {
    Atomic::load(&record[COUNTS], Relaxed) as u32 as u64
}

/// A cluster's lock, held.
#[derive(Debug)]
struct Lock<'a> {
    word: &'a AtomicU64,
    stats: &'a Stats,
    since: Option<Instant>,
    _held: Held,
}

impl<'a> Lock<'a> {
    fn take(word: &'a AtomicU64, stats: &'a Stats) -> Lock<'a> {
        let taken = || Atomic::swap(word, 1, Acquire) == 0;
        CLUSTER.check();
        let mut waited_since = None;
        if !taken() {
            waited_since = Some(Instant::now());
            let mut backoff = Backoff::default();
            // Looked at before it is tried: tries take the line away from who has the lock.
            while Atomic::load(word, Relaxed) != 0 || !taken() {
                backoff.wait();
            }
        }
        let since = CLUSTER_LOCK.taken(waited_since, stats);
        Lock { word, stats, since, _held: CLUSTER.hold() }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        Atomic::store(self.word, 0, Release);
        CLUSTER_LOCK.released(self.since, self.stats);
    }
}

/// A cluster, locked.
#[derive(Debug)]
pub struct Cluster<'a> {
    index: u32,
    record: &'a Record,
    _lock: Option<Lock<'a>>,
}

impl Cluster<'_> {
    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its first slot.
    pub fn first_slot(&self) -> u64 {
        self.index as u64 * CLUSTER_SLOTS as u64
    }

    fn get(&self, word: usize) -> u64 {
        self.record[word].load(Relaxed)
    }

    fn set(&mut self, word: usize, value: u64) {
        self.record[word].store(value, Relaxed);
    }

    fn bitmap(&self, field: usize) -> Bitmap {
        std::array::from_fn(|i| self.get(field + i))
    }

    /// The slots that cannot be handed out.
    pub fn occupied(&self) -> Bitmap {
        self.bitmap(OCCUPIED)
    }

    /// Where the cluster stands.
    pub fn state(&self) -> ClusterState {
        ClusterState::from_word(self.get(STATE))
    }

    /// Sets where the cluster stands; also under the device's lock.
    pub fn set_state(&mut self, state: ClusterState) {
        self.set(STATE, state.to_word());
    }

    /// Notes that slots are handed out; whether that is for the first time.
    pub fn touch(&mut self) -> bool {
        let first = self.get(TOUCHED) == 0;
        self.set(TOUCHED, 1);
        first
    }

    /// Records a fork that shares the cluster; also under the device's lock.
    pub fn set_seal(&mut self, seq: u64) {
        self.set(SEAL, seq);
    }

    /// How many slots are in use.
    pub fn used_slots(&self) -> u64 {
        used_of(self.record)
    }

    /// How many slots are bad or outside the device.
    fn bad_slots(&self) -> u64 {
        self.get(COUNTS) >> 32
    }

    /// How many slots are free, sealed or not.
    pub fn free_slots(&self) -> u64 {
        CLUSTER_SLOTS as u64 - self.used_slots() - self.bad_slots()
    }

    fn count(&mut self, used: u64, bad: u64) {
        self.set(COUNTS, bad << 32 | used);
    }

    /// Takes free slots into use.
    pub fn take(&mut self, start: usize, len: usize) {
        for (i, mask) in masks(start, len) {
            let occupied = self.get(OCCUPIED + i);
            assert_eq!(
                occupied & mask,
                0,
                "a slot that is in use or bad was about to be handed out"
            );
            self.set(OCCUPIED + i, occupied | mask);
        }
        self.count(self.used_slots() + len as u64, self.bad_slots());
    }

    /// Takes slots out of use.
    pub fn put(&mut self, start: usize, len: usize) {
        for (i, mask) in masks(start, len) {
            let occupied = self.get(OCCUPIED + i);
            // The other line is looked at where something is in it.
            let bad = if self.bad_slots() > 0 { self.get(BAD + i) } else { 0 };
            assert_eq!(occupied & !bad & mask, mask, "a slot that is not in use was freed");
            self.set(OCCUPIED + i, occupied & !mask);
        }
        self.count(self.used_slots() - len as u64, self.bad_slots());
    }

    /// Withdraws free slots for ever.
    pub fn withdraw(&mut self, start: usize, len: usize) {
        for (i, mask) in masks(start, len) {
            assert_eq!(self.get(OCCUPIED + i) & mask, 0, "a slot in use was about to be withdrawn");
            self.set(OCCUPIED + i, self.get(OCCUPIED + i) | mask);
            self.set(BAD + i, self.get(BAD + i) | mask);
        }
        self.count(self.used_slots(), self.bad_slots() + len as u64);
    }

    /// Checks the counts against the bitmaps.
    pub fn check(&self) {
        let (occupied, bad) = (self.occupied(), self.bitmap(BAD));
        assert!(
            occupied.iter().zip(bad).all(|(occupied, bad)| bad & !occupied == 0),
            "a bad slot is free"
        );
        assert_eq!(
            (count(&occupied) - count(&bad), count(&bad)),
            (self.used_slots(), self.bad_slots())
        );
    }
}

fn count(bitmap: &Bitmap) -> u64 {
    bitmap.iter().map(|word| word.count_ones() as u64).sum()
}

/// The words that slots `start..start + len` lie in, each with its bits.
fn masks(start: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = start + len;
    assert!(end <= CLUSTER_SLOTS);
    (start / 64..end.div_ceil(64)).map(move |i| {
        let from = start.max(i * 64) - i * 64;
        let to = end.min(i * 64 + 64) - i * 64;
        (i, (u64::MAX >> (64 - (to - from))) << from)
    })
}

/// The runs of free slots of a cluster: start and length of each.
pub fn free_runs(occupied: &Bitmap) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = next(occupied, at, 0);
        at = next(occupied, start, u64::MAX);
        (at > start).then_some((start, at - start))
    })
}

/// The first run of `want` free slots of a cluster, or else its first longest run: start and
/// length, which is 0 where every slot is occupied.
pub fn find_run(occupied: &Bitmap, want: usize) -> (usize, usize) {
    let mut best = (0, 0);
    for (start, len) in free_runs(occupied) {
        if len >= want {
            return (start, want);
        }
        if len > best.1 {
            best = (start, len);
        }
    }
    best
}

/// First slot at or after `from` whose bit is clear (`flip` 0) or set (`flip` all ones); the end if
/// there is none.
fn next(bitmap: &Bitmap, from: usize, flip: u64) -> usize {
    let mut at = from;
    while at < CLUSTER_SLOTS {
        let candidates = !(bitmap[at / 64] ^ flip) >> (at % 64);
        if candidates != 0 {
            return at + candidates.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    CLUSTER_SLOTS
}
