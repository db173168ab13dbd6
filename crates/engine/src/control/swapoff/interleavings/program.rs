//! The program of the model, and the threads that reclaim beside it: the steps of [`crate::fault`],
//! [`crate::reclaim`], [`crate::swap::store`], [`crate::fault::readahead`] and
//! [`crate::reclaim::writeback`].

use super::{LEAVING, Machine, Mapped, OWN, chance, pause, stored};
use crate::memory::word::{PageWord, State};
use crate::swap::{Entry, Stamp};
use std::sync::atomic::Ordering::SeqCst;

/// What a fault comes to.
#[derive(PartialEq, Eq)]
enum Served {
    Done,
    Busy,
    Failed,
}

impl Machine {
    /// The program with one of its pages.
    pub(super) fn live(&self, page: usize) {
        for _ in 0..5 {
            if chance(5) || !self.access(page, chance(2)) {
                self.clear(page);
            }
        }
    }

    /// Reads a page, or writes a new version to it; `false` when that fails.
    pub(super) fn access(&self, page: usize, write: bool) -> bool {
        loop {
            let by_protection = {
                let mut mapped = self.mapped(page);
                match mapped.content {
                    Some(content) if !(write && mapped.protected) => {
                        assert_eq!(content, mapped.truth, "the content of page {page}");
                        if write {
                            let version = 1 + self.versions.fetch_add(1, SeqCst);
                            (mapped.content, mapped.truth) = (Some(version), version);
                        }
                        return true;
                    }
                    content => content.is_some(),
                }
            };
            match self.serve(page, by_protection) {
                Served::Failed => {
                    let truth = self.mapped(page).truth;
                    assert!(
                        self.unreadable.lock().unwrap().contains(&truth),
                        "page {page} was good and is lost"
                    );
                    return false;
                }
                Served::Busy => shuttle::thread::yield_now(),
                Served::Done => {}
            }
        }
    }

    /// `Engine::serve`
    fn serve(&self, page: usize, by_protection: bool) -> Served {
        let word = self.cell(page).load();
        match word.state() {
            _ if word.is_locked() => Served::Busy,
            State::Resident(_) if by_protection => self.make_writable(page),
            State::Resident(_) => Served::Done,
            state => self.load(page, state),
        }
    }

    pub(super) fn try_lock_in(&self, page: usize, state: State) -> Option<PageWord> {
        let update =
            self.cell(page).try_update(|w| if w.state() == state { w.lock() } else { None });
        update.map(|(_, word)| word)
    }

    /// `Engine::make_writable`
    fn make_writable(&self, page: usize) -> Served {
        let Some((_, word)) = self.cell(page).try_update(PageWord::lock_in_place) else {
            return Served::Busy;
        };
        self.mapped(page).protected = false;
        self.drop_copy(page, word);
        self.cell(page).unlock_as(word.with_state(State::Resident(OWN)));
        Served::Done
    }

    pub(super) fn drop_copy(&self, page: usize, word: PageWord) {
        if word.is_clean() {
            self.forget(self.copies[page].load(SeqCst) as usize);
        }
    }

    /// `Engine::load`, `install_run` and `publish_run`
    fn load(&self, page: usize, state: State) -> Served {
        let Some(word) = self.try_lock_in(page, state) else { return Served::Busy };
        let resident = word.with_state(State::Resident(OWN));
        let slot = match state {
            State::Cached(frame) => {
                self.install(page, self.frames[frame.0 as usize].load(SeqCst), false);
                self.cell(page).unlock_as(resident);
                self.free_frame(frame);
                return Served::Done;
            }
            State::Stored(slot) => slot.offset() as usize,
            _ => {
                self.install(page, 0, false);
                self.cell(page).unlock_as(resident);
                return Served::Done;
            }
        };
        let version = match self.load_stored(slot) {
            Ok(version) => version,
            Err(served) => {
                self.cell(page).unlock_as(word);
                return served;
            }
        };
        let protect = chance(2);
        self.install(page, version, protect);
        let keeps = protect && self.index(slot, |cell| cell.came_back());
        if keeps {
            self.copies[page].store(slot as u64, SeqCst);
        }
        self.cell(page).unlock_as(resident.clean(keeps));
        if !keeps {
            self.forget(slot);
        }
        Served::Done
    }

    /// The content of a slot whose page is locked.
    fn load_stored(&self, slot: usize) -> Result<u64, Served> {
        match self.compressed(slot) {
            0 => {}
            version => return Ok(version),
        }
        match self.look_up(slot) {
            Entry::Lost => return Err(Served::Failed),
            Entry::Busy(_) => {
                let _held = self.slots[slot].partition.lock().unwrap();
                let run = self.slots[slot].run.load(SeqCst);
                let at_it = self.runs.iter().any(|at| at.load(SeqCst) == run);
                assert!(run == 0 || at_it, "a fault waits for slot {slot}, which nobody moves");
                return Err(Served::Busy);
            }
            Entry::Frame(..) if let Some(frame) = self.index(slot, |cell| cell.take_frame()) => {
                let version = self.frames[frame.0 as usize].load(SeqCst);
                self.free_frame(frame);
                return Ok(version);
            }
            _ => {}
        }
        self.read_ahead(slot ^ 1);
        self.read(slot).ok_or(Served::Failed)
    }

