//! Writeback: the coldest pages of the compressed tier go on to devices.
//!
//! In the background, from when the tier is full until it is at [`ACCEPT_PERCENT`] of what it may
//! take; else only by a thread that finds nothing else to reclaim. Where there is a denser codec
//! (setting `zswap.recompress`), a page is packed by that first, and has to become the coldest once
//! more. A page whose slot is on no device (setting `zswap.slots`), or was inherited, is written to
//! another slot, which it gets if nobody wants the page at that moment; those of a batch lie side
//! by side there, in the order of their addresses. One whose slot lies on a device is written to
//! it, without its owner being asked: until then it can be loaded from the tier, after that from
//! the device.
//!
//! Locks: those of the index of the tier and of the slot index, for a moment each; the page lock of
//! a page that gets another slot, tried.

use crate::base::seeded::{Bug, is_seeded};
use crate::memory::word::{PageWord, State};
use crate::reclaim::Reclaim;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::swap::Entry;
use crate::swap::batch::{Batch, Cold, line_up};
use crate::swap::settings::{Recompress, TierSlots};
use crate::swap::store::ACCEPT_PERCENT;
use crate::swap::zswap::Object;
use crate::units::{SlotId, page_mut};
use crate::zpool::Handle;
use overspill_os::backing::Backing;
use overspill_os::codec::CodecId;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that compaction must be able to free to be worth it.
const COMPACT_FRAMES: usize = 16;
/// Pages that must have left memory since nothing could be done about a full tier without a device,
/// for another try.
const FRUITLESS_PAGES: u64 = 128;
/// Pages moved at a time: 0.1 ms.
const COMPACT_OBJECTS: usize = 128;

impl<B: Backing> Reclaim<B> {
    /// Writes compressed pages to devices until some frames of the tier are free; returns how many.
    pub(crate) fn write_back(&self, batch: &mut Batch) -> usize {
        let before = self.swap.zpool.frames();
        // Each batch takes other pages: what cannot be written becomes the newest.
        for _ in 0..=self.swap.zpool.stored_objects() / batch.capacity() {
            if self.write_back_coldest(batch) == 0 && !self.goes_on() {
                break;
            }
            self.compact();
            let freed = before.saturating_sub(self.swap.zpool.frames());
            if freed > 0 {
                return freed;
            }
        }
        0
    }

    /// Moves compressed pages closer together, so that frames of the tier come back.
    pub(crate) fn compact(&self) {
        if self.swap.zpool.compactable_frames() >= COMPACT_FRAMES {
            self.swap.zpool.compact(&self.memory.frames, COMPACT_OBJECTS, &mut self.moves_object());
        }
    }

    /// What makes a slot know the new place of its compressed page.
    pub(crate) fn moves_object(&self) -> impl FnMut(u64, Handle, Handle) -> bool {
        |owner, old, new| self.swap.zswap.replace(SlotId::from_bits(owner), old, new)
    }

    /// Whether the tier was full, does not yet accept pages again, and something can be done about
    /// it.
    pub(crate) fn has_to_write_back(&self) -> bool {
        self.swap.compressed_full.load(Relaxed)
            && self.swap.zpool.is_above_percent(ACCEPT_PERCENT)
            && (self.goes_on()
                || self.recompresses()
                    && self
                        .workingset
                        .evictions
                        .load(Relaxed)
                        .wrapping_sub(self.written_back.load(Relaxed))
                        >= FRUITLESS_PAGES)
    }

    /// Whether compressed pages can go on to devices: there is room, or they have slots there.
    fn goes_on(&self) -> bool {
        match self.swap.settings.slots {
            TierSlots::Own => self.swap.devices_have_room(),
            TierSlots::Device => self.stats.get(Counter::DeviceCapacityBytes) > 0,
        }
    }

    /// Whether pages that stay cold are packed more densely just now.
    fn recompresses(&self) -> bool {
        match self.swap.settings.recompress {
            Recompress::Off => false,
            Recompress::Cold(_) => true,
            Recompress::LastResort => !self.swap.devices_have_room(),
        }
    }

    /// Packs a batch of the coldest compressed pages more densely, or writes those to devices of
    /// which that was done before; returns how many are smaller now, or gone.
    pub(crate) fn write_back_coldest(&self, batch: &mut Batch) -> usize {
        // 1. Those whose slots stay in use until this is done, and whose objects are still what
        //    they were.
        let now = self.workingset.evictions.load(Relaxed);
        self.hold_coldest(batch, now);
        // 2. Out, to be read from the device.
        let denser = if self.recompresses() { self.recompress(batch, now) } else { 0 };
        self.line_up_cold(batch);
        self.write_cold(batch);
        let left = batch.cold.iter().filter(|cold| self.finish_writeback(cold, now)).count();
        self.stats.add(Counter::ZswpWb, left as u64);
        self.swap.publish_tiers();
        if left + denser == 0 {
            self.written_back.store(now, Relaxed);
        }
        left + denser
    }

    /// Chooses the coldest.
    fn hold_coldest(&self, batch: &mut Batch, now: u64) {
        let most = batch.capacity();
        let Batch { cold, oldest, .. } = batch;
        self.swap.zswap.oldest(now, most, oldest);
        cold.clear();
        for &(slot, object) in &*oldest {
            if !self.swap.begin_io(slot) {
                // Its owner is at it just now, or keeps it for a page in memory.
                self.swap.zswap.rotate(slot, now);
            } else if !self.swap.zswap.begin_load_of(slot, object) {
                self.swap.end_io(slot);
            } else {
                let owner = self.swap.index.owner(slot);
                cold.push(Cold { slot, object, owner, to: slot, written: false });
            }
        }
    }

