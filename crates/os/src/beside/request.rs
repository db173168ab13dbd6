//! A system call that each thread of the sibling is to make once.
//!
//! Locks: that of the request, which the thread holds that has the call made.

use super::stack::{NOT_BEGUN, Stack, for_each_thread};
use crate::lock::RawLock;
use crate::units::{Errno, check};
use rustix::thread::futex;
use std::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};
use syscalls::{Sysno, raw_syscall};

/// Arguments of a call.
const ARGUMENTS: usize = 5;
/// How long threads are waited for between two looks at them.
const LOOK: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What is to be made.
pub(super) struct Request {
    lock: RawLock,
    /// Counts threads that have made a call, for who waits for them to sleep on.
    made: AtomicU32,
    /// The number in the kernel, and the arguments.
    words: [AtomicUsize; 1 + ARGUMENTS],
    /// Which change it is, for threads to know whether they have made it; odd while the words
    /// change.
    change: AtomicU32,
}

/// What a thread has not made yet.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) change: u32,
    words: [usize; 1 + ARGUMENTS],
}

impl Request {
    pub(super) const fn new() -> Request {
        Request {
            lock: RawLock::new(),
            made: AtomicU32::new(0),
            words: [const { AtomicUsize::new(0) }; 1 + ARGUMENTS],
            change: AtomicU32::new(0),
        }
    }

    /// In the child of a fork: another thread of its parent may have been having a call made.
    pub(super) fn reset_in_child(&self) {
        self.lock.unlock();
    }

    /// The last change.
    pub(super) fn last(&self) -> u32 {
        self.change.load(Acquire) & !1
    }

    /// Has each thread of the sibling make a call, and looks at them so many times before they are
    /// left as they are; whether all have made it. `cell` has the last change that a thread has
    /// made, and `ask` asks it, at each look.
    pub(super) fn have_made(
        &self,
        (call, arguments): (Sysno, [usize; ARGUMENTS]),
        looks: u32,
        cell: fn(&Stack) -> &AtomicU32,
        ask: impl Fn(&'static Stack, i32, u32) -> Result<(), Errno>,
    ) -> bool {
        self.lock.with(|| {
            let change = self.set(call, arguments);
            (0..looks).any(|look| {
                let made = self.made.load(Acquire);
                // A thread that another makes meanwhile has either state of its maker's.
                let mut left = false;
                for_each_thread(|stack, number| {
                    if cell(stack).load(Acquire) != change {
                        left |= number == NOT_BEGUN || ask(stack, number, look) != Err(Errno::SRCH);
                    }
                });
                if left {
                    let _ = futex::wait(&self.made, futex::Flags::empty(), made, Some(&LOOK));
                }
                !left
            })
        })
    }

    /// On a thread that has made the call: so says its `cell`.
    pub(super) fn note_made(&self, cell: &AtomicU32, change: u32) {
        cell.store(change, Release);
        self.made.fetch_add(1, Release);
        let _ = futex::wake(&self.made, futex::Flags::empty(), 1);
    }

    /// Sets the words; the next change. One thread at a time does so.
    fn set(&self, call: Sysno, arguments: [usize; ARGUMENTS]) -> u32 {
        let change = (self.change.load(Relaxed) | 1) + 1;
        self.change.store(change - 1, Relaxed);
        fence(Release);
        let words = [call as usize].into_iter().chain(arguments);
        self.words.iter().zip(words).for_each(|(word, to)| word.store(to, Relaxed));
        self.change.store(change, Release);
        change
    }

    /// The call, for a thread that has `made` the last change. Nothing where it was asked for that:
    /// it is asked again now and then, and that may come late, while the next call is being set.
    pub(super) fn due(&self, made: u32) -> Option<Due> {
        let change = self.change.load(Acquire);
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let is_whole = change.is_multiple_of(2) && self.change.load(Relaxed) == change;
        (is_whole && change != made).then_some(Due { change, words })
    }
}

impl Due {
    /// Makes the call.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// What the arguments point to is there.
    pub(super) unsafe fn make(&self) -> Result<(), Errno> {
        let [number, a, b, c, d, e] = self.words;
        let call = Sysno::new(number).ok_or(Errno::NOSYS)?;
        // SAFETY: the caller's promise.
        check(unsafe { raw_syscall!(call, a, b, c, d, e) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine a thread is asked again before it has answered, and answers twice: the
    /// second time it must not take the next call for made.
    #[test]
    fn a_signal_that_comes_late_makes_no_call_and_no_half_of_one() {
        let request = Request::new();
        let first = request.set(Sysno::setuid, [2, 3, 4, 5, 6]);
        let words = [Sysno::setuid as usize, 2, 3, 4, 5, 6];
        assert_eq!(request.due(0), Some(Due { change: first, words }));
        assert_eq!((request.due(first), request.last()), (None, first), "it is made already");
        // The next is being set.
        request.change.fetch_add(1, Relaxed);
        request.words[0].store(9, Relaxed);
        assert_eq!(request.due(first), None, "it is not whole yet");
        assert_eq!(request.last(), first);
        request.change.fetch_sub(1, Relaxed);
        let second = request.set(Sysno::setgid, [6, 7, 8, 9, 10]);
        let words = [Sysno::setgid as usize, 6, 7, 8, 9, 10];
        assert_eq!(request.due(first), Some(Due { change: second, words }));
    }
}
