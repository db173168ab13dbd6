//! Serving a fault: from the page's word to an installed page.
//!
//! The same code serves both deliveries ([`delivery`]). It allocates nothing, takes no lock that
//! the program's own calls hold while they can fault, and touches no managed memory. Neighbouring
//! pages come in beside the faulting one as a folio while a thread goes through memory in sequence
//! ([`readahead`], [`folio`]), else not.
//!
//! It owns the buffers that faults are served with, the stacks on which the program's threads run
//! engine code, and the streams of sequential faults.
//!
//! Locks: a fault holds its buffers, and then the locks of its pages, which it only tries.
//!
//! Below it: reclaim, which a fault without a frame calls; swap, which loads pages; memory.

pub mod delivery;
pub mod folio;
pub mod readahead;
pub mod settings;

use crate::base::Base;
use crate::base::buffers::Buffers;
use crate::base::costs::Choice;
use crate::base::lockdep::Rank;
use crate::frame::Need;
use crate::memory::Memory;
use crate::memory::extent::EXTENT_PAGES;
use crate::memory::frames::zeros;
use crate::memory::word::{PageWord, State};
use crate::reclaim::Reclaim;
use crate::slot::SlotRun;
use crate::stats::Stats;
use crate::stats::{Counter, FaultSource};
use crate::swap::Entry;
use crate::swap::Swap;
use crate::swap::fill;
use crate::swap::store::{LoadError, runs_where};
use crate::units::FOLIO_MAX;
use crate::units::page_mut;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex, SlotId};
use crate::workingset::WorkingSet;
use folio::Folios;
use overspill_os::Errno;
use overspill_os::backing::Backing;
use overspill_os::codec::{Codec, Decompressor};
use overspill_os::cpu;
use overspill_os::fault_path::FaultPath;
use overspill_os::io::IoBuffer;
use overspill_os::stack::EngineStacks;
use overspill_os::uffd::{Stop, Transferred};
use overspill_os::vm::IoVec;
use readahead::{Streams, Window};
use settings::{Delivery, FaultSettings, WayIn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Frames that were copied from and wait to be dropped together, one flush for so many, and how
/// many do in all contexts together: well below the reserve.
const SPENT_MAX: usize = 32;
const SPENT_IN_ALL: usize = 64;

/// A page that is back before a quarter of what fits in memory has left is hot. Measured with 280
/// MiB for 512 MiB, half a dozen runs each: where all copies are kept a Zipf load misses a seventh
/// more; where none is that is back within all of memory, a load that reads at random packs twice
/// as many pages again.
const HOT_SHARE: u64 = 4;

/// What a thread that serves faults works with; made with the pool.
#[derive(Debug)]
pub struct FaultContext {
    /// The thread whose fault is served.
    pub thread: i32,
    /// Where its page comes from.
    source: FaultSource,
    /// How many pages it brought in.
    installed: usize,
    /// Pages as they come from a device, or out of a compressed copy.
    pub buffer: IoBuffer,
    pub(crate) packed: Box<[u8; PAGE_SIZE]>,
    pub(crate) decompressor: Decompressor,
    /// Frames taken for the pages of the fault.
    frames: Vec<FrameId>,
    spent: Vec<FrameId>,
    ranges: Vec<IoVec>,
}

impl FaultContext {
    /// For folios of up to `folio` pages, and `around` pages read at once around a missing one;
    /// compressed by any of `codecs`.
    pub fn new(folio: usize, around: usize, codecs: &[Codec]) -> Result<FaultContext, Errno> {
        Ok(FaultContext {
            thread: 0,
            source: FaultSource::default(),
            installed: 0,
            buffer: IoBuffer::new(folio.max(around))?,
            packed: Box::new([0; PAGE_SIZE]),
            decompressor: Decompressor::new(codecs)?,
            frames: Vec::with_capacity(folio),
            spent: Vec::with_capacity(SPENT_MAX),
            ranges: Vec::with_capacity(SPENT_MAX),
        })
    }

    /// Frames that wait to be dropped.
    #[cfg(debug_assertions)]
    pub fn spent(&self) -> usize {
        self.spent.len()
    }
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The access can be repeated.
    Done,
    /// The page is somebody else's just now, or reclaim stands still for a fork: serve it again a
    /// little later.
    Busy,
    /// There is no frame for it: reclaim, and serve it again ([`crate::reclaim::direct`]).
    NoRoom,
    /// It cannot be served; the program is to get SIGBUS.
    Failed,
    /// The page is none of the engine's: the kernel says what the access is to meet.
    Foreign,
}

/// What the program was about to do.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// A store.
    pub write: bool,
    /// Stopped by protection, or perhaps by it.
    pub protected: bool,
}

