//! Sets of buffers that threads work with, made in advance: nothing is allocated under pressure.

use super::lockdep::Rank;
use super::sync::{RankedGuard, RankedMutex, lock, sleep_on};
use rustix::thread::{Timespec, futex};
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};

/// Longest sleep of a thread that waits for a set of buffers between two looks: nothing is known to
/// need it.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A fixed set of sets of buffers, made in advance; a thread takes a free one. They cost memory
/// from their first use on, until they are trimmed.
pub struct Buffers<T> {
    sets: Box<[BufferSet<T>]>,
    /// Asked whether one may begin to cost memory (`true`); told when it does so no more.
    charge: Box<dyn Fn(bool) -> bool + Send + Sync>,
    /// Threads that wait for one, and how often one of them was woken.
    waiting: AtomicU32,
    woken: AtomicU32,
}

/// One set.
struct BufferSet<T> {
    buffers: RankedMutex<T>,
    is_used: AtomicBool,
}

impl<T> fmt::Debug for Buffers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({})", self.sets.len())
    }
}

/// A set of buffers that a thread has.
pub struct TakenBuffers<'a, T> {
    set: Option<RankedGuard<'a, T>>,
    all: &'a Buffers<T>,
}

impl<T> std::ops::Deref for TakenBuffers<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.set.as_ref().expect("held until dropped")
    }
}

impl<T> std::ops::DerefMut for TakenBuffers<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.set.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for TakenBuffers<'_, T> {
    fn drop(&mut self) {
        drop(self.set.take());
        // The lock is given back before this look, and who waits looks at the lock once more after
        // it said so.
        fence(SeqCst);
        if self.all.waiting.load(Relaxed) > 0 {
            self.all.woken.fetch_add(1, Release);
            let _ = futex::wake(&self.all.woken, futex::Flags::PRIVATE, 1);
        }
    }
}

impl<T> Buffers<T> {
    /// `count` sets. `charge` is asked when one of them is to cost memory (`true`): where there is
    /// no room it stays unused, and who wants one waits for another. It is told when one costs none
    /// any more.
    pub fn new<E>(
        rank: Rank,
        count: usize,
        make: impl Fn() -> Result<T, E>,
        charge: impl Fn(bool) -> bool + Send + Sync + 'static,
    ) -> Result<Buffers<T>, E> {
        let set = |_| {
            let buffers = RankedMutex::new(rank, make()?);
            Ok(BufferSet { buffers, is_used: AtomicBool::new(false) })
        };
        let sets = (0..count).map(set).collect::<Result<_, E>>()?;
        let charge = Box::new(charge);
        Ok(Buffers { sets, charge, waiting: AtomicU32::new(0), woken: AtomicU32::new(0) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// All of them, one after the other.
    #[cfg(debug_assertions)]
    pub fn iter(&self) -> impl Iterator<Item = RankedGuard<'_, T>> {
        self.sets.iter().map(|set| lock(&set.buffers))
    }

    /// `set`, whose lock the caller has, if there is room for it.
    fn taken<'a>(
        &'a self,
        from: &BufferSet<T>,
        set: RankedGuard<'a, T>,
    ) -> Option<TakenBuffers<'a, T>> {
        if !from.is_used.load(Relaxed) {
            if !(self.charge)(true) {
                return None;
            }
            from.is_used.store(true, Relaxed);
        }
        Some(TakenBuffers { set: Some(set), all: self })
    }

