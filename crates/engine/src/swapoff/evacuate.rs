//! Moving the pages of a device elsewhere: what each thread of an evacuation does.
//!
//! Clusters are gone through in the order in which they lie on the device, a run of slots at a time, inside the gate of reclaim:
//!
//! 1. What is in the slots: pages that are nowhere else, compressed pages packed into them, or only what a copy in memory is
//!    for. Neighbours of one kind are a run.
//! 2. **Claim** each slot, by marking it in the slot index as one with I/O under way. From here on it stays in use, whatever becomes
//!    of its page; a fault on the page waits for this run alone, and who gives the page up leaves the slot to us.
//! 3. Read the run with one operation.
//! 4. Lock the pages, those whose words still name the slots: **only what is there under both the claim and the page lock is
//!    used**. So nothing that was read before a page changed is ever installed.
//! 5. To memory, into frames of the swap cache, while there is more than the low watermark; the rest to the tiers as pages that
//!    leave memory, by which it may be compressed, or written to another device.
//! 6. End the claim, and give the slots back as a range.
//!
//! The owner of a slot is in the reverse map of the slot index: a hint, which the page's word confirms.

use super::{Ending, Evacuation, LONG_PATIENCE, PATIENCE};
use crate::base::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex, SlotId};
use crate::cache::{Entry, GivenUp};
use crate::config::Config;
use crate::device::RUN_MAX;
use crate::engine::Engine;
use crate::frame::{Mobility, Need};
use crate::pack;
use crate::reclaim::Reclaimer;
use crate::slot::{Bitmap, CLUSTER_SLOTS, SlotRun};
use crate::stats::Counter;
use crate::sync::lock;
use crate::tier::{Batch, Pick, page_mut, runs_where};
use crate::word::{PageWord, State};
use crate::zswap::{Location, Object};
use overspill_os::Errno;
use overspill_os::fault_path::FaultPath;
use overspill_os::io::IoBuffer;
use overspill_os::thread;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// Pause between two passes over what is left: pages in other hands are there for a moment.
const PAUSE: Duration = Duration::from_millis(1);
/// Slots on no device that are taken at a time for compressed pages.
const FRESH_SLOTS: usize = 64;
/// Largest block of frames that a run is put into.
const BLOCK_ORDER: u32 = 8;

/// What a thread of an evacuation works with.
#[derive(Debug)]
pub struct Bench {
    /// A run as it was read.
    buffer: IoBuffer,
    run_max: usize,
    /// For what does not fit in memory.
    batch: Batch,
    /// Slots on no device.
    fresh: Option<SlotRun>,
}

impl Bench {
    /// For runs of up to `run` pages, of which those that do not fit in memory are stored `batch` at a time.
    pub fn new(run: usize, batch: usize, config: &Config) -> Result<Bench, Errno> {
        let batch = Batch::new(batch, config.zswap_codec, config.zswap_recompress.codec())?;
        Ok(Bench { buffer: IoBuffer::new(run)?, run_max: run, batch, fresh: None })
    }

    /// Gives back what it has of the engine's.
    pub fn give_back(self, engine: &Engine) {
        self.fresh.into_iter().for_each(|run| engine.devices.free_run(run));
    }
}

/// What a slot in use has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    /// A page that is nowhere else.
    Page,
    /// Compressed pages whose slots are on no device.
    Pack,
    /// Nothing: its page is compressed in memory.
    Compressed,
    /// A page that was read ahead.
    ReadAhead,
    /// A page that is in memory too.
    Clean,
    /// Somebody is at it.
    Busy,
}

/// Which of the slots of a run something is so of.
type Which = [bool; RUN_MAX];

/// What became of a run.
#[derive(Default)]
struct Moved {
    pages: usize,
    /// There was no room for some of them.
    full: bool,
}

impl Evacuation {
    /// The next cluster to be looked at: which of the devices, and its number there. `None` when nothing is left, or no more can
    /// be done.
    fn next_cluster(&self, engine: &Engine) -> Option<(usize, u32)> {
        let total: u64 = self.devices.iter().map(|device| device.clusters.len() as u64).sum();
        if total == 0 || !self.is_going() || engine.stop.load(Relaxed) {
            return None;
        }
        let next = self.next.fetch_add(1, Relaxed);
        if next >= total {
            // What was in other hands the last time, or had no room.
            if self.left() == 0 {
                return None;
            }
            if next.is_multiple_of(total) {
                self.rest(engine);
            }
        }
        let mut at = (next % total) as usize;
        let device = self.devices.iter().position(|device| {
            let here = at < device.clusters.len();
            at -= if here { 0 } else { device.clusters.len() };
            here
        })?;
        Some((device, self.devices[device].clusters[at]))
    }