/// What of a run was brought in.
struct Loaded {
    pages: usize,
    /// Write-protected, and as it is on the device.
    clean: bool,
    /// A page alone is not under the engine's userfaultfd.
    foreign: bool,
}

/// What became of the request for a page of budget.
enum Room {
    Taken,
    /// There is none before something is reclaimed.
    ToReclaim,
    /// There is none while a fork has stopped reclaim.
    Later,
    /// There is none for good.
    Never,
}

/// What serves faults.
pub struct Fault {
    base: Arc<Base>,
    stats: Stats,
    settings: FaultSettings,
    memory: Arc<Memory>,
    workingset: Arc<WorkingSet>,
    swap: Arc<Swap>,
    reclaim: Arc<Reclaim>,
    contexts: Buffers<FaultContext>,
    /// Frames that stand for their buffers.
    #[cfg(debug_assertions)]
    pub charged: usize,
    stacks: EngineStacks,
    streams: Streams,
    window_around: Window,
    /// Way in from the swap cache: copying (0) or moving (1), by log2 of the run.
    way_in: [Choice; 7],
}

/// Stacks for threads that are inside the engine at the same time; the next one waits.
const STACKS: usize = 64;

impl Fault {
    /// With buffers for as many faults at once as processors and delivery make sense of.
    pub fn new(
        base: &Arc<Base>,
        reclaim: &Arc<Reclaim>,
        swap: &Arc<Swap>,
        memory: &Arc<Memory>,
        workingset: &Arc<WorkingSet>,
        settings: FaultSettings,
        stats: Stats,
    ) -> Result<Fault, Errno> {
        let contexts = match settings.delivery {
            Delivery::Signal => 2 * cpu::available().clamp(2, 32),
            Delivery::Thread => 1,
        };
        let folios = Folios::new(settings.folio, memory.budget().limit() as usize, contexts);
        let folio = folios.memory.max(folios.device);
        let contexts = Buffers::new(Rank::FaultContext, contexts, || {
            FaultContext::new(folio, settings.readahead_max, &swap.settings.codecs())
        })?;
        let charged = contexts.len() * folio;
        memory.charge_buffers(charged);
        Ok(Fault {
            base: base.clone(),
            stats,
            memory: memory.clone(),
            workingset: workingset.clone(),
            swap: swap.clone(),
            // A stack for each that reclaims for itself, beside those for everything else.
            stacks: EngineStacks::new(STACKS + reclaim.direct_count())?,
            reclaim: reclaim.clone(),
            contexts,
            #[cfg(debug_assertions)]
            charged,
            streams: Streams::new(folios),
            window_around: Window::default(),
            way_in: std::array::from_fn(|_| Choice::default()),
            settings,
        })
    }

    /// In the child of a fork: nobody is on a stack.
    pub fn reset_in_child(&self) {
        self.stacks.reset_in_child();
    }

    /// Frames that contexts hold until they are dropped with others.
    #[cfg(debug_assertions)]
    pub fn spent(&self) -> usize {
        self.contexts.iter().map(|context| context.spent()).sum()
    }

