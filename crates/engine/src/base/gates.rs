//! The gates that a fork closes, and who may pass while it has reclaim stand still.

use super::lockdep::Rank;
use super::sync::Gate;
use overspill_os::thread;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long faults of other threads wait for room while a fork has stopped reclaim. A fork does
/// that for some milliseconds, on a busy machine for some hundred; if it waits for a thread that
/// waits for room, it takes so much longer.
const FREEZE_PATIENCE: Duration = Duration::from_secs(1);

/// Closed in this order when a process forks.
#[derive(Debug)]
pub struct Gates {
    /// The program's mapping calls.
    pub ops: Gate,
    /// Threads that reclaim, and what the background thread does besides.
    pub reclaim: Gate,
    /// Faults that are being served.
    pub faults: Gate,
    /// The last thread that stopped reclaim to fork, and when that was.
    forker: AtomicI32,
    frozen_at_ns: AtomicU64,
    began: Instant,
}

impl Gates {
    /// All are open.
    pub fn new() -> Gates {
        Gates {
            ops: Gate::new(Rank::OpsGate),
            reclaim: Gate::new(Rank::ReclaimGate),
            faults: Gate::new(Rank::FaultGate),
            forker: AtomicI32::new(0),
            frozen_at_ns: AtomicU64::new(0),
            began: Instant::now(),
        }
    }

    /// The calling thread stops reclaim, to fork.
    pub fn freeze_reclaim(&self) {
        self.forker.store(thread::id(), Relaxed);
        self.frozen_at_ns.store(self.began.elapsed().as_nanos() as u64, Relaxed);
        self.reclaim.close();
    }

    /// Whether a fault of thread `tid` for which there is no room may go over the budget while a
    /// fork has stopped reclaim. The thread that forks may. Another waits for the fork to end, but
    /// not for long: the fork may need a lock that it has.
    pub fn may_exceed(&self, tid: i32) -> bool {
        let frozen_ns = self.began.elapsed().as_nanos() as u64 - self.frozen_at_ns.load(Relaxed);
        tid == self.forker.load(Relaxed) || frozen_ns > FREEZE_PATIENCE.as_nanos() as u64
    }

    /// The engine stands still until this is dropped.
    #[cfg(debug_assertions)]
    pub fn still(&self) -> Still<'_> {
        self.ops.close();
        self.reclaim.close();
        self.faults.close();
        Still(self)
    }
}

/// See [`Gates::still`].
#[cfg(debug_assertions)]
pub struct Still<'a>(&'a Gates);

#[cfg(debug_assertions)]
impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.faults.open();
        self.0.reclaim.open();
        self.0.ops.open();
    }
}
