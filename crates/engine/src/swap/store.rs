//! The tiers behind memory: storing a batch of pages, loading one back, forgetting one.
//!
//! A page that leaves memory becomes a fill value, or gets a swap slot: on no device while the
//! compressed tier takes it ([`crate::swap::zswap`]), else of a device, to which it is written,
//! since it does not compress, or the tier has no room. With `zswap.slots=device` what is
//! compressed has slots of devices, too, while there is room on one. Until its batch is committed
//! by the caller a page is also still where it was.

use crate::base::seeded::{Bug, is_seeded};
use crate::device::{RUN_MAX, ReadError};
#[cfg(debug_assertions)]
use crate::memory::word::PageWord;
use crate::memory::word::State;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::Swap;
use crate::swap::batch::{Batch, Pick, line_up};
use crate::swap::fill;
use crate::swap::settings::TierSlots;
use crate::swap::zswap::Object;
use crate::swap::{Entry, GivenUp, Stamp};
use crate::units::FOLIO_MAX;
use crate::units::page_mut;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, SlotId};
use crate::workingset::settings::{CompressedMax, TierCodec};
use overspill_os::backing::Backing;
use overspill_os::codec::{Codec, CodecId, Decompressor};
use overspill_os::io::IoBuffer;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// Compressed size from which a page goes to a device instead, where there is one: 3/4 of a page.
/// Above, the frame saved is less than a quarter, for 4 us of compression and 2 us of decompression
/// each way.
const WORTH_BYTES: usize = 3072;
/// The same where there is no device: the largest class that still puts nine objects where eight
/// pages were.
const WORTH_BYTES_NO_DEVICE: usize = 3632;

/// Share of what it may take at which the compressed tier takes pages again after it was full.
pub(crate) const ACCEPT_PERCENT: usize = 90;

/// The parts of a run whose slots are `wanted`, by their place in it.
pub(crate) fn runs_where(
    run: SlotRun,
    wanted: impl Fn(usize) -> bool,
) -> impl Iterator<Item = SlotRun> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..run.len).find(|i| wanted(*i))?;
        at = (start..run.len).find(|i| !wanted(*i)).unwrap_or(run.len);
        Some(SlotRun { first: run.first.advance(start as u64), len: at - start })
    })
}

/// Why a page could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// A device failed to give it back.
    Read(ReadError),
    /// It could not be read when its device was taken out of use.
    Lost,
    /// Its compressed copy does not decompress: a bug, or broken memory.
    Corrupt,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Read(error) => {
                write!(f, "a page cannot be read back, the program gets SIGBUS for it: {error}")
            }
            LoadError::Lost => f.write_str(
                "a page could not be read when its swap device was taken out of use, the program \
                 gets SIGBUS for it",
            ),
            LoadError::Corrupt => f.write_str(
                "a compressed page is damaged, the program gets SIGBUS for it: broken memory?",
            ),
        }
    }
}

impl<B: Backing> Swap<B> {
    /// Stores every page of the batch that a tier takes; `read` copies a page's content, or says
    /// that it is gone.
    pub(crate) fn store_batch(
        &self,
        batch: &mut Batch,
        mut read: impl FnMut(&Pick, &mut [u8; PAGE_SIZE]) -> bool,
    ) {
        // 1. What is the same all over needs no place; the rest is lined up in the buffer.
        let mut pages = 0;
        for pick in &mut batch.picks {
            (pick.stored, pick.place) = (pick.copy.map(State::Stored), None);
            let page = page_mut(&mut batch.buffer, pages);
            if pick.copy.is_some() || !read(pick, page) {
                continue;
            }
            match fill::same_filled(page).filter(|_| self.settings.same_filled) {
                Some(value) => {
                    pick.stored = Some(State::Filled(value));
                    self.stats.add(Counter::SameFilledOut, 1);
                    self.stats.add(Counter::SameFilledPages, 1);
                }
                None => {
                    pick.place = Some(pages as u32);
                    pages += 1;
                }
            }
        }
        // 2. It gets slots next to one another: on no device what the compressed tier takes, if it
        //    has slots of its own; else of devices, as far as they have some.
        batch.writes.clear();
        batch.slots.fill_up(pages, None);
        batch.objects.fill_up(pages, None);
        batch.refused = false;
        let own = self.settings.slots == TierSlots::Own;
        batch.backed = own && self.devices_have_room();
        let mut at = 0;
        while at < pages {
            let on_devices = |want: usize| self.devices.alloc_run(want);
            let in_memory = |want| match self.settings.compressed_max {
                CompressedMax::OFF => None,
                _ => self.devices.alloc_in_memory(want),
            };
            let run = match own && self.accepts_compressed(batch.backed) {
                true => in_memory(pages - at).or_else(|| on_devices(pages - at)),
                false => on_devices(pages - at).or_else(|| {
                    batch.backed = false;
                    in_memory(pages - at)
                }),
            };
            let Some(run) = run else { break };
            let places = batch.slots[at..at + run.len].iter_mut();
            places.zip(run.slots()).for_each(|(place, slot)| *place = Some(slot));
            at += run.len;
        }
        self.store_for_slots(batch, at);
        // 3. What does not compress is written to its slots; what has none yet may get some.
        self.line_up_rest(batch, pages);
        if !batch.writes.is_empty() {
            self.write_lined_up(batch);
        }
        // 4. Who is where.
        for pick in &mut batch.picks {
            if let Some(place) = pick.place
                && let Some(slot) = batch.slots[place as usize]
            {
                self.index.set_owner(slot, pick.page);
                pick.stored = Some(State::Stored(slot));
            }
        }
        self.publish_tiers();
    }