    /// Serves a fault on `page` and keeps the books; it takes since `since`.
    pub(crate) fn serve_fault(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        access: Access,
        since: Instant,
    ) -> Served {
        let _mark = FaultPath::enter();
        context.source = FaultSource::Place;
        context.installed = 0;
        let served = self.serve(context, page, access);
        if matches!(served, Served::Done | Served::Failed) {
            let ns = since.elapsed().as_nanos() as u64;
            self.stats.add(Counter::PgFault, 1);
            self.stats.fault_ns(context.source, ns);
            self.workingset.tier_size.note_fault(context.source, ns, context.installed);
        }
        served
    }

    fn serve(&self, context: &mut FaultContext, page: PageIndex, access: Access) -> Served {
        let word = self.memory.words.load(page);
        if word.is_locked() {
            return Served::Busy;
        }
        match word.state() {
            State::Resident(_) | State::Evicting(_) if access.protected => self.make_writable(page),
            State::Resident(_) | State::Evicting(_) => self.reinstall(page),
            State::Foreign => Served::Foreign,
            state => self.load(context, page, state, access),
        }
    }

    /// A write to a page that is protected: it is being evicted, and is taken back, or it lies
    /// between such pages.
    ///
    /// Under the page's lock. Without it the page could be chosen anew after the look at its word
    /// and protected before this unprotects it: a write would go unseen while the page is stored,
    /// and be dropped with it.
    fn make_writable(&self, page: PageIndex) -> Served {
        let Some((_, word)) = self.memory.words.try_update(page, PageWord::lock_in_place) else {
            return Served::Busy;
        };
        let range = self.memory.address_range(page.0..page.0 + 1);
        // A signal does not tell protection from absence: the program may have dropped the page
        // with a system call of its own making, as in `reinstall`.
        let absent = self.settings.delivery == Delivery::Signal
            && self.memory.frames.backing.install(range.start, zeros(1), false).stop.is_none();
        let unprotected =
            if absent { Ok(()) } else { self.memory.frames.backing.unprotect(range.clone()) };
        let (State::Resident(frame) | State::Evicting(frame)) = word.state() else {
            unreachable!("locked in place")
        };
        self.swap.drop_written_copy(page, word);
        self.memory.words.unlock_as(page, word.with_state(State::Resident(frame)));
        self.stats.add(Counter::WpFault, 1);
        // On an error the mapping has changed under the fault: the repeated access finds out.
        if unprotected.is_ok() { Served::Done } else { self.wake(range) }
    }

    fn wake(&self, range: std::ops::Range<usize>) -> Served {
        let _ = self.memory.frames.backing.wake(range);
        Served::Done
    }

    /// A missing fault on a page that is resident: mostly it was brought in with a folio meanwhile.
    /// If it truly is not there, the program dropped it with a system call of its own making, and
    /// it reads as zeros.
    fn reinstall(&self, page: PageIndex) -> Served {
        let Some((_, word)) = self.memory.words.try_update(page, PageWord::lock_in_place) else {
            return Served::Busy;
        };
        let (State::Resident(frame) | State::Evicting(frame)) = word.state() else {
            unreachable!("locked in place")
        };
        let word = word.with_state(State::Resident(frame)).clean(word.is_clean());
        let range = self.memory.address_range(page.0..page.0 + 1);
        let done = self.memory.frames.backing.install(range.start, zeros(1), false);
        let present = done.stop.is_some();
        if !present {
            self.swap.drop_copy(page, word);
        }
        self.memory.words.unlock_as(page, word.clean(word.is_clean() && present));
        if done.stop.is_some() { self.wake(range) } else { Served::Done }
    }