    fn free_of(
        &self,
        which: impl Fn(&BufferSet<T>) -> bool,
    ) -> impl Iterator<Item = TakenBuffers<'_, T>> {
        let sets = self.sets.iter().filter(move |set| which(set));
        sets.filter_map(|set| self.taken(set, set.buffers.try_lock()?))
    }

    /// That with a number, which nobody else has, if there is room for it.
    pub fn at(&self, number: usize) -> Option<TakenBuffers<'_, T>> {
        let set = &self.sets[number];
        self.taken(set, lock(&set.buffers))
    }

    /// A free one, if there is one.
    pub fn try_take(&self) -> Option<TakenBuffers<'_, T>> {
        // Always from the first: under one thread it is the one that is hot in cache.
        self.free_of(|_| true).next()
    }

    /// Those that are free and were ever used, one after the other.
    pub fn idle(&self) -> impl Iterator<Item = TakenBuffers<'_, T>> {
        self.free_of(|set| set.is_used.load(Relaxed))
    }

    /// Has `forget` give back the memory of each that nobody has just now.
    pub fn trim(&self, forget: impl Fn(&mut T)) {
        for set in self.sets.iter().filter(|set| set.is_used.load(Relaxed)) {
            if let Some(mut buffers) = set.buffers.try_lock() {
                forget(&mut buffers);
                set.is_used.store(false, Relaxed);
                (self.charge)(false);
            }
        }
    }

    /// A free one, waiting for it asleep: with many more threads than processors, those that poll
    /// keep the others from getting done.
    pub fn take(&self) -> TakenBuffers<'_, T> {
        self.sets[0].buffers.class().check();
        loop {
            if let Some(set) = self.try_take() {
                return set;
            }
            self.waiting.fetch_add(1, SeqCst);
            let woken = self.woken.load(Acquire);
            fence(SeqCst);
            let found = self.try_take();
            if found.is_none() {
                sleep_on(&self.woken, woken, &LOOK_EVERY);
            }
            self.waiting.fetch_sub(1, SeqCst);
            if let Some(set) = found {
                return set;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI32;

    #[test]
    fn what_is_used_costs_memory_until_it_is_trimmed() {
        let cost = Arc::new(AtomicI32::new(0));
        let told = cost.clone();
        let charge = move |costs: bool| {
            told.fetch_add(if costs { 1 } else { -1 }, Relaxed);
            true
        };
        let sets = Buffers::new(Rank::Batch, 3, || Ok::<u64, ()>(7), charge).unwrap();
        drop(sets.try_take());
        drop(sets.try_take());
        drop(sets.at(2));
        assert_eq!(cost.load(Relaxed), 2);
        let held = sets.at(0).unwrap();
        sets.trim(|set| *set = 0);
        assert_eq!((cost.load(Relaxed), *held), (1, 7), "one that somebody has stays");
        drop(held);
        sets.trim(|set| *set = 0);
        assert_eq!(cost.load(Relaxed), 0);
        let contents = [0, 1, 2].map(|number| *sets.at(number).unwrap());
        assert_eq!((contents, cost.load(Relaxed)), ([0, 7, 0], 3), "only what was used is trimmed");
    }

    #[test]
    fn where_there_is_no_room_for_another_it_is_waited_for_one() {
        let used = AtomicI32::new(0);
        let charge = move |costs: bool| !costs || used.fetch_add(1, Relaxed) == 0;
        let sets = Buffers::new(Rank::Batch, 3, || Ok::<u64, ()>(0), charge).unwrap();
        let held = sets.try_take().unwrap();
        assert!(sets.try_take().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *sets.take() += 1);
            while sets.waiting.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished());
            drop(held);
            waits.join().unwrap();
        });
        assert_eq!(*sets.take(), 1, "the one that there is room for");
    }

    #[test]
    fn more_threads_than_sets_take_turns() {
        let sets = Buffers::new(Rank::Batch, 2, || Ok::<u64, ()>(0), |_| true).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut set = sets.take();
                        *set += 1;
                        std::thread::yield_now();
                    }
                });
            }
        });
        let sum: u64 = (0..2).map(|number| *sets.at(number).unwrap()).sum();
        assert_eq!((sum, sets.waiting.load(Relaxed)), (4000, 0));
        let _both = [sets.try_take(), sets.try_take()].map(Option::unwrap);
        assert!(sets.try_take().is_none());
    }
}
