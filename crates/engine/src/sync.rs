//! Waiting: a lock helper, a backoff for short waits, and the gate that a fork closes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Locks a mutex; poison means nothing here, since a panic ends the process.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Waits in growing steps: spins, then yields, then sleeps.
#[derive(Default, Debug)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    /// Spins of a first phase: a page lock is mostly held for a microsecond or two.
    const SPINS: u32 = 6;
    /// Yields of a second phase.
    const YIELDS: u32 = 16;
    /// Longest sleep: the time of a device read, so that a waiter is not much later than what it waits for.
    const SLEEP_US_MAX: u64 = 100;

    /// Waits a little, and longer the next time.
    pub fn wait(&mut self) {
        if self.step < Self::SPINS {
            (0..1 << self.step).for_each(|_| std::hint::spin_loop());
        } else if self.step < Self::SPINS + Self::YIELDS {
            rustix::thread::sched_yield();
        } else {
            let us = (1u64 << (self.step - Self::SPINS - Self::YIELDS).min(10)).min(Self::SLEEP_US_MAX);
            sleep(Duration::from_micros(us));
        }
        self.step += 1;
    }
}

/// Sleeps without a libc symbol that a program could have replaced.
pub fn sleep(time: Duration) {
    let spec = rustix::thread::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 };
    let _ = rustix::thread::nanosleep(&spec);
}

/// A gate that many pass at once and one can close: it waits until everybody is through.
///
/// Used to quiesce a kind of work over a fork. State is two words and no queue, so that a child can open a gate
/// that its parent closed.
#[derive(Default, Debug)]
pub struct Gate {
    closed: AtomicBool,
    inside: AtomicU32,
}

impl Gate {
    /// Passes, waiting while the gate is closed. Leaving is dropping the value.
    pub fn enter(&self) -> Inside<'_> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            backoff.wait();
        }
    }

    /// Passes if the gate is open.
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        self.inside.fetch_add(1, SeqCst);
        if self.closed.load(SeqCst) {
            self.inside.fetch_sub(1, SeqCst);
            return None;
        }
        Some(Inside(self))
    }

    /// Closes the gate, waiting for another who closed it, and then for those inside.
    pub fn close(&self) {
        let mut backoff = Backoff::default();
        while self.closed.swap(true, SeqCst) {
            backoff.wait();
        }
        let mut backoff = Backoff::default();
        while self.inside.load(SeqCst) != 0 {
            backoff.wait();
        }
    }

    /// Opens it.
    pub fn open(&self) {
        self.closed.store(false, SeqCst);
    }

    /// Opens it in the child of a fork, where nobody is inside whatever the count says.
    pub fn open_in_child(&self) {
        self.inside.store(0, SeqCst);
        self.open();
    }
}

/// Proof of being inside a [`Gate`].
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_closed_gate_lets_nobody_in_and_waits_for_those_inside() {
        let gate = Gate::default();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _proof = gate.enter();
                        inside.fetch_add(1, SeqCst);
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                gate.close();
                assert_eq!(inside.load(SeqCst), 0);
                assert!(gate.try_enter().is_none());
                gate.open();
                std::thread::yield_now();
            }
        });
    }
}
