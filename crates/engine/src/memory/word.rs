//! The page word: one 64-bit word a page holds its state, where its content is, and a lock bit.
//!
//! Transitions are pure functions from a word to the next word or to nothing; [`PageWords`] applies
//! them by compare-and-swap. Fault, reclaim, swapoff and the program's own mapping calls meet only
//! here. Who sets the lock bit owns the page until clearing it; the rest of a locked word still
//! says where the content is, so that giving up restores the word as it was.
//!
//! Lock order: page locks are waited for in ascending order ([`crate::base::lockdep`]), by threads
//! of the program only.

use crate::base::lockdep;
use crate::base::sync::{Atomic, Backoff};
use crate::memory::sparse::SparseCells;
use crate::units::{FrameId, PageIndex, SlotId};
use overspill_os::Errno;
use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Where the content of a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nowhere: never touched, or given up. Reads as zeros.
    Empty,
    /// In the page tables of the process, with this frame as its right to be there.
    Resident(FrameId),
    /// Still in the page tables, write-protected, being stored; a write takes it back to
    /// [`State::Resident`].
    Evicting(FrameId),
    /// In a frame of the arena: the swap cache.
    Cached(FrameId),
    /// A page whose 32-bit words all have this value.
    Filled(u32),
    /// In a swap slot: compressed in memory, or on a device.
    Stored(SlotId),
    /// Wherever the kernel has it: the program has the page for itself ([`crate::space`]), and the
    /// engine leaves it alone.
    Foreign,
}

const STATE_MASK: u64 = 0xF;
const LOCKED: u64 = 1 << 4;
/// mlock: stays resident.
const PINNED: u64 = 1 << 5;
/// Came back from the swap cache, or was faulted in shortly after its eviction: passed over once by
/// the clock.
const REFERENCED: u64 = 1 << 6;
/// In memory, with a copy on a device or in the compressed tier that is as good
/// ([`crate::swap::clean`]). Goes with any change of the state but an eviction that begins or is
/// taken back.
const CLEAN: u64 = 1 << 7;
/// Came in as zeros beside a page that was touched, and is not known to have been touched itself.
const BESIDE: u64 = 1 << 8;
/// In the page tables, write-protected, and maybe in those of other processes since a fork
/// ([`crate::memory::shares`]). Goes as CLEAN does.
const SHARED: u64 = 1 << 9;
const FLAGS: u64 = PINNED | REFERENCED | BESIDE;
const PAYLOAD_SHIFT: u32 = 16;

/// A value of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageWord(u64);

impl PageWord {
    /// That of a page that was never touched.
    const EMPTY: PageWord = PageWord(0);

    /// Where the content is.
    pub fn state(self) -> State {
        let payload = self.0 >> PAYLOAD_SHIFT;
        match self.0 & STATE_MASK {
            0 => State::Empty,
            1 => State::Resident(FrameId(payload as u32)),
            2 => State::Evicting(FrameId(payload as u32)),
            3 => State::Cached(FrameId(payload as u32)),
            4 => State::Filled(payload as u32),
            5 => State::Stored(SlotId::from_bits(payload)),
            6 => State::Foreign,
            other => unreachable!("page word in state {other}"),
        }
    }

    /// Whether the page is in the page tables, and not being evicted.
    pub fn is_resident(self) -> bool {
        matches!(self.state(), State::Resident(_))
    }

    /// The same word with another state; lock and flags stay, but it is neither clean nor shared.
    #[must_use]
    pub fn with_state(self, state: State) -> PageWord {
        let (code, payload) = match state {
            State::Empty => (0, 0),
            State::Resident(frame) => (1, frame.0 as u64),
            State::Evicting(frame) => (2, frame.0 as u64),
            State::Cached(frame) => (3, frame.0 as u64),
            State::Filled(value) => (4, value as u64),
            State::Stored(slot) => (5, slot.to_bits()),
            State::Foreign => (6, 0),
        };
        debug_assert!(payload < 1 << 48);
        PageWord(self.0 & (LOCKED | FLAGS) | code | payload << PAYLOAD_SHIFT)
    }

    /// The same word with another state in which the page is in place, protected as it is: all
    /// flags stay.
    #[must_use]
    pub fn in_place_as(self, state: State) -> PageWord {
        self.with_state(state).clean(self.is_clean()).shared(self.is_shared())
    }

