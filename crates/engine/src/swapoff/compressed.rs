//! What of a device is compressed: pages whose copies in memory belong to its slots, and those that
//! are packed into them.

use super::Evacuation;
use super::evacuate::{Bench, Moved, Which};
use crate::base::{PAGE_SHIFT, PAGE_SIZE, PageIndex, SlotId};
use crate::cache::Entry;
use crate::device::RUN_MAX;
use crate::engine::Engine;
use crate::pack;
use crate::slot::SlotRun;
use crate::tier::{Batch, page_mut};
use crate::word::State;
use crate::zswap::{Location, Object};
use std::sync::atomic::Ordering::Relaxed;

/// Slots on no device that are taken at a time for compressed pages.
const FRESH_SLOTS: usize = 64;

impl Engine {
    /// A page that is compressed in memory gets a slot on no device.
    pub(super) fn move_compressed(&self, bench: &mut Bench, slot: SlotId) -> Moved {
        let run = SlotRun { first: slot, len: 1 };
        if !self.begin_io(slot) {
            return Moved::default();
        }
        let (mut gone, mut full) = ([false; RUN_MAX], false);
        if let Some(object) = self.zswap.look_up(slot)
            && let Some(page) = self.lock_owner(slot, |slot| self.zswap.begin_load_of(slot, object))
        {
            let stored = self.copy_object(bench, object, page);
            self.zswap.end_load(slot);
            let word = self.words.load(page);
            gone[0] = stored.is_some();
            self.words
                .unlock_as(page, stored.map_or(word, |to| word.with_state(State::Stored(to))));
            if !gone[0] {
                full = !self.unpack(bench, run, object, &mut gone);
            }
        }
        self.end_claim(run, &gone);
        Moved { pages: gone[0].into(), full }
    }

    /// Copies the object of a locked page for a slot on no device; which one. The page of a damaged
    /// one is lost: its reader will hear of it.
    fn copy_object(&self, bench: &mut Bench, object: Object, page: PageIndex) -> Option<SlotId> {
        let Bench { batch, fresh, .. } = bench;
        let Ok(len) = self.compressed.load(&self.frames, object.handle()?, &mut batch.packed)
        else {
            return self.lost_slot(page);
        };
        let next = fresh.take().or_else(|| self.devices.alloc_in_memory(FRESH_SLOTS))?;
        let to = next.first;
        match self.compressed.store_smaller(&self.frames, to.to_bits(), &batch.packed[..len]) {
            Ok(handle) => {
                *fresh =
                    (next.len > 1).then(|| SlotRun { first: to.advance(1), len: next.len - 1 });
                self.index.set_owner(to, page);
                self.insert_objects(std::iter::once((to, Object::in_memory(handle, object.codec))));
                Some(to)
            }
            Err(_) => {
                *fresh = Some(next);
                None
            }
        }
    }

    /// Unpacks the page of a claimed slot, whose object is in memory, and puts it elsewhere;
    /// whether there was room.
    fn unpack(&self, bench: &mut Bench, run: SlotRun, object: Object, gone: &mut Which) -> bool {
        let slot = run.first;
        if !self.zswap.begin_load_of(slot, object) {
            return true;
        }
        let Bench { buffer, batch, .. } = bench;
        let Batch { packed, decompressor, .. } = batch;
        let unpacked = object.handle().is_some_and(|handle| {
            let len = self.compressed.load(&self.frames, handle, packed);
            len.is_ok_and(|len| {
                decompressor.decompress(object.codec, &packed[..len], page_mut(buffer, 0)).is_ok()
            })
        });
        self.zswap.end_load(slot);
        let mut has = [false; RUN_MAX];
        has[0] = unpacked;
        unpacked
            && !self.put_elsewhere(bench, run, &has, gone, |slot| {
                self.zswap.look_up(slot) == Some(object)
            })
    }

