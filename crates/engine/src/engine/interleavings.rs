//! The engine's own steps, in interleavings that a checker explores.
//!
//! What runs is a whole engine over simulated page tables ([`Simulated`]). The threads of a model
//! are the program, which loads and stores through these tables and has its faults served, and
//! whoever else meets it at a page: reclaim, mapping calls, a fork, swapoff. All that the engine
//! shares between threads is its own.
//!
//! Checked at every load: the program reads what it stored last. At the end, and where a fork finds
//! the engine: the invariants of a pool at rest ([`super::check`]).

use super::Engine;
use crate::base::explore::{self, run};
use crate::base::seeded::{Bug, seed};
use crate::config::{Config, Delivery, WayOut};
use crate::memory::{Memory, MemorySettings};
use crate::reclaim::EvictTo;
use crate::space::MapFlags;
use crate::stats::Stats;
use crate::units::{Bytes, PAGE_SHIFT, PageIndex};
use overspill_os::backing::simulated::{Missing, Simulated};
use overspill_os::signal::{Blocked, Outcome};
use overspill_os::vm::Prot;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An engine, and the pages that the threads of a model use. It serves one exploration: what one
/// schedule leaves of it is empty, and the next begins with that.
struct World {
    engine: Arc<Engine<Simulated>>,
    /// The first page, and how many.
    first: PageIndex,
    pages: usize,
    /// What is stored next: no two words are the same.
    next: AtomicU64,
}

impl World {
    fn new(pages: usize, change: impl FnOnce(&mut Config)) -> World {
        let mut config = Config {
            memory: Config::MEMORY_MIN,
            window: Bytes(4 << 20),
            delivery: Delivery::Signal,
            ..Config::default()
        };
        change(&mut config);
        let stats = Stats::anonymous().unwrap();
        let memory = |settings: &MemorySettings, stats| {
            let settings = MemorySettings { memory_max: settings.memory, ..settings.clone() };
            Memory::over(&settings, stats, || Ok(Simulated::new(true, explore::point)))
        };
        let engine = Engine::over(config, stats, memory).unwrap();
        let map =
            engine.space.map(None, pages << PAGE_SHIFT, Prot::READ_WRITE, MapFlags::default());
        let first = engine.memory.page(map.unwrap());
        World { engine: Arc::new(engine), first, pages, next: AtomicU64::new(1) }
    }

    fn page(&self, number: usize) -> PageIndex {
        PageIndex(self.first.0 + number)
    }

    /// The program loads a word of a page, or stores one.
    fn access(&self, number: usize, write: bool) {
        let page = self.page(number);
        let address = self.engine.memory.address(page);
        let backing = &self.engine.memory.frames.backing;
        let access = || -> Result<(), Missing> {
            match write {
                true => backing.store(address, self.next.fetch_add(1, Relaxed)),
                false => backing.load(address).map(drop),
            }
        };
        while access().is_err() {
            let served = self.engine.fault.serve_on_this_thread(page, write);
            assert_eq!(served, Outcome::Served, "a fault on page {number}");
        }
    }

    /// Reclaim sends every page out of the page tables.
    fn send_away(&self, to: EvictTo) {
        let _inside = self.engine.base.gates.reclaim.enter();
        let Some(mut batch) = self.engine.reclaim.batches.try_take() else { return };
        self.engine.reclaim.evict_pages(&mut batch, self.first.0..self.first.0 + self.pages, to);
    }

    /// After the last thread: everything is in its place, and then nowhere.
    fn end(&self) {
        (0..self.pages).for_each(|page| self.access(page, false));
        self.engine.check();
        self.engine.space.clear(self.first.0..self.first.0 + self.pages).unwrap();
    }
}

type Actor = fn(&World);

/// Runs the actors of a model at the same time.
fn at_once(world: &Arc<World>, actors: &[Actor]) {
    let spawn = |actor: &Actor| {
        let (world, actor) = (world.clone(), *actor);
        shuttle::thread::spawn(move || actor(&world))
    };
    let threads: Vec<_> = actors.iter().map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    world.end();
}

/// A model: what it is made of, and what happens in it.
#[derive(Clone, Copy)]
struct Model {
    world: fn() -> World,
    actors: &'static [Actor],
}

impl Model {
    fn explore(self, scheduler: impl Scheduler + 'static) {
        let _blocked = Blocked::all();
        let world = Arc::new((self.world)());
        run(scheduler, move || at_once(&world, self.actors));
    }

    /// Explores so many schedules at random, and as many with 2, 3 and 5 changes of priorities.
    fn finds_nothing(self, schedules: usize) {
        self.explore(RandomScheduler::new(schedules));
        [2, 3, 5].into_iter().for_each(|depth| self.explore(PctScheduler::new(depth, schedules)));
    }

    /// The same with each of the mistakes.
    fn finds_each(self, bugs: &[Bug], schedules: usize) {
        for bug in bugs {
            let found = std::panic::catch_unwind(|| {
                seed(Some(*bug));
                self.explore(RandomScheduler::new_from_seed(1, schedules));
                self.explore(PctScheduler::new_from_seed(1, 3, schedules));
            });
            seed(None);
            assert!(found.is_err(), "{bug:?} was not found");
        }
    }
}

/// One page, written to while it is evicted in place.
const ONE_PAGE: Model = Model {
    world: || World::new(1, |config| config.way_out = WayOut::Drop),
    actors: &[
        |world| (0..3).for_each(|_| world.access(0, true)),
        |world| (0..2).for_each(|_| world.send_away(EvictTo::SwapOut)),
    ],
};

#[test]
fn a_page_that_is_written_to_stays() {
    ONE_PAGE.finds_nothing(500);
}

#[test]
fn mistakes_in_eviction_are_found() {
    ONE_PAGE.finds_each(&[Bug::DropWithoutCommit], 500);
}