    /// Compresses the first `pages` pages of the buffer, each for its slot, and lines up for
    /// writing what does not stay in memory.
    fn store_for_slots(&self, batch: &mut Batch, pages: usize) {
        let mut raw = 0;
        for at in 0..pages {
            let slot = batch.slots[at].expect("it was given one");
            batch.objects[at] = self.compress(batch, at, slot);
            if batch.objects[at].is_some() {
                continue;
            }
            raw += 1;
            if slot.device() != SlotId::IN_MEMORY {
                line_up(&mut batch.writes, slot, at, false);
            } else {
                batch.slots[at] = None;
                self.devices.free(slot);
            }
        }
        self.stats.add(Counter::CompressRefused, raw);
        let stored = batch.slots[..pages].iter().zip(&batch.objects);
        self.insert_objects(stored.filter_map(|(slot, object)| Some(((*slot)?, (*object)?))));
    }

    /// Makes compressed copies of slots known: by slot, and with a copy, before a word says so.
    pub(crate) fn insert_objects(&self, objects: impl Iterator<Item = (SlotId, Object)> + Clone) {
        let now = self.stamp(objects.clone().count());
        self.index.stored(objects.clone().map(|(slot, _)| slot), now);
        self.zswap.insert(objects, self.workingset.evictions.load(Relaxed), |older| {
            self.free_object(older)
        });
    }

    /// Lines up for writing, as they are, the first `pages` pages of the buffer that have no slot,
    /// as far as devices have some. They move together first, over what has a compressed copy, so
    /// that a run of slots is one write; unless others are lined up where they are.
    fn line_up_rest(&self, batch: &mut Batch, pages: usize) {
        let Batch { slots, writes, buffer, .. } = batch;
        let mut want = slots[..pages].iter().filter(|slot| slot.is_none()).count();
        let together = writes.is_empty();
        let (mut at, mut to) = (0, 0);
        while want > 0 {
            let Some(run) = self.devices.alloc_run(want.min(RUN_MAX)) else { return };
            want -= run.len;
            for slot in run.slots() {
                while slots[at].is_some() {
                    at += 1;
                }
                slots[at] = Some(slot);
                let place = if together { to } else { at };
                if place < at {
                    let start = at << PAGE_SHIFT;
                    buffer.copy_within(start..start + PAGE_SIZE, place << PAGE_SHIFT);
                }
                line_up(writes, slot, place, false);
                to += 1;
            }
        }
    }

    /// Compresses a page of the buffer for a slot, if the tier takes it.
    fn compress(&self, batch: &mut Batch, at: usize, slot: SlotId) -> Option<Object> {
        let passes_on = slot.device() != SlotId::IN_MEMORY || batch.backed;
        if batch.refused || !self.accepts_compressed(passes_on) {
            return None;
        }
        let may_pass_over = passes_on && !self.settings.keeps_incompressible;
        if may_pass_over && batch.tries.passes_over() {
            return None;
        }
        let worth = match self.settings.codec {
            TierCodec::Always(Codec::None) => PAGE_SIZE,
            _ if passes_on => WORTH_BYTES,
            _ => WORTH_BYTES_NO_DEVICE,
        };
        let Batch { buffer, packed, compressors, trial, tries, .. } = batch;
        let page = page_mut(buffer, at);
        let density = match compressors.len() {
            1 => 0,
            _ => {
                self.workingset.density.try_all(compressors, page, &mut trial[..worth]);
                self.workingset.density.now()
            }
        };
        let compressor = &mut compressors[density];
        let len = compressor.compress(page, &mut packed[..worth]);
        tries.note(len.is_some());
        let (data, codec) = match len {
            Some(len) => (&packed[..len], compressor.codec().id()),
            None if self.settings.keeps_incompressible => (&page[..], CodecId::None),
            None => return None,
        };
        match self.zpool.store(&self.memory.frames, slot.to_bits(), data) {
            Ok(handle) => {
                self.stats.add(Counter::ZswpOut, 1);
                self.stats.add(Counter::ZswpOutDense, (density > 0).into());
                Some(Object { handle, codec })
            }
            Err(_) => {
                if !self.compressed_full.swap(true, Relaxed) {
                    self.base.wake.background.wake();
                }
                batch.refused = true;
                None
            }
        }
    }

