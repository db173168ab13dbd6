//! The evacuation of the model: the steps of [`crate::control::swapoff`] and of what its threads
//! do.

use super::{Bug, LEAVING, Machine, PATIENCE, stored};
use crate::memory::word::{PageWord, State};
use crate::swap::{Entry, Stamp};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What a slot in use has, as in `evacuate`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Page,
    Compressed,
    ReadAhead,
    Clean,
    Busy,
}

/// Slots that a thread of the evacuation has claimed.
struct Run {
    thread: usize,
    slots: Vec<usize>,
    is_claimed: bool,
}

impl Machine {
    /// `Engine::begin_swapoff` and `conclude`
    pub(super) fn swapoff(self: &Arc<Machine>) {
        // 1. `SwapDevices::retire`
        if self.retires {
            self.retired.store(1, SeqCst);
            if !self.has(Bug::NotSynchronized) {
                drop(self.table.write().unwrap());
            }
        }
        // 2. Its pages.
        let threads = [0, 1].map(|thread| {
            let machine = self.clone();
            shuttle::thread::spawn(move || machine.evacuate(thread))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // 3. `SwapDevices::remove` or `resume`
        if self.retires && (self.is_empty() || self.has(Bug::ClosedInUse)) {
            let _entry = self.table.write().unwrap();
            self.closed.store(1, SeqCst);
        } else {
            self.retired.store(0, SeqCst);
        }
    }

    fn is_empty(&self) -> bool {
        self.slots[..LEAVING].iter().all(|slot| slot.in_use.load(SeqCst) == 0)
    }

    /// `Engine::evacuate`: where there is room, until nothing is left.
    fn evacuate(&self, thread: usize) {
        let (mut passes, must_end) = (0, self.retires && self.is_roomy);
        while !self.is_empty() && (must_end || passes < PATIENCE) {
            passes += 1;
            let mut at = 0;
            while let Some((run, holds)) = self.next_run(at) {
                at = run.end;
                match holds {
                    Holds::Page => self.move_run(thread, run),
                    Holds::Compressed => self.move_compressed(thread, run.start),
                    Holds::ReadAhead => self.keep_read_ahead(run.start),
                    Holds::Clean => self.leave_clean(run.start),
                    Holds::Busy => {}
                }
            }
            shuttle::thread::yield_now();
        }
    }

    /// `Engine::next_run`
    fn next_run(&self, from: usize) -> Option<(Range<usize>, Holds)> {
        let is_used = |slot: &usize| self.slots[*slot].in_use.load(SeqCst) != 0;
        let start = (from..LEAVING).find(is_used)?;
        let holds = self.holds(start);
        let end = if holds == Holds::Page { LEAVING } else { start + 1 };
        let more = (start + 1..end).take_while(|slot| is_used(slot) && self.holds(*slot) == holds);
        Some((start..start + 1 + more.count(), holds))
    }

    fn holds(&self, slot: usize) -> Holds {
        match self.look_up(slot) {
            Entry::Shadow(_) if self.compressed(slot) != 0 => Holds::Compressed,
            Entry::Shadow(_) => Holds::Page,
            Entry::Frame(..) => Holds::ReadAhead,
            Entry::Clean => Holds::Clean,
            _ => Holds::Busy,
        }
    }

    fn claim(&self, thread: usize, slots: Range<usize>) -> Run {
        let number = self.next_run.fetch_add(1, SeqCst);
        self.runs[thread].store(number, SeqCst);
        if self.has(Bug::Unclaimed) {
            return Run { thread, slots: slots.collect(), is_claimed: false };
        }
        let begins = |slot: &usize| {
            self.index(*slot, |place| {
                let begins = place.begin_io();
                if begins {
                    self.slots[*slot].run.store(number, SeqCst);
                }
                begins
            })
        };
        Run { thread, slots: slots.filter(begins).collect(), is_claimed: true }
    }

    /// `Engine::end_claim`
    fn end_claim(&self, run: &mut Run, gone: &[usize]) {
        if !std::mem::take(&mut run.is_claimed) {
            return gone.iter().for_each(|slot| self.forget(*slot));
        }
        for slot in gone {
            self.index(*slot, |cell| cell.give_up());
            if self.has(Bug::FreedClaimed) {
                self.give_back(*slot, None);
            }
        }
        let kept = |slot: &usize| self.has(Bug::KeptWithoutRoom) && !gone.contains(slot);
        let ends = |slot: &usize| {
            self.index(*slot, |place| {
                self.slots[*slot].run.store(0, SeqCst);
                place.end_io(None)
            })
        };
        let mut back: Vec<_> =
            run.slots.iter().copied().filter(|slot| !kept(slot) && !ends(slot)).collect();
        self.runs[run.thread].store(0, SeqCst);
        if self.has(Bug::WholeRunFreed) && !back.is_empty() {
            back.clone_from(&run.slots);
        }
        back.retain(|slot| !self.has(Bug::FreedClaimed) || !gone.contains(slot));
        back.into_iter().for_each(|slot| self.give_back(slot, None));
    }

    /// `Engine::move_run`
    fn move_run(&self, thread: usize, slots: Range<usize>) {
        let mut run = self.claim(thread, slots);
        let contents: Vec<_> = run.slots.iter().map(|slot| self.read(*slot)).collect();
        let is_still = |slot| self.has(Bug::ReadTooSoon) || self.compressed(slot) == 0;
        let mut gone = self.put_elsewhere(&mut run, &contents, is_still);
        let lost = run
            .slots
            .iter()
            .zip(&contents)
            .filter(|(slot, content)| content.is_none() && self.lose(**slot));
        gone.extend(lost.map(|(slot, _)| *slot));
        self.end_claim(&mut run, &gone);
    }

    /// `Engine::put_elsewhere`: the slots from which pages are gone.
    fn put_elsewhere(
        &self,
        run: &mut Run,
        contents: &[Option<u64>],
        is_still: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        // 1. Lock.
        let read =
            run.slots.iter().zip(contents).filter_map(|(slot, content)| Some((*slot, (*content)?)));
        let lock = |(slot, content)| Some((slot, self.lock_owner(slot, &is_still)?, content));
        let mut pages: Vec<_> = read.filter_map(lock).collect();
        // 2. To memory.
        let mut gone = Vec::new();
        while let Some((slot, page, content)) = pages.pop() {
            let Some(frame) = self.take_frame(content) else {
                pages.push((slot, page, content));
                break;
            };
            self.cell(page).unlock_as(self.cell(page).load().with_state(State::Cached(frame)));
            gone.push(slot);
        }
        // 3. To the tiers.
        let places: Vec<_> =
            pages.iter().map(|(_, page, content)| self.store(*page, *content)).collect();
        let stored = pages.iter().zip(&places).filter(|(_, place)| place.is_some());
        gone.extend(stored.map(|((slot, ..), _)| *slot));
        if self.has(Bug::EndedUnpublished) {
            self.end_claim(run, &gone);
            gone.clear();
        }
        for ((_, page, _), place) in pages.into_iter().zip(places) {
            let word = self.cell(page).load();
            self.cell(page).unlock_as(place.map_or(word, |place| word.with_state(place)));
        }
        gone
    }

    fn lock_owner(&self, slot: usize, is_still: impl Fn(usize) -> bool) -> Option<usize> {
        let page = self.slots[slot].owner.load(SeqCst) as usize;
        let word = match self.has(Bug::NotLookedAgain) {
            true if self.cell(page).load().state() == stored(slot) => {
                self.cell(page).try_update(PageWord::lock)?.1
            }
            _ => self.try_lock_in(page, stored(slot))?,
        };
        if is_still(slot) {
            return Some(page);
        }
        self.cell(page).unlock_as(word);
        None
    }

    /// `Engine::lose`
    fn lose(&self, slot: usize) -> bool {
        let is_still = |slot| self.has(Bug::LostTooSoon) || self.compressed(slot) == 0;
        let Some(page) = self.lock_owner(slot, is_still) else { return false };
        let word = self.cell(page).load();
        let to = self.take_slot(self.elsewhere.clone());
        if let Some(to) = to {
            self.slots[to].owner.store(page as u64, SeqCst);
            self.index(to, |cell| cell.lost());
        }
        self.cell(page).unlock_as(to.map_or(word, |to| word.with_state(stored(to))));
        to.is_some()
    }

    /// `Engine::keep_read_ahead`
    fn keep_read_ahead(&self, slot: usize) {
        let Some(page) = self.lock_owner(slot, |_| true) else { return };
        let word = self.cell(page).load();
        let frame = self.index(slot, |cell| cell.take_frame());
        let is_compressed = !self.has(Bug::FrameTrusted) && self.compressed(slot) != 0;
        let Some(frame) = frame.filter(|_| !is_compressed) else {
            frame.into_iter().for_each(|frame| self.free_frame(frame));
            return self.cell(page).unlock_as(word);
        };
        self.cell(page).unlock_as(word.with_state(State::Cached(frame)));
        self.forget(slot);
    }

    /// `Engine::leave_clean`
    fn leave_clean(&self, slot: usize) {
        let page = self.slots[slot].owner.load(SeqCst) as usize;
        let has_copy = |w: &PageWord| {
            w.is_resident() && w.is_clean() && self.copies[page].load(SeqCst) == slot as u64
        };
        let update = self.cell(page).try_update(|w| if has_copy(&w) { w.lock() } else { None });
        let Some((_, word)) = update else { return };
        self.drop_copy(page, word);
        self.cell(page).unlock_as(word.clean(false));
    }

    /// `Engine::move_compressed`, `copy_object` and `unpack`
    fn move_compressed(&self, thread: usize, slot: usize) {
        let mut run = self.claim(thread, slot..slot + 1);
        let version = self.compressed(slot);
        let is_still = |slot| self.compressed(slot) == version;
        let mut gone = Vec::new();
        if !run.slots.is_empty()
            && version != 0
            && let Some(page) = self.lock_owner(slot, is_still)
        {
            let word = self.cell(page).load();
            let to = self.take_slot(self.elsewhere.clone());
            if let Some(to) = to {
                self.slots[to].owner.store(page as u64, SeqCst);
                self.index(to, |cell| cell.stored(Stamp::new(version)));
                self.slots[to].compressed.store(version, SeqCst);
                gone.push(slot);
            }
            self.cell(page).unlock_as(to.map_or(word, |to| word.with_state(stored(to))));
            if to.is_none() {
                gone = self.put_elsewhere(&mut run, &[Some(version)], is_still);
            }
        }
        self.end_claim(&mut run, &gone);
    }
}