    /// `Engine::read_around` and `keep_around` of a neighbour.
    pub(super) fn read_ahead(&self, slot: usize) {
        let is_lone = slot < LEAVING
            && matches!(self.look_up(slot), Entry::Shadow(_))
            && self.compressed(slot) == 0;
        if is_lone && self.index(slot, |cell| cell.begin_io()) {
            self.end_io(slot, self.read(slot).and_then(|version| self.take_frame(version)));
        }
    }

    /// UFFDIO_COPY
    fn install(&self, page: usize, version: u64, protected: bool) {
        let mut mapped = self.mapped(page);
        assert_eq!(mapped.content, None, "page {page} is in the page tables and somewhere else");
        assert_eq!(version, mapped.truth, "the content that comes back to page {page}");
        (mapped.content, mapped.protected) = (Some(version), protected);
    }

    /// `Engine::clear`: MADV_DONTNEED, munmap, exit.
    pub(super) fn clear(&self, page: usize) {
        let word = self.cell(page).lock();
        *self.mapped(page) = Mapped::default();
        self.drop_copy(page, word);
        if let State::Stored(slot) = word.state() {
            self.forget(slot.offset() as usize);
        }
        self.cell(page).unlock_as(word.with_state(State::Empty));
        if let State::Cached(frame) = word.state() {
            self.free_frame(frame);
        }
    }

    // ---- Reclaim ----

    /// `Engine::store_batch` of a page: where it is.
    pub(super) fn store(&self, page: usize, version: u64) -> Option<State> {
        if version == 0 {
            return Some(State::Filled(0));
        }
        let slot = self.alloc()?;
        if chance(2) {
            self.index(slot, |cell| cell.stored(Stamp::new(version)));
            pause();
            self.slots[slot].compressed.store(version, SeqCst);
        } else {
            self.write(slot, version);
            self.index(slot, |cell| cell.stored(Stamp::new(version)));
        }
        self.slots[slot].owner.store(page as u64, SeqCst);
        Some(stored(slot))
    }

    /// `Engine::move_out` or `shrink_cache` of a page.
    pub(super) fn evict(&self, page: usize) {
        let state = self.cell(page).load().state();
        let (State::Resident(frame) | State::Cached(frame)) = state else { return };
        let Some(word) = self.try_lock_in(page, state) else { return };
        let is_cached = matches!(state, State::Cached(_));
        let content = match is_cached {
            true => self.frames[frame.0 as usize].load(SeqCst),
            false => self.mapped(page).content.take().expect("a resident page is there"),
        };
        let to = if word.is_clean() {
            let copy = self.copies[page].load(SeqCst) as usize;
            self.index(copy, |cell| cell.left(Stamp::new(content)));
            Some(stored(copy))
        } else {
            self.store(page, content)
        };
        if to.is_none() && !is_cached {
            let mapped = &mut *self.mapped(page);
            (mapped.content, mapped.protected) = (Some(content), false);
        }
        self.cell(page).unlock_as(to.map_or(word, |to| word.with_state(to)));
        if to.is_some() && is_cached {
            self.free_frame(frame);
        }
    }

    /// `Engine::drop_read_ahead`
    pub(super) fn drop_read_ahead(&self, slot: usize) {
        if let Some(frame) = self.index(slot, |cell| cell.take_frame()) {
            self.free_frame(frame);
        }
    }

    /// `Engine::write_back_coldest` of a slot.
    pub(super) fn write_back(&self, slot: usize) {
        if self.compressed(slot) == 0 || !self.index(slot, |cell| cell.begin_io()) {
            return;
        }
        let version = self.compressed(slot);
        if version == 0 {
            return self.end_io(slot, None);
        }
        let is_writable = slot >= LEAVING || self.retired.load(SeqCst) == 0;
        if let Some(to) = if is_writable { Some(slot) } else { self.alloc() } {
            self.write(to, version);
            if to == slot {
                self.slots[slot].compressed.store(0, SeqCst);
            } else {
                self.change_slot(slot, to, version);
            }
        }
        self.end_io(slot, None);
    }

    /// `Engine::change_slot`
    fn change_slot(&self, from: usize, to: usize, version: u64) {
        let page = self.slots[from].owner.load(SeqCst) as usize;
        let Some(word) = self.try_lock_in(page, stored(from)) else { return self.free_slot(to) };
        self.slots[to].owner.store(page as u64, SeqCst);
        self.index(to, |cell| cell.stored(Stamp::new(version)));
        self.cell(page).unlock_as(word.with_state(stored(to)));
        self.forget(from);
    }
}
