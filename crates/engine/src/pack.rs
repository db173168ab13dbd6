//! Packs: slots of devices that hold several compressed pages each.
//!
//! A page that goes on to a device from the compressed tier need not be unpacked for it, nor have a
//! slot for itself. Its own slot is on no device; its object goes into a slotted page with others
//! ([`Packer`]): their trailers at the beginning, which say whose they are, the data at the end. No
//! object reaches over the end of a slot, so that whatever others a slot had, it never holds a page
//! for which one slot would not do, and a page is read with one slot. A slot is given back when the
//! last of its objects has gone.
//!
//! It saves writing, reading in sequence, and room, each by as many objects as fit a slot.
//! ([`crate::zswap`] says where an object is, and counts those of each slot.)

use crate::base::{PAGE_SHIFT, PAGE_SIZE, SlotId};
use crate::compressed::{Damaged, TRAILER_BYTES, Trailer};
use crate::config::FOLIO_MAX;
use crate::device::{RUN_MAX, RunWrite};
use crate::engine::Engine;
use crate::fault::FaultContext;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::tier::{LoadError, line_up, page_mut};
use crate::zswap::{Location, Object, PACKED_MAX};
use overspill_os::codec::CodecId;
use overspill_os::io::IoBuffer;

/// The longest object that is packed: two of it fill a slot. What is longer would mostly have one
/// for itself, as it is without being compressed.
pub const PACK_BYTES_MAX: usize = PAGE_SIZE / 2 - TRAILER_BYTES;

/// Fills a slotted page.
#[derive(Debug)]
struct Packer {
    page: Box<[u8; PAGE_SIZE]>,
    objects: usize,
    /// Where data begins.
    data: usize,
}

impl Packer {
    fn new() -> Packer {
        Packer { page: Box::new([0; PAGE_SIZE]), objects: 0, data: PAGE_SIZE }
    }

    /// Adds an object; its number, or `None` when there is no room.
    fn push(&mut self, owner: u64, data: &[u8]) -> Option<usize> {
        let (number, trailer) = (self.objects, self.objects * TRAILER_BYTES);
        if number == PACKED_MAX || trailer + TRAILER_BYTES + data.len() > self.data {
            return None;
        }
        self.page[trailer..][..TRAILER_BYTES]
            .copy_from_slice(&Trailer::new(owner, data).to_bytes());
        self.data -= data.len();
        self.page[self.data..][..data.len()].copy_from_slice(data);
        self.objects += 1;
        Some(number)
    }

    /// Copies the page to `out`, and begins a new one.
    fn take(&mut self, out: &mut [u8; PAGE_SIZE]) {
        // What lies between is from earlier pages, and was theirs.
        self.page[self.objects * TRAILER_BYTES..self.data].fill(0);
        out.copy_from_slice(&self.page[..]);
        (self.objects, self.data) = (0, PAGE_SIZE);
    }
}

/// Finds an object in a slotted page.
///
/// # Errors
/// When what is there is not what was packed for `owner` under this number.
fn unpack(page: &[u8; PAGE_SIZE], number: usize, owner: u64) -> Result<&[u8], Damaged> {
    let (mut end, mut data) = (PAGE_SIZE, &page[..0]);
    for at in 0..=number {
        let bytes = page.get(at * TRAILER_BYTES..(at + 1) * TRAILER_BYTES).ok_or(Damaged)?;
        let trailer = Trailer::from_bytes(bytes.try_into().expect("that many bytes"));
        let start = end.checked_sub(trailer.len_bytes().ok_or(Damaged)?).ok_or(Damaged)?;
        data = &page[start..end];
        end = start;
        if at == number && !(trailer.fits(data) && trailer.owner() == owner) {
            return Err(Damaged);
        }
    }
    Ok(data)
}

/// Calls `each` for the objects of a slotted page: number, owner, data. Whether all of the page is
/// as it was made.
pub fn objects(page: &[u8; PAGE_SIZE], mut each: impl FnMut(u8, u64, &[u8])) -> bool {
    let mut end = PAGE_SIZE;
    for number in 0..PACKED_MAX {
        let after = (number + 1) * TRAILER_BYTES;
        if after > end {
            break;
        }
        let bytes = page[after - TRAILER_BYTES..after].try_into().expect("that many bytes");
        if bytes == [0; TRAILER_BYTES] {
            break;
        }
        let trailer = Trailer::from_bytes(bytes);
        let Some(start) = trailer.len_bytes().and_then(|len| end.checked_sub(len)) else {
            return false;
        };
        let data = &page[start..end];
        if !trailer.fits(data) {
            return false;
        }
        each(number as u8, trailer.owner(), data);
        end = start;
    }
    true
}

/// An object that is lined up to be written.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// What the caller knows it by.
    pub item: usize,
    codec: CodecId,
    /// Number of its pack among those lined up, and its own there.
    pack: usize,
    number: u8,
}

