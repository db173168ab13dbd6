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
}

/// Who sleeps, and whether all are to end.
#[derive(Debug)]
pub struct Wake {
    /// The background thread.
    pub background: Sleeper,
    /// Threads that store pages ahead of need beside it.
    pub workers: Sleeper,
    /// The thread that goes ahead of streams, while there is one.
    pub ahead: Sleeper,
    goes_ahead: AtomicBool,
    stop: AtomicBool,
}

impl Wake {
    /// For so many workers.
    pub fn new(workers: usize) -> Wake {
        let [goes_ahead, stop] = [const { AtomicBool::new(false) }; 2];
        let [background, workers, ahead] = [1, workers, 1].map(Sleeper::new);
        Wake { background, workers, ahead, goes_ahead, stop }
    }

    /// A stream waits: the thread that goes ahead is woken, or that of the background, which starts
    /// it.
    pub fn go_ahead(&self) {
        if self.goes_ahead() { self.ahead.wake() } else { self.background.wake() }
    }

    /// Whether there is a thread that goes ahead.
    pub fn goes_ahead(&self) -> bool {
        self.goes_ahead.load(Acquire)
    }

    /// Whether the caller is to be, or to start, the thread that goes ahead: nobody is.
    pub fn begin_ahead(&self) -> bool {
        !self.goes_ahead.swap(true, AcqRel)
    }

    /// Nobody goes ahead any more.
    pub fn end_ahead(&self) {
        self.goes_ahead.store(false, Release);
    }

    /// In the child of a fork, where nobody sleeps or goes ahead.
    pub fn reset_in_child(&self) {
        self.background.asleep.store(0, Release);
        self.end_ahead();
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
