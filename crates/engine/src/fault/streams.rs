//! Streams of sequential faults: how many pages come in with the next fault of one, and which are
//! to be brought further by the thread ahead of them ([`super::ahead`]).

use super::folio::Folios;
use crate::units::PageIndex;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Recent streams of sequential faults: where each would go on, and how long its last folio was to
/// be.
///
/// A fault at the very page where a stream would go on doubles its folio, further while the pages
/// come from a device; any other begins a stream of one page, which may go on upwards or downwards
/// (a quicksort goes through its parts from both ends). So random access never brings in a
/// neighbour, and sequential access soon brings in the most. A folio that came in shorter than it
/// was to be, as its pages lie in several places of a device, makes the next no shorter. Entries
/// are chosen by the page, and races between threads cost a small folio.
#[derive(Debug)]
pub struct Streams {
    max: Folios,
    entries: [AtomicU64; STREAMS],
}

/// Streams remembered: some for each of a few dozen threads.
const STREAMS: usize = 128;

/// What a fault is to bring in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// Pages, with that of the fault.
    pub pages: usize,
    /// Whether they lie below it.
    pub down: bool,
    /// How many of the stream's last folio were read from a device ahead of need: they were wanted.
    pub read_ahead: usize,
}

impl Next {
    const ALONE: Next = Next { pages: 1, down: false, read_ahead: 0 };

    /// The same with no more than so many pages.
    pub fn at_most(self, pages: usize) -> Next {
        Next { pages: self.pages.min(pages), ..self }
    }

    /// How many come in if only those may that follow the page of the fault.
    pub fn upwards(self) -> usize {
        if self.down { 1 } else { self.pages }
    }
}

impl Streams {
    /// With the longest folios that come in.
    pub fn new(max: Folios) -> Streams {
        Streams { max, entries: [const { AtomicU64::new(0) }; STREAMS] }
    }

    /// Bits beside the page: how long the folio was and was to be, whether it was read from a
    /// device, and whether the stream goes downwards.
    const BITS: u32 = 2 * Self::LEN_BITS + 2;
    const DOWN: u64 = 2 << (2 * Self::LEN_BITS);
    const FROM_DEVICE: u64 = 1 << (2 * Self::LEN_BITS);
    const LEN_BITS: u32 = 7;
    const LEN: u64 = (1 << Self::LEN_BITS) - 1;

    /// How streams hash: by the page they would go on with, so that both ends find the same entry.
    fn entry(&self, page: usize) -> &AtomicU64 {
        &self.entries[(page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) % STREAMS]
    }

    /// What to bring in for a fault on `page`.
    pub fn next(&self, page: PageIndex) -> Next {
        let entry = self.entry(page.0).load(Relaxed);
        if entry >> Self::BITS != page.0 as u64 || entry == 0 {
            return Next::ALONE;
        }
        let len = (entry & Self::LEN) as usize;
        let wanted = (entry >> Self::LEN_BITS & Self::LEN) as usize;
        let (max, read_ahead) = if entry & Self::FROM_DEVICE != 0 {
            (self.max.device, len - 1)
        } else {
            (self.max.memory, 0)
        };
        Next { pages: (2 * wanted).clamp(1, max), down: entry & Self::DOWN != 0, read_ahead }
    }

    /// `len` pages from `page` on came in where `wanted` were to, from a device or not, of a stream
    /// that goes `down` or up. A page by itself may begin one of either kind.
    pub fn advance(
        &self,
        page: PageIndex,
        (len, wanted): (usize, usize),
        from_device: bool,
        down: bool,
    ) {
        let lens = (wanted << Self::LEN_BITS | len) as u64;
        let bits = lens | if from_device { Self::FROM_DEVICE } else { 0 };
        let note = |next: usize, flag: u64| {
            self.entry(next).store((next as u64) << Self::BITS | flag | bits, Relaxed);
        };
        if len == 1 || !down {
            note(page.0 + len, 0);
        }
        if let Some(below) = page.0.checked_sub(1).filter(|_| len == 1 || down) {
            note(below, Self::DOWN);
        }
    }

    /// The next fault on `page` brings in one page.
    pub fn forget(&self, page: PageIndex) {
        self.entry(page.0).store(0, Relaxed);
    }
}

/// Streams that wait for the thread at once.
const WAITING: usize = 8;

/// Where a stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Further {
    pub page: PageIndex,
    pub down: bool,
    pub write: bool,
}

impl Further {
    const DOWN: u64 = 1 << 62;
    const WRITE: u64 = 1 << 61;
    const IS_ONE: u64 = 1 << 63;

    fn to_word(self) -> u64 {
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(self.down, Self::DOWN) | flag(self.write, Self::WRITE);
        Self::IS_ONE | flags | self.page.0 as u64
    }

