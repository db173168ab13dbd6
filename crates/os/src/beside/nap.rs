//! How the sibling's threads begin that are not needed at once: in the child of a fork, which
//! mostly ends, or executes a program, before.

use super::filters::come_by;
use super::watch::{LEAVING, LOOK_FIRST, first_thread, has_left, nudge};
use crate::units::Errno;
use rustix::thread::futex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

/// How threads begin that are not needed at once: the sibling's first thread waits for who needs
/// them, and for 20 ms at most.
pub struct Nap {
    /// Holds 1 meanwhile: who finds it, puts 0 there and wakes one that waits on it (private) has
    /// the threads started.
    pub cell: &'static AtomicU32,
    /// What the sibling's first thread does before it waits.
    pub first: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Nap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Nap").field(&self.cell).finish()
    }
}

/// Longest sleep before the engine's threads are started ([`Nap`]): what others ask of a process
/// waits so long for its engine.
const NAP: Duration = Duration::from_millis(20);
/// Looks, [`LOOK_FIRST`] apart, at a program whose first thread has left, before it is taken to go
/// on with others.
const LOOKS: u32 = 5;

/// Sleeps until the engine's threads are needed, or until the program has left the address space:
/// whether it has.
pub(super) fn leaves_before(cell: &AtomicU32, program: &rustix::fd::OwnedFd) -> bool {
    use rustix::thread::futex::{Wait, WaitFlags, WaitvFlags, waitv};
    use rustix::time::{ClockId, clock_gettime};
    let wait_for = |word: &AtomicU32, value: u32, flags: WaitFlags| {
        let mut wait = Wait::new();
        wait.val = value.into();
        wait.uaddr = std::ptr::from_ref(word).cast_mut().cast::<c_void>().into();
        wait.flags = WaitFlags::SIZE_U32 | flags;
        wait
    };
    let word = first_thread();
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = now.tv_nsec + NAP.as_nanos() as i64;
    let until = futex::Timespec {
        tv_sec: now.tv_sec + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    cell.store(1, Release);
    let leaves = loop {
        come_by();
        let number = word.load(Acquire);
        if LEAVING.load(Acquire) != 0 {
            break true;
        }
        if number == 0 {
            break (0..LOOKS).any(|look| {
                let until = futex::Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(look) * LOOK_FIRST.as_nanos() as i64,
                };
                let _ = futex::wait(&LEAVING, futex::Flags::empty(), 0, Some(&until));
                has_left(program)
            });
        }
        // The kernel wakes on these two by the address alone, whoever waits.
        let shared = WaitFlags::empty();
        let waits = [
            wait_for(cell, 1, WaitFlags::PRIVATE),
            wait_for(word, number, shared),
            wait_for(&LEAVING, 0, shared),
        ];
        let woken = waitv(&waits, WaitvFlags::empty(), Some(&until), ClockId::Monotonic);
        if woken == Ok(1) {
            nudge();
        }
        // Needed, or time is up; or the kernel has no such call.
        if cell.load(Acquire) != 1 || !matches!(woken, Ok(_) | Err(Errno::INTR | Errno::AGAIN)) {
            break false;
        }
    };
    cell.store(0, Release);
    leaves
}