    /// Moves the compressed pages that are packed into slots of the device back into the tier, or
    /// where it has no room, unpacked, elsewhere.
    pub(super) fn move_packs(
        &self,
        evacuation: &Evacuation,
        bench: &mut Bench,
        run: SlotRun,
    ) -> Moved {
        let (mut has, mut lost) = ([false; RUN_MAX], [false; RUN_MAX]);
        // A slot whose last object goes meanwhile is not handed out again while its device is
        // retired.
        self.read_run(evacuation, run, &mut bench.buffer, &mut has, &mut lost);
        let mut moved = Moved::default();
        for (i, pack) in run.slots().enumerate() {
            // A copy: the first page of the buffer is where pages are unpacked to.
            let mut page = [0; PAGE_SIZE];
            page.copy_from_slice(&bench.buffer[i << PAGE_SHIFT..][..PAGE_SIZE]);
            let whole = has[i]
                && pack::objects(&page, |number, owner, data| {
                    let slot = SlotId::from_bits(owner);
                    let here = |object: &Object| object.location == Location::Packed(pack, number);
                    if let Some(object) = self.zswap.look_up(slot).filter(here) {
                        let one = self.move_packed(bench, slot, object, data);
                        moved.pages += one.pages;
                        moved.full |= one.full;
                    }
                });
            if !whole {
                self.zswap.for_packed_in(pack, |slot, object| {
                    moved.pages += usize::from(self.lose_packed(evacuation, slot, object));
                });
            }
        }
        moved
    }

    /// Moves one object of a pack.
    fn move_packed(&self, bench: &mut Bench, slot: SlotId, object: Object, data: &[u8]) -> Moved {
        // Its slot is on no device, and otherwise as any other.
        match self.index.load(slot) {
            Entry::Frame(..) => return self.keep_read_ahead(slot),
            Entry::Clean => return self.leave_clean(slot),
            _ => {}
        }
        let run = SlotRun { first: slot, len: 1 };
        if !self.begin_io(slot) {
            return Moved::default();
        }
        let (mut gone, mut moved) = ([false; RUN_MAX], Moved::default());
        if self.accepts_compressed(true) && self.zswap.begin_load_of(slot, object) {
            match self.compressed.store(&self.frames, slot.to_bits(), data) {
                Ok(handle) => {
                    let new = Object::in_memory(handle, object.codec);
                    if self.zswap.finish_load(slot, object, Some(new), self.evictions.load(Relaxed))
                    {
                        self.free_object(object);
                        moved.pages = 1;
                    } else {
                        self.zswap.end_load(slot);
                        self.compressed.free(&self.frames, handle);
                    }
                }
                Err(_) => {
                    self.zswap.end_load(slot);
                    self.compressed_full.store(true, Relaxed);
                }
            }
        }
        if moved.pages == 0 {
            let Bench { buffer, batch, .. } = bench;
            let mut has = [false; RUN_MAX];
            has[0] = batch.decompressor.decompress(object.codec, data, page_mut(buffer, 0)).is_ok();
            let is_still = |slot| self.zswap.look_up(slot) == Some(object);
            moved.full = self.put_elsewhere(bench, run, &has, &mut gone, is_still);
            moved.pages = gone[0].into();
        }
        self.end_claim(run, &gone);
        moved
    }

    /// A page whose pack cannot be read is lost; whether it still was there.
    fn lose_packed(&self, evacuation: &Evacuation, slot: SlotId, object: Object) -> bool {
        let run = SlotRun { first: slot, len: 1 };
        if !self.begin_io(slot) {
            return false;
        }
        let Some(page) = self.lock_owner(slot, |slot| self.zswap.look_up(slot) == Some(object))
        else {
            self.end_claim(run, &[false; RUN_MAX]);
            return false;
        };
        self.zswap.invalidate(run, |object| self.free_object(object));
        self.index.lost(slot);
        self.words.unlock_as(page, self.words.load(page));
        self.note_lost(evacuation);
        true
    }
}
