//! The engine's own steps, in interleavings that a checker explores.
//!
//! What runs is a whole engine over simulated page tables ([`SimulatedTables`]). The threads of a
//! model are the program, which loads and stores through these tables and has its faults served,
//! and whoever else meets it at a page: reclaim, mapping calls, a fork, swapoff. All that the
//! engine shares between threads is its own.
//!
//! Checked at every load: the program reads what it stored last. At the end, and where a fork finds
//! the engine: the invariants of a pool at rest ([`super::check`]).
//!
//! A [`Bug`] is a mistake in the engine's own steps, which a model must find.
//!
//! [`SimulatedTables`]: overspill_os::backing::simulated::SimulatedTables

mod calls;
mod places;
mod swapoff;
mod tiers;
mod words;
mod world;

use crate::base::explore::run;
use crate::base::seeded::{Bug, seed};
use overspill_os::signal::Blocked;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use world::World;

/// Rounds in which a mistake is looked for, most of which are found in the first; and how many
/// schedules each scheduler explores in one.
const ROUNDS: u64 = 24;
const ROUND: usize = 500;

/// What a thread of a model does.
type Actor = fn(&World);

/// A model: what it is made of, how it begins, and what happens in it at the same time.
#[derive(Clone, Copy)]
struct Model {
    world: fn() -> World,
    begin: Actor,
    actors: &'static [Actor],
}

impl Model {
    fn schedule(self, world: &Arc<World>) {
        (self.begin)(world);
        let spawn = |actor: &Actor| {
            let (world, actor) = (world.clone(), *actor);
            shuttle::thread::spawn(move || actor(&world))
        };
        let threads: Vec<_> = self.actors.iter().map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.end();
    }

    /// Explores so many schedules at random, and as many with 2, 3 and 5 changes of priorities.
    fn finds_nothing(self, schedules: usize) {
        let _blocked = Blocked::all();
        let world = Arc::new((self.world)());
        self.explore(&world, RandomScheduler::new(schedules));
        for depth in [2, 3, 5] {
            self.explore(&world, PctScheduler::new(depth, schedules));
        }
    }

    fn explore(self, world: &Arc<World>, scheduler: impl Scheduler + 'static) {
        let world = world.clone();
        run(scheduler, move || self.schedule(&world));
    }

    /// The same with what is seeded, and must do no harm.
    fn holds_with(self, bugs: &'static [Bug], schedules: usize) {
        seed(bugs);
        self.finds_nothing(schedules);
        seed(&[]);
    }

    /// The same with each of the mistakes.
    fn finds_each(self, bugs: &'static [Bug]) {
        bugs.chunks(1).for_each(|bug| self.finds(bug));
    }

    /// The same with all of some mistakes at once, in the same schedules as far as time plays no
    /// part.
    fn finds(self, bugs: &'static [Bug]) {
        // A thread that ends in a panic leaves its marks and locks behind.
        let thread = std::thread::spawn(move || {
            let _blocked = Blocked::all();
            let world = Arc::new((self.world)());
            seed(bugs);
            let explore = || {
                for seed in 1..=ROUNDS {
                    self.explore(&world, PctScheduler::new_from_seed(seed, 3, ROUND));
                    self.explore(&world, RandomScheduler::new_from_seed(seed, ROUND));
                }
            };
            let found = catch_unwind(AssertUnwindSafe(explore)).is_err();
            std::mem::forget(world);
            found
        });
        assert!(thread.join().unwrap(), "{bugs:?} was not found");
    }
}