    /// Gives up an object of the compressed tier that no entry names any more.
    pub(crate) fn free_object(&self, object: Object) {
        self.zpool.free(&self.memory.frames, object.handle);
    }

    /// Whether the compressed tier takes pages: not from when it was full until it is at
    /// [`ACCEPT_PERCENT`] of what it may take, while devices take them.
    pub(crate) fn accepts_compressed(&self, passes_on: bool) -> bool {
        if self.settings.compressed_max == CompressedMax::OFF {
            return false;
        }
        if self.compressed_full.load(Relaxed) && !self.zpool.is_above_percent(ACCEPT_PERCENT) {
            self.compressed_full.store(false, Relaxed);
        }
        !passes_on || !self.compressed_full.load(Relaxed)
    }

    /// Whether devices have room for more.
    pub(crate) fn devices_have_room(&self) -> bool {
        self.stats.get(Counter::DevicePages) << PAGE_SHIFT
            < self.stats.get(Counter::DeviceCapacityBytes)
    }

    /// Writes what is lined up; pages of runs that fail get no slot.
    fn write_lined_up(&self, batch: &mut Batch) {
        debug_assert!(batch.is_within(), "{} pages count", batch.capacity());
        let writing = self.begin_writing();
        self.devices.write(&mut batch.buffer, &mut batch.writes);
        drop(writing);
        let pages = batch.writes.iter().map(|write| write.run.len).sum();
        let now = self.stamp(pages);
        for write in &batch.writes {
            match write.result {
                Ok(()) => self.index.stored(write.run.slots(), now),
                Err(_) => {
                    let is_lost = |slot: &&mut Option<SlotId>| {
                        slot.is_some_and(|slot| write.run.contains(slot))
                    };
                    batch.slots.iter_mut().filter(is_lost).for_each(|slot| *slot = None);
                }
            }
        }
    }

    /// Unpacks the page of a slot from the compressed tier, if it is there; who calls owns the
    /// slot's page, or sees to it that the slot stays in use.
    pub(crate) fn load_compressed(
        &self,
        slot: SlotId,
        packed: &mut [u8; PAGE_SIZE],
        decompressor: &mut Decompressor,
        out: &mut [u8; PAGE_SIZE],
    ) -> Result<bool, LoadError> {
        let object = match is_seeded(Bug::ReadUnannounced) {
            true => self.zswap.look_up(slot),
            false => self.zswap.begin_load(slot),
        };
        let Some(object) = object else { return Ok(false) };
        let len = self.zpool.load(&self.memory.frames, object.handle, packed);
        if !is_seeded(Bug::ReadUnannounced) {
            self.zswap.end_load(slot);
        }
        let len = len.map_err(|_| LoadError::Corrupt)?;
        decompressor
            .decompress(object.codec, &packed[..len], out)
            .map_err(|_| LoadError::Corrupt)?;
        self.stats.add(Counter::ZswpIn, 1);
        Ok(true)
    }

    /// Reads the pages of a run from devices into the buffer, from page `at` on.
    pub(crate) fn load_slots(
        &self,
        run: SlotRun,
        buffer: &mut IoBuffer,
        at: usize,
    ) -> Result<(), LoadError> {
        match run.first.device() {
            // What had a slot on no device, and is not compressed, was lost with its device.
            SlotId::IN_MEMORY => Err(LoadError::Lost),
            _ => self.devices.read(run, &mut buffer[at << PAGE_SHIFT..]).map_err(LoadError::Read),
        }
    }

    /// When `pages` pages leave for devices, which is now.
    pub(crate) fn stamp(&self, pages: usize) -> Stamp {
        self.stats.add(Counter::WorkingsetEvict, pages as u64);
        Stamp::new(self.workingset.leave(pages as u64))
    }