    /// Whether somebody owns the page just now.
    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Whether the page must stay resident.
    pub fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }

    /// Whether the clock passes it over once.
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// Whether the page has a copy on a device or in the compressed tier that is as good.
    pub fn is_clean(self) -> bool {
        self.0 & CLEAN != 0
    }

    /// Whether other processes may have the page since a fork.
    pub fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Whether the page came in as zeros beside another, and is not known to have been touched.
    pub fn is_beside(self) -> bool {
        self.0 & BESIDE != 0
    }

    /// Transition: takes the lock, if it is free.
    pub fn lock(self) -> Option<PageWord> {
        (!self.is_locked()).then_some(PageWord(self.0 | LOCKED))
    }

    /// Transition: in the page tables, being evicted or not -> locked, to be made writable.
    pub fn lock_in_place(self) -> Option<PageWord> {
        matches!(self.state(), State::Resident(_) | State::Evicting(_))
            .then(|| self.lock())
            .flatten()
    }

    /// Transition: resident and free to go -> being evicted.
    pub fn begin_evict(self) -> Option<PageWord> {
        match self.state() {
            State::Resident(frame) if !self.is_locked() && !self.is_pinned() => {
                Some(self.in_place_as(State::Evicting(frame)))
            }
            _ => None,
        }
    }

    /// Transition: being evicted -> resident again.
    pub fn take_back(self) -> Option<PageWord> {
        match self.state() {
            State::Evicting(frame) if !self.is_locked() => {
                Some(self.in_place_as(State::Resident(frame)))
            }
            _ => None,
        }
    }

    /// Transition: being evicted -> past the point of no return.
    pub fn commit_evict(self) -> Option<PageWord> {
        matches!(self.state(), State::Evicting(_)).then(|| self.lock()).flatten()
    }

    /// The word with the pinned flag set or cleared.
    #[must_use]
    pub fn pinned(self, on: bool) -> PageWord {
        self.flag(PINNED, on)
    }

    /// The word with the referenced flag set or cleared.
    #[must_use]
    pub fn referenced(self, on: bool) -> PageWord {
        self.flag(REFERENCED, on)
    }

    /// The word with the clean flag set or cleared.
    #[must_use]
    pub fn clean(self, on: bool) -> PageWord {
        self.flag(CLEAN, on)
    }

    /// The word with the shared flag set or cleared.
    #[must_use]
    pub fn shared(self, on: bool) -> PageWord {
        self.flag(SHARED, on)
    }

    /// The word with the beside flag set or cleared.
    #[must_use]
    pub fn beside(self, on: bool) -> PageWord {
        self.flag(BESIDE, on)
    }

    fn flag(self, flag: u64, on: bool) -> PageWord {
        PageWord(if on { self.0 | flag } else { self.0 & !flag })
    }
}

impl std::fmt::Debug for PageWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.state())?;
        let flags = [
            (LOCKED, " locked"),
            (PINNED, " pinned"),
            (REFERENCED, " referenced"),
            (CLEAN, " clean"),
            (BESIDE, " beside"),
            (SHARED, " shared"),
        ];
        flags
            .iter()
            .filter(|(bit, _)| self.0 & bit != 0)
            .try_for_each(|(_, name)| f.write_str(name))
    }
}

/// The words of every page of the window.
#[derive(Clone, Copy, Debug)]
pub struct PageWords {
    cells: SparseCells,
}

impl PageWords {
    /// Words for `pages` pages, all empty; memory is used as pages are touched (8 bytes for 4 KiB).
    pub fn new(pages: usize) -> Result<PageWords, Errno> {
        Ok(PageWords { cells: SparseCells::new(pages)? })
    }

    /// Number of pages of the window.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Bytes that they take, where the first `pages` may be in use.
    pub fn used_bytes(&self, pages: usize) -> u64 {
        self.cells.used_bytes(pages)
    }

    fn cell(&self, page: PageIndex) -> PageCell<'_> {
        PageCell(self.cells.get(page.0))
    }

    /// Reads one.
    pub fn load(&self, page: PageIndex) -> PageWord {
        self.cells.find(page.0).map_or(PageWord::EMPTY, |cell| PageCell(cell).load())
    }

    /// Applies a transition; the word before it and after it, or `None` when the transition does
    /// not apply.
    pub fn try_update(
        &self,
        page: PageIndex,
        transition: impl Fn(PageWord) -> Option<PageWord>,
    ) -> Option<(PageWord, PageWord)> {
        let cell = match self.cells.find(page.0) {
            Some(cell) => PageCell(cell),
            // What does not apply to an empty word has none come into use.
            None => transition(PageWord::EMPTY).map(|_| self.cell(page))?,
        };
        let (before, after) = cell.try_update(transition)?;
        if after.is_locked() && !before.is_locked() {
            lockdep::hold_page(page);
        }
        Some((before, after))
    }

    /// Takes the lock of a page if it is free and `wanted` agrees with the word; the word, locked.
    pub fn try_lock_if(
        &self,
        page: PageIndex,
        wanted: impl Fn(PageWord) -> bool,
    ) -> Option<PageWord> {
        self.try_update(page, |w| if wanted(w) { w.lock() } else { None }).map(|(_, after)| after)
    }

    /// Takes the lock of a page, waiting for it. Not for engine threads that others may wait for.
    pub fn lock(&self, page: PageIndex) -> PageWord {
        lockdep::check_page(page);
        let word = self.cell(page).lock();
        lockdep::hold_page(page);
        word
    }

    /// Publishes a new word for a page whose lock the caller holds, and gives the lock back.
    pub fn unlock_as(&self, page: PageIndex, word: PageWord) {
        lockdep::release_page(page);
        self.cell(page).unlock_as(word);
    }
}

