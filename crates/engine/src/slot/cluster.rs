//! The table of clusters: which slots of each are used or bad, and the lists that clusters stand in.
//!
//! A record of 19 words a cluster, in memory that is zero and touched lazily: 152 bytes a 2 MiB, or 0.007 % of the
//! swap space that was ever in use. A zero record is a cluster that is [`State::Absent`] with no slot used.

use overspill_os::{Errno, io::IoBuffer};

/// Slots of a cluster: 512 x 4 KiB = 2 MiB, as in Linux; a bitmap of it is one cache line.
pub const CLUSTER_SLOTS: usize = 512;
const BITMAP_WORDS: usize = CLUSTER_SLOTS / 64;

const USED: usize = 0;
const BAD: usize = USED + BITMAP_WORDS;
const STATE: usize = BAD + BITMAP_WORDS;
const SEAL: usize = STATE + 1;
const LINKS: usize = SEAL + 1;
const RECORD_WORDS: usize = LINKS + 1;

/// Lists of clusters: one of free ones, and one a quarter of occupancy, so that the emptiest, which have the longest
/// runs, are found at once.
pub const LISTS: usize = 5;
/// The list of clusters without a used slot.
pub const FREE_LIST: usize = 0;

/// Slots of a cluster, a bit each.
pub type Bitmap = [u64; BITMAP_WORDS];

/// Where a cluster stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not leased, or without disk space yet.
    Absent,
    /// No free slot.
    Full,
    /// Slots are being handed out of it.
    Current,
    /// Shared with a child of a fork: nothing is handed out of it.
    Sealed,
    /// In the list of that number.
    Listed(usize),
}

impl State {
    fn to_word(self) -> u64 {
        match self {
            State::Absent => 0,
            State::Full => 1,
            State::Current => 2,
            State::Sealed => 3,
            State::Listed(list) => 4 + list as u64,
        }
    }

    fn from_word(word: u64) -> State {
        match word {
            0 => State::Absent,
            1 => State::Full,
            2 => State::Current,
            3 => State::Sealed,
            n => State::Listed(n as usize - 4),
        }
    }
}

/// No cluster: the end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// The records of all clusters of a device.
#[derive(Debug)]
pub struct ClusterTable {
    words: IoBuffer,
    lists: [List; LISTS],
}

impl ClusterTable {
    /// A table of `clusters` absent clusters.
    pub fn new(clusters: u32) -> Result<ClusterTable, Errno> {
        let bytes = clusters as usize * RECORD_WORDS * 8;
        let words = IoBuffer::new(bytes.div_ceil(overspill_os::PAGE_SIZE))?;
        Ok(ClusterTable { words, lists: [List { head: NONE, tail: NONE }; LISTS] })
    }

    fn word(&self, cluster: u32, field: usize) -> u64 {
        self.words.words()[cluster as usize * RECORD_WORDS + field]
    }

    fn word_mut(&mut self, cluster: u32, field: usize) -> &mut u64 {
        &mut self.words.words_mut()[cluster as usize * RECORD_WORDS + field]
    }

    fn bitmap(&self, cluster: u32, field: usize) -> Bitmap {
        let at = cluster as usize * RECORD_WORDS + field;
        std::array::from_fn(|i| self.words.words()[at + i])
    }

    /// The used slots of a cluster.
    pub fn used(&self, cluster: u32) -> Bitmap {
        self.bitmap(cluster, USED)
    }

    /// The slots that cannot be handed out: used, bad, or outside the device.
    pub fn occupied(&self, cluster: u32) -> Bitmap {
        let (used, bad) = (self.used(cluster), self.bitmap(cluster, BAD));
        std::array::from_fn(|i| used[i] | bad[i])
    }

    /// How many slots are used.
    pub fn used_slots(&self, cluster: u32) -> u64 {
        count(&self.used(cluster))
    }

    /// How many slots are free, sealed or not.
    pub fn free_slots(&self, cluster: u32) -> u64 {
        CLUSTER_SLOTS as u64 - count(&self.occupied(cluster))
    }