    /// Packs the chosen more densely, where that was not done yet and makes them smaller by an
    /// eighth at least; how many. They are the newest again, and no more among the chosen.
    fn recompress(&self, batch: &mut Batch, now: u64) -> usize {
        let Batch {
            cold, recompressor: Some(compressor), trial, buffer, packed, decompressor, ..
        } = batch
        else {
            return 0;
        };
        let before = cold.len();
        cold.retain(|&Cold { slot, object, .. }| {
            let id = compressor.codec().id();
            if object.codec == id || object.codec == CodecId::None {
                return true;
            }
            let page = page_mut(buffer, 0);
            let loaded = self.swap.zpool.load(&self.memory.frames, object.handle, packed).ok();
            let unpacked = loaded
                .filter(|len| decompressor.decompress(object.codec, &packed[..*len], page).is_ok());
            let shorter =
                unpacked.and_then(|len| compressor.compress(page, &mut trial[..len - len / 8]));
            let stored = shorter.and_then(|len| {
                self.swap
                    .zpool
                    .store_smaller(&self.memory.frames, slot.to_bits(), &trial[..len])
                    .ok()
            });
            let Some(smaller) = stored else { return true };
            let new = Object { handle: smaller, codec: id };
            let done = self.swap.zswap.finish_load(slot, object, Some(new), now);
            if !done {
                self.swap.zswap.end_load(slot);
            }
            self.swap.free_object(if done { object } else { new });
            self.swap.zswap.rotate(slot, now);
            self.swap.end_io(slot);
            false
        });
        let done = before - cold.len();
        self.stats.add(Counter::ZswapRecompressed, done as u64);
        done
    }

    /// Lines the chosen up, as they were before compression, with another slot where their own
    /// cannot be written to.
    fn line_up_cold(&self, batch: &mut Batch) {
        let Batch { cold, buffer, packed, decompressor, writes, .. } = batch;
        writes.clear();
        if self.swap.settings.slots == TierSlots::Own {
            // Neighbours in the address space are to be neighbours on the device, too.
            cold.sort_unstable_by_key(|cold| cold.owner);
        }
        let mut fresh = None;
        for i in 0..cold.len() {
            let Cold { slot, object, .. } = cold[i];
            let Ok(len) = self.swap.zpool.load(&self.memory.frames, object.handle, packed) else {
                // Its reader will hear of it.
                continue;
            };
            let keeps_slots = self.swap.devices.is_writable(slot);
            if !keeps_slots && fresh.is_none() {
                fresh = self.swap.devices.alloc_run(cold.len() - i);
            }
            if !keeps_slots && fresh.is_none()
                || decompressor
                    .decompress(object.codec, &packed[..len], page_mut(buffer, i))
                    .is_err()
            {
                continue;
            }
            let to = if keeps_slots { slot } else { next_slot(&mut fresh) };
            cold[i].to = to;
            line_up(writes, to, i, keeps_slots);
        }
        if let Some(rest) = fresh {
            self.swap.devices.free_run(rest);
        }
    }

    /// Writes what is lined up, and notes what is on devices now.
    fn write_cold(&self, batch: &mut Batch) {
        debug_assert!(batch.is_within(), "{} pages count", batch.capacity());
        let Batch { cold, buffer, writes, .. } = batch;
        let writing = self.swap.begin_writing();
        self.swap.devices.write(buffer, writes);
        drop(writing);
        for write in writes.iter().filter(|write| write.result.is_ok()) {
            cold[write.buffer_page..write.buffer_page + write.run.len]
                .iter_mut()
                .for_each(|cold| cold.written = true);
        }
    }

    /// Takes a page that was written out of the tier, unless somebody reads it there just now;
    /// whether it left.
    fn finish_writeback(&self, cold: &Cold, now: u64) -> bool {
        let Cold { slot, object, to, written, .. } = *cold;
        let is_there = (written || is_seeded(Bug::FailedIsTaken)) && to == slot;
        let left = if is_there && self.swap.zswap.finish_load(slot, object, None, now) {
            self.swap.free_object(object);
            true
        } else {
            self.swap.zswap.end_load(slot);
            written && to != slot && self.change_slot(slot, to)
        };
        if !left {
            self.swap.zswap.rotate(slot, now);
        }
        self.swap.end_io(slot);
        left
    }

    /// Gives a page another slot, to which it was written, if nobody is at it. The old one is given
    /// up when I/O on it ends.
    fn change_slot(&self, from: SlotId, to: SlotId) -> bool {
        let page = self.swap.index.owner(from);
        let run = SlotRun { first: to, len: 1 };
        let is_still =
            |w: PageWord| w.state() == State::Stored(from) || is_seeded(Bug::SlotChangedUnseen);
        let Some(word) = self.memory.words.try_lock_if(page, is_still) else {
            self.swap.devices.free_run(run);
            return false;
        };
        self.swap.index.set_owner(to, page);
        // The page left memory when it left for the old one.
        let left = match self.swap.index.load(from) {
            Entry::Busy(stamp) => stamp,
            _ => self.swap.stamp(0),
        };
        self.swap.index.stored(run.slots(), left);
        self.memory.words.unlock_as(page, word.with_state(State::Stored(to)));
        self.swap.forget_run(SlotRun { first: from, len: 1 });
        true
    }
}

/// Takes the first of some slots.
fn next_slot(fresh: &mut Option<SlotRun>) -> SlotId {
    let run = fresh.take().expect("there are some");
    *fresh = (run.len > 1).then(|| SlotRun { first: run.first.advance(1), len: run.len - 1 });
    run.first
}