/// The cell of one page, on which the transitions are applied.
struct PageCell<'a>(&'a AtomicU64);

impl PageCell<'_> {
    fn load(&self) -> PageWord {
        PageWord(Atomic::load(self.0, Acquire))
    }

    fn try_update(
        &self,
        transition: impl Fn(PageWord) -> Option<PageWord>,
    ) -> Option<(PageWord, PageWord)> {
        let mut before = Atomic::load(self.0, Acquire);
        loop {
            let after = transition(PageWord(before))?.0;
            match Atomic::compare_exchange_weak(self.0, before, after, AcqRel, Acquire) {
                Ok(_) => return Some((PageWord(before), PageWord(after))),
                Err(now) => before = now,
            }
        }
    }

    fn lock(&self) -> PageWord {
        let mut backoff = Backoff::default();
        loop {
            if let Some((_, word)) = self.try_update(PageWord::lock) {
                return word;
            }
            backoff.wait();
        }
    }

    fn unlock_as(&self, word: PageWord) {
        debug_assert!(
            PageWord(Atomic::load(self.0, Relaxed)).is_locked(),
            "{word:?} for a page that is not locked"
        );
        Atomic::store(self.0, word.0 & !LOCKED, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_state() -> impl Strategy<Value = State> {
        prop_oneof![
            Just(State::Empty),
            any::<u32>().prop_map(|f| State::Resident(FrameId(f))),
            any::<u32>().prop_map(|f| State::Evicting(FrameId(f))),
            any::<u32>().prop_map(|f| State::Cached(FrameId(f))),
            any::<u32>().prop_map(State::Filled),
            (0..64usize, 0..1u64 << 42).prop_map(|(d, o)| State::Stored(SlotId::new(d, o))),
            Just(State::Foreign),
        ]
    }

    fn any_word() -> impl Strategy<Value = PageWord> {
        (any_state(), any::<[bool; 5]>()).prop_map(|(state, flags)| {
            let [locked, pinned, referenced, clean, shared] = flags;
            let word = PageWord::EMPTY.with_state(state).pinned(pinned).referenced(referenced);
            let word = word.clean(clean).shared(shared);
            if locked { word.lock().unwrap() } else { word }
        })
    }

    proptest! {
        #[test]
        fn a_state_survives_packing(word in any_word(), state in any_state()) {
            let next = word.with_state(state);
            prop_assert_eq!(next.state(), state);
            prop_assert_eq!(
                (next.is_locked(), next.is_pinned(), next.is_referenced()),
                (word.is_locked(), word.is_pinned(), word.is_referenced())
            );
            prop_assert!(!next.is_clean() && !next.is_shared(), "that goes with the state");
            let protected = |word: PageWord| (word.is_clean(), word.is_shared());
            prop_assert_eq!(protected(word.in_place_as(state)), protected(word));
        }

        #[test]
        fn nobody_but_the_owner_changes_a_locked_page(word in any_word()) {
            if word.is_locked() {
                prop_assert_eq!(word.lock(), None);
                prop_assert_eq!(word.begin_evict(), None);
                prop_assert_eq!(word.take_back(), None);
                prop_assert_eq!(word.commit_evict(), None);
                prop_assert_eq!(word.lock_in_place(), None);
            }
        }

        #[test]
        fn transitions_keep_the_content_where_it_is(word in any_word()) {
            // An eviction begins and ends with the page in place; only the owner of the lock may
            // move it.
            if let Some(next) = word.begin_evict() {
                let State::Resident(frame) = word.state() else {
                    panic!("{word:?} began to be evicted")
                };
                prop_assert!(!word.is_pinned());
                prop_assert_eq!(next.state(), State::Evicting(frame));
                prop_assert_eq!(next.take_back(), Some(word));
                let committed = next.commit_evict().unwrap();
                prop_assert!(committed.is_locked());
                prop_assert_eq!(committed.take_back(), None);
            }
            if let Some(next) = word.lock() {
                prop_assert!(next.is_locked());
                prop_assert_eq!(next.state(), word.state());
            }
            let in_place = !word.is_locked()
                && matches!(word.state(), State::Resident(_) | State::Evicting(_));
            prop_assert_eq!(word.lock_in_place(), if in_place { word.lock() } else { None });
        }
    }
}