    /// Before another pass: gives up if there was no progress for too long.
    fn rest(&self, engine: &Engine) {
        thread::sleep(PAUSE);
        let still = self.began.elapsed().saturating_sub(Duration::from_millis(self.progress_ms.load(Relaxed)));
        let patience = if self.full.load(Relaxed) { PATIENCE.min(engine.config.oom_wait.0 / 2) } else { LONG_PATIENCE };
        if still > patience {
            self.end(Ending::NoRoom);
        }
    }

    fn note(&self, engine: &Engine, moved: &Moved) {
        if moved.pages > 0 {
            self.moved.fetch_add(moved.pages as u64, Relaxed);
            self.progress_ms.store(self.began.elapsed().as_millis() as u64, Relaxed);
            self.full.store(false, Relaxed);
            engine.stats.add(Counter::SwapoffPages, moved.pages as u64);
        }
        if moved.full {
            self.full.store(true, Relaxed);
            // The program must not fail for want of the room that the device has.
            if engine.hardship.is_beyond(engine.config.oom_wait.0 / 4) {
                self.end(Ending::NoRoom);
            }
        }
    }
}

impl Engine {
    /// The body of a thread of an evacuation.
    pub(super) fn evacuate(&self, evacuation: &Evacuation, number: usize) {
        while let Some((device, cluster)) = evacuation.next_cluster(self) {
            let mut at = 0;
            while at < CLUSTER_SLOTS && evacuation.is_going() {
                // A fork finds no lock taken, and no slot claimed.
                let _inside = self.reclaim_gate.enter();
                let retired = &evacuation.devices[device];
                let Some(area) = retired.area() else { break };
                let mut bench = lock(&evacuation.benches[number]);
                let Some(bench) = &mut *bench else { break };
                let first = SlotId::new(retired.device, u64::from(cluster) * CLUSTER_SLOTS as u64);
                let Some((run, holds)) = self.next_run(&area.slots().used_in(cluster), first, at, bench.run_max) else {
                    break;
                };
                at = (run.first.offset() - first.offset()) as usize + run.len;
                let _mark = FaultPath::enter();
                let moved = match holds {
                    Holds::Page => self.move_run(evacuation, bench, run),
                    Holds::Pack => self.move_packs(evacuation, bench, run),
                    Holds::Compressed => self.move_compressed(bench, run.first),
                    Holds::ReadAhead => self.keep_read_ahead(run.first),
                    Holds::Clean => self.leave_clean(run.first),
                    Holds::Busy => Moved::default(),
                };
                evacuation.note(self, &moved);
                self.kick_background();
                if moved.full {
                    // Others may have room to give: those that were not used for longest.
                    self.reclaim(&mut bench.batch, run.len, Reclaimer::Background);
                }
            }
        }
        self.pressures.note_ended_thread();
        evacuation.working.fetch_sub(1, Release);
        self.swaps.due.store(true, Release);
        self.kick_background();
    }

    /// The next run of a cluster, from slot `from` of it on: neighbouring slots in use that hold the same.
    fn next_run(&self, used: &Bitmap, first: SlotId, from: usize, most: usize) -> Option<(SlotRun, Holds)> {
        let is_used = |at: &usize| used[at / 64] >> (at % 64) & 1 != 0;
        let start = (from..CLUSTER_SLOTS).find(is_used)?;
        let holds = self.holds(first.advance(start as u64));
        let together = matches!(holds, Holds::Page | Holds::Pack);
        let end = if together { CLUSTER_SLOTS.min(start + most) } else { start + 1 };
        let more = (start + 1..end).take_while(|at| is_used(at) && self.holds(first.advance(*at as u64)) == holds);
        Some((SlotRun { first: first.advance(start as u64), len: 1 + more.count() }, holds))
    }

    fn holds(&self, slot: SlotId) -> Holds {
        match self.index.load(slot) {
            _ if self.zswap.packed(slot) > 0 => Holds::Pack,
            Entry::Shadow(_) if self.zswap.contains(slot) => Holds::Compressed,
            Entry::Shadow(_) => Holds::Page,
            Entry::Frame(..) => Holds::ReadAhead,
            Entry::Clean => Holds::Clean,
            Entry::None | Entry::Busy(_) | Entry::Abandoned | Entry::Lost => Holds::Busy,
        }
    }

