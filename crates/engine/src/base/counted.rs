//! A mutex that counts: how often it is taken, how often someone waits for it and how long, how
//! long it is held.
//!
//! For the locks on the paths of every fault and every eviction: from the time that one is held a
//! page follows the throughput at which it is the limit. Taking and waiting are counted each time;
//! how long it is held is measured for one in [`SAMPLE`] and counted so many times, since two
//! readings of the clock cost as much as the lock does (80 to 150 ns on a virtual machine, and a
//! fault takes four).
//!
//! Locks: it is a [`RankedMutex`], of the rank that it is made with.

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use crate::stats::{Counter, Stats};
use overspill_os::cpu::Topology;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// The counters of the locks of one kind.
#[derive(Debug)]
pub struct LockCounters {
    /// Times that one was taken.
    pub taken: Counter,
    /// Times that one had to be waited for.
    pub contended: Counter,
    /// Time waited, in nanoseconds.
    pub wait_ns: Counter,
    /// Time held, in nanoseconds, by the sample.
    pub hold_ns: Counter,
    /// What of that was in holds longer than [`LONG`].
    pub long_ns: Counter,
}

/// Holds are longer than this where the holder was interrupted, or did a system call: told apart,
/// as a handful of them can be more than all others together. Some ten times what is done under any
/// lock otherwise.
pub const LONG: Duration = Duration::from_micros(50);

/// Locks that a table has for each processor, where it could do with more: they are rarely met by
/// two at once then, and each costs memory in every process.
const LOCKS_PER_CPU: usize = 32;

/// How many locks a table has that would have up to `most` of them.
pub fn locks_of(most: usize) -> usize {
    most.min(LOCKS_PER_CPU * Topology::of_machine().cpus())
}

/// One hold in so many is measured, by each processor.
pub const SAMPLE: u64 = 16;

impl LockCounters {
    /// Notes that one was taken, after waiting since `waited_since` if that was needed; the time
    /// from which it is held, if that is to be measured.
    pub fn taken(&self, waited_since: Option<Instant>, stats: &Stats) -> Option<Instant> {
        let measured = stats.count(self.taken).is_multiple_of(SAMPLE);
        let since = (measured || waited_since.is_some()).then(Instant::now);
        if let (Some(waited_since), Some(since)) = (waited_since, since) {
            stats.add(self.contended, 1);
            stats.add(self.wait_ns, (since - waited_since).as_nanos() as u64);
        }
        since.filter(|_| measured)
    }

    /// Notes that one was given back; the time that it and those that were not measured were held,
    /// in nanoseconds.
    pub fn released(&self, since: Option<Instant>, stats: &Stats) -> u64 {
        let Some(since) = since else { return 0 };
        let held = since.elapsed();
        let ns = held.as_nanos() as u64 * SAMPLE;
        stats.add(self.hold_ns, ns);
        if held > LONG {
            stats.add(self.long_ns, ns);
        }
        ns
    }
}

/// A mutex with counters. What is locked begins on the cache line of the lock.
#[derive(Debug)]
#[repr(C)]
pub struct CountedMutex<T> {
    counters: &'static LockCounters,
    mutex: RankedMutex<T>,
}

impl<T> CountedMutex<T> {
    /// A mutex of the given rank over `value`.
    pub const fn new(rank: Rank, counters: &'static LockCounters, value: T) -> CountedMutex<T> {
        CountedMutex { mutex: RankedMutex::new(rank, value), counters }
    }

    /// Locks it.
    pub fn lock<'a>(&'a self, stats: &'a Stats) -> CountedGuard<'a, T> {
        let (guard, waited_since) = match self.mutex.try_lock() {
            Some(guard) => (guard, None),
            None => {
                let since = Instant::now();
                (lock(&self.mutex), Some(since))
            }
        };
        let since = self.counters.taken(waited_since, stats);
        CountedGuard { guard: Some(guard), counters: self.counters, stats, since }
    }

    /// Locks it without counting, for those who look on.
    pub fn inspect(&self) -> RankedGuard<'_, T> {
        lock(&self.mutex)
    }
}

/// A [`CountedMutex`], locked; the time may be measured.
#[derive(Debug)]
pub struct CountedGuard<'a, T> {
    guard: Option<RankedGuard<'a, T>>,
    counters: &'static LockCounters,
    stats: &'a Stats,
    since: Option<Instant>,
}

impl<T> CountedGuard<'_, T> {
    /// Gives the lock back; the time that it was held, in nanoseconds, by the sample.
    pub fn release(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        let Some(guard) = self.guard.take() else { return 0 };
        drop(guard);
        self.counters.released(self.since, self.stats)
    }
}

impl<T> Drop for CountedGuard<'_, T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> Deref for CountedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until dropped")
    }
}

impl<T> DerefMut for CountedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until dropped")
    }
}