    /// Brings in a page that is not resident, and its neighbours while the access is sequential.
    fn load(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        state: State,
        access: Access,
    ) -> Served {
        let (wanted, read_ahead) = self.streams.folio(page);
        self.stats.add(Counter::SwapRaHit, read_ahead as u64);
        // 1. Frames: as many as there are without waiting, or one.
        context.frames.clear();
        if self.memory.frames.allocator.alloc_folio(wanted, Need::Fault, &mut context.frames) == 0 {
            match self.make_room(context) {
                Room::Taken => {}
                Room::ToReclaim => return Served::NoRoom,
                Room::Later => return Served::Busy,
                Room::Never => return Served::Failed,
            }
        }
        if self.memory.is_low() {
            self.base.wake.background.wake();
        }
        // 2. Lock the run: the page, and neighbours whose content lies likewise.
        let len = self.lock_run(page, state, context.frames.len());
        if len == 0 {
            self.memory.frames.give_holes(&context.frames);
            return Served::Busy;
        }
        // 3. Load and install.
        let keeps = |slot| {
            let soon = len == 1 && self.is_back_soon(slot);
            self.swap.keeps_copies(slot, soon, len)
        };
        let protect = !access.write && matches!(state, State::Stored(slot) if keeps(slot));
        let loaded = self.install_run(context, page, state, len, protect);
        context.installed = loaded.as_ref().map_or(0, |loaded| loaded.pages);
        self.memory.frames.give_holes(&context.frames[context.installed..]);
        // 4. Publish.
        let served = self.publish_loaded(context, page, len, loaded);
        if served == Served::Done {
            self.streams.advance(page, len, context.source == FaultSource::Device);
            if context.spent.len() >= (SPENT_IN_ALL / self.contexts.len()).clamp(1, SPENT_MAX) {
                self.free_spent(context);
            }
        }
        served
    }

    /// What became of the run of a fault, which is given its new words, or left as it was.
    fn publish_loaded(
        &self,
        context: &FaultContext,
        page: PageIndex,
        len: usize,
        loaded: Result<Loaded, LoadError>,
    ) -> Served {
        match loaded {
            Ok(Loaded { pages, clean, foreign }) => {
                self.publish_run(page, len, &context.frames[..pages], clean);
                if foreign {
                    Served::Foreign
                } else if pages == 0 {
                    // The run may reach over two mappings of the kernel's: the page alone next
                    // time.
                    self.streams.forget(page);
                    Served::Busy
                } else {
                    Served::Done
                }
            }
            Err(error) => {
                self.memory.unlock_run(page.0, len);
                if len > 1 {
                    // A neighbour may be the unreadable one: a read error reaches only its own
                    // reader.
                    self.streams.forget(page);
                    Served::Busy
                } else {
                    self.base.report.once(format_args!("{error}"));
                    Served::Failed
                }
            }
        }
    }

    /// Takes one frame although there seemed to be none.
    fn make_room(&self, context: &mut FaultContext) -> Room {
        self.free_spent(context);
        if self.memory.frames.allocator.alloc_folio(1, Need::Fault, &mut context.frames) == 1 {
            return Room::Taken;
        }
        if self.base.gates.reclaim.try_enter().is_some() {
            return Room::ToReclaim;
        }
        // Frozen for a fork, or for a moment because DMA was seen.
        if !self.base.gates.may_exceed(context.thread) {
            return Room::Later;
        }
        match self.memory.frames.allocator.alloc_folio(1, Need::Over, &mut context.frames) {
            1 => Room::Taken,
            _ => Room::Never,
        }
    }

    /// Locks up to `max` pages from `page` on whose content is of the same kind as `state`; how
    /// many. 0 if the page itself has changed.
    fn lock_run(&self, page: PageIndex, state: State, max: usize) -> usize {
        if self.memory.words.try_lock_if(page, |w| w.state() == state).is_none() {
            return 0;
        }
        let end = (page.0 / EXTENT_PAGES + 1) * EXTENT_PAGES;
        let max = max.min(end - page.0);
        self.memory.extents.touch(page.0..page.0 + max);
        self.memory.note_extent(page);
        let (mut len, mut last) = (1, state);
        while len < max {
            let next = PageIndex(page.0 + len);
            let fits = |w: PageWord| self.follows(last, w.state());
            let Some(word) = self.memory.words.try_lock_if(next, fits) else { break };
            // Under its lock: who unmaps it takes access away before it waits for that lock.
            if !self.memory.extents.is_accessible(next) {
                self.memory.unlock_unchanged(next);
                break;
            }
            last = word.state();
            len += 1;
        }
        len
    }

