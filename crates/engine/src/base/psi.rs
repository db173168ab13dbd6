//! Memory pressure: when threads of the program wait for memory, and for what share of the time.
//!
//! A thread is *stalled* while a fault of its reads a device, reclaims for itself, or waits for
//! room. As with the kernel's pressure-stall figures, `some` is the time in which at least one
//! thread is stalled. It is exact in signal delivery. In thread delivery a fault is known from the
//! moment at which the handler thread takes it up, and the handler serves one after the other: what
//! waits in the kernel's queue meanwhile is not seen, but its time is that of the fault before it.
//!
//! `full` is the time in which some thread is stalled and none gets on. Which threads have nothing
//! to do anyway cannot be known in user space, but processor time can: it is taken for the part of
//! a period in which some thread was stalled that is left when the processor time of the program in
//! that period, outside of the engine, is taken off the period. That is exact for one thread, also
//! if it sleeps. With several it is too high where threads work while others wait and all sleep at
//! other times of the same period, and too low where several work at once. A thread that could run
//! and gets no processor counts as one that waits.
//!
//! A fault that stalls costs two compare-and-swaps, any other nothing. The rest is done by the
//! background thread, ten times a second ([`Pressures::publish`]).
//!
//! What a process waits counts for its job as well ([`shared`]).
//!
//! Lock: one over what was published last ([`Rank::Pressure`]), only tried, and never held at a
//! fork: whoever publishes is inside the gate of reclaim or of mapping calls.

mod meter;
mod shared;

use crate::base::lockdep::Rank;
use crate::base::sync::RankedMutex;
use crate::stats::Stats;
pub use meter::PUBLISH_EVERY;
use meter::{Count, Meter};
use overspill_os::{beside, thread};
pub use shared::{JobPressure, clock_us};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Engine threads of a pool at most: the handler, that ahead of streams, the background thread and
/// its workers.
const THREADS_MAX: usize = 19;
/// Shortest period of which `full` is told: a fault and what a thread does besides are shorter by
/// far.
pub const SHORTEST: Duration = Duration::from_millis(1);

/// How much a pool's program waits.
#[derive(Debug)]
pub struct Pressures {
    stats: Stats,
    /// Whether threads of the program serve their own faults.
    own_faults: bool,
    began: Instant,
    stalled: AtomicU64,
    some_us: AtomicU64,
    /// Processor time that stalled threads of the program spent on reclaim: the engine's work.
    reclaim_ns: AtomicU64,
    /// The engine's threads; 0 is none.
    threads: [AtomicI32; THREADS_MAX],
    meter: RankedMutex<Meter>,
    job: Option<JobPressure>,
}

impl Pressures {
    /// Nothing was waited for yet; `own_faults` is whether threads serve their own.
    pub fn new(stats: Stats, own_faults: bool, job: Option<JobPressure>) -> Pressures {
        Pressures {
            stats,
            own_faults,
            began: Instant::now(),
            stalled: AtomicU64::new(0),
            some_us: AtomicU64::new(0),
            reclaim_ns: AtomicU64::new(0),
            threads: std::array::from_fn(|_| AtomicI32::new(0)),
            meter: RankedMutex::new(Rank::Pressure, Meter::default()),
            job,
        }
    }

    /// The calling thread is the engine's: its processor time is not the program's. Beside the
    /// program it is not among the program's in the first place.
    pub fn note_engine_thread(&self) {
        if beside::is_used() {
            return;
        }
        let tid = thread::id();
        let free = |cell: &&AtomicI32| cell.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
        let found = self.threads.iter().find(free);
        debug_assert!(found.is_some(), "more threads than there may be");
    }

    /// The calling thread, which was the engine's for all its life, ends.
    pub fn note_ended_thread(&self) {
        if beside::is_used() {
            return;
        }
        let ns = thread::cpu_time(thread::id()).as_nanos() as u64;
        self.reclaim_ns.fetch_add(ns, Relaxed);
    }

    /// In the child of a fork, which has no threads of the engine's yet, and has not waited for
    /// anything.
    pub fn reset_in_child(&self) {
        self.threads.iter().for_each(|thread| thread.store(0, Relaxed));
        [&self.stalled, &self.some_us, &self.reclaim_ns]
            .iter()
            .for_each(|cell| cell.store(0, Relaxed));
        if let Some(mut meter) = self.meter.try_lock() {
            *meter = Meter::since(self.began.elapsed());
        }
    }

    /// How long the pool has been there.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Time in which some thread was stalled so far.
    pub fn stalled_us(&self) -> u64 {
        self.count().total_us(self.now_us())
    }

    fn count(&self) -> Count<'_> {
        Count { word: &self.stalled, some_us: &self.some_us }
    }

    fn enter(&self) {
        if let (0, Some(job)) = (self.count().enter(self.now_us()), self.job) {
            job.enter();
        }
    }

    fn leave(&self) {
        if let (1, Some(job)) = (self.count().leave(self.now_us()), self.job) {
            job.leave();
        }
    }

    /// Processes of the job are gone, of which some may have been stalled.
    pub fn forget_gone(&self) {
        self.job.iter().for_each(JobPressure::forget_gone);
    }

    /// Processor time of the program outside of the engine.
    pub fn worked(&self) -> Duration {
        let threads = self.threads.iter().map(|tid| tid.load(Relaxed)).filter(|tid| *tid != 0);
        let engine: Duration = threads.map(thread::cpu_time).sum();
        let reclaim = Duration::from_nanos(self.reclaim_ns.load(Relaxed));
        thread::process_cpu_time().saturating_sub(engine + reclaim)
    }

    /// Runs what the calling thread does for a page that is on a device.
    pub fn stalled_for_device<R>(&self, work: impl FnOnce() -> R) -> R {
        self.enter();
        let done = work();
        self.leave();
        done
    }

    /// Runs what the calling thread does for room, which is work of the engine's whoever does it.
    pub fn stalled_for_room<R>(&self, work: impl FnOnce() -> R) -> R {
        let cpu_time = || match self.own_faults {
            true => thread::cpu_time(thread::id()),
            // That of the handler is none of the program's anyway.
            false => Duration::ZERO,
        };
        let before = cpu_time();
        let done = self.stalled_for_device(work);
        let spent = cpu_time().saturating_sub(before);
        self.reclaim_ns.fetch_add(spent.as_nanos() as u64, Relaxed);
        done
    }

    /// Brings the figures in the statistics up to date, unless somebody does so just now, or did
    /// within `period`.
    pub fn publish(&self, period: Duration) {
        let Some(mut meter) = self.meter.try_lock() else { return };
        let now = self.began.elapsed();
        if now < meter.now() + period {
            return;
        }
        self.count().flush(self.now_us());
        let (before, worked) = (meter.worked(), self.worked());
        meter.advance(now, self.some_us.load(Relaxed), worked);
        self.stats.set_pressure(&meter.pressure());
        self.job.iter().for_each(|job| job.publish(worked.saturating_sub(before)));
    }
}