    // ---- Pages ----

    /// Moves pages that are on the device only.
    fn move_run(&self, evacuation: &Evacuation, bench: &mut Bench, run: SlotRun) -> Moved {
        // 1. Claim.
        let mut claimed = [false; RUN_MAX];
        self.index.begin_io(run, &mut claimed);
        let mut moved = Moved::default();
        for part in runs_where(run, |i| claimed[i]) {
            // 2. Read.
            let (mut has, mut lost) = ([false; RUN_MAX], [false; RUN_MAX]);
            self.read_run(evacuation, part, &mut bench.buffer, &mut has, &mut lost);
            // 3. Elsewhere.
            let mut gone = [false; RUN_MAX];
            moved.full |= self.put_elsewhere(bench, part, &has, &mut gone, |slot| self.zswap.look_up(slot).is_none());
            for (i, slot) in part.slots().enumerate().filter(|(i, _)| lost[*i]) {
                gone[i] = self.lose(evacuation, slot);
            }
            // 4. The slots.
            moved.pages += gone.iter().filter(|gone| **gone).count();
            self.end_claim(part, &gone);
        }
        moved
    }

    /// Reads a run of slots that are in use: which are in the buffer now, each at its place in the run, and which cannot be had.
    fn read_run(
        &self,
        evacuation: &Evacuation,
        run: SlotRun,
        buffer: &mut IoBuffer,
        has: &mut Which,
        lost: &mut Which,
    ) {
        let mut at = 0;
        while at < run.len {
            let rest = SlotRun { first: run.first.advance(at as u64), len: run.len - at };
            evacuation.read_ops.fetch_add(1, Relaxed);
            self.stats.add(Counter::SwapoffReadOps, 1);
            let read = match self.devices.read(rest, &mut buffer[at << PAGE_SHIFT..]) {
                Ok(()) => rest.len,
                Err(error) => {
                    let good = (error.offset_bytes >> PAGE_SHIFT).saturating_sub(rest.first.offset()) as usize;
                    lost[at + good] = true;
                    good
                }
            };
            has[at..at + read].fill(true);
            evacuation.read_pages.fetch_add(read as u64, Relaxed);
            self.stats.add(Counter::SwapoffRead, read as u64);
            at += read + 1;
        }
    }

    /// Puts pages of a claimed run, whose contents are in the buffer, elsewhere: those that still are what `is_still` says.
    /// Notes which are gone from their slots; whether there was no room for some.
    fn put_elsewhere(
        &self,
        bench: &mut Bench,
        run: SlotRun,
        has: &Which,
        gone: &mut Which,
        is_still: impl Fn(SlotId) -> bool,
    ) -> bool {
        // 1. Lock those that are still there. It has been so since the claim.
        let mut pages = [None; RUN_MAX];
        for (i, slot) in run.slots().enumerate().filter(|(i, _)| has[*i]) {
            pages[i] = self.lock_owner(slot, &is_still);
        }
        // 2. To memory.
        let Bench { buffer, batch, .. } = bench;
        self.place_in_memory(buffer, run, &mut pages, gone);
        // 3. To the tiers.
        let mut full = false;
        let mut at = 0;
        while at < run.len {
            batch.picks.clear();
            while at < run.len && batch.has_room() {
                if let Some(page) = pages[at] {
                    batch.picks.push(Pick::new(page, State::Stored(run.first.advance(at as u64)), None));
                }
                at += 1;
            }
            let place = |from: State| match from {
                State::Stored(slot) => (slot.offset() - run.first.offset()) as usize,
                other => unreachable!("{other:?} is not on a device"),
            };
            if !full && !batch.picks.is_empty() {
                self.store_batch(batch, |pick, out| {
                    out.copy_from_slice(&buffer[place(pick.from) << PAGE_SHIFT..][..PAGE_SIZE]);
                    true
                });
            }
            for pick in &batch.picks {
                let word = self.words.load(pick.page);
                gone[place(pick.from)] = pick.stored.is_some();
                full |= pick.stored.is_none();
                self.words.unlock_as(pick.page, pick.stored.map_or(word, |stored| word.with_state(stored)));
            }
        }
        full
    }