    fn from_word(word: u64) -> Option<Further> {
        let is_set = |flag: u64| word & flag != 0;
        is_set(Self::IS_ONE).then(|| Further {
            page: PageIndex((word & (Self::WRITE - 1)) as usize),
            down: is_set(Self::DOWN),
            write: is_set(Self::WRITE),
        })
    }
}

/// Streams that are to be brought further.
#[derive(Debug, Default)]
pub struct Waiting([AtomicU64; WAITING]);

impl Waiting {
    /// Leaves word of one, if there is room.
    pub fn put(&self, further: Further) -> bool {
        let word = further.to_word();
        self.0.iter().any(|cell| {
            cell.load(Relaxed) == 0 && cell.compare_exchange(0, word, Release, Relaxed).is_ok()
        })
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.0.iter().any(|cell| cell.load(Relaxed) != 0)
    }

    /// Takes one that nobody else has taken.
    pub fn take(&self) -> Option<Further> {
        self.0.iter().find_map(|cell| match cell.load(Relaxed) {
            0 => None,
            _ => Further::from_word(cell.swap(0, Acquire)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_grow_with_sequence_only() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let mut page = 1000;
        let mut lens = Vec::new();
        for from_device in [true, false].map(|from_device| [from_device; 8]).as_flattened() {
            let Next { pages: len, down, read_ahead } = streams.next(PageIndex(page));
            assert!(!down);
            assert_eq!(
                read_ahead,
                if lens.len() > 8 { 0 } else { lens.last().map_or(0, |len| len - 1) }
            );
            streams.advance(PageIndex(page), (len, len), *from_device, false);
            lens.push(len);
            page += len;
        }
        assert_eq!(lens, [1, 2, 4, 8, 16, 32, 64, 64, 64, 16, 16, 16, 16, 16, 16, 16]);
        let mut rng = 12345u64;
        let random: usize = (0..1000)
            .map(|_| {
                rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let page = PageIndex((rng >> 40) as usize);
                let Next { pages: len, down, read_ahead } = streams.next(page);
                assert_eq!(read_ahead, 0);
                streams.advance(page, (len, len), false, down);
                len
            })
            .sum();
        assert!(random < 1010, "{random}");
    }

    #[test]
    fn streams_go_downwards_as_well() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let (mut low, mut high, mut lens) = (1000, 9000, Vec::new());
        // From both ends, in turn.
        for _ in 0..6 {
            let up = streams.next(PageIndex(low));
            streams.advance(PageIndex(low), (up.pages, up.pages), false, up.down);
            low += up.pages;
            let down = streams.next(PageIndex(high));
            let len = (down.pages, down.pages);
            streams.advance(PageIndex(high + 1 - down.pages), len, true, down.down);
            high -= down.pages;
            assert_eq!((up.down, down.down), (false, down.pages > 1));
            lens.push((up.pages, down.pages));
        }
        assert_eq!(lens, [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (16, 32)]);
        // At the first page there is nothing below.
        streams.advance(PageIndex(0), (1, 1), false, false);
        streams.advance(PageIndex(0), (4, 4), false, true);
        assert_eq!(streams.next(PageIndex(1)).pages, 2);
    }

    #[test]
    fn a_folio_that_was_cut_short_shortens_none_after_it() {
        let streams = Streams::new(Folios { memory: 16, device: 64 });
        let (mut page, mut wanted) = (1000, Vec::new());
        for most in [1, 2, 4, 3, 5, 1, 9] {
            let next = streams.next(PageIndex(page));
            let len = next.pages.min(most);
            streams.advance(PageIndex(page), (len, next.pages), true, false);
            page += len;
            assert_eq!(streams.next(PageIndex(page)).read_ahead, len - 1);
            wanted.push(next.pages);
        }
        assert_eq!(wanted, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn word_of_streams_is_taken_once_and_lost_when_there_is_much() {
        let waiting = Waiting::default();
        assert_eq!(waiting.take(), None);
        let of =
            |page| Further { page: PageIndex(page), down: page % 2 == 0, write: page % 3 == 0 };
        let put: Vec<bool> = (0..WAITING + 2).map(|page| waiting.put(of(page))).collect();
        assert_eq!(put.iter().filter(|put| **put).count(), WAITING);
        let mut taken: Vec<_> = std::iter::from_fn(|| waiting.take()).collect();
        taken.sort_by_key(|further| further.page);
        assert_eq!(taken, (0..WAITING).map(of).collect::<Vec<_>>());
        assert!(waiting.put(of(1 << 40)) && waiting.take() == Some(of(1 << 40)));
    }
}
