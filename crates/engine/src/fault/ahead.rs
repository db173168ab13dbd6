//! What a stream is going to ask for, brought in by a thread beside the program.
//!
//! Who goes through pages on a device in sequence waits for one read after the other, and the
//! device waits meanwhile. So a fault of a long stream leaves word of where it goes on, and the
//! thread serves the faults that would come next: folio after folio, while there is room and the
//! program has not come there itself. Who touches a page that is just being read waits for that.
//! The pages come in as with the program's own fault, to be written to if that was a write. Word
//! that is not taken is lost, which costs the program a fault.
//!
//! It wakes nobody. In thread delivery whoever waits for one of the pages has said so by an event,
//! which the handler may have read: woken by another, the program could have the page elsewhere
//! before the handler comes to that event, which would have zeros come in where nothing is.
//!
//! Locks: as a fault's.

use super::context::FaultContext;
use super::readahead::Next;
use super::{Access, Fault, Served};
use crate::memory::word::State;
use crate::stats::{Counter, FaultSource};
use crate::units::{FOLIO_MAX, PageIndex};
use overspill_os::backing::Backing;
use overspill_os::fault_path::FaultPath;
use overspill_os::thread;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The folio from which on a stream is long: by then 31 pages were asked for one after the other.
const LONG: usize = 16;
/// How far ahead of the program pages are brought in: four of the longest folios, but not more than
/// this part of the budget.
const PAGES_MAX: u64 = 4 * FOLIO_MAX as u64;
const BUDGET_PART: u64 = 64;
/// Streams that wait for the thread at once.
const WAITING: usize = 8;

/// Where a stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Further {
    page: PageIndex,
    down: bool,
    write: bool,
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
    fn put(&self, further: Further) -> bool {
        let word = further.to_word();
        self.0.iter().any(|cell| {
            cell.load(Relaxed) == 0 && cell.compare_exchange(0, word, Release, Relaxed).is_ok()
        })
    }

    fn take(&self) -> Option<Further> {
        self.0.iter().find_map(|cell| match cell.load(Relaxed) {
            0 => None,
            _ => Further::from_word(cell.swap(0, Acquire)),
        })
    }
}

impl<B: Backing> Fault<B> {
    /// Leaves word of a stream that has come to a page, after a fault that brought in `next`.
    pub(super) fn ask_ahead(&self, context: &FaultContext, next: Next, page: usize, write: bool) {
        let is_long = next.pages >= LONG && context.source == FaultSource::Device;
        if !is_long || context.is_ahead || !self.settings.ahead {
            return;
        }
        if self.waiting.put(Further { page: PageIndex(page), down: next.down, write }) {
            self.base.wake.ahead.wake();
        }
    }

    /// Leaves word of a page if there is room, for models.
    #[cfg(test)]
    pub fn ask_ahead_of(&self, page: PageIndex, write: bool) {
        self.waiting.put(Further { page, down: false, write });
    }

    /// Brings a stream further that waits for it; `false` when none does.
    pub(crate) fn go_ahead(&self) -> bool {
        let Some(further) = self.waiting.take() else { return false };
        let most = (self.memory.budget().limit() / BUDGET_PART).min(PAGES_MAX) as usize;
        let (mut page, mut done) = (further.page, 0);
        while done < most {
            let Some(pages) = self.bring_ahead(page, further.write) else { break };
            done += pages;
            let next = match further.down {
                true => page.0.checked_sub(pages),
                false => Some(page.0 + pages),
            };
            let Some(next) = next else { break };
            page = PageIndex(next);
        }
        true
    }

    /// Serves the fault that is to be expected on a page; how many pages that brought in. Nothing
    /// is waited for: not for a fork, nor for room.
    fn bring_ahead(&self, page: PageIndex, write: bool) -> Option<usize> {
        let _inside = self.base.gates.faults.try_enter()?;
        let mut context = self.grown(self.contexts.try_take()?);
        let _mark = FaultPath::enter();
        if page.0 >= self.memory.words.len() {
            return None;
        }
        let state = self.memory.words.load(page).state();
        let budget = self.memory.budget();
        let has_room = budget.free_pages() > budget.min() + FOLIO_MAX as u64;
        if !matches!(state, State::Stored(_)) || !has_room {
            return None;
        }
        context.thread = thread::id();
        context.source = FaultSource::Place;
        context.installed = 0;
        context.is_ahead = true;
        let served = self.load(&mut context, page, state, Access { write, protected: false });
        context.is_ahead = false;
        self.stats.add(Counter::SwapAhead, context.installed as u64);
        (served == Served::Done && context.installed > 0).then_some(context.installed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
