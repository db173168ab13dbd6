//! The engine of a model, and what its threads do with it.

use crate::account::Member;
use crate::base::explore;
use crate::config::{Config, Delivery, SwapList};
use crate::control::swapoff::{Evacuated, SwapoffError};
use crate::engine::Engine;
use crate::frame::{Mobility, Need};
use crate::memory::extent::EXTENT_PAGES;
use crate::memory::{Memory, MemorySettings};
use crate::reclaim::{EvictTo, Reclaimer};
use crate::space::MapFlags;
use crate::stats::Stats;
use crate::swap::batch::Batch;
use crate::units::{Bytes, FrameId, PAGE_SHIFT, PAGE_SIZE, PageIndex};
use overspill_os::backing::Backing;
use overspill_os::backing::simulated::{Content, Hold, Missing, SimulatedTables};
use overspill_os::signal::Outcome;
use overspill_os::uffd::FaultEvent;
use overspill_os::vm::{self, Prot, advice};
use shuttle::rand::{Rng, thread_rng};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// An engine, and the pages that the threads of a model use. It serves one exploration: what one
/// schedule leaves of it is empty, and the next begins with that.
pub struct World {
    pub engine: Arc<Engine<SimulatedTables>>,
    /// The numbers of its pages, in each place a range; and how many pages there are.
    places: Vec<Range<usize>>,
    pages: usize,
    /// What is stored next: no two numbers are the same.
    next: AtomicU32,
    /// Frames that others have.
    hoarded: Mutex<Vec<FrameId>>,
    /// Other processes that have pages since a fork.
    sharers: Mutex<Vec<Member>>,
}

impl World {
    /// With so many pages; the settings and baselines are a list, the devices another one. Slots
    /// and frames that are given back are the next to be taken. No fault leaves word of a stream.
    pub fn new(pages: usize, settings: &str, swap: &str) -> World {
        World::with_delivery(Delivery::Signal, pages, settings, swap)
    }

    /// The same with another delivery of faults.
    pub fn with_delivery(delivery: Delivery, pages: usize, settings: &str, swap: &str) -> World {
        World::over(delivery, &[], pages, settings, swap)
    }

    /// So many pages in each of several places: the last of arrays of the program's, and the first
    /// of the window. Their numbers are near, their addresses are not.
    pub fn in_places(annexed: &[usize], pages: usize, settings: &str, swap: &str) -> World {
        World::over(Delivery::Signal, annexed, pages, settings, swap)
    }

    fn over(
        delivery: Delivery,
        annexed: &[usize],
        pages: usize,
        settings: &str,
        swap: &str,
    ) -> World {
        let mut config = Config {
            memory: Config::MEMORY_MIN,
            // An array takes the numbers of an extent.
            window: Some(Bytes((4 + 2 * annexed.len() as u64) << 20)),
            annexes: annexed.iter().map(|_| an_array()).collect(),
            delivery,
            ..Config::default()
        };
        config.apply_with_baselines("slot.cache=off,workers=1,ahead=off").unwrap();
        config.apply_with_baselines(settings).unwrap();
        if !swap.is_empty() {
            config.swap = swap.parse::<SwapList>().unwrap().0;
        }
        let stats = Stats::anonymous().unwrap();
        let memory = |settings: &MemorySettings, stats| {
            let settings = MemorySettings { memory_max: settings.memory, ..settings.clone() };
            Memory::over(&settings, stats, || {
                Ok(SimulatedTables::new(true, explore::point, explore::wait))
            })
        };
        let engine = Engine::over(config, stats, memory).unwrap();
        let map =
            engine.space.map(None, pages << PAGE_SHIFT, Prot::READ_WRITE, MapFlags::default());
        let first = engine.memory.places.page(map.unwrap()).unwrap().0;
        let arrays = engine.memory.places.annexes().iter().zip(annexed);
        let mut places: Vec<_> =
            arrays.map(|(annex, pages)| annex.pages.end - pages..annex.pages.end).collect();
        places.push(first..first + pages);
        World {
            engine: Arc::new(engine),
            pages: places.iter().map(Range::len).sum(),
            places,
            next: AtomicU32::new(1),
            hoarded: Mutex::default(),
            sharers: Mutex::default(),
        }
    }

