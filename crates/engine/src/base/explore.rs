//! Runs a model in interleavings that a checker explores: as it is, and with each mistake that it
//! must find.
//!
//! A model may run the engine's own code. Its words are the machine's, but all threads of a model
//! are one thread of the machine, which goes from one to another at [`point`]s only: before each
//! operation on what threads share ([`crate::base::sync`]). Who would sleep lets others run in
//! place of that.

use super::seeded::{Bug, seed};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::time::Duration;

/// Whether the caller is a thread of a model.
pub fn is_model_thread() -> bool {
    shuttle::current::try_get_current_task().is_some()
}

/// The same, and it may go on: a thread that panics is taken down step by step.
pub fn is_running() -> bool {
    is_model_thread() && !std::thread::panicking()
}

/// In a model another thread may run here.
pub fn point() {
    if is_running() {
        // It takes no time there, and is nothing but a change of threads.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// In a model others run here, since the caller waits for them; whether this is one.
pub fn wait() -> bool {
    let running = is_running();
    if running {
        shuttle::thread::yield_now();
    }
    running
}

/// Processors that the threads of a model run on.
pub const MODEL_CPUS: usize = 2;

/// One of these.
pub fn processor() -> usize {
    thread_rng().gen_range(0..MODEL_CPUS)
}

/// Room for the engine's own frames, which keep bitmaps of extents and runs of slots there.
const STACK_BYTES: usize = 256 << 10;

/// Steps after which a schedule counts as one that stands still: more than any takes to its end.
const STEPS_MAX: usize = 200_000;

/// Runs a scenario in the schedules of a scheduler.
pub fn run(scheduler: impl Scheduler + 'static, scenario: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::default();
    config.stack_size = STACK_BYTES;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    shuttle::Runner::new(scheduler, config).run(scenario);
}

/// Explores so many schedules at random, and as many with 2, 3 and 5 changes of priorities.
///
/// # Panics
/// When an assertion of the model does not hold in one of them.
pub fn finds_nothing(schedules: usize, scenario: fn()) {
    run(RandomScheduler::new(schedules), scenario);
    [2, 3, 5].into_iter().for_each(|depth| run(PctScheduler::new(depth, schedules), scenario));
}

/// The same with each of the mistakes, always in the same schedules.
///
/// # Panics
/// When one is not found.
pub fn finds_each(bugs: &[Bug], schedules: usize, scenario: fn()) {
    for bug in bugs.iter().copied() {
        // A thread that ends in a panic leaves its marks and locks behind.
        let explore = move || {
            seed(&[bug]);
            run(RandomScheduler::new_from_seed(1, schedules), scenario);
            run(PctScheduler::new_from_seed(1, 3, schedules), scenario);
        };
        assert!(std::thread::spawn(explore).join().is_err(), "{bug:?} was not found");
    }
}
