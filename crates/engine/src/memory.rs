//! Memory: the words of pages, their extents, and the frames that hold content.
//!
//! It owns the window, the range of addresses in which the managed memory of a pool lies, but for
//! what is managed where the program has it ([`places`]). Each page has a word that says where its
//! content is ([`word`]), each 2 MiB an extent ([`extent`]).
//! It also owns the frames, the arena that holds their bytes, and the userfaultfd through which
//! pages come and go ([`frames`]). Which pages leave and which come in others decide.
//!
//! Locks: an extent's, then those of pages, which are bits of their words. Those of the frame
//! allocator are taken under both.
//!
//! Below it: the frame allocator. [`frames`] also gives the zpool its frames, through a trait of
//! the zpool's.

pub mod extent;
pub mod frames;
pub mod growth;
pub mod lease;
pub mod places;
mod settings;
pub mod shares;
pub mod sparse;
pub mod word;

use crate::frame::FrameAllocator;
use crate::frame::cells::FrameCells;
use crate::stats::Stats;
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageIndex};
use extent::{EXTENT_CELLS_BYTES, EXTENT_PAGES, Extents};
use frames::Frames;
use lease::Lease;
use overspill_os::arena::Arena;
use overspill_os::backing::{AnonPrivate, Backing};
use overspill_os::cpu::Topology;
use overspill_os::uffd::{Features, Uffd};
use overspill_os::vm::{self, ForceReader};
use overspill_os::{Errno, probe};
use places::Places;
pub use places::RESERVED_PAGES;
pub use settings::{MEMORY_MAX, MEMORY_MIN, MemorySettings, WINDOW_MAX};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use word::PageWords;

/// The window, its pages and the frames.
pub struct Memory<B = AnonPrivate> {
    /// Where pages lie.
    pub places: Places,
    /// Where the content of each page is.
    pub words: PageWords,
    /// The 2 MiB parts of the window.
    pub extents: Extents,
    /// One more than the highest extent ever used.
    pub extents_high: AtomicUsize,
    /// The frames, their bytes, and the way to the page tables.
    pub frames: Frames<B>,
    /// Reads pages that the program may not access.
    pub force_reader: ForceReader,
    /// Pages under mlock.
    pub pinned_pages: AtomicUsize,
    /// Pages that the program has for itself.
    pub foreign_pages: AtomicUsize,
    /// Pages of budget that the arena was made to fit.
    pub arena_fits: AtomicU64,
    /// What of the job's budget this process may have.
    pub lease: Lease,
    /// Pages that are charged to the budget, and to be taken off the lease ([`shares`]).
    owed: AtomicU64,
    stats: Stats,
}

/// Why there is none.
#[derive(Clone, Copy, Debug)]
pub enum NoMemory {
    /// No room for the window or the tables over it.
    AddressSpace,
    /// The kernel gives no userfaultfd.
    Userfaultfd(Errno),
}

impl Memory {
    /// Reserves a window and makes the tables over it.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(settings: &MemorySettings, stats: Stats) -> Result<Memory, NoMemory> {
        Memory::over(settings, stats, || open_uffd(settings.own_faults).map(AnonPrivate::new))
    }
}

impl<B: Backing> Memory<B> {
    /// The same, of the kind of memory that is made once there is a window.
    pub fn over(
        settings: &MemorySettings,
        stats: Stats,
        backing: impl FnOnce() -> Result<B, NoMemory>,
    ) -> Result<Memory<B>, NoMemory> {
        let no_room = |_| NoMemory::AddressSpace;
        // 1. The window, and the tables over it.
        let len = settings.window.0 as usize + RESERVED_PAGES * PAGE_SIZE;
        let base = match &settings.window_at {
            None => vm::reserve(len, (16 * EXTENT_PAGES) << PAGE_SHIFT),
            Some(range) if len > range.len() => Err(Errno::NOMEM),
            Some(range) => vm::reserve_at(range.start, len),
        }
        .map_err(no_room)?;
        let window = base..base + len;
        vm::advise(window.clone(), vm::MADV_NOHUGEPAGE).map_err(no_room)?;
        let pages = len >> PAGE_SHIFT;
        let words = PageWords::new(pages).map_err(no_room)?;
        let extents = Extents::new(pages).map_err(no_room)?;
        let places = Places::new(window.clone(), &settings.annexes, settings.low.as_ref());
        // 2. Under management: the window, its annexes and the arena.
        let (allocator, arena) = frames_and_arena(settings, stats).map_err(no_room)?;
        let lease = Lease::begin(settings.account, settings.memory.pages()).map_err(no_room)?;
        allocator.set_limit(lease.limit());
        let backing = backing()?;
        for annex in places.annexes() {
            vm::advise(annex.addresses.clone(), vm::MADV_NOHUGEPAGE).map_err(no_room)?;
        }
        let annexes = places.annexes().iter().map(|annex| annex.addresses.clone());
        for range in [window, arena.range()].into_iter().chain(annexes) {
            backing.register(range).map_err(NoMemory::Userfaultfd)?;
        }
        Ok(Memory {
            places,
            words,
            extents,
            extents_high: AtomicUsize::new(1),
            arena_fits: AtomicU64::new(settings.memory.pages()),
            frames: Frames { arena, allocator, backing },
            force_reader: ForceReader::new(),
            pinned_pages: AtomicUsize::new(0),
            foreign_pages: AtomicUsize::new(0),
            lease,
            owed: AtomicU64::new(0),
            stats,
        })
    }

