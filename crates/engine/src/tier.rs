//! The tiers behind memory: storing a batch of pages, loading one back, forgetting one.
//!
//! A page that leaves memory becomes a fill value, a compressed object, or a page on a device, in this order of
//! preference. Until its batch is committed by the caller it is also still where it was.

use crate::base::{FrameId, PAGE_SIZE, PageIndex, SlotId};
use crate::cache::{GivenUp, Stamp};
use crate::compressed::Handle;
use crate::config::FOLIO_MAX;
use crate::device::RunWrite;
use crate::engine::Engine;
use crate::fill;
use crate::slot::SlotRun;
use crate::stats::Counter;
use crate::word::State;
use overspill_os::Errno;
use overspill_os::codec::{Codec, Compressor, Decompressor};
use overspill_os::io::IoBuffer;
use overspill_os::vm::IoVec;
use std::sync::atomic::Ordering::Relaxed;

/// Compressed size from which a page goes to a device instead, where there is one: 3/4 of a page. Above, the
/// frame saved is less than a quarter, for 4 us of compression and 2 us of decompression each way.
const WORTH_BYTES: usize = 3072;
/// The same where there is no device: the largest class that still puts nine objects where eight pages were.
const WORTH_BYTES_NO_DEVICE: usize = 3632;

/// A page chosen to leave, and where it went.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    /// The page.
    pub page: PageIndex,
    /// Where its content lies now: in place, or in a frame of the swap cache.
    pub from: State,
    /// Where it was stored; `None` if nothing took it.
    pub stored: Option<State>,
    /// Its copy on a device, if that is as good.
    pub copy: Option<State>,
    /// Its place among the pages to be written to a device.
    raw: Option<u32>,
}

impl Pick {
    /// A page to be stored.
    pub fn new(page: PageIndex, from: State, copy: Option<State>) -> Pick {
        Pick { page, from, stored: None, copy, raw: None }
    }
}

/// What a reclaiming thread works with: made with the pool, so that nothing is allocated under pressure.
#[derive(Debug)]
pub struct Batch {
    /// The pages of the batch.
    pub picks: Vec<Pick>,
    /// Ranges to drop.
    pub ranges: Vec<IoVec>,
    /// Frames to free.
    pub frames: Vec<crate::base::FrameId>,
    buffer: IoBuffer,
    packed: Box<[u8; PAGE_SIZE]>,
    writes: Vec<RunWrite>,
    compressor: Compressor,
    decompressor: Decompressor,
    pages: usize,
}

impl Batch {
    /// For batches of up to `pages` pages, packed by `codec`.
    pub fn new(pages: usize, codec: Codec) -> Result<Batch, Errno> {
        Ok(Batch {
            picks: Vec::with_capacity(pages),
            ranges: Vec::with_capacity(pages),
            frames: Vec::with_capacity(pages),
            buffer: IoBuffer::new(pages)?,
            packed: Box::new([0; PAGE_SIZE]),
            writes: Vec::with_capacity(pages),
            compressor: Compressor::new(codec)?,
            decompressor: Decompressor::new(&[codec])?,
            pages,
        })
    }

    /// Most pages of a batch.
    pub fn capacity(&self) -> usize {
        self.pages
    }

    /// Whether there is room for another page.
    pub fn has_room(&self) -> bool {
        self.picks.len() < self.pages
    }
}

/// One page of a buffer.
pub fn page_mut(buffer: &mut [u8], index: usize) -> &mut [u8; PAGE_SIZE] {
    (&mut buffer[index * PAGE_SIZE..(index + 1) * PAGE_SIZE]).try_into().expect("a page is PAGE_SIZE bytes")
}

/// Why a page could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// A device failed to give it back; the sentence says which and where.
    Read,
    /// Its compressed copy does not decompress: a bug, or broken memory.
    Corrupt,
}

impl Engine {
    /// Stores every page of the batch that a tier takes; `read` copies a page's content, or says that it is gone.
    pub(crate) fn store_batch(&self, batch: &mut Batch, mut read: impl FnMut(&Pick, &mut [u8; PAGE_SIZE]) -> bool) {
        let has_device = self.devices.capacity_pages() > 0;
        let worth = match self.config.zswap_codec {
            Codec::None => PAGE_SIZE,
            _ if has_device => WORTH_BYTES,
            _ => WORTH_BYTES_NO_DEVICE,
        };
        let mut raw = 0;
        // 1. Fill values and compressed objects at once; the rest is lined up in the buffer.
        for pick in &mut batch.picks {
            let page = page_mut(&mut batch.buffer, raw);
            (pick.stored, pick.raw) = (pick.copy, None);
            if pick.copy.is_some() || !read(pick, page) {
                continue;
            }
            if let Some(value) = fill::same_filled(page) {
                pick.stored = Some(State::Filled(value));
                self.stats.add(Counter::SameFilledOut, 1);
                self.stats.add(Counter::SameFilledPages, 1);
                continue;
            }
            if self.config.compressed_max_percent > 0
                && let Some(len) = batch.compressor.compress(page, &mut batch.packed[..worth])
                && let Ok(handle) = self.compressed.store(&self.frames, 0, &batch.packed[..len])
            {
                pick.stored = Some(State::Compressed(handle));
                self.stats.add(Counter::ZswpOut, 1);
                continue;
            }
            if has_device {
                pick.raw = Some(raw as u32);
                raw += 1;
            }
        }
        // 2. What is lined up is written in runs.
        if raw > 0 {
            self.stats.add(Counter::CompressRefused, raw as u64);
            self.write_raw(batch, raw);
        }
        self.publish_tiers();
    }

