//! Hints of the program: pages that it will not need soon, or will.
//!
//! MADV_COLD puts pages into the swap cache, from which a touch brings them back; MADV_PAGEOUT has
//! them stored. Only an engine thread can do that where the program's threads have no descriptors
//! of the engine's, so each is a wish in a short queue that the background thread grants, extent by
//! extent, between two looks at the gate of reclaim. MADV_COLD does not wait for it; MADV_PAGEOUT
//! does, for [`WAIT`] at most. A wish for which there is no room in the queue is not granted: it is
//! a hint.
//!
//! MADV_WILLNEED brings stored pages in at once, while that takes no reclaim.
//!
//! Lock: the queue ([`Rank::Wishes`]); nothing is taken under it.

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::control::Control;
use crate::memory::extent::EXTENT_PAGES;
use crate::reclaim::Leaves;
use crate::stats::Counter;
use overspill_os::backing::Backing;
use rustix::thread::{Timespec, futex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Wishes that wait at most.
const WISHES_MAX: usize = 64;
/// How long MADV_PAGEOUT waits: enough for some GiB to a fast device. What is left goes on in the
/// background.
const WAIT: Duration = Duration::from_secs(2);

/// What is to become of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// They are not needed soon.
    Cold,
    /// They are to leave memory.
    PageOut,
}

type Queue = VecDeque<(u32, Wish, Range<usize>)>;

/// What the program wishes, and how much of it has been granted.
#[derive(Debug)]
pub(crate) struct Wishes {
    queue: RankedMutex<Queue>,
    /// Wishes ever made; changed under the lock.
    made: AtomicU32,
    /// Number of the last wish that was granted; whoever waits for one sleeps on it.
    granted: AtomicU32,
}

impl Default for Wishes {
    fn default() -> Wishes {
        let queue = RankedMutex::new(Rank::Wishes, VecDeque::with_capacity(WISHES_MAX));
        Wishes { queue, made: AtomicU32::new(0), granted: AtomicU32::new(0) }
    }
}

impl Wishes {
    /// Whether there are any.
    pub fn is_due(&self) -> bool {
        self.granted.load(Acquire) != self.made.load(Acquire)
    }

    /// In the child of a fork: those of the parent are granted there.
    pub fn reset_in_child(&self) {
        lock(&self.queue).clear();
        self.granted.store(self.made.load(Acquire), Release);
    }

    /// Adds one; its number, or `None` when there is no room.
    fn push(&self, wish: Wish, pages: Range<usize>) -> Option<u32> {
        let mut queue = lock(&self.queue);
        if queue.len() == WISHES_MAX {
            return None;
        }
        let number = self.made.load(Acquire).wrapping_add(1);
        queue.push_back((number, wish, pages));
        self.made.store(number, Release);
        Some(number)
    }

    fn pop(&self) -> Option<(u32, Wish, Range<usize>)> {
        lock(&self.queue).pop_front()
    }

    /// The wish of this number, and all before it, are granted.
    fn granted(&self, number: u32) {
        self.granted.store(number, Release);
        let _ = futex::wake(&self.granted, futex::Flags::PRIVATE, u32::MAX);
    }

    fn wait_for(&self, number: u32) {
        let deadline = Instant::now() + WAIT;
        loop {
            let granted = self.granted.load(Acquire);
            let left = deadline.saturating_duration_since(Instant::now());
            // Numbers go round.
            if granted.wrapping_sub(number) as i32 >= 0 || left.is_zero() {
                return;
            }
            let time =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = futex::wait(&self.granted, futex::Flags::PRIVATE, granted, Some(&time));
        }
    }
}

impl<B: Backing> Control<B> {
    /// MADV_COLD and MADV_PAGEOUT; inside the gate of mapping calls, with no lock held.
    pub(crate) fn wish(&self, wish: Wish, pages: Range<usize>) {
        let Some(number) = self.wishes.push(wish, pages) else { return };
        self.base.wake.background.wake();
        if wish == Wish::PageOut {
            self.wishes.wait_for(number);
        }
    }

    /// Grants a wish, if there is one; returns how many pages have left. For the background thread.
    pub(crate) fn grant_wish(&self) -> usize {
        if !self.wishes.is_due() {
            return 0;
        }
        let next = {
            let _inside = self.base.gates.reclaim.enter();
            self.wishes.pop()
        };
        let Some((number, wish, pages)) = next else { return 0 };
        let mut gone = 0;
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / EXTENT_PAGES + 1) * EXTENT_PAGES);
            let _inside = self.base.gates.reclaim.enter();
            if let Some(mut batch) = self.reclaim.batches.try_take() {
                gone += match wish {
                    Wish::Cold => self.reclaim.send_away(&mut batch, at..end, Leaves::ToSwapCache),
                    Wish::PageOut => {
                        self.reclaim.send_away(&mut batch, at..end, Leaves::ToTiers)
                            + self.reclaim.store_cached_of(&mut batch, at..end)
                    }
                };
            }
            at = end;
        }
        self.stats.add(Counter::PgAdvisedOut, gone as u64);
        self.wishes.granted(number);
        // One more look around, also if none of them was in memory.
        gone.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_granted_in_order_and_a_full_queue_takes_none() {
        let wishes = Wishes::default();
        assert!(!wishes.is_due());
        let numbers: Vec<_> = (0..=WISHES_MAX).map(|i| wishes.push(Wish::Cold, i..i + 1)).collect();
        assert_eq!(numbers[..2], [Some(1), Some(2)]);
        assert_eq!(numbers[WISHES_MAX], None);
        for expected in 1..=WISHES_MAX as u32 {
            let (number, _, pages) = wishes.pop().unwrap();
            assert_eq!((number, pages.start), (expected, expected as usize - 1));
            assert!(wishes.is_due());
            wishes.granted(number);
        }
        assert!(!wishes.is_due() && wishes.pop().is_none());
        // What is granted is not waited for, also where numbers have gone round.
        wishes.wait_for(WISHES_MAX as u32);
        wishes.wait_for(u32::MAX);
        wishes.push(Wish::PageOut, 0..1);
        wishes.reset_in_child();
        assert!(!wishes.is_due() && wishes.pop().is_none());
    }
}