    /// Whether fewer frames are free than the background thread keeps so.
    pub fn is_low(&self) -> bool {
        self.budget().free_pages() < self.budget().low()
    }

    /// Address of a page.
    #[inline]
    pub fn address(&self, page: PageIndex) -> usize {
        self.places.address(page)
    }

    /// Addresses of a range of pages.
    pub fn address_range(&self, pages: Range<usize>) -> Range<usize> {
        self.places.address_range(pages)
    }

    /// The budget.
    pub fn budget(&self) -> &FrameAllocator {
        &self.frames.allocator
    }

    /// What charges buffers of one kind to the budget ([`crate::base::buffers::Buffers::new`]):
    /// `each` costs so many pages, and there is room for the first `kept` in any case.
    pub fn charges(self: &Arc<Self>, each: u64, kept: usize) -> impl Fn(bool) -> bool + use<B> {
        let (memory, promise) = (self.clone(), self.budget().promise(each, kept));
        move |costs| {
            let budget = memory.budget();
            if !costs {
                budget.uncharge(&promise);
            }
            !costs || budget.charge(&promise)
        }
    }

    /// What is kept of each frame.
    pub fn cells(&self) -> &FrameCells {
        self.budget().cells()
    }

    /// Notes that the extent of `page` is in use, for the clock and for the metadata figure.
    pub fn note_extent(&self, page: PageIndex) {
        let index = page.0 / EXTENT_PAGES;
        if self.extents_high.load(Relaxed) <= index {
            self.extents_high.fetch_max(index + 1, Relaxed);
        }
    }

    /// Bytes of the tables of pages and extents, as far as those were ever in use.
    pub fn table_bytes(&self) -> u64 {
        let extents = self.extents_high.load(Relaxed);
        self.words.used_bytes(extents * EXTENT_PAGES) + extents as u64 * EXTENT_CELLS_BYTES
    }

    /// Gives the lock of a page back, as it was.
    pub fn unlock_unchanged(&self, page: PageIndex) {
        self.words.unlock_as(page, self.words.load(page));
    }

    /// The same for a run of pages.
    pub fn unlock_run(&self, first: usize, len: usize) {
        for page in (first..first + len).map(PageIndex) {
            self.words.unlock_as(page, self.words.load(page));
        }
    }

    /// Makes the arena fit a budget of `pages`; for the holder of the lock over the limit. What
    /// does not fit any more is isolated, and leaves with reclaim.
    pub fn resize_arena(&self, pages: u64) {
        let resized = self.frames.allocator.resize(pages, |frames| self.frames.arena.open(frames));
        // Where the system has no room for it just now: again the next time. Until then runs may be
        // hard to find.
        self.arena_fits.store(if resized.is_ok() { pages } else { 0 }, Relaxed);
    }

    /// Gives isolated pageblocks that are empty back to the system; for the holder of the lock over
    /// the limit.
    pub fn give_up_surplus(&self) {
        let allocator = &self.frames.allocator;
        if allocator.has_surplus() {
            allocator.give_up_surplus(|frames| {
                self.frames.arena.close(frames).expect("closing frames of the arena")
            });
        }
    }
}

/// Frames for the budget, with room to grow, which costs addresses only; without that room where
/// they are short.
fn frames_and_arena(
    settings: &MemorySettings,
    stats: Stats,
) -> Result<(FrameAllocator, Arena), Errno> {
    let limit = settings.memory.pages();
    let room = |limit_max| {
        let topology = Topology::of_machine().clone();
        let allocator = FrameAllocator::new(limit, limit_max, settings.frames, topology, stats)?;
        let arena = Arena::new(allocator.frames_max())?;
        Ok((allocator, arena))
    };
    let (allocator, arena) = room(settings.memory_max.pages()).or_else(|_: Errno| room(limit))?;
    allocator.resize(limit, |frames| arena.open(frames))?;
    Ok((allocator, arena))
}

fn open_uffd(own_faults: bool) -> Result<Uffd, NoMemory> {
    let mut wanted =
        Features::THREAD_ID.0 | Features::POISON.0 | Features::MOVE.0 | Features::WRITE_PROTECT.0;
    if own_faults {
        wanted |= Features::SIGBUS.0;
    }
    let simulated = probe::simulated();
    if simulated.no_uffd {
        return Err(NoMemory::Userfaultfd(Errno::NOSYS));
    }
    let without = if simulated.no_move { Features::MOVE } else { Features(0) };
    let (uffd, _) =
        Uffd::open(Features(wanted), without, own_faults).map_err(NoMemory::Userfaultfd)?;
    if own_faults && !uffd.features().has(Features::SIGBUS) {
        return Err(NoMemory::Userfaultfd(Errno::OPNOTSUPP));
    }
    Ok(uffd)
}