    /// Marks free slots used.
    pub fn take(&mut self, cluster: u32, start: usize, len: usize) {
        let occupied = self.occupied(cluster);
        for (i, mask) in masks(start, len) {
            assert_eq!(occupied[i] & mask, 0, "a slot that is in use or bad was about to be handed out");
            *self.word_mut(cluster, USED + i) |= mask;
        }
    }

    /// Marks used slots free.
    pub fn put(&mut self, cluster: u32, start: usize, len: usize) {
        for (i, mask) in masks(start, len) {
            let used = self.word_mut(cluster, USED + i);
            assert_eq!(*used & mask, mask, "a slot that is not in use was freed");
            *used &= !mask;
        }
    }

    /// Marks slots bad that are not in use.
    pub fn set_bad(&mut self, cluster: u32, start: usize, len: usize) {
        for (i, mask) in masks(start, len) {
            *self.word_mut(cluster, BAD + i) |= mask;
        }
    }

    /// Where the cluster stands.
    pub fn state(&self, cluster: u32) -> State {
        State::from_word(self.word(cluster, STATE))
    }

    /// Moves the cluster: out of its list if it is in one, to the end of the new one if that is a list.
    pub fn set_state(&mut self, cluster: u32, state: State) {
        if let State::Listed(list) = self.state(cluster) {
            self.unlink(cluster, list);
        }
        *self.word_mut(cluster, STATE) = state.to_word();
        if let State::Listed(list) = state {
            self.link_last(cluster, list);
        }
    }

    /// The sequence number of the last fork that shared the cluster.
    pub fn seal(&self, cluster: u32) -> u64 {
        self.word(cluster, SEAL)
    }

    /// Records a fork that shares the cluster.
    pub fn set_seal(&mut self, cluster: u32, seq: u64) {
        *self.word_mut(cluster, SEAL) = seq;
    }

    /// First cluster of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        let head = self.lists[list].head;
        (head != NONE).then_some(head)
    }

    fn links(&self, cluster: u32) -> (u32, u32) {
        let word = self.word(cluster, LINKS);
        ((word >> 32) as u32, word as u32)
    }

    fn set_links(&mut self, cluster: u32, (prev, next): (u32, u32)) {
        *self.word_mut(cluster, LINKS) = (prev as u64) << 32 | next as u64;
    }

    fn link_last(&mut self, cluster: u32, list: usize) {
        let tail = self.lists[list].tail;
        self.set_links(cluster, (tail, NONE));
        match tail {
            NONE => self.lists[list].head = cluster,
            tail => self.set_links(tail, (self.links(tail).0, cluster)),
        }
        self.lists[list].tail = cluster;
    }

    fn unlink(&mut self, cluster: u32, list: usize) {
        let (prev, next) = self.links(cluster);
        match prev {
            NONE => self.lists[list].head = next,
            prev => self.set_links(prev, (self.links(prev).0, next)),
        }
        match next {
            NONE => self.lists[list].tail = prev,
            next => self.set_links(next, (prev, self.links(next).1)),
        }
    }

    /// A copy, as a fork makes one.
    #[cfg(test)]
    pub fn copy(&self) -> ClusterTable {
        let mut words = IoBuffer::new(self.words.len() / overspill_os::PAGE_SIZE).unwrap();
        words.copy_from_slice(&self.words);
        ClusterTable { words, lists: self.lists }
    }

    /// The clusters of a list, in order.
    #[cfg(test)]
    pub fn list(&self, list: usize) -> Vec<u32> {
        std::iter::successors(self.first(list), |c| Some(self.links(*c).1).filter(|next| *next != NONE)).collect()
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

/// The first run of `want` free slots of a cluster, or else its first longest run: start and length, which is 0
/// where every slot is occupied.
pub fn find_run(occupied: &Bitmap, want: usize) -> (usize, usize) {
    let mut best = (0, 0);
    let mut at = 0;
    while at < CLUSTER_SLOTS {
        let start = next(occupied, at, 0);
        let end = next(occupied, start, u64::MAX);
        if end - start >= want {
            return (start, want);
        }
        if end - start > best.1 {
            best = (start, end - start);
        }
        at = end;
    }
    best
}

/// First slot at or after `from` whose bit is clear (`flip` 0) or set (`flip` all ones); the end if there is none.
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