    /// Some of its pages, by place; those that would follow the last lie in the last place.
    fn pages(&self, pages: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (mut left, mut parts) = (pages, Vec::new());
        for (i, place) in self.places.iter().enumerate() {
            let len = if i + 1 == self.places.len() { usize::MAX } else { place.len() };
            let part = left.start.min(len)..left.end.min(len);
            left = left.start - part.start..left.end - part.end;
            parts.push(place.start + part.start..place.start + part.end);
        }
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// One of its pages.
    fn page(&self, page: usize) -> PageIndex {
        PageIndex(self.pages(page..page + 1).next().expect("one page").start)
    }

    /// The addresses of some of its pages, which lie in one place.
    pub fn addresses(&self, pages: Range<usize>) -> Range<usize> {
        let mut parts = self.pages(pages);
        let (Some(part), None) = (parts.next(), parts.next()) else { panic!("in one place") };
        self.engine.memory.address_range(part)
    }

    fn backing(&self) -> &SimulatedTables {
        &self.engine.memory.frames.backing
    }

    // ---- The program ----

    /// The program reads a page.
    pub fn read(&self, page: usize) {
        let address = self.addresses(page..page + 1).start;
        while let Err(missing) = self.backing().load(address) {
            self.fault(page, false, missing);
        }
    }

    /// The program writes to a page, something that can be compressed.
    pub fn write(&self, page: usize) {
        self.fill(page, Content::Sparse);
    }

    /// The program fills a page.
    pub fn fill(&self, page: usize, content: Content) {
        let address = self.addresses(page..page + 1).start;
        let number = self.next.fetch_add(1, Relaxed);
        while let Err(missing) = self.backing().store(address, number, content) {
            self.fault(page, true, missing);
        }
    }

    /// Another process of the job writes to a page, which it finds first and holds for a while. Who
    /// holds it by a pin has said so before.
    pub fn write_from_elsewhere(&self, page: usize, by: Hold) {
        if by == Hold::Pin {
            self.engine.memory.lease.account.note_remote_writes();
        }
        let address = self.addresses(page..page + 1).start;
        let held = loop {
            match self.backing().hold(address, by) {
                Ok(held) => break held,
                Err(missing) => self.fault(page, true, missing),
            }
        };
        let number = self.next.fetch_add(1, Relaxed);
        self.backing().store_held(held, number, Content::Sparse);
    }

    /// The program reads and fills a page in turn as it likes, and now and then gives it up.
    pub fn live(&self, page: usize, times: usize) {
        for _ in 0..times {
            match thread_rng().gen_range(0..8) {
                0 => self.give_up(page..page + 1),
                1..4 => self.read(page),
                4 => self.fill(page, Content::Noise),
                5 => self.fill(page, Content::Same),
                _ => self.write(page),
            }
            // It computes for a while.
            (0..thread_rng().gen_range(0..32)).for_each(|_| explore::point());
        }
    }

    fn fault(&self, number: usize, write: bool, missing: Missing) {
        let page = self.page(number);
        if self.engine.config.delivery == Delivery::Signal {
            let served = self.engine.fault.serve_on_this_thread(page, write);
            assert_eq!(served, Outcome::Served, "a fault on page {number}");
            return;
        }
        let address = self.engine.memory.address(page);
        let write_protected = missing == Missing::Protected;
        let event = FaultEvent { address, write, write_protected, thread: 0 };
        while !self.engine.fault.handle_event(event) {
            shuttle::thread::yield_now();
        }
    }

    /// MADV_DONTNEED.
    pub fn give_up(&self, pages: Range<usize>) {
        let _inside = self.engine.base.gates.ops.enter();
        for part in self.pages(pages) {
            let addresses = self.engine.memory.address_range(part);
            self.engine.space.advise(addresses, advice::DONTNEED).unwrap();
        }
    }

    /// mlock, stores that find the page in place and writable, and munlock.
    pub fn pin(&self, page: usize) {
        let range = self.addresses(page..page + 1);
        let _inside = self.engine.base.gates.ops.enter();
        self.engine.space.pin(range.clone(), false).unwrap();
        for _ in 0..2 {
            shuttle::thread::yield_now();
            let number = self.next.fetch_add(1, Relaxed);
            let stored = self.backing().store(range.start, number, Content::Sparse);
            assert_eq!(stored, Ok(()), "page {page} under mlock");
        }
        self.engine.space.unpin(range).unwrap();
    }

    /// mremap of a page to where nothing is.
    pub fn remap(&self, from: usize, to: usize) {
        const MAYMOVE_FIXED: u32 = 3;
        let [old, new] = [from, to].map(|page| self.addresses(page..page + 1));
        let _inside = self.engine.base.gates.ops.enter();
        let moved = self.engine.space.remap(old.clone(), old.len(), MAYMOVE_FIXED, new.start);
        assert_eq!(moved, Ok(new.start));
        self.backing().note_remapped(old, new.start);
    }

    /// Protects pages that nobody evicts.
    pub fn protect(&self, pages: Range<usize>) {
        self.backing().protect(self.addresses(pages)).unwrap();
    }

    /// Pages from one on come in ahead of a stream, to be read or written to; or of another stream
    /// that waits.
    pub fn go_ahead(&self, page: usize, write: bool) {
        self.engine.fault.ask_ahead_of(self.page(page), write);
        self.engine.fault.go_ahead();
    }

    // ---- Reclaim ----

    fn with_batch<T>(&self, call: impl FnOnce(&mut Batch) -> T) -> Option<T> {
        let _inside = self.engine.base.gates.reclaim.enter();
        let mut batch = self.engine.reclaim.batches.try_take()?;
        Some(call(&mut batch))
    }

    /// The first hand sends pages out of the page tables.
    pub fn send_away(&self, pages: Range<usize>, to: EvictTo) {
        for part in self.pages(pages) {
            self.with_batch(|batch| self.engine.reclaim.evict_pages(batch, part, to));
        }
    }

    /// All of them, to the tiers.
    pub fn swap_out(&self) {
        self.send_away(0..self.pages, EvictTo::SwapOut);
    }

    /// Both hands go round until so many pages are free, or nothing is left. Pages of all places
    /// leave together.
    pub fn reclaim(&self, want: usize) {
        self.with_batch(|batch| {
            self.engine.reclaim.reclaim(batch, want, Reclaimer::Background);
        });
    }

    /// The second hand stores the oldest pages of the swap cache.
    pub fn store_oldest(&self) {
        self.with_batch(|batch| self.engine.reclaim.store_oldest(batch, Reclaimer::Background));
    }

    /// What is not needed at rest is given back, at whatever moment.
    pub fn rest(&self) {
        self.engine.forget_slots();
        self.engine.memory.budget().trim();
    }

    // ---- The tiers ----

    /// As many other pages leave as make those that left before old.
    pub fn others_leave(&self) {
        self.engine.workingset.evictions.fetch_add(4096, Relaxed);
    }

    /// The coldest compressed pages go to devices.
    pub fn write_back(&self) {
        self.with_batch(|batch| self.engine.reclaim.write_back_coldest(batch));
    }

    /// Compressed pages move to other places of the zpool.
    pub fn compact(&self) {
        let _inside = self.engine.base.gates.reclaim.enter();
        let frames = &self.engine.memory.frames;
        self.engine.swap.zpool.stir(frames, &mut self.engine.reclaim.moves_object());
    }

    /// swapon of what is not in use.
    pub fn swapon(&self, swap: &str) {
        let control = &self.engine.control;
        for spec in swap.parse::<SwapList>().unwrap().0 {
            let label = spec.label.as_ref().expect("devices that come and go have labels");
            if self.engine.swap.devices.find(label.as_str()).is_none() {
                let id = control.ask_swapon(&spec);
                self.look_after_swaps();
                assert_eq!(control.swapped_on(id), Some(Ok(())));
            }
        }
    }

    fn look_after_swaps(&self) {
        let _inside = self.engine.base.gates.reclaim.enter();
        self.engine.control.look_after_swaps();
    }

    /// swapoff of the device with a label, and what the background thread does about it. It must
    /// come to its end.
    pub fn swapoff(&self, label: &str) {
        let ended = self.swapoff_until(label, usize::MAX);
        ended.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The same, which is taken back after so many steps.
    pub fn swapoff_until(&self, label: &str, steps: usize) -> Result<Evacuated, SwapoffError> {
        let control = &self.engine.control;
        let asked = control.ask_swapoff(label).unwrap();
        let mut is_wanted = true;
        loop {
            self.look_after_swaps();
            if let Err(ended) = control.swapped_off(&asked) {
                if ended.is_err() {
                    control.take_swapoff_back(&asked);
                }
                return ended;
            }
            if is_wanted && steps < usize::MAX {
                (0..steps).for_each(|_| explore::point());
                control.take_swapoff_back(&asked);
                is_wanted = false;
            }
            shuttle::thread::yield_now();
        }
    }

    /// Others use the memory up, but for so many pages above the low watermark.
    pub fn hoard(&self, spare: u64) {
        self.hoard_to(self.engine.memory.budget().low() + spare);
    }

    /// The same, but for as many as faults have without reclaim.
    pub fn hoard_all(&self, spare: u64) {
        self.hoard_to(self.engine.memory.budget().min() + spare);
    }

    fn hoard_to(&self, free: u64) {
        let budget = self.engine.memory.budget();
        while budget.free_pages() > free {
            let frame = budget.alloc(0, Mobility::Unmovable, Need::Over).unwrap();
            self.hoarded.lock().unwrap().push(frame);
        }
    }

    // ---- The end ----

    /// The engine stands still, as for a fork, and everything is in its place. Then slots in use
    /// are not handed out until the child is gone, though their pages may come back.
    pub fn fork(&self) {
        self.engine.check();
        let gates = &self.engine.base.gates;
        gates.ops.close();
        gates.freeze_reclaim();
        gates.faults.close();
        self.engine.swap.devices.seal_for_child(1);
        gates.faults.open();
        gates.reclaim.open();
        gates.ops.open();
    }

    /// Before a fork that shares what is in the page tables, to which faults go on: another process
    /// has all of it, and keeps it.
    pub fn share(&self) {
        let (gates, memory) = (&self.engine.base.gates, &self.engine.memory);
        gates.ops.close();
        let child = memory.lease.account.enter().unwrap();
        gates.freeze_reclaim();
        memory.mark_shared();
        gates.faults.close();
        memory.share_with(child, 0);
        self.sharers.lock().unwrap().push(child);
        gates.faults.open();
        gates.reclaim.open();
        gates.ops.open();
    }

    /// What is marked as shared is protected, and counts once; then the others end.
    fn end_sharing(&self) {
        let memory = &self.engine.memory;
        memory.settle_shares();
        let sharers = std::mem::take(&mut *self.sharers.lock().unwrap());
        let marked = (0..self.pages).filter(|page| memory.words.load(self.page(*page)).is_shared());
        for page in marked {
            let address = self.addresses(page..page + 1).start;
            let stored = self.backing().store(address, 0, Content::Same);
            assert_eq!(stored, Err(Missing::Protected), "page {page} is marked");
        }
        // Each of the others has all that was there for it.
        let shared: Vec<u64> = sharers.iter().map(|child| child.shared()).collect();
        let own = memory.lease.member().map_or(0, |member| member.shared());
        let saved = memory.lease.account.saved();
        assert!(saved <= shared.iter().sum(), "{saved} saved, of {shared:?}");
        if let [child] = shared[..] {
            assert_eq!(saved, own, "the other has {child}");
        }
        sharers.iter().for_each(Member::leave);
        assert_eq!(memory.lease.account.saved(), 0);
    }

    /// The child is gone.
    pub fn reap(&self) {
        let _inside = self.engine.base.gates.reclaim.enter();
        self.engine.swap.devices.unseal(None);
    }

    /// After the last thread: everything is in its place, and then nowhere.
    pub fn end(&self) {
        let hoarded = std::mem::take(&mut *self.hoarded.lock().unwrap());
        self.engine.memory.budget().free_many(&hoarded);
        self.engine.check();
        self.end_sharing();
        (0..self.pages).for_each(|page| self.read(page));
        self.give_up(0..self.pages);
        self.engine.check();
    }
}

/// Memory as a program has it in a large array: less than an extent, so that the numbers of the
/// next place are near. It stays.
fn an_array() -> Range<usize> {
    const LEN: usize = (EXTENT_PAGES - 3) << PAGE_SHIFT;
    let array = vm::reserve(LEN, PAGE_SIZE).map(|start| start..start + LEN).unwrap();
    vm::protect(array.clone(), Prot::READ_WRITE).unwrap();
    array
}
