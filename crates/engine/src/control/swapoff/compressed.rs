//! What of a device is compressed: pages whose copies in memory belong to its slots.

use super::buffers::EvacuationBuffers;
use super::evacuate::{Moved, Which};
use crate::control::Control;
use crate::device::RUN_MAX;
use crate::memory::word::State;
use crate::slot::SlotRun;
use crate::swap::batch::Batch;
use crate::swap::zswap::Object;
use crate::units::{PageIndex, SlotId, page_mut};
use overspill_os::backing::Backing;

/// Slots on no device that are taken at a time for compressed pages.
const FRESH_SLOTS: usize = 64;

impl<B: Backing> Control<B> {
    /// A page that is compressed in memory gets a slot on no device.
    pub(super) fn move_compressed(&self, buffers: &mut EvacuationBuffers, slot: SlotId) -> Moved {
        let run = SlotRun { first: slot, len: 1 };
        if !self.swap.begin_io(slot) {
            return Moved::default();
        }
        let (mut gone, mut full) = ([false; RUN_MAX], false);
        if let Some(object) = self.swap.zswap.look_up(slot)
            && let Some(page) =
                self.lock_owner(slot, |slot| self.swap.zswap.begin_load_of(slot, object))
        {
            let stored = self.copy_object(buffers, object, page);
            self.swap.zswap.end_load(slot);
            let word = self.memory.words.load(page);
            gone[0] = stored.is_some();
            self.memory
                .words
                .unlock_as(page, stored.map_or(word, |to| word.with_state(State::Stored(to))));
            if !gone[0] {
                full = !self.unpack(buffers, run, object, &mut gone);
            }
        }
        self.end_claim(run, &gone);
        Moved { pages: gone[0].into(), full }
    }

    /// Copies the object of a locked page for a slot on no device; which one. The page of a damaged
    /// one is lost: its reader will hear of it.
    fn copy_object(
        &self,
        buffers: &mut EvacuationBuffers,
        object: Object,
        page: PageIndex,
    ) -> Option<SlotId> {
        let EvacuationBuffers { batch, fresh, .. } = buffers;
        let Ok(len) = self.swap.zpool.load(&self.memory.frames, object.handle, &mut batch.packed)
        else {
            return self.lost_slot(page);
        };
        let next = fresh.take().or_else(|| self.swap.devices.alloc_in_memory(FRESH_SLOTS))?;
        let to = next.first;
        match self.swap.zpool.store_smaller(&self.memory.frames, to.to_bits(), &batch.packed[..len])
        {
            Ok(handle) => {
                *fresh =
                    (next.len > 1).then(|| SlotRun { first: to.advance(1), len: next.len - 1 });
                self.swap.index.set_owner(to, page);
                self.swap.insert_objects(std::iter::once((to, Object { handle, ..object })));
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
    fn unpack(
        &self,
        buffers: &mut EvacuationBuffers,
        run: SlotRun,
        object: Object,
        gone: &mut Which,
    ) -> bool {
        let slot = run.first;
        if !self.swap.zswap.begin_load_of(slot, object) {
            return true;
        }
        let EvacuationBuffers { buffer, batch, .. } = buffers;
        let Batch { packed, decompressor, .. } = batch;
        let loaded = self.swap.zpool.load(&self.memory.frames, object.handle, packed);
        let unpacked = loaded.is_ok_and(|len| {
            decompressor.decompress(object.codec, &packed[..len], page_mut(buffer, 0)).is_ok()
        });
        self.swap.zswap.end_load(slot);
        let mut has = [false; RUN_MAX];
        has[0] = unpacked;
        unpacked
            && !self.put_elsewhere(buffers, run, &has, gone, |slot| {
                self.swap.zswap.look_up(slot) == Some(object)
            })
    }
}