    /// Whether the content of the page after one in state `last` can come in together with it: from
    /// the same place, or made up in memory.
    fn follows(&self, last: State, next: State) -> bool {
        match (last, next) {
            (State::Filled(_) | State::Stored(_), State::Stored(slot))
                if self.swap.zswap.contains(slot) =>
            {
                true
            }
            (State::Filled(_) | State::Stored(_), State::Filled(_)) => true,
            _ => lies_behind(last, next),
        }
    }

    /// Brings the content of a locked run in; write-protected if `protect`, as far as it has slots.
    fn install_run(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        state: State,
        len: usize,
        protect: bool,
    ) -> Result<Loaded, LoadError> {
        let dst = self.memory.address(page);
        let backing = &self.memory.frames.backing;
        let mut cached = if let State::Cached(frame) = state { Some(frame) } else { None };
        context.source = match state {
            State::Empty => FaultSource::Zero,
            State::Cached(_) => FaultSource::Cache,
            _ => FaultSource::Compressed,
        };
        let done = match state {
            State::Empty => {
                self.stats.add(Counter::ZeroFill, len as u64);
                backing.install(dst, zeros(len), false)
            }
            State::Cached(frame) => {
                // Before its frame is another's, with a copy of its own.
                (page.0..page.0 + len).for_each(|page| self.swap.drop_cached_copy(PageIndex(page)));
                self.install_cached(context, dst, frame, len, false)
            }
            State::Stored(slot) if len == 1 && !self.swap.zswap.contains(slot) => {
                match self.install_stored(context, slot, dst, protect)? {
                    // Somebody reads it just now: one operation is enough.
                    None => return Ok(Loaded { pages: 0, clean: false, foreign: false }),
                    Some((done, frame)) => {
                        cached = frame;
                        done
                    }
                }
            }
            _ => {
                self.load_run(context, page, len)?;
                backing.install(dst, &context.buffer[..len << PAGE_SHIFT], protect)
            }
        };
        if cached.is_none() {
            self.stats.add(Counter::InCopied, (done.bytes >> PAGE_SHIFT) as u64);
        }
        if done.stop == Some(Stop::Exists) && done.bytes == 0 {
            // A page is there already: it counts as installed when it is the faulting one, and
            // everyone is woken.
            if let Some(frame) = cached {
                self.swap.lru.remove(frame);
                self.spend(context, frame);
            }
            let _ = backing.wake(self.memory.address_range(page.0..page.0 + 1));
            return Ok(Loaded { pages: 1, clean: false, foreign: false });
        }
        // Mappings changing, or gone: what was installed counts, the rest stays as it was.
        let foreign = state == State::Empty && len == 1 && done.stop == Some(Stop::Absent);
        Ok(Loaded { pages: done.bytes >> PAGE_SHIFT, clean: protect, foreign })
    }

