//! What must be true of a pool that is at rest: every page, frame, object and slot accounted for,
//! once.
//!
//! Debug builds look after every test: a pool when memory of it is given back, a program under
//! `overspill run` when it ends. The engine stands still meanwhile, by the gates that a fork
//! closes.

use crate::engine::Engine;
use crate::frame::cells::Owner;
use crate::memory::extent::pages_of;
use crate::memory::word::{PageWord, State};
use crate::stats::Counter;
use crate::swap::Entry;
use crate::units::{FrameId, PageIndex, SlotId};
use overspill_os::backing::Backing;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering::Relaxed;

/// Without a random key: no system call is made here, which may be one of the program's.
type Set<T> = HashSet<T, BuildHasherDefault<DefaultHasher>>;

/// What the words of all pages name.
#[derive(Default)]
struct Referenced {
    frames: Set<FrameId>,
    slots: Set<u64>,
    resident: u64,
    cached: usize,
    filled: u64,
    clean: u64,
    shared: u64,
    foreign: usize,
}

impl<B: Backing> Engine<B> {
    /// Checks the invariants, with everybody else at rest.
    ///
    /// # Panics
    /// When one does not hold.
    pub(crate) fn check(&self) {
        let _still = self.base.gates.still();
        self.check_at_rest();
    }

    fn check_at_rest(&self) {
        assert_eq!(
            self.reclaim.throttle.reclaiming(),
            0,
            "threads that reclaim, and nobody is there"
        );
        // 1. The parts by themselves. What processors keep for themselves counts as used until it
        //    is given back.
        self.memory.frames.allocator.drain();
        self.memory.frames.allocator.check();
        self.swap.zpool.check();
        let compressed = self.swap.zswap.check();
        // 2. What the words say, each thing named once.
        let mut named = Referenced::default();
        for index in 0..self.memory.extents_high.load(Relaxed) {
            let before = named.resident;
            let touched = self.memory.extents.touched(index, pages_of(index));
            touched.for_each(|page| self.name(page, &mut named));
            assert_eq!(
                self.memory.extents.resident(index) as u64,
                named.resident - before,
                "resident pages of extent {index}"
            );
        }
        // 3. The parts agree with the words.
        let gauge = |counter| self.stats.get(counter);
        assert_eq!(gauge(Counter::ResidentPages), named.resident, "resident pages");
        assert_eq!(self.swap.lru.len(), named.cached, "pages in the swap cache");
        let frames = (0..self.memory.cells().frames() as u32).map(FrameId);
        let owned = frames.filter(|frame| self.swap.lru.owner(*frame).is_some()).count();
        assert_eq!(owned, named.cached, "frames with an owner");
        assert_eq!(gauge(Counter::CleanPages), named.clean, "clean pages");
        assert_eq!(gauge(Counter::SharedPages), named.shared, "pages shared since a fork");
        assert_eq!(
            self.memory.foreign_pages.load(Relaxed),
            named.foreign,
            "pages that the program has for itself"
        );
        assert_eq!(gauge(Counter::SameFilledPages), named.filled, "same-filled pages");
        assert_eq!(self.swap.zpool.stored_objects(), compressed, "compressed pages");
        let of_slots = named
            .slots
            .iter()
            .filter(|slot| self.swap.zswap.contains(SlotId::from_bits(**slot)))
            .count();
        assert_eq!(compressed, of_slots, "compressed pages of slots in use");
        let in_use = self.swap.devices.used_pages() + self.swap.devices.used_in_memory();
        assert_eq!(
            in_use,
            named.slots.len() as u64,
            "slots in use: {} on none",
            self.swap.devices.used_in_memory()
        );
        let frames = named.frames.len() + self.frames_of_buffers() + self.swap.zpool.frames();
        let allocator = &self.memory.frames.allocator;
        assert_eq!(allocator.used() - allocator.charged(), frames as u64, "frames in use");
    }

    /// Notes what a page names.
    fn name(&self, page: PageIndex, named: &mut Referenced) {
        let word = self.memory.words.load(page);
        assert!(!word.is_locked(), "{page:?} is locked, and nobody is there: {word:?}");
        assert!(!word.is_shared() || word.is_resident(), "{page:?} is shared: {word:?}");
        named.shared += u64::from(word.is_shared());
        match word.state() {
            State::Empty => {}
            State::Foreign => named.foreign += 1,
            State::Resident(frame) => {
                named.resident += 1;
                self.name_copy(page, word, named);
                assert!(
                    named.frames.insert(frame),
                    "{page:?} has a frame that another page has: {word:?}"
                );
                assert_eq!(self.swap.lru.owner(frame), None, "{page:?} is mapped");
            }
            State::Evicting(_) => panic!("{page:?} is being evicted, and nobody is there"),
            State::Cached(frame) => {
                named.cached += 1;
                let copy = self.name_copy(page, word, named);
                assert!(
                    named.frames.insert(frame),
                    "{page:?} has a frame that another page has: {word:?}"
                );
                let owner = copy.map_or(Owner::Page(page), Owner::Copy);
                assert_eq!(
                    self.swap.lru.owner(frame),
                    Some(owner),
                    "the owner of a frame of the swap cache"
                );
            }
            State::Filled(_) => named.filled += 1,
            State::Stored(slot) => {
                assert!(
                    named.slots.insert(slot.to_bits()),
                    "{page:?} has a slot that another page has: {word:?}"
                );
                assert_eq!(self.swap.index.owner(slot), page, "the owner of a slot");
                let somewhere = slot.device() != SlotId::IN_MEMORY
                    || self.swap.zswap.look_up(slot).is_some()
                    || self.swap.index.load(slot) == Entry::Lost;
                assert!(somewhere, "{page:?} is neither on a device nor in memory");
                match self.swap.index.load(slot) {
                    Entry::Shadow(_) | Entry::Lost => {}
                    Entry::Frame(frame) => {
                        named.cached += 1;
                        assert!(
                            named.frames.insert(frame),
                            "{slot:?} has a frame that another page has"
                        );
                        assert_eq!(
                            self.swap.lru.owner(frame),
                            Some(Owner::Slot(slot)),
                            "the owner of what was read ahead"
                        );
                    }
                    entry => {
                        panic!("{page:?} is stored in {slot:?}, of which the index says {entry:?}")
                    }
                }
            }
        }
    }

    /// Notes the copy of a clean page.
    fn name_copy(&self, page: PageIndex, word: PageWord, named: &mut Referenced) -> Option<SlotId> {
        let copy = self.swap.copy_of(word);
        assert_eq!(copy.is_some(), word.is_clean(), "the copy of {page:?}");
        if let Some(slot) = copy {
            named.clean += 1;
            assert!(
                named.slots.insert(slot.to_bits()),
                "a clean page has a slot that another page has: {word:?}"
            );
            assert_eq!(
                self.swap.index.load(slot),
                Entry::Clean,
                "what is known of the slot of a clean page"
            );
            assert_eq!(self.swap.index.owner(slot), page, "the owner of the slot of a clean page");
        }
        copy
    }

    /// Frames that stand for buffers, and those of pages that were copied in
    /// lately.
    fn frames_of_buffers(&self) -> usize {
        self.control.swaps.charged.load(Relaxed) + self.fault.spent()
    }
}