    /// Locks the page of a slot, if its word says that it is there.
    fn lock_owner(&self, slot: SlotId, is_still: impl Fn(SlotId) -> bool) -> Option<PageIndex> {
        let page = self.index.owner(slot);
        let word = self.words.try_lock_if(page, |w| w.state() == State::Stored(slot))?;
        if is_still(slot) {
            return Some(page);
        }
        self.words.unlock_as(page, word);
        None
    }

    /// Puts locked pages into the swap cache, as far as there are frames above the low watermark, and takes them out of `pages`.
    fn place_in_memory(
        &self,
        buffer: &IoBuffer,
        run: SlotRun,
        pages: &mut [Option<PageIndex>; RUN_MAX],
        gone: &mut Which,
    ) {
        let mut at = 0;
        while at < run.len {
            let together = pages[at..run.len].iter().take_while(|page| page.is_some()).count();
            if together == 0 {
                at += 1;
                continue;
            }
            let Some(block) = self.take_block(together) else { return };
            self.frames.fill(FrameId(block.start), &buffer[at << PAGE_SHIFT..][..block.len() << PAGE_SHIFT]);
            // Those that follow one another are as one in the lists of the swap cache.
            let ours = at..at + block.len();
            let mut next = at;
            while next < ours.end {
                let first = pages[next].expect("it is one of those together");
                let more = (next + 1..ours.end).take_while(|i| pages[*i] == Some(PageIndex(first.0 + i - next)));
                let count = 1 + more.count();
                self.ages.add_run(first, FrameId(block.start + (next - at) as u32), count);
                next += count;
            }
            for (i, frame) in ours.clone().zip(block) {
                let page = pages[i].take().expect("it is one of those together");
                let word = self.words.load(page).with_state(State::Cached(FrameId(frame)));
                self.words.unlock_as(page, word);
                gone[i] = true;
            }
            at = ours.end;
        }
    }

    /// Frames for up to so many pages: a block of them.
    fn take_block(&self, pages: usize) -> Option<Range<u32>> {
        let spare = self.budget().free_pages().saturating_sub(self.budget().low()) as usize;
        let largest = pages.min(spare).checked_ilog2()?.min(BLOCK_ORDER);
        let take = |order: u32| {
            let first = self.frames.allocator.alloc(order as u8, Mobility::Reclaimable, Need::Fault)?;
            Some(first.0..first.0 + (1 << order))
        };
        (0..=largest).rev().find_map(take)
    }

    /// A page cannot be read: it has no place any more but one that says so. Whether it still was there.
    fn lose(&self, evacuation: &Evacuation, slot: SlotId) -> bool {
        // What is being stored just now is not on the device yet.
        let is_still = |slot| self.zswap.look_up(slot).is_none();
        let Some(page) = self.lock_owner(slot, is_still) else { return false };
        let to = self.lost_slot(page);
        let word = self.words.load(page);
        self.words.unlock_as(page, to.map_or(word, |to| word.with_state(State::Stored(to))));
        if to.is_some() {
            self.note_lost(evacuation);
        }
        to.is_some()
    }

    /// A slot on no device that says that the page, whose lock the caller holds, is lost.
    fn lost_slot(&self, page: PageIndex) -> Option<SlotId> {
        let SlotRun { first: slot, .. } = self.devices.alloc_in_memory(1)?;
        self.index.set_owner(slot, page);
        self.index.lost(slot);
        Some(slot)
    }

    fn note_lost(&self, evacuation: &Evacuation) {
        evacuation.lost.fetch_add(1, Relaxed);
        self.stats.add(Counter::SwapoffLost, 1);
    }

    /// Ends the claim on a run, of which some pages are `gone`: their slots are given back, and those that were given up meanwhile.
    fn end_claim(&self, run: SlotRun, gone: &Which) {
        let mut done = [GivenUp::Later; RUN_MAX];
        for part in runs_where(run, |i| gone[i]) {
            self.index.give_up(part, &mut done);
        }
        let mut still = [true; RUN_MAX];
        self.index.end_io(run, &[None; RUN_MAX], &mut still);
        for part in runs_where(run, |i| !still[i]) {
            self.give_back(part, None);
        }
    }

    // ---- What is in memory as well ----