    /// Brings in a single page that is on a device, or was read ahead from there into the frame
    /// that is returned as well; `None` while somebody else reads it.
    fn install_stored(
        &self,
        context: &mut FaultContext,
        slot: SlotId,
        dst: usize,
        protect: bool,
    ) -> Result<Option<(Transferred, Option<FrameId>)>, LoadError> {
        match self.swap.index.load(slot) {
            Entry::Lost => return Err(LoadError::Lost),
            Entry::Busy(_) => return Ok(None),
            Entry::Frame(..) if let Some(frame) = self.swap.index.take_frame(slot) => {
                context.source = FaultSource::Cache;
                self.window_around.hit();
                self.stats.add(Counter::SwapRaHit, 1);
                let done = self.install_cached(context, dst, frame, 1, protect);
                if done.bytes == 0 && done.stop != Some(Stop::Exists) {
                    self.swap.lru.remove(frame);
                    self.spend(context, frame);
                }
                return Ok(Some((done, Some(frame))));
            }
            _ => {}
        }
        context.source = FaultSource::Device;
        let (at, around) = self.base.psi.stalled_for_device(|| self.read_around(context, slot))?;
        self.stats.add(Counter::PgMajFault, 1);
        let page = page_mut(&mut context.buffer, at);
        let done = self.memory.frames.backing.install(dst, page, protect);
        if let Some(around) = around {
            self.keep_around(context, around, true);
        }
        Ok(Some((done, None)))
    }

    /// Lines up the content of a locked run of stored pages in the buffer: what is in memory by
    /// itself, what is on a device in runs.
    fn load_run(
        &self,
        context: &mut FaultContext,
        page: PageIndex,
        len: usize,
    ) -> Result<(), LoadError> {
        let state = |i: usize| self.memory.words.load(PageIndex(page.0 + i)).state();
        let mut i = 0;
        while i < len {
            let FaultContext { packed, decompressor, buffer, .. } = &mut *context;
            let out = page_mut(buffer, i);
            let slot = match state(i) {
                State::Filled(value) => {
                    fill::fill(out, value);
                    i += 1;
                    continue;
                }
                State::Stored(slot) => slot,
                other => unreachable!("{other:?} is not stored"),
            };
            // 1. Compressed.
            if self.swap.load_compressed(slot, packed, decompressor, out)? {
                i += 1;
                continue;
            }
            // 2. On a device, with those behind it that are there too.
            let more = (i + 1..len).take_while(|next| {
                let here = State::Stored(slot.advance((next - i) as u64));
                state(*next) == here
                    && !matches!(here, State::Stored(slot) if self.swap.zswap.contains(slot))
            });
            let pages = 1 + more.count();
            let run = SlotRun { first: slot, len: pages };
            context.source = FaultSource::Device;
            self.base
                .psi
                .stalled_for_device(|| self.swap.load_slots(run, &mut context.buffer, i))?;
            self.stats.add(Counter::PgMajFault, 1);
            self.stats.add(Counter::SwapRa, pages as u64 - 1);
            i += pages;
        }
        Ok(())
    }

    /// Installs pages that lie in frames of the swap cache, by the cheaper way, or write-protected;
    /// the frames of those installed are given up.
    fn install_cached(
        &self,
        context: &mut FaultContext,
        dst: usize,
        frame: FrameId,
        len: usize,
        protect: bool,
    ) -> Transferred {
        let backing = &self.memory.frames.backing;
        let frames = self.memory.frames.arena.frame_range(frame.0, len);
        let way = match self.settings.way_in {
            // What is moved is not protected.
            _ if protect => 0,
            WayIn::Move => 1,
            WayIn::Auto if backing.can_move() => self.way_in[len.ilog2() as usize].pick(),
            _ => 0,
        };
        let start = Instant::now();
        let done = if way == 1 {
            let moved = backing.move_in(dst, frames);
            // Shared with a child of a fork: then by copy.
            if moved.bytes == 0 && matches!(moved.stop, Some(Stop::Busy | Stop::Unsuitable)) {
                self.copy_frames(context, dst, frame, len, protect)
            } else {
                self.finish_moved_in(frame, moved.bytes >> PAGE_SHIFT);
                moved
            }
        } else {
            self.copy_frames(context, dst, frame, len, protect)
        };
        let pages = done.bytes >> PAGE_SHIFT;
        self.way_in[len.ilog2() as usize].record(way, start.elapsed().as_nanos() as u64, pages);
        self.stats.add(Counter::CacheIn, pages as u64);
        done
    }

