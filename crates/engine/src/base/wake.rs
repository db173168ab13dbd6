//! Sleep and waking of the engine's own threads.
//!
//! Who makes work for one of them wakes it: a fault that takes free pages below the low watermark,
//! a call that asks for something. The thread looks for work once more when it can be woken, so
//! that no wake-up is lost.

use super::sync::sleep_on;
use rustix::thread::{Timespec, futex};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

/// Sleep of a thread that has nothing to do.
pub const NAP: Duration = Duration::from_millis(100);

/// Threads that sleep on a word, which is 1 while one does.
#[derive(Debug)]
pub struct Sleeper {
    asleep: AtomicU32,
    threads: u32,
}

impl Sleeper {
    fn new(threads: usize) -> Sleeper {
        Sleeper { asleep: AtomicU32::new(0), threads: threads as u32 }
    }

    /// Sleeps until somebody wakes this thread, or for as long as is said once it can be woken.
    pub fn sleep(&self, how_long: impl FnOnce() -> Duration) {
        self.asleep.store(1, SeqCst);
        let time = how_long();
        let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as i64 };
        sleep_on(&self.asleep, 1, &time);
        self.asleep.store(0, Release);
    }

    /// Wakes all that sleep.
    pub fn wake(&self) {
        if self.asleep.load(SeqCst) == 1 && self.asleep.swap(0, AcqRel) == 1 {
            let _ = futex::wake(&self.asleep, futex::Flags::PRIVATE, self.threads);
        }
    }

    /// The word, for who sleeps in place of the thread.
    pub fn word(&self) -> &AtomicU32 {
        &self.asleep
    }

    /// In the child of a fork, where nobody sleeps.
    pub fn reset_in_child(&self) {
        self.asleep.store(0, Release);
    }
}

/// Who sleeps, and whether all are to end.
#[derive(Debug)]
pub struct Wake {
    /// The background thread.
    pub background: Sleeper,
    /// Threads that store pages ahead of need beside it.
    pub workers: Sleeper,
    /// The thread that goes ahead of streams.
    pub ahead: Sleeper,
    stop: AtomicBool,
}

impl Wake {
    /// For so many workers.
    pub fn new(workers: usize) -> Wake {
        let stop = AtomicBool::new(false);
        let [background, workers, ahead] = [1, workers, 1].map(Sleeper::new);
        Wake { background, workers, ahead, stop }
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        self.workers.threads as usize
    }

    /// Whether all are to end.
    pub fn has_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Ends them.
    pub fn stop(&self) {
        self.stop.store(true, Release);
        self.background.wake();
        self.workers.wake();
        self.ahead.wake();
    }
}
