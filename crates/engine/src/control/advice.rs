//! Advice of the program: pages that it will not need soon, or will.
//!
//! MADV_COLD puts pages into the swap cache, from which a touch brings them back; MADV_PAGEOUT has
//! them stored. Only an engine thread can do that where the program's threads have no descriptors
//! of the engine's. So each is a request in a short queue, which the background thread follows
//! extent by extent, between two looks at the gate of reclaim. MADV_COLD does not wait for it;
//! MADV_PAGEOUT does, for [`WAIT`] at most. A request for which the queue has no room is dropped:
//! it is advice.
//!
//! MADV_WILLNEED brings stored pages in at once, while that takes no reclaim.
//!
//! Lock: the queue ([`Rank::Advice`]); nothing is taken under it.

mod follow;

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock, sleep_on};
use rustix::thread::{Timespec, futex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Requests that wait at most.
const REQUESTS_MAX: usize = 64;
/// How long MADV_PAGEOUT waits: enough for some GiB to a fast device. What is left goes on in the
/// background.
const WAIT: Duration = Duration::from_secs(2);

/// What is to become of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdviceRequest {
    /// They are not needed soon.
    Cold,
    /// They are to leave memory.
    PageOut,
}

type Queue = VecDeque<(u32, AdviceRequest, Range<usize>)>;

/// What the program advises, and how much of it has been followed.
#[derive(Debug)]
pub(crate) struct AdviceQueue {
    queue: RankedMutex<Queue>,
    /// Requests ever made; changed under the lock.
    made: AtomicU32,
    /// Number of the last request that was followed; whoever waits for one sleeps on it.
    followed: AtomicU32,
}

impl Default for AdviceQueue {
    fn default() -> AdviceQueue {
        let queue = RankedMutex::new(Rank::Advice, VecDeque::with_capacity(REQUESTS_MAX));
        AdviceQueue { queue, made: AtomicU32::new(0), followed: AtomicU32::new(0) }
    }
}

impl AdviceQueue {
    /// Whether there are any.
    pub fn is_due(&self) -> bool {
        self.followed.load(Acquire) != self.made.load(Acquire)
    }

    /// In the child of a fork: those of the parent are followed there.
    pub fn reset_in_child(&self) {
        lock(&self.queue).clear();
        self.followed.store(self.made.load(Acquire), Release);
    }

    /// Adds one; its number, or `None` when there is no room.
    fn push(&self, request: AdviceRequest, pages: Range<usize>) -> Option<u32> {
        let mut queue = lock(&self.queue);
        if queue.len() == REQUESTS_MAX {
            return None;
        }
        let number = self.made.load(Acquire).wrapping_add(1);
        queue.push_back((number, request, pages));
        self.made.store(number, Release);
        Some(number)
    }

    fn pop(&self) -> Option<(u32, AdviceRequest, Range<usize>)> {
        lock(&self.queue).pop_front()
    }

    /// The request of this number, and all before it, are followed.
    fn note_followed(&self, number: u32) {
        self.followed.store(number, Release);
        let _ = futex::wake(&self.followed, futex::Flags::PRIVATE, u32::MAX);
    }

    fn wait_for(&self, number: u32) {
        let deadline = Instant::now() + WAIT;
        loop {
            let followed = self.followed.load(Acquire);
            let left = deadline.saturating_duration_since(Instant::now());
            // Numbers go round.
            if followed.wrapping_sub(number) as i32 >= 0 || left.is_zero() {
                return;
            }
            let time =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            sleep_on(&self.followed, followed, &time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_followed_in_order_and_a_full_queue_takes_none() {
        let queue = AdviceQueue::default();
        assert!(!queue.is_due());
        let numbers: Vec<_> =
            (0..=REQUESTS_MAX).map(|i| queue.push(AdviceRequest::Cold, i..i + 1)).collect();
        assert_eq!(numbers[..2], [Some(1), Some(2)]);
        assert_eq!(numbers[REQUESTS_MAX], None);
        for expected in 1..=REQUESTS_MAX as u32 {
            let (number, _, pages) = queue.pop().unwrap();
            assert_eq!((number, pages.start), (expected, expected as usize - 1));
            assert!(queue.is_due());
            queue.note_followed(number);
        }
        assert!(!queue.is_due() && queue.pop().is_none());
        // What is followed is not waited for, also where numbers have gone round.
        queue.wait_for(REQUESTS_MAX as u32);
        queue.wait_for(u32::MAX);
        queue.push(AdviceRequest::PageOut, 0..1);
        queue.reset_in_child();
        assert!(!queue.is_due() && queue.pop().is_none());
    }
}
