//! Waiting: a mutex that knows its rank, a backoff for short waits, and the gate that a fork
//! closes.
//!
//! What decides between threads does so by these, or by an [`Atomic`]: there the threads of a model
//! change ([`point`]), whose interleavings a checker explores.

use crate::base::lockdep::{Held, LockClass, Rank};
use crate::base::seeded::{Bug, is_seeded};
use overspill_os::{Errno, cpu, thread};
use rustix::thread::{Timespec, futex};
use std::ffi::CStr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::SeqCst};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Where another thread may run, in a model of which the caller is a thread; else nothing.
#[inline(always)]
pub fn point() {
    #[cfg(test)]
    crate::base::explore::point();
}

/// The processor that the caller runs on; in a model any of [`MODEL_CPUS`], as a thread may be
/// moved at any time.
///
/// [`MODEL_CPUS`]: crate::base::explore::MODEL_CPUS
#[inline(always)]
pub fn processor() -> usize {
    #[cfg(test)]
    if crate::base::explore::is_running() {
        return crate::base::explore::processor();
    }
    cpu::current()
}

/// Lets other threads run, in a model; whether the caller is a thread of one, and so must not
/// sleep.
#[inline(always)]
fn yields_in_model() -> bool {
    #[cfg(test)]
    let yields = crate::base::explore::wait();
    #[cfg(not(test))]
    let yields = false;
    yields
}

/// In a model takes what others give back, letting them run meanwhile: a thread of it that slept
/// would wait for one that runs on the same thread of the machine.
#[inline(always)]
fn tries_in_model<T>(try_once: impl Fn() -> Option<T>) -> Option<T> {
    #[cfg(test)]
    while crate::base::explore::is_running() {
        point();
        if let Some(taken) = try_once() {
            return Some(taken);
        }
        yields_in_model();
    }
    let _ = try_once;
    None
}

/// A mutex with a place in the order of locks. Poison means nothing here, since a panic ends the
/// process.
#[derive(Debug)]
pub struct RankedMutex<T> {
    class: LockClass,
    mutex: std::sync::Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A mutex of the given rank over `value`.
    pub const fn new(rank: Rank, value: T) -> RankedMutex<T> {
        RankedMutex { class: LockClass::new(rank), mutex: std::sync::Mutex::new(value) }
    }

    /// The class, for those who wait by trying.
    pub fn class(&self) -> LockClass {
        self.class
    }

    /// Locks it if it is free.
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        point();
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(e)) => e.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(RankedGuard { guard, _held: self.class.hold() })
    }
}

/// Locks a mutex.
pub fn lock<T>(mutex: &RankedMutex<T>) -> RankedGuard<'_, T> {
    mutex.class.check();
    if let Some(guard) = tries_in_model(|| mutex.try_lock()) {
        return guard;
    }
    RankedGuard {
        guard: mutex.mutex.lock().unwrap_or_else(|e| e.into_inner()),
        _held: mutex.class.hold(),
    }
}

/// Locks for reading.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    if let Some(guard) = tries_in_model(|| lock.try_read().ok()) {
        return guard;
    }
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks for writing.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    if let Some(guard) = tries_in_model(|| lock.try_write().ok()) {
        return guard;
    }
    lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A [`RankedMutex`], locked.
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
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
    /// Longest sleep: the time of a device read, so that a waiter is not much later than what it
    /// waits for.
    const SLEEP_US_MAX: u64 = 100;

    /// Waits a little, and longer the next time.
    pub fn wait(&mut self) {
        if yields_in_model() {
            return;
        }
        if self.step < Self::SPINS {
            (0..1 << self.step).for_each(|_| std::hint::spin_loop());
        } else if self.step < Self::SPINS + Self::YIELDS {
            rustix::thread::sched_yield();
        } else {
            let us =
                (1u64 << (self.step - Self::SPINS - Self::YIELDS).min(10)).min(Self::SLEEP_US_MAX);
            sleep(Duration::from_micros(us));
        }
        self.step += 1;
    }
}

/// Sleeps without a libc symbol that a program could have replaced.
pub fn sleep(time: Duration) {
    if yields_in_model() {
        return;
    }
    let spec = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 };
    let _ = rustix::thread::nanosleep(&spec);
}

/// Sleeps until somebody wakes the word, while it has this value, for so long at most.
pub fn sleep_on(word: &AtomicU32, value: u32, time: &Timespec) {
    if !yields_in_model() {
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(time));
    }
}

/// Starts a thread of the engine's; in a model, one of the model.
///
/// # Errors
/// When there can be no more.
pub fn spawn(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    #[cfg(test)]
    if crate::base::explore::is_model_thread() {
        shuttle::thread::spawn(body);
        return Ok(());
    }
    thread::spawn(name, body)
}