    /// A page that was read ahead is in the swap cache without its slot.
    fn keep_read_ahead(&self, slot: SlotId) -> Moved {
        let Some(page) = self.lock_owner(slot, |_| true) else { return Moved::default() };
        let word = self.words.load(page);
        let Some(frame) = self.index.take_frame(slot) else {
            self.words.unlock_as(page, word);
            return Moved::default();
        };
        if self.zswap.contains(slot) {
            // It was read while the page was being stored, which is compressed: on the device there was another.
            self.ages.remove(frame);
            self.frames.give_one(frame);
            self.words.unlock_as(page, word);
            return Moved::default();
        }
        self.ages.change_owner(frame, page);
        self.words.unlock_as(page, word.with_state(State::Cached(frame)));
        self.forget(State::Stored(slot));
        Moved { pages: 1, full: false }
    }

    /// A page in memory that is as it is on the device has no copy there any more: the next write to it finds out that it is
    /// protected for nothing.
    fn leave_clean(&self, slot: SlotId) -> Moved {
        let page = self.index.owner(slot);
        let has_copy = |w: PageWord| match w.state() {
            State::Resident(frame) | State::Cached(frame) => w.is_clean() && self.copy_of(frame) == State::Stored(slot),
            _ => false,
        };
        let Some(word) = self.words.try_lock_if(page, has_copy) else { return Moved::default() };
        self.drop_copy(word);
        self.words.unlock_as(page, word.clean(false));
        Moved { pages: 1, full: false }
    }

    /// A page that is compressed in memory gets a slot on no device.
    fn move_compressed(&self, bench: &mut Bench, slot: SlotId) -> Moved {
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
            self.words.unlock_as(page, stored.map_or(word, |to| word.with_state(State::Stored(to))));
            if !gone[0] {
                full = !self.unpack(bench, run, object, &mut gone);
            }
        }
        self.end_claim(run, &gone);
        Moved { pages: gone[0].into(), full }
    }

    /// Copies the object of a locked page for a slot on no device; which one. The page of a damaged one is lost: its reader will
    /// hear of it.
    fn copy_object(&self, bench: &mut Bench, object: Object, page: PageIndex) -> Option<SlotId> {
        let Bench { batch, fresh, .. } = bench;
        let Ok(len) = self.compressed.load(&self.frames, object.handle()?, &mut batch.packed) else {
            return self.lost_slot(page);
        };
        let next = fresh.take().or_else(|| self.devices.alloc_in_memory(FRESH_SLOTS))?;
        let to = next.first;
        match self.compressed.store_smaller(&self.frames, to.to_bits(), &batch.packed[..len]) {
            Ok(handle) => {
                *fresh = (next.len > 1).then(|| SlotRun { first: to.advance(1), len: next.len - 1 });
                self.index.set_owner(to, page);
                self.insert_objects(&[Some(Object::in_memory(handle, object.codec))], SlotRun { first: to, len: 1 });
                Some(to)
            }
            Err(_) => {
                *fresh = Some(next);
                None
            }
        }
    }

    /// Unpacks the page of a claimed slot, whose object is in memory, and puts it elsewhere; whether there was room.
    fn unpack(&self, bench: &mut Bench, run: SlotRun, object: Object, gone: &mut Which) -> bool {
        let slot = run.first;
        if !self.zswap.begin_load_of(slot, object) {
            return true;
        }
        let Bench { buffer, batch, .. } = bench;
        let Batch { packed, decompressor, .. } = batch;
        let unpacked = object.handle().is_some_and(|handle| {
            let len = self.compressed.load(&self.frames, handle, packed);
            len.is_ok_and(|len| decompressor.decompress(object.codec, &packed[..len], page_mut(buffer, 0)).is_ok())
        });
        self.zswap.end_load(slot);
        let mut has = [false; RUN_MAX];
        has[0] = unpacked;
        unpacked && !self.put_elsewhere(bench, run, &has, gone, |slot| self.zswap.look_up(slot) == Some(object))
    }

    // ---- Packs ----

    /// Moves the compressed pages that are packed into slots of the device back into the tier, or where it has no room, unpacked,
    /// elsewhere.
    fn move_packs(&self, evacuation: &Evacuation, bench: &mut Bench, run: SlotRun) -> Moved {
        let (mut has, mut lost) = ([false; RUN_MAX], [false; RUN_MAX]);
        // A slot whose last object goes meanwhile is not handed out again while its device is retired.
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
                    if self.zswap.finish_load(slot, object, Some(new), self.evictions.load(Relaxed)) {
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
        let Some(page) = self.lock_owner(slot, |slot| self.zswap.look_up(slot) == Some(object)) else {
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