    fn copy_frames(
        &self,
        context: &mut FaultContext,
        dst: usize,
        frame: FrameId,
        len: usize,
        protect: bool,
    ) -> Transferred {
        let done = self.memory.frames.backing.install_frames(
            dst,
            self.memory.frames.arena.frame_range(frame.0, len),
            protect,
        );
        let pages = done.bytes >> PAGE_SHIFT;
        self.stats.add(Counter::InCopied, pages as u64);
        self.swap.lru.remove_run(frame, pages);
        frame.run(pages).for_each(|frame| self.spend(context, frame));
        done
    }

    /// A frame that was taken out of the swap cache, as its page is installed elsewhere: to be
    /// dropped with others.
    fn spend(&self, context: &mut FaultContext, frame: FrameId) {
        if context.spent.len() == context.spent.capacity() {
            self.free_spent(context);
        }
        context.spent.push(frame);
    }

    fn finish_moved_in(&self, frame: FrameId, pages: usize) {
        self.stats.add(Counter::InMoved, pages as u64);
        self.swap.lru.remove_run(frame, pages);
        self.memory.frames.allocator.free_run(frame, pages);
    }

    /// Gives the locked run its new words and its old copies up: the first pages are resident, with
    /// `frames`.
    fn publish_run(&self, page: PageIndex, len: usize, frames: &[FrameId], clean: bool) {
        let installed = frames.len();
        let state = |i: usize| self.memory.words.load(PageIndex(page.0 + i)).state();
        // Counted first: once a word is published, an eviction may count its page out again.
        if installed > 0 {
            self.memory.extents.add_resident(page, installed);
            self.stats.add(Counter::ResidentPages, installed as u64);
            self.stats.add(Counter::FaultAround, installed as u64 - 1);
            if matches!(state(0), State::Cached(_)) {
                self.stats.add(Counter::PgActivate, installed as u64);
            }
        }
        // Pages in slots next to one another together.
        let mut at = 0;
        while at < installed {
            let more = (at + 1..installed).take_while(|i| lies_behind(state(i - 1), state(*i)));
            let end = at + 1 + more.count();
            match state(at) {
                State::Stored(first) => {
                    let run = SlotRun { first, len: end - at };
                    self.publish_stored(PageIndex(page.0 + at), run, &frames[at..end], clean);
                }
                _ => (at..end)
                    .for_each(|i| self.publish_page(PageIndex(page.0 + i), frames[i], i > 0)),
            }
            at = end;
        }
        (installed..len).for_each(|i| self.memory.unlock_unchanged(PageIndex(page.0 + i)));
    }

    /// A page that had no slot is resident, with `frame`; `along` with one that was touched, or
    /// touched itself.
    fn publish_page(&self, page: PageIndex, frame: FrameId, along: bool) {
        let word = self.memory.words.load(page);
        let old = word.state();
        let referenced = matches!(old, State::Cached(_));
        debug_assert!(
            !word.is_clean(),
            "the copy of {page:?} is known by a frame that is no longer its own"
        );
        let beside = along && (old == State::Empty || word.is_beside());
        self.memory.words.unlock_as(
            page,
            word.with_state(State::Resident(frame)).referenced(referenced).beside(beside),
        );
        // What it had of its own is given up last.
        self.swap.forget(old);
    }