/// A word that threads share: before each operation other threads of a model may run. Named where
/// it is used (`Atomic::load(&word, Acquire)`), as the word's own methods do without that.
pub trait Atomic {
    /// As the method of [`AtomicU64`].
    fn load(&self, order: Ordering) -> u64;
    /// As the method of [`AtomicU64`].
    fn store(&self, value: u64, order: Ordering);
    /// As the method of [`AtomicU64`].
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// As the method of [`AtomicU64`].
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// As the method of [`AtomicU64`].
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    /// As the method of [`AtomicU64`].
    fn compare_exchange_weak(
        &self,
        now: u64,
        new: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, u64>;
}

/// A value as a word that has room for it.
#[inline(always)]
fn low<W: TryFrom<u64, Error: std::fmt::Debug>>(value: u64) -> W {
    value.try_into().expect("a value fits its word")
}

/// [`Atomic`] for a type with the methods of [`AtomicU64`].
macro_rules! impl_atomic {
    ($type:ty, $word:ty) => {
        impl Atomic for $type {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                point();
                <$type>::load(self, order) as u64
            }
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                point();
                <$type>::store(self, low::<$word>(value), order);
            }
            #[inline(always)]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                point();
                <$type>::swap(self, low(value), order) as u64
            }
            #[inline(always)]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                point();
                <$type>::fetch_add(self, low(value), order) as u64
            }
            #[inline(always)]
            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                point();
                <$type>::fetch_sub(self, low(value), order) as u64
            }
            #[inline(always)]
            fn compare_exchange_weak(
                &self,
                now: u64,
                new: u64,
                done: Ordering,
                failed: Ordering,
            ) -> Result<u64, u64> {
                point();
                let result = <$type>::compare_exchange_weak(self, low(now), low(new), done, failed);
                result.map(|value| value as u64).map_err(|value| value as u64)
            }
        }
    };
}
impl_atomic!(AtomicU64, u64);
impl_atomic!(AtomicU32, u32);

/// A gate that many pass at once and one can close: it waits until everybody is through.
///
/// Used to quiesce a kind of work over a fork. State is two words and no queue, so that a child can
/// open a gate that its parent closed.
#[derive(Debug)]
pub struct Gate {
    class: LockClass,
    closed: AtomicU64,
    inside: AtomicU64,
}

impl Gate {
    /// An open gate; being inside has the given rank.
    pub fn new(rank: Rank) -> Gate {
        Gate { class: LockClass::new(rank), closed: AtomicU64::new(0), inside: AtomicU64::new(0) }
    }

    /// Passes, waiting while the gate is closed. Leaving is dropping the value.
    pub fn enter(&self) -> Inside<'_> {
        self.class.check();
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
        // Counted before the look: who closes the gate looks at the count afterwards.
        let early = is_seeded(Bug::LookedUncounted) && Atomic::load(&self.closed, SeqCst) == 0;
        Atomic::fetch_add(&self.inside, 1, SeqCst);
        if Atomic::load(&self.closed, SeqCst) != 0 && !early {
            self.leave();
            return None;
        }
        Some(Inside { gate: self, _held: self.class.hold() })
    }

    fn leave(&self) {
        Atomic::fetch_sub(&self.inside, 1, SeqCst);
    }

    /// Closes the gate, waiting for another who closed it, and then for those inside.
    pub fn close(&self) {
        self.class.check();
        let mut backoff = Backoff::default();
        while Atomic::swap(&self.closed, 1, SeqCst) != 0 {
            backoff.wait();
        }
        let mut backoff = Backoff::default();
        while Atomic::load(&self.inside, SeqCst) != 0 {
            backoff.wait();
        }
    }

    /// Opens it.
    pub fn open(&self) {
        Atomic::store(&self.closed, 0, SeqCst);
    }

    /// Opens it in the child of a fork, where nobody is inside whatever the count says.
    pub fn open_in_child(&self) {
        self.inside.store(0, SeqCst);
        self.open();
    }
}

/// Proof of being inside a [`Gate`].
#[derive(Debug)]
pub struct Inside<'a> {
    gate: &'a Gate,
    _held: Held,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::explore::{finds_each, finds_nothing};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_closed_gate_lets_nobody_in_and_waits_for_those_inside() {
        let gate = Gate::new(Rank::OpsGate);
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

    /// Two threads that pass, one that waits and one that goes away, and two that close the gate.
    fn gate_users() {
        let gate = Arc::new(Gate::new(Rank::OpsGate));
        let (inside, closed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut threads = Vec::new();
        for waits in [true, false] {
            let (gate, inside) = (gate.clone(), inside.clone());
            threads.push(shuttle::thread::spawn(move || {
                for _ in 0..2 {
                    let proof = if waits { Some(gate.enter()) } else { gate.try_enter() };
                    let Some(_proof) = proof else { return };
                    inside.fetch_add(1, SeqCst);
                    point();
                    inside.fetch_sub(1, SeqCst);
                }
            }));
        }
        for _ in 0..2 {
            let (gate, inside, closed) = (gate.clone(), inside.clone(), closed.clone());
            threads.push(shuttle::thread::spawn(move || {
                gate.close();
                assert_eq!(closed.fetch_add(1, SeqCst), 0, "the gate is closed twice");
                assert_eq!(inside.load(SeqCst), 0, "somebody is inside a closed gate");
                assert!(gate.try_enter().is_none());
                assert_eq!(inside.load(SeqCst), 0, "somebody came into a closed gate");
                closed.fetch_sub(1, SeqCst);
                gate.open();
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((gate.inside.load(SeqCst), gate.closed.load(SeqCst)), (0, 0));
    }

    #[test]
    fn every_interleaving_of_gate_users_keeps_closed_gates_empty() {
        finds_nothing(2_500, gate_users);
    }

    #[test]
    fn who_looks_before_it_is_counted_is_found() {
        finds_each(&[Bug::LookedUncounted], 2_500, gate_users);
    }
}