/// Objects on their way to a device: filled page by page, written at once.
#[derive(Debug)]
pub struct Packing {
    packer: Packer,
    /// The objects, in the order in which they came.
    pub objects: Vec<Packed>,
    /// By pack: its page of the buffer, and the slot that it was written to.
    packs: Vec<(usize, Option<SlotId>)>,
    /// By page of the buffer: whether a pack may lie there.
    free: Vec<bool>,
    writes: Vec<RunWrite>,
}

impl Packing {
    /// For a buffer of `pages` pages.
    pub fn new(pages: usize) -> Packing {
        Packing {
            packer: Packer::new(),
            objects: Vec::with_capacity(pages),
            packs: Vec::with_capacity(pages),
            free: vec![false; pages],
            writes: Vec::with_capacity(pages),
        }
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.objects.clear();
        self.packs.clear();
        self.free.fill(false);
    }

    /// Lines an object up for `owner`, which is of at most [`PACK_BYTES_MAX`] bytes. What was in
    /// page `item` of the buffer is needed no more.
    pub fn push(
        &mut self,
        buffer: &mut [u8],
        item: usize,
        owner: SlotId,
        codec: CodecId,
        data: &[u8],
    ) {
        let owner = owner.to_bits();
        self.free[item] = true;
        let number = self.packer.push(owner, data).unwrap_or_else(|| {
            self.end_pack(buffer);
            self.packer.push(owner, data).expect("an object fits an empty page")
        });
        self.objects.push(Packed { item, codec, pack: self.packs.len(), number: number as u8 });
    }

    /// Puts the pack that is being filled into the next page of the buffer that is free.
    fn end_pack(&mut self, buffer: &mut [u8]) {
        if self.packer.objects == 0 {
            return;
        }
        let after = self.packs.last().map_or(0, |(page, _)| page + 1);
        let page =
            (after..).find(|page| self.free[*page]).expect("each object has left a page free");
        self.packer.take(page_mut(buffer, page));
        self.packs.push((page, None));
    }

    /// Whether a page of the buffer still is what it was.
    pub fn is_whole(&self, page: usize) -> bool {
        !self.free[page]
    }

    /// Where an object is on a device now; `None` if it was not written.
    pub fn location(&self, packed: &Packed) -> Option<Object> {
        let slot = self.packs[packed.pack].1?;
        Some(Object { location: Location::Packed(slot, packed.number), codec: packed.codec })
    }
}

impl Engine {
    /// Whether compressed pages go to devices as they are.
    pub(crate) fn packs(&self) -> bool {
        self.config.packs && self.stats.get(Counter::DeviceCapacityBytes) > 0
    }

    /// Writes what is lined up to slots of devices, as far as there are any. What was written
    /// counts in the index of the compressed tier: each object of [`Packing::location`] is to get
    /// an entry, or to be given up.
    pub(crate) fn write_packs(&self, packing: &mut Packing, buffer: &mut IoBuffer) {
        packing.end_pack(buffer);
        let Packing { objects, packs, writes, .. } = packing;
        // 1. Slots.
        writes.clear();
        let mut at = 0;
        while at < packs.len() {
            let Some(run) = self.devices.alloc_run((packs.len() - at).min(RUN_MAX)) else { break };
            for (slot, (page, to)) in run.slots().zip(&mut packs[at..]) {
                *to = Some(slot);
                line_up(writes, slot, *page, false);
            }
            at += run.len;
        }
        // 2. Out.
        let writing = self.hardship.writing();
        self.devices.write(buffer, writes);
        drop(writing);
        for write in writes.iter().filter(|write| write.result.is_err()) {
            let lost = |slot: SlotId| write.run.slots().any(|lost| lost == slot);
            packs
                .iter_mut()
                .filter(|(_, slot)| slot.is_some_and(lost))
                .for_each(|(_, slot)| *slot = None);
        }
        // 3. How many each has.
        for same in objects.chunk_by(|a, b| a.pack == b.pack) {
            if let Some(slot) = packs[same[0].pack].1 {
                self.zswap.set_packed(slot, same.len());
                self.stats.add(Counter::ZswapPacked, same.len() as u64);
                self.stats.add(Counter::ZswapPackedOut, same.len() as u64);
            }
        }
    }

    /// Gives up an object of the compressed tier that no entry names any more.
    pub(crate) fn free_object(&self, object: Object) {
        match object.location {
            Location::Memory(handle) => self.compressed.free(&self.frames, handle),
            Location::Packed(slot, _) => {
                self.stats.sub(Counter::ZswapPacked, 1);
                if self.zswap.take_packed(slot) {
                    self.devices.free(slot);
                }
            }
        }
    }

    /// Reads pages whose slots are on no device, into the buffer from page `at` on: those that lie
    /// in neighbouring slots of a device with one operation.
    pub(crate) fn load_packed(
        &self,
        run: SlotRun,
        context: &mut FaultContext,
        at: usize,
    ) -> Result<(), LoadError> {
        let mut objects = [None; FOLIO_MAX];
        // 1. What they are, which they stay while somebody reads them.
        for (slot, object) in run.slots().zip(&mut objects) {
            *object = self.zswap.begin_load(slot);
        }
        let loaded = self.load_announced(run, &objects, context, at);
        let announced = run.slots().zip(objects).filter(|(_, object)| object.is_some());
        announced.for_each(|(slot, _)| self.zswap.end_load(slot));
        loaded
    }

