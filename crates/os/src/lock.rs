//! A futex lock that can be held over fork.
//!
//! std's mutex gives its guard to the code that took it. Here prepare and parent or child handlers
//! are separate functions, so the lock has plain `lock` and `unlock`. It never allocates and has no
//! thread-local state.

use crate::units::Errno;
use rustix::thread::{Timespec, futex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and others sleep.
const CONTENDED: u32 = 2;

/// How long a wait is long.
const LONG: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// What is called then.
static WHEN_LONG: OnceLock<fn()> = OnceLock::new();

/// Has `call` made by whoever has waited for a lock for another second: whoever has it may be of a
/// process that was killed, in memory that goes on.
pub fn when_waiting_long(call: fn()) {
    let _ = WHEN_LONG.set(call);
}

/// The lock.
#[derive(Debug)]
pub struct RawLock(AtomicU32);

impl Default for RawLock {
    fn default() -> RawLock {
        RawLock::new()
    }
}

impl RawLock {
    /// A free lock.
    pub const fn new() -> RawLock {
        RawLock(AtomicU32::new(FREE))
    }

    /// Takes the lock; it is not recursive.
    pub fn lock(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            let waited = futex::wait(&self.0, futex::Flags::PRIVATE, CONTENDED, Some(&LONG));
            if let (Err(Errno::TIMEDOUT), Some(call)) = (waited, WHEN_LONG.get()) {
                call();
            }
        }
    }

    /// Gives the lock back; the caller holds it.
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Runs `call` with the lock held.
    pub fn with<R>(&self, call: impl FnOnce() -> R) -> R {
        self.lock();
        let result = call();
        self.unlock();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counter(RawLock, UnsafeCell<usize>);
    // SAFETY: the cell is accessed under the lock only.
    unsafe impl Sync for Counter {}

    #[test]
    fn excludes_threads_from_each_other() {
        static COUNTER: Counter = Counter(RawLock::new(), UnsafeCell::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..20_000 {
                        COUNTER.0.with(|| {
                            // SAFETY: the lock is held.
                            unsafe { *COUNTER.1.get() += 1 }
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all other threads have ended.
        assert_eq!(unsafe { *COUNTER.1.get() }, 80_000);
        assert_eq!(COUNTER.0.0.load(Ordering::Relaxed), FREE);
    }
}