    /// A page is not away any more that left then: how many are that left later.
    pub(crate) fn come_back(&self, left: Stamp) -> u64 {
        let now = self.workingset.evictions.load(Relaxed);
        self.workingset.away.come_back(now - left.distance(now))
    }

    /// Gives up the stored copy of a page, if it has one outside memory: it was loaded, or nobody
    /// wants it.
    pub(crate) fn forget(&self, state: State) {
        match state {
            State::Filled(_) => self.stats.sub(Counter::SameFilledPages, 1),
            State::Stored(slot) => {
                if let Some(left) = self.index.left_at(slot) {
                    self.come_back(left);
                }
                self.forget_run(SlotRun { first: slot, len: 1 });
            }
            State::Empty
            | State::Resident(_)
            | State::Evicting(_)
            | State::Cached(_)
            | State::Foreign => {}
        }
    }

    /// Gives up the slots of a run of up to [`FOLIO_MAX`] pages, and what was read ahead of them.
    pub(crate) fn forget_run(&self, run: SlotRun) {
        let mut done = [GivenUp::Now(None); FOLIO_MAX];
        self.index.give_up(run, &mut done);
        if done[..run.len].iter().all(|done| *done == GivenUp::Now(None)) {
            self.give_back(run, None);
            return;
        }
        for (slot, done) in run.slots().zip(done) {
            let run = SlotRun { first: slot, len: 1 };
            match done {
                GivenUp::Now(frame) => self.give_back(run, frame),
                GivenUp::Later if is_seeded(Bug::FreedByOwner) => self.give_back(run, None),
                GivenUp::Later => {}
            }
        }
    }

    /// Gives back slots that nobody knows any more, what is compressed of them, and a frame of the
    /// swap cache.
    pub(crate) fn give_back(&self, run: SlotRun, frame: Option<FrameId>) {
        let is_unknown = |slot| self.index.load(slot) == Entry::None;
        debug_assert!(run.slots().all(is_unknown), "somebody is at {run:?}, which is given back");
        if !is_seeded(Bug::RefusedKeepsOlder) {
            self.zswap.invalidate(run, |object| self.free_object(object));
        }
        if let Some(frame) = frame {
            self.lru.remove(frame);
            self.memory.frames.give_one(frame);
        }
        self.devices.free_run(run);
    }

    /// Flips a bit of the compressed copy of a page, if it has one; for tests.
    #[cfg(debug_assertions)]
    pub(crate) fn damage_compressed(&self, page: crate::units::PageIndex, byte: usize) -> bool {
        let stored = |w: PageWord| matches!(w.state(), State::Stored(_));
        let Some(word) = self.memory.words.try_lock_if(page, stored) else { return false };
        let State::Stored(slot) = word.state() else { unreachable!("locked as stored") };
        // Nobody is writing it to a device just now: that would be from before the damage.
        let alone = self.begin_io(slot);
        let object = if alone { self.zswap.begin_load(slot) } else { None };
        if let Some(object) = object {
            self.zpool.damage(&self.memory.frames, object.handle, byte);
            self.zswap.end_load(slot);
        }
        if alone {
            self.end_io(slot);
        }
        self.memory.words.unlock_as(page, word);
        object.is_some()
    }

    /// Brings the gauges of the tiers up to date.
    pub(crate) fn publish_tiers(&self) {
        let pages = self.zpool.stored_objects() as u64;
        self.note_compressed(pages);
        self.stats.set(Counter::CompressedPages, pages);
        self.stats.set(Counter::CompressedBytes, self.zpool.stored_bytes() as u64);
        self.stats.set(Counter::CompressedPoolBytes, self.zpool.pool_bytes() as u64);
        self.stats.set(Counter::CompressedLimitBytes, self.zpool.limit_bytes() as u64);
    }

    /// Begins I/O on a slot, so that it stays in use until [`Swap::end_io`]; `false` when its
    /// page is not there alone, or somebody is at it.
    pub(crate) fn begin_io(&self, slot: SlotId) -> bool {
        if is_seeded(Bug::WrittenUnclaimed) {
            return true;
        }
        let mut begun = [false];
        self.index.begin_io(SlotRun { first: slot, len: 1 }, &mut begun);
        begun[0]
    }

    /// I/O on a slot ends; it is given back if its page was given up meanwhile.
    pub(crate) fn end_io(&self, slot: SlotId) {
        if is_seeded(Bug::WrittenUnclaimed) {
            return;
        }
        let (run, mut wanted) = (SlotRun { first: slot, len: 1 }, [true]);
        self.index.end_io(run, &[None], &mut wanted);
        if !wanted[0] {
            self.give_back(run, None);
        }
    }
}