    fn load_announced(
        &self,
        run: SlotRun,
        objects: &[Option<Object>; FOLIO_MAX],
        context: &mut FaultContext,
        at: usize,
    ) -> Result<(), LoadError> {
        let FaultContext { buffer, packs, packed, decompressor, .. } = context;
        // The slots that have been read last.
        let mut read: Option<SlotRun> = None;
        for (i, slot) in run.slots().enumerate() {
            // 2. Whoever reads ahead may find one that is being stored just now; its owner does
            //    not.
            let object = objects[i].ok_or(LoadError::Corrupt)?;
            let data = match object.location {
                Location::Memory(handle) => {
                    let len = self
                        .compressed
                        .load(&self.frames, handle, packed)
                        .map_err(|_| LoadError::Corrupt)?;
                    &packed[..len]
                }
                // 3. One that went on to a device: its slot there, with those behind it that are
                //    wanted next.
                Location::Packed(pack, number) => {
                    let has = |read: &SlotRun| read.slots().position(|slot| slot == pack);
                    let place = match read.as_ref().and_then(has) {
                        Some(place) => place,
                        None => {
                            let mut wanted = SlotRun { first: pack, len: 1 };
                            for object in objects[i + 1..run.len].iter().flatten() {
                                match object.location {
                                    Location::Packed(next, _) if wanted.follows(next) => {
                                        wanted.len += 1
                                    }
                                    Location::Packed(next, _)
                                        if wanted.slots().any(|slot| slot == next) => {}
                                    _ => break,
                                }
                            }
                            self.devices.read(wanted, packs).map_err(LoadError::Read)?;
                            read = Some(wanted);
                            0
                        }
                    };
                    let pack = page_mut(packs, place);
                    unpack(pack, number.into(), slot.to_bits()).map_err(|_| LoadError::Corrupt)?
                }
            };
            let out = page_mut(&mut buffer[(at + i) << PAGE_SHIFT..], 0);
            decompressor.decompress(object.codec, data, out).map_err(|_| LoadError::Corrupt)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_packed_is_found_for_its_owner_only(
            lens in prop::collection::vec(1..PACK_BYTES_MAX, 1..40),
            damage in any::<prop::sample::Index>(),
        ) {
            let (mut packer, mut page) = (Packer::new(), Box::new([0xff; PAGE_SIZE]));
            let data: Vec<Vec<u8>> =
                lens.iter().enumerate().map(|(i, len)| (0..*len).map(|at| (at * 7 + i * 31) as u8).collect()).collect();
            let owner = |i: usize| 0xFEDC_0000_0000 + i as u64;
            let packed = data.iter().enumerate().take_while(|(i, data)| packer.push(owner(*i), data) == Some(*i)).count();
            // One more did not fit: it truly was too long.
            let used: usize = data[..packed].iter().map(|data| data.len() + TRAILER_BYTES).sum();
            prop_assert!(packed >= 2.min(data.len()) && used <= PAGE_SIZE);
            if let Some(next) = data.get(packed) {
                prop_assert!(packed == PACKED_MAX || used + next.len() + TRAILER_BYTES > PAGE_SIZE);
            }
            packer.take(&mut page);
            let mut all = Vec::new();
            prop_assert!(objects(&page, |number, owner, data| all.push((number as usize, owner, data.to_vec()))));
            let expected: Vec<_> = data[..packed].iter().enumerate().map(|(i, data)| (i, owner(i), data.clone())).collect();
            prop_assert_eq!(all, expected);
            for (i, data) in data[..packed].iter().enumerate() {
                prop_assert_eq!(unpack(&page, i, owner(i)).unwrap(), &data[..]);
                prop_assert!(unpack(&page, i, owner(i) + 1).is_err());
            }
            prop_assert!(unpack(&page, packed, owner(packed)).is_err() && unpack(&page, 1000, 0).is_err());
            // A changed bit reaches the object that it belongs to, and no other is given out wrong.
            let bit = damage.index(8 * PAGE_SIZE);
            page[bit / 8] ^= 1 << (bit % 8);
            for (i, data) in data[..packed].iter().enumerate() {
                prop_assert!(unpack(&page, i, owner(i)).is_ok_and(|found| found == &data[..]) || unpack(&page, i, owner(i)).is_err());
            }
            // The next page knows nothing of this one.
            packer.push(1, &[1]);
            packer.take(&mut page);
            prop_assert!(page[TRAILER_BYTES..PAGE_SIZE - 1].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn tiny_objects_are_as_many_as_their_numbers() {
        let mut packer = Packer::new();
        assert_eq!((0..).take_while(|i| packer.push(*i, &[1]).is_some()).count(), PACKED_MAX);
    }
}
