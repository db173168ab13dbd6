//! Runs a model in interleavings that a checker explores: as it is, and with each mistake that it
//! must find.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, catch_unwind};

fn explore<B: Copy + Send + Sync + 'static>(
    scheduler: impl Scheduler + 'static,
    scenario: fn(Option<B>),
    bug: Option<B>,
) {
    shuttle::Runner::new(scheduler, shuttle::Config::default()).run(move || scenario(bug));
}

/// Explores so many schedules at random, and as many with 2, 3 and 5 changes of priorities.
///
/// # Panics
/// When an assertion of the model does not hold in one of them.
pub fn finds_nothing<B: Copy + Send + Sync + 'static>(schedules: usize, scenario: fn(Option<B>)) {
    explore(RandomScheduler::new(schedules), scenario, None);
    [2, 3, 5]
        .into_iter()
        .for_each(|depth| explore(PctScheduler::new(depth, schedules), scenario, None));
}

/// The same with each of the mistakes, always in the same schedules.
///
/// # Panics
/// When one is not found.
pub fn finds_each<B: Copy + Debug + Send + Sync + RefUnwindSafe + 'static>(
    bugs: &[B],
    schedules: usize,
    scenario: fn(Option<B>),
) {
    for bug in bugs {
        let found = catch_unwind(|| {
            explore(RandomScheduler::new_from_seed(1, schedules), scenario, Some(*bug));
            explore(PctScheduler::new_from_seed(1, 3, schedules), scenario, Some(*bug));
        });
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
