//! The line about trouble.

use super::sync::Backoff;
use crate::stats::{Counter, Stats};
use overspill_os::thread;
use std::fmt::Display;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Whether it is being printed, and is printed.
#[derive(Debug)]
pub struct Report {
    stats: Stats,
    reporting: AtomicBool,
    reported: AtomicBool,
}

impl Report {
    /// Nothing was said yet.
    pub fn new(stats: Stats) -> Report {
        Report { stats, reporting: AtomicBool::new(false), reported: AtomicBool::new(false) }
    }

    /// Prints one line about trouble, once: the first reason is the one that matters. When this
    /// returns it is printed, also if another thread does that: the caller fails an access next,
    /// which may end the process.
    pub fn once(&self, line: impl Display) {
        self.stats.add(Counter::FaultErrors, 1);
        if self.reporting.swap(true, AcqRel) {
            let mut backoff = Backoff::default();
            while !self.reported.load(Acquire) {
                backoff.wait();
            }
            return;
        }
        thread::report(line);
        self.reported.store(true, Release);
    }

    /// In the child of a fork: what its parent has said, or was about to say, it has not.
    pub fn reset_in_child(&self) {
        self.reporting.store(false, Relaxed);
        self.reported.store(false, Relaxed);
    }
}