    /// Pages that had the slots of a run are resident, with `frames`; they keep the slots if they
    /// are `clean`.
    fn publish_stored(&self, page: PageIndex, run: SlotRun, frames: &[FrameId], clean: bool) {
        let mut soon = [false; FOLIO_MAX];
        run.slots().zip(&mut soon).for_each(|(slot, soon)| *soon = self.refaults_soon(slot));
        let mut keeps = [false; FOLIO_MAX];
        if clean {
            self.swap.index.came_back(run, &mut keeps);
        }
        for (i, (slot, frame)) in run.slots().zip(frames).enumerate() {
            let page = PageIndex(page.0 + i);
            if keeps[i] {
                self.swap.keep_copy(*frame, slot);
            }
            let word = self.memory.words.load(page).with_state(State::Resident(*frame));
            self.memory.words.unlock_as(page, word.referenced(soon[i]).clean(keeps[i]));
        }
        runs_where(run, |i| !keeps[i]).for_each(|run| self.swap.forget_run(run));
    }

    /// Whether a page that comes back from a device would still be here if it had been kept a
    /// little longer: since it left, less has left than fits in memory.
    fn refaults_soon(&self, slot: SlotId) -> bool {
        let evictions = self.workingset.evictions.load(Relaxed);
        let Some(distance) = self.refault_distance(slot, evictions) else { return false };
        self.workingset.tier_size.note_refault(distance);
        let soon = distance < self.memory.budget().limit();
        let recent =
            distance <= evictions.saturating_sub(self.workingset.history.a_second_ago(evictions));
        self.stats.add(Counter::Refaults1s, recent.into());
        self.stats.add(Counter::WorkingsetRefault, 1);
        self.stats.add(Counter::WorkingsetActivate, soon.into());
        soon
    }

    /// How many pages have left since that of a slot did, of which `evictions` are all so far.
    fn refault_distance(&self, slot: SlotId, evictions: u64) -> Option<u64> {
        match self.swap.index.load(slot) {
            Entry::Shadow(stamp) => Some(stamp.distance(evictions)),
            _ => None,
        }
    }

    /// Whether a page comes back to memory so soon that it is not to leave for where it came from:
    /// from the compressed tier, it will stay for a while, and what it would save by leaving clean
    /// is less than its copy takes up meanwhile; from a device, it would still be in memory or in
    /// the tier, had those that left before it not been there in its place.
    fn is_back_soon(&self, slot: SlotId) -> bool {
        let soon = if self.swap.zswap.contains(slot) {
            self.memory.budget().limit() / HOT_SHARE
        } else {
            self.workingset.copies.reach()
        };
        self.refault_distance(slot, self.workingset.evictions.load(Relaxed))
            .is_some_and(|distance| distance < soon)
    }

    /// Drops the frames that contexts hold which nobody uses just now.
    pub(crate) fn free_idle_spent(&self) {
        if let Some(_inside) = self.base.gates.faults.try_enter() {
            self.contexts.idle().for_each(|mut context| self.free_spent(&mut context));
        }
    }

    /// Drops frames whose pages were copied in, with one call.
    pub(crate) fn free_spent(&self, context: &mut FaultContext) {
        let _mark = FaultPath::enter();
        self.memory.frames.give_present(&context.spent, &mut context.ranges);
        context.spent.clear();
    }
}

/// Whether the content of a page in state `next` lies in the same place as that of a page in state
/// `last`, behind it.
fn lies_behind(last: State, next: State) -> bool {
    match (last, next) {
        (State::Empty, State::Empty) => true,
        (State::Cached(a), State::Cached(b)) => b.0 == a.0 + 1,
        (State::Stored(a), State::Stored(b)) => {
            b.device() == a.device() && b.offset() == a.offset() + 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_come_in_only_with_their_kind() {
        let stored = |n| State::Stored(SlotId::new(0, n));
        assert!(lies_behind(stored(5), stored(6)) && !lies_behind(stored(5), stored(9)));
        assert!(!lies_behind(stored(5), State::Stored(SlotId::new(1, 6))));
        assert!(lies_behind(State::Cached(FrameId(1)), State::Cached(FrameId(2))));
        assert!(
            lies_behind(State::Empty, State::Empty) && !lies_behind(State::Empty, State::Filled(0))
        );
        assert!(!lies_behind(State::Empty, State::Resident(FrameId(1))));
    }
}