    /// Writes the compressed pages of the batch to devices as they were before compression.
    pub(crate) fn store_raw(&self, batch: &mut Batch) {
        let mut raw = 0;
        for pick in &mut batch.picks {
            (pick.stored, pick.raw) = (None, None);
            let page = page_mut(&mut batch.buffer, raw);
            if self.load_page(pick.from, &mut batch.packed, &mut batch.decompressor, page).is_ok() {
                pick.raw = Some(raw as u32);
                raw += 1;
            }
        }
        if raw > 0 {
            self.write_raw(batch, raw);
        }
        self.publish_tiers();
    }

    fn write_raw(&self, batch: &mut Batch, pages: usize) {
        batch.writes.clear();
        let mut at = 0;
        while at < pages {
            let Some(run) = self.devices.alloc_run(pages - at) else { break };
            batch.writes.push(RunWrite { run, buffer_page: at, result: Ok(()) });
            at += run.len;
        }
        self.devices.write(&batch.buffer, &mut batch.writes);
        let now = self.stamp(at);
        for write in batch.writes.iter().filter(|write| write.result.is_ok()) {
            self.index.stored(write.run, now);
        }
        for pick in &mut batch.picks {
            let Some(raw) = pick.raw.map(|raw| raw as usize) else { continue };
            let of = |w: &&RunWrite| (w.buffer_page..w.buffer_page + w.run.len).contains(&raw);
            if let Some(write) = batch.writes.iter().find(of)
                && write.result.is_ok()
            {
                pick.stored = Some(State::Stored(write.run.first.advance((raw - write.buffer_page) as u64)));
            }
        }
    }

    /// Stores a second copy of a compressed object, in a chunk of the pool's choice.
    pub(crate) fn store_again(&self, batch: &mut Batch, object: Handle) -> Option<Handle> {
        let len = self.compressed.load(&self.frames, object, &mut batch.packed).ok()?;
        self.compressed.store(&self.frames, 0, &batch.packed[..len]).ok()
    }

    /// Copies the content of a page that is not on a device into `out`.
    pub(crate) fn load_page(
        &self,
        state: State,
        packed: &mut [u8; PAGE_SIZE],
        decompressor: &mut Decompressor,
        out: &mut [u8; PAGE_SIZE],
    ) -> Result<(), LoadError> {
        match state {
            State::Empty => out.fill(0),
            State::Filled(value) => fill::fill(out, value),
            State::Compressed(handle) => {
                let len = self.compressed.load(&self.frames, handle, packed).map_err(|_| LoadError::Corrupt)?;
                let codec = self.config.zswap_codec.id();
                decompressor.decompress(codec, &packed[..len], out).map_err(|_| LoadError::Corrupt)?;
            }
            State::Cached(frame) => self.frames.arena.read(frame.0, 0, out),
            State::Resident(_) | State::Evicting(_) | State::Stored(_) => {
                unreachable!("{state:?} is not loaded from here")
            }
        }
        Ok(())
    }

    /// Reads `pages` pages from consecutive slots into the first pages of `buffer`.
    pub(crate) fn load_slots(&self, first: SlotId, pages: usize, buffer: &mut IoBuffer) -> Result<(), LoadError> {
        let run = SlotRun { first, len: pages };
        self.devices.read(run, buffer).map_err(|error| {
            // Of several pages another one may be the reader's: it is asked for alone next.
            if pages == 1 {
                self.report_once(format_args!("a page cannot be read back, the program gets SIGBUS for it: {error}"));
            }
            LoadError::Read
        })
    }

    /// When `pages` pages leave for devices, which is now.
    pub(crate) fn stamp(&self, pages: usize) -> Stamp {
        Stamp::new(self.evictions.fetch_add(pages as u64, Relaxed))
    }

    /// Gives up the stored copy of a page, if it has one outside memory: it was loaded, or nobody wants it.
    pub(crate) fn forget(&self, state: State) {
        match state {
            State::Filled(_) => self.stats.sub(Counter::SameFilledPages, 1),
            State::Compressed(handle) => self.compressed.free(&self.frames, handle),
            State::Stored(slot) => self.forget_run(SlotRun { first: slot, len: 1 }),
            State::Empty | State::Resident(_) | State::Evicting(_) | State::Cached(_) => {}
        }
    }

    /// Gives up the slots of a run of up to [`FOLIO_MAX`] pages, and what was read ahead of them.
    pub(crate) fn forget_run(&self, run: SlotRun) {
        let mut done = [GivenUp::Now(None); FOLIO_MAX];
        self.index.give_up(run, &mut done);
        if done[..run.len].iter().all(|done| *done == GivenUp::Now(None)) {
            self.devices.free_run(run);
            return;
        }
        for (slot, done) in run.slots().zip(done) {
            if let GivenUp::Now(frame) = done {
                self.give_back(SlotRun { first: slot, len: 1 }, frame);
            }
        }
    }

    /// Gives back slots that nobody knows any more, and a frame of the swap cache.
    pub(crate) fn give_back(&self, run: SlotRun, frame: Option<FrameId>) {
        if let Some(frame) = frame {
            self.ages.remove(frame);
            self.frames.give_one(frame);
        }
        self.devices.free_run(run);
    }

    /// Brings the gauges of the tiers up to date.
    pub(crate) fn publish_tiers(&self) {
        self.stats.set(Counter::CompressedPages, self.compressed.stored_objects() as u64);
        self.stats.set(Counter::CompressedBytes, self.compressed.stored_bytes() as u64);
        self.stats.set(Counter::CompressedPoolBytes, self.compressed.pool_bytes() as u64);
    }
}
